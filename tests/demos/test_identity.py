"""The network of identities, against NumPy and, where it is at hand, what dlib itself answers."""

import numpy as np
import pytest
import torch
from numpy.lib.stride_tricks import sliding_window_view

from leapfactual.data import packages
from leapfactual.demos.faces.identity import FaceEmbedder, IdentityDistance, crop_face
from leapfactual.errors import InputError, MissingData

random = np.random.default_rng(0)
STAGES = [(32, 32, 1)] * 3
STAGES += [(32, 64, 2)] + [(64, 64, 1)] * 3
STAGES += [(64, 128, 2)] + [(128, 128, 1)] * 2
STAGES += [(128, 256, 2)] + [(256, 256, 1)] * 2
STAGES += [(256, 256, 2)]


def whole(value):
    """A whole number as dlib writes it."""
    size = max(1, (value.bit_length() + 7) // 8)
    return bytes([size]) + value.to_bytes(size, "little")


def layer(name, *arrays, before=b""):
    flat = np.concatenate([array.reshape(-1) for array in arrays]).astype("<f4")
    sizes = b"".join(whole(n) for n in (2, flat.size, 1, 1, 1))
    return whole(len(name)) + name.encode() + before + sizes + flat.tobytes() + whole(7)


@pytest.fixture(scope="module")
def dlib(tmp_path_factory):
    """A file like the original's, with random weights, and those weights."""
    path = tmp_path_factory.mktemp("likeness") / "model.dat"
    shapes = [(32, 3, 7, 7)]
    for before, after, _ in STAGES:
        shapes += [(after, before, 3, 3), (after, after, 3, 3)]
    content, weights = whole(1) + whole(13) + b"loss_metric_2", []
    for shape in shapes:
        kernel = (random.standard_normal(shape) / np.prod(shape[1:]) ** 0.5).astype(np.float32)
        bias, scale, shift = random.standard_normal((3, shape[0])).astype(np.float32) / 5
        content += layer("con_4", kernel, bias) + layer("affine_", 1 + scale, shift)
        weights.append((kernel, bias, 1 + scale, shift))
    last = (random.standard_normal((256, 128)) / 16).astype(np.float32)
    path.write_bytes(content + layer("fc_2", last, before=whole(128) + whole(256)))
    return path, weights, last


def convolved(x, weights, stride=1, pad=0):
    """A convolution of maps ``(C, H, W)``, then its scale and shift."""
    kernel, bias, scale, shift = weights
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad)))
    windows = sliding_window_view(x, kernel.shape[2:], (1, 2))[:, ::stride, ::stride]
    maps = np.tensordot(kernel, windows, ((1, 2, 3), (0, 3, 4))) + bias[:, None, None]
    return maps * scale[:, None, None] + shift[:, None, None]


def by_hand(x, weights, last):
    """The features of one image ``(3, 150, 150)`` in [0, 1]."""
    given = iter(weights)
    x = (255 * x - np.array([122.782, 117.001, 104.298])[:, None, None]) / 256
    x = np.maximum(convolved(x, next(given), 2), 0)
    x = np.max([x[:, i : i + 69 : 2, j : j + 69 : 2] for i in range(3) for j in range(3)], 0)
    for _, _, stride in STAGES:
        out = np.maximum(convolved(x, next(given), stride, stride % 2), 0)
        out = convolved(out, next(given), 1, 1)
        if stride == 2:
            even = [n - n % 2 for n in x.shape[1:]]
            corners = [x[:, i : even[0] : 2, j : even[1] : 2] for i in (0, 1) for j in (0, 1)]
            x = np.mean(corners, 0)
        total = np.zeros([max(pair) for pair in zip(x.shape, out.shape, strict=True)])
        for part in (x, out):
            total[tuple(slice(n) for n in part.shape)] += part
        x = np.maximum(total, 0)
    return x.mean((1, 2)) @ last


def test_the_network_is_that_of_dlib(dlib):
    path, weights, last = dlib
    x = random.uniform(0, 1, (1, 3, 150, 150)).astype(np.float32)
    found = FaceEmbedder.load(path)(torch.from_numpy(x))
    wanted = torch.tensor(by_hand(x[0], weights, last)[None]).float()
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3 * float(wanted.abs().max()))


def test_a_person_is_no_distance_from_themself(dlib):
    likeness = IdentityDistance(FaceEmbedder.load(dlib[0]))
    x, other = torch.rand(2, 3, 3, 512, 512)
    assert not likeness(x, x).any()
    found = likeness(x, other)
    torch.testing.assert_close(likeness(other, x), found)
    torch.testing.assert_close(likeness(x[1:], other[1:]), found[1:])


def test_the_face_is_cut_out():
    x = torch.zeros(1, 3, 256, 256)
    x[:, :, 66:246, 38:218] = 1.0
    face = crop_face(x)
    assert face.shape == (1, 3, 150, 150)
    torch.testing.assert_close(face, torch.ones_like(face))
    torch.testing.assert_close(crop_face(torch.ones(1, 3, 1024, 1024)), torch.ones_like(face))


def test_weights_that_are_not_there_or_do_not_fit_are_named(dlib, tmp_path, monkeypatch):
    monkeypatch.setenv("LEAPFACTUAL_CACHE", str(tmp_path))
    with pytest.raises(MissingData, match="leapfactual data get identities"):
        FaceEmbedder.load()
    content = dlib[0].read_bytes()
    for length in (0, 1000, 40_000):
        (tmp_path / "torn.dat").write_bytes(content[:length])
        with pytest.raises(InputError, match=r"torn.dat is not the network of identities"):
            FaceEmbedder.load(tmp_path / "torn.dat")
    (tmp_path / "other.dat").write_bytes(layer("con_4", np.zeros(10)))
    with pytest.raises(InputError, match="10 weights in con_4, expected 4736"):
        FaceEmbedder.load(tmp_path / "other.dat")


REFERENCE = [-0.057986, 0.097235, 0.055855, -0.043941, -0.139166, -0.057118, -0.047075, -0.023145]


@pytest.mark.skipif(not packages.present("identities"), reason="not in the cache")
def test_features_are_those_that_dlib_gives():
    """The first features that dlib 20.0.1 gives for an image of two slopes and a checkerboard."""
    row, column = torch.meshgrid(torch.arange(150), torch.arange(150), indexing="ij")
    x = torch.stack([row, column, 99 * ((row // 10 + column // 10) % 2)])
    found = FaceEmbedder.load()(x[None] / 255)[0, :8]
    torch.testing.assert_close(found, torch.tensor(REFERENCE), rtol=0, atol=1e-5)
