"""The status of a campaign, counted from its rows: as a whole, and run by run."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, exists, func, or_, select

from ..errors import InputError
from .consensus import IMPLAUSIBLE, NO_CONSENSUS, UNSURE, dawid_skene, krippendorff_alpha
from .store import tables as t
from .store.database import Database
from .transitions import (
    FINISHED,
    NEWEST,
    STUCK,
    answers,
    counted_votes,
    current_rule,
    get_campaign,
    outcomes,
    segments,
)

# With fewer votes the smoothing of the EM algorithm says more than the person does.
MIN_VOTES_FOR_ESTIMATE = 20


@dataclass(frozen=True)
class Overview:
    """The status of a campaign as a whole.

    Arguments:
        name: What it is called.
        question: What people are asked.
        paused: Whether tasks are given out.
        mode: How segments are asked about.
        runs: How many runs there are of each status.
        votes: How many votes there are, and how many of them count.
        counted: How many of them count.
        alpha: Krippendorff's α of the votes on frames; none where nobody can agree yet.
        open: How many frames wait for votes.
        people: For each person the votes, the share right on gold, the share right on all as
            Dawid–Skene estimates it, and the share of repeats that were answered alike.
        seconds: The median time for a vote.
        stuck: The pictures that the owner is to decide, ``(task, run)``.
        left: The votes that open frames need at least.
        bytes: What the pictures take.
        done: Whether every run has come to its end.
        more: Whether pictures wait for more people than there are.
    """

    name: str
    question: str
    paused: bool
    mode: str
    runs: Mapping[str, int]
    votes: int
    counted: int
    alpha: float | None
    open: int
    people: Sequence[Mapping[str, Any]]
    seconds: float
    stuck: Sequence[tuple[int, str]]
    left: int
    bytes: int
    done: bool
    more: bool


def overview(db: Database) -> Overview:
    """Counts what there is, from the rows."""
    with db.read() as c:
        campaign = get_campaign(c)
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
        rule = current_rule(c)[1]
    out = {row.id for row in people if row.voided is not None}
    have = Counter(row.task_id for row in rows if row.counted and row.annotator_id not in out)
    seconds = sorted(row.seconds for row in rows)
    alpha = krippendorff_alpha([(r.task_id, r.answer) for r in rows if r.kind == t.FRAME])
    estimates = _estimates(rows, len(campaign.classes))
    return Overview(
        name=campaign.name,
        question=campaign.question,
        paused=campaign.paused,
        mode=campaign.mode,
        runs=counts,
        votes=len(rows),
        counted=sum(row.counted for row in rows),
        alpha=None if math.isnan(alpha) else alpha,
        open=len(waiting),
        people=[
            _describe_person(row, rows) | {"estimate": estimates.get(row.id)} for row in people
        ],
        seconds=seconds[len(seconds) // 2] if seconds else 0.0,
        stuck=without,
        left=sum(max(1, rule.least - have[task]) for task in waiting),
        bytes=size,
        done=set(counts) <= set(FINISHED),
        more=bool(waiting) and len(people) - len(out) < rule.least,
    )


def stuck(db: Database) -> list[tuple[int, str]]:
    """Returns the pictures that wait for an adjudicator, with the names of their runs."""
    with db.read() as c:
        return _stuck(c)


def _stuck(c: Connection) -> list[tuple[int, str]]:
    """Returns the pictures that wait for an adjudicator, the first of each run.

    These are the ones without consensus, and the ones on which everybody has voted to no end.
    Others of the same run may not matter, once the first is decided.
    """
    voted = exists().where(
        t.vote.c.task_id == t.task.c.id, t.vote.c.annotator_id == t.annotator.c.id
    )
    left = exists().where(t.annotator.c.voided.is_(None), ~voted.correlate(t.task, t.annotator))
    rows = c.execute(
        select(t.task.c.id, t.run.c.id.label("run"), t.run.c.name, t.run.c.status)
        .join(t.frame, t.frame.c.id == t.task.c.frame_id)
        .join(t.segment, t.segment.c.id == t.frame.c.segment_id)
        .join(t.run, t.run.c.id == t.segment.c.run_id)
        .outerjoin(t.consensus, (t.consensus.c.task_id == t.task.c.id) & NEWEST)
        .where(
            t.task.c.kind == t.FRAME,
            ~t.segment.c.discarded,
            or_(
                (t.run.c.status == STUCK) & (t.consensus.c.outcome == NO_CONSENSUS),
                (t.task.c.state == t.OPEN) & ~left.correlate(t.task),
            ),
        )
        .order_by(t.run.c.id, t.segment.c.number.desc(), t.frame.c.position)
    ).all()
    least = current_rule(c)[1].least
    found: dict[int, tuple[int, str]] = {}
    for row in rows:
        if row.status == STUCK or len(counted_votes(c, row.id)) >= least:
            found.setdefault(row.run, (row.id, row.name))
    return list(found.values())


def tally(db: Database, tasks: Sequence[int]) -> dict[int, Counter[int]]:
    """Returns how often each answer was given on tasks, as far as it counts."""
    with db.read() as c:
        return {task: Counter(row.answer for row in counted_votes(c, task)) for task in tasks}


def _estimates(votes: Sequence[t.Record], classes: int) -> dict[int, float]:
    """Returns how often people are right, estimated from all votes at once.

    Of those who have given a few votes only, nothing can be said.
    """
    asked = [v for v in votes if v.kind != t.REPEAT]
    if not asked:
        return {}
    gold = {v.task_id: v.truth for v in asked if v.kind == t.GOLD}
    cast = [(v.task_id, v.annotator_id, v.answer) for v in asked]
    found = dawid_skene(cast, classes, gold)
    given = Counter(v.annotator_id for v in asked)
    return {
        person: found.accuracy(person)
        for person, n in given.items()
        if n >= MIN_VOTES_FOR_ESTIMATE
    }


def _describe_person(row: t.Record, votes: Sequence[t.Record]) -> dict[str, Any]:
    """Returns what is known of a person: how many votes, how right on gold, how steady."""
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


def run_history(db: Database, run: int) -> dict[str, Any]:
    """Returns the history of a run: every segment with its frames, votes and outcomes."""
    with db.read() as c:
        row = c.execute(select(t.run).where(t.run.c.id == run)).one_or_none()
        if row is None:
            raise InputError(f"there is no run {run}.")
        labels, guessed = answers(c, run)
        by_owner = exists().where(
            t.consensus.c.task_id == t.task.c.id, NEWEST, t.consensus.c.adjudicated
        )
        parts = []
        for segment in segments(c, run):
            decided = outcomes(c, segment.id)
            frames = c.execute(
                select(
                    t.frame.c.position,
                    t.frame.c.asset,
                    t.task.c.id.label("task"),
                    by_owner.label("adjudicated"),
                )
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
                            "outcome": decided.get(f.position),
                            "adjudicated": f.adjudicated,
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
            "answers": labels,
            "guessed": guessed,
            "segments": parts,
        }


def describe_answer(answer: int | None, classes: Sequence[str]) -> str:
    """Returns an answer or an outcome in words."""
    if answer is None:
        return "open"
    words = {
        UNSURE: "unsure",
        IMPLAUSIBLE: "not believable",
        NO_CONSENSUS: "no consensus",
    }
    return words[answer] if answer in words else classes[answer]


def parse_outcome(db: Database, text: str) -> int:
    """Returns the outcome that a text names: a class, or that the picture is not believable."""
    from ..checks import find_class

    with db.read() as c:
        classes = get_campaign(c).classes
    if text == describe_answer(IMPLAUSIBLE, classes):
        return IMPLAUSIBLE
    return find_class(text, tuple(classes))
