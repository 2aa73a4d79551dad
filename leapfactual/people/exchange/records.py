"""What is exchanged with other tools: votes, and which picture each is about.

A picture goes by its hash. Files of ours also say which frame of which run it is, and a run goes
by the hash of the picture that it explains, wherever that was. Files that other tools wrote know
the hash alone: such a vote is on the picture wherever it is asked about.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn, TextIO

from ...errors import InputError, MissingData
from ..campaigns import MAX_NAME_LENGTH, check_text
from ..consensus import IMPLAUSIBLE, UNSURE
from ..status import describe_answer
from ..store import tables as t

MAX_FILE_BYTES = 2**30
MAX_INTEGER = 2**31 - 1
# Computers elsewhere may be a day ahead of ours, by a wrong time zone.
MAX_CLOCK_SKEW = 86_400.0
FORMULA = re.compile(r"'*[=+\-@\t\r＝＋－＠]")
DIGEST = re.compile(r"[0-9a-f]{64}")
NAMED = re.compile(r"(?:^|[^0-9a-f])([0-9a-f]{64})\.png$")
KINDS = (t.FRAME, t.GOLD, t.REPEAT)
OURS = {"source": "leapfactual"}


@dataclass(frozen=True)
class Subject:
    """What a vote is about.

    Arguments:
        sha256: The picture.
        kind: ``frame``, ``gold`` or ``repeat``; none where a file does not say.
        task: The number of the task, where it was exported.
        run: The run that a frame is of: the name of its picture, without folders.
        original: That picture.
        target: The class that the run is to reach.
        segment: The number of its segment.
        position: Its place there.
    """

    sha256: str
    kind: str | None = None
    task: int | None = None
    run: str | None = None
    original: str | None = None
    target: int | None = None
    segment: int | None = None
    position: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns a dictionary without what is not known."""
        return OURS | {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Ballot:
    """A vote as a file has it.

    Arguments:
        person: Who gave it.
        answer: A class, *unsure* or *implausible*.
        given: When, in seconds since 1970.
        seconds: How long it took.
        voided: Whether the person's invitation was taken back.
        subject: What it is about.
    """

    person: str
    answer: int
    given: float
    seconds: float
    voided: bool
    subject: Subject


def subject_from_row(row: t.Record) -> Subject:
    """Returns the subject of a row of the database."""
    name = None if row.run is None else Path(row.run).name
    run = name and "".join(c if c.isprintable() else "�" for c in name)
    frame = (run, row.original, row.target, row.segment, row.position)
    return Subject(row.asset, row.kind, row.task, *frame)


def answer_words(classes: Sequence[str]) -> dict[int, str]:
    """Returns what each answer is called, no two of them alike.

    Example:
        >>> answer_words(("cat", "unsure"))
        {0: 'cat', 1: 'unsure', -1: 'unsure (no class)', -2: 'not believable'}
    """
    words = dict(enumerate(classes))
    for answer in (UNSURE, IMPLAUSIBLE):
        word = describe_answer(answer, classes)
        while word in words.values():
            word += " (no class)"
        words[answer] = word
    return words


def escape_formula(text: str) -> str:
    """Keeps a spreadsheet from taking text for a formula; :func:`unescape_formula` undoes it.

    Example:
        >>> escape_formula("=1+1"), escape_formula("Ada")
        ("'=1+1", 'Ada')
    """
    return f"'{text}" if FORMULA.match(text) else text


def unescape_formula(text: str) -> str:
    """Returns what :func:`escape_formula` was given.

    Example:
        >>> unescape_formula("'=1+1"), unescape_formula("'tis")
        ('=1+1', "'tis")
    """
    return text[1:] if text[:1] == "'" and FORMULA.match(text) else text


# -- reading --


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """Opens a text file that may come from anywhere."""
    if not path.is_file():
        raise MissingData(f"there is no file {path} to import.")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise InputError(
            f"{path} has {path.stat().st_size} bytes; at most {MAX_FILE_BYTES} are read. Split it."
        )
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            yield file
        except UnicodeDecodeError as error:
            raise InputError(f"{path} is no text in UTF-8 ({error}). Save it as such.") from error


def refuse(where: str, what: str, value: object, wanted: str) -> NoReturn:
    """Raises an error that says what is wrong with a value, and where it stands."""
    shown = repr(value)
    shown = shown if len(shown) <= 100 else f"{shown[:99]}…"
    raise InputError(f"{where}: {what} must be {wanted}, got {shown}. Correct it, or take it out.")


def reject_constant(constant: str) -> NoReturn:
    """Rejects what JSON does not know, such as NaN."""
    raise ValueError(f"{constant} is no JSON")


def parse_json(where: str, what: str, text: str, wanted: type) -> Any:  # noqa: ANN401 - of JSON
    """Returns an object or a list of JSON."""
    name = "an object of JSON" if wanted is dict else "a list of JSON"
    try:
        value = json.loads(text, parse_constant=reject_constant)
    except (ValueError, RecursionError):
        refuse(where, what, text, name)
    if not isinstance(value, wanted):
        refuse(where, what, text, name)
    return value


def parse_person(where: str, name: object) -> str:
    """Returns a name that a person can have."""
    if not isinstance(name, str):
        refuse(where, "the person", name, "a name")
    try:
        check_text("a person's name", name, MAX_NAME_LENGTH)
    except InputError as error:
        raise InputError(f"{where}: {error} Correct it, or take it out.") from error
    return name


def parse_answer(where: str, word: object, answers: Mapping[str, int]) -> int:
    """Returns the answer that a word stands for."""
    if not isinstance(word, str) or word not in answers:
        refuse(where, "the answer", word, f"one of {', '.join(map(repr, answers))}")
    return answers[word]


def parse_time(where: str, text: object, read: Callable[[str], datetime], wanted: str) -> float:
    """Returns a time in seconds since 1970; one without a zone is taken for UTC."""
    try:
        found = read(str(text))
        found = found.replace(tzinfo=UTC) if found.tzinfo is None else found
        seconds = found.timestamp()
    except (ValueError, OverflowError):
        refuse(where, "the time", text, wanted)
    if not 0 <= seconds <= time.time() + MAX_CLOCK_SKEW:
        refuse(where, "the time", text, "after 1970 and not in the future")
    return seconds


def parse_seconds(where: str, value: object) -> float:
    """Returns how long a vote took; no time where nobody measured it."""
    if value is None:
        return 0.0
    if isinstance(value, int | float) and value is not True and 0 <= value <= MAX_INTEGER:
        return float(value)
    refuse(where, "the seconds", value, "a number of 0 or more")


def parse_flag(where: str, what: str, value: object) -> bool:
    """Returns a boolean, if it is one."""
    if not isinstance(value, bool):
        refuse(where, what, value, "true or false")
    return value


def is_ours(content: Mapping[str, Any]) -> bool:
    """Returns whether leapfactual has written something, so that its words mean what we mean."""
    return OURS.items() <= content.items()


def parse_subject(where: str, content: Mapping[str, Any]) -> Subject:
    """Returns the subject of a vote, from what a file says of its picture.

    The hash is a value of its own, or the name of the file that we exported.
    """
    content = {key.lstrip("#/!"): value for key, value in content.items()}
    content.setdefault("sha256", _digest_in(content))
    digest = _digest(where, "picture", content, "sha256")
    if not is_ours(content):
        return Subject(digest)
    kind, run = content.get("kind"), content.get("run")
    if kind not in KINDS:
        refuse(where, "the kind", kind, f"one of {', '.join(KINDS)}")
    task = _count(where, "task", content)
    if kind == t.GOLD:
        return Subject(digest, kind, task)
    if not isinstance(run, str) or not run.isprintable():
        refuse(where, "the run", run, "a name")
    original = _digest(where, "original", content, "original")
    numbers = (_count(where, what, content) for what in ("target", "segment", "position"))
    return Subject(digest, kind, task, run, original, *numbers)


def _digest(where: str, what: str, content: Mapping[str, Any], key: str) -> str:
    value = content.get(key)
    if not isinstance(value, str) or not DIGEST.fullmatch(value):
        refuse(where, f"the {what}", value, "a sha256 of 64 digits, as it was exported")
    return value


def _digest_in(content: Mapping[str, Any]) -> str | None:
    """Returns the hash that a picture of ours is named by."""
    found = (NAMED.search(value) for value in content.values() if isinstance(value, str))
    return next((match[1] for match in found if match), None)


def _count(where: str, what: str, content: Mapping[str, Any]) -> int:
    value = content.get(what)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_INTEGER:
        refuse(where, f"the {what}", value, "a whole number of 0 or more")
    return value
