"""Explaining many images into a folder, resumably and in bounded memory.

Each pair of an image and a target class gives a row of results, or several where alternatives are
wanted. At the end the records of all pieces become one JSON file, one CSV file and one page.

=====================  =====================================================================
``job.json``           what identifies the job; another job does not write into this folder
``counterfactuals/``   a PNG for each row
``changes/``           what changed against the reconstruction: red added, blue taken away
``reliable/``          the reliable counterfactuals, if they are wanted
``animations/``        the path of each image that is on the page
``results.json``       everything that is known about each row
``results.csv``        the same as a table
``summary.json``       counts and means
``index.html``         the page
=====================  =====================================================================
"""

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..alternatives import diverse
from ..bundle import Bundle
from ..data import Table
from ..errors import InputError
from ..explainer import LeapFactual
from ..explanation import Explanation
from ..files import atomic, json_number
from ..imaging import to_pil
from ..leaps import describe
from ..report import cards, change_map, write_animation, write_page
from ..report.cards import numbers
from ..types import no_op
from .job import Job, Piece, Pieces, begin, drop_damaged, write_json
from .progress import OnProgress
from .subject import Log

# A kill costs at most one piece. It is the smallest of the three jobs' because the paths and the
# frames of the page are held in memory besides the images.
PAIRS_PER_PIECE = 128
FOLDERS = ("counterfactuals", "changes", "reliable", "animations")
RESULTS = ("results.json", "results.csv", "index.html", "summary.json")
MEANS = ("L1", "typicality", "queries", "milliseconds")
UNITS = {"typicality": " %", "milliseconds": " ms"}


def explain_all(
    job: Job, out: str | Path, on_progress: OnProgress = no_op, log: Log = no_op
) -> dict[str, Any]:
    """Explains every pair into a folder and returns a summary; resumes after an interruption.

    Arguments:
        job: The job.
        out: The folder.
        on_progress: Called with how far it is, see :mod:`leapfactual.jobs.progress`.
        log: Called with a sentence about what is damaged.
    """
    out = checks.path(out)
    if not job.pairs:
        raise InputError("there is no image to explain. Check the images and the targets.")
    worker = _Worker(job, out)
    size = begin(out, job.to_json(), job.pairs_per_piece(PAIRS_PER_PIECE))
    pieces = Pieces(job, out, size, keys=("rows", "cards"))
    drop_damaged(out / "summary.json", log, ("counterfactual",))
    if not all((out / name).exists() for name in RESULTS):
        for name in FOLDERS:
            (out / name).mkdir(exist_ok=True)
        for piece in pieces.pending("explained", on_progress, log):
            worker.explain(piece)
        on_progress(1.0, "writing the page", None)
        _finish(job, out, pieces)
    pieces.clear()
    for name in FOLDERS:
        if (out / name).is_dir() and not any((out / name).iterdir()):
            (out / name).rmdir()
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


@dataclass(frozen=True, eq=False)
class _Result:
    """What a plan gave for a piece."""

    explanation: Explanation
    typicality: Tensor | None


class _Worker:
    """Explains the pieces of a job and writes pictures, animations and records."""

    def __init__(self, job: Job, out: Path) -> None:
        self.job, self.out = job, out
        self.names = job.images.names
        self.nearest = job.explainer(keep_path=True)
        self.reliable: LeapFactual | None = None
        if job.reliable is not None:
            self.reliable = job.explainer(job.reliable, keep_path=True)
        count = len(job.pairs) * job.alternatives
        self.page = set(range(count))
        if job.shown < count:
            self.page = set(torch.linspace(0, count - 1, job.shown).long().tolist())

    def explain(self, piece: Piece) -> None:
        job = self.job
        x, target = piece.load()
        names = [self.names[row] for row, _ in piece.pairs for _ in range(job.alternatives)]
        first = piece.start * job.alternatives
        if job.alternatives > 1:
            e = diverse(self.nearest, x, target, job.alternatives, seed=job.seed).explanation
        else:
            e = self.nearest.explain(x, target)
        nearest, reliable = _Result(e, job.typicality(e)), None
        if self.reliable is not None:
            e = self.reliable.explain(x, target)
            reliable = _Result(e, job.typicality(e))
        rows = _rows(job, nearest, reliable, names, first)
        shown = [n for n in range(len(rows)) if first + n in self.page]
        made = _cards(job, nearest, reliable, names, shown)
        if x.ndim == 4:
            self._write_pictures(rows, nearest, reliable, shown)
        with atomic(piece.record) as temporary:
            temporary.write_text(json.dumps({"rows": rows, "cards": made}))

    def _write_pictures(
        self,
        rows: list[dict[str, Any]],
        nearest: _Result,
        reliable: _Result | None,
        shown: list[int],
    ) -> None:
        out, e = self.out, nearest.explanation
        for n, row in enumerate(rows):
            to_pil(e.counterfactual[n]).save(out / "counterfactuals" / f"{row['file']}.png")
            changed = change_map(e.reconstruction[n], e.counterfactual[n])
            changed.save(out / "changes" / f"{row['file']}.png")
            if reliable is not None:
                further = reliable.explanation.counterfactual[n]
                to_pil(further).save(out / "reliable" / f"{row['file']}.png")
        for n in shown:
            walked = e if reliable is None else reliable.explanation
            path = out / "animations" / f"{rows[n]['file']}.webp"
            write_animation(walked, path, n, self.job.bundle.generator)


def _rows(
    job: Job, nearest: _Result, reliable: _Result | None, names: list[str], first: int
) -> list[dict[str, Any]]:
    e, near = nearest.explanation, _outcomes(nearest)
    far = None if reliable is None else _outcomes(reliable)
    rows = []
    for n, name in enumerate(names):
        source, target = e.name(e.source[n]), e.name(e.target[n])
        stem = re.sub(r"[^\w.-]+", "_", Path(name).stem)[-40:]
        kind = re.sub(r"[^\w.-]+", "_", target)[:40]
        row: dict[str, Any] = {
            "name": name,
            "file": f"{first + n:06d}-{stem}-to-{kind}",
            "source": source,
            "target": target,
            **near[n],
        }
        if job.alternatives > 1:
            row["alternative"] = n % job.alternatives + 1
        if far is not None:
            row["reliable"] = far[n]
        rows.append(row)
    return rows


def _outcomes(result: _Result) -> list[dict[str, Any]]:
    """Returns status, reason and numbers of each image, as values that JSON can hold."""
    e = result.explanation
    columns, status, reason = numbers(e, result.typicality), e.status, e.reason
    return [
        {
            "status": str(status[n]),
            "reason": reason[n],
            **{name: json_number(column[n]) for name, column in columns.items()},
            "label": e.name(e.label[n]),
        }
        for n in range(len(e))
    ]


def _cards(
    job: Job, nearest: _Result, reliable: _Result | None, names: list[str], shown: list[int]
) -> list[dict[str, Any]]:
    if not shown:
        return []
    rows = torch.tensor(shown, device=nearest.explanation.target.device)
    near, far = (
        None if result is None or result.typicality is None else result.typicality[rows]
        for result in (nearest, reliable)
    )
    made = cards(
        nearest.explanation[rows],
        names=[names[n] for n in shown],
        typicality=near,
        reliable=None if reliable is None else reliable.explanation[rows],
        reliable_typicality=far,
        generator=job.bundle.generator,
    )
    return list(made)


def _finish(job: Job, out: Path, pieces: Pieces) -> None:
    """Makes the files of the whole from the records, one record in memory at a time."""

    def records() -> Iterator[dict[str, Any]]:
        for path in pieces.records():
            yield json.loads(path.read_text())

    tally = _Tally()
    with atomic(out / "results.csv") as temporary, temporary.open("w", newline="") as file:
        table = csv.writer(file)
        for record in records():
            for row in record["rows"]:
                flat = _flatten(row)
                if not tally.count:
                    table.writerow(flat)
                table.writerow(flat.values())
                tally.add(row)
    summary = tally.summary()
    training, plans = job.bundle.training, _plans(job)
    write_page(
        out / "index.html",
        (card for record in records() for card in record["cards"]),
        title=job.title,
        about=_about(job, summary),
        classes=job.bundle.classes,
        columns=_texts(training.get("columns")) if isinstance(job.images, Table) else (),
        std=_floats(training.get("std")) if isinstance(job.images, Table) else (),
        table=tally.table([name.removesuffix(" counterfactual") for name, _ in plans]),
        plans=plans,
    )
    with atomic(out / "results.json") as temporary, temporary.open("w") as file:
        head = {
            "summary": summary,
            "plan": describe(job.plan),
            "classifier": job.bundle.classifier_name,
        }
        file.write(json.dumps(head)[:-1] + ', "rows": [\n')
        first = True
        for record in records():
            for row in record["rows"]:
                file.write(("" if first else ",\n") + json.dumps(row))
                first = False
        file.write("\n]}\n")
    write_json(summary, out / "summary.json")


class _Tally:
    """Counts outcomes and sums numbers, row by row."""

    def __init__(self) -> None:
        self.count = 0
        self.status: dict[str, dict[str, int]] = {"counterfactual": {}, "reliable": {}}
        self.sums: dict[str, dict[str, list[float]]] = {"counterfactual": {}, "reliable": {}}

    def add(self, row: dict[str, Any]) -> None:
        self.count += 1
        for kind, values in (("counterfactual", row), ("reliable", row.get("reliable"))):
            if values is None:
                continue
            tally = self.status[kind]
            tally[values["status"]] = tally.get(values["status"], 0) + 1
            for name in MEANS:
                if values[name] is not None:
                    total = self.sums[kind].setdefault(name, [0.0, 0])
                    total[0] += values[name]
                    total[1] += 1

    def summary(self) -> dict[str, Any]:
        kinds = {
            kind: {
                "status": self.status[kind],
                **{f"mean {name}": s / n for name, (s, n) in self.sums[kind].items()},
            }
            for kind in self.status
            if self.status[kind]
        }
        return {"count": self.count, **kinds}

    def table(self, names: Sequence[str]) -> list[list[str]]:
        """Returns the table at the top of the page, with the names of the plans as columns."""
        kinds = [kind for kind in self.status if self.status[kind]]
        lines = [[f"all {self.count}", *names]]
        for status in ("reached", "not reached", "already there"):
            counts = [self.status[kind].get(status, 0) for kind in kinds]
            if any(counts):
                lines.append([status, *(f"{count} of {self.count}" for count in counts)])
        for name in MEANS:
            if any(name in self.sums[kind] for kind in kinds):
                lines.append([f"mean {name}", *(self._mean(kind, name) for kind in kinds)])
        return lines

    def _mean(self, kind: str, name: str) -> str:
        total, n = self.sums[kind].get(name, [0.0, 0])
        if not n:
            return "–"
        few = "" if n == self.count else f" ({n:.0f} of {self.count})"
        return f"{total / n:.3g}{UNITS.get(name, '')}{few}"


def _flatten(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row of a table, with the reliable counterfactual's values as columns."""
    flat = {key: value for key, value in row.items() if key != "reliable"}
    for key, value in (row.get("reliable") or {}).items():
        flat[f"reliable {key}"] = value
    return flat


def _about(job: Job, summary: dict[str, Any]) -> str:
    shown = min(job.shown, summary["count"])
    few = f" This page shows {shown} of them." if shown < summary["count"] else ""
    stretch = getattr(job.images, "stretch", "none")
    stretched = f" Pictures are shown stretched ({stretch})." if stretch != "none" else ""
    kept = "" if job.mask is None else " Outside of a mask images stay as they are."
    return (
        f"{summary['count']} counterfactuals: what would have had to be different for "
        f"{job.bundle.classifier_name} to give another answer.{few}{stretched}{kept} "
        f"{_agreement(job.bundle)}"
    )


def _agreement(bundle: Bundle) -> str:
    """Says whether the classifier recognizes what the generator makes, as far as is known."""
    found = bundle.agreement if isinstance(bundle.agreement, Mapping) else {}
    share, count = found.get("overall"), found.get("images")
    if not isinstance(share, int | float) or not isinstance(count, int) or not 0 <= share <= 1:
        return "Whether the classifier recognizes what the generator draws was not measured."
    what = "images" if bundle.probes.ndim == 4 else "rows"
    return (
        f"Of {count} {what} held out, the classifier gives {round(share * count)} the same class "
        "as before when the generator has redrawn them."
    )


def _plans(job: Job) -> list[tuple[str, str]]:
    """Returns what the counterfactuals of the job's plans are called, and the exact plans."""
    rated = {point.plan: point.reliability for point in job.bundle.front}
    reliability = rated.get(tuple(job.plan))
    name = "counterfactual"
    if job.bundle.fast is not None and job.bundle.fast.plan == tuple(job.plan):
        name = "fast counterfactual"
    elif reliability is not None:
        ends = {0.0: "nearest counterfactual", 1.0: "reliable counterfactual"}
        name = ends.get(reliability, f"counterfactual of reliability {reliability:.2f}")
    plans = [(name, describe(job.plan))]
    if job.reliable is not None:
        plans.append(("reliable counterfactual", describe(job.reliable)))
    return plans


def _texts(value: object) -> list[str]:
    return [str(v) for v in value] if isinstance(value, list) else []


def _floats(value: object) -> list[float]:
    return [float(v) for v in value] if isinstance(value, list) else []
