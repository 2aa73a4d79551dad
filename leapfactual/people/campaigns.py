"""Campaigns: created once, then people are invited, paused for, voided, and counted.

What a campaign asks, and how, is frozen when it is created: the bundle by its hash, the classes,
the plan and the mode. The rule of consensus can be changed; runs that are finished stay as they
are.
"""

import hashlib
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath

import torch
from sqlalchemy import Connection, func, insert, select, update

from ..bundle import Bundle
from ..data.images import Images
from ..errors import InputError
from ..leaps import describe, parse
from .consensus import Rule
from .questions import MODES
from .store import tables as t
from .store.database import Database, made
from .transitions import FINISHED, WAITING, enqueue, note, reconsider, settings
from .worker import encoded, fingerprint_of, store

MOST_PIXELS = 25_000_000
MOST_NAME, MOST_QUESTION = 100, 300


@dataclass(frozen=True)
class Plan:
    """Is what is frozen when a campaign is created.

    Arguments:
        question: What people are asked, such as "Which digit is this?".
        classes: What the answers are called; the bundle's own names when not given.
        plan: The leaps, as :func:`leapfactual.leaps.describe` writes them; the bundle's when not
            given.
        mode: ``step``, ``batch`` or ``bisect``.
        ahead: How many frames a segment has at most.
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
    ahead: int = 32
    rule: Rule = Rule()  # noqa: RUF009 - frozen
    gold_share: float = 0.1
    repeat_share: float = 0.05
    lease: float = 600.0
    seed: int = 0
    name: str = "campaign"

    def __post_init__(self) -> None:
        for what, value, most in (
            ("the question", self.question, MOST_QUESTION),
            ("the name", self.name, MOST_NAME),
            *(("a class", name, MOST_NAME) for name in self.classes),
        ):
            check_text(what, value, most)
        if self.mode not in MODES:
            raise InputError(f"`mode` must be one of {list(MODES)}, got {self.mode!r}.")
        if self.ahead < 1:
            raise InputError(f"`ahead` must be at least 1, got {self.ahead}.")
        if self.lease <= 0:
            raise InputError(f"`lease` must be some time, got {self.lease} seconds.")
        shares = self.gold_share, self.repeat_share
        if min(shares) < 0 or sum(shares) > 0.5:
            raise InputError(
                f"gold and repeats must be shares of at most a half together, got {shares}."
            )


def check_text(what: str, value: str, most: int) -> None:
    """Wants one line that is not too long."""
    if not value.strip() or len(value) > most or not value.isprintable():
        raise InputError(
            f"{what} must be one line of 1 to {most} characters, got {value[:most]!r}."
        )


def create(
    place: str | Path,
    bundle: str | Path,
    images: Images,
    targets: Sequence[int],
    chosen: Plan,
    gold: Images | None = None,
) -> str:
    """Makes a campaign, all of it or nothing, and returns the owner's token.

    Arguments:
        place: A file for SQLite, or the URL of an empty database of PostgreSQL.
        bundle: The bundle's folder.
        images: The pictures to explain.
        targets: The class to reach with each.
        chosen: What to ask, and how.
        gold: Pictures with known answers, in folders that are called as the classes. They are
            shown as the generator makes them, so that nobody can tell them from the others.
    """
    loaded = Bundle.load(bundle)
    names = chosen.classes or loaded.classes
    if len(names) != len(loaded.classes) or len(set(names)) != len(names):
        raise InputError(
            f"the bundle knows {len(loaded.classes)} classes, {', '.join(loaded.classes)}; give "
            f"as many different names, got {list(names)}."
        )
    plan = describe(parse(chosen.plan) if chosen.plan else loaded.plan)
    if loaded.probes.ndim != 4:
        raise InputError("people look at pictures, but this bundle is for tables.")
    pictures = _pictures(images, tuple(loaded.probes.shape[1:]))
    known = [] if gold is None else _gold(gold, loaded, names)
    token = secrets.token_urlsafe(32)
    now = time.time()
    with made(place) as c:
        c.execute(
            insert(t.campaign).values(
                id=1,
                name=chosen.name,
                created=now,
                bundle=str(Path(bundle).absolute()),
                bundle_sha256=fingerprint_of(Path(bundle)),
                question=chosen.question,
                classes=list(names),
                plan=plan,
                mode=chosen.mode,
                ahead=chosen.ahead,
                gold_share=chosen.gold_share if known else 0.0,
                repeat_share=chosen.repeat_share,
                lease=chosen.lease,
                seed=chosen.seed,
                paused=False,
                owner_sha256=hashed(token),
            )
        )
        change_rule(c, chosen.rule, now)
        for name, target, content in zip(_names(images), targets, pictures, strict=True):
            run = c.execute(
                insert(t.run)
                .values(
                    name=name,
                    target=target,
                    asset=store(c, content),
                    status=WAITING,
                    reason="",
                    doubted=False,
                )
                .returning(t.run.c.id)
            ).scalar_one()
            enqueue(c, run, now)
        for content, truth in known:
            asset = store(c, content)
            c.execute(insert(t.task).values(kind=t.GOLD, state=t.OPEN, asset=asset, truth=truth))
        note(c, now, "created", runs=len(pictures), gold=len(known))
    return token


def _names(images: Images) -> list[str]:
    """Returns what the pictures are called, without the folders that all of them are in."""
    folders = {str(PurePath(name).parent) for name in images.names}
    try:
        shared = PurePath(os.path.commonpath(folders))
    except ValueError:
        return images.names
    return [str(PurePath(name).relative_to(shared)) for name in images.names]


def _pictures(images: Images, shape: tuple[int, ...]) -> list[bytes]:
    if tuple(images.shape) != shape:
        raise InputError(
            f"the bundle is for pictures of {shape}, got {tuple(images.shape)}. Resize them."
        )
    if shape[1] * shape[2] > MOST_PIXELS:
        raise InputError(f"pictures may have {MOST_PIXELS} pixels, got {shape[1] * shape[2]}.")
    if len(set(images.names)) != len(images):
        raise InputError("two pictures have one name. Give each another.")
    return [encoded(images[row][0]) for row in range(len(images))]


@torch.no_grad()
def _gold(gold: Images, bundle: Bundle, names: Sequence[str]) -> list[tuple[bytes, int]]:
    """Returns pictures with known answers, as the generator makes them."""
    if gold.labels is None or not gold.classes:
        raise InputError("gold needs answers: put the pictures into a folder for each class.")
    unknown = sorted(set(gold.classes) - set(names))
    if unknown:
        raise InputError(f"gold has answers {unknown} that are no classes: {list(names)}.")
    found = []
    for row, label in enumerate(gold.labels.tolist()):
        x = bundle.generator.decode(bundle.generator.encode(gold[row]))
        found.append((encoded(x[0]), names.index(gold.classes[label])))
    return found


def hashed(token: str) -> str:
    """Returns what is kept of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def change_rule(c: Connection, rule: Rule, now: float) -> None:
    """Puts a rule in force, for what is not decided yet."""
    c.execute(insert(t.rule).values(created=now, content=asdict(rule)))
    note(c, now, "rule", **asdict(rule))
    reconsider(c, now)


def invite(db: Database, name: str) -> str:
    """Invites a person, and returns the token of the invitation, which is not kept."""
    return invite_all(db, [name])[0]


def invite_all(db: Database, names: Sequence[str]) -> list[str]:
    """Invites people, all of them or nobody, and returns their tokens."""
    tokens = [secrets.token_urlsafe(32) for _ in names]
    now = time.time()
    with db.write() as c:
        for name, token in zip(names, tokens, strict=True):
            check_text("a person's name", name, MOST_NAME)
            if c.execute(select(t.annotator.c.id).where(t.annotator.c.name == name)).first():
                raise InputError(f"{name!r} was invited before. Give another name.")
            enrol(c, name, token, now)
    return tokens


def enrol(c: Connection, name: str, token: str, now: float) -> int:
    """Adds a person whom a token lets in, and returns the person's number."""
    new = insert(t.annotator).values(name=name, token_sha256=hashed(token), created=now)
    number: int = c.execute(new.returning(t.annotator.c.id)).scalar_one()
    note(c, now, "invited", name=name)
    return number


def person(c: Connection, token: str) -> int | None:
    """Returns who an invitation is for, if it is valid."""
    found: int | None = c.execute(
        select(t.annotator.c.id).where(
            t.annotator.c.token_sha256 == hashed(token), t.annotator.c.voided.is_(None)
        )
    ).scalar_one_or_none()
    return found


def owns(c: Connection, token: str) -> bool:
    """Tells whether a token is the owner's."""
    return secrets.compare_digest(hashed(token), settings(c).owner_sha256)


def renew(db: Database, names: Sequence[str]) -> list[str]:
    """Gives people new tokens, and returns them; the old ones are no longer valid."""
    tokens = [secrets.token_urlsafe(32) for _ in names]
    now = time.time()
    with db.write() as c:
        for name, token in zip(names, tokens, strict=True):
            row = c.execute(select(t.annotator).where(t.annotator.c.name == name)).one_or_none()
            if row is None or row.voided is not None:
                raise InputError(f"nobody was invited as {name!r}, or no longer.")
            new = {"token_sha256": hashed(token)}
            c.execute(update(t.annotator).where(t.annotator.c.id == row.id).values(**new))
            note(c, now, "renewed", annotator=row.id)
    return tokens


def renew_owner(db: Database) -> str:
    """Gives the owner a new token, and returns it; the old one is no longer valid."""
    token = secrets.token_urlsafe(32)
    with db.write() as c:
        c.execute(update(t.campaign).values(owner_sha256=hashed(token)))
        note(c, time.time(), "owner")
    return token


def pause(db: Database, paused: bool) -> None:
    """Stops giving out tasks, or goes on. Votes on tasks that were given out are still taken."""
    now = time.time()
    with db.write() as c:
        c.execute(update(t.campaign).values(paused=paused))
        note(c, now, "paused" if paused else "resumed")


def finished(c: Connection) -> bool:
    """Tells whether nothing is left to ask, nor to adjudicate."""
    left = c.execute(
        select(func.count()).select_from(t.run).where(~t.run.c.status.in_(FINISHED))
    ).scalar_one()
    return left == 0


def asset(c: Connection, digest: str) -> tuple[str, bytes] | None:
    """Returns a kept file, with what it is."""
    row = c.execute(select(t.asset).where(t.asset.c.sha256 == digest)).one_or_none()
    return None if row is None else (row.media, row.content)
