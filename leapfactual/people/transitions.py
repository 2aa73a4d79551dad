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

from .consensus import DAWID_SKENE, IMPLAUSIBLE, Rule, confusion
from .questions import Heard, heard
from .store import tables as t

WITHDRAWN = -4

WAITING, ASKING, STUCK = "waiting", "asking", "no_consensus"
REACHED, EXHAUSTED, IMPLAUSIBLE_RUN = "reached", "exhausted", "implausible"
STALLED = "stalled"
FINISHED = (REACHED, EXHAUSTED, IMPLAUSIBLE_RUN, STALLED)


def note(c: Connection, now: float, kind: str, **content: object) -> None:
    """Adds to the event log."""
    c.execute(insert(t.event).values(created=now, kind=kind, content=content))


CAMPAIGN = select(t.campaign)
NEWEST_RULE = select(t.rule).order_by(t.rule.c.id.desc()).limit(1)


def settings(c: Connection) -> t.Record:
    """Returns the campaign."""
    return c.execute(CAMPAIGN).one()


def current_rule(c: Connection) -> tuple[int, Rule]:
    """Returns the newest rule and its version."""
    row = c.execute(NEWEST_RULE).one()
    return row.id, Rule(**row.content)


def ballots(c: Connection, task: int) -> Sequence[t.Record]:
    """Returns the votes on a task that count, in the order in which they came."""
    return c.execute(
        select(t.vote.c.annotator_id, t.vote.c.answer)
        .join(t.annotator, t.annotator.c.id == t.vote.c.annotator_id)
        .where(t.vote.c.task_id == task, t.vote.c.counted, t.annotator.c.voided.is_(None))
        .order_by(t.vote.c.id)
    ).all()


def decided(c: Connection, task: int) -> tuple[int | None, int, int]:
    """Returns what the rule says of a task, the rule's version, and how many votes there are."""
    version, rule = current_rule(c)
    votes = ballots(c, task)
    confusions = None
    if rule.method == DAWID_SKENE and len(votes) >= rule.least:
        classes = len(settings(c).classes)
        confusions = [habits(c, row.annotator_id, task, classes) for row in votes]
    return rule.decide([row.answer for row in votes], confusions), version, len(votes)


NEWER = t.consensus.alias()
NEWEST = ~exists().where(
    NEWER.c.task_id == t.consensus.c.task_id, NEWER.c.version > t.consensus.c.version
)


def habits(c: Connection, annotator: int, task: int, classes: int) -> np.ndarray[Any, Any]:
    """Returns how a person answers: on gold, and on what was decided, but for one task."""
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
    return confusion({(row.truth, row.answer): row.times for row in rows}, classes)


def settle(c: Connection, task: t.Record, now: float) -> None:
    """Applies the rule to a task, and goes on if it is decided."""
    if _decide(c, task.id, now):
        go_on(c, task.frame_id, now)


def _decide(c: Connection, task: int, now: float) -> bool:
    """Applies the rule to a task, and returns whether it is decided."""
    outcome, version, votes = decided(c, task)
    if outcome is None:
        return False
    record(c, task, outcome, now, rule=version, votes=votes)
    return True


def reconsider(c: Connection, now: float) -> None:
    """Applies the rule to all that is open: it has changed, or whose votes count has."""
    waiting = t.task.c.kind == t.FRAME, t.task.c.state == t.OPEN
    voted = exists().where(t.vote.c.task_id == t.task.c.id)
    for row in c.execute(select(t.task).where(*waiting, voted).order_by(t.task.c.id)).all():
        if c.execute(select(t.task.c.id).where(t.task.c.id == row.id, *waiting)).first():
            settle(c, row, now)


def go_on(c: Connection, frame: int, now: float) -> None:
    """Does what follows from what was decided of a frame."""
    progress(c, segment_of(c, frame).run_id, now)


def segment_of(c: Connection, frame: int) -> t.Record:
    """Returns the segment of a frame."""
    return c.execute(
        select(t.segment)
        .join(t.frame, t.frame.c.segment_id == t.segment.c.id)
        .where(t.frame.c.id == frame)
    ).one()


def record(
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
    note(c, now, "decided", task=task, outcome=outcome, votes=votes, adjudicated=adjudicated)


def outcomes(c: Connection, segment: int) -> dict[int, int]:
    """Returns what is decided of the frames of a segment, by position."""
    rows = c.execute(
        select(t.frame.c.position, t.consensus.c.outcome)
        .join(t.task, (t.task.c.frame_id == t.frame.c.id) & (t.task.c.kind == t.FRAME))
        .join(t.consensus, t.consensus.c.task_id == t.task.c.id)
        .where(t.frame.c.segment_id == segment, NEWEST, t.consensus.c.outcome != WITHDRAWN)
    ).all()
    return {row.position: row.outcome for row in rows}


def listen(c: Connection, segment: t.Record, mode: str) -> Heard:
    """Returns what a segment has led to so far."""
    return heard(mode, segment.frames, segment.assumed, outcomes(c, segment.id))


def progress(c: Connection, run_id: int, now: float) -> None:
    """Does what a run's last segment asks for: the next round, the next job, or the end.

    It follows from what is decided, however that came about, and does nothing a second time.
    """
    run = c.execute(select(t.run).where(t.run.c.id == run_id)).one()
    if run.status in FINISHED:
        return
    segment, mode = segments(c, run_id)[-1], settings(c).mode
    found = listen(c, segment, mode)
    while found.ask and _ask(c, segment, found.ask, now):
        found = listen(c, segment, mode)
    if found.ask:
        return
    close(c, segment.id, now)
    if found.stuck is not None:
        end(c, run.id, STUCK, "people do not agree on a picture: adjudicate it", now)
    elif IMPLAUSIBLE in found.answers:
        end(c, run.id, IMPLAUSIBLE_RUN, "people do not believe a picture on the way", now)
    else:
        enqueue(c, run.id, now)


def _ask(c: Connection, segment: t.Record, positions: Sequence[int], now: float) -> bool:
    """Sees to it that people are asked about these frames, and about no others of the segment.

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
    note(c, now, "opened", segment=segment.id, round=number, frames=list(positions))
    c.execute(update(t.run).where(t.run.c.id == segment.run_id).values(status=ASKING, reason=""))
    for task in known:
        count_late(c, task, now)
    settled = [_decide(c, task, now) for task in known]
    return any(settled)


def count_late(c: Connection, task: int, now: float) -> None:
    """Lets votes count that came when a picture was decided, for it no longer is."""
    late = (t.vote.c.task_id == task) & ~t.vote.c.counted
    if c.execute(update(t.vote).where(late).values(counted=True)).rowcount:
        note(c, now, "counted", task=task)


def close(c: Connection, segment: int, now: float) -> None:
    """Asks about nothing of a segment any more."""
    _close_rounds(c, segment, now)
    frames = select(t.frame.c.id).where(t.frame.c.segment_id == segment)
    tasks = c.execute(select(t.task.c.id).where(t.task.c.frame_id.in_(frames))).scalars()
    _retire(c, tasks.all())


def _retire(c: Connection, tasks: Sequence[int | None]) -> None:
    """Gives no more people these tasks, as far as they are of frames."""
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
        note(c, now, "closed", segment=segment, round=number)


def segments(c: Connection, run: int) -> Sequence[t.Record]:
    """Returns the segments of a run that count, in order."""
    return c.execute(
        select(t.segment)
        .where(t.segment.c.run_id == run, ~t.segment.c.discarded)
        .order_by(t.segment.c.number)
    ).all()


def answers(c: Connection, run: int) -> tuple[list[int], int]:
    """Returns the labels of a run in the order of its questions, and how many were guessed."""
    mode = settings(c).mode
    said: list[int] = []
    guessed = 0
    for segment in segments(c, run):
        found = listen(c, segment, mode)
        if found.ask or found.stuck is not None:
            break
        said += found.answers
        guessed += found.guessed
    return said, guessed


def enqueue(c: Connection, run: int, now: float) -> None:
    """Queues the job that computes what comes next, once; after rewinding, the same one again."""
    digest = fingerprint(c, run)
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


def fingerprint(c: Connection, run: int) -> str:
    """Returns what the next job of a run is known by: how many segments it had, and the answers.

    A job that is known by something else is out of date.
    """
    said, _ = answers(c, run)
    made = c.execute(
        select(func.count()).select_from(t.segment).where(t.segment.c.run_id == run)
    ).scalar_one()
    return hashlib.sha256(json.dumps([run, made, said]).encode()).hexdigest()


def end(
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
    note(c, now, "ended", run=run, status=status, reason=reason)
