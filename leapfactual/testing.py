r"""Exact answers, and contracts for parts that people bring.

**The Gaussian oracle.** Let the latents of class :math:`k` be :math:`\mathcal{N}(\mu_k, s^2 I)`
and the base :math:`\mathcal{N}(0, I)`. On the straight path between the two the state at time
:math:`t` is Gaussian with variance :math:`\sigma_t^2 = t^2 s^2 + (1 - t)^2`, and regression on
:math:`z_1 - z_0` gives

.. math:: v(t, z, k) = \mu_k + \frac{t s^2 - (1 - t)}{\sigma_t^2} (z - t \mu_k) .

This is linear in :math:`z`, so transports with any step size have a closed form, and with them the
whole leap from class :math:`a` to class :math:`b`:

.. math::
    \text{leap}(z) &= s^{d - \ell} \, (z - \ell K(\ell) \mu_a) + d K(d) \mu_b , \\
    K(\gamma) &= s^\gamma \int_0^1 \sigma_t^{-\gamma}
        \left(1 - t \, \frac{t s^2 - (1 - t)}{\sigma_t^2}\right) dt , \qquad K(1) = 1 .

A wrong sign, a swapped direction or a forgotten step size does not survive a comparison with it.

**The contracts** are functions that raise :class:`~leapfactual.errors.ContractError` with the
reason. Run them on your own generator, classifier or explainer.
"""

import math
from collections.abc import Callable
from typing import cast

import numpy as np
import torch
from torch import Tensor

from . import checks
from .errors import ContractError, InputError
from .explainer import Explainer
from .explanation import Explanation
from .fields import VelocityField, expand_time
from .flow import Flow
from .solvers import RK4, Solver
from .types import Classifier, Generator


class GaussianField(VelocityField):
    """The exact velocity between the base and Gaussian classes."""

    means: Tensor

    def __init__(self, means: Tensor, scale: float) -> None:
        super().__init__(means.shape[1], means.shape[0])
        self.register_buffer("means", means)
        self.scale = scale

    def forward(self, t: Tensor, z: Tensor, c: Tensor) -> Tensor:
        """See :meth:`VelocityField.forward`."""
        t, mu, s2 = expand_time(t, z), c @ self.means, self.scale**2
        variance = t**2 * s2 + (1 - t) ** 2
        return mu + (t * s2 - (1 - t)) / variance * (z - t * mu)

    def config(self) -> dict[str, object]:
        """See :meth:`VelocityField.config`."""
        return {"means": self.means.tolist(), "scale": self.scale}


class GaussianOracle:
    """Creates an oracle: all about classes whose latents are Gaussian, of one common scale.

    Arguments:
        means: The classes' means, with shape ``(K, D)``.
        scale: Their standard deviation.

    Example:
        >>> oracle = GaussianOracle(torch.tensor([[-1.0], [1.0]]), scale=0.5)
        >>> oracle.leap(torch.zeros(1, 1), torch.tensor([0]), torch.tensor([1]), lift=1, land=1)
        tensor([[2.]])
    """

    def __init__(self, means: Tensor, scale: float) -> None:
        if means.ndim != 2 or not means.is_floating_point():
            raise InputError(
                f"`means` must have shape (K, D), got {checks.shape(means)} {means.dtype}."
            )
        if not scale > 0:
            raise InputError(f"`scale` must be positive, got {scale!r}.")
        self.means, self.scale = means, scale

    def __repr__(self) -> str:
        classes, features = self.means.shape
        return f"GaussianOracle({classes} classes, {features} features, scale={self.scale:g})"

    def flow(self, solver: Solver = RK4(10)) -> Flow:  # noqa: B008 - frozen
        """Returns the flow with the exact velocity."""
        return Flow(GaussianField(self.means, self.scale), solver).to(self.means.dtype)

    def shift(self, gamma: float) -> float:
        r"""Returns :math:`K(\gamma)`, by Gauss-Legendre quadrature."""
        nodes, weights = np.polynomial.legendre.leggauss(200)
        t, s2 = (nodes + 1) / 2, self.scale**2
        variance = t**2 * s2 + (1 - t) ** 2
        integrand = variance ** (-gamma / 2) * (1 - t * (t * s2 - (1 - t)) / variance)
        return float(self.scale**gamma * (weights * integrand).sum() / 2)

    def leap(
        self,
        z: Tensor,
        y: Tensor,
        y_target: Tensor,
        *,
        lift: float,
        land: float,
        guidance: float = 1.0,
    ) -> Tensor:
        r"""Returns the exact leap of ``z`` from the classes ``y`` ``(B,)`` to ``y_target``.

        The velocity is linear in the mean of the class, so that guidance from the classes ``y``
        lands on a class whose mean is :math:`\mu_s + w \, (\mu_t - \mu_s)`.
        """
        mean = torch.lerp(self.means[y], self.means[y_target], guidance)
        out = lift * self.shift(lift) * self.means[y]
        into = land * self.shift(land) * mean
        kept: float = self.scale ** (land - lift)
        return kept * (z - out) + into

    def log_prob(self, z: Tensor, y: Tensor) -> Tensor:
        """Returns the exact log density of ``z`` in the classes ``y``."""
        u = (z - self.means[y]) / self.scale
        return -0.5 * u.square().sum(1) - z.shape[1] * math.log(
            self.scale * math.sqrt(2 * math.pi)
        )

    def classifier(self, z: Tensor) -> Tensor:
        """Returns the exact class probabilities of ``z``, all classes being equally frequent."""
        squares = (z[:, None] - self.means.to(z)).square().sum(2)
        return (-0.5 * squares / self.scale**2).softmax(1)

    def sample(self, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Returns ``n`` latents of every class, and their classes."""
        rng = torch.Generator().manual_seed(seed)
        y = torch.arange(len(self.means)).repeat_interleave(n)
        noise = torch.randn(len(y), self.means.shape[1], generator=rng, dtype=self.means.dtype)
        return self.means[y] + self.scale * noise, y


@torch.no_grad()
def check_generator(generator: Generator, x: Tensor, tolerance: float = 1e-4) -> None:
    """Checks that a generator keeps its contract on some images.

    Latents are finite rows of one length, images come back in the shape and range that went in,
    rows do not depend on their batch-mates, nothing is random, and the input is left alone.

    Arguments:
        generator: The generator.
        x: At least two images.
        tolerance: By how much a row may differ when it is computed alone.
    """
    checks.images(x)
    if len(x) < 2:
        raise InputError(
            f"`x` must hold at least two images to check a generator with, got {len(x)}."
        )
    before = x.clone()
    z = generator.encode(x)
    _must(isinstance(z, Tensor), f"encode must give a tensor; got {type(z).__name__}")
    _must(
        z.ndim == 2 and len(z) == len(x),
        f"encode must give one row per image, (B, D); got {checks.shape(z)}",
    )
    _must(bool(torch.isfinite(z).all()), "encode gave NaN or infinite latents")
    image = generator.decode(z)
    _must(isinstance(image, Tensor), f"decode must give a tensor; got {type(image).__name__}")
    _must(
        image.shape == x.shape,
        f"decode must give {checks.shape(x)} back; got {checks.shape(image)}",
    )
    _must(bool(torch.isfinite(image).all()), "decode gave NaN or infinite values")
    if x.ndim == 4:
        low, high = image.min().item(), image.max().item()
        _must(
            low >= 0 and high <= 1,
            f"decode must give images in [0, 1]; got [{low:.2f}, {high:.2f}]",
        )
    _must(bool(torch.equal(x, before)), "encode or decode changed its input")
    _same("encode", z, generator.encode, x, tolerance)
    _same("decode", image, generator.decode, z, tolerance)


@torch.no_grad()
def check_classifier(
    classifier: Classifier, x: Tensor, classes: int, tolerance: float = 1e-4
) -> None:
    """Checks that a classifier keeps its contract on some images.

    Answers are rows on the simplex, one per image, and do not depend on batch-mates or on chance.

    Arguments:
        classifier: The classifier.
        x: At least two images.
        classes: The number of classes K.
        tolerance: By how much a row may differ when it is computed alone.
    """
    checks.images(x)
    if len(x) < 2:
        raise InputError(
            f"`x` must hold at least two images to check a classifier with, got {len(x)}."
        )
    before = x.clone()
    p = classifier(x)
    try:
        checks.probabilities(p, len(x), classes, "the classifier's answer")
    except InputError as error:
        raise ContractError(str(error)) from error
    _must(bool(torch.equal(x, before)), "the classifier changed its input")
    _same("the classifier", p, classifier, x, tolerance)


def check_explainer(
    explainer: Explainer, x: Tensor, target: int | Tensor, tolerance: float = 1e-4
) -> None:
    """Checks that an explainer keeps its contract on some images.

    The result speaks of the images that went in, validity is what the label says, an image's
    result depends neither on its batch-mates nor on their order, and the input is left alone.

    Arguments:
        explainer: The explainer.
        x: At least two images.
        target: One target class, or one per image.
        tolerance: By how much a latent may differ when it is computed alone.
    """
    if len(x) < 2:
        raise InputError(
            f"`x` must hold at least two images to check an explainer with, got {len(x)}."
        )
    target = torch.as_tensor(target, device=x.device).expand(len(x))
    before = x.clone()
    whole = explainer.explain(x, target)
    _must(torch.equal(x, before), "explain changed its input")
    _must(len(whole) == len(x), f"explain gave {len(whole)} results for {len(x)} images")
    _must(
        torch.equal(whole.x.cpu(), x.cpu()),
        "the explanation does not speak of the images that went in",
    )
    _must(
        torch.equal(whole.target.cpu(), target.cpu()),
        "the explanation has other targets than were asked for",
    )
    _must(
        whole.counterfactual.shape == whole.reconstruction.shape,
        "counterfactual and reconstruction differ in shape",
    )
    label = whole.probabilities.argmax(1)
    _must(torch.equal(label, whole.label), "label is not where the probabilities are largest")
    _must(bool((whole.leaps >= 0).all()), "leaps must not be negative")
    _must(bool((whole.queries >= 1).all()), "every image must have been queried")

    order = torch.arange(len(x) - 1, -1, -1, device=x.device)
    _equal_explanations(
        "their order", whole[order], explainer.explain(x[order], target[order]), tolerance
    )
    alone = explainer.explain(x[:1], target[:1])
    _equal_explanations("batch-mates", whole[0], alone, tolerance)


def _equal_explanations(what: str, a: Explanation, b: Explanation, tolerance: float) -> None:
    gap = (a.z_counterfactual - b.z_counterfactual).abs().max().item()
    _must(
        gap <= tolerance,
        f"results depend on {what}: latents differ by {gap:.2g}, allowed {tolerance:.2g}",
    )
    for name in ("source", "target", "label", "first", "leaps"):
        same = torch.equal(cast(Tensor, getattr(a, name)), cast(Tensor, getattr(b, name)))
        _must(same, f"results depend on {what}: `{name}` differs")


def _same(
    what: str,
    whole: Tensor,
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    tolerance: float,
) -> None:
    _must(torch.equal(function(x), whole), f"{what} gives another answer when queried again")
    alone = torch.cat([function(x[:1]), function(x[1:])])
    gap = (alone - whole).abs().max().item()
    _must(
        gap <= tolerance,
        f"{what} lets batch-mates change a row by {gap:.2g}, allowed {tolerance:.2g}",
    )


def _must(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ContractError(otherwise + ".")
