"""CSV files: tables of numbers, lists of targets, votes."""

import random
from pathlib import Path

import torch

from leapfactual.data import Table, open_data
from leapfactual.jobs.labels import read_votes
from leapfactual.jobs.pairs import read_pairs

from ..mutations import mutate_bytes, number, text
from ..watch import expect
from .kind import Kind, Read, check_labels

ENCODINGS = ("utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1", "utf-32")
COLUMNS = ("a", "b", "label", "class", "image", "target", "annotator", "1", "", "nan")
IMAGES = ("a.png", "b.png", "c/a.png", "d.png")


def write(rng: random.Random, path: Path, rows: list[list[str]]) -> None:
    """Writes cells as CSV, in some encoding and style, now and then damaged."""
    separator, end = rng.choice(",,,,,;\t"), rng.choice(("\n", "\n", "\r\n", "\r", "\n\n"))
    quote = rng.choice(("", "", '"', "'"))
    lines = (separator.join(f"{quote}{cell}{quote}" for cell in row) for row in rows)
    content = end.join(lines).encode(rng.choice(ENCODINGS), errors="replace")
    path.write_bytes(mutate_bytes(rng, content) if rng.random() < 0.3 else content)


class Tables(Kind):
    """Tables of numbers."""

    name, share = "tables", 10

    def make(self, rng: random.Random, given: Path, outside: Path) -> Read:
        """See :meth:`Kind.make`."""
        header = rng.sample(COLUMNS, rng.randint(1, 4))
        if rng.random() < 0.5:
            header = ["a", "b", "label"]
        rows = [header]
        for _ in range(rng.randrange(6)):
            cells = [repr(number(rng)) if rng.random() < 0.9 else text(rng) for _ in header]
            rows.append(cells if rng.random() < 0.9 else cells[:-1])
        path = given / "a.csv"
        write(rng, path, rows)
        return lambda: _check(open_data(path))


def _check(table: object) -> None:
    assert isinstance(table, Table)
    x = table[:]
    expect(len(x) == len(table) == len(table.names), f"{len(x)} rows of {len(table)}")
    expect(tuple(x.shape) == (len(table), len(table.columns)), f"rows of {x.shape}")
    expect(bool(torch.isfinite(x).all()), "rows that are not finite")
    if table.labels is not None:
        check_labels(table.labels, len(x), len(table.classes))


class Lists(Kind):
    """Lists of targets and of votes."""

    name, share = "lists", 8

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.images = Table(torch.zeros(4, 2), ["a", "b"], IMAGES)

    def make(self, rng: random.Random, given: Path, outside: Path) -> Read:
        """See :meth:`Kind.make`."""
        column, odd = rng.choice(("label", "target")), rng.random() < 0.6
        rows = [["image", column, "annotator"][: rng.choice((2, 3))]]
        if rng.random() < 0.1:
            rows = [rng.sample(COLUMNS, 3)]
        for _ in range(rng.randrange(6)):
            image = rng.choice(("c/a.png", "b.png", "d.png", *(("a.png", text(rng)) * odd)))
            label = rng.choice(("dark", "bright", *(("Dark", text(rng)) * odd)))
            rows.append([image, label, text(rng)][: rng.choice((1, 2, 3, 3) if odd else (2, 3))])
        path = given / "a.csv"
        write(rng, path, rows)
        classes = rng.choice((None, ("dark", "bright")))
        return lambda: self._read(path, column, classes)

    def _read(self, path: Path, column: str, classes: tuple[str, ...] | None) -> None:
        if column == "target":
            for row, k in read_pairs(path, self.images, ("dark", "bright")):
                expect(row in range(4) and k in range(2), f"image {row} to class {k}")
            return
        votes = read_votes(path, self.images, classes)
        expect(tuple(votes.p.shape) == (4, len(votes.classes)), f"votes of {votes.p.shape}")
        total = votes.p.sum(1)
        expect(bool(((total - votes.known.float()).abs() < 1e-5).all()), f"votes sum to {total}")
