"""Quick copies of the networks that a walk asks, used only where they say the same.

A copy is folded (see :mod:`leapfactual.folding`) and keeps its images with the channels last,
which is how convolutions like them. Whether it says the same is tried on the first images that
come: pictures and probabilities must be near, and every label equal. Otherwise the original is
used. A network is copied only when it is a torch module; anything else is asked as it is.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .classifiers import Network
from .folding import folded
from .types import Classifier, Generator

PROBES = 256
LARGEST = 100_000_000
NEAR, NEAR_ON_GPU = 1e-3, 1e-2


@dataclass(frozen=True, eq=False)
class Pair:
    """Is a generator and the classifier that is asked about its images."""

    generator: Generator
    classifier: Classifier

    @property
    def pure(self) -> bool:
        """Whether both are torch modules, so that asking has no effect but the answer."""
        return isinstance(self.generator, nn.Module) and isinstance(
            _module(self.classifier), nn.Module
        )

    def copied(self, dtype: torch.dtype) -> "Pair":
        """Returns folded copies in some precision; what is no module stays as it is."""
        generator, classifier = self.generator, self.classifier
        if isinstance(generator, nn.Module):
            twin: Any = _copied(generator, dtype)
            generator = twin if dtype == torch.float32 else _Half(twin)
        if isinstance(classifier, Network) and isinstance(classifier.network, nn.Module):
            network = _copied(classifier.network, dtype)
            if network is not classifier.network:
                classifier = Network(network, classifier.preprocessing)
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

    Arguments:
        generator: The generator.
        classifier: The classifier.
    """

    def __init__(self, generator: Generator, classifier: Classifier) -> None:
        self.plain = self.pair = Pair(generator, classifier)
        self.seen: object = None

    def stale(self, device: torch.device) -> bool:
        """Whether there are no copies yet of the networks as they are."""
        now = device, *_weights(self.plain.generator), *_weights(self.plain.classifier)
        changed, self.seen = now != self.seen, now
        return changed

    @torch.no_grad()
    def renew(self, z: Tensor) -> None:
        """Copies the networks as they are, and keeps the copies if they say the same.

        Arguments:
            z: Latents to try them on; the first are taken.
        """
        self.pair = self.plain
        if z.dtype != torch.float32:
            return
        try:
            pair = self.plain.copied(torch.float32)
            if self.plain.agrees(pair, z[:PROBES]):
                self.pair = pair
        except Exception:
            pass


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
    weights = list(module.parameters())
    if sum(w.numel() for w in weights) > LARGEST or module.training:
        return module
    twin = folded(module)
    if twin is module:
        if dtype == torch.float32 and not any(w.ndim == 4 for w in weights):
            return module
        twin = copy.deepcopy(module)
    return twin.to(dtype=dtype).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def _module(holder: object) -> object:
    return holder.network if isinstance(holder, Network) else holder


def _weights(holder: object) -> list[tuple[int, int]]:
    """Returns what tells whether weights have changed: where they are, and how often written."""
    module = _module(holder)
    if not isinstance(module, nn.Module):
        return []
    tensors = [*module.parameters(), *module.buffers()]
    return [(t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors]
