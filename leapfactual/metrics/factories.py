"""Factories of metrics that need a part: an oracle, features, a distance, a mask."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import checks, masks
from ..errors import InputError
from ..explainer import Explainer
from ..explanation import Explanation
from ..types import Classifier
from .distributions import Gaussian
from .standard import Metric

# Steps of the perturbation curves, each of 2 % of the pixels.
COUT_STEPS = 50
# LPIPS's networks pool away images that are smaller.
MIN_LPIPS_SIDE = 64


def oracle_validity(oracle: Classifier, name: str = "oracle", batch_size: int = 1024) -> Metric:
    """Returns oracle validity as a metric: whether an oracle sees the target class.

    An oracle is a second, independent classifier. As with validity, images whose source was the
    target already do not count.

    Arguments:
        oracle: The second classifier.
        name: What to call the metric.
        batch_size: How many images at a time.
    """

    def function(e: Explanation) -> Tensor:
        asked = partial(_ask, oracle, classes=e.probabilities.shape[1], name=name)
        label = _in_batches(asked, e.counterfactual, batch_size).argmax(1)
        agrees = label.to(e.target.device) == e.target
        return agrees.double().where(e.source != e.target, torch.nan)

    return Metric(name, True, function)


def cout(classifier: Classifier, name: str = "COUT", batch_size: int = 1024) -> Metric:
    """Returns the metric COUT: the difference of the areas under two perturbation curves.

    The pixels of the counterfactual are pasted into the reconstruction in 50 steps, those that
    change most first. Over the share of pixels that are pasted, the target's probability is one
    curve and the source's the other. The value is the area under the first minus that under the
    second, by the trapezoidal rule, between -1 and 1. Images whose source was the target already
    do not count.

    References:
        | Cycle-Consistent Counterfactuals by Latent Transformations (Khorram and Fuxin, 2022)
        | https://arxiv.org/abs/2203.15064

    Arguments:
        classifier: The classifier that was explained.
        name: What to call the metric.
        batch_size: How many images at a time.
    """

    def area(e: Explanation) -> Tensor:
        change = (e.counterfactual - e.reconstruction).abs().flatten(2).sum(1)
        rank = change.argsort(1, descending=True).argsort(1).view(len(e), 1, *e.x.shape[2:])
        rows = torch.arange(len(e), device=e.target.device)
        total = torch.zeros(len(e), device=e.target.device, dtype=torch.float64)
        for step in range(COUT_STEPS + 1):
            replaced = rank < change.shape[1] * step / COUT_STEPS
            x = torch.where(replaced, e.counterfactual, e.reconstruction)
            p = _ask(classifier, x, e.probabilities.shape[1], name).double().to(e.target.device)
            weight = 0.5 if step in (0, COUT_STEPS) else 1.0
            total += weight * (p[rows, e.target] - p[rows, e.source]) / COUT_STEPS
        return total.where(e.source != e.target, torch.nan)

    @torch.no_grad()
    def function(e: Explanation) -> Tensor:
        if e.x.ndim != 4:
            raise InputError("COUT pastes pixels: it is for images (B, C, H, W).")
        parts = range(0, len(e), batch_size)
        return torch.cat([area(e[first : first + batch_size]) for first in parts])

    return Metric(name, True, function)


def inside(mask: Tensor, name: str = "inside") -> Metric:
    """Returns the share of the change that is inside of a mask, as a metric.

    The change is that from the reconstruction. Images that did not change do not count.

    Arguments:
        mask: Where images are to change, as :class:`LeapFactual` takes it.
        name: What to call the metric.
    """

    def function(e: Explanation) -> Tensor:
        return masks.inside(e.reconstruction, e.counterfactual, mask).double()

    return Metric(name, True, function)


def perceptual(
    distance: Callable[[Tensor, Tensor], Tensor],
    against: str = "reconstruction",
    name: str | None = None,
    batch_size: int = 256,
) -> Metric:
    """Returns a distance between images, such as :class:`LPIPS`, as a metric.

    Images smaller than 64 pixels are enlarged to that.

    Arguments:
        distance: From two batches of images to one value for each pair.
        against: ``reconstruction``, or ``x`` for the input.
        name: What to call the metric. Defaults to LPIPS, or LPIPS to input.
        batch_size: How many pairs at a time.
    """
    if against not in ("reconstruction", "x"):
        raise InputError(f"`against` must be 'reconstruction' or 'x', got {against!r}.")

    @torch.no_grad()
    def function(e: Explanation) -> Tensor:
        if e.x.ndim != 4:
            raise InputError("a perceptual distance is for images (B, C, H, W), not for rows.")
        other: Tensor = getattr(e, against)
        pairs = zip(
            torch.split(e.counterfactual, batch_size), torch.split(other, batch_size), strict=True
        )
        return torch.cat([distance(_enlarge(a), _enlarge(b)) for a, b in pairs]).double()

    return Metric(name or ("LPIPS" if against != "x" else "LPIPS to input"), False, function)


def _enlarge(x: Tensor) -> Tensor:
    x = x.clamp(0, 1)
    if min(x.shape[2:]) >= MIN_LPIPS_SIDE:
        return x
    scale = MIN_LPIPS_SIDE / min(x.shape[2:])
    size = [round(scale * n) for n in x.shape[2:]]
    return F.interpolate(x, size, mode="bilinear", align_corners=False)


def realism(
    features: Callable[[Tensor], Tensor],
    images: Tensor,
    name: str = "Fréchet",
    batch_size: int = 1024,
) -> Metric:
    """Returns the Fréchet distance of counterfactuals to real images, in features, as a metric.

    Only valid counterfactuals count, with their pixels clamped to [0, 1]. :func:`split_half` says
    what the distance would be if they were real images.

    Arguments:
        features: A network from images to features ``(B, F)``, such as
            :class:`EfficientNetLite0`. Report which one: with InceptionV3 the distance is the FID,
            and values of different networks cannot be compared.
        images: Real images to compare with.
        name: What to call the metric.
        batch_size: How many images at a time.
    """
    real = Gaussian.of(_in_batches(features, images, batch_size))

    def function(e: Explanation) -> Tensor:
        x = e.counterfactual[e.valid]
        return _in_batches(features, x.clamp(0, 1) if x.ndim == 4 else x, batch_size).double()

    return Metric(name, False, function, lambda rows: real.distance(Gaussian.of(rows)))


def diversity(
    explanations: Sequence[Explanation],
    distance: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Tensor:
    """Returns the mean distance between several counterfactuals of each image, ``(B,)``.

    Arguments:
        explanations: Explanations of the same images for the same targets, such as those of
            several plans, or what :meth:`leapfactual.alternatives.Alternatives.each` gives.
        distance: From two batches of images to one value for each pair, such as :class:`LPIPS`;
            Defaults to L1: of pixels, or of latents for rows.
    """
    if len(explanations) < 2:
        raise InputError(
            f"diversity compares at least two explanations, got {len(explanations)}. Explain the "
            "same images with another plan too."
        )
    latents = distance is None and explanations[0].x.ndim != 4
    points = [e.z_counterfactual if latents else e.counterfactual for e in explanations]
    pairs = combinations(points, 2)
    return torch.stack([(distance or _mean_absolute)(a, b) for a, b in pairs]).mean(0)


def stability(
    explainer: Explainer,
    explanation: Explanation,
    distance: Callable[[Tensor, Tensor], Tensor],
    noise: float = 0.02,
    seed: int = 0,
) -> Tensor:
    """Returns how far counterfactuals move when noise is added to the images, ``(B,)``.

    Arguments:
        explainer: The explainer that made the explanation.
        explanation: The explanation.
        distance: From two batches of images to one value for each pair.
        noise: The standard deviation of the noise, for images in [0, 1].
        seed: The seed of the noise.
    """
    rng = torch.Generator().manual_seed(seed)
    x = explanation.x
    shift = noise * torch.randn(x.shape, generator=rng, dtype=x.dtype)
    noisy = x + shift.to(x.device)
    again = explainer.explain(noisy.clamp(0, 1) if x.ndim == 4 else noisy, explanation.target)
    return distance(explanation.counterfactual, again.counterfactual)


def _mean_absolute(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).abs().flatten(1).mean(1)


@torch.no_grad()
def _ask(classifier: Classifier, x: Tensor, classes: int, name: str) -> Tensor:
    """Returns what a classifier says of images, checked."""
    p = classifier(x)
    checks.probabilities(p, len(x), classes, f"what {name} answers")
    return p


def _in_batches(function: Callable[[Tensor], Tensor], x: Tensor, batch_size: int) -> Tensor:
    return torch.cat([function(part) for part in torch.split(x, batch_size)])
