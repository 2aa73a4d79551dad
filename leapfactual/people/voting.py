"""The round: a person takes a task, votes, and what follows from the vote follows at once.

Storing the vote, applying the rule, retiring the task, closing the round and queueing the next job
are one transaction, so there is no moment at which one is true and another is not yet. Everything
is derived from rows of votes, in the order in which they came.
"""

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import (
    BigInteger,
    Connection,
    Integer,
    and_,
    bindparam,
    case,
    exists,
    func,
    insert,
    select,
    update,
)
from sqlalchemy import cast as cast_to

from ..errors import InputError, LeapError
from . import tables as t
from .database import Database
from .rules import (
    DAWID_SKENE,
    IMPLAUSIBLE,
    NO_CONSENSUS,
    UNSURE,
    Rule,
    confusion,
)
from .segments import Heard, heard

WITHDRAWN = -4
SHUFFLE = 1_000_003
APART = 5

WAITING, ASKING, STUCK = "waiting", "asking", "no_consensus"
REACHED, EXHAUSTED, IMPLAUSIBLE_RUN = "reached", "exhausted", "implausible"
STALLED, CANCELLED = "stalled", "cancelled"
FINISHED = (REACHED, EXHAUSTED, IMPLAUSIBLE_RUN, STALLED, CANCELLED)


class Conflict(LeapError, RuntimeError):
    """A vote contradicts one that is stored."""


class Refused(LeapError, PermissionError):
    """This person may not do that."""


@dataclass(frozen=True)
class Offer:
    """Is a task that was given to a person.

    Arguments:
        key: What the picture and the vote go by. It is random: the numbers of tasks would tell
            gold from the rest.
        asset: The picture, by its hash.
    """

    key: str
    asset: str


@dataclass(frozen=True)
class Receipt:
    """Acknowledges a vote, which is on disk.

    Arguments:
        counted: Whether it counts. A vote on a picture that others have decided meanwhile is kept,
            but does not.
    """

    counted: bool


def note(c: Connection, now: float, kind: str, **content: object) -> None:
    """Adds to the event log."""
    c.execute(insert(t.event).values(created=now, kind=kind, content=content))


CAMPAIGN = select(t.campaign)
NEWEST_RULE = select(t.rule).order_by(t.rule.c.id.desc()).limit(1)
PERSON = select(t.annotator).where(t.annotator.c.id == bindparam("annotator"))


def settings(c: Connection) -> t.Record:
    """Returns the campaign."""
    return c.execute(CAMPAIGN).one()


def current_rule(c: Connection) -> tuple[int, Rule]:
    """Returns the newest rule and its version."""
    row = c.execute(NEWEST_RULE).one()
    return row.id, Rule(**row.content)


# -- taking a task --


def take(db: Database, annotator: int, now: float) -> Offer | None:
    """Gives a person a task, the one that the person has already if there is one.

    Returns none where there is nothing to do just now; that is found out without writing, so that
    those who wait are in nobody's way.
    """
    with db.read() as c:
        _admit(c, annotator)
        if settings(c).paused or not (_holds(c, annotator, now) or _frame(c, annotator, now)):
            return None
    with db.write() as c:
        _admit(c, annotator)
        campaign = settings(c)
        if campaign.paused:
            return None
        held = _held(c, annotator, now, campaign.lease)
        if held is not None:
            return held
        chosen = _choose(c, campaign, annotator, now)
        return None if chosen is None else _lend(c, chosen, annotator, now, campaign.lease)


def _admit(c: Connection, annotator: int) -> None:
    person = c.execute(PERSON, {"annotator": annotator}).one_or_none()
    if person is None or person.voided is not None:
        raise Refused("this invitation is no longer valid. Ask for another.")


def _voted() -> t.Record:
    """Is whether a person, to be named, has voted on a task."""
    person = bindparam("annotator", type_=Integer)
    return exists().where(t.vote.c.task_id == t.task.c.id, t.vote.c.annotator_id == person)


HOLDS = (
    select(t.lease.c.id, t.lease.c.key, t.task.c.asset)
    .join(t.task, t.task.c.id == t.lease.c.task_id)
    .where(
        t.lease.c.annotator_id == bindparam("annotator"),
        t.lease.c.expires > bindparam("now"),
        t.task.c.state == t.OPEN,
        ~_voted(),
    )
    .order_by(t.lease.c.id)
    .limit(1)
)


def _holds(c: Connection, annotator: int, now: float) -> t.Record:
    """Returns what a person has on lease and has not voted on, if there is something."""
    return c.execute(HOLDS, {"annotator": annotator, "now": now}).one_or_none()


def _held(c: Connection, annotator: int, now: float, lease: float) -> Offer | None:
    """Gives a person again what they have, with all the time for it."""
    row = _holds(c, annotator, now)
    if row is None:
        return None
    c.execute(update(t.lease).where(t.lease.c.id == row.id).values(expires=now + lease))
    return Offer(row.key, row.asset)


def _choose(c: Connection, campaign: t.Record, annotator: int, now: float) -> t.Record:
    """Chooses a task: now and then gold or a repeat, else a frame that needs votes."""
    given = c.execute(
        select(func.count()).select_from(t.vote).where(t.vote.c.annotator_id == annotator)
    ).scalar_one()
    luck = _draw(campaign.seed, annotator, given)
    frame = _frame(c, annotator, now)
    if frame is None:
        return None
    if luck < campaign.gold_share:
        return _gold(c, annotator) or frame
    if luck < campaign.gold_share + campaign.repeat_share:
        return _repeat(c, annotator) or frame
    return frame


def _draw(*parts: int) -> float:
    """Returns a number in [0, 1) that depends on nothing else."""
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


def _factor(annotator: int) -> int:
    """Returns what orders tasks at random, but for each person always alike."""
    return 1 + 2 * int(_draw(annotator, 0) * SHUFFLE / 2)


def _needed() -> t.Record:
    """Is a frame that needs another vote, counting those that others are about to give."""
    votes = (
        select(func.count())
        .select_from(t.vote.join(t.annotator, t.annotator.c.id == t.vote.c.annotator_id))
        .where(t.vote.c.task_id == t.task.c.id, t.vote.c.counted, t.annotator.c.voided.is_(None))
        .scalar_subquery()
    )
    already = exists().where(
        t.vote.c.task_id == t.lease.c.task_id, t.vote.c.annotator_id == t.lease.c.annotator_id
    )
    coming = (
        select(func.count())
        .select_from(t.lease)
        .where(t.lease.c.task_id == t.task.c.id, t.lease.c.expires > bindparam("now"), ~already)
        .scalar_subquery()
    )
    least = bindparam("least", type_=Integer)
    wanted = case((votes < least, least), else_=votes + 1)
    return _shuffled(t.FRAME).where(votes + coming < wanted)


def _shuffled(kind: str) -> t.Record:
    """Is an open task of a kind that a person has not voted on, in the person's own order."""
    order = cast_to(t.task.c.id, BigInteger) * bindparam("factor", type_=BigInteger) % SHUFFLE
    return (
        select(t.task)
        .where(t.task.c.kind == kind, t.task.c.state == t.OPEN, ~_voted())
        .order_by(order, t.task.c.id)
        .limit(1)
    )


NEEDED, KNOWN = _needed(), _shuffled(t.GOLD)


def _frame(c: Connection, annotator: int, now: float) -> t.Record:
    """Returns a frame that needs another vote, if there is one."""
    given = {"annotator": annotator, "now": now, "least": current_rule(c)[1].least}
    return c.execute(NEEDED, {**given, "factor": _factor(annotator)}).one_or_none()


def _gold(c: Connection, annotator: int) -> t.Record:
    return c.execute(KNOWN, {"annotator": annotator, "factor": _factor(annotator)}).one_or_none()


def _repeat(c: Connection, annotator: int) -> t.Record:
    """Makes a task of a picture that the person has seen some time ago, and not twice yet."""
    rows = c.execute(
        select(t.task.c.asset, t.task.c.frame_id)
        .join(t.vote, t.vote.c.task_id == t.task.c.id)
        .where(t.vote.c.annotator_id == annotator, t.task.c.kind == t.FRAME)
        .order_by(t.vote.c.id)
    ).all()
    done = set(
        c.execute(
            select(t.task.c.frame_id).where(
                t.task.c.kind == t.REPEAT, t.task.c.annotator_id == annotator
            )
        ).scalars()
    )
    for row in rows[:-APART]:
        if row.frame_id not in done:
            return again(c, row, annotator)
    return None


def again(c: Connection, task: t.Record, annotator: int) -> t.Record:
    """Returns the task that shows the picture of a frame to a person once more."""
    known = c.execute(
        select(t.task).where(
            t.task.c.kind == t.REPEAT,
            t.task.c.frame_id == task.frame_id,
            t.task.c.annotator_id == annotator,
        )
    ).one_or_none()
    if known is not None:
        return known
    made = insert(t.task).values(
        kind=t.REPEAT,
        state=t.OPEN,
        asset=task.asset,
        frame_id=task.frame_id,
        annotator_id=annotator,
    )
    return c.execute(made.returning(t.task)).one()


def _lend(c: Connection, task: t.Record, annotator: int, now: float, lease: float) -> Offer:
    key = secrets.token_hex(16)
    lent = c.execute(
        update(t.lease)
        .where(t.lease.c.task_id == task.id, t.lease.c.annotator_id == annotator)
        .values(expires=now + lease, taken=now)
        .returning(t.lease.c.key)
    ).scalar_one_or_none()
    if lent is None:
        lent = key
        c.execute(
            insert(t.lease).values(
                task_id=task.id, annotator_id=annotator, key=key, taken=now, expires=now + lease
            )
        )
    return Offer(lent, task.asset)


# -- voting --


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
        _admit(c, annotator)
        lease = c.execute(
            select(t.lease).where(t.lease.c.key == key, t.lease.c.annotator_id == annotator)
        ).one_or_none()
        if lease is None:
            raise Refused("this picture was not given to you.")
        classes = len(settings(c).classes)
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
    note(c, now, "voted", task=task.id, annotator=annotator, answer=answer, counted=counted)
    if counted and task.kind == t.FRAME:
        settle(c, task, now)
    return Receipt(counted)


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


def habits(c: Connection, annotator: int, task: int, classes: int) -> np.ndarray[Any, Any]:
    """Returns how a person answers: on gold, and on what was decided, but for one task."""
    latest = _latest()
    truth = case((t.task.c.kind == t.GOLD, t.task.c.truth), else_=latest.c.outcome)
    rows = c.execute(
        select(truth.label("truth"), t.vote.c.answer, func.count().label("times"))
        .select_from(
            t.vote.join(t.task, t.task.c.id == t.vote.c.task_id).outerjoin(
                latest, latest.c.task_id == t.task.c.id
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


def _latest() -> t.Record:
    """Returns the newest consensus of every task."""
    newest = (
        select(t.consensus.c.task_id, func.max(t.consensus.c.version).label("version"))
        .group_by(t.consensus.c.task_id)
        .subquery()
    )
    return (
        select(t.consensus)
        .join(
            newest,
            and_(
                newest.c.task_id == t.consensus.c.task_id,
                newest.c.version == t.consensus.c.version,
            ),
        )
        .subquery()
    )


def settle(c: Connection, task: t.Record, now: float) -> None:
    """Applies the rule to a task, and goes on if it is decided."""
    outcome, version, votes = decided(c, task.id)
    if outcome is None:
        return
    record(c, task.id, outcome, now, rule=version, votes=votes)
    segment = c.execute(
        select(t.frame.c.segment_id).where(t.frame.c.id == task.frame_id)
    ).scalar_one()
    progress(c, segment, now)


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
    latest = _latest()
    rows = c.execute(
        select(t.frame.c.position, latest.c.outcome)
        .select_from(
            t.frame.join(
                t.task, and_(t.task.c.frame_id == t.frame.c.id, t.task.c.kind == t.FRAME)
            ).join(latest, latest.c.task_id == t.task.c.id)
        )
        .where(t.frame.c.segment_id == segment, latest.c.outcome != WITHDRAWN)
    ).all()
    return {row.position: row.outcome for row in rows}


def listen(c: Connection, segment: t.Record, mode: str) -> Heard:
    """Returns what a segment has led to so far."""
    return heard(mode, segment.frames, segment.assumed, outcomes(c, segment.id))


def progress(c: Connection, segment_id: int, now: float) -> None:
    """Does what a segment asks for: the next round, the next job, or the end of the run."""
    segment = c.execute(select(t.segment).where(t.segment.c.id == segment_id)).one()
    if segment.discarded:
        return
    run = c.execute(select(t.run).where(t.run.c.id == segment.run_id)).one()
    if run.status in FINISHED:
        return
    found = listen(c, segment, settings(c).mode)
    if found.ask:
        _ask(c, segment, found.ask, now)
        return
    _close(c, segment.id, now)
    if found.stuck is not None:
        end(c, run.id, STUCK, "people do not agree on a picture: adjudicate it", now)
    elif IMPLAUSIBLE in found.answers:
        end(c, run.id, IMPLAUSIBLE_RUN, "people do not believe a picture on the way", now)
    else:
        enqueue(c, run.id, now)


def _ask(c: Connection, segment: t.Record, positions: Sequence[int], now: float) -> None:
    """Opens a round on the frames that have no task yet."""
    rows = c.execute(
        select(t.frame)
        .where(
            t.frame.c.segment_id == segment.id,
            t.frame.c.position.in_(positions),
            ~exists().where(t.task.c.frame_id == t.frame.c.id, t.task.c.kind == t.FRAME),
        )
        .order_by(t.frame.c.position)
    ).all()
    if not rows:
        return
    _close(c, segment.id, now)
    number = c.execute(
        select(func.count()).select_from(t.round_).where(t.round_.c.segment_id == segment.id)
    ).scalar_one()
    made = c.execute(
        insert(t.round_)
        .values(segment_id=segment.id, number=number, opened=now)
        .returning(t.round_.c.id)
    ).scalar_one()
    c.execute(
        insert(t.task),
        [
            {
                "kind": t.FRAME,
                "state": t.OPEN,
                "asset": row.asset,
                "round_id": made,
                "frame_id": row.id,
            }
            for row in rows
        ],
    )
    note(c, now, "opened", segment=segment.id, round=number, frames=list(positions))
    c.execute(update(t.run).where(t.run.c.id == segment.run_id).values(status=ASKING, reason=""))


def _close(c: Connection, segment: int, now: float) -> None:
    """Closes the open round of a segment; tasks that nobody needs any more are retired."""
    rounds = c.execute(
        select(t.round_.c.id).where(t.round_.c.segment_id == segment, t.round_.c.closed.is_(None))
    ).scalars()
    for number in rounds.all():
        c.execute(update(t.round_).where(t.round_.c.id == number).values(closed=now))
        c.execute(
            update(t.task)
            .where(t.task.c.round_id == number, t.task.c.state == t.OPEN)
            .values(state=t.RETIRED)
        )
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
    said, _ = answers(c, run)
    made = c.execute(
        select(func.count()).select_from(t.segment).where(t.segment.c.run_id == run)
    ).scalar_one()
    digest = fingerprint(run, made, said)
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


def fingerprint(run: int, made: int, said: Sequence[int]) -> str:
    """Returns what a job is known by: the run, how many segments it had, and the answers."""
    return hashlib.sha256(json.dumps([run, made, list(said)]).encode()).hexdigest()


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


def adjudicate(db: Database, task: int, outcome: int, now: float) -> None:
    """Lets the owner decide a picture that people do not agree on."""
    with db.write() as c:
        row = c.execute(select(t.task).where(t.task.c.id == task)).one_or_none()
        classes = len(settings(c).classes)
        if row is None or row.kind != t.FRAME:
            raise InputError(f"there is no picture {task} to adjudicate.")
        if not 0 <= outcome < classes and outcome != IMPLAUSIBLE:
            raise InputError(f"an outcome is one of 0 to {classes - 1}, or -2, got {outcome}.")
        latest = _latest()
        known = c.execute(select(latest.c.outcome).where(latest.c.task_id == task)).one_or_none()
        if known is None or known.outcome != NO_CONSENSUS:
            raise InputError(f"picture {task} is not without consensus: there is nothing to do.")
        record(c, task, outcome, now, adjudicated=True)
        segment = c.execute(
            select(t.frame.c.segment_id).where(t.frame.c.id == row.frame_id)
        ).scalar_one()
        progress(c, segment, now)
