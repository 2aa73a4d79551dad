"""The exclusion of a person: their votes no longer count, wherever that matters.

Finished runs do not change by themselves. Those in which the person's votes counted are marked as
doubted, and rewound when that is asked for.
"""

import time

from sqlalchemy import Connection, exists, select, update

from ..errors import InputError
from .store import tables as t
from .store.database import Database
from .transitions import (
    ASKING,
    NEWEST,
    WITHDRAWN,
    advance,
    close_segment,
    count_late,
    evaluate_rule,
    get_campaign,
    log_event,
    reconsider,
    record_consensus,
    segment_state,
    segments,
)


def void(db: Database, name: str, *, rewind: bool = False) -> list[str]:
    """Takes back a person's invitation, and returns the runs that depend on their votes.

    These are marked. Rewound, they go back to the first picture that is not decided without the
    person, and ask on from there.

    Arguments:
        db: The database.
        name: The person.
        rewind: Whether to rewind.
    """
    now = time.time()
    with db.write() as c:
        row = c.execute(select(t.annotator).where(t.annotator.c.name == name)).one_or_none()
        if row is None:
            raise InputError(f"nobody was invited as {name!r}.")
        if row.voided is None:
            exclude(c, row.id, now)
        doubted = c.execute(select(t.run).where(t.run.c.doubted).order_by(t.run.c.id)).all()
        if rewind:
            log_event(c, now, "rewind")
            for run in doubted:
                rewind_run(c, run.id, now)
        return [run.name for run in doubted]


def exclude(c: Connection, annotator: int, now: float) -> None:
    """Discounts a person's votes, and marks the runs that were decided with them."""
    c.execute(update(t.annotator).where(t.annotator.c.id == annotator).values(voided=now))
    log_event(c, now, "voided", annotator=annotator)
    counted = (
        select(t.segment.c.run_id)
        .select_from(
            t.vote.join(t.task, t.task.c.id == t.vote.c.task_id)
            .join(t.frame, t.frame.c.id == t.task.c.frame_id)
            .join(t.segment, t.segment.c.id == t.frame.c.segment_id)
        )
        .where(
            t.vote.c.annotator_id == annotator,
            t.vote.c.counted,
            t.task.c.kind == t.FRAME,
            ~t.segment.c.discarded,
            exists().where(t.consensus.c.task_id == t.task.c.id),
        )
    )
    c.execute(update(t.run).where(t.run.c.id.in_(counted)).values(doubted=True))
    reconsider(c, now)


def rewind_run(c: Connection, run: int, now: float) -> None:
    """Rewinds a run to the first segment that no longer leads to where it led."""
    c.execute(update(t.run).where(t.run.c.id == run).values(doubted=False))
    mode = get_campaign(c).mode
    for segment in segments(c, run):
        before = segment_state(c, segment, mode)
        for task, outcome in _tasks_with_voided_votes(c, segment.id):
            _redecide(c, task, outcome, now)
        after = segment_state(c, segment, mode)
        if after != before:
            _discard_after(c, segment, now)
            return
        if after.ask:
            advance(c, run, now)
        else:
            close_segment(c, segment.id, now)


def _tasks_with_voided_votes(c: Connection, segment: int) -> list[tuple[int, int]]:
    """Returns the tasks that were decided by votes of which some no longer count, with how."""
    taken_back = exists().where(
        t.vote.c.task_id == t.task.c.id,
        t.vote.c.counted,
        t.annotator.c.id == t.vote.c.annotator_id,
        t.annotator.c.voided.is_not(None),
    )
    rows = c.execute(
        select(t.task.c.id, t.consensus.c.outcome)
        .join(t.frame, t.frame.c.id == t.task.c.frame_id)
        .join(t.consensus, t.consensus.c.task_id == t.task.c.id)
        .where(
            t.frame.c.segment_id == segment,
            t.task.c.kind == t.FRAME,
            NEWEST,
            ~t.consensus.c.adjudicated,
            t.consensus.c.outcome != WITHDRAWN,
            taken_back,
        )
        .order_by(t.frame.c.position)
    ).all()
    return [(row.id, row.outcome) for row in rows]


def _redecide(c: Connection, task: int, before: int, now: float) -> None:
    """Decides a task without those who were voided; if need be, late votes count."""
    if evaluate_rule(c, task)[0] == before:
        return
    count_late(c, task, now)
    outcome, version, votes = evaluate_rule(c, task)
    if outcome != before:
        outcome = WITHDRAWN if outcome is None else outcome
        record_consensus(c, task, outcome, now, rule=version, votes=votes)


def _discard_after(c: Connection, segment: t.Record, now: float) -> None:
    """Discards what came after a segment, and continues from there."""
    later = (t.segment.c.run_id == segment.run_id) & (t.segment.c.number > segment.number)
    for row in c.execute(select(t.segment.c.id).where(later, ~t.segment.c.discarded)).all():
        close_segment(c, row.id, now)
    c.execute(update(t.segment).where(later).values(discarded=True))
    fresh = {"status": ASKING, "reason": "", "result": None, "finished": None}
    c.execute(update(t.run).where(t.run.c.id == segment.run_id).values(**fresh))
    log_event(c, now, "rewound", run=segment.run_id, segment=segment.number)
    advance(c, segment.run_id, now)
