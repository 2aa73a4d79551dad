"""Sets of images: folders, lists, zips, arrays, and what is wrong with them."""

import io
import os
import struct
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import leapfactual as lf
from leapfactual.data import open_images, read_image, sources
from leapfactual.data.reading import ORIENTATION
from leapfactual.data.sources import Broken
from leapfactual.errors import InputError, MissingData, MissingExtra
from leapfactual.generators import Identity
from tests.data.test_reading import png

GREY = np.arange(30, dtype=np.uint8).reshape(5, 6) * 8
COLOUR = np.stack([GREY, 255 - GREY, GREY // 2], axis=2)


def folder_of(path, names, pixels=GREY):
    path.mkdir(parents=True, exist_ok=True)
    for n, name in enumerate(names):
        Image.fromarray(pixels + np.uint8(n)).save(path / name)
    return path


def test_a_folder_of_class_folders(tmp_path):
    folder_of(tmp_path / "cats", ["a.png", "b.PNG"])
    folder_of(tmp_path / "dogs", ["c.png"])
    (tmp_path / "empty").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "notes.txt").write_text("not an image")
    images = open_images(tmp_path)
    assert images.classes == ("cats", "dogs")
    assert images.labels.tolist() == [0, 0, 1]
    assert images.shape == (1, 5, 6)
    assert images.names[2].endswith("c.png")
    assert str(images) == "Images(3 of 1 × 5 × 6, 2 classes, 1 left out)"


def test_a_flat_folder_a_list_and_one_file(tmp_path):
    folder_of(tmp_path, ["b.png", "a.png"])
    images = open_images(tmp_path)
    assert images.labels is None
    assert [n[-5:] for n in images.names] == ["a.png", "b.png"]
    assert len(open_images([tmp_path / "b.png", tmp_path / "a.png"])) == 2
    assert len(open_images(tmp_path / "a.png")) == 1


@pytest.mark.parametrize("layout", ["NHW", "NHWC", "NCHW"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_npz_and_hdf5(tmp_path, layout, dtype):
    h5py = pytest.importorskip("h5py")
    shape = {"NHW": (7, 5, 6), "NHWC": (7, 5, 6, 3), "NCHW": (7, 3, 5, 6)}[layout]
    unit = np.random.default_rng(0).random(shape)
    scale = {np.uint8: 255, np.uint16: 65535, np.float32: 1}[dtype]
    array = (unit * scale).astype(dtype)
    labels = np.array([3, 1, 3, 3, 1, 9, 9])
    np.savez(tmp_path / "a.npz", images=array, labels=labels)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"], file["ans"] = array, labels
    for name in ("a.npz", "a.h5"):
        images = open_images(tmp_path / name)
        assert images.shape == ((1 if layout == "NHW" else 3), 5, 6)
        assert images.classes == ("1", "3", "9")
        assert images.labels.tolist() == [1, 0, 1, 1, 0, 2, 2]
        expected = torch.tensor(array.astype(np.float64) / scale).float()
        if layout == "NHW":
            expected = expected[:, None]
        elif layout == "NHWC":
            expected = expected.permute(0, 3, 1, 2)
        torch.testing.assert_close(images[torch.tensor([4, 0, 4])], expected[[4, 0, 4]])
        torch.testing.assert_close(torch.cat(list(images.batches(3))), expected)


def test_the_layout_of_galaxy10(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "Galaxy10_DECals.h5", "w") as file:
        file["images"] = np.random.default_rng(0).integers(
            0, 256, (4, 256, 256, 3), dtype=np.uint8
        )
        file["ans"] = np.array([0, 9, 5, 0], dtype=np.uint8)
    images = open_images(tmp_path / "Galaxy10_DECals.h5", size=(128, 128))
    assert images[:2].shape == (2, 3, 128, 128)
    assert images.classes == ("0", "5", "9")


# -- zips --


def zip_of(path, members, method=zipfile.ZIP_DEFLATED):
    """Packs pictures, given as arrays, and anything else, given as bytes."""
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            if not isinstance(content, bytes):
                buffer = io.BytesIO()
                Image.fromarray(content).save(buffer, format="PNG")
                content = buffer.getvalue()
            archive.writestr(name, content)
    return path


CLASSES = {
    "dogs/c.png": GREY + np.uint8(2),
    "cats/b.PNG": GREY + np.uint8(1),
    "cats/a.png": GREY,
}


def test_a_member_of_a_zip_without_a_name_is_no_image(tmp_path):
    """Names end at their first zero byte."""
    path = zip_of(tmp_path / "a.zip", {**CLASSES, "nameless": b"..."})
    path.write_bytes(path.read_bytes().replace(b"nameless", b"\0ameless"))
    assert len(open_images(path)) == len(CLASSES)


@pytest.mark.parametrize("around", ["", "photos/", "more/photos/"])
def test_a_zip_is_what_it_would_be_unpacked(tmp_path, around):
    members = {around + name: pixels for name, pixels in CLASSES.items()}
    hidden = ["__MACOSX/cats/a.png", ".git/a.png", around + "cats/._a.png", around + "notes.txt"]
    zip_of(tmp_path / "a.zip", {around + "cats/": b"", **members, **dict.fromkeys(hidden, b"")})
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        archive.extractall(tmp_path / "a")
    zipped, folder = open_images(tmp_path / "a.zip"), open_images(tmp_path / "a" / around)
    assert zipped.classes == folder.classes == ("cats", "dogs")
    assert zipped.labels.tolist() == folder.labels.tolist() == [0, 0, 1]
    assert torch.equal(zipped[:], folder[:])
    assert torch.equal(zipped[torch.tensor([2, 0])], folder[[2, 0]])
    assert zipped.names[1] == f"{tmp_path}/a.zip/{around}cats/b.PNG"
    assert not zipped.broken


@pytest.mark.parametrize("around", ["", "photos/"])
def test_a_flat_zip(tmp_path, around):
    path = zip_of(tmp_path / "a.ZIP", {around + "b.png": GREY, around + "a.png": COLOUR[..., 0]})
    images = open_images(path)
    assert images.labels is None
    assert images.classes == ()
    assert [name[-5:] for name in images.names] == ["a.png", "b.png"]


def test_pictures_of_every_kind_are_read_from_a_zip(tmp_path):
    kinds = {"png": "PNG", "jpg": "JPEG", "webp": "WEBP", "tiff": "TIFF"}
    for suffix, kind in kinds.items():
        Image.fromarray(COLOUR).save(tmp_path / f"i.{suffix}", format=kind)
    members = {f"i.{suffix}": (tmp_path / f"i.{suffix}").read_bytes() for suffix in kinds}
    images = open_images(zip_of(tmp_path / "a.zip", members))
    for name, image in zip(images.names, images[:], strict=True):
        assert torch.equal(image, read_image(tmp_path / Path(name).name))


def test_broken_members_are_named_and_the_rest_is_done(tmp_path, monkeypatch):
    deep = png(2, 2, 16, 2, b"\0" + b"\x12\xff" * 6 + b"\0" + b"\1\2" * 6)
    members = {**CLASSES, "cats/d.png": b"no picture", "cats/e.png": deep, "cats/x/f.png": GREY}
    path = zip_of(tmp_path / "a.zip", members, zipfile.ZIP_STORED)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_LZMA) as archive:
        archive.writestr("dogs/g.png", b"")
        archive.writestr("dogs/h.png", bytes(20_000), zipfile.ZIP_DEFLATED)
        place = archive.getinfo("cats/b.PNG").header_offset + 60
    content = bytearray(path.read_bytes())
    content[place] ^= 255
    path.write_bytes(content)
    monkeypatch.setattr("leapfactual.data.sources.MAX_MEMBER_BYTES", 10_000)
    images = open_images(path)
    assert images.labels.tolist() == [0, 1]
    reasons = {broken.name.removeprefix(f"{path}/"): broken.reason for broken in images.broken}
    assert list(reasons) == [
        *("cats/b.PNG", "cats/d.png", "cats/e.png", "dogs/g.png", "dogs/h.png", "cats/x/f.png")
    ]
    assert "inside a class folder" in reasons["cats/x/f.png"]
    assert "cannot be unpacked (BadZipFile: Bad CRC-32" in reasons["cats/b.PNG"]
    assert "a.zip/cats/d.png is no PNG, JPEG, WEBP or TIFF" in reasons["cats/d.png"]
    assert "has 16-bit colours" in reasons["cats/e.png"]
    assert "packed with method 14; 0 (stored) and 8 (deflated)" in reasons["dogs/g.png"]
    assert "unpacks to 0 MiB, more than 0. Make it smaller" in reasons["dogs/h.png"]


def test_a_member_may_not_lie_about_its_size(tmp_path):
    """Of a member that unpacks to more than it declares, no more than that is unpacked."""
    path = zip_of(tmp_path / "a.zip", {"a.png": GREY, "b.png": bytes(64 << 20)})
    content = path.read_bytes()
    path.write_bytes(content.replace(struct.pack("<I", 64 << 20), struct.pack("<I", 5000)))
    tracemalloc.start()
    images = open_images(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20
    assert [broken.name[-5:] for broken in images.broken] == ["b.png"]
    assert "Bad CRC-32" in images.broken[0].reason


def test_large_members_are_refused_unread(tmp_path):
    path = zip_of(tmp_path / "a.zip", {"a.png": GREY, "b.png": b"?" * 5000})
    declared = struct.pack("<I", 300 << 20)
    path.write_bytes(path.read_bytes().replace(struct.pack("<I", 5000), declared))
    (broken,) = open_images(path).broken
    assert "b.png unpacks to 300 MiB, more than 256. Make it smaller" in broken.reason


def encrypted(path):
    """Marks every member as encrypted, as a zip with a password does."""
    content = zip_of(path, {"cats/a.png": GREY}).read_bytes()
    for place in (content.index(b"PK\3\4") + 6, content.index(b"PK\1\2") + 8):
        content = content[:place] + b"\1\0" + content[place + 2 :]
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: p.write_bytes(b""), r"a\.zip is damaged or no zip.*Expected pictures.*pack it"),
        (
            lambda p: p.write_bytes(zip_of(p, CLASSES).read_bytes()[:-40]),
            r"a\.zip is damaged or no zip \(BadZipFile.*Copy or pack it again",
        ),
        (lambda p: zip_of(p, {}), r"a\.zip holds no images. Pack files of the kinds .png"),
        (lambda p: zip_of(p, {"a.txt": b"", "\\": b""}), r"a\.zip holds no images"),
        (encrypted, r"a\.zip is encrypted \(cats/a.png\). Pack it again without a password"),
        (
            lambda p: zip_of(p, {"cats/a.png": GREY, "b.png": GREY}),
            r"a\.zip has both class folders \(cats, …\) and loose images \(1, such as b.png\)",
        ),
        (
            lambda p: zip_of(p, {"train/cats/a.png": GREY, "test/cats/a.png": GREY}),
            r"folders inside folders \(train/cats/a.png, …\). Pack class folders",
        ),
        (
            lambda p: zip_of(p, {"a.png": b"?"}),
            "the only image cannot be used. .*a.png is no PNG.*Save it as one of those",
        ),
    ],
)
def test_wrong_zips_are_named(tmp_path, make, message):
    make(tmp_path / "a.zip")
    with pytest.raises(InputError, match=message):
        open_images(tmp_path / "a.zip")


# -- what is made of them --


@pytest.mark.parametrize(("crop", "place"), [(4, (0, 1)), (3, (1, 1)), (1, (2, 2))])
def test_the_centre_is_cut_out(tmp_path, crop, place):
    folder_of(tmp_path, ["a.png", "b.png"], COLOUR)
    whole, images = open_images(tmp_path), open_images(tmp_path, crop=crop)
    top, left = place
    expected = whole[:][:, :, top : top + crop, left : left + crop]
    assert images.shape == (3, crop, crop)
    assert torch.equal(images[:], expected)
    assert torch.equal(images.stretched("sqrt")[:], expected.sqrt())


def test_the_crop_comes_before_the_size(tmp_path):
    folder_of(tmp_path, ["a.png"])
    Image.fromarray(GREY[:3]).save(tmp_path / "small.png")
    Image.fromarray(np.kron(GREY, np.ones((2, 2), np.uint8))).save(tmp_path / "z.png")
    images = open_images(tmp_path, crop=4, size=(2, 2))
    assert images.shape == (1, 2, 2)
    corners = open_images(tmp_path / "a.png")[:][0, 0, :4, 1:5]
    assert corners.min() <= images[0].min() <= images[0].max() <= corners.max()
    assert [broken.name[-9:] for broken in images.broken] == ["small.png"]
    assert "3 × 6 pixels, too few for a crop of 4 × 4. Pass a smaller" in images.broken[0].reason
    assert len(open_images(tmp_path, crop=3)) == 3, "cut to one size, they need none"
    for crop in (0, 2.5, "4"):
        with pytest.raises(InputError, match="`crop` must be a whole number of at least 1, got"):
            open_images(tmp_path, crop=crop)


def test_indexing_like_a_tensor(tmp_path):
    folder_of(tmp_path, [f"{n}.png" for n in range(5)])
    images = open_images(tmp_path)
    whole = images[:]
    assert torch.equal(images[3], whole[3:4])
    assert torch.equal(images[1:4], whole[1:4])
    assert torch.equal(images[torch.tensor([4, 1])], whole[[4, 1]])
    assert torch.equal(images[torch.tensor([True, False, False, True, False])], whole[[0, 3]])
    assert images[:0].shape == (0, 1, 5, 6)


def test_sizes_and_channels_are_made_equal_when_asked(tmp_path):
    folder_of(tmp_path, ["a.png"])
    folder_of(tmp_path, ["b.png"], COLOUR)
    Image.fromarray(GREY).resize((9, 9)).save(tmp_path / "c.png")
    images = open_images(tmp_path)
    assert len(images) == 1
    assert [b.name[-5:] for b in images.broken] == ["b.png", "c.png"]
    assert "3 channels, the first image 1. Pass channels" in images.broken[0].reason
    assert "9 × 9 pixels, the first image 5 × 6. Pass size" in images.broken[1].reason
    assert "2 left out" in str(images)
    every = open_images(tmp_path, size=(8, 8), channels=3)
    assert every[:].shape == (3, 3, 8, 8)
    assert not every.broken


def test_broken_files_are_named_and_the_rest_is_done(tmp_path):
    folder_of(tmp_path / "x", ["a.png", "b.png", "c.png"])
    (tmp_path / "x" / "b.png").write_bytes((tmp_path / "x" / "a.png").read_bytes()[:40])
    (tmp_path / "x" / "d.jpg").write_text("not a picture")
    seen = []
    images = open_images(tmp_path, on_image=lambda n, of: seen.append((n, of)))
    assert len(images) == 2
    assert [b.name.rsplit("/")[-1] for b in images.broken] == ["b.png", "d.jpg"]
    assert seen[-1] == (4, 4)
    z, _ = lf.embed(images, Flat(), lambda x: torch.ones(len(x), 1))
    assert len(z) == len(images.names) == len(images.labels) == 2


class Flat(Identity):
    def encode(self, x):
        return x.flatten(1)


def test_an_array_with_bad_pixels_names_them(tmp_path):
    array = np.zeros((3, 4, 4), dtype=np.float32)
    array[1, 0, 0] = np.nan
    array[2, 0, 0] = 7
    np.savez(tmp_path / "a.npz", images=array)
    images = open_images(tmp_path / "a.npz")
    assert len(images) == 1
    assert [b.name[-3:] for b in images.broken] == ["[1]", "[2]"]
    assert "outside [0, 1], from 0 to 7" in images.broken[1].reason


def npz(path, **arrays):
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda p: p / "nothing", MissingData, "there is nothing at"),
        (lambda p: p, InputError, "holds no images"),
        (lambda p: [], InputError, "the list of files is empty"),
        (lambda p: 5, InputError, "by a path, or by a list of paths, got int"),
        (lambda p: b"a.png", InputError, "by a path, or by a list of paths, got bytes"),
        (lambda p: [p, 5], InputError, "by a path, or by a list of paths, got list"),
        (
            lambda p: [p / "none.png"],
            InputError,
            "the only image cannot be used. there is no image",
        ),
        (
            lambda p: npz(p / "a.npz", pixels=np.zeros(3)),
            InputError,
            "named one of images.*it has pixels",
        ),
        (
            lambda p: npz(p / "a.npz", images=np.zeros(3)),
            InputError,
            r"of shape \(N, H, W\).*got \(3,\)",
        ),
        (lambda p: npz(p / "a.npz", images=np.zeros((2, 5, 5, 5))), InputError, "1 or 3 channels"),
        (
            lambda p: npz(p / "a.npz", images=np.zeros((2, 5, 5)), labels=np.zeros(3)),
            InputError,
            "one label per image, got 3 labels for 2",
        ),
        (
            lambda p: npz(p / "a.npz", images=np.array([{"a": 1}], dtype=object)),
            InputError,
            "cannot be read.*allow_pickle",
        ),
        (
            lambda p: npz(p / "a.npz", images=np.zeros((1, 2, 2), dtype=int)),
            InputError,
            "of type int64",
        ),
    ],
)
def test_wrong_sources_are_named(tmp_path, make, error, message):
    with pytest.raises(error, match=message):
        open_images(make(tmp_path))


def test_files_of_other_kinds_and_mixed_folders_are_named(tmp_path):
    (tmp_path / "a.csv").write_text("")
    with pytest.raises(InputError, match="neither a folder nor a .zip"):
        open_images(tmp_path / "a.csv")
    for name in ("broken.npz", "broken.h5"):
        (tmp_path / name).write_bytes(b"broken")
        with pytest.raises(InputError, match="cannot be read"):
            open_images(tmp_path / name)
    folder_of(tmp_path / "mixed" / "cats", ["a.png"])
    folder_of(tmp_path / "mixed", ["b.png"])
    with pytest.raises(InputError, match=r"class folders \(cats, …\) and loose images \(1, such"):
        open_images(tmp_path / "mixed")
    with pytest.raises(InputError, match="`channels` must be 1 for grey or 3 for colour, got 4"):
        open_images(tmp_path / "mixed" / "cats", channels=4)


def test_odd_arrays(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "names.h5", "w") as file:
        file["images"] = np.zeros((3, 4, 4), dtype=np.uint8)
        file["labels"] = np.array([b"dog", b"cat", b"dog"])
    assert open_images(tmp_path / "names.h5").classes == ("cat", "dog")
    with h5py.File(tmp_path / "vast.h5", "w") as file:
        file.create_dataset("images", (1, 300_000, 300_000), "u1", chunks=(1, 1000, 1000))
    with pytest.raises(InputError, match="more than 25 million pixels each"):
        open_images(tmp_path / "vast.h5")
    with h5py.File(tmp_path / "torn.h5", "w") as file:
        data = file.create_dataset("images", (4, 8, 8), "u1", chunks=(1, 8, 8), compression="gzip")
        data[:] = np.random.default_rng(0).integers(0, 256, (4, 8, 8))
        place = data.id.get_chunk_info(2).byte_offset
    content = bytearray((tmp_path / "torn.h5").read_bytes())
    content[place : place + 8] = b"\0" * 8
    (tmp_path / "torn.h5").write_bytes(content)
    torn = open_images(tmp_path / "torn.h5")
    assert len(torn) == 3
    assert [b.name[-3:] for b in torn.broken] == ["[2]"]
    np.savez(tmp_path / "UPPER.npz", images=np.zeros((1, 2, 2), dtype=np.uint8))
    (tmp_path / "UPPER.npz").rename(tmp_path / "UPPER.NPZ")
    assert len(open_images(tmp_path / "UPPER.NPZ")) == 1
    for size in (32, (8,), (0, 8)):
        with pytest.raises(InputError, match="`size` must be"):
            open_images(tmp_path / "UPPER.NPZ", size=size)


def test_loops_and_long_names_are_named(tmp_path):
    folder_of(tmp_path / "x", ["a.png"])
    (tmp_path / "x" / "loop.png").symlink_to(tmp_path / "x" / "loop.png")
    images = open_images(tmp_path)
    assert len(images) == 1
    assert [b.name[-8:] for b in images.broken] == ["loop.png"]
    for name in (tmp_path / "x" / "loop.png", tmp_path / ("a" * 300 + ".png")):
        with pytest.raises((InputError, MissingData)):
            read_image(name)


def test_a_zip_bomb_is_refused(tmp_path, monkeypatch):
    """By what it declares, before any of it is unpacked."""
    declared = {"descr": "|u1", "fortran_order": False, "shape": (2**11, 2**10, 2**10)}
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive, archive.open("images.npy", "w") as f:
        np.lib.format.write_array_header_1_0(f, declared)
    tracemalloc.start()
    with pytest.raises(
        InputError, match=r"`images` in .* unpacks to 2 GiB.*LEAPFACTUAL_MAX_GIB=2"
    ):
        open_images(tmp_path / "a.npz")
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()
    np.savez(tmp_path / "b.npz", images=np.zeros((100, 10, 10), dtype=np.uint8))
    assert len(open_images(tmp_path / "b.npz")) == 100
    monkeypatch.setenv("LEAPFACTUAL_MAX_GIB", "1e-6")
    with pytest.raises(InputError, match="`images` in .* more than 1e-06"):
        open_images(tmp_path / "b.npz")
    monkeypatch.setenv("LEAPFACTUAL_MAX_GIB", "plenty")
    with pytest.raises(InputError, match="must be a number of GiB above 0, got 'plenty'"):
        open_images(tmp_path / "b.npz")


def external_link(h5py, file, secret):
    file["images"] = h5py.ExternalLink(secret.with_suffix(".h5").name, "images")


def external_storage(h5py, file, secret):
    file.create_dataset("images", (4, 5, 5), "u1", external=[(str(secret), 0, 100)])


def virtual_dataset(h5py, file, secret):
    layout = h5py.VirtualLayout((4, 5, 5), "u1")
    layout[:] = h5py.VirtualSource(str(secret.with_suffix(".h5")), "images", (4, 5, 5))
    file.create_virtual_dataset("images", layout)


@pytest.mark.parametrize(
    ("refer", "message"),
    [
        (external_link, "`images` in .* is a link"),
        (external_storage, "`images` in .* is stored in other files"),
        (virtual_dataset, "`images` in .* is stored in other files"),
    ],
)
def test_hdf5_files_cannot_show_other_files(tmp_path, refer, message):
    """An array may be said to lie in any file of the machine, whose bytes would become pixels."""
    h5py = pytest.importorskip("h5py")
    (tmp_path / "secret.txt").write_text("not for everybody" * 10)
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["images"] = np.zeros((4, 5, 5), np.uint8)
    with h5py.File(tmp_path / "given.h5", "w") as file:
        refer(h5py, file, tmp_path / "secret.txt")
    with pytest.raises(InputError, match=message):
        open_images(tmp_path / "given.h5")


def test_vast_labels_and_chunks_are_refused_unread(tmp_path):
    """Both pack to nothing, and would take gigabytes."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "labels.h5", "w") as file:
        file["images"] = np.zeros((4, 5, 5), np.uint8)
        file.create_dataset("labels", (10**9,), "i4", chunks=(2**20,), compression=9)
    with h5py.File(tmp_path / "chunk.h5", "w") as file:
        shape = 2**24, 8, 8
        file.create_dataset("images", shape, "u1", chunks=shape, compression=9)
    tracemalloc.start()
    with pytest.raises(InputError, match="got 1000000000 labels for 4 images"):
        open_images(tmp_path / "labels.h5")
    with pytest.raises(InputError, match="packed in chunks of 1024 MiB, more than 256"):
        open_images(tmp_path / "chunk.h5")
    with h5py.File(tmp_path / "names.h5", "w") as file:
        file["images"] = np.zeros((4, 5, 5), np.uint8)
        file.create_dataset("labels", (4,), "S100000000", chunks=(1,))
    with pytest.raises(InputError, match="labels in .* take 100,000,000 bytes each, more than 4,"):
        open_images(tmp_path / "names.h5")
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


def test_vast_names_in_an_npz_are_refused_unread(tmp_path):
    declared = {"descr": "<U1000000", "fortran_order": False, "shape": (4,)}
    np.savez(tmp_path / "a.npz", images=np.zeros((4, 5, 5), np.uint8))
    with (
        zipfile.ZipFile(tmp_path / "a.npz", "a") as archive,
        archive.open("labels.npy", "w") as file,
    ):
        np.lib.format.write_array_header_1_0(file, declared)
    with pytest.raises(InputError, match="labels in .* take 4,000,000 bytes each, more than 4,"):
        open_images(tmp_path / "a.npz")


def test_hdf5_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "a.h5").write_text("")
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(MissingExtra, match=r"leapfactual\[hdf5\]"):
        open_images(tmp_path / "a.h5")


def test_files_of_other_kinds_among_images_are_named(tmp_path):
    for kind in ("cats", "dogs"):
        folder_of(tmp_path / "pets" / kind, ["a.png"])
    Image.fromarray(GREY).save(tmp_path / "pets" / "cats" / "old.gif")
    (tmp_path / "pets" / "dogs" / "notes.txt").write_text("a dog")
    (tmp_path / "pets" / "dogs" / ".hidden").write_text("of the system")
    (tmp_path / "pets" / "readme.txt").write_text("beside the class folders")
    with zipfile.ZipFile(tmp_path / "pets.zip", "w") as archive:
        for path in sorted((tmp_path / "pets").rglob("*")):
            archive.write(path, path.relative_to(tmp_path))
    for source in (tmp_path / "pets", tmp_path / "pets.zip"):
        images = open_images(source)
        assert len(images) == 2
        assert [b.name.rsplit("/")[-1] for b in images.broken] == ["old.gif", "notes.txt"]
        assert "none of the kinds .png" in images.broken[0].reason
    assert len(open_images(tmp_path / "pets" / "dogs").broken) == 1
    only = tmp_path / "only"
    only.mkdir()
    (only / "notes.txt").write_text("no image")
    with pytest.raises(InputError, match="only holds no images"):
        open_images(only)


def test_what_is_broken_is_named_once():
    assert str(Broken("a.png", "a.png is damaged")) == "a.png is damaged"
    assert str(Broken("a.png", "it is too small")) == "a.png: it is too small"


def test_large_images_are_resized_one_by_one(tmp_path, monkeypatch):
    """Many at full size would not fit into memory."""
    images = open_images(folder_of(tmp_path, [f"{n}.png" for n in range(9)]), size=(2, 3))
    whole, read, sizes = images[:], images._source.read, []
    monkeypatch.setattr(images._source, "read", lambda rows: sizes.append(len(rows)) or read(rows))
    assert torch.equal(images[:], whole)
    assert sizes == [1] * 9


def test_conversions_are_counted(tmp_path):
    folder_of(tmp_path, ["a.png", "b.png"], GREY[:5, :5])
    folder_of(tmp_path, ["c.png"], COLOUR)
    turned = Image.fromarray(GREY)
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    turned.save(tmp_path / "d.png", exif=exif)
    Image.fromarray(GREY[:5, :5].astype(np.uint16)).save(tmp_path / "e.png")
    Image.fromarray(GREY[:5, :5]).convert("1").save(tmp_path / "f.png")
    (tmp_path / "g.png").write_bytes(b"?")
    images = open_images(tmp_path, size=(5, 5), channels=1)
    expected = {
        "resized to 5 × 5": 2,
        "turned from colour to grey": 1,
        "turned upright, as the camera noted": 1,
        "scaled from 16 bits": 1,
        "converted from black and white": 1,
    }
    assert images.converted == images.take([0]).stretched("sqrt").converted == expected
    images.batches(2)
    assert images.converted == expected, "only opening counts"
    np.savez(tmp_path / "h.npz", images=GREY[None].repeat(3, 0).astype(np.uint16))
    assert open_images(tmp_path / "h.npz").converted == {"scaled from 16 bits": 3}
    assert open_images(folder_of(tmp_path / "plain", ["a.png"])).converted == {}


def test_folders_in_class_folders_are_named(tmp_path):
    folder_of(tmp_path / "train" / "cats", ["a.png"])
    folder_of(tmp_path / "train" / "cats" / "kittens", ["a.png"])
    (tmp_path / "train" / "dogs").mkdir()
    images = open_images(tmp_path / "train")
    assert images.classes == ("cats",)
    assert [Path(item.name).name for item in images.broken] == ["kittens", "dogs"]
    with pytest.raises(InputError, match="has its images in folders inside .*such as .*train.$"):
        open_images(tmp_path)
    flat = folder_of(tmp_path / "flat", ["a.png"])
    (flat / "empty").mkdir()
    assert [Path(item.name).name for item in open_images(flat).broken] == ["empty"]


def test_empty_folders_in_a_zip_are_named(tmp_path):
    path = zip_of(tmp_path / "a.zip", {f"photos/{name}": x for name, x in CLASSES.items()})
    with zipfile.ZipFile(path, "a") as archive:
        for name in ("owls/", "owls/young/", "__MACOSX/", ".hidden/", "../beside/"):
            archive.writestr(f"photos/{name}", b"")
        archive.writestr("photos/bats/notes.txt", b"none yet")
    images = open_images(path)
    assert images.classes == ("cats", "dogs")
    broken = {Path(item.name).name: item.reason for item in images.broken}
    assert set(broken) == {"bats", "owls", "notes.txt"}
    assert all("holds no images" in broken[name] for name in ("bats", "owls"))


@pytest.mark.skipif(sys.platform != "linux", reason="others have names of characters")
def test_a_file_name_that_is_not_utf_8_can_be_written(tmp_path):
    folder_of(tmp_path, ["a.png"])
    os.rename(tmp_path / "a.png", os.fsencode(tmp_path) + b"/\xff.png")  # noqa: PTH104
    images = open_images(tmp_path)
    assert len(images[0]) == 1
    assert images.names == [str(tmp_path / "\\xff.png")]


def test_arrays_that_were_never_written_are_refused(tmp_path):
    """They take no room in the file, and would be read for days."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("images", (10**6, 8, 8), "u1", chunks=(1, 8, 8))
    with pytest.raises(InputError, match="declares 64,000,000 bytes, of which 0 are stored"):
        open_images(tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("images", data=np.zeros((999, 8, 8), "u1"), compression=9)
    assert len(open_images(tmp_path / "a.h5")) == 999


def test_more_images_than_can_be_looked_at_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MAX_IMAGES", 3)
    np.savez(tmp_path / "a.npz", images=np.zeros((4, 2, 2), np.uint8))
    with pytest.raises(InputError, match="holds 4 images, more than 3"):
        open_images(tmp_path / "a.npz")
