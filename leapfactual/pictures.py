"""Tensors to pictures: grids, PNG files."""

import math
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from . import checks
from .files import atomic


def grid(x: Tensor, columns: int | None = None, gap: int = 2) -> Image.Image:
    """Lays images out in rows.

    Arguments:
        x: Images, with shape ``(B, C, H, W)`` with one or three channels, in [0, 1].
        columns: How many to a row; about as many as there are rows when not given.
        gap: How many white pixels stand between two images.

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
