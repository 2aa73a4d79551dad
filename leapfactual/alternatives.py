r"""Several different counterfactuals of one image.

A walk reaches one counterfactual, because it starts from one latent. Others start from variants of
the image that keep its class: the latent is lifted under its own class to what remains without
it, :math:`\epsilon_0`, noise is mixed in at a *noise level* :math:`s`,

.. math:: \epsilon = \sqrt{1 - s^2} \, \epsilon_0 + s \, \eta , \qquad \eta \sim
    \mathcal{N}(0, I) ,

and the mixture, whose variance is that of the base, is landed under the same class. From there
every candidate walks as usual. Noise on the latent itself would be simpler, but leaves the
distribution that the flow was trained on, and oracles agree less with the counterfactuals.

Of the candidates a greedy selection keeps those that are valid, near to the image and far from
each other: first the usual counterfactual, then, again and again, the candidate with the largest
distance to its nearest among the selected, less ``near`` times its distance to the image.
Distances are those of images: latents differ in features that no image shows.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from . import checks
from .bases import Gaussian
from .errors import InputError
from .explainer import LeapFactual, default_batch_size
from .explanation import Explanation
from .flow import Flow
from .imaging import Pictures, as_images
from .metrics import diversity

# Walks for each counterfactual that is kept. On digits twice as many add 7 % to the diversity.
CANDIDATES_EACH = 4
# Of one image. All walk at once, and each is compared with each.
MAX_ALTERNATIVES, MAX_CANDIDATES = 100, 1000


@dataclass(frozen=True, eq=False, repr=False)
class Alternatives:
    """Several counterfactuals of each of B images.

    Arguments:
        explanation: All of them, ``n`` rows for the first image, then those of the next. Source,
            latent and reconstruction are those of the image; leaps, cost and path are those of the
            row's own walk, which starts from a variant of it.
        n: How many there are of each image.
        found: How many of them are valid and differ from each other, ``(B,)``. Fewer than ``n``
            where no more were found; the rest of the rows are then invalid or repeat.
        apart: The mean distance of each image's counterfactuals from each other, ``(B,)``: L1 of
            pixels, or of latents for rows.
    """

    explanation: Explanation
    n: int
    found: Tensor
    apart: Tensor

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, image: int) -> Explanation:
        """Returns the counterfactuals of one image."""
        row = checks.whole(image, "image")
        if not -len(self) <= row < len(self):
            raise IndexError(f"there is no image {row}: there are {len(self)}.")
        first = row % len(self) * self.n
        return self.explanation[first : first + self.n]

    def each(self) -> list[Explanation]:
        """Returns ``n`` explanations of all images, for :func:`leapfactual.metrics.diversity`.

        The first holds the usual counterfactuals, wherever they are valid.
        """
        return [self.explanation[k :: self.n] for k in range(self.n)]

    def __repr__(self) -> str:
        enough = int((self.found == self.n).sum())
        return (
            f"Alternatives({self.n} of each of {len(self)} images: all found for {enough}, "
            f"{self.apart.mean():.3g} apart)"
        )


@torch.no_grad()
def diverse(
    explainer: LeapFactual,
    x: Pictures,
    target: int | Tensor,
    n: int = 4,
    *,
    noise: float = 0.5,
    candidates: int | None = None,
    near: float = 0.5,
    seed: int = 0,
    z: Tensor | None = None,
) -> Alternatives:
    """Finds several different counterfactuals of each image.

    The noise is the same for every image, so that the result for one depends neither on its
    batch-mates nor on their order.

    Arguments:
        explainer: The explainer; its flow must have a Gaussian base. The input's own pixels are
            not kept.
        x: Images, or rows, as :meth:`LeapFactual.explain` takes them.
        target: The class to reach: one for all images, or one per image.
        n: How many counterfactuals of each image, at least 2.
        noise: The noise level, above 0 and up to 1: at 1 variants of the image have nothing but
            the class in common with it.
        candidates: How many walks to choose from. Defaults to four times ``n``.
        near: The weight of the distance to the image against those between counterfactuals.
        seed: The seed of the noise.
        z: The latents of the images, where they are known.

    Example:
        >>> from leapfactual import LeapFactual, blend
        >>> from leapfactual.generators import Identity
        >>> from leapfactual.testing import GaussianOracle
        >>> oracle = GaussianOracle(torch.tensor([[-2.0, 0.0], [2.0, 0.0]]), scale=0.5)
        >>> explainer = LeapFactual(Identity(), oracle.classifier, oracle.flow(), [blend(20, 0.1)])
        >>> found = diverse(explainer, torch.tensor([[-2.0, 0.3], [-1.5, 0.0]]), target=1, n=3)
        >>> found
        Alternatives(3 of each of 2 images: all found for 2, 0.306 apart)
        >>> found[1]
        Explanation(3 images to class 1: 3 valid, median 4 leaps)
    """
    if checks.positive(n, "n", MAX_ALTERNATIVES) < 2:
        raise InputError(f"`n` must be at least 2, got {n}. For one counterfactual use explain.")
    candidates = (
        CANDIDATES_EACH * n
        if candidates is None
        else checks.positive(candidates, "candidates", MAX_CANDIDATES)
    )
    if candidates < n:
        raise InputError(f"`candidates` must be at least n = {n}, got {candidates}.")
    if not 0 < checks.number(noise, "noise") <= 1:
        raise InputError(f"`noise` must be above 0 and up to 1, got {noise!r}.")
    if not 0 <= checks.number(near, "near") < float("inf"):
        raise InputError(f"`near` must be a number of at least 0, got {near!r}.")
    flow = explainer.flow
    if not isinstance(flow.base, Gaussian):
        raise InputError(
            f"diverse mixes Gaussian noise, but the base of this flow is {flow.base}. Train a "
            "flow with the Gaussian base."
        )
    x = as_images(x)
    # Variants of an image are decoded: its own pixels would be ghosts in them.
    explainer = explainer.without_pixels()
    usual = explainer.explain(x, target, z)
    rng = torch.Generator().manual_seed(seed)
    eta = torch.randn(candidates - 1, flow.features, generator=rng).to(usual.z)
    size = max(1, (explainer.batch_size or default_batch_size(x)) // candidates)
    parts = []
    for first in range(0, len(x), size):
        part = usual[first : first + size]
        starts = _variants(flow, part, eta, noise)
        parts.append(_explain_from(explainer, part, starts, n, near))
    found = torch.cat([count for _, count in parts])
    whole = Alternatives(Explanation.cat([e for e, _ in parts]), n, found, found.to(usual.z))
    return replace(whole, apart=diversity(whole.each()))


def _variants(flow: Flow, usual: Explanation, eta: Tensor, noise: float) -> Tensor:
    """Returns variants of the latents that keep their classes, ``(B, N, D)``."""
    c = flow.one_hot(usual.source)
    rest = (flow.lift(usual.z, c) - flow.mean) / flow.scale
    mixed = (1 - noise**2) ** 0.5 * rest[:, None] + noise * eta
    c = c.repeat_interleave(len(eta), 0)
    landed = flow.land((mixed * flow.scale + flow.mean).flatten(0, 1), c)
    return landed.view(mixed.shape)


def _explain_from(
    explainer: LeapFactual, usual: Explanation, starts: Tensor, n: int, near: float
) -> tuple[Explanation, Tensor]:
    """Walks from all starts; returns ``n`` rows of each image, and how many are valid and new."""
    rows, others = starts.shape[:2]
    every = torch.arange(rows * (1 + others), device=starts.device)
    image = every[:rows].repeat_interleave(others)
    walked = explainer.explain(usual.x[image], usual.target[image], starts.flatten(0, 1))
    walked = replace(
        walked,
        reconstruction=usual.reconstruction[image],
        z=usual.z[image],
        source=usual.source[image],
    )
    found = Explanation.cat([usual, walked])
    place = torch.cat([every[:rows, None], every[rows:].view(rows, others)], dim=1)
    before, after = usual.z, found.z_counterfactual
    if usual.x.ndim == 4:
        before, after = usual.reconstruction.flatten(1), found.counterfactual.flatten(1)
    kept, count = _select(before[:, None], after[place], found.valid[place], n, near)
    return found[place.gather(1, kept).flatten()], count


def _select(
    before: Tensor, after: Tensor, valid: Tensor, n: int, near: float
) -> tuple[Tensor, Tensor]:
    """Selects candidates greedily: which ``(B, n)``, and how many are valid and new ``(B,)``.

    Arguments:
        before: What the images look like, with shape ``(B, 1, P)``.
        after: What the candidates look like, with shape ``(B, C, P)``; first the usual one.
        valid: Which of them are valid, with shape ``(B, C)``.
        n: How many to keep.
        near: The weight of the distance to the image.
    """
    away, between = (torch.cdist(after, x, p=1) / after.shape[2] for x in (before, after))
    cost = torch.where(valid, away[:, :, 0], torch.inf)
    cost[:, 0] = torch.where(valid[:, 0], -1.0, torch.inf)
    kept = cost.argmin(1, keepdim=True)
    count = valid.gather(1, kept)[:, 0].long()
    row = torch.arange(len(after), device=after.device)
    for _ in range(n - 1):
        apart = between[row[:, None], kept].amin(1)
        new = valid & (apart > 0)
        score = apart - near * away[:, :, 0]
        score = torch.where(new, score, score.amin(1, keepdim=True) - 1)
        best = score.scatter(1, kept, -torch.inf).argmax(1, keepdim=True)
        count = count + new.gather(1, best)[:, 0]
        kept = torch.cat([kept, best], dim=1)
    return kept, count
