"""The distribution of latents at t = 0, where they carry no class.

A base of your own needs :meth:`Base.sample_like` and nothing else; a density asks for
:meth:`Base.log_prob`, and saving for :meth:`Base.config`.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, is_dataclass

import torch
from torch import Tensor

from . import checks
from .errors import InputError


class Base(ABC):
    """Abstract distribution over ``(B, D)`` with independent, identically distributed columns.

    Example:
        >>> class Laplace(Base):
        ...     def sample_like(self, z, rng=None):
        ...         u = torch.rand(z.shape, generator=rng).to(z) - 0.5
        ...         return -u.sign() * torch.log1p(-2 * u.abs()) / 2**0.5
        >>> Laplace().sample_like(torch.zeros(3, 2)).shape
        torch.Size([3, 2])
    """

    @property
    def std(self) -> float:
        """The standard deviation of each column; 1 unless a base says otherwise."""
        return 1.0

    @abstractmethod
    def sample_like(self, z: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """Draws one sample for each row of ``z``, of its shape, type and device."""

    def log_prob(self, z: Tensor) -> Tensor:
        """Returns the log density ``(B,)`` of each row; needed only for densities."""
        raise InputError(
            f"{type(self).__name__} has no density. Define log_prob(z) → (B,) on it, the log "
            "density of each row."
        )

    def config(self) -> dict[str, object]:
        """Returns the constructor's arguments, as values that JSON can hold; for saving only."""
        if not is_dataclass(self):
            raise InputError(
                f"a flow with the base {type(self).__name__} cannot be saved: nothing says how "
                "the base was built. Make it a dataclass, or define config() on it."
            )
        return asdict(self)


@dataclass(frozen=True)
class Gaussian(Base):
    """The standard normal distribution: the paper's choice."""

    def sample_like(self, z: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """See :meth:`Base.sample_like`."""
        return torch.randn(z.shape, dtype=z.dtype, device=z.device, generator=rng)

    def log_prob(self, z: Tensor) -> Tensor:
        """See :meth:`Base.log_prob`."""
        return -0.5 * (z.square() + math.log(2 * math.pi)).sum(1)


@dataclass(frozen=True)
class Uniform(Base):
    """The uniform distribution on the cube around the origin: the toy study's choice.

    Arguments:
        side: The length of a side.
    """

    side: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < checks.number(self.side, "side") < math.inf:
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
