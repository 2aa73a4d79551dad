"""The generator for data that need none."""

from torch import Tensor


class Identity:
    """Takes rows of numbers as their own latents: for the toy study and for tabular data.

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
