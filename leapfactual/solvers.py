r"""How to integrate a velocity over time.

An explicit Runge-Kutta step of size :math:`h` evaluates the velocity in :math:`s` stages,

.. math::
    k_i = v\Big(t + a_i h, \; z + a_i h \, k_{i-1}\Big), \qquad z \leftarrow z + h \sum_i b_i k_i
    \, ,

where each stage leans on the one before it, so that a solver is two short rows of numbers,
:math:`a` and :math:`b`. That covers Euler, midpoint, Heun and the classical method of order four.
They take the same steps for every row, so an image's result does not depend on who else is in its
batch, and a replay is exact.

:class:`Dopri5` chooses its own steps, from an error norm over the whole batch: there, batch-mates
are tied together. It is here because the paper used it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from . import checks
from .errors import InputError, IntegrationError
from .extras import require

MOST_STEPS, MAX_FIXED_STEPS = 2_000, 10_000
# 0.7 of ten steps is seven, although 0.7 * 10 is a little more.
STEP_TOLERANCE = 1e-9
Velocity = Callable[[Tensor, Tensor], Tensor]


class Solver(ABC):
    """Abstract solver of ``dz/dt = v(t, z)``, from one time to another in either direction."""

    @abstractmethod
    def integrate(self, v: Velocity, z: Tensor, start: float, end: float) -> Tensor:
        """Returns where ``z`` is at time ``end`` when it was given at time ``start``.

        Arguments:
            v: The velocity, a function of a scalar time and ``z``.
            z: The state at ``start``, with shape ``(B, D)``.
            start: The time to start from.
            end: The time to go to; smaller than ``start`` to go back.
        """

    def round_trip(self, down: Velocity, up: Velocity, z: Tensor, gamma: float = 1.0) -> Tensor:
        """Returns where ``z`` is after going from 1 to 0 along a velocity, and back along another.

        Arguments:
            down: The velocity of the way to 0.
            up: The velocity of the way back.
            z: The state at the beginning, with shape ``(B, D)``.
            gamma: The step size that is in both velocities, for solvers that take fewer steps of
                a shorter way.
        """
        return self.integrate(up, self.integrate(down, z, 1.0, 0.0), 0.0, 1.0)


@dataclass(frozen=True)
class FixedStep(Solver):
    """Abstract solver in ``steps`` equal steps. See the module for ``a`` and ``b``."""

    steps: int
    order: ClassVar[int]
    a: ClassVar[tuple[float, ...]]
    b: ClassVar[tuple[float, ...]]

    def __post_init__(self) -> None:
        checks.positive(self.steps, "steps", MAX_FIXED_STEPS)

    @property
    def nfe(self) -> int:
        """How often one integration evaluates the velocity."""
        return self.steps * len(self.b)

    def integrate(self, v: Velocity, z: Tensor, start: float, end: float) -> Tensor:
        """See :meth:`Solver.integrate`."""
        h = (end - start) / self.steps
        for n in range(self.steps):
            t, here, k = start + n * h, z, z
            for a, b in zip(self.a, self.b, strict=True):
                k = v(z.new_full((), t + a * h), here.add(k, alpha=a * h) if a else here)
                z = z.add(k, alpha=b * h) if b else z
        return z


class Euler(FixedStep):
    """Euler's method, of order 1; for comparison."""

    order, a, b = 1, (0.0,), (1.0,)


class Midpoint(FixedStep):
    """The midpoint method, of order 2; a few steps are often enough, and fast."""

    order, a, b = 2, (0.0, 0.5), (0.0, 1.0)


class NoisedMidpoint(Midpoint):
    r"""The midpoint method, whose round trip leads along straight lines to noise.

    With :math:`y` the way down along :math:`v`, the way up along :math:`w` is :math:`y + d`, where

    .. math:: \frac{dd}{dt} = w(t, y + d) - v(t, y) , \qquad d(0) = 0 .

    Only what differs between the two is integrated, and only that has an error: where :math:`w` is
    :math:`v`, ``z`` comes back exactly, in however few steps. Photographs need this. On maps of
    leaves, three plain midpoint steps down and up under one class, which should change nothing,
    are off by half of a standard deviation.

    The error grows with the difference, and so with the step size :math:`\gamma` of a leap, of
    which it takes :math:`\lceil \gamma \, n \rceil` steps.

    And :math:`y` need not be the way down. Here it is the path of training,
    :math:`y = (1 - t) \, \epsilon + t z`, with noise :math:`\epsilon` of its own in every step, at
    whose middle both velocities are evaluated once. So a field is asked about what it was trained
    on: latents with as much noise as their time has. On the way of lifting with a small step size
    there is hardly any. Where both velocities are linear in ``z`` with one slope, as for Gaussian
    classes and equal step sizes, the path makes no difference in the limit of many steps. The
    noise is Gaussian, and the same for all latents of a size, so that results can be repeated and
    do not depend on the batch.

    References:
        | FlowEdit: Inversion-Free Text-Based Editing Using Pre-Trained Flow Models (Kulikov et
        | al., 2024)
        | https://arxiv.org/abs/2412.08629

    Arguments:
        steps: How many steps :math:`n` a leap of size 1 takes.
    """

    def round_trip(self, down: Velocity, up: Velocity, z: Tensor, gamma: float = 1.0) -> Tensor:
        """See :meth:`Solver.round_trip`."""
        steps = max(1, math.ceil(gamma * self.steps - STEP_TOLERANCE))
        d = torch.zeros_like(z)
        for n, noise in enumerate(_noise(steps, z.shape[1], z.device, z.dtype)):
            t = z.new_full((), (n + 0.5) / steps)
            y = torch.lerp(noise, z, t)
            d = d.add(up(t, y + d) - down(t, y), alpha=1 / steps)
        return z + d


@lru_cache(maxsize=16)
def _noise(steps: int, features: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Returns standard noise ``(steps, 1, D)``, the same on all devices."""
    rng = torch.Generator().manual_seed(0)
    return torch.randn(steps, 1, features, generator=rng).to(device, dtype)


class Heun(FixedStep):
    """Heun's method, of order 2, also known as the explicit trapezoidal rule."""

    order, a, b = 2, (0.0, 1.0), (0.5, 0.5)


class RK4(FixedStep):
    """The classical Runge-Kutta method, of order 4: the default."""

    order, a, b = 4, (0.0, 0.5, 0.5, 1.0), (1 / 6, 1 / 3, 1 / 3, 1 / 6)


@dataclass(frozen=True)
class Dopri5(Solver):
    """The Dormand-Prince pair of orders 5 and 4, with adaptive steps, through ``torchdiffeq``.

    Batch-mates share their steps, so results depend slightly on the batch.

    Arguments:
        rtol: The relative tolerance; the paper's is 1e-4.
        atol: The absolute tolerance; the paper's is 1e-4.
    """

    rtol: float = 1e-4
    atol: float = 1e-4

    def __post_init__(self) -> None:
        for name in ("rtol", "atol"):
            if not 0 < checks.number(getattr(self, name), name) < math.inf:
                raise InputError(
                    f"`{name}` must be positive, got {getattr(self, name)!r}. The paper uses 1e-4."
                )

    def integrate(self, v: Velocity, z: Tensor, start: float, end: float) -> Tensor:
        """See :meth:`Solver.integrate`."""
        odeint = require(
            "torchdiffeq", extra="adaptive", subject="Dopri5 needs", remedy="or use RK4"
        ).odeint
        times = z.new_tensor([start, end])
        try:
            path: Tensor = odeint(
                v,
                z,
                times,
                rtol=self.rtol,
                atol=self.atol,
                method="dopri5",
                options={"max_num_steps": MOST_STEPS},
            )
        except AssertionError as error:
            raise IntegrationError(
                f"{self} found no step small enough ({error}): the velocity is not smooth there "
                "or not finite. Loosen the tolerances, or use RK4 and look at the latents."
            ) from error
        return path[-1]


SOLVERS: dict[str, type[Solver]] = {
    solver.__name__: solver for solver in (Euler, Midpoint, NoisedMidpoint, Heun, RK4, Dopri5)
}
