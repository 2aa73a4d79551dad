"""Images, targets, latents and generators handed to the Python API, of any type and shape."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import leapfactual as lf

from ..mutations import TEXTS, number, value
from .classifiers import TYPES, answer
from .kind import Kind, Read, bright, check_explanation, small_bundle

SHAPES = (
    *((3, 1, 8, 8), (3, 1, 8, 8), (3, 1, 8, 8), (1, 1, 8, 8), (0, 1, 8, 8), (3, 8, 8), (3, 64)),
    *((3, 3, 8, 8), (3, 1, 9, 8), (3, 0, 8, 8), (3, 1, 8, 0), (8, 8), (), (3, 8, 8, 1), (1,)),
)


def pixels(rng: random.Random) -> Any:
    """Returns images, or what somebody takes for images."""
    x: Any = torch.rand(rng.choice(SHAPES), generator=torch.Generator().manual_seed(3))
    kind = rng.randrange(9)
    if kind == 0:
        return x.to(rng.choice(TYPES))
    if kind == 1 and x.numel():
        x.view(-1)[rng.randrange(x.numel())] = np.float64(number(rng)).astype("f4").item()
        return x
    if kind == 2:
        return (x.numpy() * rng.choice((1, 255))).astype(rng.choice(("u1", "f4", "f8", "i4", "O")))
    if kind == 3:
        picture = Image.new(rng.choice(("L", "RGB", "1", "I;16", "F", "RGBA")), (8, 8))
        return rng.choice(
            (picture, [picture] * 2, [picture, None], [picture, Image.new("L", (9, 8))])
        )
    if kind == 4:
        return rng.choice((None, value(rng), answer(rng, 3), x.to("meta"), [x], x.to_sparse()))
    if kind == 5 and x.ndim:
        return rng.choice(
            (x.T, x[..., ::2], x.expand(2, *x.shape), x.double(), x.requires_grad_())
        )
    return x


def target(rng: random.Random) -> Any:
    """Returns a target, or what somebody takes for one."""
    kind = rng.randrange(6)
    if kind < 3:
        return rng.choice((0, 1, 1, "bright", "Dark", torch.tensor([0, 1, 1]), [0, 1, 1]))
    if kind == 3:
        return torch.full((rng.randrange(5),), rng.randrange(-2, 4)).to(rng.choice(TYPES[:7]))
    return rng.choice((number(rng), rng.choice(TEXTS), value(rng), np.int64(1), None, True))


class Restless:
    """Generator whose latents or images change their size or type from call to call."""

    def __init__(self, inner: Any, rng: random.Random) -> None:
        self.inner, self.rng, self.calls = inner, rng, 0
        self.steady, self.where = rng.randrange(6), rng.choice(("encode", "decode", "both"))
        self.how = rng.randrange(9)

    def _change(self, out: Tensor, what: str) -> Any:
        self.calls += 1
        if self.calls <= self.steady or self.where not in (what, "both"):
            return out
        changes: tuple[Any, ...] = (
            *(out[:-1], out[:, :1], out.double(), out * float("nan"), out.flatten(), None),
            *(out.repeat(1, *[2] * (out.ndim - 1)), out.numpy(), out * 1000),
        )
        return changes[self.how]

    def encode(self, x: Tensor) -> Any:
        """Returns latents, at first."""
        return self._change(self.inner.encode(x), "encode")

    def decode(self, z: Tensor) -> Any:
        """Returns images, at first."""
        return self._change(self.inner.decode(z), "decode")


class Parts(Kind):
    """Arguments of explainers and explanations."""

    name, share = "parts", 6

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.bundle = small_bundle()
        self.images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(2))

    def make(self, rng: random.Random, given: Path, outside: Path) -> Read:
        """See :meth:`Kind.make`."""
        kind = rng.randrange(4)
        if kind == 0:
            generator = Restless(self.bundle.generator, rng)
            return lambda: self._explain(self.images, 1, generator)
        if kind == 1:
            wrong = {
                rng.choice(("mask", "batch_size", "plan", "classes", "keep_pixels")): rng.choice(
                    (value(rng), number(rng), pixels(rng), [], [None])
                )
            }
            if rng.random() < 0.5:
                wrong = {"mask": pixels(rng)}
            return lambda: self._explain(self.images, 1, self.bundle.generator, **wrong)
        x, y = pixels(rng), target(rng)
        latents = torch.zeros(3, 4) if rng.random() < 0.8 else pixels(rng)
        known = {"z": latents} if rng.random() < 0.2 else {}
        return lambda: self._explain(x, y, self.bundle.generator, known)

    def _explain(
        self,
        x: Any,
        y: Any,
        generator: Any,
        known: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        plan = options.pop("plan", [lf.blend(2, 0.5), lf.tighten(2)])
        names = options.pop("classes", ("dark", "bright"))
        explainer = lf.LeapFactual(
            generator, bright, self.bundle.flow, plan, classes=names, **options
        )
        found = explainer.explain(x, y, **(known or {}))
        check_explanation(found, len(found.x), 2)
