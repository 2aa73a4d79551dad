"""Rotation augmentation, for images without an orientation such as galaxies or cells."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F


def d4_orbit(x: Tensor) -> Iterator[Tensor]:
    """Yields square images under the eight elements of the dihedral group D4, without any blur.

    Example:
        >>> [int(y[0, 0, 0, 0]) for y in d4_orbit(torch.arange(4.0).reshape(1, 1, 2, 2))]
        [0, 1, 3, 2, 1, 0, 2, 3]
    """
    for flipped in (x, x.flip(3)):
        yield from (flipped.rot90(k, (2, 3)) for k in range(4))


def random_d4(x: Tensor, rng: torch.Generator) -> Tensor:
    """Applies one random element of D4 to all images."""
    element = int(torch.randint(8, (1,), generator=rng, device=x.device))
    return (x.flip(3) if element >= 4 else x).rot90(element % 4, (2, 3))


def random_rotation(x: Tensor, rng: torch.Generator) -> Tensor:
    """Rotates each image by a random angle of its own, and mirrors half of them."""
    n = len(x)
    angle = 2 * torch.pi * torch.rand(n, generator=rng, device=x.device)
    side = torch.rand(n, generator=rng, device=x.device).round() * 2 - 1
    zero = torch.zeros_like(angle)
    rows = [
        torch.stack([side * angle.cos(), -side * angle.sin(), zero], 1),
        torch.stack([angle.sin(), angle.cos(), zero], 1),
    ]
    grid = F.affine_grid(torch.stack(rows, 1), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, padding_mode="reflection", align_corners=False)


def random_mirror(x: Tensor, rng: torch.Generator) -> Tensor:
    """Mirrors half of the images, drawn anew each time."""
    mirrored = torch.rand(len(x), 1, 1, 1, generator=rng, device=x.device) < 0.5
    return torch.where(mirrored, x.flip(3), x)
