"""Counterfactuals as training data: a data set of class folders, with a manifest.

A reliable counterfactual is an image of another class that keeps the rest of its original. Added
to the originals, such images make a weak classifier better, and rare classes less rare. Not every
counterfactual deserves that: what is not valid, not typical, or not agreed upon by other
classifiers can be left out. The manifest names all of them, with the reason where one is not kept.

Work is done in pieces, as in :mod:`leapfactual.jobs.explain`: memory stays flat, a kill costs
little, and the same call goes on.
"""

import csv
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..data import Images
from ..errors import InputError
from ..explanation import Explanation
from ..files import atomic
from ..imaging import to_pil, unstretch
from ..metrics import l1
from ..types import Classifier, silent
from .explain import Job, begin, typical_of

PIECE = 512
MANIFEST, SUMMARY = "manifest.csv", "summary.json"


@dataclass(frozen=True, eq=False)
class Filters:
    """Says which counterfactuals are kept.

    Arguments:
        valid: Only those that the explained classifier gives to the target class.
        typical: Only those at least that typical of their class, in percent of its own images.
        oracles: Only those that each of these classifiers gives to the target class.
    """

    valid: bool = True
    typical: float = 0.0
    oracles: Sequence[Classifier] = ()

    def __post_init__(self) -> None:
        if not 0 <= checks.number(self.typical, "typical") <= 100:
            raise InputError(f"`typical` must be in percent, 0 to 100, got {self.typical!r}.")

    def config(self) -> dict[str, object]:
        """Returns what they are, as values that JSON can hold."""
        return {"valid": self.valid, "typical": self.typical, "oracles": len(self.oracles)}


def rare_classes(sources: Sequence[int], classes: int) -> list[int]:
    """Returns the classes that have fewer images than an equal share.

    Example:
        >>> rare_classes([0, 0, 0, 0, 1, 2, 2, 2], classes=3)
        [1]
    """
    counts = Counter(sources)
    return [k for k in range(classes) if counts[k] < len(sources) / classes]


def chosen_pairs(
    sources: Sequence[int],
    targets: Sequence[int],
    *,
    share: float = 1.0,
    seed: int = 0,
) -> list[tuple[int, int]]:
    """Pairs every image with every target that it is not, and draws a share of the pairs.

    Example:
        >>> chosen_pairs([0, 1], targets=[0, 1, 2])
        [(0, 1), (0, 2), (1, 0), (1, 2)]
    """
    if not 0 < checks.number(share, "share") <= 1:
        raise InputError(f"`share` must be above 0 and up to 1, got {share!r}.")
    pairs = [(row, k) for row, source in enumerate(sources) for k in targets if k != source]
    if share == 1:
        return pairs
    random = torch.Generator().manual_seed(seed)
    kept = torch.randperm(len(pairs), generator=random)[: max(1, round(share * len(pairs)))]
    return [pairs[n] for n in kept.sort().values.tolist()]


def augment_all(
    job: Job,
    out: str | Path,
    filters: Filters | None = None,
    progress: Callable[[float, str], object] = silent,
) -> dict[str, Any]:
    """Writes counterfactuals as a data set of class folders; goes on after an interruption.

    Beside the folders stand ``manifest.csv``, with a line for every counterfactual, kept or not,
    and ``summary.json``.

    Arguments:
        job: What to make: bundle, classifier, images, pairs and plan.
        out: The folder.
        filters: Which counterfactuals are kept; the valid ones when not given.
        progress: Is told the share that is done and what is going on.

    Returns:
        What the summary holds: how many were made and kept, of each class, and why others were
        not.
    """
    out, filters = Path(out), filters or Filters()
    if not isinstance(job.images, Images):
        raise InputError("`augment` makes pictures, but these are rows of a table.")
    if not job.pairs:
        raise InputError("there is nothing to make. Check the images and the targets.")
    untold = job.bundle.flow.quantiles.isnan().all()
    if filters.typical and untold:
        raise InputError(
            "this bundle has no scale of typicality. Make it with `leapfactual fit`, or leave "
            "`typical` out."
        )
    explainer = job.explainer()
    begin(out, {**job.describe(), "kind": "augmentation", **filters.config()})
    if (out / SUMMARY).exists():
        summary: dict[str, Any] = json.loads((out / SUMMARY).read_text())
        return summary
    folders = _folders(job.bundle.classes)
    for folder in (*folders, "parts"):
        (out / folder).mkdir(exist_ok=True)
    starts, called = range(0, len(job.pairs), PIECE), job.images.names
    for start in starts:
        record = out / "parts" / f"{start:08d}.json"
        if not record.exists():
            x, target = job.piece(start, PIECE)
            found = explainer.explain(x, target)
            names = [called[row] for row, _ in job.pairs[start : start + PIECE]]
            rows = _filtered(job, found, names, filters, start)
            for n, row in enumerate(rows):
                if row["kept"]:
                    image = unstretch(found.counterfactual[n], job.images.stretch)
                    to_pil(image).save(out / folders[int(target[n])] / row["file"])
            with atomic(record) as temporary:
                temporary.write_text(json.dumps(rows))
        done = min(start + PIECE, len(job.pairs))
        progress(done / len(job.pairs), f"made {done} of {len(job.pairs)}")
    return _finish(out, starts, job.bundle.classes)


def _folders(classes: Sequence[str]) -> list[str]:
    """Returns a folder's name for each class, all different."""
    names = [re.sub(r"[^\w.-]+", "_", name).strip(".")[:80] or "class" for name in classes]
    return [name if names.count(name) == 1 else f"{name}-{n}" for n, name in enumerate(names)]


@torch.no_grad()
def _filtered(
    job: Job, e: Explanation, names: Sequence[str], filters: Filters, start: int
) -> list[dict[str, Any]]:
    """Returns the manifest's lines for a piece."""
    classes, typical = job.bundle.classes, typical_of(job, e)
    if typical is None:
        typical = torch.full_like(e.margin, torch.nan)
    agreed = torch.zeros_like(e.target)
    for oracle in filters.oracles:
        agreed += oracle(e.counterfactual).argmax(1).to(agreed.device) == e.target
    columns = [
        e.source.tolist(),
        e.target.tolist(),
        e.label.tolist(),
        e.status,
        e.margin.tolist(),
        l1(e).tolist(),
        typical.tolist(),
        agreed.tolist(),
        _reasons(e, typical, agreed, filters),
    ]
    rows = []
    for n, (source, target, label, status, margin, distance, percent, votes, why) in enumerate(
        zip(*columns, strict=True)
    ):
        stem = re.sub(r"[^\w.-]+", "_", Path(names[n]).stem)[-40:]
        rows.append(
            {
                "file": f"{start + n:07d}-{stem}.png",
                "class": classes[target],
                "image": names[n],
                "source": classes[source],
                "label": classes[label],
                "status": str(status),
                "margin": margin,
                "L1": distance,
                "typicality": None if percent != percent else percent,
                "agreed": votes,
                "kept": not why,
                "why": why,
            }
        )
    return rows


def _reasons(e: Explanation, typical: Tensor, agreed: Tensor, filters: Filters) -> list[str]:
    """Says for each counterfactual why it is not kept; nothing where it is."""
    found = []
    for valid, percent, votes in zip(
        e.valid.tolist(), typical.tolist(), agreed.tolist(), strict=True
    ):
        if filters.valid and not valid:
            found.append("not valid")
        elif filters.typical and not percent >= filters.typical:
            found.append("not typical")
        elif votes < len(filters.oracles):
            found.append("not agreed")
        else:
            found.append("")
    return found


def _finish(out: Path, starts: Sequence[int], classes: Sequence[str]) -> dict[str, Any]:
    """Makes the manifest of the records, one of them in memory at a time."""
    made = dict.fromkeys(classes, 0)
    kept = dict.fromkeys(classes, 0)
    left_out: dict[str, int] = {}
    with atomic(out / MANIFEST) as temporary, temporary.open("w", newline="") as file:
        table = csv.writer(file)
        for start in starts:
            rows = json.loads((out / "parts" / f"{start:08d}.json").read_text())
            if not start:
                table.writerow(rows[0])
            for row in rows:
                table.writerow(row.values())
                made[row["class"]] += 1
                kept[row["class"]] += row["kept"]
                if row["why"]:
                    left_out[row["why"]] = left_out.get(row["why"], 0) + 1
    summary = {"made": made, "kept": kept, "left out": left_out}
    for folder in _folders(classes):
        if not any((out / folder).iterdir()):
            (out / folder).rmdir()
    with atomic(out / SUMMARY) as temporary:
        temporary.write_text(json.dumps(summary, indent=1) + "\n")
    shutil.rmtree(out / "parts")
    return summary
