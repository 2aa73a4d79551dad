"""Campaigns: created once, then people are invited, paused for, voided, and counted.

What a campaign asks, and how, is frozen when it is created: the bundle by its hash, the classes,
the plan and the mode. The rule of consensus can be changed; runs that are finished stay as they
are.
"""

import hashlib
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from sqlalchemy import Connection, exists, func, insert, select, update

from ..bundle import Bundle
from ..data.images import Images
from ..errors import InputError
from ..leaps import describe, parse
from . import tables as t
from .database import Database
from .rules import IMPLAUSIBLE, NO_CONSENSUS, UNSURE, Rule, agreement
from .segments import MODES
from .voting import (
    FINISHED,
    STUCK,
    WAITING,
    WITHDRAWN,
    answers,
    decided,
    enqueue,
    note,
    outcomes,
    progress,
    record,
    segments,
    settings,
)
from .work import encoded, fingerprint_of, store

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
            raise InputError(f"`lease` must be a number of seconds, got {self.lease}.")
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
    db = Database(place, create=True)
    try:
        with db.write() as c:
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
            for name, target, content in zip(images.names, targets, pictures, strict=True):
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
                c.execute(
                    insert(t.task).values(kind=t.GOLD, state=t.OPEN, asset=asset, truth=truth)
                )
            note(c, now, "created", runs=len(pictures), gold=len(known))
    except BaseException:
        db.remove()
        raise
    db.close()
    return token


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
    made = []
    for row, label in enumerate(gold.labels.tolist()):
        x = bundle.generator.decode(bundle.generator.encode(gold[row]))
        made.append((encoded(x[0]), names.index(gold.classes[label])))
    return made


def hashed(token: str) -> str:
    """Returns what is kept of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def change_rule(c: Connection, rule: Rule, now: float) -> None:
    """Puts a rule in force, for what is not decided yet."""
    c.execute(insert(t.rule).values(created=now, content=asdict(rule)))
    note(c, now, "rule", **asdict(rule))


def invite(db: Database, name: str) -> str:
    """Invites a person, and returns the token of the invitation, which is not kept."""
    check_text("a person's name", name, MOST_NAME)
    token = secrets.token_urlsafe(32)
    now = time.time()
    with db.write() as c:
        if c.execute(select(t.annotator.c.id).where(t.annotator.c.name == name)).first():
            raise InputError(f"{name!r} was invited before. Give another name.")
        enrol(c, name, token, now)
    return token


def enrol(c: Connection, name: str, token: str, now: float) -> int:
    """Adds a person whom a token lets in, and returns the person's number."""
    made = insert(t.annotator).values(name=name, token_sha256=hashed(token), created=now)
    number: int = c.execute(made.returning(t.annotator.c.id)).scalar_one()
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


# -- voiding a person --


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
            c.execute(update(t.annotator).where(t.annotator.c.id == row.id).values(voided=now))
            note(c, now, "voided", annotator=row.id)
        doubt(c, row.id)
        doubted = c.execute(select(t.run).where(t.run.c.doubted).order_by(t.run.c.id)).all()
        if rewind:
            note(c, now, "rewind")
            for run in doubted:
                rewound(c, run.id, now)
        return [run.name for run in doubted]


def doubt(c: Connection, annotator: int) -> None:
    """Marks the runs with a consensus to which a person's vote has counted."""
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


def rewound(c: Connection, run: int, now: float) -> None:
    """Goes back to the first segment in which something is not decided as it was."""
    c.execute(update(t.run).where(t.run.c.id == run).values(doubted=False))
    for segment in segments(c, run):
        rows = c.execute(
            select(t.task.c.id, t.frame.c.position)
            .join(t.frame, t.frame.c.id == t.task.c.frame_id)
            .where(t.frame.c.segment_id == segment.id, t.task.c.kind == t.FRAME)
            .order_by(t.frame.c.position)
        ).all()
        known = outcomes(c, segment.id)
        changed = False
        for row in rows:
            adjudicated = c.execute(
                select(t.consensus.c.adjudicated)
                .where(t.consensus.c.task_id == row.id)
                .order_by(t.consensus.c.version.desc())
                .limit(1)
            ).scalar_one_or_none()
            if row.position not in known or adjudicated:
                continue
            outcome, version, votes = decided(c, row.id)
            if outcome != known[row.position]:
                outcome = WITHDRAWN if outcome is None else outcome
                record(c, row.id, outcome, now, rule=version, votes=votes)
                changed = True
        if changed:
            c.execute(
                update(t.segment)
                .where(t.segment.c.run_id == run, t.segment.c.number > segment.number)
                .values(discarded=True)
            )
            later = select(t.segment.c.id).where(t.segment.c.run_id == run, t.segment.c.discarded)
            frames = select(t.frame.c.id).where(t.frame.c.segment_id.in_(later))
            c.execute(update(t.task).where(t.task.c.frame_id.in_(frames)).values(state=t.RETIRED))
            c.execute(
                update(t.run)
                .where(t.run.c.id == run)
                .values(status="asking", reason="", result=None, finished=None)
            )
            note(c, now, "rewound", run=run, segment=segment.number)
            progress(c, segment.id, now)
            return


# -- looking at it --


@dataclass(frozen=True)
class Overview:
    """Is how a campaign stands.

    Arguments:
        name: What it is called.
        question: What people are asked.
        paused: Whether tasks are given out.
        mode: How segments are asked about.
        runs: How many runs there are of each status.
        votes: How many votes there are, and how many of them count.
        counted: How many of them count.
        alpha: Krippendorff's α of the votes on frames.
        open: How many frames wait for votes.
        people: For each person the votes, the share right on gold, and the share of repeats that
            were answered alike.
        seconds: The median time for a vote.
        stuck: The pictures without consensus, ``(task, run)``.
        left: The votes that open frames need at least.
        bytes: What the pictures take.
    """

    name: str
    question: str
    paused: bool
    mode: str
    runs: Mapping[str, int]
    votes: int
    counted: int
    alpha: float
    open: int
    people: Sequence[Mapping[str, Any]]
    seconds: float
    stuck: Sequence[tuple[int, str]]
    left: int
    bytes: int


def overview(db: Database) -> Overview:
    """Counts what there is, from the rows."""
    with db.read() as c:
        campaign = settings(c)
        statuses = c.execute(select(t.run.c.status)).scalars()
        counts = dict(Counter(statuses))
        rows = c.execute(
            select(
                t.vote.c.task_id,
                t.vote.c.answer,
                t.vote.c.annotator_id,
                t.vote.c.counted,
                t.vote.c.seconds,
                t.task.c.kind,
                t.task.c.truth,
                t.task.c.frame_id,
            ).join(t.task, t.task.c.id == t.vote.c.task_id)
        ).all()
        people = c.execute(select(t.annotator).order_by(t.annotator.c.id)).all()
        waiting = list(
            c.execute(
                select(t.task.c.id).where(t.task.c.kind == t.FRAME, t.task.c.state == t.OPEN)
            ).scalars()
        )
        without = _stuck(c)
        size = c.execute(
            select(func.coalesce(func.sum(func.length(t.asset.c.content)), 0))
        ).scalar_one()
        rule = _rule(c)
    have = Counter(row.task_id for row in rows if row.counted)
    seconds = sorted(row.seconds for row in rows)
    return Overview(
        name=campaign.name,
        question=campaign.question,
        paused=campaign.paused,
        mode=campaign.mode,
        runs=counts,
        votes=len(rows),
        counted=sum(row.counted for row in rows),
        alpha=agreement([(r.task_id, r.answer) for r in rows if r.kind == t.FRAME]),
        open=len(waiting),
        people=[_about(row, rows) for row in people],
        seconds=seconds[len(seconds) // 2] if seconds else 0.0,
        stuck=without,
        left=sum(max(1, rule.least - have[task]) for task in waiting),
        bytes=size,
    )


def _rule(c: Connection) -> Rule:
    return Rule(
        **c.execute(select(t.rule.c.content).order_by(t.rule.c.id.desc()).limit(1)).scalar_one()
    )


def stuck(db: Database) -> list[tuple[int, str]]:
    """Returns the pictures that wait for an adjudicator, with the names of their runs."""
    with db.read() as c:
        return _stuck(c)


def _stuck(c: Connection) -> list[tuple[int, str]]:
    """Returns the pictures that wait for an adjudicator."""
    rows = c.execute(select(t.run).where(t.run.c.status == STUCK).order_by(t.run.c.id)).all()
    found = []
    for run in rows:
        segment = segments(c, run.id)[-1]
        for position, outcome in outcomes(c, segment.id).items():
            if outcome == NO_CONSENSUS:
                task = c.execute(
                    select(t.task.c.id)
                    .join(t.frame, t.frame.c.id == t.task.c.frame_id)
                    .where(
                        t.frame.c.segment_id == segment.id,
                        t.frame.c.position == position,
                        t.task.c.kind == t.FRAME,
                    )
                ).scalar_one()
                found.append((task, run.name))
    return found


def _about(row: t.Record, votes: Sequence[t.Record]) -> dict[str, Any]:
    """Says what is known of a person: how many votes, how right on gold, how steady."""
    own = [v for v in votes if v.annotator_id == row.id]
    gold = [v for v in own if v.kind == t.GOLD]
    first = {v.frame_id: v.answer for v in own if v.kind == t.FRAME}
    again = [v for v in own if v.kind == t.REPEAT and v.frame_id in first]
    confused = Counter((v.truth, v.answer) for v in gold)
    return {
        "name": row.name,
        "voided": row.voided is not None,
        "votes": len(own),
        "gold": len(gold),
        "right": sum(v.answer == v.truth for v in gold) / len(gold) if gold else None,
        "repeats": len(again),
        "steady": sum(first[v.frame_id] == v.answer for v in again) / len(again)
        if again
        else None,
        "confusion": [
            {"truth": truth, "answer": answer, "times": n}
            for (truth, answer), n in sorted(confused.items())
        ],
    }


def journey(db: Database, run: int) -> dict[str, Any]:
    """Returns the way of a run: every segment with its frames, votes and outcomes."""
    with db.read() as c:
        row = c.execute(select(t.run).where(t.run.c.id == run)).one_or_none()
        if row is None:
            raise InputError(f"there is no run {run}.")
        said, guessed = answers(c, run)
        parts = []
        for segment in segments(c, run):
            decided_now = outcomes(c, segment.id)
            frames = c.execute(
                select(t.frame.c.position, t.frame.c.asset, t.task.c.id.label("task"))
                .select_from(
                    t.frame.outerjoin(
                        t.task,
                        (t.task.c.frame_id == t.frame.c.id) & (t.task.c.kind == t.FRAME),
                    )
                )
                .where(t.frame.c.segment_id == segment.id)
                .order_by(t.frame.c.position)
            ).all()
            votes = c.execute(
                select(t.vote.c.task_id, t.vote.c.answer, t.vote.c.counted, t.annotator.c.name)
                .join(t.annotator, t.annotator.c.id == t.vote.c.annotator_id)
                .where(t.vote.c.task_id.in_([f.task for f in frames if f.task is not None]))
                .order_by(t.vote.c.id)
            ).all()
            parts.append(
                {
                    "number": segment.number,
                    "assumed": segment.assumed,
                    "frames": [
                        {
                            "position": f.position,
                            "asset": f.asset,
                            "task": f.task,
                            "outcome": decided_now.get(f.position),
                            "votes": [
                                {"name": v.name, "answer": v.answer, "counted": v.counted}
                                for v in votes
                                if v.task_id == f.task
                            ],
                        }
                        for f in frames
                    ],
                }
            )
        return {
            "id": row.id,
            "name": row.name,
            "target": row.target,
            "status": row.status,
            "reason": row.reason,
            "doubted": row.doubted,
            "asset": row.asset,
            "result": row.result,
            "answers": said,
            "guessed": guessed,
            "segments": parts,
        }


def called(answer: int | None, classes: Sequence[str]) -> str:
    """Says an answer or an outcome in words."""
    if answer is None:
        return "open"
    words = {
        UNSURE: "unsure",
        IMPLAUSIBLE: "not believable",
        NO_CONSENSUS: "no consensus",
    }
    return words[answer] if answer in words else classes[answer]


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
