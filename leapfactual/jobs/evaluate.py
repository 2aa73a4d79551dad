"""Measuring a bundle on many images: every metric with its error, and each pair of classes.

Only what the metrics need of each image is kept, not the images. As in :mod:`explaining`, pieces
that are done are on disk, and a killed evaluation goes on.
"""

import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..explanation import Explanation
from ..files import atomic, read_safetensors, write_safetensors
from ..metrics import METRICS, Metric, Score, oracle_validity
from ..metrics.standard import summarize
from ..types import Classifier, silent
from .explain import Job, begin
from .job import typicality

PIECE = 256
FORMAT = "leapfactual pieces 1"
FOR_IMAGES = ("PSNR", "SSIM")


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Is what was measured.

    Arguments:
        scores: The score of each metric.
        higher: Which way is better, by metric.
        validity: The share of images of each class (row) that reach each target (column), with
            shape ``(K, K)``; NaN where there were none.
        distance: Their mean L1 distance.
        count: How many there were.
        classes: What the classes are called.
    """

    scores: dict[str, Score]
    higher: dict[str, bool]
    validity: Tensor
    distance: Tensor
    count: Tensor
    classes: tuple[str, ...]

    def record(self) -> dict[str, object]:
        """Returns the numbers, as values that JSON can hold."""
        return {
            "metrics": {
                name: {
                    "mean": _plain(score.mean),
                    "sem": _plain(score.sem),
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


def random_pairs(sources: Sequence[int], classes: int, seed: int) -> list[tuple[int, int]]:
    """Pairs every image with one other class, drawn at random."""
    rng = torch.Generator().manual_seed(seed)
    shift = torch.randint(1, classes, (len(sources),), generator=rng).tolist()
    return [
        (row, (source + by) % classes)
        for row, (source, by) in enumerate(zip(sources, shift, strict=True))
    ]


def evaluate_all(
    job: Job,
    out: str | Path,
    *,
    oracle: Classifier | None = None,
    seed: int = 0,
    progress: Callable[[float, str], object] = silent,
) -> Evaluation:
    """Explains every pair and measures it; writes ``evaluation.json`` and ``evaluation.md``.

    Arguments:
        job: What to explain.
        out: The folder.
        oracle: A second classifier, for the agreement of an oracle.
        seed: The seed of the resampling that gives the error of AUC.
        progress: Is told the share that is done and what is going on.
    """
    out = Path(out)
    metrics = _metrics(job, oracle)
    explainer = job.explainer()
    begin(out, {**job.describe(), "kind": "evaluation", "oracle": oracle is not None})
    (out / "parts").mkdir(exist_ok=True)
    starts = range(0, len(job.pairs), PIECE)
    for start in starts:
        path = out / "parts" / f"{start:08d}.safetensors"
        if not path.exists():
            x, target = job.piece(start, PIECE)
            write_safetensors(
                _values(metrics, explainer.explain(x, target)), path, {"format": FORMAT}
            )
        done = min(start + PIECE, len(job.pairs))
        progress(done / len(job.pairs), f"explained {done} of {len(job.pairs)}")
    pieces = [
        read_safetensors(out / "parts" / f"{s:08d}.safetensors", FORMAT, "Delete it.")[1]
        for s in starts
    ]
    values = {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}
    found = _evaluation(job, metrics, values, seed)
    for name, text in (
        ("evaluation.json", json.dumps(found.record(), indent=1, allow_nan=False)),
        ("evaluation.md", found.markdown()),
    ):
        with atomic(out / name) as temporary:
            temporary.write_text(text + "\n")
    shutil.rmtree(out / "parts")
    return found


def _metrics(job: Job, oracle: Classifier | None) -> list[Metric]:
    """Returns the metrics that can be had here: some need torchmetrics, some images."""
    chosen = [m for m in METRICS.values() if job.bundle.probes.ndim == 4 or _for_rows(m)]
    try:
        import torchmetrics  # noqa: F401
    except ImportError:
        chosen = [m for m in chosen if m.name != "AUC" and not m.name.startswith("SSIM")]
    flow, generator = job.bundle.flow, job.bundle.generator
    if not flow.quantiles.isnan().all():
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
    found = {metric.name: metric.function(e).cpu() for metric in metrics}
    return {**found, "source": e.source.cpu(), "target": e.target.cpu()}


def _evaluation(
    job: Job, metrics: Sequence[Metric], values: dict[str, Tensor], seed: int
) -> Evaluation:
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


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else value


def _table(values: Tensor) -> list[list[float | None]]:
    return [[_plain(v) for v in row] for row in values.tolist()]
