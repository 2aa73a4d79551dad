"""Images that have no up, such as galaxies or cells, turned and mirrored."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F


def d4_orbit(x: Tensor) -> Iterator[Tensor]:
    """Goes through the eight ways of turning and mirroring square images, without any blur.

    Example:
        >>> [int(y[0, 0, 0, 0]) for y in d4_orbit(torch.arange(4.0).reshape(1, 1, 2, 2))]
        [0, 1, 3, 2, 1, 0, 2, 3]
    """
    for flipped in (x, x.flip(3)):
        yield from (flipped.rot90(k, (2, 3)) for k in range(4))


def random_d4(x: Tensor, rng: torch.Generator) -> Tensor:
    """Returns all images in one of these ways, drawn at random."""
    way = int(torch.randint(8, (1,), generator=rng, device=x.device))
    return (x.flip(3) if way >= 4 else x).rot90(way % 4, (2, 3))


def random_rotation(x: Tensor, rng: torch.Generator) -> Tensor:
    """Turns each image by an angle of its own and mirrors half of them."""
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
