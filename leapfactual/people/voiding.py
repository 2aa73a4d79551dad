"""Taking a person out of a campaign: their votes no longer count, wherever that matters.

Finished runs do not change by themselves. Those in which the person's votes counted are marked as
doubted, and rewound when that is asked for.
"""

import time

from sqlalchemy import Connection, exists, select, update

from ..errors import InputError
from . import tables as t
from .database import Database
from .rounds import ASKING, WITHDRAWN, decided, note, outcomes, progress, record, segments


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
                .values(status=ASKING, reason="", result=None, finished=None)
            )
            note(c, now, "rewound", run=run, segment=segment.number)
            progress(c, segment.id, now)
            return
