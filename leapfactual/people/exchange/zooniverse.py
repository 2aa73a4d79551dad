"""Zooniverse's classification CSV: one row for every vote.

A task is a subject. The answer is that of a question task, ``T0``, by its label. What only we know
is in the JSON of ``metadata`` and ``subject_data``, which have room for it.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from ...errors import InputError
from ..store import tables as t
from .records import (
    OURS,
    Ballot,
    escape_formula,
    is_ours,
    open_text,
    parse_answer,
    parse_flag,
    parse_json,
    parse_person,
    parse_seconds,
    parse_subject,
    parse_time,
    refuse,
    subject_from_row,
    unescape_formula,
)

COLUMNS = (
    "classification_id",
    "user_name",
    "user_id",
    "user_ip",
    "workflow_id",
    "workflow_name",
    "workflow_version",
    "created_at",
    "gold_standard",
    "expert",
    "metadata",
    "annotations",
    "subject_data",
    "subject_ids",
)
REQUIRED_COLUMNS = ("user_name", "created_at", "metadata", "annotations", "subject_data")
TIME = "%Y-%m-%d %H:%M:%S UTC"
WORKFLOW, VERSION, TASK = 1, "1.1", "T0"
MANIFEST = "manifest.csv"


def write(
    file: TextIO, campaign: t.Record, votes: Iterable[t.Record], answers: Mapping[int, str]
) -> int:
    """Writes votes, and returns how many there were.

    Arguments:
        file: Where to write.
        campaign: The campaign.
        votes: The votes, each with its person and what it is about.
        answers: What answers are called.
    """
    writer = csv.DictWriter(file, COLUMNS)
    writer.writeheader()
    count = 0
    for vote in votes:
        writer.writerow(_row(campaign, vote, answers))
        count += 1
    return count


def _row(campaign: t.Record, vote: t.Record, answers: Mapping[int, str]) -> dict[str, Any]:
    subject = subject_from_row(vote)
    answer = {"task": TASK, "task_label": campaign.question, "value": answers[vote.answer]}
    about = OURS | {
        "kind": subject.kind,
        "counted": vote.counted,
        "voided": vote.voided is not None,
        "seconds": vote.seconds,
        "started_at": _iso(vote.created - vote.seconds),
        "finished_at": _iso(vote.created),
    }
    return {
        "classification_id": vote.id,
        "user_name": escape_formula(vote.name),
        "user_id": vote.annotator_id,
        "workflow_id": WORKFLOW,
        "workflow_name": escape_formula(campaign.name),
        "workflow_version": VERSION,
        "created_at": datetime.fromtimestamp(vote.created, UTC).strftime(TIME),
        "gold_standard": "true" if subject.kind == t.GOLD else "",
        "metadata": json.dumps(about),
        "annotations": json.dumps([answer]),
        "subject_data": json.dumps({subject.task: subject.to_json()}),
        "subject_ids": subject.task,
    }


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def write_manifest(file: TextIO, digests: Iterable[str]) -> None:
    """Writes the list with which pictures are uploaded; ``#`` hides what is not for volunteers."""
    writer = csv.writer(file)
    writer.writerow(("filename", "#sha256"))
    writer.writerows((f"{digest}.png", digest) for digest in digests)


# -- reading --


def read(path: Path, answers: Mapping[str, int]) -> Iterator[Ballot]:
    """Yields the votes of a file, ours or Zooniverse's.

    Arguments:
        path: The file.
        answers: What answers are called.
    """
    for where, row in _rows(path):
        subjects = parse_json(where, "subject_data", row["subject_data"], dict)
        if len(subjects) != 1 or not isinstance(subject := next(iter(subjects.values())), dict):
            refuse(where, "subject_data", row["subject_data"], "of one subject")
        about = parse_json(where, "metadata", row["metadata"] or "{}", dict)
        yield Ballot(
            person=parse_person(where, unescape_formula(row["user_name"])),
            answer=parse_answer(where, _answer_text(where, row["annotations"]), answers),
            given=parse_time(where, row["created_at"], _time, "like 2026-01-31 12:34:56 UTC"),
            seconds=_seconds(where, about),
            voided=is_ours(about) and parse_flag(where, "`voided`", about.get("voided")),
            subject=parse_subject(where, subject),
        )


def _time(text: str) -> datetime:
    return datetime.strptime(text, TIME).replace(tzinfo=UTC)


def _rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    with open_text(path) as file:
        lines = csv.reader(file, strict=True)
        get = partial(_next, lines, path)
        header = get() or []
        missing = [name for name in REQUIRED_COLUMNS if name not in header]
        if missing:
            raise InputError(
                f"{path} is no classification export of Zooniverse: the columns "
                f"{', '.join(missing)} are missing."
            )
        while (cells := get()) is not None:
            where = f"{path}, line {lines.line_num}"
            if len(cells) != len(header):
                refuse(where, "a row", cells, f"of {len(header)} columns")
            yield where, dict(zip(header, cells, strict=True))


def _next(lines: Any, path: Path) -> list[str] | None:  # noqa: ANN401 - of the csv module
    try:
        found: list[str] | None = next(lines, None)
    except csv.Error as error:
        raise InputError(
            f"{path}, line {lines.line_num}: this is no CSV ({error}). Export it again."
        ) from error
    return found


def _answer_text(where: str, text: str) -> object:
    """Returns the answer to the only question."""
    tasks = parse_json(where, "annotations", text, list)
    own = [task for task in tasks if isinstance(task, dict) and task.get("task") == TASK] or tasks
    if len(own) != 1 or not isinstance(own[0], dict):
        refuse(where, "annotations", text, f"of one question, {TASK}")
    return own[0].get("value")


def _seconds(where: str, about: Mapping[str, Any]) -> float:
    """Returns how long a vote took: as we wrote it, or from the times of Zooniverse's page."""
    if is_ours(about):
        return parse_seconds(where, about.get("seconds"))
    try:
        begun, ended = (
            datetime.fromisoformat(str(about[key])) for key in ("started_at", "finished_at")
        )
    except (KeyError, TypeError, ValueError):
        return 0.0
    try:
        return parse_seconds(where, max(0.0, (ended - begun).total_seconds()))
    except TypeError:
        return 0.0
