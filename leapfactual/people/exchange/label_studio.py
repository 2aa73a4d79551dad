"""Label Studio's task JSON: a list of tasks, each with its picture and one annotation per vote.

Label Studio keeps ``meta`` of a task and of a result as they are, so there is what only we know.
People have numbers there. A vote of ours names its person, so that it is known again when it comes
back.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO
from xml.sax.saxutils import quoteattr

from ...errors import InputError
from ..store import tables as t
from .records import (
    OURS,
    Ballot,
    Subject,
    is_ours,
    open_text,
    parse_answer,
    parse_flag,
    parse_person,
    parse_seconds,
    parse_subject,
    parse_time,
    refuse,
    reject_constant,
)

IMAGE, ANSWER, CHOICES = "image", "answer", "choices"
CHUNK, MAX_TASK_CHARS = 2**16, 2**25


def labeling_config(answers: Iterable[str]) -> str:
    """Returns the XML that a project is set up with, to ask what the campaign asks.

    Example:
        >>> print(labeling_config(["cat", "<dog>"]))
        <View>
          <Image name="image" value="$image"/>
          <Header value="$question"/>
          <Choices name="answer" toName="image" choice="single" required="true">
            <Choice value="cat"/>
            <Choice value="&lt;dog&gt;"/>
          </Choices>
        </View>
    """
    choices = "\n".join(f"    <Choice value={quoteattr(word)}/>" for word in answers)
    return f"""<View>
  <Image name="{IMAGE}" value="${IMAGE}"/>
  <Header value="$question"/>
  <Choices name="{ANSWER}" toName="{IMAGE}" choice="single" required="true">
{choices}
  </Choices>
</View>"""


def write(file: TextIO, tasks: Iterable[Mapping[str, Any]]) -> int:
    """Writes tasks one by one, and returns how many votes they have."""
    count, before = 0, "[\n"
    for task in tasks:
        file.write(before + json.dumps(task))
        count += len(task["annotations"])
        before = ",\n"
    file.write("[]\n" if before == "[\n" else "\n]\n")
    return count


def blank(digest: str, image: str, question: str) -> dict[str, Any]:
    """Returns a task without votes, and without anything that could lead those who vote.

    Arguments:
        digest: The picture, by its hash.
        image: Where it is, or the picture itself, as a URL.
        question: What people are asked.
    """
    data = {IMAGE: image, "sha256": digest, "question": question}
    return {"data": data, "annotations": []}


def task_of(
    subject: Subject,
    image: str,
    question: str,
    votes: Iterable[t.Record],
    answers: Mapping[int, str],
) -> dict[str, Any]:
    """Returns a task with its votes.

    Arguments:
        subject: What people are asked about.
        image: Where the picture is, or the picture itself, as a URL.
        question: What they are asked.
        votes: The votes, each with its person.
        answers: What answers are called.
    """
    return blank(subject.sha256, image, question) | {
        "id": subject.task,
        "meta": subject.to_json(),
        "annotations": [_annotation(vote, answers[vote.answer]) for vote in votes],
    }


def _annotation(vote: t.Record, word: str) -> dict[str, Any]:
    created = datetime.fromtimestamp(vote.created, UTC).isoformat(timespec="microseconds")
    return {
        "id": vote.id,
        "completed_by": vote.annotator_id,
        "created_at": created.replace("+00:00", "Z"),
        "lead_time": vote.seconds,
        "was_cancelled": False,
        "ground_truth": False,
        "result_count": 1,
        "result": [
            {
                "id": f"vote-{vote.id}",
                "from_name": ANSWER,
                "to_name": IMAGE,
                "type": CHOICES,
                "origin": "manual",
                "value": {CHOICES: [word]},
                "meta": OURS
                | {
                    "person": vote.name,
                    "counted": vote.counted,
                    "voided": vote.voided is not None,
                },
            }
        ],
    }


# -- reading --


def read(path: Path, answers: Mapping[str, int]) -> Iterator[Ballot]:
    """Yields the votes of a file, ours or Label Studio's.

    What was skipped, drafted or predicted there is no vote.

    Arguments:
        path: The file.
        answers: What answers are called.
    """
    with open_text(path) as file:
        for where, task in _tasks(file, path):
            data, annotations = task.get("data"), task.get("annotations")
            if not isinstance(data, dict):
                refuse(where, "`data`", data, "an object")
            if not isinstance(annotations, list):
                refuse(where, "`annotations`", annotations, "a list, as in an export of JSON")
            meta = task.get("meta") or {}
            if not isinstance(meta, dict):
                refuse(where, "`meta`", meta, "an object")
            subject = parse_subject(where, data | meta)
            for k, annotation in enumerate(annotations, 1):
                here = f"{where}, annotation {k}"
                if not isinstance(annotation, dict):
                    refuse(here, "an annotation", annotation, "an object")
                if not annotation.get("was_cancelled"):
                    yield _ballot(here, annotation, subject, answers)


def _ballot(
    where: str, annotation: Mapping[str, Any], subject: Subject, answers: Mapping[str, int]
) -> Ballot:
    result = annotation.get("result")
    results = result if isinstance(result, list) else []
    chosen = [r for r in results if isinstance(r, dict) and r.get("type") == CHOICES]
    value = chosen[0].get("value") if len(chosen) == 1 else None
    words = value.get(CHOICES) if isinstance(value, dict) else None
    if not isinstance(words, list) or len(words) != 1:
        refuse(where, "`result`", result, "of one choice")
    meta = chosen[0].get("meta") or {}
    if not isinstance(meta, dict):
        refuse(where, "`meta`", meta, "an object")
    return Ballot(
        person=parse_person(where, _person(annotation.get("completed_by"), meta)),
        answer=parse_answer(where, words[0], answers),
        given=parse_time(
            where,
            annotation.get("created_at"),
            datetime.fromisoformat,
            "like 2026-01-31T12:34:56.789Z",
        ),
        seconds=parse_seconds(where, annotation.get("lead_time")),
        voided=is_ours(meta) and parse_flag(where, "`voided`", meta.get("voided")),
        subject=subject,
    )


def _person(completed_by: object, meta: Mapping[str, Any]) -> object:
    """Returns who voted: by our name, by email, or by number."""
    if is_ours(meta):
        return meta.get("person")
    if isinstance(completed_by, dict):
        return completed_by.get("email")
    if isinstance(completed_by, int) and not isinstance(completed_by, bool):
        return f"label-studio-{completed_by}"
    return completed_by


class _TaskReader:
    """Reads a list of tasks from a file of JSON, piece by piece."""

    def __init__(self, file: TextIO, path: Path) -> None:
        self.file, self.path = file, path
        self.text, self.at = "", 0
        self.decoder = json.JSONDecoder(parse_constant=reject_constant)

    def peek(self) -> str:
        """Returns what comes next, but for blanks; nothing at the end."""
        while True:
            while self.at < len(self.text):
                if not self.text[self.at].isspace():
                    return self.text[self.at]
                self.at += 1
            self.text, self.at = self.file.read(CHUNK), 0
            if not self.text:
                return ""

    def expect(self, marks: str) -> str:
        """Reads one of some marks, and returns it."""
        found = self.peek()
        if not found or found not in marks:
            raise InputError(
                f"{self.path} is no list of tasks as Label Studio exports it with JSON: "
                f"{' or '.join(marks)} was expected, got {found or 'the end'}."
            )
        self.at += 1
        return found

    def member(self, where: str) -> dict[str, Any]:
        """Returns the object that comes next."""
        self.expect("{")
        start = self.at - 1
        while True:
            try:
                found, self.at = self.decoder.raw_decode(self.text, start)
            except (ValueError, RecursionError) as error:
                self.text, start = self.text[start:], 0
                short = len(self.text) < MAX_TASK_CHARS
                more = self.file.read(max(CHUNK, len(self.text))) if short else ""
                if not more:
                    raise InputError(
                        f"{where} is no whole object of JSON ({error}). Export it again."
                    ) from error
                self.text += more
            else:
                member: dict[str, Any] = found
                return member


def _tasks(file: TextIO, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the tasks of a list, each with where it stands."""
    reader = _TaskReader(file, path)
    reader.expect("[")
    number, mark = 0, "]" if reader.peek() == "]" else ","
    while mark == ",":
        number += 1
        where = f"{path}, task {number}"
        yield where, reader.member(where)
        mark = reader.expect(",]")
    if number == 0:
        reader.expect("]")
    if reader.peek():
        raise InputError(f"{path} goes on after the list of its tasks. Export it again.")
