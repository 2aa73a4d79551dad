"""Votes in and out, in the files of Zooniverse and Label Studio.

Out goes one vote after another, as they are at one moment. In, a file is read and checked as a
whole first; then its votes are cast in the order in which they were given, in pieces. Each is cast
as if the person had voted on the page. A person's second vote on a picture is skipped, so a file
that was half taken in, or that goes on with pictures that were not made yet, is taken in again.
"""

import base64
import json
import secrets
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Select, exists, or_, select

from ...errors import InputError
from ...files import atomic
from ..assignment import repeat_task
from ..campaigns import enrol
from ..store import tables as t
from ..store.assets import PNG
from ..store.database import Database
from ..transitions import get_campaign, log_event
from ..votes import Conflict, cast
from . import label_studio, zooniverse
from .records import Ballot, Subject, answer_words, subject_from_row

ZOONIVERSE, LABEL_STUDIO = "zooniverse", "label-studio"
FORMATS = (ZOONIVERSE, LABEL_STUDIO)
FETCH_SIZE, BATCH_SIZE = 256, 100
SQLITE_HEADER = b"SQLite format 3\0"
TAKEN, LATE, SKIPPED, UNKNOWN = "taken", "late", "skipped", "unknown"


def _check_format(form: str) -> None:
    if form not in FORMATS:
        raise InputError(f"`format` must be one of {list(FORMATS)}, got {form!r}.")


# -- out --


@dataclass(frozen=True)
class ExportSummary:
    """How much was written.

    Arguments:
        votes: How many votes.
        pictures: How many pictures, as files.
    """

    votes: int
    pictures: int


def export_votes(
    db: Database,
    path: str | Path,
    form: str,
    pictures: str | Path | None = None,
    *,
    blank: bool = False,
) -> ExportSummary:
    """Writes the votes of a campaign to a file.

    For Label Studio the XML that sets up its project is written beside it. Its tasks hold their
    pictures, or say where these are, below what Label Studio calls local files.

    Arguments:
        db: The database.
        path: The file.
        form: ``zooniverse`` or ``label-studio``.
        pictures: A folder to write the pictures to, by their hashes; for Zooniverse with the
            manifest that its upload wants.
        blank: Whether to write what is open, and no votes: to be voted on elsewhere.
    """
    _check_format(form)
    path, folder = Path(path), None if pictures is None else Path(pictures)
    setup = path.with_suffix(".xml")
    if path.is_file() and _is_database(path):
        raise InputError(f"{path} is a database, perhaps the campaign itself. Give another file.")
    if form == LABEL_STUDIO and path == setup:
        raise InputError(f"{path} is where the project's XML goes. Call the file *.json.")
    with db.read() as c:
        campaign = get_campaign(c)
        answers = answer_words(campaign.classes)
        with atomic(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            if form == ZOONIVERSE:
                votes = zooniverse.write(file, campaign, _votes(c, blank), answers)
            else:
                votes = label_studio.write(file, _tasks(c, campaign, answers, folder, blank))
        if form == LABEL_STUDIO:
            with atomic(setup) as temporary:
                xml = label_studio.labeling_config(answers.values())
                temporary.write_text(f"{xml}\n", encoding="utf-8")
        written = 0 if folder is None else _write_pictures(c, folder, form, blank)
    return ExportSummary(votes, written)


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(SQLITE_HEADER)) == SQLITE_HEADER


def _about(*columns: t.Record) -> Select[Any]:
    """Selects tasks, with where each is from."""
    return select(
        t.task.c.id.label("task"),
        t.task.c.kind,
        t.task.c.asset,
        t.run.c.name.label("run"),
        t.run.c.asset.label("original"),
        t.run.c.target,
        t.segment.c.number.label("segment"),
        t.frame.c.position,
        *columns,
    ).select_from(
        t.task.outerjoin(t.frame, t.frame.c.id == t.task.c.frame_id)
        .outerjoin(t.segment, t.segment.c.id == t.frame.c.segment_id)
        .outerjoin(t.run, t.run.c.id == t.segment.c.run_id)
    )


VOTE = (t.vote, t.annotator.c.name, t.annotator.c.voided)


def _votes(c: Connection, blank: bool) -> Iterator[t.Record]:
    """Yields all votes in the order in which they came."""
    if blank:
        return
    query = (
        _about(*VOTE)
        .join(t.vote, t.vote.c.task_id == t.task.c.id)
        .join(t.annotator, t.annotator.c.id == t.vote.c.annotator_id)
        .order_by(t.vote.c.id)
    )
    yield from c.execute(query.execution_options(yield_per=FETCH_SIZE))


def _wanted(blank: bool) -> t.Record:
    """Builds the condition of tasks to write: what people are asked about, and what they were."""
    waiting = (t.task.c.state == t.OPEN) & (t.task.c.kind != t.REPEAT)
    return waiting if blank else or_(waiting, exists().where(t.vote.c.task_id == t.task.c.id))


def _tasks(
    c: Connection, campaign: t.Record, answers: dict[int, str], folder: Path | None, blank: bool
) -> Iterator[dict[str, Any]]:
    """Yields tasks with their votes, or blank ones in an order that says nothing."""
    if blank:
        for digest in _digests(c, blank):
            yield label_studio.blank(digest, _image(c, digest, folder), campaign.question)
        return
    query = _about().where(_wanted(blank=False)).order_by(t.task.c.id)
    for row in c.execute(query.execution_options(yield_per=FETCH_SIZE)):
        image, votes = _image(c, row.asset, folder), _votes_on(c, row.task)
        yield label_studio.task_of(subject_from_row(row), image, campaign.question, votes, answers)


def _image(c: Connection, digest: str, folder: Path | None) -> str:
    """Returns a picture as a URL: all of it, or where Label Studio finds it."""
    if folder is None:
        return f"data:{PNG};base64,{base64.b64encode(_content(c, digest)).decode()}"
    return f"/data/local-files/?d={quote(folder.name)}/{digest}.png"


def _votes_on(c: Connection, task: int) -> Sequence[t.Record]:
    return c.execute(
        select(*VOTE)
        .join(t.annotator, t.annotator.c.id == t.vote.c.annotator_id)
        .where(t.vote.c.task_id == task)
        .order_by(t.vote.c.id)
    ).all()


def _content(c: Connection, digest: str) -> bytes:
    content: bytes = c.execute(
        select(t.asset.c.content).where(t.asset.c.sha256 == digest)
    ).scalar_one()
    return content


def _digests(c: Connection, blank: bool) -> Iterator[str]:
    """Yields the hashes of the pictures, each once, in order."""
    query = select(t.task.c.asset).where(_wanted(blank)).distinct().order_by(t.task.c.asset)
    yield from c.execute(query.execution_options(yield_per=FETCH_SIZE)).scalars()


def _write_pictures(c: Connection, folder: Path, form: str, blank: bool) -> int:
    count = 0
    for digest in _digests(c, blank):
        with atomic(folder / f"{digest}.png") as temporary:
            temporary.write_bytes(_content(c, digest))
        count += 1
    if form == ZOONIVERSE:
        with (
            atomic(folder / zooniverse.MANIFEST) as temporary,
            temporary.open("w", newline="") as file,
        ):
            zooniverse.write_manifest(file, _digests(c, blank))
    return count


# -- in --


@dataclass(frozen=True)
class ImportSummary:
    """What became of the votes in a file.

    Arguments:
        taken: How many were stored and count.
        late: How many were stored but do not count, since the picture was decided.
        skipped: How many were left out: the person has voted on the picture, or was voided.
        unknown: How many are on pictures that the campaign does not have, or not yet.
        people: How many people are new.
    """

    taken: int
    late: int
    skipped: int
    unknown: int
    people: int


def import_votes(db: Database, path: str | Path, form: str) -> ImportSummary:
    """Casts the votes that a file has on pictures of a campaign.

    People go by their names. Who is new is added, with a token that nobody knows. Where a rule
    learns how people answer, it does so in the order in which votes come in.

    Arguments:
        db: The database.
        path: The file.
        form: ``zooniverse`` or ``label-studio``.
    """
    _check_format(form)
    path = Path(path)
    read = zooniverse.read if form == ZOONIVERSE else label_studio.read
    with db.read() as c:
        answers = {word: answer for answer, word in answer_words(get_campaign(c).classes).items()}
    counts: Counter[str] = Counter()
    with _sort_by_time(read(path, answers)) as ballots:
        while piece := list(islice(ballots, BATCH_SIZE)):
            counts += _cast(db, piece, form)
    if counts[UNKNOWN] and counts[UNKNOWN] == counts.total():
        raise InputError(
            f"none of the {counts[UNKNOWN]} votes in {path} is on a picture of this campaign. Is "
            "it the right one? If it is new, do its jobs first: `leapfactual people work`."
        )
    return ImportSummary(*(counts[what] for what in (TAKEN, LATE, SKIPPED, UNKNOWN, "people")))


@contextmanager
def _sort_by_time(ballots: Iterable[Ballot]) -> Iterator[Iterator[Ballot]]:
    """Reads all votes, and yields them in the order in which they were given, from disk."""
    with closing(sqlite3.connect("")) as disk:
        disk.execute("CREATE TABLE ballot (id INTEGER PRIMARY KEY, given REAL, content TEXT)")
        disk.executemany(
            "INSERT INTO ballot (given, content) VALUES (?, ?)",
            ((ballot.given, json.dumps(asdict(ballot))) for ballot in ballots),
        )
        rows = disk.execute("SELECT content FROM ballot ORDER BY given, id")
        yield (_unpack(json.loads(content)) for (content,) in rows)


def _unpack(content: dict[str, Any]) -> Ballot:
    return Ballot(**content | {"subject": Subject(**content["subject"])})


def _cast(db: Database, piece: Iterable[Ballot], form: str) -> Counter[str]:
    """Casts some votes, all of them or none."""
    now = time.time()
    counts: Counter[str] = Counter()
    with db.write() as c:
        for ballot in piece:
            person = c.execute(
                select(t.annotator).where(t.annotator.c.name == ballot.person)
            ).one_or_none()
            voided = ballot.voided or (person is not None and person.voided is not None)
            tasks = [] if voided else _find_tasks(c, ballot.subject)
            if not tasks:
                counts[SKIPPED if voided else UNKNOWN] += 1
                continue
            if person is None:
                counts["people"] += 1
                number = enrol(c, ballot.person, secrets.token_urlsafe(32), now)
            else:
                number = person.id
            counts[_vote(c, ballot, tasks, number, now)] += 1
        if counts[TAKEN] or counts[LATE]:
            log_event(c, now, "imported", format=form, **counts)
    return counts


def _vote(c: Connection, ballot: Ballot, tasks: Iterable[int], annotator: int, now: float) -> str:
    """Votes wherever the picture is asked about, and returns what came of it."""
    outcome = SKIPPED
    for number in tasks:
        task = c.execute(select(t.task).where(t.task.c.id == number)).one()
        if ballot.subject.kind == t.REPEAT:
            task = repeat_task(c, task, annotator)
        key = secrets.token_hex(16)
        try:
            receipt = cast(
                c, task, annotator, ballot.answer, key, now, ballot.seconds, ballot.given
            )
        except Conflict:
            continue
        outcome = TAKEN if receipt.counted or outcome == TAKEN else LATE
    return outcome


def _find_tasks(c: Connection, subject: Subject) -> Sequence[int]:
    """Returns the tasks that a vote is on.

    Two runs may explain one picture: then the name tells. After a rewind a frame may have been
    computed again: then the task's number does.
    """
    query = _about().where(t.task.c.asset == subject.sha256)
    if subject.kind is None:
        found = query.where(t.task.c.kind != t.REPEAT).order_by(t.task.c.id)
        return c.execute(found).scalars().all()
    if subject.kind == t.GOLD:
        query, nearest = query.where(t.task.c.kind == t.GOLD), []
    else:
        query = query.where(
            t.task.c.kind == t.FRAME,
            t.run.c.asset == subject.original,
            t.run.c.target == subject.target,
            t.segment.c.number == subject.segment,
            t.frame.c.position == subject.position,
        )
        below = t.run.c.name.endswith(f"/{subject.run}", autoescape=True)
        nearest = [~or_(t.run.c.name == subject.run, below)]
    nearest += [t.task.c.id != subject.task, t.segment.c.discarded, t.task.c.id]
    return c.execute(query.order_by(*nearest).limit(1)).scalars().all()
