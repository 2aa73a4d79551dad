"""Tables: rows of numbers, from a CSV file with a header."""

import csv
import math
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

import torch
from torch import Tensor

from .. import checks
from ..errors import InputError, MissingData
from .sources import Broken

LABEL_NAMES = ("label", "class", "target", "y")
LARGEST = torch.finfo(torch.float32).max


class Table:
    """Table of numbers that can be used where a set of images can.

    Arguments:
        rows: The numbers, with shape ``(N, D)``.
        columns: What the columns are called.
        names: What the rows are called.
        labels: Class numbers, with shape ``(N,)``, where there are any.
        classes: What the classes are called.
        broken: The rows that could not be read.
        label: What the column of the classes is called.
    """

    def __init__(
        self,
        rows: Tensor,
        columns: Sequence[str],
        names: Sequence[str],
        labels: Tensor | None = None,
        classes: Sequence[str] = (),
        broken: Sequence[Broken] = (),
        label: str | None = None,
    ) -> None:
        self.rows, self.columns, self.names = rows, tuple(columns), list(names)
        self.labels, self.classes, self.broken = labels, tuple(classes), list(broken)
        self.label, self.shape = label, tuple(rows.shape[1:])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: int | slice | Sequence[int] | Tensor) -> Tensor:
        """Returns some of the rows, with shape ``(B, D)``."""
        return self.rows[[rows] if isinstance(rows, int) else rows]

    def batches(self, batch_size: int) -> Iterator[Tensor]:
        """Yields the rows in order, batch by batch."""
        checks.positive(batch_size, "batch_size")
        yield from torch.split(self.rows, batch_size)

    def __repr__(self) -> str:
        kinds = f", {len(self.classes)} classes" if self.classes else ""
        broken = f", {len(self.broken)} left out" if self.broken else ""
        return f"Table({len(self)} rows of {len(self.columns)} columns{kinds}{broken})"


def read_lines(path: Path) -> list[list[str]]:
    """Returns the lines of a CSV file, its header first."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return list(csv.reader(file)) or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is no CSV file ({error}). Save it as UTF-8 CSV.") from error


def has_column(path: Path, name: str) -> bool:
    """Returns whether a CSV file has a column of that name."""
    return path.is_file() and name in map(str.strip, read_lines(path)[0])


def open_table(path: str | Path, *, label: str | None = None) -> Table:
    """Reads a CSV file: a header, then a row of numbers a line.

    Lines that are not numbers throughout are named in ``broken`` and left out.

    Arguments:
        path: The file.
        label: The column that names the class of each row, in words or numbers. Defaults to the
            one called label, class, target or y, if there is one.
    """
    path = checks.path(path)
    if not path.is_file():
        raise MissingData(f"there is no table at {path}. Give a CSV file.")
    names, *lines = read_lines(path)
    header = [name.strip() for name in names]
    if label is not None and label not in header:
        near = get_close_matches(label, header, n=1)
        hint = f" Did you mean `{near[0]}`?" if near else ""
        raise InputError(
            f"{path} has no column `{label}`; it has {', '.join(header[:12])}"
            f"{', …' if len(header) > 12 else ''}.{hint}"
        )
    if len(header) != len(set(header)) or len(header) < 2 or any(map(_is_number, header)):
        raise InputError(
            f"the first line of {path} must name its columns, at least two, each once; got "
            f"{', '.join(header) or 'nothing'}."
        )
    place = next((n for n, name in enumerate(header) if name.lower() in LABEL_NAMES), None)
    place = place if label is None else header.index(label)
    columns = [name for n, name in enumerate(header) if n != place]
    kept: list[tuple[int, list[float], str]] = []
    broken = []
    for number, line in enumerate(lines, 2):
        if not line:
            continue
        try:
            kept.append((number, *_parse_line(line, header, place)))
        except InputError as error:
            broken.append(Broken(f"{path}:{number}", str(error)))
    if not kept:
        first = f" The first: {broken[0].reason}" if broken else ""
        raise InputError(f"there is no line of numbers in {path}.{first}")
    classes = sorted({label for _, _, label in kept}, key=_sort_key) if place is not None else []
    known = {name: n for n, name in enumerate(classes)}
    labels = torch.tensor([known[label] for _, _, label in kept]) if classes else None
    rows = torch.tensor([values for _, values, _ in kept], dtype=torch.float32)
    places = [f"{path}:{number}" for number, _, _ in kept]
    named = None if place is None else header[place]
    return Table(rows, columns, places, labels, classes, broken, named)


def _parse_line(line: list[str], header: list[str], place: int | None) -> tuple[list[float], str]:
    if len(line) != len(header):
        raise InputError(f"it has {len(line)} entries, the header {len(header)}.")
    values = []
    for n, (name, text) in enumerate(zip(header, line, strict=True)):
        if n == place:
            continue
        if not text.strip():
            raise InputError(f"`{name}` is empty. Give a number.")
        if not _is_number(text):
            raise InputError(
                f"`{name}` is {text!r}, not a finite number. Write categories as numbers, in "
                f"columns; if they name the class, say --label {name}."
            )
        if abs(float(text)) > LARGEST:
            raise InputError(
                f"`{name}` is {text}, beyond single precision ({LARGEST:.1e}). Rescale the column."
            )
        values.append(float(text))
    return values, "" if place is None else line[place].strip()


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _sort_key(name: str) -> tuple[bool, float, str]:
    """Returns the sort key of a class: numbers by value, before words."""
    return (not _is_number(name), float(name) if _is_number(name) else 0.0, name)
