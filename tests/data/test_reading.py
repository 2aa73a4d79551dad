"""Single pictures: what is read, and what is refused rather than guessed."""

import io
import random
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from leapfactual.data import read_image
from leapfactual.errors import InputError

GREY = np.arange(30, dtype=np.uint8).reshape(5, 6) * 8
COLOUR = np.stack([GREY, 255 - GREY, GREY // 2], axis=2)


@pytest.mark.parametrize("suffix", ["png", "webp", "tiff"])
@pytest.mark.parametrize("pixels", [GREY, COLOUR], ids=["grey", "colour"])
def test_lossless_formats_give_the_pixels_back(tmp_path, suffix, pixels):
    path = tmp_path / f"i.{suffix}"
    Image.fromarray(pixels).save(path, **({"lossless": True} if suffix == "webp" else {}))
    image = read_image(path)
    if suffix == "webp" and pixels.ndim == 2:
        image = image[:1]
    expected = torch.tensor(pixels / 255).float()
    expected = expected[None] if pixels.ndim == 2 else expected.permute(2, 0, 1)
    torch.testing.assert_close(image, expected)


def test_jpeg_comes_near(tmp_path):
    Image.fromarray(COLOUR).save(tmp_path / "i.jpg", quality=98, subsampling=0)
    image = read_image(tmp_path / "i.jpg")
    assert (image - torch.tensor(COLOUR / 255).permute(2, 0, 1)).abs().mean() < 0.05


@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_16_bits_are_kept(tmp_path, suffix):
    pixels = np.arange(30, dtype=np.uint16).reshape(5, 6) * 2000
    Image.fromarray(pixels).save(tmp_path / f"i.{suffix}")
    torch.testing.assert_close(
        read_image(tmp_path / f"i.{suffix}")[0], torch.tensor(pixels / 65535).float()
    )


def test_palettes_bits_and_alpha(tmp_path):
    Image.fromarray(COLOUR).convert("P").save(tmp_path / "p.png")
    assert read_image(tmp_path / "p.png").shape == (3, 5, 6)
    Image.fromarray(GREY > 100).save(tmp_path / "bits.png")
    assert read_image(tmp_path / "bits.png").unique().tolist() == [0, 1]
    opaque = np.dstack([COLOUR, np.full_like(GREY, 255)])
    Image.fromarray(opaque).save(tmp_path / "opaque.png")
    torch.testing.assert_close(
        read_image(tmp_path / "opaque.png"), torch.tensor(COLOUR / 255).float().permute(2, 0, 1)
    )
    opaque[0, 0, 3] = 9
    Image.fromarray(opaque).save(tmp_path / "clear.png")
    with pytest.raises(InputError, match=r"clear\.png has transparent parts"):
        read_image(tmp_path / "clear.png")


def test_what_would_be_cut_off_turned_or_guessed(tmp_path):
    """16-bit colour, several pictures, 32-bit pixels: refused. A camera's rotation: applied."""
    picture = Image.fromarray(COLOUR)
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.save(tmp_path / "turned.jpg", exif=exif, quality=98)
    assert read_image(tmp_path / "turned.jpg").shape == (3, 6, 5)
    for name in ("many.tiff", "many.webp", "many.png"):
        more = {"save_all": True, "append_images": [Image.fromarray(255 - COLOUR)]}
        picture.save(tmp_path / name, **more)
        with pytest.raises(InputError, match="holds 2 pictures"):
            read_image(tmp_path / name)
    Image.fromarray(GREY.astype(np.int32)).save(tmp_path / "wide.tiff")
    with pytest.raises(InputError, match="32-bit pixels"):
        read_image(tmp_path / "wide.tiff")
    (tmp_path / "deep.png").write_bytes(
        png(2, 2, 16, 2, b"\0" + b"\x12\xff" * 6 + b"\0" + b"\1\2" * 6)
    )
    with pytest.raises(InputError, match="16-bit colours"):
        read_image(tmp_path / "deep.png")


def test_a_grey_level_marked_transparent(tmp_path):
    pixels = np.array([[1000, 20000], [40000, 60000]], dtype=np.uint16)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    (tmp_path / "unused.png").write_bytes(png(2, 2, 16, 0, rows, struct.pack(">H", 7)))
    torch.testing.assert_close(
        read_image(tmp_path / "unused.png")[0], torch.tensor(pixels / 65535).float()
    )
    (tmp_path / "used.png").write_bytes(png(2, 2, 16, 0, rows, struct.pack(">H", 20000)))
    with pytest.raises(InputError, match="transparent parts"):
        read_image(tmp_path / "used.png")


def png(width, height, bits, kind, rows, transparent=None):
    """A PNG written by hand, since Pillow does not write every kind."""

    def chunk(name, content):
        return (
            struct.pack(">I", len(content))
            + name
            + content
            + struct.pack(">I", zlib.crc32(name + content))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0))
    extra = chunk(b"tRNS", transparent) if transparent else b""
    return (
        b"\x89PNG\r\n\x1a\n"
        + header
        + extra
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def bomb():
    """A PNG header that claims 50,000 × 50,000 pixels."""
    return png(50_000, 50_000, 8, 0, b"")


def test_decompression_bombs_are_refused_before_they_are_unpacked(tmp_path):
    (tmp_path / "bomb.png").write_bytes(bomb())
    with pytest.raises(InputError, match=r"bomb\.png"):
        read_image(tmp_path / "bomb.png")
    Image.new("1", (6000, 6000)).save(tmp_path / "large.png")
    with pytest.raises(InputError, match="6000 × 6000 pixels, more than 25 million"):
        read_image(tmp_path / "large.png")


def test_thousands_of_damaged_images_are_read_or_refused(tmp_path):
    """Each mutation gives an image in [0, 1] or an InputError that names the file; never else."""
    rng = random.Random(0)
    outcomes = {"read": 0, "refused": 0}
    for suffix in ("png", "jpg", "webp", "tiff"):
        buffer = io.BytesIO()
        kind = {"jpg": "JPEG", "tiff": "TIFF"}.get(suffix, suffix.upper())
        Image.fromarray(COLOUR).save(buffer, format=kind)
        whole = buffer.getvalue()
        for _ in range(400):
            data = bytearray(whole)
            for _ in range(rng.randint(1, 8)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            if rng.random() < 0.3:
                del data[rng.randrange(len(data)) :]
            path = tmp_path / f"m.{suffix}"
            path.write_bytes(data)
            try:
                image = read_image(path)
            except InputError as error:
                assert f"m.{suffix}" in str(error)
                outcomes["refused"] += 1
            else:
                assert image.min() >= 0
                assert image.max() <= 1
                outcomes["read"] += 1
    assert min(outcomes.values()) > 100


def test_print_colours_are_converted(tmp_path):
    Image.new("CMYK", (6, 5), (0, 255, 255, 0)).save(tmp_path / "i.tiff")
    image = read_image(tmp_path / "i.tiff")
    assert image.shape == (3, 5, 6)
    assert image.mean((1, 2)).tolist() == pytest.approx([1, 0, 0], abs=0.01)


@pytest.mark.parametrize(
    ("turn", "place"), [(1, (0, 0)), (3, (-1, -1)), (6, (0, -1)), (8, (-1, 0))]
)
def test_every_orientation_of_a_camera_is_applied(tmp_path, turn, place):
    """The pixel that the camera wrote first is shown in the corner that it says."""
    pixels = np.zeros((5, 6), dtype=np.uint8)
    pixels[0, 0] = 255
    exif = Image.Exif()
    exif[0x0112] = turn
    Image.fromarray(pixels).save(tmp_path / "i.png", exif=exif)
    image = read_image(tmp_path / "i.png")[0]
    assert image.shape == ((5, 6) if turn < 5 else (6, 5))
    assert image[place] == image.sum() == 1
