"""What every kind of hostile input is made by, and what is checked of what comes of it."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

import leapfactual as lf
from leapfactual.classifiers import from_labels
from leapfactual.data import Images
from leapfactual.generators import VAE

from ..watch import expect, has_secret

THRESHOLD = 0.50003
Read = Callable[[], None]


class Kind(ABC):
    """Abstract kind of input.

    Arguments:
        base: A folder for what inputs are made from. Made once, read by every process.
    """

    name: ClassVar[str]
    share: ClassVar[int]

    def __init__(self, base: Path) -> None:
        self.base = base

    @abstractmethod
    def make(self, rng: random.Random, given: Path, outside: Path) -> Read:
        """Writes an input to a folder, and returns what reads it.

        Arguments:
            rng: Decides everything.
            given: An empty folder, which the product may read and write. The current one.
            outside: A folder beside, with a secret, which it may not.
        """


def is_bright(x: Tensor) -> Tensor:
    """Labels images by their mean, 1 where they are bright."""
    return (x.flatten(1).mean(1) > THRESHOLD).long()


bright = from_labels(is_bright, 2)


def small_bundle() -> lf.Bundle:
    """Returns a bundle of images of 8 × 8 whose networks are as small as can be."""
    torch.manual_seed(0)
    flow = lf.Flow(lf.MLPField(4, 2, width=8, depth=1), lf.solvers.Euler(2))
    flow.mean.zero_()
    vae = VAE((1, 8, 8), 4, widths=(4, 4))
    images = torch.rand(40, 1, 8, 8)
    plan = [lf.blend(3, 0.5), lf.inject(1, lift=0.0, land=0.1), lf.tighten(2)]
    front = [
        lf.leaps.RatedPlan((lf.blend(n, 0.5),), r, {"l1": 0.1}, lf.solvers.Euler(2))
        for n, r in ((2, 0.0), (3, 1.0))
    ]
    return lf.Bundle.make(
        vae,
        flow,
        bright,
        images,
        classes=["dark", "bright"],
        plan=plan,
        front=tuple(front),
        fast=front[0],
        training={"epochs": 1, "stretch": "none"},
        preprocessing=lf.classifiers.Preprocessing(size=(8, 8), mean=(0.5,)),
    )


def check_pixels(x: Tensor) -> None:
    """Checks that images are whole, in [0, 1] and no file's secret."""
    expect(x.dtype == torch.float32, f"images of {x.dtype}")
    expect(x.ndim == 4 and x.shape[1] in (1, 3) and x.numel() > 0, f"images of {x.shape}")
    expect(bool(torch.isfinite(x).all()), "images that are not finite")
    expect(bool(((x >= 0) & (x <= 1)).all()), "images outside of [0, 1]")
    expect(not has_secret((x * 255).round().byte().numpy().tobytes()), "images hold the secret")


def check_images(images: Images) -> None:
    """Checks that a set of images gives what it says."""
    x = images[:]
    check_pixels(x)
    expect(tuple(x.shape[1:]) == tuple(images.shape), f"{x.shape} instead of {images.shape}")
    expect(len(x) == len(images) == len(images.names), f"{len(x)} images of {len(images)}")
    if images.labels is not None:
        check_labels(images.labels, len(x), len(images.classes))


def check_labels(y: Tensor, rows: int, classes: int) -> None:
    """Checks that there is a label of a known class for each row."""
    expect(tuple(y.shape) == (rows,), f"labels {y.shape} of {rows} rows")
    expect(y.dtype == torch.long, f"labels of {y.dtype}")
    expect(not rows or 0 <= int(y.min()) <= int(y.max()) < classes, "labels of no class")


def check_explanation(e: lf.Explanation, rows: int, classes: int) -> None:
    """Checks that an explanation has what it promises for each of its images."""
    for name in ("x", "counterfactual", "z", "z_counterfactual", "probabilities"):
        values = getattr(e, name)
        expect(len(values) == rows, f"{len(values)} rows of `{name}` for {rows} images")
        expect(bool(torch.isfinite(values).all()), f"`{name}` is not finite")
    expect(e.counterfactual.shape == e.x.shape, f"{e.counterfactual.shape} of {e.x.shape}")
    if e.x.ndim == 4:
        inside = (e.counterfactual >= -1e-2) & (e.counterfactual <= 1 + 1e-2)
        expect(bool(inside.all()), "pixels outside of [0, 1]")
    check_labels(e.label, rows, classes)
    check_labels(e.target, rows, classes)
    total = e.probabilities.double().sum(1)
    expect(bool(((total - 1).abs() < 0.02).all()), f"probabilities sum to {total}")
    expect(bool((e.valid == (e.label == e.target)).all()), "valid, and of another class")
