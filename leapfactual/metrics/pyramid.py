r"""A distance between images that needs no weights: what differs at each scale.

The difference of two images is split into what a picture of half the size does not hold, again
and again (a Laplacian pyramid), and the mean absolute values of all bands are added. Blur costs as
much as a shift of the brightness, where the plain mean would hardly notice it. It stands in for
:class:`~leapfactual.metrics.LPIPS` where there are no weights, or images are too small for them.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import checks
from ..data import packages
from ..errors import InputError
from .factories import MIN_LPIPS_SIDE
from .lpips import LPIPS

BANDS = 4


class PyramidDistance(nn.Module):
    """Creates the distance; called with two batches of images in [0, 1] it returns ``(B,)``.

    References:
        | The Laplacian Pyramid as a Compact Image Code (Burt and Adelson, 1983)
        | https://doi.org/10.1109/TCOM.1983.1095851

    Example:
        >>> x = torch.zeros(1, 1, 16, 16)
        >>> PyramidDistance()(x, x + 0.5)
        tensor([0.5000])
    """

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        """Returns the distance of each pair, with shape ``(B,)``."""
        if x.shape != other.shape or x.ndim != 4:
            raise InputError(
                "a pyramid compares two batches of images (B, C, H, W) of one shape, got "
                f"{checks.shape(x)} and {checks.shape(other)}."
            )
        rest, total = x - other, torch.zeros(len(x), dtype=x.dtype, device=x.device)
        for _ in range(BANDS - 1):
            if min(rest.shape[2:]) < 2:
                break
            coarse = F.avg_pool2d(rest, 2, ceil_mode=True)
            finer = F.interpolate(coarse, rest.shape[2:], mode="nearest")
            total = total + (rest - finer).abs().flatten(1).mean(1)
            rest = coarse
        return total + rest.abs().flatten(1).mean(1)


def best_distance(side: int) -> tuple[nn.Module, str]:
    """Returns the best distance between images that is to be had without a network, and its name.

    That is LPIPS where its weights are in the cache and images have at least 64 pixels, otherwise
    the pyramid.

    Arguments:
        side: The shorter side of the images, in pixels.
    """
    if side >= MIN_LPIPS_SIDE and packages.present("lpips-alexnet"):
        return LPIPS.load("alexnet"), "LPIPS"
    return PyramidDistance(), "the pyramid distance"
