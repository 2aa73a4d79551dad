"""Explainers: hyper-parameters in the constructor, data in :meth:`Explainer.explain`.

:class:`LeapFactual` checks its input, splits it into batches, has the engine run them and collects
the result. How an image walks is in :mod:`leapfactual.walk`, and Algorithm 2 as it is printed in
:mod:`leapfactual.reference`.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Generator as Coroutine
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from . import checks
from ._engine import Batch, Engine, step_by_step
from ._engine.engine import dialogue
from .errors import InputError
from .explanation import Explanation
from .flow import Flow
from .imaging import Pictures, as_images
from .leaps import Stage, check_plan
from .masks import as_mask, fit_mask
from .types import Classifier, Generator, Target
from .walk import Walker

# On a CPU a batch should stay in the cache on its way through a decoder, whose activations are
# some dozen times the image; on a GPU it should be large enough to keep the device busy.
CPU_BATCH_VALUES, MAX_CPU_BATCH = 2**18, 4096
GPU_BATCH_VALUES, MAX_GPU_BATCH = 2**25, 10_240


class Explainer(ABC):
    """Abstract explainer: hyper-parameters in the constructor, data in :meth:`explain`."""

    @abstractmethod
    def explain(self, x: Pictures, target: Target) -> Explanation:
        """Returns a counterfactual for each image.

        Arguments:
            x: Images, with shape ``(B, C, H, W)`` and values in [0, 1], or rows ``(B, D)``. Arrays
                and pictures of Pillow are taken too, see :func:`leapfactual.imaging.as_images`.
            target: The class to reach: one for all images, or one per image, with shape ``(B,)``.
                An explainer that knows the names of the classes takes these too.
        """


class LeapFactual(Explainer):
    r"""Creates an explainer that leaps along a flow trained on the classifier's own answers.

    The plan is a list of stages. With :math:`N_b` blending leaps alone it is the paper's
    LeapFactual; with :math:`N_i` injection leaps after them, LeapFactual_R, whose counterfactuals
    an independent oracle agrees with.

    The counterfactual of an image is its *last* iterate that the classifier gives to the target
    class. Where there is none, it is the last iterate, and the status says so.

    An explainer is for one thread at a time: its engine keeps copies of the networks and CUDA
    graphs from call to call.

    References:
        | LeapFactual: Reliable Visual Counterfactual Explanation Using Conditional Flow
        | Matching (Cao et al., 2025)
        | https://arxiv.org/abs/2510.14623

    Arguments:
        generator: Makes latents of images and images of latents.
        classifier: The classifier to explain. It is queried, never differentiated. None when the
            answers come from elsewhere, through :meth:`dialogue`.
        flow: A flow trained on that generator's latents and that classifier's answers.
        plan: The stages, built with :func:`~leapfactual.blend`, :func:`~leapfactual.inject` and
            :func:`~leapfactual.tighten`.
        batch_size: How many images are explained at a time. Defaults to a size that suits the
            device and the images. Where the device runs out of memory, half as many are tried.
        keep_path: Whether to keep every iterate in :attr:`Explanation.path`.
        accelerate: Whether to query fused copies of the networks and to replay CUDA graphs, where
            that gives the same labels.
        mask: Where images may change, 1, and where they must stay as they are, 0, with shape
            ``(H, W)``, ``(1, H, W)`` or ``(C, H, W)``. Defaults to everywhere. Source and
            reconstruction are then those of the image with only the masked part replaced; see
            :mod:`leapfactual.masks`.
        keep_pixels: Whether to show the input's own pixels where nothing has changed, instead of
            the generator's. Source and reconstruction are then those of the image itself; see
            :func:`leapfactual.imaging.keep_pixels`.
        classes: The names of the classes, for targets and sentences.

    Example:
        >>> from leapfactual import LeapFactual, blend, inject
        >>> from leapfactual.generators import Identity
        >>> from leapfactual.testing import GaussianOracle
        >>> oracle = GaussianOracle(torch.tensor([[-2.0, 0.0], [2.0, 0.0]]), scale=0.5)
        >>> plan = [blend(20, 0.1), inject(3, lift=0.0, land=0.1)]
        >>> explainer = LeapFactual(Identity(), oracle.classifier, oracle.flow(), plan)
        >>> explainer.explain(torch.tensor([[-2.0, 0.3], [-1.5, 0.0]]), target=1)
        Explanation(2 images to class 1: 2 valid, median 7 leaps)
        >>> explainer = LeapFactual(
        ...     Identity(), oracle.classifier, oracle.flow(), plan, classes=["left", "right"]
        ... )
        >>> explainer.explain(torch.tensor([[-2.0, 0.3]]), target="Right")
        Explanation(1 image to class right: 1 valid, median 8 leaps)
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
        keep_pixels: bool = False,
        classes: Sequence[str] = (),
    ) -> None:
        check_plan(plan)
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
        if not isinstance(keep_pixels, bool):
            raise InputError(f"`keep_pixels` must be True or False, got {keep_pixels!r:.80}.")
        if batch_size is not None:
            checks.positive(batch_size, "batch_size")
        if not isinstance(classes, Sequence) or len(classes) not in (0, flow.classes):
            raise InputError(
                f"`classes` must name each of the flow's {flow.classes} classes, got {classes!r}."
            )
        self.generator, self.classifier, self.flow = generator, classifier, flow
        self.classes = tuple(map(str, classes))
        self.plan, self.batch_size, self.keep_path = list(plan), batch_size, keep_path
        self.accelerate = accelerate
        self.mask = None if mask is None else as_mask(mask)
        self.keep_pixels = keep_pixels
        self.engine = Engine()

    def __repr__(self) -> str:
        return f"LeapFactual({self.generator!r}, {self.flow.classes} classes, plan={self.plan})"

    def explain(self, x: Pictures, target: Target, z: Tensor | None = None) -> Explanation:
        """Returns a counterfactual for each image.

        Arguments:
            x: Images, as in :meth:`Explainer.explain`.
            target: The class to reach, as there.
            z: The latents of the images, with shape ``(B, D)``, where they are known: a GAN's own
                samples need no inversion. Defaults to the encoded images.
        """
        if self.classifier is None:
            raise InputError(
                "there is no classifier to query. Give one to LeapFactual, or answer its dialogue."
            )
        images = self._check(as_images(x), target, z)
        walker = self._walker(images.x)
        run = self.engine.run if self.accelerate else step_by_step
        size = self.batch_size or default_batch_size(images.x)
        while True:
            try:
                found = run(walker, self.classifier, split(images, size))
                return replace(found, classes=self.classes)
            except torch.OutOfMemoryError:
                if size == 1:
                    raise
            # Outside of the handler, so that the failed batch is let go before the next try.
            size = (min(size, len(images.x)) + 1) // 2
            self.engine = Engine()
            run = self.engine.run if self.accelerate else step_by_step
            torch.cuda.empty_cache()

    def without_pixels(self) -> "LeapFactual":
        """Returns the same explainer, or one that does not keep the input's own pixels."""
        if not self.keep_pixels:
            return self
        other = copy.copy(self)
        other.keep_pixels, other.engine = False, Engine()
        return other

    @torch.no_grad()
    def dialogue(
        self, x: Tensor, target: Target, z: Tensor | None = None
    ) -> Coroutine[Tensor, Tensor, Explanation]:
        """Yields images to label, is sent probabilities ``(B, K)``, returns the explanation."""
        batch = self._check(x, target, z)
        found = yield from dialogue(self._walker(batch.x), batch)
        return replace(found, classes=self.classes)

    def _check(self, x: Tensor, target: Target, z: Tensor | None) -> Batch:
        """Returns images, targets and latents as one batch, if they fit together."""
        checks.images(x)
        y = checks.targets(target, len(x), self.flow.classes, x.device, self.classes)
        if not len(x):
            raise InputError(
                "`x` must hold at least one image, got none. Check the path or the filter."
            )
        if z is None:
            return Batch(x, y, None)
        if isinstance(z, Tensor) and (z.shape[:1] != x.shape[:1] or z.device != x.device):
            raise InputError(
                f"`z` must hold one latent for each of {len(x)} images, on {x.device}, got "
                f"{checks.shape(z)} on {z.device}. Leave `z` out to have the images encoded."
            )
        self.flow.check_latents(z)
        return Batch(x, y, z.detach())

    def _walker(self, x: Tensor) -> Walker:
        mask = None if self.mask is None else fit_mask(self.mask, x)
        return Walker(
            self.generator,
            self.flow,
            self.plan,
            keep_path=self.keep_path,
            mask=mask,
            keep_pixels=self.keep_pixels and x.ndim == 4,
        )


def split(batch: Batch, size: int) -> list[Batch]:
    """Returns a batch in batches of at most ``size`` images."""
    xs, ys = torch.split(batch.x, size), torch.split(batch.target, size)
    zs = [None] * len(xs) if batch.z is None else torch.split(batch.z, size)
    return [Batch(*part) for part in zip(xs, ys, zs, strict=True)]


def default_batch_size(x: Tensor) -> int:
    """Returns how many images to explain at a time.

    Example:
        >>> default_batch_size(torch.zeros(5, 1, 28, 28))
        334
        >>> default_batch_size(torch.zeros(5, 3, 256, 256))
        1
    """
    values, most = (
        (GPU_BATCH_VALUES, MAX_GPU_BATCH) if x.is_cuda else (CPU_BATCH_VALUES, MAX_CPU_BATCH)
    )
    return max(1, min(most, values // max(1, x[0].numel())))
