"""Fused copies of the networks that a walk queries, used only where they agree.

A copy is fused (see :mod:`leapfactual._engine.fusion`) and keeps its images in the channels-last
memory format, which convolutions prefer. Whether it agrees with the original is tried on the first
images that come: pictures and probabilities must be close, and every label equal. Otherwise the
original is used. A network is copied only when it is a torch module without hooks, in evaluation
mode; anything else is queried as it is.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..classifiers import Network
from ..types import Classifier, Generator
from .fusion import fuse

# Latents that a new copy is compared on, and that one in use is compared on at each call. The
# first comparison decides, the second guards against changes that leave no trace in the weights.
MAX_PROBES, MAX_STALENESS_PROBES = 256, 2
# A copy of a larger network would cost more memory (400 MB in float32) than its speed is worth.
MAX_PARAMETERS = 100_000_000
# Fusion reorders sums in float32, and TF32 on a GPU keeps ten bits of the mantissa.
PROBE_ATOL, PROBE_ATOL_GPU = 1e-3, 1e-2


@dataclass(frozen=True)
class Networks:
    """Generator, and the classifier that is queried about its images."""

    generator: Generator
    classifier: Classifier

    @property
    def replayable(self) -> bool:
        """Whether both are torch modules that do nothing but answer."""
        parts = _module(self.generator), _module(self.classifier)
        return all(isinstance(part, nn.Module) and _is_frozen(part) for part in parts)

    @property
    def drafts(self) -> bool:
        """Whether the generator can be copied in half precision."""
        return isinstance(self.generator, nn.Module) and _is_frozen(self.generator)

    def fuse(self, dtype: torch.dtype) -> "Networks":
        """Returns fused copies in some precision; what is no module stays as it is."""
        generator, classifier = self.generator, self.classifier
        if type(classifier) is Network and isinstance(classifier.network, nn.Module):
            network = _copy(classifier.network, dtype)
            if network is not classifier.network:
                classifier = Network(network, classifier.preprocessing)
        if isinstance(generator, nn.Module):
            twin: Any = _copy(generator, dtype)
            if dtype == torch.float16:
                generator = _Half(twin)
            elif twin is not generator:
                generator = _Contiguous(twin) if classifier is self.classifier else twin
        return Networks(generator, classifier)

    def agrees(self, other: "Networks", z: Tensor) -> bool:
        """Tells whether others decode and classify latents alike, but for rounding."""
        if other.generator is self.generator and other.classifier is self.classifier:
            return True
        atol = PROBE_ATOL_GPU if z.is_cuda else PROBE_ATOL
        mine, others = self.generator.decode(z), other.generator.decode(z)
        if not torch.allclose(mine, others, rtol=0, atol=atol):
            return False
        if other.classifier is self.classifier:
            return True
        p, q = self.classifier(mine), other.classifier(others)
        same = p.argmax(1) == q.argmax(1)
        return torch.allclose(p, q, rtol=0, atol=atol) and bool(same.all())


class Copies:
    """Creates copies when they are first needed, and anew when weights have changed.

    Arguments:
        originals: The networks as they are.

    Attributes:
        networks: The copies, or the originals where there are none.
        error: Why there are none, where a network could not be copied.
    """

    def __init__(self, originals: Networks) -> None:
        self.originals = self.networks = originals
        self.seen: object = None
        self.error: Exception | None = None

    def stale(self, z: Tensor) -> bool:
        """Tells whether there are no copies yet of the networks as they are.

        Weights tell where they are and how often they were written, but not everything that can
        change; so the copies are also compared on a few latents.
        """
        if self._signature(z.device) != self.seen:
            return True
        return self.networks is not self.originals and not self._agrees(
            self.networks, z[:MAX_STALENESS_PROBES]
        )

    @torch.no_grad()
    def refresh(self, z: Tensor) -> None:
        """Copies the networks as they are, and keeps the copies if they agree.

        Arguments:
            z: Latents to compare them on; the first are taken.
        """
        self.networks = self.originals
        if z.dtype == torch.float32:
            try:
                fused = self.originals.fuse(torch.float32)
            except Exception as error:  # a user's network may raise anything when copied
                self.error, fused = error, self.originals
            self.networks = fused if self._agrees(fused, z[:MAX_PROBES]) else self.originals
        self.seen = self._signature(z.device)

    @torch.no_grad()
    def _agrees(self, networks: Networks, z: Tensor) -> bool:
        try:
            return self.originals.agrees(networks, z.clone())
        except Exception as error:  # so may its copy; the original is queried next, and not caught
            self.error = error
            return False

    def _signature(self, device: torch.device) -> object:
        return device, *weights(self.originals.generator), *weights(self.originals.classifier)


class _Contiguous:
    """Copy of a generator whose images are contiguous, as other classifiers expect them."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def encode(self, x: Tensor) -> Tensor:
        z: Tensor = self.module.encode(x)  # type: ignore[operator]
        return z

    def decode(self, z: Tensor) -> Tensor:
        x: Tensor = self.module.decode(z)  # type: ignore[operator]
        return x.contiguous()


class _Half:
    """Generator in half precision, for latents in single."""

    def __init__(self, generator: nn.Module) -> None:
        self.generator = generator

    def encode(self, x: Tensor) -> Tensor:
        z: Tensor = self.generator.encode(x.half())  # type: ignore[operator]
        return z.float()

    def decode(self, z: Tensor) -> Tensor:
        x: Tensor = self.generator.decode(z.half())  # type: ignore[operator]
        return x


def _copy(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Returns a copy with another layout and precision, or the module where none would help."""
    tensors = [*module.parameters(), *module.buffers()]
    if not _is_frozen(module) or sum(t.numel() for t in tensors) > MAX_PARAMETERS:
        return module
    twin = fuse(module)
    if twin is module:
        if dtype == torch.float32 and not any(t.ndim == 4 for t in tensors):
            return module
        twin = copy.deepcopy(module)
    return twin.to(dtype=dtype).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def _is_frozen(module: nn.Module) -> bool:
    """Tells whether a network is in evaluation mode and has no hooks."""
    return not any(
        part.training or part._forward_hooks or part._forward_pre_hooks
        for part in module.modules()
    )


def _module(holder: object) -> object:
    if isinstance(holder, _Contiguous):
        return holder.module
    return holder.network if type(holder) is Network else holder


def weights(holder: object) -> list[object]:
    """Returns what identifies the state of weights: where they are, and how often written."""
    module = _module(holder)
    if not isinstance(module, nn.Module):
        return []
    tensors = [*module.parameters(), *module.buffers()]
    modes = tuple(part.training for part in module.modules())
    return [modes, *map(version, tensors)]


def version(tensor: Tensor) -> tuple[int, int]:
    """Returns where a tensor is, and how often it was written."""
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version
