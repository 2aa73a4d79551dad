r"""The density of latents under a flow, and its percentile among training latents.

Along a path :math:`dz/dt = v` the log density changes by minus the divergence of :math:`v`, so

.. math:: \log p_1(z) = \log q(z(0)) - \int_0^1 \operatorname{div} v(t, z(t)) \, dt .

The divergence is the sum of :math:`e^\top \nabla_z (v^\top e)` over the unit vectors :math:`e`,
or, in many dimensions, its mean over random signs :math:`e` (Hutchinson's estimator).
"""

import math

import torch
from torch import Tensor

from .bases import Base
from .solvers import Solver, Velocity

# One level for each per cent, both ends included.
LEVELS = 101


def log_density(
    v: Velocity, z: Tensor, solver: Solver, base: Base, probes: int, seed: int
) -> Tensor:
    """Returns the log density ``(B,)`` of latents at t = 1.

    Arguments:
        v: The velocity, which autograd can differentiate.
        z: The latents, with shape ``(B, D)``.
        solver: How to integrate.
        base: The distribution at t = 0.
        probes: How many random directions estimate the divergence, the same for every row; with 0
            it is exact.
        seed: The seed of the directions.
    """
    directions = _directions(z.shape[1], probes, seed).to(z)

    def augmented(t: Tensor, state: Tensor) -> Tensor:
        u = state[:, :-1].detach().requires_grad_()
        out = v(t, u)
        divergence = torch.zeros_like(u[:, 0])
        for e in directions if out.requires_grad else ():
            (slope,) = torch.autograd.grad(
                out, u, e.expand_as(out), retain_graph=True, allow_unused=True
            )
            if slope is not None:
                divergence = divergence + (slope * e).sum(1)
        return torch.cat([out.detach(), divergence[:, None] / (probes or 1)], dim=1)

    state = torch.nn.functional.pad(z, (0, 1))
    state = solver.integrate(augmented, state, 1.0, 0.0)
    # Integrated from 1 to 0, the last column is minus the integral from 0 to 1.
    return base.log_prob(state[:, :-1]) + state[:, -1]


def _directions(features: int, probes: int, seed: int) -> Tensor:
    """Returns the unit vectors, for the exact divergence, or random signs."""
    if not probes:
        return torch.eye(features)
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2, (probes, features), generator=rng) * 2.0 - 1.0


def levels(scores: Tensor) -> Tensor:
    """Returns the 101 percentiles of scores ``(N,)``; some may be minus infinity."""
    rank = torch.linspace(0, len(scores) - 1, LEVELS, device=scores.device)
    return scores.sort().values[rank.round().long()]


def percentile(score: Tensor, levels: Tensor) -> Tensor:
    """Returns the percentile of scores ``(B,)`` among levels ``(B, 101)``, from 0 to 100.

    Between two levels it is interpolated; among equal ones it is their middle. A score of minus
    infinity gives 0, and levels that are NaN give NaN.

    Example:
        >>> percentile(torch.tensor([0.5, 2.0]), torch.linspace(0, 1, 101).expand(2, -1))
        tensor([ 50., 100.])
    """
    below = (levels < score[:, None]).sum(1)
    upto = (levels <= score[:, None]).sum(1)
    low = levels.gather(1, (below - 1).clamp_min(0)[:, None])[:, 0]
    high = levels.gather(1, below.clamp_max(LEVELS - 1)[:, None])[:, 0]
    between = below - 1 + ((score - low) / (high - low)).nan_to_num(0, 0, 0).clamp(0, 1)
    percent = torch.where(upto > below, (below + upto - 1) / 2, between)
    percent = percent.clamp(0, LEVELS - 1).where(score > -math.inf, 0.0)
    return percent.where(~levels.isnan().any(1), math.nan)
