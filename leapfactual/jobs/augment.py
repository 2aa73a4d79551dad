"""Counterfactuals as training data: a data set of class folders, with a manifest.

A reliable counterfactual is an image of another class that keeps the rest of its original. Added
to the originals, such images make a weak classifier better, and rare classes less rare. Not every
counterfactual deserves that: what is not valid, not typical, or not agreed upon by other
classifiers can be left out. The manifest names all of them, with the reason where one is not kept.

Like every job, an augmentation resumes after a kill; see :mod:`leapfactual.jobs.job`.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..data import Images
from ..errors import InputError
from ..explanation import Explanation
from ..files import atomic, json_number
from ..imaging import to_pil, unstretch
from ..metrics import l1
from ..types import Classifier, no_op
from .job import JOB, RECORDS, Job, Pieces, begin, drop_damaged, write_json
from .progress import OnProgress
from .subject import Log

# Nothing but the counterfactuals themselves is kept of a piece, so it is the largest.
PAIRS_PER_PIECE = 512
MANIFEST, SUMMARY = "manifest.csv", "summary.json"
OWN_NAMES = (JOB, RECORDS, MANIFEST, SUMMARY)


@dataclass(frozen=True, eq=False)
class Filters:
    """The conditions under which a counterfactual is kept.

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

    def reasons(self, e: Explanation, typical: Tensor, agreed: Tensor) -> list[str]:
        """Returns why each counterfactual is not kept; nothing where it is.

        Arguments:
            e: The explanation.
            typical: The typicality of the counterfactuals, with shape ``(B,)``.
            agreed: How many oracles give them to the target class, with shape ``(B,)``.
        """
        reasons = []
        columns = e.valid.tolist(), typical.tolist(), agreed.tolist()
        for valid, percent, votes in zip(*columns, strict=True):
            if self.valid and not valid:
                reasons.append("not valid")
            elif self.typical and not percent >= self.typical:
                reasons.append("not typical")
            elif votes < len(self.oracles):
                reasons.append("not agreed")
            else:
                reasons.append("")
        return reasons


def augment_all(
    job: Job,
    out: str | Path,
    filters: Filters | None = None,
    on_progress: OnProgress = no_op,
    log: Log = no_op,
) -> dict[str, Any]:
    """Writes counterfactuals as a data set of class folders; resumes after an interruption.

    Beside the folders stand ``manifest.csv``, with a line for every counterfactual, kept or not,
    and ``summary.json``.

    Arguments:
        job: The job.
        out: The folder.
        filters: Which counterfactuals are kept. Defaults to the valid ones.
        on_progress: Called with how far it is, see :mod:`leapfactual.jobs.progress`.
        log: Called with a sentence about what is damaged.

    Returns:
        The summary: how many were made and kept, of each class, and why others were not.
    """
    out, filters = checks.path(out), filters or Filters()
    if not isinstance(job.images, Images):
        raise InputError("`augment` makes pictures, but these are rows of a table.")
    if not job.pairs:
        raise InputError("there is nothing to make. Check the images and the targets.")
    if filters.typical and not job.has_typicality:
        raise InputError(
            "this bundle has no scale of typicality. Make it with `leapfactual fit`, or leave "
            "`typical` out."
        )
    explainer = job.explainer()
    identity = {
        **job.to_json(),
        "kind": "augmentation",
        "valid": filters.valid,
        "typical": filters.typical,
        "oracles": [job.fingerprint_of(oracle) for oracle in filters.oracles],
    }
    pieces = Pieces(job, out, begin(out, identity, job.pairs_per_piece(PAIRS_PER_PIECE)))
    names = job.images.names
    drop_damaged(out / SUMMARY, log, ("made", "kept", "left out"))
    if (out / SUMMARY).exists():
        pieces.clear()
        summary: dict[str, Any] = json.loads((out / SUMMARY).read_text())
        return summary
    folders = [out / name for name in folder_names(job.bundle.classes)]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    for piece in pieces.pending("made", on_progress, log):
        x, target = piece.load()
        e = explainer.explain(x, target)
        rows = _rows(job, e, [names[row] for row, _ in piece.pairs], filters, piece.start)
        for n, row in enumerate(rows):
            if row["kept"]:
                image = unstretch(e.counterfactual[n], job.images.stretch)
                to_pil(image).save(folders[int(target[n])] / row["file"])
        with atomic(piece.record) as temporary:
            temporary.write_text(json.dumps({"rows": rows}))
    return _finish(job, out, folders, pieces)


def folder_names(classes: Sequence[str]) -> list[str]:
    """Returns a folder's name for each class, all different and none that a job uses itself.

    Example:
        >>> folder_names(["a/b", "a b", "..", "spiral"])
        ['a_b-0', 'a_b-1', 'class', 'spiral']
    """
    names = [re.sub(r"[^\w.-]+", "_", name).strip(".")[:80] or "class" for name in classes]
    # On some systems upper and lower case are the same.
    count = Counter(name.casefold() for name in (*names, *OWN_NAMES))
    chosen = [
        name if count[name.casefold()] == 1 else f"{name}-{n}" for n, name in enumerate(names)
    ]
    if len({name.casefold() for name in chosen}) < len(chosen):
        return [f"{name}-{n}" for n, name in enumerate(names)]
    return chosen


@torch.no_grad()
def _rows(
    job: Job, e: Explanation, names: Sequence[str], filters: Filters, start: int
) -> list[dict[str, Any]]:
    """Returns the manifest's lines for a piece."""
    classes, typical = job.bundle.classes, job.typicality(e)
    if typical is None:
        typical = torch.full_like(e.margin, torch.nan)
    agreed = torch.zeros_like(e.target)
    for oracle in filters.oracles:
        agreed += oracle(e.counterfactual).argmax(1).to(agreed.device) == e.target
    source, target, label = e.source.tolist(), e.target.tolist(), e.label.tolist()
    margin, distance, votes = e.margin.tolist(), l1(e).tolist(), agreed.tolist()
    status, percent = e.status, typical.tolist()
    reasons = filters.reasons(e, typical, agreed)
    rows = []
    for n, name in enumerate(names):
        stem = re.sub(r"[^\w.-]+", "_", Path(name).stem)[-40:]
        rows.append(
            {
                "file": f"{start + n:07d}-{stem}.png",
                "class": classes[target[n]],
                "image": name,
                "source": classes[source[n]],
                "label": classes[label[n]],
                "status": str(status[n]),
                "margin": margin[n],
                "L1": distance[n],
                "typicality": json_number(percent[n]),
                "agreed": votes[n],
                "kept": not reasons[n],
                "reason": reasons[n],
            }
        )
    return rows


def _finish(job: Job, out: Path, folders: Sequence[Path], pieces: Pieces) -> dict[str, Any]:
    """Makes the manifest of the records, one of them in memory at a time."""
    made = dict.fromkeys(job.bundle.classes, 0)
    kept = dict.fromkeys(job.bundle.classes, 0)
    left_out: dict[str, int] = {}
    with atomic(out / MANIFEST) as temporary, temporary.open("w", newline="") as file:
        table = csv.writer(file)
        for n, record in enumerate(pieces.records()):
            rows = json.loads(record.read_text())["rows"]
            if not n:
                table.writerow(rows[0])
            for row in rows:
                table.writerow(row.values())
                made[row["class"]] += 1
                kept[row["class"]] += row["kept"]
                if row["reason"]:
                    left_out[row["reason"]] = left_out.get(row["reason"], 0) + 1
    summary = {"made": made, "kept": kept, "left out": left_out}
    for folder in folders:
        if not any(folder.iterdir()):
            folder.rmdir()
    write_json(summary, out / SUMMARY)
    pieces.clear()
    return summary
