"""The assignment of tasks: which picture a person is shown next.

Everybody gets a frame that needs votes, of another run each time, now and then one whose answer is
known, or one that they have seen before. No more people are sent to a picture than it needs.
"""

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import (
    Connection,
    Integer,
    bindparam,
    case,
    exists,
    func,
    insert,
    select,
    update,
)

from .store import tables as t
from .store.database import Database
from .transitions import current_rule, get_campaign
from .votes import check_invited

# A repeat among the last few pictures would be answered from memory.
MIN_REPEAT_GAP = 5


@dataclass(frozen=True)
class Offer:
    """A task that was given to a person.

    Arguments:
        key: What the picture and the vote go by. It is random: the numbers of tasks would tell
            gold from the rest.
        asset: The picture, by its hash.
    """

    key: str
    asset: str


def take(db: Database, annotator: int, now: float) -> Offer | None:
    """Gives a person a task, the one that the person has already if there is one.

    Returns none where there is nothing to do just now. That takes no write transaction, so people
    who wait do not hold up those who vote.
    """
    with db.read() as c:
        check_invited(c, annotator)
        if get_campaign(c).paused or not (
            _leased_task(c, annotator, now) or _frame(c, annotator, now)
        ):
            return None
    with db.write() as c:
        check_invited(c, annotator)
        campaign = get_campaign(c)
        if campaign.paused:
            return None
        held = _renew_lease(c, annotator, now, campaign.lease)
        if held is not None:
            return held
        chosen = _choose(c, campaign, annotator, now)
        return None if chosen is None else _grant_lease(c, chosen, annotator, now, campaign.lease)


def _has_voted() -> t.Record:
    """Builds the condition that a person, a parameter of the query, has voted on a task."""
    person = bindparam("annotator", type_=Integer)
    return exists().where(t.vote.c.task_id == t.task.c.id, t.vote.c.annotator_id == person)


LEASED_TASK = (
    select(t.lease.c.id, t.lease.c.key, t.task.c.asset)
    .join(t.task, t.task.c.id == t.lease.c.task_id)
    .where(
        t.lease.c.annotator_id == bindparam("annotator"),
        t.lease.c.expires > bindparam("now"),
        t.task.c.state == t.OPEN,
        ~_has_voted(),
    )
    .order_by(t.lease.c.id)
    .limit(1)
)


def _leased_task(c: Connection, annotator: int, now: float) -> t.Record:
    """Returns the task that a person has on lease and has not voted on, if there is one."""
    return c.execute(LEASED_TASK, {"annotator": annotator, "now": now}).one_or_none()


def _renew_lease(c: Connection, annotator: int, now: float, lease: float) -> Offer | None:
    """Returns the task that a person has on lease, with all the time for it."""
    row = _leased_task(c, annotator, now)
    if row is None:
        return None
    c.execute(update(t.lease).where(t.lease.c.id == row.id).values(expires=now + lease))
    return Offer(row.key, row.asset)


def _choose(c: Connection, campaign: t.Record, annotator: int, now: float) -> t.Record:
    """Chooses a task: now and then gold or a repeat, else a frame that needs votes."""
    given = c.execute(
        select(func.count()).select_from(t.vote).where(t.vote.c.annotator_id == annotator)
    ).scalar_one()
    luck, where = (_uniform(campaign.seed, annotator, given, n) for n in range(2))
    frame = _frame(c, annotator, now, where)
    if frame is None:
        return None
    if luck < campaign.gold_share:
        return _gold(c, annotator, where) or frame
    if luck < campaign.gold_share + campaign.repeat_share:
        return _repeat(c, annotator) or frame
    return frame


def _uniform(*parts: int) -> float:
    """Returns a number in [0, 1) that depends on these numbers alone."""
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


def _frames_needing_votes() -> t.Record:
    """Builds the query of a frame that needs another vote, besides those on lease."""
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
        .where(
            t.lease.c.task_id == t.task.c.id,
            t.lease.c.expires > bindparam("now"),
            t.lease.c.annotator_id.in_(
                select(t.annotator.c.id).where(t.annotator.c.voided.is_(None))
            ),
            ~already,
        )
        .scalar_subquery()
    )
    least = bindparam("least", type_=Integer)
    wanted = case((votes < least, least), else_=votes + 1)
    return _open(t.FRAME).where(votes + coming < wanted)


def _open(kind: str) -> t.Record:
    """Builds the query of an open task of a kind that a person has not voted on.

    It is the first from the number ``start`` on.
    """
    return (
        select(t.task)
        .where(
            t.task.c.kind == kind,
            t.task.c.state == t.OPEN,
            t.task.c.id >= bindparam("start", type_=Integer),
            ~_has_voted(),
        )
        .order_by(t.task.c.id)
        .limit(1)
    )


NEEDED_FRAMES, OPEN_GOLD = _frames_needing_votes(), _open(t.GOLD)
FIRST_OF_ROUND = NEEDED_FRAMES.where(t.task.c.round_id == bindparam("round", type_=Integer))


def _search_from(
    c: Connection, query: t.Record, luck: float, given: Mapping[str, object]
) -> t.Record:
    """Returns the first task from a random number on, else from the beginning, if there is one.

    So not all tasks, which may be many, are read each time.
    """
    last = c.execute(select(func.max(t.task.c.id))).scalar_one() or 0
    for start in (1 + int(luck * last), 0):
        found = c.execute(query, {**given, "start": start}).one_or_none()
        if found is not None:
            return found
    return None


def _frame(c: Connection, annotator: int, now: float, luck: float = 0.0) -> t.Record:
    """Returns a frame that needs another vote, if there is one: the first of a round.

    What comes after a change is not needed, so the first ones are asked about first.
    """
    given = {"annotator": annotator, "now": now, "least": current_rule(c)[1].least}
    found = _search_from(c, NEEDED_FRAMES, luck, given)
    if found is None:
        return None
    return c.execute(FIRST_OF_ROUND, {**given, "start": 0, "round": found.round_id}).one()


def _gold(c: Connection, annotator: int, luck: float) -> t.Record:
    return _search_from(c, OPEN_GOLD, luck, {"annotator": annotator})


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
    for row in rows[:-MIN_REPEAT_GAP]:
        if row.frame_id not in done:
            return repeat_task(c, row, annotator)
    return None


def _grant_lease(c: Connection, task: t.Record, annotator: int, now: float, lease: float) -> Offer:
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


def repeat_task(c: Connection, task: t.Record, annotator: int) -> t.Record:
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
