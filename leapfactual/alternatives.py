r"""Several different counterfactuals of one image.

A walk comes to one counterfactual, because it starts from one latent. Others start from variants
of the image that keep its class: the latent is lifted under its own class to what remains without
it, :math:`\epsilon_0`, noise is mixed in by a *spread* :math:`s`,

.. math:: \epsilon = \sqrt{1 - s^2} \, \epsilon_0 + s \, \eta , \qquad \eta \sim
    \mathcal{N}(0, I) ,

and the mixture, which is as large as before, is landed under the same class. From there every
candidate walks as usual. Noise on the latent itself would be simpler, but leaves where the flow
has learnt anything, and other oracles agree less with what comes of it.

Of the candidates those are kept that are valid, near to the image and far from each other: first
the usual counterfactual, then, again and again, the candidate with the largest distance to its
nearest among the chosen, less ``near`` times its distance to the image. Distances are those of
pictures: latents differ in features that no picture shows.
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

CANDIDATES = 4


@dataclass(frozen=True, eq=False, repr=False)
class Alternatives:
    """Is several counterfactuals of each of B images.

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
    spread: float = 0.5,
    candidates: int | None = None,
    near: float = 0.5,
    seed: int = 0,
    z: Tensor | None = None,
) -> Alternatives:
    """Finds several different counterfactuals of each image.

    The noise is the same for every image, so that what is found for one does not depend on who
    else is asked about, nor on their order.

    Arguments:
        explainer: How to walk; its flow must have a Gaussian base.
        x: Images, or rows, as :meth:`LeapFactual.explain` takes them.
        target: The class to reach: one for all images, or one per image.
        n: How many counterfactuals of each image, at least 2.
        spread: How far variants of the image are from it, above 0 and up to 1: at 1 they have
            nothing but the class in common with it.
        candidates: How many walks to choose from; four times ``n`` when not given.
        near: What a distance to the image costs, against distances between counterfactuals.
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
    if checks.positive(n, "n") < 2:
        raise InputError(f"`n` must be at least 2, got {n}. For one counterfactual use explain.")
    candidates = (
        CANDIDATES * n if candidates is None else checks.positive(candidates, "candidates")
    )
    if candidates < n:
        raise InputError(f"`candidates` must be at least n = {n}, got {candidates}.")
    if not 0 < checks.number(spread, "spread") <= 1:
        raise InputError(f"`spread` must be above 0 and up to 1, got {spread!r}.")
    if not 0 <= checks.number(near, "near") < float("inf"):
        raise InputError(f"`near` must be a number of at least 0, got {near!r}.")
    flow = explainer.flow
    if not isinstance(flow.base, Gaussian):
        raise InputError(
            f"diverse mixes Gaussian noise, but the base of this flow is {flow.base}. Train a "
            "flow with the Gaussian base."
        )
    x = as_images(x)
    usual = explainer.explain(x, target, z)
    noise = torch.randn(
        candidates - 1, flow.features, generator=torch.Generator().manual_seed(seed)
    )
    noise = noise.to(usual.z)
    size = max(1, (explainer.batch_size or default_batch_size(x)) // candidates)
    parts = []
    for first in range(0, len(x), size):
        part = usual[first : first + size]
        parts.append(_chosen(explainer, part, _variants(flow, part, noise, spread), n, near))
    found = torch.cat([count for _, count in parts])
    whole = Alternatives(Explanation.cat([e for e, _ in parts]), n, found, found.to(usual.z))
    return replace(whole, apart=diversity(whole.each()))


def _variants(flow: Flow, usual: Explanation, noise: Tensor, spread: float) -> Tensor:
    """Returns latents of the images' own classes, ``(B, N, D)``, around their own."""
    c = flow.one_hot(usual.source)
    rest = (flow.lift(usual.z, c) - flow.mean) / flow.scale
    mixed = (1 - spread**2) ** 0.5 * rest[:, None] + spread * noise
    c = c.repeat_interleave(len(noise), 0)
    landed = flow.land((mixed * flow.scale + flow.mean).flatten(0, 1), c)
    return landed.view(mixed.shape)


def _chosen(
    explainer: LeapFactual, usual: Explanation, starts: Tensor, n: int, near: float
) -> tuple[Explanation, Tensor]:
    """Walks from all starts; returns ``n`` rows for each image, and how many of them will do."""
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
    kept, count = _picked(before[:, None], after[place], found.valid[place], n, near)
    return found[place.gather(1, kept).flatten()], count


def _picked(
    before: Tensor, after: Tensor, valid: Tensor, n: int, near: float
) -> tuple[Tensor, Tensor]:
    """Returns which candidates are kept, ``(B, n)``, and how many are valid and new, ``(B,)``.

    Arguments:
        before: What the images look like, with shape ``(B, 1, P)``.
        after: What the candidates look like, with shape ``(B, C, P)``; first the usual one.
        valid: Which of them are valid, with shape ``(B, C)``.
        n: How many to keep.
        near: What a distance to the image costs.
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
