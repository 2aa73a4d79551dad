"""Generators for data that need none: rows of numbers are their own latents."""

from collections.abc import Sequence
from typing import Self

from torch import Tensor

from .. import checks
from ..errors import InputError


class Identity:
    """Creates a generator whose latents are the rows of numbers themselves: for the toy study.

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

    def config(self) -> dict[str, object]:
        """Returns the constructor's arguments."""
        return {}

    def __repr__(self) -> str:
        return "Identity()"


class Standardized:
    """Creates a generator of rows of a table, each column standardized to mean 0 and std 1.

    Arguments:
        mean: The mean of each column.
        std: The standard deviation of each column.

    Example:
        >>> import torch
        >>> table = torch.tensor([[1.0, 10.0], [3.0, 30.0]])
        >>> Standardized.of(table).encode(torch.tensor([[3.0, 10.0]]))
        tensor([[ 1., -1.]])
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.mean, self.std = [float(m) for m in mean], [float(s) for s in std]
        if len(self.mean) != len(self.std) or not all(s > 0 for s in self.std):
            raise InputError(
                f"`mean` and `std` must have one value for each column, `std` positive; got "
                f"{len(self.mean)} and {len(self.std)}."
            )

    @classmethod
    def of(cls, rows: Tensor) -> Self:
        """Creates one from rows ``(N, D)``; constant columns are shifted only."""
        checks.images(rows, "rows")
        if rows.ndim != 2 or len(rows) < 2:
            raise InputError(
                f"`rows` must be at least two rows of shape (N, D), got {checks.shape(rows)}."
            )
        std = rows.std(0, correction=0)
        return cls(rows.mean(0).tolist(), std.where(std > 0, 1.0).tolist())

    def encode(self, x: Tensor) -> Tensor:
        """Returns ``x`` in standard deviations from the mean."""
        return (x - x.new_tensor(self.mean)) / x.new_tensor(self.std)

    def decode(self, z: Tensor) -> Tensor:
        """Returns ``z`` in the units of the table."""
        return z * z.new_tensor(self.std) + z.new_tensor(self.mean)

    def config(self) -> dict[str, object]:
        """Returns the constructor's arguments."""
        return {"mean": self.mean, "std": self.std}

    def __repr__(self) -> str:
        return f"Standardized({len(self.mean)} columns)"
