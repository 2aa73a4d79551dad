"""Algorithm 2: counterfactuals of images, by leaps, asking the classifier on the way.

How an image walks is in :mod:`leapfactual.walk`. Here the images are cut into batches, and each
batch goes the fastest way that gives the same: step by step with quick copies of the networks, or
on a GPU as a recording of the whole walk. ``accelerate=False`` takes the networks as they are.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Generator as Coroutine
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from . import checks
from ._engine.copies import Pair, Quick
from ._engine.replay import Recorder, signature
from .errors import InputError
from .explanation import Explanation
from .flow import Flow
from .imaging import Pictures, as_images
from .leaps import Stage
from .masks import as_mask, fit_mask
from .types import Classifier, Generator
from .walk import Route, converse

CPU_VALUES, CPU_MOST = 2**18, 4096
GPU_VALUES, GPU_MOST = 2**23, 16_384
Dialogue = Coroutine[Tensor, Tensor, Explanation]
Part = tuple[Tensor, Tensor, Tensor | None]


class Explainer(ABC):
    """Is what every method answers to: parameters in the constructor, data in :meth:`explain`."""

    @abstractmethod
    def explain(self, x: Pictures, target: int | Tensor) -> Explanation:
        """Returns a counterfactual for each image.

        Arguments:
            x: Images, with shape ``(B, C, H, W)`` and values in [0, 1], or rows ``(B, D)``. Arrays
                and pictures of Pillow are taken too, see :func:`leapfactual.imaging.as_images`.
            target: The class to reach: one for all images, or one per image, with shape ``(B,)``.
        """


class LeapFactual(Explainer):
    r"""Explains by leaps along a flow that was trained on the classifier's own answers.

    The plan is a list of stages. With :math:`N_b` blending leaps alone it is the paper's
    LeapFactual; with :math:`N_i` injection leaps after them, LeapFactual_R, whose counterfactuals
    other oracles agree with.

    An explainer is for one thread at a time.

    The counterfactual of an image is its *last* iterate that the classifier gives to the target
    class. Where there is none, it is the last iterate, and the status says so.

    References:
        | LeapFactual: Reliable Visual Counterfactual Explanation Using Conditional Flow
        | Matching (Cao et al., 2025)
        | https://arxiv.org/abs/2510.14623

    Arguments:
        generator: Makes latents of images and images of latents.
        classifier: The classifier to explain. It is asked, never differentiated. None when the
            answers come from elsewhere, through :meth:`dialogue`.
        flow: A flow trained on that generator's latents and that classifier's answers.
        plan: The stages, built with :func:`~leapfactual.blend`, :func:`~leapfactual.inject` and
            :func:`~leapfactual.tighten`.
        batch_size: How many images are explained at a time; when not given, as many as suit the
            device and the size of the images.
        keep_path: Whether to keep every iterate in :attr:`Explanation.path`.
        accelerate: Whether to query fused copies of the networks, which give the same labels;
            see :mod:`leapfactual._engine.copies`.
        mask: Where images may change, 1, and where they must stay as they are, 0, with shape
            ``(H, W)``, ``(1, H, W)`` or ``(C, H, W)``; everywhere when not given. Source and
            reconstruction are then those of the image with only the mask made anew; see
            :mod:`leapfactual.masks`.

    Example:
        >>> from leapfactual import LeapFactual, blend, inject
        >>> from leapfactual.generators import Identity
        >>> from leapfactual.testing import GaussianOracle
        >>> oracle = GaussianOracle(torch.tensor([[-2.0, 0.0], [2.0, 0.0]]), scale=0.5)
        >>> plan = [blend(20, 0.1), inject(3, lift=0.0, land=0.1)]
        >>> explainer = LeapFactual(Identity(), oracle.classifier, oracle.flow(), plan)
        >>> explainer.explain(torch.tensor([[-2.0, 0.3], [-1.5, 0.0]]), target=1)
        Explanation(2 images to class 1: 2 valid, median 7 leaps)
    """

    def __init__(
        self,
        generator: Generator,
        classifier: Classifier | None,
        flow: Flow,
        plan: Sequence[Stage],
        *,
        batch_size: int | None = None,
        keep_path: bool = False,
        accelerate: bool = True,
        mask: Tensor | None = None,
    ) -> None:
        stages = [] if isinstance(plan, Stage) else list(plan)
        if not stages or not all(isinstance(stage, Stage) for stage in stages):
            raise InputError(
                f"`plan` must be a list of stages, got {plan!r}. Try [blend(15, 0.1)] or "
                "[blend(15, 0.1), inject(5, lift=0.0, land=0.1)]."
            )
        if not isinstance(generator, Generator):
            raise InputError(
                f"`generator` must have encode and decode, got {type(generator).__name__}. The "
                "order is generator, classifier, flow, plan."
            )
        if classifier is not None and not callable(classifier):
            raise InputError(
                f"`classifier` must be a function from images to probabilities, got "
                f"{type(classifier).__name__}."
            )
        if not isinstance(flow, Flow):
            raise InputError(f"`flow` must be a Flow, got {type(flow).__name__}.")
        if batch_size is not None:
            checks.positive(batch_size, "batch_size")
        self.generator, self.classifier, self.flow = generator, classifier, flow
        self.plan, self.batch_size, self.keep_path = stages, batch_size, keep_path
        self.accelerate = accelerate
        self.mask = None if mask is None else as_mask(mask)
        self.quick: Quick | None = None
        self.recorder: Recorder | None = None

    def __repr__(self) -> str:
        return f"LeapFactual({self.generator!r}, {self.flow.classes} classes, plan={self.plan})"

    def explain(self, x: Pictures, target: int | Tensor, z: Tensor | None = None) -> Explanation:
        """Returns a counterfactual for each image.

        Arguments:
            x: Images, as in :meth:`Explainer.explain`.
            target: The class to reach: one for all images, or one per image, with shape ``(B,)``.
            z: The latents of the images, with shape ``(B, D)``, where they are known: a GAN's own
                samples need no inversion. The images are encoded when it is not given.
        """
        if self.classifier is None:
            raise InputError(
                "there is no classifier to ask. Give one to LeapFactual, or answer its dialogue."
            )
        x = as_images(x)
        checks.images(x)
        y = checks.targets(target, len(x), self.flow.classes, x.device)
        if not len(x):
            raise InputError(
                "`x` must hold at least one image, got none. Check the path or the filter."
            )
        self._fit_mask(x)
        size = self.batch_size or suitable(x)
        xs, ys = torch.split(x, size), torch.split(y, size)
        zs = [None] * len(xs) if z is None else torch.split(self._known(z, x), size)
        parts: list[Part] = list(zip(xs, ys, zs, strict=True))
        networks = Pair(self.generator, self.classifier)
        if not self.accelerate:
            return Explanation.cat([self._by_step(networks, *part) for part in parts])
        if self.quick is None or self.quick.plain != networks:
            self.quick = Quick(networks)
        return self._quickly(self.quick, parts, size)

    def _fit_mask(self, x: Tensor) -> None:
        """Keeps the mask where the images are, if it is one of their size."""
        if self.mask is not None:
            self.mask = fit_mask(self.mask, x)

    def _known(self, z: Tensor, x: Tensor) -> Tensor:
        """Returns latents that were given with images, if they can be theirs."""
        if isinstance(z, Tensor) and (z.shape[:1] != x.shape[:1] or z.device != x.device):
            raise InputError(
                f"`z` must hold one latent for each of {len(x)} images, on {x.device}, got "
                f"{checks.shape(z)} on {z.device}. Leave `z` out to have the images encoded."
            )
        self.flow.check_latents(z)
        return z.detach()

    def _by_step(self, pair: Pair, x: Tensor, y: Tensor, z: Tensor | None) -> Explanation:
        return converse(self._dialogue(x, y, pair.generator, z), pair.classifier)

    @torch.no_grad()
    def _quickly(self, quick: Quick, parts: Sequence[Part], size: int) -> Explanation:
        """Explains batches with quick copies, by replaying where that can be.

        Images are encoded by the generator itself, so that where a walk starts does not depend on
        what was copied when.
        """
        started = time.perf_counter()
        found, doubts = [], []
        for n, (x, y, z) in enumerate(parts):
            z = self._route(self.generator).encode(x) if z is None else z
            if n == 0:
                self._renew(quick, z)
            answer = self._replayed(x, z, y)
            found.append(self._by_step(quick.pair, x, y, z) if answer is None else answer[0])
            doubts.append(torch.zeros_like(y) > 0 if answer is None else answer[1])
        whole = Explanation.cat(found)
        for rows in torch.split(torch.cat(doubts).nonzero()[:, 0], size):
            if len(rows):
                whole = whole.put(rows, self._with_care(whole[rows], quick))
        share = (time.perf_counter() - started) / len(whole)
        return replace(whole, seconds=torch.full_like(whole.seconds, share))

    def _renew(self, quick: Quick, z: Tensor) -> None:
        """Sees to it that copies and recordings are of the networks as they are."""
        known = self.recorder is not None and self.recorder.quick is quick
        if quick.stale(z):
            known = False
            quick.renew(z)
        parts = self.flow, self.plan, self.mask
        if not known or self.recorder.seen != signature(*parts):  # type: ignore[union-attr]
            self.recorder = Recorder(quick, *parts)

    def _replayed(
        self, x: Tensor, z: Tensor, y: Tensor, *, care: bool = False
    ) -> tuple[Explanation, Tensor] | None:
        """Returns the explanation of a batch and who of it is in doubt, if it can be replayed."""
        if self.keep_path or self.recorder is None:
            return None
        return self.recorder.explain(x, z, y, care=care)

    def _with_care(self, doubtful: Explanation, quick: Quick) -> Explanation:
        """Walks images again, in full precision and with every question asked."""
        x, z, y = doubtful.x, doubtful.z, doubtful.target
        answer = self._replayed(x, z, y, care=True)
        if answer is None or answer[1].any():
            return self._by_step(quick.pair, x, y, z)
        return answer[0]

    def _route(self, generator: Generator) -> Route:
        return Route(generator, self.flow, self.plan, keep_path=self.keep_path, mask=self.mask)

    @torch.no_grad()
    def dialogue(self, x: Tensor, target: int | Tensor, z: Tensor | None = None) -> Dialogue:
        """Yields images to label, is sent probabilities ``(B, K)``, returns the explanation."""
        checks.images(x)
        self._fit_mask(x)
        z = None if z is None else self._known(z, x)
        return (yield from self._dialogue(x, target, self.generator, z))

    def _dialogue(
        self, x: Tensor, target: int | Tensor, generator: Generator, z: Tensor | None
    ) -> Dialogue:
        started = time.perf_counter()
        route = self._route(generator)
        start = route.encode(x) if z is None else z
        walk = yield from route.go(start, target, None if self.mask is None else x.detach())
        yield from route.catch_up(walk)
        return walk.explanation(x, time.perf_counter() - started)


def suitable(x: Tensor) -> int:
    """Returns how many images to explain at a time.

    On a CPU, as many as stay in its cache on their way through a decoder; on a GPU, enough to keep
    it busy.

    Example:
        >>> suitable(torch.zeros(5, 1, 28, 28)), suitable(torch.zeros(5, 3, 256, 256))
        (334, 1)
    """
    values, most = (GPU_VALUES, GPU_MOST) if x.is_cuda else (CPU_VALUES, CPU_MOST)
    return max(1, min(most, values // max(1, x[0].numel())))
