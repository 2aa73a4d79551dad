r"""Shapes of strokes: area, length, thickness, slant, width and height of handwritten digits.

A digit is enlarged four times, smoothly, and cut at half of its range. The *area* counts what is
left. Its *skeleton*, the medial axis, has a *length*, the sum of the links between neighbouring
pixels; the distance from it to the border is half of the *thickness*. The *slant* is the shear
that makes the moments of the grey image upright, and *width* and *height* are those of the
parallelogram along that shear that leaves out two per cent of the mass in each dimension.

The medial axis is what remains when pixels are taken away in the order of their distance to the
border, as long as that changes neither connections nor ends. Many pixels tie, and how ties are
broken moves the length by a per cent or two; here they are broken at random several times, always
in the same way, and the results averaged. All images of a batch are thinned together: step by step
each loses its next pixel.

References:
    | Morpho-MNIST: Quantitative Assessment and Diagnostics for Representation Learning (Castro et
    | al., 2019)
    | https://jmlr.org/papers/v20/19-033.html
"""

from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import checks
from ..errors import InputError, MissingExtra

NAMES = ("area", "length", "thickness", "slant", "width", "height")
SCALE = 4
LEFT_OUT = 0.02
TIE_BREAKS = 16
# Small enough for a batch to stay in the processor's cache while it is thinned.
CHUNK = 200

Array = NDArray[Any]


def morphometrics(x: Tensor, workers: int = 1) -> dict[str, Tensor]:
    """Returns the six measures of each digit, in pixels of the image; the slant in radians.

    Images without contrast give NaN.

    Arguments:
        x: Grey images, bright on dark, with shape ``(B, 1, H, W)``.
        workers: How many processes share the work.

    Returns:
        For each name a tensor of shape ``(B,)``.
    """
    checks.images(x)
    if x.ndim != 4 or x.shape[1] != 1:
        raise InputError(
            f"morphometrics are for grey images (B, 1, H, W), got {checks.shape(x)}. Make colours "
            "grey first."
        )
    checks.positive(workers, "workers")
    _ndimage()
    if not len(x):
        return {name: torch.zeros(0, dtype=torch.float64) for name in NAMES}
    chunks = [part.numpy() for part in torch.split(x[:, 0].detach().cpu().double(), CHUNK)]
    if workers == 1 or len(chunks) == 1:
        parts = [_measure(chunk) for chunk in chunks]
    else:
        with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
            parts = list(pool.map(_measure, chunks))
    return {
        name: torch.from_numpy(np.concatenate([part[name] for part in parts])) for name in NAMES
    }


def relative_error(measured: dict[str, Tensor], true: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the absolute relative error of each measure, as the paper reports it."""
    return {name: ((measured[name] - true[name]) / true[name]).abs() for name in NAMES}


def _measure(x: Array) -> dict[str, Array]:
    grey = enlarge(x)
    low, high = grey.min((1, 2)), grey.max((1, 2))
    flat = ~(high - low > 1e-6)
    mask = (grey >= ((low + high) / 2)[:, None, None]) & ~flat[:, None, None]
    length, thickness = _strokes(mask)
    slant, width, height = _bounds(grey, flat)
    measures = {
        "area": mask.sum((1, 2)) / SCALE**2,
        "length": length,
        "thickness": thickness,
        "slant": slant,
        "width": width,
        "height": height,
    }
    return {name: np.where(flat, np.nan, values) for name, values in measures.items()}


def enlarge(x: Array) -> Array:
    """Enlarges images by cubic splines and smooths them; both are linear in rows and columns."""
    (down, up), (left, right) = _matrices(x.shape[1]), _matrices(x.shape[2])
    low, high = x.min((1, 2), keepdims=True), x.max((1, 2), keepdims=True)
    grey: Array = up @ np.clip(down @ x @ left.T, low, high) @ right.T
    return grey


@lru_cache(maxsize=8)
def _matrices(size: int) -> tuple[Array, Array]:
    """Returns the matrices that resize and that smooth one dimension."""
    ndimage = _ndimage()
    resize = ndimage.zoom(np.eye(size), (SCALE, 1), order=3, mode="mirror", grid_mode=True)
    smooth = ndimage.gaussian_filter1d(np.eye(SCALE * size), 2 * SCALE / 6, axis=0, mode="reflect")
    return resize, smooth


def _strokes(mask: Array) -> tuple[Array, Array]:
    """Returns length and thickness of the strokes, averaged over ways to break ties."""
    distance = np.stack([_ndimage().distance_transform_edt(image) for image in mask])
    length, thickness = np.zeros(len(mask)), np.zeros(len(mask))
    for seed in range(TIE_BREAKS):
        s = thin(mask, distance, seed)
        straight = (s[:, 1:] & s[:, :-1]).sum((1, 2)) + (s[:, :, 1:] & s[:, :, :-1]).sum((1, 2))
        slanted = (s[:, 1:, 1:] & s[:, :-1, :-1]).sum((1, 2))
        slanted = slanted + (s[:, 1:, :-1] & s[:, :-1, 1:]).sum((1, 2))
        length += (straight + np.sqrt(2) * slanted) / SCALE / TIE_BREAKS
        mean = (distance * s).sum((1, 2)) / np.maximum(s.sum((1, 2)), 1)
        thickness += 2 * mean / SCALE / TIE_BREAKS
    return length, thickness


def thin(mask: Array, distance: Array, seed: int) -> Array:
    """Returns the medial axes of a batch of masks ``(B, H, W)``.

    Arguments:
        mask: What belongs to the shapes.
        distance: The distance of each pixel to the border.
        seed: The seed of the order among pixels of equal distance and neighbourhood.
    """
    keep, neighbours = _tables()
    b, h, w = mask.shape
    width = w + 2
    padded = np.zeros((b, h + 2, width), dtype=np.uint8)
    padded[:, 1:-1, 1:-1] = mask
    image, y, x = np.nonzero(mask)
    place = (y + 1) * width + x + 1
    flat, offset = padded.reshape(-1), np.arange(b) * (h + 2) * width
    around = [dy * width + dx for dy in (-1, 0, 1) for dx in (-1, 0, 1)]

    def code_at(where: Array) -> Array:
        code = np.zeros(len(where), dtype=np.int16)
        for bit, step in enumerate(around):
            code += flat[where + step].astype(np.int16) << bit
        return code

    place = place + offset[image]
    code = code_at(place)
    tie = np.random.default_rng(seed).permutation(len(image))
    order = np.lexsort((tie, 9 - neighbours[code], distance[image, y, x], image))
    image, place = image[order], place[order]

    count = np.bincount(image, minlength=b)
    start = np.concatenate([[0], np.cumsum(count)[:-1]])
    longest = np.argsort(-count, kind="stable")
    start, active = start[longest], np.searchsorted(-count[longest], -np.arange(count.max()))
    for step, rows in enumerate(active):
        here = place[start[:rows] + step]
        flat[here] = keep[code_at(here)]
    return padded[:, 1:-1, 1:-1].astype(bool)


@lru_cache(maxsize=1)
def _tables() -> tuple[Array, Array]:
    """Returns, for each of 512 neighbourhoods, whether its centre stays, and its number of pixels.

    The centre stays when taking it away would change the number of connected pieces, or when it is
    an end: when at most one neighbour is there.
    """
    label, eight = _ndimage().label, np.ones((3, 3))
    keep, neighbours = np.zeros(512, dtype=np.uint8), np.zeros(512, dtype=np.int32)
    for code in range(512):
        pattern = (code >> np.arange(9) & 1).reshape(3, 3)
        neighbours[code] = pattern.sum()
        without = pattern.copy()
        without[1, 1] = 0
        parts, others = label(pattern, eight)[1], label(without, eight)[1]
        keep[code] = pattern[1, 1] and (parts != others or pattern.sum() < 3)
    return keep, neighbours


def _bounds(grey: Array, flat: Array) -> tuple[Array, Array, Array]:
    """Returns slant, width and height."""
    b, h, w = grey.shape
    mass = np.where(flat, 1.0, grey.sum((1, 2)))
    y, x = np.arange(h)[:, None], np.arange(w)[None]
    centre_y, centre_x = (grey * y).sum((1, 2)) / mass, (grey * x).sum((1, 2)) / mass
    dy, dx = y - centre_y[:, None, None], x - centre_x[:, None, None]
    tilt = -(grey * dx * dy).sum((1, 2)) / np.where(flat, 1.0, (grey * dy**2).sum((1, 2)))
    width, height = np.zeros(b), np.zeros(b)
    for n in range(b):
        if flat[n]:
            continue
        height[n] = _extent(grey[n].sum(1), mass[n])
        sheared = x + tilt[n] * (y - centre_y[n])
        bins = np.round(sheared - np.floor(sheared.min())).astype(int)
        width[n] = _extent(np.bincount(bins.ravel(), grey[n].ravel()), mass[n])
    return np.arctan(tilt), width, height


def _extent(profile: Array, mass: float) -> float:
    """Returns the length of the middle of a profile that leaves out two per cent of the mass."""
    share = np.cumsum(profile) / mass
    low, high = np.interp([LEFT_OUT / 2, 1 - LEFT_OUT / 2], share, np.arange(len(profile)))
    return float(high - low) / SCALE


def _ndimage() -> Any:  # noqa: ANN401 - a module
    try:
        from scipy import ndimage
    except ImportError as error:
        raise MissingExtra(
            "morphometrics need scipy, which is not installed. "
            "Run `pip install 'leapfactual[metrics]'`."
        ) from error
    return ndimage
