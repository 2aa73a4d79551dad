"""Faces are found in photographs and cut out alike."""

import math

import pytest
import torch
from PIL import Image, ImageDraw

from leapfactual.data import packages
from leapfactual.demos.faces import photographs
from leapfactual.demos.faces.landmarks import LANDMARKS, SmileOracle
from leapfactual.errors import InputError
from leapfactual.generators import GAN, Inversion
from leapfactual.imaging import as_images

COLOURS = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])


ROWS, COLUMNS = torch.meshgrid(torch.arange(256.0), torch.arange(256.0), indexing="ij")


class Dots:
    """Sees a face where there are a red, a green and a blue dot, its eyes and its mouth."""

    def detect(self, x):
        points, presence = torch.zeros(len(x), LANDMARKS, 3), torch.zeros(len(x))
        groups = (photographs.LEFT_EYE, photographs.RIGHT_EYE, photographs.MOUTH)
        for n, image in enumerate(x):
            sizes = []
            for colour, group in zip(COLOURS, groups, strict=True):
                match = ((image - colour[:, None, None]).abs().amax(0) < 0.4).float()
                size = match.sum()
                sizes.append(size)
                place = torch.stack([(match * COLUMNS).sum(), (match * ROWS).sum()]) / size
                points[n, group, :2] = torch.nan_to_num(place, nan=128.0)
            presence[n] = 1.0 if min(sizes) > 20 else 0.0
        return points, presence


def photo(size, places, radius):
    picture = Image.new("RGB", size, (128, 128, 128))
    draw = ImageDraw.Draw(picture)
    for (x, y), colour in zip(places, ("#f00", "#0f0", "#00f"), strict=True):
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)
    return picture


def turned(middle, scale, angle):
    """Returns eyes and mouth around a point, in some size and turn."""
    cos, sin = math.cos(angle), math.sin(angle)
    face = [(-1.0, 0.0), (1.0, 0.0), (0.0, 2.1)]
    return [
        (middle[0] + scale * (x * cos - y * sin), middle[1] + scale * (x * sin + y * cos))
        for x, y in face
    ]


def test_faces_are_cut_alike_wherever_they_are():
    cases = [((300, 200), 40, 0.0), ((420, 150), 25, 0.3), ((150, 220), 60, -0.25)]
    found = []
    for middle, scale, angle in cases:
        picture = photo((640, 400), turned(middle, scale, angle), scale / 5)
        cut = photographs.align(picture, Dots(), side=256)
        points, _ = Dots().detect(photographs.center_face(as_images(cut)))
        found.append(points[0, [468, 473, 61], :2])
    for other in found[1:]:
        assert (other - found[0]).abs().max() < 3
    left, right, mouth = found[0]
    assert (right - left)[1].abs() < 3
    assert (right - left)[0] == pytest.approx(256 / 4, abs=4)
    assert (left + right)[0] / 2 == pytest.approx(128, abs=3)
    assert mouth[1] > left[1] + 40


def test_a_photograph_without_a_face_is_said(monkeypatch):
    monkeypatch.setattr(photographs, "SHARES", (1.0, 0.5))
    with pytest.raises(InputError, match="no face was found"):
        photographs.align(Image.new("RGB", (200, 300), "white"), Dots())


def test_windows_cover_the_picture_and_stay_inside():
    seen = torch.zeros(60, 100)
    for left, top, right, bottom in photographs.windows(100, 60):
        assert 0 <= left < right <= 100.01
        assert 0 <= top < bottom <= 60.01
        assert right - left == pytest.approx(bottom - top)
        if right - left < 25:
            seen[math.ceil(top) : int(bottom), math.ceil(left) : int(right)] += 1
    assert (seen > 0).all()


def test_a_square_that_is_upright_is_cropped():
    rows, columns = torch.linspace(0, 1, 40)[:, None], torch.linspace(0, 1, 50)
    shades = [rows * columns, rows.expand(40, 50), (columns * 3).sin().expand(40, 50)]
    x = torch.stack(shades)[None]
    picture = Image.fromarray((x[0].permute(1, 2, 0) * 255).byte().numpy())
    corners = torch.tensor([[10.0, 5.0], [10.0, 35.0], [40.0, 35.0], [40.0, 5.0]])
    cut = photographs.cut(picture, corners, 30)
    wanted = picture.crop((10, 5, 40, 35))
    assert (as_images(cut) - as_images(wanted)).abs().max() < 0.02


def test_what_inverts_badly_is_said():
    def synthesis(w):
        return w[:, :, None, None].expand(-1, 3, 64, 64).tanh()

    gan = GAN(synthesis, 3, (3, 64, 64), inversion=Inversion(steps=60, learning_rate=0.2))

    def face(picture):
        return as_images(photographs.align(picture, Dots(), 64))

    def apart(x, other):
        return 6 * (x - other).abs().flatten(1).mean(1)

    plain = photo((200, 200), turned((100, 90), 20, 0.0), 4)
    found = photographs.invert(face(plain), gan, apart)
    assert found.error < 0.08
    assert "inverts to the same person" in found.verdict
    striped = plain.copy()
    ImageDraw.Draw(striped).rectangle((0, 140, 200, 200), fill="white")
    ImageDraw.Draw(striped).rectangle((0, 0, 200, 80), fill="black")
    poor = photographs.invert(face(striped), gan, apart)
    assert poor.error > found.error
    assert "does not invert well" in poor.verdict


def test_a_real_face_is_found():
    data = pytest.importorskip("skimage.data")
    if not packages.present("face-landmarks"):
        pytest.skip("the network of landmarks is not in the cache: leapfactual data get it")
    mesh = SmileOracle.load().mesh
    cut = photographs.align(Image.fromarray(data.astronaut()), mesh, side=256)
    points, presence = photographs.anchors(mesh, as_images(cut))
    assert presence.item() > 0.99
    wanted = torch.tensor([[0.374, 0.469], [0.621, 0.469], [0.499, 0.722]])
    assert (points[0] - wanted).abs().max() < 0.05


def test_the_places_are_those_in_the_portrait():
    x = as_images(photo((256, 256), [(100, 120), (156, 120), (128, 180)], 8))
    points, presence = photographs.anchors(Dots(), x)
    assert presence.item() == 1
    wanted = torch.tensor([[100.0, 120.0], [156.0, 120.0], [128.0, 180.0]]) / 256
    assert (points[0] - wanted).abs().max() < 0.01


@pytest.mark.parametrize("size", [(40, 40), (3000, 500)])
def test_a_photograph_of_an_odd_size_is_said(size):
    with pytest.raises(InputError, match=f"got {size[0]} × {size[1]}"):
        photographs.align(Image.new("RGB", size), Dots())
