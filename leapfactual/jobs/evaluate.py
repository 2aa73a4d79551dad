"""Measuring a bundle on many images: every metric with its error, and each pair of classes.

Only what the metrics need of each image is kept, not the images. Like every job, an evaluation
resumes after a kill; see :mod:`leapfactual.jobs.job`.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from .. import checks
from ..errors import InputError
from ..explanation import Explanation
from ..extras import left_out
from ..files import atomic, json_number, read_safetensors, write_safetensors
from ..metrics import METRICS, Metric, Score, oracle_validity
from ..metrics.standard import summarize
from ..types import Classifier, no_op
from .job import Job, Pieces, begin, typicality
from .progress import OnProgress
from .subject import Log

# One number for each image and metric is kept, so a piece may be larger than one with paths.
PAIRS_PER_PIECE = 256
RECORD_FORMAT = "leapfactual pieces 1"
FOR_IMAGES = ("PSNR", "SSIM")
BY_TORCHMETRICS = ("AUC", "SSIM")


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The scores of a bundle on some images.

    Arguments:
        scores: The score of each metric.
        higher: Which way is better, by metric.
        validity: The share of images of each class (row) that reach each target (column), with
            shape ``(K, K)``; NaN where there were none.
        distance: Their mean L1 distance.
        count: How many there were.
        classes: The names of the classes.
    """

    scores: dict[str, Score]
    higher: dict[str, bool]
    validity: Tensor
    distance: Tensor
    count: Tensor
    classes: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Returns the numbers, as values that JSON can hold."""
        return {
            "metrics": {
                name: {
                    "mean": json_number(score.mean),
                    "sem": json_number(score.sem),
                    "higher is better": self.higher[name],
                }
                for name, score in self.scores.items()
            },
            "classes": list(self.classes),
            "validity": _table(self.validity),
            "L1": _table(self.distance),
            "count": self.count.long().tolist(),
        }

    def markdown(self) -> str:
        """Returns the same as tables to read."""
        lines = ["| metric | value | better |", "|---|---|---|"]
        for name, score in self.scores.items():
            way = "higher" if self.higher[name] else "lower"
            lines.append(f"| {name} | {score.mean:.4f} ± {score.sem:.4f} | {way} |")
        for title, table in (("validity", self.validity), ("L1", self.distance)):
            lines += ["", f"{title}, from each class (row) to each target (column):", ""]
            lines += [f"| | {' | '.join(self.classes)} |", "|---" * (len(table) + 1) + "|"]
            for name, row in zip(self.classes, table.tolist(), strict=True):
                cells = " | ".join("" if math.isnan(v) else f"{v:.3f}" for v in row)
                lines.append(f"| {name} | {cells} |")
        return "\n".join(lines)


def evaluate_all(
    job: Job,
    out: str | Path,
    *,
    oracle: Classifier | None = None,
    seed: int = 0,
    log: Log = no_op,
    on_progress: OnProgress = no_op,
) -> Evaluation:
    """Explains every pair and measures it; writes ``evaluation.json`` and ``evaluation.md``.

    Arguments:
        job: The job.
        out: The folder.
        oracle: A second, independent classifier, for the oracle validity.
        seed: The seed of the resampling that gives the error of AUC.
        log: Called with a sentence about metrics that are left out.
        on_progress: Called with how far it is, see :mod:`leapfactual.jobs.progress`.
    """
    out = checks.path(out)
    if not job.pairs:
        raise InputError("there is nothing to measure. Check the images and the targets.")
    metrics = _metrics(job, oracle, log)
    explainer = job.explainer()
    known = None if oracle is None else job.fingerprint_of(oracle)
    identity = {**job.to_json(), "kind": "evaluation", "oracle": known}
    size = begin(out, identity, job.pairs_per_piece(PAIRS_PER_PIECE))
    pieces = Pieces(job, out, size, ".safetensors")
    for piece in pieces.pending("explained", on_progress, log):
        values = _values(metrics, explainer.explain(*piece.load()))
        write_safetensors(values, piece.record, {"format": RECORD_FORMAT})
    records = [read_safetensors(path, RECORD_FORMAT, "Delete it.")[1] for path in pieces.records()]
    values = {name: torch.cat([record[name] for record in records]) for name in records[0]}
    result = _summarize(job, metrics, values, seed)
    for name, text in (
        ("evaluation.json", json.dumps(result.to_json(), indent=1, allow_nan=False)),
        ("evaluation.md", result.markdown()),
    ):
        with atomic(out / name) as temporary:
            temporary.write_text(text + "\n")
    pieces.clear()
    return result


def _metrics(job: Job, oracle: Classifier | None, log: Log) -> list[Metric]:
    """Returns the metrics that can be had here: some need torchmetrics, some images."""
    chosen = [m for m in METRICS.values() if job.bundle.probes.ndim == 4 or _for_rows(m)]
    if find_spec("torchmetrics") is None:
        missing = [m for m in chosen if m.name.startswith(BY_TORCHMETRICS)]
        chosen = [m for m in chosen if m not in missing]
        log(left_out(f"Some metrics ({', '.join(m.name for m in missing)})", "metrics"))
    if job.has_typicality:
        flow, generator = job.bundle.flow, job.bundle.generator
        chosen.append(
            Metric(
                "typicality",
                True,
                lambda e: typicality(generator, flow, e.counterfactual, e.target).double(),
            )
        )
    return [*chosen, oracle_validity(oracle)] if oracle is not None else chosen


def _for_rows(metric: Metric) -> bool:
    return metric.name not in FOR_IMAGES and not metric.name.endswith("to input")


def _values(metrics: Sequence[Metric], e: Explanation) -> dict[str, Tensor]:
    values = {metric.name: metric.function(e).cpu() for metric in metrics}
    return {**values, "source": e.source.cpu(), "target": e.target.cpu()}


def _summarize(
    job: Job, metrics: Sequence[Metric], values: dict[str, Tensor], seed: int
) -> Evaluation:
    """Makes scores of the values of all images, and tables by source and target."""
    k = len(job.bundle.classes)
    pair = values["source"] * k + values["target"]
    count = pair.bincount(minlength=k * k).double()
    tables = [
        pair.bincount(values[name].double(), minlength=k * k) / count for name in ("ACC", "L1")
    ]
    scores = {metric.name: summarize(metric, values[metric.name], seed) for metric in metrics}
    return Evaluation(
        scores,
        {metric.name: metric.higher_is_better for metric in metrics},
        tables[0].reshape(k, k),
        tables[1].reshape(k, k),
        count.reshape(k, k),
        job.bundle.classes,
    )


def _table(values: Tensor) -> list[list[float | None]]:
    return [[json_number(v) for v in row] for row in values.tolist()]
