"""Quick copies of the networks that a walk asks, used only where they say the same.

A copy is folded (see :mod:`leapfactual._engine.fusion`) and keeps its images with the channels
last, which is how convolutions like them. Whether it says the same is tried on the first images
that come: pictures and probabilities must be near, and every label equal. Otherwise the original
is used. A network is copied only when it is a torch module without hooks, in evaluation mode;
anything else is asked as it is.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..classifiers import Network
from ..types import Classifier, Generator
from .fusion import folded

PROBES, A_FEW = 256, 2
LARGEST = 100_000_000
NEAR, NEAR_ON_GPU = 1e-3, 1e-2


@dataclass(frozen=True)
class Pair:
    """Is a generator and the classifier that is asked about its images."""

    generator: Generator
    classifier: Classifier

    @property
    def pure(self) -> bool:
        """Whether both are torch modules that do nothing but answer, so they can be replayed."""
        parts = _module(self.generator), _module(self.classifier)
        return all(isinstance(part, nn.Module) and _still(part) for part in parts)

    def copied(self, dtype: torch.dtype) -> "Pair":
        """Returns folded copies in some precision; what is no module stays as it is."""
        generator, classifier = self.generator, self.classifier
        if type(classifier) is Network and isinstance(classifier.network, nn.Module):
            network = _copied(classifier.network, dtype)
            if network is not classifier.network:
                classifier = Network(network, classifier.preprocessing)
        if isinstance(generator, nn.Module):
            twin: Any = _copied(generator, dtype)
            if dtype == torch.float16:
                generator = _Half(twin)
            elif twin is not generator:
                generator = _Contiguous(twin) if classifier is self.classifier else twin
        return Pair(generator, classifier)

    def agrees(self, other: "Pair", z: Tensor) -> bool:
        """Whether another pair makes and says the same of latents, but for rounding."""
        if other.generator is self.generator and other.classifier is self.classifier:
            return True
        near = NEAR_ON_GPU if z.is_cuda else NEAR
        mine, others = self.generator.decode(z), other.generator.decode(z)
        if not torch.allclose(mine, others, rtol=0, atol=near):
            return False
        if other.classifier is self.classifier:
            return True
        p, q = self.classifier(mine), other.classifier(others)
        same = p.argmax(1) == q.argmax(1)
        return torch.allclose(p, q, rtol=0, atol=near) and bool(same.all())


class Quick:
    """Makes the copies when they are first needed, and anew when weights have changed.

    Where there are none because a network refused, :attr:`refused` says how.

    Arguments:
        plain: The networks as they are.
    """

    def __init__(self, plain: Pair) -> None:
        self.plain = self.pair = plain
        self.seen: object = None
        self.refused: Exception | None = None

    def stale(self, z: Tensor) -> bool:
        """Whether there are no copies yet of the networks as they are.

        Weights tell where they are and how often they were written, but not everything that can
        change; so the copies are also tried on a few latents.
        """
        if self._signature(z.device) != self.seen:
            return True
        return self.pair is not self.plain and not self._tried(self.pair, z[:A_FEW])

    @torch.no_grad()
    def renew(self, z: Tensor) -> None:
        """Copies the networks as they are, and keeps the copies if they say the same.

        Arguments:
            z: Latents to try them on; the first are taken.
        """
        self.pair = self.plain
        if z.dtype == torch.float32:
            try:
                pair = self.plain.copied(torch.float32)
            except Exception as error:  # a stranger's network may raise anything when copied
                self.refused, pair = error, self.plain
            self.pair = pair if self._tried(pair, z[:PROBES]) else self.plain
        self.seen = self._signature(z.device)

    @torch.no_grad()
    def _tried(self, pair: Pair, z: Tensor) -> bool:
        try:
            return self.plain.agrees(pair, z.clone())
        except Exception as error:  # so may its copy; the original is asked next, and not caught
            self.refused = error
            return False

    def _signature(self, device: torch.device) -> object:
        return device, *weights(self.plain.generator), *weights(self.plain.classifier)


class _Contiguous:
    """Is a copy of a generator whose images lie in memory as everybody expects."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def encode(self, x: Tensor) -> Tensor:
        z: Tensor = self.module.encode(x)  # type: ignore[operator]
        return z

    def decode(self, z: Tensor) -> Tensor:
        x: Tensor = self.module.decode(z)  # type: ignore[operator]
        return x.contiguous()


class _Half:
    """Is a generator in half precision, for latents in single."""

    def __init__(self, generator: nn.Module) -> None:
        self.generator = generator

    def encode(self, x: Tensor) -> Tensor:
        z: Tensor = self.generator.encode(x.half())  # type: ignore[operator]
        return z.float()

    def decode(self, z: Tensor) -> Tensor:
        x: Tensor = self.generator.decode(z.half())  # type: ignore[operator]
        return x


def _copied(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Returns a copy with another layout and precision, or the module where none would help."""
    tensors = [*module.parameters(), *module.buffers()]
    if not _still(module) or sum(t.numel() for t in tensors) > LARGEST:
        return module
    twin = folded(module)
    if twin is module:
        if dtype == torch.float32 and not any(t.ndim == 4 for t in tensors):
            return module
        twin = copy.deepcopy(module)
    return twin.to(dtype=dtype).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def _still(module: nn.Module) -> bool:
    """Whether a network is in evaluation mode and nobody watches it through hooks."""
    return not any(
        part.training or part._forward_hooks or part._forward_pre_hooks
        for part in module.modules()
    )


def _module(holder: object) -> object:
    if isinstance(holder, _Contiguous):
        return holder.module
    return holder.network if type(holder) is Network else holder


def weights(holder: object) -> list[object]:
    """Returns what tells whether weights have changed: where they are, and how often written."""
    module = _module(holder)
    if not isinstance(module, nn.Module):
        return []
    tensors = [*module.parameters(), *module.buffers()]
    modes = tuple(part.training for part in module.modules())
    return [modes, *map(written, tensors)]


def written(tensor: Tensor) -> tuple[int, int]:
    """Returns where a tensor is, and how often it was written."""
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version
