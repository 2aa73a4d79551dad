"""An audit of a campaign: its event log is replayed, from the first vote on, and compared.

A campaign is a function of its pictures and of what people and the owner did, in that order. So a
second campaign is made of the same pictures, everything in the event log that somebody did is done
to it again, the frames are computed anew, and what comes of it is compared: every consensus, every
vote that counted, every run with its frames and its end, to the last bit.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, insert, select, true, update

from ..errors import InputError
from .assignment import repeat_task
from .campaigns import change_rule
from .consensus import Rule
from .exclusion import exclude, rewind_run
from .store import tables as t
from .store.database import Database, new_database
from .transitions import advance_from, enqueue_job, record_consensus, revive, stall
from .votes import cast
from .worker import Worker

Identity = tuple[Any, ...]


@dataclass(frozen=True)
class ReplayReport:
    """What came out of a replay.

    Arguments:
        events: How many events were replayed.
        votes: How many of them were votes.
        differences: What came out otherwise, in words; nothing, where all is well.
    """

    events: int
    votes: int
    differences: list[str]


def replay(
    db: Database,
    bundle: str | Path | None = None,
    on_progress: Callable[[float], object] = lambda _: None,
    device: str = "cpu",
) -> ReplayReport:
    """Replays a campaign, and returns what came out otherwise.

    Arguments:
        db: The campaign, which stays as it is.
        bundle: The bundle, if it is somewhere else than when the campaign was made.
        on_progress: Called with the share that is done.
        device: Where to compute; frames are the same to the last bit only where they were made.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "replay.db"
        with db.read() as old, new_database(place) as new:
            _copy_start(old, new)
        second = Database(place, durable=False)
        try:
            worker = Worker(second, bundle, device)
            votes, events = _redo_all(db, second, worker, on_progress)
            return ReplayReport(events, votes, _compare(db, second))
        finally:
            second.close()


def _redo_all(
    db: Database, second: Database, worker: Worker, on_progress: Callable[[float], object]
) -> tuple[int, int]:
    with db.read() as old:
        events = old.execute(select(t.event).order_by(t.event.c.id)).all()
        known = {row.id: _identity(old, row) for row in old.execute(select(t.task)).all()}
    votes, rules = 0, 0
    for n, event in enumerate(events):
        content, now = event.content, event.created
        if event.kind == "rule":
            rules += 1
            if rules == 1:
                continue
        if event.kind == "computed":
            if not worker.once(now, content["run"]):
                raise InputError(f"run {content['run']} has no job when it is played again.")
        else:
            with second.write() as c:
                _redo(c, event.kind, content, known, now)
        votes += event.kind == "voted"
        on_progress((n + 1) / len(events))
    return votes, len(events)


def _copy_start(old: Connection, new: Connection) -> None:
    """Copies what a campaign starts with: its settings, pictures, gold and people."""
    for table, where in (
        (t.campaign, true()),
        (t.rule, t.rule.c.id == 1),
        (t.annotator, true()),
    ):
        for row in old.execute(select(table).where(where)).mappings():
            new.execute(insert(table).values(**row))
    new.execute(update(t.annotator).values(voided=None))
    for row in old.execute(select(t.run).order_by(t.run.c.id)).mappings():
        _copy_asset(old, new, row["asset"])
        fresh = {"status": "waiting", "reason": "", "doubted": False, "result": None}
        new.execute(insert(t.run).values(**{**row, **fresh, "finished": None}))
        enqueue_job(new, row["id"], 0.0)
    for row in old.execute(select(t.task).where(t.task.c.kind == t.GOLD)).mappings():
        _copy_asset(old, new, row["asset"])
        new.execute(insert(t.task).values(**row))


def _copy_asset(old: Connection, new: Connection, digest: str) -> None:
    if new.execute(select(t.asset.c.sha256).where(t.asset.c.sha256 == digest)).first() is None:
        row = old.execute(select(t.asset).where(t.asset.c.sha256 == digest)).mappings().one()
        new.execute(insert(t.asset).values(**row))


def _identity(c: Connection, task: t.Record) -> Identity:
    """Returns what a task is in any campaign: gold, or a frame, whoever it is shown to again."""
    if task.kind == t.GOLD:
        return (t.GOLD, task.id)
    row = c.execute(
        select(t.segment.c.run_id, t.segment.c.id, t.frame.c.position)
        .join(t.frame, t.frame.c.segment_id == t.segment.c.id)
        .where(t.frame.c.id == task.frame_id)
    ).one()
    earlier = c.execute(
        select(t.segment.c.id).where(t.segment.c.run_id == row.run_id).order_by(t.segment.c.id)
    ).scalars()
    return (task.kind, row.run_id, list(earlier).index(row.id), row.position, task.annotator_id)


def _find(c: Connection, wanted: Identity) -> t.Record:
    """Returns the task that another campaign knows by this identity; repeats are made."""
    if wanted[0] == t.GOLD:
        return c.execute(select(t.task).where(t.task.c.id == wanted[1])).one()
    kind, run, number, position, annotator = wanted
    made = c.execute(
        select(t.segment.c.id).where(t.segment.c.run_id == run).order_by(t.segment.c.id)
    ).scalars()
    segments = list(made)
    if number >= len(segments):
        raise InputError(f"run {run} has no segment {number} when it is played again.")
    frame = c.execute(
        select(t.frame).where(
            t.frame.c.segment_id == segments[number], t.frame.c.position == position
        )
    ).one()
    found = c.execute(
        select(t.task).where(t.task.c.frame_id == frame.id, t.task.c.kind == t.FRAME)
    ).one_or_none()
    if found is None:
        raise InputError(f"nobody is asked about frame {position} of run {run} this time.")
    return repeat_task(c, found, annotator) if kind == t.REPEAT else found


def _redo(
    c: Connection, kind: str, content: dict[str, Any], known: dict[int, Identity], now: float
) -> None:
    """Does again what somebody did; what followed from it follows by itself."""
    if kind == "voted":
        task = _find(c, known[content["task"]])
        key = f"{content['task']}-{content['annotator']}"
        cast(c, task, content["annotator"], content["answer"], key, now, 0.0)
    elif kind == "decided" and content["adjudicated"]:
        task = _find(c, known[content["task"]])
        record_consensus(c, task.id, content["outcome"], now, adjudicated=True)
        advance_from(c, task.frame_id, now)
    elif kind == "rule":
        change_rule(c, Rule(**content), now)
    elif kind == "voided":
        exclude(c, content["annotator"], now)
    elif kind == "stalled":
        stall(c, content["run"], content["reason"], now)
    elif kind == "retried":
        revive(c, content["run"], now)
    elif kind == "rewind":
        for run in c.execute(select(t.run).where(t.run.c.doubted).order_by(t.run.c.id)).all():
            rewind_run(c, run.id, now)


def _compare(db: Database, second: Database) -> list[str]:
    """Returns in what two campaigns differ, in words."""
    sides = []
    for one in (db, second):
        with one.read() as c:
            sides.append(_summary(c))
    old, new = sides
    differences = []
    for what in sorted(old.keys() | new.keys(), key=repr):
        if old.get(what) != new.get(what):
            differences.append(f"{what}: {old.get(what)} was kept, {new.get(what)} came out")
    return differences


def _summary(c: Connection) -> dict[Identity, Any]:
    """Returns all that must come out the same, by what it is about."""
    summary: dict[Identity, Any] = {}
    for task in c.execute(select(t.task)).all():
        name = _identity(c, task)
        votes = c.execute(
            select(t.vote.c.annotator_id, t.vote.c.answer, t.vote.c.counted)
            .where(t.vote.c.task_id == task.id)
            .order_by(t.vote.c.id)
        ).all()
        if not votes and task.kind == t.REPEAT:
            continue
        consensus = c.execute(
            select(t.consensus.c.outcome, t.consensus.c.votes, t.consensus.c.adjudicated)
            .where(t.consensus.c.task_id == task.id)
            .order_by(t.consensus.c.version)
        ).all()
        summary["task", name] = (
            task.asset,
            task.state,
            [*map(tuple, votes)],
            [*map(tuple, consensus)],
        )
    for run in c.execute(select(t.run)).all():
        summary["run", run.id] = (run.status, run.reason, run.doubted, run.result)
    for segment in c.execute(select(t.segment)).all():
        rounds = c.execute(
            select(t.round_.c.number, t.round_.c.closed.is_(None))
            .where(t.round_.c.segment_id == segment.id)
            .order_by(t.round_.c.number)
        ).all()
        key = ("segment", segment.run_id, segment.number, segment.discarded)
        summary.setdefault(key, []).append(
            (segment.assumed, segment.frames, [*map(tuple, rounds)])
        )
    return summary
