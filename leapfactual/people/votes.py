"""Votes: each is stored with all that follows from it, in one transaction."""

from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, insert, select

from ..errors import InputError, LeapError
from .consensus import IMPLAUSIBLE, NO_CONSENSUS, UNSURE
from .store import tables as t
from .store.database import Database
from .transitions import (
    ASKING,
    NEWEST,
    STUCK,
    advance_from,
    apply_rule,
    get_campaign,
    log_event,
    record_consensus,
    segment_of,
    segments,
)

# A database takes no larger number, even to compare with; and none is given to a picture.
MAX_INTEGER = 2**63 - 1
PERSON = select(t.annotator).where(t.annotator.c.id == bindparam("annotator"))


class Conflict(LeapError, RuntimeError):
    """A vote contradicts one that is stored."""


class Refused(LeapError, PermissionError):
    """This person may not do that."""


@dataclass(frozen=True)
class Receipt:
    """The acknowledgement of a vote, which is on disk.

    Arguments:
        counted: Whether it counts. A vote on a picture that others have decided meanwhile is kept,
            but does not.
    """

    counted: bool


def check_invited(c: Connection, annotator: int) -> None:
    """Checks that a person is invited, and was not voided."""
    person = c.execute(PERSON, {"annotator": annotator}).one_or_none()
    if person is None or person.voided is not None:
        raise Refused("this invitation is no longer valid. Ask for another.")


def vote(db: Database, annotator: int, key: str, answer: int, now: float) -> Receipt:
    """Stores a vote and does what follows from it.

    Sent again with the same key, it is acknowledged again.

    Arguments:
        db: The database.
        annotator: Who votes.
        key: The key that the task was given with.
        answer: A class, *unsure* or *implausible*.
        now: The time.
    """
    with db.write() as c:
        stored = c.execute(select(t.vote).where(t.vote.c.key == key)).one_or_none()
        if stored is not None:
            if (stored.annotator_id, stored.answer) != (annotator, answer):
                raise Conflict("this vote was stored with another answer, which stands.")
            return Receipt(stored.counted)
        check_invited(c, annotator)
        lease = c.execute(
            select(t.lease).where(t.lease.c.key == key, t.lease.c.annotator_id == annotator)
        ).one_or_none()
        if lease is None:
            raise Refused("this picture was not given to you.")
        classes = len(get_campaign(c).classes)
        if not 0 <= answer < classes and answer not in (UNSURE, IMPLAUSIBLE):
            raise InputError(f"an answer is one of 0 to {classes - 1}, -1 or -2, got {answer}.")
        row = c.execute(select(t.task).where(t.task.c.id == lease.task_id)).one()
        return cast(c, row, annotator, answer, key, now, max(0.0, now - lease.taken))


def cast(
    c: Connection,
    task: t.Record,
    annotator: int,
    answer: int,
    key: str,
    now: float,
    seconds: float,
    given: float | None = None,
) -> Receipt:
    """Writes a vote on a task, and does what follows from it.

    Arguments:
        c: The connection, which writes.
        task: The task.
        annotator: Who votes, and may.
        answer: A class, *unsure* or *implausible*.
        key: What the vote goes by.
        now: The time.
        seconds: How long the person took.
        given: When the vote was given, if that was not now.
    """
    own = (t.vote.c.task_id == task.id) & (t.vote.c.annotator_id == annotator)
    if c.execute(select(t.vote.c.id).where(own)).first() is not None:
        raise Conflict("the same person has voted on this picture before, and that vote stands.")
    counted = task.state == t.OPEN
    c.execute(
        insert(t.vote).values(
            task_id=task.id,
            annotator_id=annotator,
            answer=answer,
            key=key,
            counted=counted,
            created=now if given is None else given,
            seconds=seconds,
        )
    )
    log_event(c, now, "voted", task=task.id, annotator=annotator, answer=answer, counted=counted)
    if counted and task.kind == t.FRAME:
        apply_rule(c, task, now)
    return Receipt(counted)


def adjudicate(db: Database, task: int, outcome: int, now: float) -> None:
    """Lets the owner decide a picture that people do not agree on, or have not decided."""
    with db.write() as c:
        number = max(0, min(task, MAX_INTEGER))
        row = c.execute(select(t.task).where(t.task.c.id == number)).one_or_none()
        classes = len(get_campaign(c).classes)
        if row is None or row.kind != t.FRAME:
            raise InputError(f"there is no picture {task} to adjudicate.")
        if not 0 <= outcome < classes and outcome != IMPLAUSIBLE:
            raise InputError(f"an outcome is one of 0 to {classes - 1}, or -2, got {outcome}.")
        if not (row.state == t.OPEN or _undecided(c, row)):
            raise InputError(f"picture {task} is not without consensus: there is nothing to do.")
        record_consensus(c, task, outcome, now, adjudicated=True)
        advance_from(c, row.frame_id, now)


def _undecided(c: Connection, task: t.Record) -> bool:
    """Returns whether a run waits for somebody to decide a task."""
    segment = segment_of(c, task.frame_id)
    status = c.execute(select(t.run.c.status).where(t.run.c.id == segment.run_id)).scalar_one()
    known = c.execute(
        select(t.consensus.c.outcome).where(t.consensus.c.task_id == task.id, NEWEST)
    ).scalar_one_or_none()
    waits = not segment.discarded and status in (STUCK, ASKING)
    return waits and known == NO_CONSENSUS and segment.id == segments(c, segment.run_id)[-1].id
