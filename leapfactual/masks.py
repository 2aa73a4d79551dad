r"""Masks: where a picture may change, and where it must stay as it is.

A mask :math:`m` has values in [0, 1], 1 where the image may change and 0 where it must stay. A
walk with a mask queries the classifier about, and returns,

.. math:: m \cdot g(z) + (1 - m) \cdot x ,

so that outside of the mask the input stays, bit for bit, whatever the generator makes of it. The
flow does not see the mask: a latent moves as it would without one, until the part of the image
inside of the mask is enough. Where that never happens, no counterfactual is reached, which says
that the class is not decided there.
"""

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from . import checks
from .data.reading import read_image
from .errors import InputError

# On digits and faces a tenth of the pixels holds far more than a tenth of the change.
SHARE = 0.1
RADIUS = 1


def as_mask(mask: Tensor) -> Tensor:
    """Checks a mask and returns it as ``(1, H, W)`` or ``(C, H, W)``.

    Arguments:
        mask: Numbers in [0, 1], or truth values, with shape ``(H, W)``, ``(1, H, W)`` or, for
            each channel by itself, ``(C, H, W)``.

    Example:
        >>> as_mask(torch.eye(2) > 0)
        tensor([[[1., 0.],
                 [0., 1.]]])
    """
    if not checks.is_plain(mask) or mask.ndim not in (2, 3) or not mask.numel():
        got = checks.shape(mask) if isinstance(mask, Tensor) else type(mask).__name__
        raise InputError(
            f"`mask` must be a tensor of shape (H, W), (1, H, W) or (C, H, W), got {got}. One "
            "mask serves all images."
        )
    if mask.dtype != torch.bool and mask.dtype not in checks.FLOATS:
        raise InputError(
            f"`mask` must hold truth values or numbers in [0, 1], got {mask.dtype}. For 8-bit "
            "masks: mask / 255."
        )
    mask = mask.detach().to(torch.float32 if mask.dtype == torch.bool else mask.dtype)
    if not ((mask >= 0) & (mask <= 1)).all():
        raise InputError(
            f"`mask` must be in [0, 1], got values in [{mask.min():.7g}, {mask.max():.7g}]: 1 "
            "where the picture may change, 0 where it must stay."
        )
    return mask.reshape(-1, *mask.shape[-2:]).clone()


def fit_mask(mask: Tensor, x: Tensor) -> Tensor:
    """Checks that a mask has the size of images, and returns it on their device."""
    if x.ndim != 4:
        raise InputError(
            f"a mask is for images (B, C, H, W), got rows of shape {checks.shape(x)}. Leave "
            "`mask` out."
        )
    if mask.shape[1:] != x.shape[2:] or mask.shape[0] not in (1, x.shape[1]):
        raise InputError(
            f"`mask` must have the size of the images, {checks.shape(x[0])} or one channel of "
            f"it, got {checks.shape(mask)}. Resize it."
        )
    return mask.to(x.device)


def read(path: str | Path) -> Tensor:
    """Reads a mask from a grey picture: white where images may change, black where they stay."""
    pixels = read_image(path)
    if (pixels != pixels[:1]).any():
        raise InputError(
            f"{path} must be a grey picture, white where images may change and black where they "
            "must stay, got colours. Save it in grey."
        )
    return as_mask(pixels[0])


def grow(mask: Tensor, radius: int) -> Tensor:
    """Returns a mask that reaches ``radius`` pixels further in every direction."""
    mask, r = as_mask(mask), _check_radius(radius)
    return F.max_pool2d(mask, 2 * r + 1, stride=1, padding=r)


def soften(mask: Tensor, radius: int) -> Tensor:
    """Returns a mask with a soft edge, which never reaches beyond the hard one.

    The edge lies inside: from the border inwards the mask rises in ``radius`` + 1 equal steps, so
    what had to stay still stays, exactly. Where that would leave too little, :func:`grow` first:
    grown by the same radius, a mask keeps all of what it had. The border of the picture is no
    edge.

    Arguments:
        mask: The mask.
        radius: How many pixels the edge is wide; 0 leaves it hard.

    Example:
        >>> soften(torch.tensor([[0.0, 1.0, 1.0, 1.0, 1.0, 1.0]]), 2)
        tensor([[[0.0000, 0.3333, 0.6667, 1.0000, 1.0000, 1.0000]]])
    """
    shrunk = [as_mask(mask)]
    for _ in range(_check_radius(radius)):
        shrunk.append(-F.max_pool2d(-shrunk[-1], 3, stride=1, padding=1))
    return torch.stack(shrunk).mean(0)


class Change:
    """Running mean of the absolute change of each pixel, in constant memory.

    Example:
        >>> change = Change()
        >>> for after in (0.2, 0.4):
        ...     change.add(torch.zeros(8, 1, 1, 2), torch.tensor([0.0, after]).expand(8, 1, 1, 2))
        >>> change
        Change(of 16 images of 1 × 2, 0.15 in the mean)
        >>> change.mean
        tensor([[0.0000, 0.3000]], dtype=torch.float64)
        >>> change.mask(share=0.5, radius=0)
        tensor([[[0., 1.]]])
    """

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self.count = 0

    def __repr__(self) -> str:
        if self.total is None:
            return "Change(of no images)"
        h, w = self.total.shape
        return f"Change(of {self.count} images of {h} × {w}, {self.mean.mean():.4g} in the mean)"

    def add(self, before: Tensor, after: Tensor) -> None:
        """Adds the change from images ``(B, C, H, W)`` to others; nothing else is kept."""
        _check_pair(before, after)
        if self.total is not None and before.shape[2:] != self.total.shape:
            raise InputError(
                f"`before` must be images of {_size(self.total)}, as those before them, got "
                f"{_size(before)}. Resize them, or begin another Change."
            )
        total = (after - before).detach().abs().mean(1).double().sum(0)
        self.total = total if self.total is None else self.total + total
        self.count += len(before)

    @property
    def mean(self) -> Tensor:
        """The mean absolute change of each pixel, ``(H, W)``."""
        if self.total is None or not self.count:
            raise InputError("there is no change to speak of: `add` images before and after.")
        return self.total / self.count

    def mask(self, share: float = SHARE, radius: int = RADIUS, around: int = 0) -> Tensor:
        """Returns a mask of the pixels that change most, with a soft edge.

        Around them the mask falls off within ``radius`` pixels.

        Arguments:
            share: The share of all pixels to take.
            radius: How far the edge reaches beyond them.
            around: Over how many pixels in every direction the change is averaged first, which
                leaves neither specks nor holes in large images.
        """
        if not 0 < checks.number(share, "share") <= 1:
            raise InputError(f"`share` must be above 0 and up to 1, got {share!r}.")
        mean = _box_filter(self.mean, _check_radius(around))
        if not mean.any():
            raise InputError("nothing changed in these images, so there is no mask of change.")
        largest = mean.flatten().topk(max(1, round(share * mean.numel()))).indices
        chosen = torch.zeros_like(mean, dtype=torch.bool).flatten().index_fill(0, largest, True)
        return soften(grow(chosen.reshape(mean.shape) & (mean > 0), radius), radius)


def inside(before: Tensor, after: Tensor, mask: Tensor) -> Tensor:
    """Returns the share of each image's change that is inside of a mask, ``(B,)``.

    The change is the sum of absolute differences; inside is where the mask is not 0. Images that
    did not change give NaN.

    Example:
        >>> inside(torch.zeros(1, 1, 1, 2), torch.tensor([[[[0.1, 0.3]]]]), torch.eye(2)[1:])
        tensor([0.7500])
    """
    _check_pair(before, after)
    mask = fit_mask(as_mask(mask), before)
    change = (after - before).abs()
    return (change * (mask > 0)).flatten(1).sum(1) / change.flatten(1).sum(1)


def _check_pair(before: Tensor, after: Tensor) -> None:
    if before.ndim != 4 or before.shape != after.shape:
        raise InputError(
            f"`before` and `after` must be images (B, C, H, W) of one shape, got "
            f"{checks.shape(before)} and {checks.shape(after)}."
        )
    checks.finite(before, "before")
    checks.finite(after, "after")


def _box_filter(values: Tensor, radius: int) -> Tensor:
    """Returns the mean of an image ``(H, W)`` around each pixel, without what is outside of it."""
    for size, padding in (((2 * radius + 1, 1), (radius, 0)), ((1, 2 * radius + 1), (0, radius))):
        pooled = F.avg_pool2d(values[None, None], size, 1, padding, count_include_pad=False)
        values = pooled[0, 0]
    return values


def _check_radius(radius: int) -> int:
    if checks.whole(radius, "radius") < 0:
        raise InputError(f"`radius` must be a number of pixels, at least 0, got {radius!r}.")
    return radius


def _size(x: Tensor) -> str:
    return f"{x.shape[-2]} × {x.shape[-1]}"
