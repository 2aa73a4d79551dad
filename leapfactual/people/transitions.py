"""What follows from votes: a consensus, the next round, the next job, the end of a run.

Everything is derived from rows of votes, in the order in which they came. These functions are
called within the transaction that writes the vote, or whatever else was done, so that there is no
moment at which one is true and another is not yet.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sqlalchemy import Connection, case, exists, func, insert, select, update

from .consensus import DAWID_SKENE, IMPLAUSIBLE, Rule, confusion_matrix
from .questions import SegmentState, next_questions
from .store import tables as t

WITHDRAWN = -4

WAITING, ASKING, STUCK = "waiting", "asking", "no_consensus"
REACHED, EXHAUSTED, IMPLAUSIBLE_RUN = "reached", "exhausted", "implausible"
STALLED = "stalled"
FINISHED = (REACHED, EXHAUSTED, IMPLAUSIBLE_RUN, STALLED)


def log_event(c: Connection, now: float, kind: str, **content: object) -> None:
    """Appends to the event log."""
    c.execute(insert(t.event).values(created=now, kind=kind, content=content))


CAMPAIGN = select(t.campaign)
NEWEST_RULE = select(t.rule).order_by(t.rule.c.id.desc()).limit(1)


def get_campaign(c: Connection) -> t.Record:
    """Returns the row of the campaign."""
    return c.execute(CAMPAIGN).one()


def current_rule(c: Connection) -> tuple[int, Rule]:
    """Returns the newest rule and its version."""
    row = c.execute(NEWEST_RULE).one()
    return row.id, Rule(**row.content)


def counted_votes(c: Connection, task: int) -> Sequence[t.Record]:
    """Returns the votes on a task that count, in the order in which they came."""
    return c.execute(
        select(t.vote.c.annotator_id, t.vote.c.answer)
        .join(t.annotator, t.annotator.c.id == t.vote.c.annotator_id)
        .where(t.vote.c.task_id == task, t.vote.c.counted, t.annotator.c.voided.is_(None))
        .order_by(t.vote.c.id)
    ).all()


def evaluate_rule(c: Connection, task: int) -> tuple[int | None, int, int]:
    """Returns the outcome of a task by the rule, the rule's version, and the number of votes."""
    version, rule = current_rule(c)
    votes = counted_votes(c, task)
    confusions = None
    if rule.method == DAWID_SKENE and len(votes) >= rule.least:
        classes = len(get_campaign(c).classes)
        confusions = [confusion_matrix_of(c, row.annotator_id, task, classes) for row in votes]
    return rule.decide([row.answer for row in votes], confusions), version, len(votes)


NEWER = t.consensus.alias()
NEWEST = ~exists().where(
    NEWER.c.task_id == t.consensus.c.task_id, NEWER.c.version > t.consensus.c.version
)


def confusion_matrix_of(
    c: Connection, annotator: int, task: int, classes: int
) -> np.ndarray[Any, Any]:
    """Returns the confusion matrix of a person, from gold and all that is decided but a task."""
    truth = case((t.task.c.kind == t.GOLD, t.task.c.truth), else_=t.consensus.c.outcome)
    rows = c.execute(
        select(truth.label("truth"), t.vote.c.answer, func.count().label("times"))
        .select_from(
            t.vote.join(t.task, t.task.c.id == t.vote.c.task_id).outerjoin(
                t.consensus, (t.consensus.c.task_id == t.task.c.id) & NEWEST
            )
        )
        .where(
            t.vote.c.annotator_id == annotator,
            t.task.c.id != task,
            truth.is_not(None),
            (truth >= 0) | (truth == IMPLAUSIBLE),
        )
        .group_by(truth, t.vote.c.answer)
    ).all()
    return confusion_matrix({(row.truth, row.answer): row.times for row in rows}, classes)


def apply_rule(c: Connection, task: t.Record, now: float) -> None:
    """Applies the rule to a task, and advances its run if it is decided."""
    if _decide(c, task.id, now):
        advance_from(c, task.frame_id, now)


def _decide(c: Connection, task: int, now: float) -> bool:
    """Applies the rule to a task, and returns whether it is decided."""
    outcome, version, votes = evaluate_rule(c, task)
    if outcome is None:
        return False
    record_consensus(c, task, outcome, now, rule=version, votes=votes)
    return True


def reconsider(c: Connection, now: float) -> None:
    """Applies the rule to all open tasks again: it has changed, or whose votes count has."""
    waiting = t.task.c.kind == t.FRAME, t.task.c.state == t.OPEN
    voted = exists().where(t.vote.c.task_id == t.task.c.id)
    for row in c.execute(select(t.task).where(*waiting, voted).order_by(t.task.c.id)).all():
        if c.execute(select(t.task.c.id).where(t.task.c.id == row.id, *waiting)).first():
            apply_rule(c, row, now)


def advance_from(c: Connection, frame: int, now: float) -> None:
    """Advances the run of a frame."""
    advance(c, segment_of(c, frame).run_id, now)


def segment_of(c: Connection, frame: int) -> t.Record:
    """Returns the segment of a frame."""
    return c.execute(
        select(t.segment)
        .join(t.frame, t.frame.c.segment_id == t.segment.c.id)
        .where(t.frame.c.id == frame)
    ).one()


def record_consensus(
    c: Connection,
    task: int,
    outcome: int,
    now: float,
    *,
    rule: int | None = None,
    votes: int = 0,
    adjudicated: bool = False,
) -> None:
    """Writes a consensus, or that it is withdrawn, and retires or reopens the task."""
    version = c.execute(
        select(func.coalesce(func.max(t.consensus.c.version), 0)).where(
            t.consensus.c.task_id == task
        )
    ).scalar_one()
    c.execute(
        insert(t.consensus).values(
            task_id=task,
            version=version + 1,
            rule_id=rule,
            outcome=outcome,
            votes=votes,
            adjudicated=adjudicated,
            created=now,
        )
    )
    state = t.OPEN if outcome == WITHDRAWN else t.RETIRED
    c.execute(update(t.task).where(t.task.c.id == task).values(state=state))
    log_event(c, now, "decided", task=task, outcome=outcome, votes=votes, adjudicated=adjudicated)


def outcomes(c: Connection, segment: int) -> dict[int, int]:
    """Returns what is decided of the frames of a segment, by position."""
    rows = c.execute(
        select(t.frame.c.position, t.consensus.c.outcome)
        .join(t.task, (t.task.c.frame_id == t.frame.c.id) & (t.task.c.kind == t.FRAME))
        .join(t.consensus, t.consensus.c.task_id == t.task.c.id)
        .where(t.frame.c.segment_id == segment, NEWEST, t.consensus.c.outcome != WITHDRAWN)
    ).all()
    return {row.position: row.outcome for row in rows}


def segment_state(c: Connection, segment: t.Record, mode: str) -> SegmentState:
    """Returns what a segment has led to so far."""
    return next_questions(mode, segment.frames, segment.assumed, outcomes(c, segment.id))


def advance(c: Connection, run_id: int, now: float) -> None:
    """Advances a run as far as what is decided allows: the next round, the next job, or the end.

    Idempotent: it depends on what is decided alone, however that came about.
    """
    run = c.execute(select(t.run).where(t.run.c.id == run_id)).one()
    if run.status in FINISHED:
        return
    segment, mode = segments(c, run_id)[-1], get_campaign(c).mode
    state = segment_state(c, segment, mode)
    while state.ask and _open_round(c, segment, state.ask, now):
        state = segment_state(c, segment, mode)
    if state.ask:
        return
    close_segment(c, segment.id, now)
    if state.stuck is not None:
        end_run(c, run.id, STUCK, "people do not agree on a picture: adjudicate it", now)
    elif IMPLAUSIBLE in state.answers:
        end_run(c, run.id, IMPLAUSIBLE_RUN, "people do not believe a picture on the way", now)
    else:
        enqueue_job(c, run.id, now)


def _open_round(c: Connection, segment: t.Record, positions: Sequence[int], now: float) -> bool:
    """Opens a round about these frames, and about no others of the segment.

    What was left undecided before is asked about again, with the votes that it has. Returns
    whether these decide one of the frames at once.
    """
    rows = c.execute(
        select(t.frame, t.task.c.id.label("task"), t.task.c.state)
        .outerjoin(t.task, (t.task.c.frame_id == t.frame.c.id) & (t.task.c.kind == t.FRAME))
        .where(t.frame.c.segment_id == segment.id)
        .order_by(t.frame.c.position)
    ).all()
    _retire(c, [row.task for row in rows if row.position not in positions])
    asked = [row for row in rows if row.position in positions]
    if _rounds(c, segment.id) and all(row.state == t.OPEN for row in asked):
        return False
    _close_rounds(c, segment.id, now)
    number = c.execute(
        select(func.count()).select_from(t.round_).where(t.round_.c.segment_id == segment.id)
    ).scalar_one()
    made = c.execute(
        insert(t.round_)
        .values(segment_id=segment.id, number=number, opened=now)
        .returning(t.round_.c.id)
    ).scalar_one()
    known = [row.task for row in asked if row.task is not None]
    c.execute(update(t.task).where(t.task.c.id.in_(known)).values(state=t.OPEN, round_id=made))
    new = [row for row in asked if row.task is None]
    if new:
        task = {"kind": t.FRAME, "state": t.OPEN, "round_id": made}
        c.execute(
            insert(t.task), [{**task, "asset": row.asset, "frame_id": row.id} for row in new]
        )
    log_event(c, now, "opened", segment=segment.id, round=number, frames=list(positions))
    c.execute(update(t.run).where(t.run.c.id == segment.run_id).values(status=ASKING, reason=""))
    for task in known:
        count_late(c, task, now)
    settled = [_decide(c, task, now) for task in known]
    return any(settled)


def count_late(c: Connection, task: int, now: float) -> None:
    """Counts votes that came after a picture was decided, for it no longer is."""
    late = (t.vote.c.task_id == task) & ~t.vote.c.counted
    if c.execute(update(t.vote).where(late).values(counted=True)).rowcount:
        log_event(c, now, "counted", task=task)


def close_segment(c: Connection, segment: int, now: float) -> None:
    """Closes the rounds of a segment and retires its tasks."""
    _close_rounds(c, segment, now)
    frames = select(t.frame.c.id).where(t.frame.c.segment_id == segment)
    tasks = c.execute(select(t.task.c.id).where(t.task.c.frame_id.in_(frames))).scalars()
    _retire(c, tasks.all())


def _retire(c: Connection, tasks: Sequence[int | None]) -> None:
    """Retires these tasks, as far as they are of frames."""
    open_ = (t.task.c.state == t.OPEN) & (t.task.c.kind == t.FRAME)
    c.execute(update(t.task).where(t.task.c.id.in_(tasks), open_).values(state=t.RETIRED))


def _rounds(c: Connection, segment: int) -> Sequence[int]:
    """Returns the rounds of a segment that are open; there is one at most."""
    return (
        c.execute(
            select(t.round_.c.id).where(
                t.round_.c.segment_id == segment, t.round_.c.closed.is_(None)
            )
        )
        .scalars()
        .all()
    )


def _close_rounds(c: Connection, segment: int, now: float) -> None:
    for number in _rounds(c, segment):
        c.execute(update(t.round_).where(t.round_.c.id == number).values(closed=now))
        log_event(c, now, "closed", segment=segment, round=number)


def segments(c: Connection, run: int) -> Sequence[t.Record]:
    """Returns the segments of a run that count, in order."""
    return c.execute(
        select(t.segment)
        .where(t.segment.c.run_id == run, ~t.segment.c.discarded)
        .order_by(t.segment.c.number)
    ).all()


def answers(c: Connection, run: int) -> tuple[list[int], int]:
    """Returns the labels of a run in the order of its questions, and how many were guessed."""
    mode = get_campaign(c).mode
    labels: list[int] = []
    guessed = 0
    for segment in segments(c, run):
        state = segment_state(c, segment, mode)
        if state.ask or state.stuck is not None:
            break
        labels += state.answers
        guessed += state.guessed
    return labels, guessed


def enqueue_job(c: Connection, run: int, now: float) -> None:
    """Queues the job that computes what comes next, once; after rewinding, the same one again."""
    digest = job_input_hash(c, run)
    known = c.execute(select(t.job.c.id).where(t.job.c.input_sha256 == digest)).one_or_none()
    if known is None:
        c.execute(
            insert(t.job).values(
                run_id=run, input_sha256=digest, state=t.QUEUED, attempts=0, created=now
            )
        )
    else:
        over = t.job.c.state.in_([t.DONE, t.FAILED])
        c.execute(
            update(t.job)
            .where(t.job.c.id == known.id, over)
            .values(state=t.QUEUED, attempts=0, until=None)
        )
    c.execute(update(t.run).where(t.run.c.id == run).values(status=WAITING, reason=""))


def job_input_hash(c: Connection, run: int) -> str:
    """Returns the SHA-256 of what the next job of a run depends on: its segments and answers.

    A job that was queued for another hash is out of date.
    """
    labels, _ = answers(c, run)
    made = c.execute(
        select(func.count()).select_from(t.segment).where(t.segment.c.run_id == run)
    ).scalar_one()
    return hashlib.sha256(json.dumps([run, made, labels]).encode()).hexdigest()


def end_run(
    c: Connection,
    run: int,
    status: str,
    reason: str,
    now: float,
    result: Mapping[str, object] | None = None,
) -> None:
    """Ends a run; one without consensus only until it is adjudicated."""
    values = {"status": status, "reason": reason, "result": result}
    c.execute(
        update(t.run)
        .where(t.run.c.id == run)
        .values(**values, finished=now if status in FINISHED else None)
    )
    log_event(c, now, "ended", run=run, status=status, reason=reason)


def stall(c: Connection, run: int, reason: str, now: float) -> None:
    """Ends a run whose pictures cannot be computed, until it is tried again."""
    log_event(c, now, "stalled", run=run, reason=reason)
    end_run(c, run, STALLED, reason, now)


def revive(c: Connection, run: int, now: float) -> None:
    """Queues the job of a stalled run again."""
    log_event(c, now, "retried", run=run)
    c.execute(update(t.run).where(t.run.c.id == run).values(finished=None))
    enqueue_job(c, run, now)
