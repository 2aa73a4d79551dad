"""Generators for data that need none: rows of numbers are their own latents."""

from torch import Tensor

from .. import checks
from ..errors import InputError


class Identity:
    """Takes rows of numbers as their own latents: for the toy study.

    Example:
        >>> import torch
        >>> Identity().decode(torch.ones(1, 2))
        tensor([[1., 1.]])
    """

    def encode(self, x: Tensor) -> Tensor:
        """Returns ``x`` itself, with shape ``(B, D)``."""
        return x

    def decode(self, z: Tensor) -> Tensor:
        """Returns ``z`` itself."""
        return z

    def __repr__(self) -> str:
        return "Identity()"


class Standardised:
    """Takes rows of numbers, each column shifted and scaled to mean 0 and spread 1: for tables.

    Columns that do not vary are shifted only.

    Arguments:
        rows: The rows to take mean and spread from, with shape ``(N, D)``.

    Example:
        >>> import torch
        >>> table = torch.tensor([[1.0, 10.0], [3.0, 30.0]])
        >>> Standardised(table).encode(torch.tensor([[3.0, 10.0]]))
        tensor([[ 1., -1.]])
    """

    def __init__(self, rows: Tensor) -> None:
        checks.images(rows, "rows")
        if rows.ndim != 2 or len(rows) < 2:
            raise InputError(
                f"`rows` must be at least two rows of shape (N, D), got {checks.shape(rows)}."
            )
        spread = rows.std(0, correction=0)
        self.mean, self.spread = rows.mean(0), spread.where(spread > 0, 1.0)

    def encode(self, x: Tensor) -> Tensor:
        """Returns ``x`` in units of the spread."""
        return (x - self.mean.to(x)) / self.spread.to(x)

    def decode(self, z: Tensor) -> Tensor:
        """Returns ``z`` in the units of the table."""
        return z * self.spread.to(z) + self.mean.to(z)

    def __repr__(self) -> str:
        return f"Standardised({len(self.mean)} columns)"
