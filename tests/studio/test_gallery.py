"""Pictures that are shown, and pictures that are brought, by friends and by others."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from leapfactual.data import open_images
from leapfactual.errors import InputError, MissingData
from leapfactual.imaging import to_pil
from leapfactual.studio import gallery as module
from leapfactual.studio.gallery import Gallery


def encoded(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, format=kind, **options)
    return file.getvalue()


@pytest.fixture
def gallery():
    return Gallery(torch.rand(5, 1, 12, 8))


def test_of_many_pictures_some_are_taken(monkeypatch):
    monkeypatch.setattr(module, "MAX_PICTURES", 4)
    gallery = Gallery(torch.arange(10.0).reshape(10, 1, 1, 1) / 10)
    assert gallery.rows == [0, 3, 6, 9]
    assert gallery["2"].x.item() == pytest.approx(0.6)
    assert gallery["2"].name == "picture 6"


def test_pictures_on_disk_are_read_when_they_are_looked_at(tmp_path):
    for n in range(3):
        to_pil(torch.full((1, 8, 8), n / 2)).save(tmp_path / f"{n}.png")
    gallery = Gallery(open_images(tmp_path))
    assert gallery["1"].name.endswith("1.png")
    assert gallery["1"].x.shape == (1, 1, 8, 8)
    assert gallery["2"].x.mean() == 1


@pytest.mark.parametrize(
    ("kind", "mode"),
    [("PNG", "RGB"), ("JPEG", "RGB"), ("WEBP", "RGB"), ("TIFF", "L"), ("PNG", "P")],
)
def test_what_is_brought_gets_size_and_colours_of_the_others(gallery, kind, mode):
    picture = gallery.bring(encoded(Image.new("RGB", (40, 30)).convert(mode), kind), "mine")
    assert picture.x.shape == (1, 1, 12, 8)
    assert gallery[picture.key] is picture


def test_the_orientation_that_a_camera_noted_is_applied():
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = np.zeros((8, 12), dtype=np.uint8)
    pixels[:, :6] = 255
    turned = encoded(Image.fromarray(pixels), exif=exif)
    picture = Gallery(torch.zeros(1, 1, 12, 8)).bring(turned, "photo")
    assert picture.x[0, 0, :6].mean() == 1
    assert picture.x[0, 0, 6:].mean() == 0


HOSTILE = {
    "nothing": b"",
    "text": b"<svg onload=alert(1)></svg>",
    "a page": b"<!doctype html><script>alert(1)</script>",
    "half a picture": encoded(Image.effect_noise((64, 64), 50))[:900],
    "a vast picture": encoded(Image.new("L", (6000, 5000))),
    "an animation": encoded(
        Image.new("L", (8, 8)),
        "WEBP",
        save_all=True,
        append_images=[Image.new("L", (8, 8), 9)],
    ),
    "transparent": encoded(Image.new("RGBA", (8, 8), (0, 0, 0, 0))),
    "a gif": encoded(Image.new("L", (8, 8)), "GIF"),
    "16-bit colours": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"
    + bytes.fromhex("000000080000000810020000"),
    "a zip": b"PK\x03\x04" + bytes(100),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_hostile_uploads_are_refused_in_a_sentence(gallery, content):
    with pytest.raises(InputError, match="the picture") as caught:
        gallery.bring(content, "innocent.png")
    assert "/" not in str(caught.value).replace("PNG, JPEG", "")
    assert not gallery.brought


def test_a_name_is_shortened_and_cannot_steer_anything(gallery):
    picture = gallery.bring(encoded(Image.new("L", (8, 8))), "a\x1b[2J\n\x00b" + "c" * 999)
    assert picture.name.startswith("a [2J bccc")
    assert len(picture.name) == module.MAX_NAME
    assert gallery.bring(encoded(Image.new("L", (8, 8))), "\n").name == "a picture"


def test_the_last_few_are_held(gallery, monkeypatch):
    monkeypatch.setattr(module, "MAX_BROUGHT", 3)
    first, second = (gallery.bring(encoded(Image.new("L", (8, 8), n)), str(n)) for n in (0, 1))
    for n in (2, 3):
        assert gallery[first.key], "what is looked at stays"
        gallery.bring(encoded(Image.new("L", (8, 8), n)), str(n))
    with pytest.raises(MissingData):
        gallery[second.key]
    assert gallery[first.key].name == "0"


def test_what_is_brought_is_stretched_as_the_others_are():
    gallery = Gallery(torch.zeros(1, 1, 8, 8), stretch="sqrt")
    picture = gallery.bring(encoded(Image.new("L", (8, 8), 51)), "dim")
    assert picture.x.mean() == pytest.approx(0.2**0.5, abs=1e-4)
