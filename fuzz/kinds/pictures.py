"""Pictures: PNG, JPEG, TIFF, WEBP, GIF and BMP, whole and damaged."""

import io
import random
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from leapfactual import masks
from leapfactual.data import open_images, read_image
from leapfactual.data.sources import SUFFIXES

from ..mutations import mutate_bytes
from .kind import Kind, Read, check_images, check_pixels


def seeds() -> list[tuple[str, bytes]]:
    """Returns whole pictures of many kinds, with the endings of their names."""
    pixels = np.random.default_rng(0).integers(0, 256, (9, 11, 4), dtype=np.uint8)
    colour = Image.fromarray(pixels[:, :, :3])
    grey = Image.fromarray(pixels[:, :, 0])
    opaque = colour.copy()
    opaque.putalpha(255)
    deep = Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 257)
    floats = Image.fromarray(pixels[:, :, 0].astype(np.float32) / 255)
    exif = Image.Exif()
    exif[274] = 6
    exif[306] = "2020:01:01 00:00:00"
    found = [
        *((".png", image, "PNG", {}) for image in (colour, grey, opaque, deep)),
        *((".png", image, "PNG", {}) for image in (Image.fromarray(pixels), grey.convert("1"))),
        (".png", colour.convert("P"), "PNG", {"transparency": 3}),
        (".png", grey.convert("P"), "PNG", {"exif": exif}),
        (".jpg", colour, "JPEG", {"exif": exif}),
        (".jpg", grey, "JPEG", {"progressive": True}),
        (".jpeg", colour.convert("CMYK"), "JPEG", {}),
        *((".tif", colour, "TIFF", {"compression": kind}) for kind in _TIFF),
        *((".tiff", image, "TIFF", {}) for image in (grey, deep, floats, opaque)),
        (".tif", grey, "TIFF", {"save_all": True, "append_images": [grey]}),
        (".webp", colour, "WEBP", {"lossless": True}),
        (".webp", colour, "WEBP", {"quality": 50}),
        (".gif", colour, "GIF", {}),
        (".bmp", colour, "BMP", {}),
    ]
    written = []
    for suffix, image, kind, options in found:
        file = io.BytesIO()
        image.save(file, format=kind, **options)
        written.append((suffix, file.getvalue()))
    return written


_TIFF = ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg")


def repair(content: bytes) -> bytes:
    """Computes the checksums of a PNG file anew, so that what is behind them is reached."""
    at, out = 8, bytearray(content[:8])
    while at + 12 <= len(content):
        (size,) = struct.unpack(">I", content[at : at + 4])
        body = content[at + 4 : at + 8 + size]
        out += content[at : at + 4] + body + struct.pack(">I", zlib.crc32(body))
        at += 12 + size
    return bytes(out)


def picture(rng: random.Random, whole: list[tuple[str, bytes]]) -> tuple[str, bytes]:
    """Returns a picture, mostly damaged, and the ending of its name."""
    suffix, content = rng.choice(whole)
    kind = rng.randrange(10)
    if kind > 0:
        content = mutate_bytes(rng, content, rng.choice((1, 2, 8)))
    if kind < 6 and content.startswith(b"\x89PNG"):
        content = repair(content)
    if kind == 9:
        content = content + rng.choice(whole)[1]
    if rng.random() < 0.15 or suffix not in SUFFIXES:
        suffix = rng.choice(SUFFIXES)
    return suffix, content


class Pictures(Kind):
    """Pictures, alone, as a mask and in folders."""

    name, share = "pictures", 18

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.whole = seeds()

    def make(self, rng: random.Random, given: Path, outside: Path) -> Read:
        """See :meth:`Kind.make`."""
        suffix, content = picture(rng, self.whole)
        path = given / f"a{suffix}"
        path.write_bytes(content)
        kind = rng.randrange(10)
        if kind == 0:
            return lambda: _read_mask(path)
        if kind < 4:
            size = rng.choice((None, (4, 5), (1, 1)))
            crop = rng.choice((None, 3, 9, 100))
            channels = rng.choice((None, 1, 3))
            folder = given / rng.choice(("", "cat", "\udcff", "a b"))
            folder.mkdir(exist_ok=True)
            for name in ("b", "\udcfe\udc80", "c.PNG."):
                other, more = picture(rng, self.whole)
                (folder / f"{name}{other}").write_bytes(more)
            if folder != given:
                path.rename(folder / path.name)
            return lambda: check_images(
                open_images(given, size=size, crop=crop, channels=channels)
            )
        return lambda: check_pixels(read_image(path)[None])


def _read_mask(path: Path) -> None:
    check_pixels(masks.read(path)[None])
