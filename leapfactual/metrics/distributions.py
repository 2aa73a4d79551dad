r"""Distances between sets of images, each set as rows of features.

The Fréchet distance is that of the two Gaussians with the sets' means and covariances. Let
:math:`A` and :math:`B` be the centred rows over :math:`\sqrt{n - 1}`, so that
:math:`\Sigma_a = A^\top A` and :math:`\Sigma_b = B^\top B`. The singular values of
:math:`A B^\top` are those of :math:`\Sigma_a^{1/2} \Sigma_b^{1/2}`, whence

.. math:: \operatorname{tr} \, (\Sigma_a \Sigma_b)^{1/2} = \| A B^\top \|_* \, ,

the sum of the singular values. No square root of a matrix is taken and no eigenvalue is complex,
so it is exact also for fewer rows than features, where both covariances are singular. With
:math:`A = Q R`, :math:`R` can take the place of :math:`A`, as :math:`Q` does not change singular
values: what is decomposed has at most as many rows and columns as there are features or rows.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .. import checks
from ..errors import InputError


class Gaussian(NamedTuple):
    """Mean ``(F,)`` of rows, and a root ``R`` of their covariance, which is ``R.T @ R``."""

    mean: Tensor
    root: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> "Gaussian":
        """Returns that of rows, in double precision; fewer than two are at NaN from all others."""
        rows = rows.double()
        if len(rows) < 2:
            return cls(rows.new_full(rows.shape[1:], torch.nan), rows.new_zeros(rows[:1].shape))
        mean = rows.mean(0)
        return cls(mean, torch.linalg.qr(rows - mean, mode="r").R / (len(rows) - 1) ** 0.5)

    def distance(self, other: "Gaussian") -> Tensor:
        """Returns the Fréchet distance to another."""
        overlap = torch.linalg.svdvals(self.root @ other.root.T).sum()
        traces = self.root.square().sum() + other.root.square().sum()
        total: Tensor = (self.mean - other.mean).square().sum() + traces - 2 * overlap
        return total


def frechet(a: Tensor, b: Tensor) -> Tensor:
    r"""Returns the Fréchet distance between Gaussians fitted to two sets of rows.

    .. math:: \|\mu_a - \mu_b\|^2 + \operatorname{tr}\big(\Sigma_a + \Sigma_b - 2 (\Sigma_a
        \Sigma_b)^{1/2}\big)

    With few rows it is too large, the more so the fewer they are: compare values of equal numbers
    of rows only, and see :func:`split_half`. It is NaN for fewer than two.

    Example:
        >>> rows = torch.randn(500, 3, generator=torch.Generator().manual_seed(0)).double()
        >>> round(frechet(rows, rows + 2).item(), 6)
        12.0
    """
    return Gaussian.of(a).distance(Gaussian.of(b))


class SplitHalf(NamedTuple):
    """Fréchet distance to real images, and the floor that it should be read against."""

    distance: float
    """The distance of what was made to real images."""
    floor: float
    """The distance of real images to other real images: what a perfect generator would have."""
    rows: int
    """How many rows each side of each comparison had."""


def split_half(made: Tensor, real: Tensor, splits: int = 5, seed: int = 0) -> SplitHalf:
    """Returns the Fréchet distance of made to real rows, and of real rows to one another.

    A Fréchet distance of few rows in many dimensions is far from zero even between two samples of
    one distribution. So real rows are split into two random halves: their distance is the floor,
    and that of made rows to one of the halves is compared with it. Every comparison is of equal
    numbers of rows on both sides, because the bias depends on them; where there are more, some are
    drawn. Both values are means over several splits.

    Arguments:
        made: Features of counterfactuals or samples ``(M, F)``.
        real: Features of real images ``(N, F)``, such as :meth:`EfficientNetLite0.rows` gives, of
            the same classes in the same shares as what was made.
        splits: How many random splits to take the mean of.
        seed: The seed of the splits.

    Example:
        >>> rows = torch.randn(3000, 8, generator=torch.Generator().manual_seed(0)).double()
        >>> made, real = rows[:1000], rows[1000:]
        >>> [round(value, 1) for value in split_half(made, real)]
        [0.1, 0.1, 1000]
        >>> [round(value, 1) for value in split_half(made + 1, real)]
        [8.2, 0.1, 1000]
    """
    if made.ndim != 2 or real.ndim != 2 or made.shape[1] != real.shape[1]:
        raise InputError(
            "`made` and `real` must be rows (B, F) of the same features, got "
            f"{checks.shape(made)} and {checks.shape(real)}."
        )
    n = min(len(made), len(real) // 2)
    if n < 2 or splits < 1:
        raise InputError(
            "a Fréchet distance to halves of real images needs at least 2 rows that were made, 4 "
            f"real ones and 1 split, got {len(made)}, {len(real)} and {splits}."
        )
    checks.finite(made, "made")
    checks.finite(real, "real")
    rng = torch.Generator().manual_seed(seed)
    distances, floors = [], []
    for _ in range(splits):
        some = torch.randperm(len(made), generator=rng)[:n].to(made.device)
        order = torch.randperm(len(real), generator=rng)[: 2 * n].to(real.device)
        first = Gaussian.of(real[order[:n]])
        floors.append(first.distance(Gaussian.of(real[order[n:]])))
        distances.append(first.distance(Gaussian.of(made[some].to(real.device))))
    distance, floor = (torch.stack(values).mean().item() for values in (distances, floors))
    return SplitHalf(distance, floor, n)
