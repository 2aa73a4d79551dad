"""Galaxies: three kinds of source, one interface."""

import dataclasses
import hashlib
import io
import warnings
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from leapfactual.data import galaxies, open_images, packages
from leapfactual.data.datasets import split
from leapfactual.data.galaxies import DECALS_CLASSES, RADIO_CLASSES
from leapfactual.errors import InputError, MissingData, MissingExtra

h5py = pytest.importorskip("h5py")


# -- the split --


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.9])
def test_a_split_has_the_same_share_of_every_class(share):
    labels = torch.tensor([0] * 40 + [1] * 7 + [3] * 2)[torch.randperm(49)]
    train, test = split(labels, share, seed=3)
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(49))
    assert train.tolist() == sorted(train.tolist())
    for label, count in ((0, 40), (1, 7), (3, 2)):
        expected = min(max(round(share * count), 1), count - 1)
        assert (labels[test] == label).sum() == expected


def test_a_split_is_drawn_with_the_seed():
    labels = torch.tensor([0, 1] * 20)
    again, other = split(labels, 0.2, seed=1), split(labels, 0.2, seed=2)
    assert torch.equal(split(labels, 0.2, seed=1)[1], again[1])
    assert not torch.equal(again[1], other[1])


def test_what_cannot_be_split_is_named():
    with pytest.raises(InputError, match="the class 1 has 1 image; one to train and one to test"):
        split(torch.tensor([0, 0, 1]), 0.5, seed=0)
    with pytest.raises(InputError, match="the class cat has 1 image"):
        split(torch.tensor([0, 0, 1]), 0.5, seed=0, classes=("dog", "cat"))
    for share in (0, 1, -0.5):
        with pytest.raises(InputError, match="between 0 and 1, got"):
            split(torch.tensor([0, 0]), share, seed=0)


# -- radio galaxies --


@pytest.fixture
def radio(tmp_path, monkeypatch):
    """A cache with a file in the layout of the package; returns the pixels and their labels."""
    pixels = np.random.default_rng(0).integers(0, 256, (13, 300, 300), dtype=np.uint8)
    labels = [n % 4 for n in range(13)]
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        for n, image in enumerate(pixels):
            group = file.create_group(f"data_{n + 1}")
            group["Img"], group["Label_literature"] = image, float(labels[n])
            group["Split_literature"] = {0: "valid", 1: "test"}.get(n % 5, "train")
    path = tmp_path / "cache" / "radio-galaxies" / "galaxy_data_h5.zip"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("galaxy_data_h5.h5", buffer.getvalue())
    card = packages.CARDS["radio-galaxies"]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    member = dataclasses.replace(card.members[0], sha256=digest)
    monkeypatch.setenv("LEAPFACTUAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(
        packages.CARDS, "radio-galaxies", dataclasses.replace(card, members=(member,))
    )
    return pixels, torch.tensor(labels)


def test_radio_galaxies_come_with_the_split_of_the_literature(radio):
    pixels, labels = radio
    seen = []
    train, test = galaxies(on_image=lambda n, of: seen.append((n, of)))
    held = [0, 1, 5, 6, 10, 11]
    rest = [n for n in range(13) if n not in held]
    expected = torch.tensor(pixels[:, None, 86:214, 86:214] / 255).float().sqrt()
    torch.testing.assert_close(train.images, expected[rest])
    torch.testing.assert_close(test.images, expected[held])
    assert torch.equal(train.labels, labels[rest])
    assert torch.equal(test.labels, labels[held])
    assert train.classes == test.classes == RADIO_CLASSES
    assert seen == [(n, 13) for n in range(1, 14)]
    again, _ = galaxies(test_share=0.5, seed=9)
    assert torch.equal(again.images, train.images), "the split is given"


def test_radio_galaxies_are_resized_before_they_are_stretched(radio, tmp_path):
    pixels, _ = radio
    train, _ = galaxies(size=32)
    assert train.images.shape == (7, 1, 32, 32)
    Image.fromarray(pixels[2]).save(tmp_path / "i.png")
    alone = open_images(tmp_path / "i.png", crop=128, size=(32, 32)).stretched("sqrt")
    torch.testing.assert_close(train.images[:1], alone[:])


def test_another_centre_can_be_cut_out(radio):
    pixels, _ = radio
    train, _ = galaxies(size=64, crop=64)
    expected = torch.tensor(pixels[2, None, 118:182, 118:182] / 255).float().sqrt()
    torch.testing.assert_close(train.images[0], expected)
    with pytest.raises(InputError, match="at most the 300 pixels.*radio-galaxies.*got 301"):
        galaxies(crop=301)


def test_radio_galaxies_that_are_not_there_say_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setenv("LEAPFACTUAL_CACHE", str(tmp_path))
    with pytest.raises(MissingData, match="Run `leapfactual data get radio-galaxies`"):
        galaxies()


def test_without_h5py_it_says_what_to_install(radio, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(MissingExtra, match=r"leapfactual\[hdf5\]"):
        galaxies()


# -- Galaxy10 DECaLS --


def decals(path, count=12, **changes):
    """A file in the format of Galaxy10 DECaLS, with three classes."""
    images = np.random.default_rng(0).integers(0, 256, (count, 256, 256, 3), dtype=np.uint8)
    arrays = {"images": images, "ans": (np.arange(count) % 3 * 4).astype(np.uint8), **changes}
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            if array is not None:
                file[name] = array
    return path


@pytest.mark.parametrize("size", [150, 32])
def test_galaxy10_is_cut_resized_and_split(tmp_path, monkeypatch, size):
    monkeypatch.setattr(__import__("sys").modules["leapfactual.data.galaxies"], "BLOCK", 5)
    path = decals(tmp_path / "Galaxy10_DECals.h5")
    seen = []
    train, test = galaxies(
        path, size=size, test_share=0.25, seed=4, on_image=lambda n, of: seen.append((n, of))
    )
    whole = open_images(path, crop=150, size=(size, size))[:]
    labels = torch.arange(12) % 3 * 4
    rows = split(labels, 0.25, 4)
    for found, part in zip((train, test), rows, strict=True):
        torch.testing.assert_close(found.images, whole[part])
        assert torch.equal(found.labels, labels[part])
        assert found.classes == DECALS_CLASSES
        assert found.images.dtype == torch.float32
    assert test.labels.bincount().tolist() == [1, 0, 0, 0, 1, 0, 0, 0, 1]
    assert seen == [(5, 12), (10, 12), (12, 12)]
    assert len(DECALS_CLASSES) == 10
    smaller = galaxies(path, size=32, crop=100, test_share=0.25, seed=4)[0].images
    cut = open_images(path, crop=100, size=(32, 32))[:][rows[0]]
    torch.testing.assert_close(smaller, cut)
    with pytest.raises(InputError, match="at most the 256 pixels.*got 300"):
        galaxies(path, crop=300)
    other = galaxies(path, size=size, test_share=0.25, seed=5)[1]
    assert not torch.equal(other.images, test.images)


def truncated(path):
    path.write_bytes(decals(path).read_bytes()[:-1000])


def torn(path):
    with h5py.File(path, "w") as file:
        shape = (4, 256, 256, 3)
        data = file.create_dataset("images", shape, "u1", chunks=(1, *shape[1:]), compression=4)
        data[:] = np.full(shape, 7, dtype=np.uint8)
        file["ans"] = np.zeros(4, dtype=int)
        place = data.id.get_chunk_info(2).byte_offset
    content = bytearray(path.read_bytes())
    content[place : place + 8] = b"\0" * 8
    path.write_bytes(content)


def grouped(path):
    decals(path, images=None)
    with h5py.File(path, "a") as file:
        file.create_group("images")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: decals(p, images=None), "must hold an array `images`; it has ans. Give Galaxy"),
        (grouped, "`images` in .* is no array"),
        (lambda p: decals(p, ans=None), "must hold an array `ans`; it has images. Give Galaxy10"),
        (
            lambda p: decals(p, images=np.zeros((12, 69, 69, 3), np.uint8)),
            r"must be uint8 of shape \(N, 256, 256, 3\), got uint8 of \(12, 69, 69, 3\). Give",
        ),
        (
            lambda p: decals(p, images=np.zeros((1, 256, 256, 3), np.float32)),
            r"must be uint8 of shape .*, got float32 of \(1, 256, 256, 3\)",
        ),
        (lambda p: decals(p, images=np.uint8(3)), r"must be uint8 of shape .*, got uint8 of \(\)"),
        (
            lambda p: decals(p, ans=np.zeros(11, int)),
            r"must be whole numbers, one for each of 12 images, got int64 of \(11,\). Give",
        ),
        (lambda p: decals(p, ans=np.zeros(12)), r"whole numbers, .* got float64 of \(12,\)"),
        (lambda p: decals(p, ans=np.arange(12)), "`ans` in .*must be 0 to 9, got 10. Give"),
        (lambda p: decals(p, ans=np.full(12, -1)), "must be 0 to 9, got -1"),
        (lambda p: decals(p, 0), "must hold images, got none"),
        (
            lambda p: decals(p, ans=np.arange(12) // 11),
            "cannot be split: the class Merging has 1 image.*Add images, or leave the class out",
        ),
        (
            truncated,
            r"cannot be read \(OSError: .*truncated.*Expected the whole.*Download it again",
        ),
        (torn, "cannot be read .*Download it again"),
        (lambda p: p.write_bytes(b"no HDF5"), "cannot be read .*Download it again"),
    ],
)
def test_wrong_files_of_galaxy10_are_named(tmp_path, make, message):
    path = tmp_path / "mine.hdf5"
    make(path)
    with pytest.raises(InputError, match=message) as caught:
        galaxies(path)
    assert str(path) in str(caught.value)


# -- pictures of one's own --


@pytest.fixture
def pictures(tmp_path):
    """A folder of class folders, with 8 and 4 pictures."""
    rng = np.random.default_rng(0)
    for kind, count in (("round", 8), ("edge-on", 4)):
        (tmp_path / "sky" / kind).mkdir(parents=True)
        for n in range(count):
            pixels = rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "sky" / kind / f"{n}.png")
    return tmp_path / "sky"


def zipped(folder):
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*.png")):
            archive.write(file, file.relative_to(folder.parent))
    return path


@pytest.mark.parametrize("packed", [False, True], ids=["folder", "zip"])
def test_pictures_in_class_folders(pictures, packed):
    source = zipped(pictures) if packed else str(pictures)
    seen = []
    train, test = galaxies(
        source, size=16, test_share=0.25, seed=2, on_image=lambda n, of: seen.append((n, of))
    )
    whole = open_images(pictures, size=(16, 16))
    rows = split(whole.labels, 0.25, 2)
    for found, part in zip((train, test), rows, strict=True):
        assert torch.equal(found.images, whole[part])
        assert torch.equal(found.labels, whole.labels[part])
        assert found.classes == ("edge-on", "round")
    assert test.labels.bincount().tolist() == [1, 2]
    assert seen[-1] == (12, 12)


def test_what_is_left_out_is_told(pictures):
    (pictures / "round" / "0.png").write_bytes(b"no picture")
    (pictures / "empty").mkdir()
    with pytest.warns(
        UserWarning, match=r"2 of .*sky were left out\. The first: .*0\.png is "
    ) as told:
        train, test = galaxies(pictures, size=8)
    assert len(train) + len(test) == 11
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert "empty" not in galaxies(pictures, size=8)[0].classes


def test_wrong_pictures_are_named(pictures, tmp_path):
    with pytest.raises(InputError, match="round has no class folders.*a folder of its own"):
        galaxies(pictures / "round")
    for path in (pictures / "edge-on").glob("[1-9].png"):
        path.unlink()
    with pytest.raises(InputError, match="sky cannot be split: the class edge-on has 1 image"):
        galaxies(pictures)
    (tmp_path / "a.fits").touch()
    with pytest.raises(InputError, match=r"a\.fits is neither an \.h5 or .* nor a folder"):
        galaxies(tmp_path / "a.fits")
    with pytest.raises(MissingData, match="there is nothing at .*none.h5. Give `radio-galaxies`"):
        galaxies(tmp_path / "none.h5")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "`size` must be a whole number of at least 1, got 0"),
        ({"test_share": 1.0}, "`test_share` must lie between 0 and 1, got 1.0"),
        ({"test_share": "a tenth"}, "`test_share` must be a number, got 'a tenth'"),
        ({"seed": 0.5}, "`seed` must be a whole number, got 0.5"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(InputError, match=message):
        galaxies(**options)
