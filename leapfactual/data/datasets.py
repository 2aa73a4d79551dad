"""Labelled sets in memory, and how they are split."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import checks
from ..errors import InputError


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled set of images in memory.

    Arguments:
        images: Images, with shape ``(N, C, H, W)`` and values in [0, 1].
        labels: Class numbers, with shape ``(N,)``.
        classes: What the classes are called.
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        channels, height, width = self.images.shape[1:]
        sizes = f"{channels} × {height} × {width}"
        return f"Dataset({len(self)} images of {sizes}, {len(self.classes)} classes)"


def split(
    labels: Tensor, share: float, seed: int, classes: Sequence[str] = ()
) -> tuple[Tensor, Tensor]:
    """Draws a stratified test set, with the same share of every class.

    Each class gives ``round(share × n)`` of its n images, at least one, and keeps at least one.

    Arguments:
        labels: Class numbers, with shape ``(N,)``.
        share: The share of the test set, between 0 and 1.
        seed: The seed of the draw.
        classes: What the classes are called, for errors.

    Returns:
        The rows of the training set and those of the test set, both in order.

    Example:
        >>> train, test = split(torch.tensor([0, 1] * 10 + [2, 2]), 0.2, seed=0)
        >>> len(train), len(test)
        (17, 5)
    """
    if not 0 < checks.number(share, "share") < 1:
        raise InputError(f"the share of the test set must lie between 0 and 1, got {share!r}.")
    rng = torch.Generator().manual_seed(checks.whole(seed, "seed"))
    test = torch.zeros(len(labels), dtype=torch.bool)
    for label in sorted(set(labels.tolist())):
        rows = (labels == label).nonzero()[:, 0]
        if len(rows) < 2:
            raise InputError(
                f"the class {classes[label] if classes else label} has 1 image; one to train and "
                "one to test with are needed. Add images, or leave the class out."
            )
        taken = min(max(round(share * len(rows)), 1), len(rows) - 1)
        test[rows[torch.randperm(len(rows), generator=rng)[:taken]]] = True
    return (~test).nonzero()[:, 0], test.nonzero()[:, 0]
