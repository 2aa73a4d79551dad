"""Standard metrics: functions of an explanation, each of which says which way is better."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from ..explanation import Explanation
from ..extras import require
from .morphology import morphometrics, relative_error

# Changes of less than a tenth of the range are hardly visible.
MIN_CHANGE = 0.1
# Bootstrap resamples, with which the standard error itself is known to about 5 %.
RESAMPLES = 200


@dataclass(frozen=True)
class Metric:
    """Creates a metric, for :func:`evaluate`.

    Arguments:
        name: What it is called.
        higher_is_better: Which way is better.
        function: Returns one value for each image, ``(B,)``, NaN for images that do not count;
            with a ``summary``, one row for each image.
        summary: Returns one value for all rows, where single images have none, as with AUC.

    Example:
        >>> brightness = Metric("brightness", True, lambda e: e.counterfactual.flatten(1).mean(1))
        >>> brightness.name
        'brightness'
    """

    name: str
    higher_is_better: bool
    function: Callable[[Explanation], Tensor]
    summary: Callable[[Tensor], Tensor] | None = None

    def mean(self, explanation: Explanation) -> float:
        """Returns the value for the whole explanation; :func:`evaluate` gives its error too."""
        values = self.function(explanation)
        return (values.nanmean() if self.summary is None else self.summary(values)).item()


@dataclass(frozen=True, eq=False)
class Score:
    """Result of a metric: mean, standard error, and the value of each image if it has one."""

    mean: float
    sem: float
    values: Tensor | None


def accuracy(e: Explanation) -> Tensor:
    """Whether the classifier gives the counterfactual to the target: the paper's ACC."""
    return e.valid.double()


def validity(e: Explanation) -> Tensor:
    """The same, counted only where the source was not the target already."""
    return e.valid.double().where(e.source != e.target, torch.nan)


def scored_targets(e: Explanation) -> Tensor:
    """The probabilities of the counterfactual, with its target as the last column."""
    return torch.cat([e.probabilities.double(), e.target[:, None].double()], dim=1)


def auroc(rows: Tensor) -> Tensor:
    """The area under the ROC curve with the targets as truth, one class against the others.

    It is the mean over the classes that are a target of some images and not of all.
    """
    functional = _torchmetrics("torchmetrics.functional.classification")
    probabilities, target = rows[:, :-1], rows[:, -1].long()
    classes = probabilities.shape[1]
    count = target.bincount(minlength=classes)
    both = (count > 0) & (count < len(target))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        area: Tensor = functional.multiclass_auroc(probabilities, target, classes, average=None)
    return area[both].mean()


def l1(e: Explanation, against: str = "reconstruction") -> Tensor:
    """The mean absolute difference of pixels, ``(B,)``; for rows, that of their latents."""
    return _difference(e, against).abs().mean(1)


def l2(e: Explanation, against: str = "reconstruction") -> Tensor:
    """The root mean square difference of pixels, ``(B,)``; for rows, that of latents."""
    return _difference(e, against).square().mean(1).sqrt()


def psnr(e: Explanation, against: str = "reconstruction") -> Tensor:
    """The peak signal-to-noise ratio, for a peak of 1, in decibels."""
    return -10 * _difference(e, against).square().mean(1).clamp_min(1e-12).log10()


def ssim(e: Explanation, against: str = "reconstruction") -> Tensor:
    """The structural similarity."""
    functional = _torchmetrics("torchmetrics.functional.image")
    values: Tensor = functional.structural_similarity_index_measure(
        e.counterfactual, getattr(e, against), data_range=1.0, reduction="none"
    )
    return values


def sparsity(e: Explanation) -> Tensor:
    """The share of pixels that change by more than a tenth."""
    return (_difference(e, "reconstruction").abs() > MIN_CHANGE).double().mean(1)


def _difference(e: Explanation, against: str) -> Tensor:
    if e.x.ndim != 4:
        return e.z_counterfactual - e.z
    other: Tensor = getattr(e, against)
    return torch.flatten(e.counterfactual - other, 1)


METRICS = {
    metric.name: metric
    for metric in (
        Metric("ACC", True, accuracy),
        Metric("AUC", True, scored_targets, auroc),
        Metric("validity", True, validity),
        Metric("margin", True, lambda e: e.margin),
        Metric("L1", False, l1),
        Metric("L1 to input", False, partial(l1, against="x")),
        Metric("L2", False, l2),
        Metric("L2 to input", False, partial(l2, against="x")),
        Metric("PSNR", True, psnr),
        Metric("PSNR to input", True, partial(psnr, against="x")),
        Metric("SSIM", True, ssim),
        Metric("SSIM to input", True, partial(ssim, against="x")),
        Metric("sparsity", False, sparsity),
        Metric("leaps", False, lambda e: e.leaps.double()),
        Metric("queries", False, lambda e: e.queries.double()),
        Metric("nfe", False, lambda e: e.nfe.double()),
        Metric("milliseconds", False, lambda e: 1000 * e.seconds.double()),
    )
}


def morphology_errors(
    e: Explanation, workers: int = 1, true: dict[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Returns the absolute relative error of each morphometric against the reconstruction.

    Arguments:
        e: The explanation.
        workers: How many processes share the work.
        true: The morphometrics of the reconstructions, where they are known already.
    """
    true = true or morphometrics(e.reconstruction.clamp(0, 1), workers)
    measured = morphometrics(e.counterfactual.clamp(0, 1), workers)
    return {f"D({name})": error for name, error in relative_error(measured, true).items()}


def evaluate(
    explanation: Explanation, metrics: Sequence[str | Metric] = ("validity", "L1"), seed: int = 0
) -> dict[str, Score]:
    """Returns the scores of an explanation, each with its standard error.

    For metrics with a ``summary``, such as AUC, the standard error is a bootstrap over images.

    Arguments:
        explanation: The explanation.
        metrics: Names of :data:`METRICS`, or metrics of your own.
        seed: The seed of the resampling.
    """
    scores = {}
    for chosen in metrics:
        metric = METRICS.get(chosen) if isinstance(chosen, str) else chosen
        if metric is None:
            raise InputError(f"`{chosen}` is not a metric: there are {', '.join(METRICS)}.")
        if metric.name in scores:
            raise InputError(
                f"there are two metrics called `{metric.name}`. Give one of them another name."
            )
        scores[metric.name] = score(metric, explanation, seed)
    return scores


def score(metric: Metric, explanation: Explanation, seed: int = 0) -> Score:
    """Returns the score of one metric."""
    return summarize(metric, metric.function(explanation), seed)


def summarize(metric: Metric, values: Tensor, seed: int = 0) -> Score:
    """Returns the score of a metric from the values of its function, which may come in pieces."""
    if metric.summary is not None:
        rng = torch.Generator().manual_seed(seed)
        n = len(values)
        if not n:
            return Score(float("nan"), float("nan"), None)
        draws = torch.stack(
            [
                metric.summary(values[torch.randint(n, (n,), generator=rng)])
                for _ in range(RESAMPLES)
            ]
        )
        return Score(metric.summary(values).item(), draws.double().std().item(), None)
    values = values.detach().double().cpu()
    counted = values[~values.isnan()]
    sem = counted.std().item() / len(counted) ** 0.5 if len(counted) > 1 else float("nan")
    return Score(counted.mean().item() if len(counted) else float("nan"), sem, values)


def require_torchmetrics() -> None:
    """Checks that torchmetrics is installed, before any work is done, and says how to get it."""
    _torchmetrics("torchmetrics")


def _torchmetrics(name: str) -> Any:  # noqa: ANN401 - a module
    return require(name, extra="metrics", subject="AUC and SSIM need")
