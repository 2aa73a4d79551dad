"""Reading of single images: from a file to a tensor in [0, 1], without guesses."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from .. import checks
from ..errors import InputError, MissingData

FORMATS = ("PNG", "JPEG", "WEBP", "TIFF")
# The tag of EXIF.
ORIENTATION = 0x0112
# What is said of conversions.
FROM_16_BITS = "scaled from 16 bits"
MODES = {
    "1": "black and white",
    "P": "a palette",
    "PA": "a palette",
    "LA": "grey with an opaque alpha channel",
    "RGBA": "colour with an opaque alpha channel",
}


def read_image(path: str | Path, notes: set[str] | None = None) -> Tensor:
    """Reads a PNG, JPEG, WEBP or TIFF file, 8 or 16 bit, as ``(C, H, W)`` in [0, 1].

    Grey may have 16 bits, colour 8. The orientation that a camera noted is applied. An opaque
    alpha channel is dropped; a picture with transparent parts is refused, since what is behind
    them is not known, and so is a file with several pictures.

    Arguments:
        path: The file.
        notes: Takes what was converted, in words.
    """
    path = checks.path(path)
    try:
        if not path.is_file():
            raise MissingData(f"there is no image at {path}. Give a PNG, JPEG, WEBP or TIFF file.")
        with path.open("rb") as file:
            return decode(file, str(path), notes)
    except MissingData:
        raise
    except OSError as error:
        raise InputError(f"{path} cannot be read ({type(error).__name__}: {error}).") from error


def decode(file: IO[bytes], name: str, notes: set[str] | None = None) -> Tensor:
    """Reads a picture from an open file, as :func:`read_image` does; errors call it ``name``."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            picture = Image.open(file, formats=FORMATS)
        with picture:
            if picture.width * picture.height > checks.MAX_PIXELS:
                raise InputError(
                    f"{name} has {picture.width} × {picture.height} pixels, more than "
                    f"{checks.MAX_PIXELS // 1_000_000} million. Make it smaller first."
                )
            return _pixels(picture, file, name, set() if notes is None else notes)
    except UnidentifiedImageError as error:
        raise InputError(
            f"{name} is no PNG, JPEG, WEBP or TIFF image, or damaged. Save it as one of those."
        ) from error
    except InputError:
        raise
    except Exception as error:  # a damaged file can raise anything in its decoder
        raise InputError(
            f"{name} is damaged ({type(error).__name__}: {error}). Copy it again."
        ) from error


def _pixels(picture: Image.Image, file: IO[bytes], name: str, notes: set[str]) -> Tensor:
    frames = getattr(picture, "n_frames", 1)
    if frames > 1:
        raise InputError(f"{name} holds {frames} pictures. Save the one that you mean.")
    if _deep_colour(picture, file):
        raise InputError(
            f"{name} has 16-bit colours, which would be cut off. Save it with 8 bits."
        )
    transparent = picture.info.get("transparency")
    upright = ImageOps.exif_transpose(picture)
    if picture.getexif().get(ORIENTATION) in range(2, 9):
        notes.add("turned upright, as the camera noted")
    picture = upright
    if picture.mode not in ("L", "RGB", "F") and not picture.mode.startswith("I"):
        notes.add(f"converted from {MODES.get(picture.mode, picture.mode)}")
    if picture.mode in ("P", "PA") or (picture.mode == "RGB" and transparent is not None):
        picture = picture.convert("RGBA")
    if picture.mode in ("RGBA", "LA"):
        if np.asarray(picture.getchannel("A")).min() < 255:
            raise InputError(f"{name} has transparent parts. Put it on a background first.")
        picture = picture.convert("RGB" if picture.mode == "RGBA" else "L")
    elif picture.mode in ("1", "CMYK", "YCbCr", "LAB", "HSV"):
        picture = picture.convert("L" if picture.mode == "1" else "RGB")
    elif picture.mode == "I":
        raise InputError(f"{name} has 32-bit pixels. Save it with 8 or 16 bits.")
    pixels = np.asarray(picture)
    if pixels.dtype.itemsize == 2:
        notes.add(FROM_16_BITS)
    if pixels.ndim == 2 and isinstance(transparent, int) and (pixels == transparent).any():
        raise InputError(f"{name} has transparent parts. Put it on a background first.")
    block = to_unit(pixels[None], lambda _: name)[0]
    return block[None] if block.ndim == 2 else block.permute(2, 0, 1)


def _deep_colour(picture: Image.Image, file: IO[bytes]) -> bool:
    """Tells whether a picture has 16-bit colour, which the decoder would cut to 8 bits."""
    if picture.mode not in ("RGB", "RGBA", "CMYK"):
        return False
    if picture.format == "PNG":
        place = file.tell()
        file.seek(0)
        bits = file.read(25)[24:]
        file.seek(place)
        return bits == b"\x10"
    tags = getattr(picture, "tag_v2", None)
    depth = tags.get(258, ()) if tags is not None else ()
    return max(depth if isinstance(depth, tuple) else (depth,), default=8) > 8


def to_unit(pixels: NDArray[Any], name: Callable[[int], str]) -> Tensor:
    """Converts 8-bit, 16-bit and floating-point pixels to floats in [0, 1]."""
    if pixels.dtype.kind == "u" and pixels.dtype.itemsize <= 2:
        values = pixels.astype(np.float32)
        values /= np.iinfo(pixels.dtype).max
        return torch.from_numpy(values)
    if pixels.dtype.kind == "f":
        for n, image in enumerate(pixels):
            if not np.isfinite(image).all() or image.min() < 0 or image.max() > 1:
                raise InputError(
                    f"{name(n)} has floating-point pixels outside [0, 1], from {image.min():.4g} "
                    f"to {image.max():.4g}. Rescale them first."
                )
        return torch.from_numpy(pixels.astype(np.float32))
    raise InputError(f"{name(0)} has pixels of type {pixels.dtype}. Save 8 or 16 bits, or floats.")
