"""What latents look like once their class has been taken out: the distribution at t = 0."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import InputError


class Base(ABC):
    """Is a distribution over ``(B, D)`` with independent, equally distributed columns."""

    @property
    @abstractmethod
    def std(self) -> float:
        """The standard deviation of each column."""

    @abstractmethod
    def sample_like(self, z: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """Draws one sample for each row of ``z``, of its shape, type and device."""

    @abstractmethod
    def log_prob(self, z: Tensor) -> Tensor:
        """Returns the log density ``(B,)`` of each row."""


@dataclass(frozen=True)
class Gaussian(Base):
    """Is the standard normal distribution: the paper's choice."""

    @property
    def std(self) -> float:
        """See :attr:`Base.std`."""
        return 1.0

    def sample_like(self, z: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """See :meth:`Base.sample_like`."""
        return torch.randn(z.shape, dtype=z.dtype, device=z.device, generator=rng)

    def log_prob(self, z: Tensor) -> Tensor:
        """See :meth:`Base.log_prob`."""
        return -0.5 * (z.square() + math.log(2 * math.pi)).sum(1)


@dataclass(frozen=True)
class Uniform(Base):
    """Is uniform on the square (or cube) around the origin; the toy study's choice.

    Arguments:
        side: The length of a side.
    """

    side: float = 1.0

    def __post_init__(self) -> None:
        if not self.side > 0:
            raise InputError(f"`side` must be positive, got {self.side!r}.")

    @property
    def std(self) -> float:
        """See :attr:`Base.std`."""
        return self.side / math.sqrt(12)

    def sample_like(self, z: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """See :meth:`Base.sample_like`."""
        u = torch.rand(z.shape, dtype=z.dtype, device=z.device, generator=rng)
        return self.side * (u - 0.5)

    def log_prob(self, z: Tensor) -> Tensor:
        """See :meth:`Base.log_prob`."""
        inside = (z.abs() <= self.side / 2).all(1)
        volume = math.log(self.side) * z.shape[1]
        return torch.where(inside, -volume, -math.inf).to(z.dtype)


BASES: dict[str, type[Base]] = {base.__name__: base for base in (Gaussian, Uniform)}
