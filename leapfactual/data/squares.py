r"""The paper's toy: four squares in the plane, one for each class.

A point is :math:`z = c_p + r_p`, with a *centre position* :math:`c_p \in \{\pm 0.25\}^2`, which is
its class, and a *relative position* :math:`r_p \in (-0.25, 0.25)^2`, which is everything else
about it.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

CENTRES = ((-0.25, -0.25), (-0.25, 0.25), (0.25, -0.25), (0.25, 0.25))
HALF = 0.25


def centres(y: Tensor) -> Tensor:
    """Returns the centres ``(B, 2)`` of the classes ``(B,)``."""
    return torch.tensor(CENTRES, device=y.device)[y]


def sample(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Returns ``n`` points ``(n, 2)`` and their classes ``(n,)``, spread over the four squares.

    Example:
        >>> z, y = sample(8)
        >>> bool((quadrant(z).argmax(1) == y).all())
        True
    """
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % len(CENTRES)
    r = HALF * (2 * torch.rand(n, 2, generator=rng) - 1)
    return centres(y) + r, y


def quadrant(x: Tensor) -> Tensor:
    """Classifies points ``(B, 2)`` by their quadrant, as one-hot rows ``(B, 4)``.

    Example:
        >>> quadrant(torch.tensor([[0.3, -0.1]]))
        tensor([[0., 0., 1., 0.]])
    """
    y = 2 * (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    return F.one_hot(y, len(CENTRES)).to(x.dtype)
