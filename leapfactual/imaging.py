"""Pictures to tensors and tensors to pictures: arrays, Pillow, grids, PNG files."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from . import checks
from .errors import InputError
from .files import atomic

# How far around a pixel change is looked for, and from which mean change on nothing is put back.
# On leaves, 0.2 kept more texture than 0.05 (SSIM to the input .94 against .90) and left no ghosts
# that we saw, at an LPIPS that was a twentieth larger.
NEIGHBORHOOD, MAX_KEPT_CHANGE = 2, 0.2

Pictures = Tensor | NDArray[Any] | Image.Image | Sequence[Image.Image]


def as_images(pictures: Pictures) -> Tensor:
    """Converts pictures to a batch of images in [0, 1]; tensors pass as they are.

    Arguments:
        pictures: A tensor; an array ``(N, H, W)``, ``(N, H, W, C)`` or ``(N, C, H, W)`` of bytes
            or of numbers in [0, 1], or of rows ``(N, D)``; a picture of Pillow, or several of one
            size.

    Example:
        >>> as_images(np.zeros((5, 28, 28), dtype=np.uint8)).shape
        torch.Size([5, 1, 28, 28])
    """
    if isinstance(pictures, Tensor):
        return pictures
    if isinstance(pictures, Image.Image):
        pictures = [pictures]
    if not isinstance(pictures, np.ndarray):
        pictures = _stack(pictures)
    if pictures.dtype != np.uint8 and pictures.dtype.kind != "f":
        raise InputError(
            f"an array of pictures must hold bytes or floating-point numbers in [0, 1], got "
            f"{pictures.dtype}. Convert it, for example with .astype(numpy.uint8)."
        )
    x = torch.from_numpy(pictures.astype(np.float32, order="C"))
    x = x / 255 if pictures.dtype == np.uint8 else x
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and x.shape[1] not in (1, 3) and x.shape[3] in (1, 3):
        return x.permute(0, 3, 1, 2).contiguous()
    return x


def _stack(pictures: Sequence[Image.Image]) -> NDArray[Any]:
    several = isinstance(pictures, Sequence)
    if not several or not pictures or not all(isinstance(p, Image.Image) for p in pictures):
        kinds = sorted({type(p).__name__ for p in pictures} if several else ()) or ["nothing"]
        got = f"a list of {', '.join(kinds)}" if several else type(pictures).__name__
        raise InputError(f"images must be a tensor, an array or pictures of Pillow, got {got}.")
    deep = [p.mode for p in pictures if p.mode[0] in "IF"]
    if deep:
        raise InputError(
            f"pictures of Pillow must have 8 bits a channel, got the mode {deep[0]}. Divide their "
            "pixels by the largest possible value, and pass an array."
        )
    grey = all(p.mode in ("L", "1") for p in pictures)
    arrays = [np.asarray(p.convert("L" if grey else "RGB")) for p in pictures]
    shapes = sorted({array.shape[:2] for array in arrays})
    if len(shapes) > 1:
        raise InputError(
            f"the pictures must be of one size, got {shapes[0]} and {shapes[-1]}. Resize them."
        )
    return np.stack(arrays)


def to_pil(x: Tensor) -> Image.Image:
    """Returns one image ``(C, H, W)`` in [0, 1], grey or in colour, as a picture of Pillow.

    Values outside of [0, 1] are clamped.

    Example:
        >>> to_pil(torch.ones(3, 4, 5)).getpixel((0, 0))
        (255, 255, 255)
    """
    pixels = (x.detach().cpu().float().clamp(0, 1) * 255).round().byte().permute(1, 2, 0)
    array = pixels.contiguous().numpy()
    return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)


def paste(y: Tensor, x: Tensor, mask: Tensor) -> Tensor:
    r"""Pastes an image ``y`` into ``x`` through a mask: :math:`m \cdot y + (1 - m) \cdot x`.

    Where the mask is 1 or 0, that is ``y`` or ``x`` exactly.

    Example:
        >>> paste(torch.full((1, 1, 1, 3), 0.9), torch.zeros(1), torch.tensor([[1.0, 0.5, 0.0]]))
        tensor([[[[0.9000, 0.4500, 0.0000]]]])
    """
    return torch.lerp(y, x.to(y), 1 - mask.to(y))


def keep_pixels(y: Tensor, start: Tensor, x: Tensor) -> Tensor:
    r"""Returns the decoded pictures ``y`` with the pixels of ``x`` where nothing has changed.

    A generator loses something of every image: its residual :math:`x - y_0`, where :math:`y_0` is
    the reconstruction. What it loses is no part of the explanation, so that it is put back, the
    less the more the picture has changed there:

    .. math:: y + m \, (x - y_0) , \qquad m = \max(0, 1 - d / \tau)

    with the mean absolute change :math:`d = |y - y_0|` of a pixel's neighbourhood and the colours.
    Where nothing has changed that is ``x``, bit for bit.

    Arguments:
        y: The decoded pictures, with shape ``(B, C, H, W)``.
        start: The reconstructions of the images.
        x: The images.

    Example:
        >>> x, start = torch.full((1, 1, 8, 8), 0.7), torch.full((1, 1, 8, 8), 0.6)
        >>> bool((keep_pixels(start, start, x) == x).all())
        True
        >>> keep_pixels(start + 0.3, start, x)[0, 0, 0, 0]
        tensor(0.9000)
    """
    start, x = start.to(y), x.to(y)
    change = y - start
    size = 2 * NEIGHBORHOOD + 1
    near = F.avg_pool2d(
        change.abs().mean(1, keepdim=True), size, 1, NEIGHBORHOOD, count_include_pad=False
    )
    lost = (near / MAX_KEPT_CHANGE).clamp(max=1)
    return (x + change - lost * (x - start)).clamp(0, 1)


def grid(x: Tensor, columns: int | None = None, gap: int = 2) -> Image.Image:
    """Lays images out in rows.

    Arguments:
        x: Images, with shape ``(B, C, H, W)`` with one or three channels, in [0, 1].
        columns: How many to a row. Defaults to about as many as there are rows.
        gap: How many white pixels to leave between two images.

    Example:
        >>> grid(torch.zeros(6, 1, 28, 28), columns=3).size
        (92, 62)
    """
    checks.images(x)
    n, _, height, width = x.shape
    columns = columns or math.ceil(math.sqrt(n))
    rows = math.ceil(n / columns)
    sheet = torch.ones(3, rows * (height + gap) + gap, columns * (width + gap) + gap)
    for index, image in enumerate(x.detach().cpu().float()):
        top = gap + index // columns * (height + gap)
        left = gap + index % columns * (width + gap)
        sheet[:, top : top + height, left : left + width] = image.expand(3, -1, -1)
    pixels = (sheet * 255).round().byte().permute(1, 2, 0).contiguous()
    return Image.fromarray(pixels.numpy())


def save_grid(x: Tensor, path: str | Path, columns: int | None = None, zoom: int = 1) -> None:
    """Writes :func:`grid` to a PNG file, each pixel ``zoom`` times as large."""
    sheet = grid(x, columns)
    sheet = sheet.resize((sheet.width * zoom, sheet.height * zoom), Image.Resampling.NEAREST)
    with atomic(path) as temporary:
        sheet.save(temporary, format="PNG")


STRETCHES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "none": lambda x, a: x,
    "sqrt": lambda x, a: x.clamp_min(0).sqrt(),
    "asinh": lambda x, a: torch.asinh(a * x) / math.asinh(a),
    "log": lambda x, a: torch.log1p(a * x) / math.log1p(a),
}
UNSTRETCHES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "none": lambda x, a: x,
    "sqrt": lambda x, a: x.square(),
    "asinh": lambda x, a: torch.sinh(x * math.asinh(a)) / a,
    "log": lambda x, a: torch.expm1(x * math.log1p(a)) / a,
}
# The usual strength for astronomical images: intensities below a tenth of the maximum are nearly
# linear, those above are compressed.
STRETCH_STRENGTH = 10.0


def stretch(x: Tensor, kind: str) -> Tensor:
    """Brightens the faint parts of images in [0, 1]: ``none``, ``sqrt``, ``asinh`` or ``log``.

    Example:
        >>> stretch(torch.tensor([0.0, 0.25, 1.0]), "sqrt")
        tensor([0.0000, 0.5000, 1.0000])
    """
    return STRETCHES[kind](x, STRETCH_STRENGTH)


def unstretch(x: Tensor, kind: str) -> Tensor:
    """Undoes :func:`stretch`."""
    return UNSTRETCHES[kind](x, STRETCH_STRENGTH)
