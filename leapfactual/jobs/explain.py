"""Explaining many images into a folder, in pieces: memory stays flat and a kill costs little.

What is asked for is a list of pairs, an image and a target class; each gives a row of results, or
several where alternatives are wanted. Pairs are taken in pieces of 128. When a piece is done its
pictures are on disk and then, in one rename, its record; after a kill the pieces that have a
record are not done again. At the end the records become one JSON file, one CSV file and one page.

=====================  =====================================================================
``job.json``           what was asked for; another job does not write into this folder
``counterfactuals/``   a PNG for each row
``changes/``           what changed against the reconstruction: red added, blue taken away
``reliable/``          the reliable counterfactuals, if they were asked for
``animations/``        the way of each image that is on the page
``results.json``       everything that is known about each row
``results.csv``        the same as a table
``summary.json``       counts and means
``index.html``         the page
=====================  =====================================================================
"""

import csv
import difflib
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..alternatives import diverse
from ..bundle import Bundle
from ..data import Images, Table
from ..data.csv import read_csv_rows
from ..errors import InputError
from ..explainer import LeapFactual
from ..explanation import Explanation
from ..files import atomic
from ..imaging import to_pil
from ..leaps import Stage, describe
from ..report import cards, change_map, write_animation, write_page
from ..report.cards import numbers
from ..solvers import Solver
from ..types import Classifier, silent
from .job import typicality

PIECE = 128
JOB = "job.json"
FOLDERS = ("counterfactuals", "changes", "reliable", "animations", "parts")
RESULTS = ("results.json", "results.csv", "index.html", "summary.json")


@dataclass(frozen=True, eq=False)
class Job:
    """Is what is asked for.

    Arguments:
        bundle: The bundle.
        classifier: The classifier that it explains.
        images: The images, or a table.
        pairs: Which image is to become which class.
        plan: The plan of the counterfactuals.
        reliable: The plan of reliable counterfactuals beside them, if they are wanted.
        shown: How many pairs the page shows, evenly spaced.
        title: The heading of the page.
        force: Explain a classifier that the bundle does not recognise.
        solver: How the plan integrates, where that is not the flow's own way.
        mask: Where images may change; everywhere when not given.
        alternatives: How many different counterfactuals to make of each pair, without reliable
            ones; see :mod:`leapfactual.alternatives`.
        seed: The seed of the alternatives.
    """

    bundle: Bundle
    classifier: Classifier
    images: Images | Table
    pairs: Sequence[tuple[int, int]]
    plan: Sequence[Stage]
    reliable: Sequence[Stage] | None = None
    shown: int = 100
    title: str = "Counterfactuals"
    force: bool = False
    solver: Solver | None = None
    mask: Tensor | None = None
    alternatives: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if checks.positive(self.alternatives, "alternatives") > 1 and self.reliable is not None:
            raise InputError(
                f"there are {self.alternatives} alternatives or reliable counterfactuals, not "
                "both. For alternatives that are reliable take a reliable plan."
            )

    def describe(self) -> dict[str, object]:
        """Says what the job is, in values that JSON can hold, so that it can be recognised."""
        names = hashlib.sha256("\n".join(self.images.names).encode()).hexdigest()
        pairs = hashlib.sha256(repr(list(self.pairs)).encode()).hexdigest()
        weights = hashlib.sha256()
        for tensor in (*self.bundle.flow.state_dict().values(), self.bundle.answers):
            weights.update(_bytes(tensor))
        mask = None if self.mask is None else hashlib.sha256(_bytes(self.mask)).hexdigest()
        return {
            "format": "leapfactual job 1",
            "bundle": weights.hexdigest(),
            "images": names,
            "pairs": pairs,
            "count": len(self.pairs),
            "plan": describe(self.plan),
            "solver": None if self.solver is None else repr(self.solver),
            "reliable": None if self.reliable is None else describe(self.reliable),
            "shown": self.shown,
            "mask": mask,
            "alternatives": [self.alternatives, self.seed] if self.alternatives > 1 else None,
        }

    def explainer(
        self, plan: Sequence[Stage] | None = None, *, keep_path: bool = False
    ) -> LeapFactual:
        """Returns what explains the pairs, by the job's plan or by another."""
        return self.bundle.explainer(
            self.classifier,
            plan=plan or self.plan,
            solver=self.solver if plan is None else None,
            force=self.force,
            keep_path=keep_path,
            mask=self.mask,
        )

    def piece(self, start: int, size: int) -> tuple[Tensor, Tensor]:
        """Returns the images of some pairs and their targets, on the bundle's device."""
        pairs, device = self.pairs[start : start + size], self.bundle.device
        x = self.images[[row for row, _ in pairs]].to(device)
        return x, torch.tensor([k for _, k in pairs], device=device)


def target_named(name: str, classes: Sequence[str]) -> int:
    """Returns the number of a class by its name, suggesting the nearest for one that is unknown.

    Example:
        >>> target_named("spiral", ["edge-on", "spiral"])
        1
    """
    if name in classes:
        return list(classes).index(name)
    near = difflib.get_close_matches(name, classes, n=1, cutoff=0.4)
    hint = f"Did you mean `{near[0]}`? " if near else ""
    listed = ", ".join(classes[:12]) + (", …" if len(classes) > 12 else "")
    raise InputError(f"`{name}` is none of the classes. {hint}There are {listed}.")


def all_pairs(sources: Sequence[int], classes: int) -> list[tuple[int, int]]:
    """Pairs every image with every class but its own."""
    return [
        (row, target)
        for row, source in enumerate(sources)
        for target in range(classes)
        if target != source
    ]


def listed_pairs(
    path: str | Path, images: Images | Table, classes: Sequence[str]
) -> list[tuple[int, int]]:
    """Reads pairs from a CSV file with the columns ``image`` and ``target``.

    An image is named as the set names it, or by its file name alone where that is unique.
    """
    return [
        (row, target_named(cells["target"], classes))
        for _, row, cells in read_csv_rows(path, images, "target", "targets")
    ]


def explain_all(
    job: Job, out: str | Path, progress: Callable[[float, str], object] = silent
) -> dict[str, Any]:
    """Explains every pair into a folder and returns a summary; goes on after an interruption.

    Arguments:
        job: What is asked for.
        out: The folder.
        progress: Is told the share that is done and what is going on.
    """
    out = Path(out)
    if not job.pairs:
        raise InputError("there is no image to explain. Check the images and the targets.")
    plain = job.explainer(keep_path=True)
    further = None if job.reliable is None else job.explainer(job.reliable, keep_path=True)
    begin(out, job.describe())
    if not all((out / name).exists() for name in RESULTS):
        for name in FOLDERS:
            (out / name).mkdir(exist_ok=True)
        last = len(job.pairs) * job.alternatives - 1
        page = set(torch.linspace(0, last, job.shown).long().tolist())
        pieces = range(0, len(job.pairs), PIECE)
        names = job.images.names
        for start in pieces:
            if not _record(out, start).exists():
                _piece(job, plain, further, out, start, page, names)
            done = min(start + PIECE, len(job.pairs))
            progress(done / len(job.pairs), f"explained {done} of {len(job.pairs)}")
        progress(1.0, "writing the page")
        _finish(job, out, pieces)
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


def begin(out: Path, wanted: Mapping[str, object]) -> None:
    """Makes the folder, or finds that this very job was begun there; refuses any other."""
    path = out / JOB
    if path.exists():
        try:
            before = json.loads(path.read_text())
        except ValueError as error:
            raise InputError(f"{path} is damaged ({error}). Give another --out.") from error
        differ = [name for name in wanted if before.get(name) != wanted[name]]
        if differ:
            raise InputError(
                f"{out} holds the results of another job: its {', '.join(differ)} differ. Give "
                "another --out, or delete that folder."
            )
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"there is something at {out} already. Give another --out.")
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(wanted, indent=1) + "\n")


def _piece(
    job: Job,
    plain: LeapFactual,
    further: LeapFactual | None,
    out: Path,
    start: int,
    page: set[int],
    called: Sequence[str],
) -> None:
    pairs = job.pairs[start : start + PIECE]
    x, target = job.piece(start, PIECE)
    names = [called[row] for row, _ in pairs for _ in range(job.alternatives)]
    first = start * job.alternatives
    if job.alternatives > 1:
        found = diverse(plain, x, target, job.alternatives, seed=job.seed).explanation
    else:
        found = plain.explain(x, target)
    reliable = None if further is None else further.explain(x, target)
    typical = [None if e is None else typical_of(job, e) for e in (found, reliable)]
    rows = _rows(job, found, reliable, typical, names, first)
    if x.ndim == 4:
        _pictures(out, rows, found, reliable)
    shown = [n for n in range(len(rows)) if first + n in page]
    made = _cards(job, found, reliable, typical, names, shown)
    if x.ndim == 4:
        for n in shown:
            walked = found if reliable is None else reliable
            path = out / "animations" / f"{rows[n]['file']}.webp"
            write_animation(walked, path, n, job.bundle.generator)
    with atomic(_record(out, start)) as temporary:
        temporary.write_text(json.dumps({"rows": rows, "cards": made}))


def _record(out: Path, start: int) -> Path:
    return out / "parts" / f"{start:08d}.json"


def _rows(
    job: Job,
    found: Explanation,
    reliable: Explanation | None,
    typical: Sequence[Tensor | None],
    names: list[str],
    start: int,
) -> list[dict[str, Any]]:
    classes = job.bundle.classes
    near = _described(found, typical[0], classes)
    far = [] if reliable is None else _described(reliable, typical[1], classes)
    rows = []
    for n, name in enumerate(names):
        target = int(found.target[n])
        stem = re.sub(r"[^\w.-]+", "_", Path(name).stem)[-40:]
        kind = re.sub(r"[^\w.-]+", "_", classes[target])[:40]
        row: dict[str, Any] = {
            "name": name,
            "file": f"{start + n:06d}-{stem}-to-{kind}",
            "source": classes[int(found.source[n])],
            "target": classes[target],
            **near[n],
        }
        if job.alternatives > 1:
            row["alternative"] = n % job.alternatives + 1
        if reliable is not None:
            row["reliable"] = far[n]
        rows.append(row)
    return rows


def _described(
    e: Explanation, typical: Tensor | None, classes: Sequence[str]
) -> list[dict[str, Any]]:
    columns, status, reason = numbers(e, typical), e.status, e.reasons(classes)
    described = []
    for n in range(len(e)):
        values = {key: column[n] for key, column in columns.items()}
        described.append(
            {
                "status": str(status[n]),
                "reason": reason[n],
                **{k: None if v != v else v for k, v in values.items()},
                "label": classes[int(e.label[n])],
            }
        )
    return described


def typical_of(job: Job, e: Explanation) -> Tensor | None:
    """Returns how typical counterfactuals are of their class, if the bundle has a scale."""
    if job.bundle.flow.quantiles.isnan().all():
        return None
    return typicality(job.bundle.generator, job.bundle.flow, e.counterfactual, e.target)


def _pictures(
    out: Path, rows: list[dict[str, Any]], found: Explanation, reliable: Explanation | None
) -> None:
    for n, row in enumerate(rows):
        to_pil(found.counterfactual[n]).save(out / "counterfactuals" / f"{row['file']}.png")
        changed = change_map(found.reconstruction[n], found.counterfactual[n])
        changed.save(out / "changes" / f"{row['file']}.png")
        if reliable is not None:
            to_pil(reliable.counterfactual[n]).save(out / "reliable" / f"{row['file']}.png")


def _cards(
    job: Job,
    found: Explanation,
    reliable: Explanation | None,
    typical: Sequence[Tensor | None],
    names: list[str],
    shown: list[int],
) -> list[dict[str, Any]]:
    if not shown:
        return []
    rows = torch.tensor(shown, device=found.target.device)
    near, far = (None if values is None else values[rows] for values in typical)
    return cards(
        found[rows],
        names=[names[n] for n in shown],
        classes=job.bundle.classes,
        typicality=near,
        reliable=None if reliable is None else reliable[rows],
        reliable_typicality=far,
        generator=job.bundle.generator,
    )


def _finish(job: Job, out: Path, pieces: Iterable[int]) -> None:
    """Makes the files of the whole from the records, one record in memory at a time."""

    def records() -> Iterator[dict[str, Any]]:
        for start in pieces:
            yield json.loads(_record(out, start).read_text())

    tally = _Tally()
    with atomic(out / "results.csv") as temporary, temporary.open("w", newline="") as file:
        table = csv.writer(file)
        for record in records():
            for row in record["rows"]:
                flat = _flat(row)
                if not tally.count:
                    table.writerow(flat)
                table.writerow(flat.values())
                tally.add(row)
    summary = tally.summary()
    training = job.bundle.training
    write_page(
        out / "index.html",
        (card for record in records() for card in record["cards"]),
        title=job.title,
        about=_about(job, summary),
        classes=job.bundle.classes,
        columns=_texts(training.get("columns")) if isinstance(job.images, Table) else (),
        std=_floats(training.get("spread")) if isinstance(job.images, Table) else (),
        table=tally.table(),
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
    with atomic(out / "summary.json") as temporary:
        temporary.write_text(json.dumps(summary, indent=1) + "\n")
    shutil.rmtree(out / "parts")
    for name in FOLDERS:
        if (out / name).is_dir() and not any((out / name).iterdir()):
            (out / name).rmdir()


class _Tally:
    """Counts as records go by."""

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
            for name in ("L1", "typicality", "queries", "milliseconds"):
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

    def table(self) -> list[list[str]]:
        kinds = [kind for kind in self.status if self.status[kind]]
        lines = [["", *kinds]]
        for status in ("reached", "not reached", "already there"):
            counts = [self.status[kind].get(status, 0) for kind in kinds]
            if any(counts):
                lines.append([status, *map(str, counts)])
        for name in ("L1", "typicality", "queries", "milliseconds"):
            if any(name in self.sums[kind] for kind in kinds):
                means = [self.sums[kind].get(name, [float("nan"), 1]) for kind in kinds]
                lines.append([f"mean {name}", *(f"{s / n:.3g}" for s, n in means)])
        return lines


def _flat(row: dict[str, Any]) -> dict[str, Any]:
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
        f"{summary['count']} counterfactuals of {job.bundle.classifier_name}, by the plan "
        f"{describe(job.plan)}.{few}{stretched}{kept}"
    )


def _bytes(tensor: Tensor) -> Any:  # noqa: ANN401 - an array of bytes
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()


def _texts(value: object) -> list[str]:
    return [str(v) for v in value] if isinstance(value, list) else []


def _floats(value: object) -> list[float]:
    return [float(v) for v in value] if isinstance(value, list) else []
