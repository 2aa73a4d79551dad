"""What an owner does with a campaign: invite, pause, change the rule, try again.

What a campaign asks, and how, is frozen when it is created (:mod:`.creation`): the bundle by its
hash, the classes, the plan and the mode. The rule of consensus can be changed; runs that are
finished stay as they are.
"""

import hashlib
import math
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from sqlalchemy import Connection, func, insert, select, update

from ..errors import InputError
from .consensus import Rule
from .questions import MODES
from .store import tables as t
from .store.database import Database
from .transitions import (
    FINISHED,
    STALLED,
    current_rule,
    get_campaign,
    log_event,
    reconsider,
    revive,
)

MAX_NAME_LENGTH, MAX_QUESTION_LENGTH = 100, 300
# A walk has no more leaps.
MAX_FRAMES = 10_000


@dataclass(frozen=True)
class CampaignSettings:
    """What a campaign asks and how, frozen when it is created.

    Arguments:
        question: What people are asked, such as "Which digit is this?".
        classes: What the answers are called. Defaults to the bundle's names.
        plan: The leaps, as :func:`leapfactual.leaps.describe` writes them. Defaults to the
            bundle's plan.
        mode: ``step``, ``batch`` or ``bisect``, see :mod:`.questions`.
        max_frames: The largest number of frames of a segment.
        rule: When votes are a consensus.
        gold_share: Which share of what a person sees has a known answer.
        repeat_share: Which share a person has seen before.
        lease: How many seconds a person has for a picture, before it is given to another.
        seed: The seed of who sees what.
        name: What the campaign is called.
    """

    question: str
    classes: tuple[str, ...] = ()
    plan: str | None = None
    mode: str = "batch"
    max_frames: int = 32
    rule: Rule = Rule()  # noqa: RUF009 - frozen
    gold_share: float = 0.1
    repeat_share: float = 0.05
    lease: float = 600.0
    seed: int = 0
    name: str = "campaign"

    def __post_init__(self) -> None:
        for what, value, max_length in (
            ("the question", self.question, MAX_QUESTION_LENGTH),
            ("the name", self.name, MAX_NAME_LENGTH),
            *(("a class", name, MAX_NAME_LENGTH) for name in self.classes),
        ):
            check_text(what, value, max_length)
        if self.mode not in MODES:
            raise InputError(f"`mode` must be one of {list(MODES)}, got {self.mode!r}.")
        if not 1 <= self.max_frames <= MAX_FRAMES:
            raise InputError(
                f"`max_frames` must be a number from 1 to {MAX_FRAMES:,}, got {self.max_frames}."
            )
        if not 0 < self.lease < math.inf:
            raise InputError(f"`lease` must be some time, got {self.lease} seconds.")
        shares = self.gold_share, self.repeat_share
        if not (min(shares) >= 0 and sum(shares) <= 0.5):
            raise InputError(
                f"gold and repeats must be shares of at most a half together, got {shares}."
            )


def check_text(what: str, value: str, max_length: int) -> None:
    """Checks that a text is one line, and not too long."""
    if not value.strip() or len(value) > max_length or not value.isprintable():
        raise InputError(
            f"{what} must be one line of 1 to {max_length} characters, got {value[:max_length]!r}."
        )


def hash_token(token: str) -> str:
    """Returns the SHA-256 of a token, which is all that is kept of it."""
    return hashlib.sha256(token.encode()).hexdigest()


def change_rule(c: Connection, rule: Rule, now: float) -> None:
    """Puts a rule in force, for what is not decided yet."""
    c.execute(insert(t.rule).values(created=now, content=asdict(rule)))
    log_event(c, now, "rule", **asdict(rule))
    reconsider(c, now)


def update_rule(db: Database, **changes: object) -> Rule:
    """Changes parts of the rule in force, and returns the new one.

    Arguments:
        db: The database.
        changes: What to change, by the names of :class:`.consensus.Rule`; the rest stays.
    """
    with db.write() as c:
        rule = replace(current_rule(c)[1], **changes)  # type: ignore[arg-type]
        change_rule(c, rule, time.time())
    return rule


def invite(db: Database, name: str) -> str:
    """Invites a person, and returns the token of the invitation, which is not kept."""
    return invite_all(db, [name])[0]


def invite_all(db: Database, names: Sequence[str]) -> list[str]:
    """Invites people, all of them or nobody, and returns their tokens."""
    tokens = [secrets.token_urlsafe(32) for _ in names]
    now = time.time()
    with db.write() as c:
        for name, token in zip(names, tokens, strict=True):
            check_text("a person's name", name, MAX_NAME_LENGTH)
            if c.execute(select(t.annotator.c.id).where(t.annotator.c.name == name)).first():
                raise InputError(f"{name!r} was invited before. Give another name.")
            enrol(c, name, token, now)
    return tokens


def enrol(c: Connection, name: str, token: str, now: float) -> int:
    """Adds a person whom a token lets in, and returns the person's number."""
    new = insert(t.annotator).values(name=name, token_sha256=hash_token(token), created=now)
    number: int = c.execute(new.returning(t.annotator.c.id)).scalar_one()
    log_event(c, now, "invited", name=name)
    return number


def find_person(c: Connection, token: str) -> int | None:
    """Returns whom an invitation is for, if it is valid."""
    number: int | None = c.execute(
        select(t.annotator.c.id).where(
            t.annotator.c.token_sha256 == hash_token(token), t.annotator.c.voided.is_(None)
        )
    ).scalar_one_or_none()
    return number


def is_owner(c: Connection, token: str) -> bool:
    """Returns whether a token is the owner's."""
    return secrets.compare_digest(hash_token(token), get_campaign(c).owner_sha256)


def renew(db: Database, names: Sequence[str]) -> list[str]:
    """Gives people new tokens, and returns them; the old ones are no longer valid."""
    tokens = [secrets.token_urlsafe(32) for _ in names]
    now = time.time()
    with db.write() as c:
        for name, token in zip(names, tokens, strict=True):
            row = c.execute(select(t.annotator).where(t.annotator.c.name == name)).one_or_none()
            if row is None or row.voided is not None:
                raise InputError(f"nobody was invited as {name!r}, or no longer.")
            new = {"token_sha256": hash_token(token)}
            c.execute(update(t.annotator).where(t.annotator.c.id == row.id).values(**new))
            log_event(c, now, "renewed", annotator=row.id)
    return tokens


def renew_owner(db: Database) -> str:
    """Gives the owner a new token, and returns it; the old one is no longer valid."""
    token = secrets.token_urlsafe(32)
    with db.write() as c:
        c.execute(update(t.campaign).values(owner_sha256=hash_token(token)))
        log_event(c, time.time(), "owner")
    return token


def pause(db: Database, paused: bool) -> None:
    """Stops giving out tasks, or resumes. Votes on tasks that were given out are still taken."""
    now = time.time()
    with db.write() as c:
        c.execute(update(t.campaign).values(paused=paused))
        log_event(c, now, "paused" if paused else "resumed")


def retry(db: Database) -> list[str]:
    """Queues the jobs of stalled runs again, and returns the names of the runs."""
    now = time.time()
    with db.write() as c:
        rows = c.execute(select(t.run).where(t.run.c.status == STALLED).order_by(t.run.c.id)).all()
        for run in rows:
            revive(c, run.id, now)
    return [run.name for run in rows]


def is_finished(c: Connection) -> bool:
    """Returns whether nothing is left to ask, nor to adjudicate."""
    left = c.execute(
        select(func.count()).select_from(t.run).where(~t.run.c.status.in_(FINISHED))
    ).scalar_one()
    return left == 0
