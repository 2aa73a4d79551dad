"""Data sets by name: fetched, checked, kept; digits and squares."""

import dataclasses
import gzip
import hashlib
import io
import pickle
import socket
import struct
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import leapfactual as lf
from leapfactual.data import packages, squares
from leapfactual.data.arrays import read_arrays
from leapfactual.errors import InputError, MissingData


def test_squares_are_what_the_paper_says():
    z, y = squares.sample(4000)
    r = z - squares.centres(y)
    assert r.abs().max() < 0.25
    assert squares.centres(y).abs().unique().tolist() == [0.25]
    assert y.bincount().tolist() == [1000] * 4
    assert torch.equal(squares.quadrant(z).argmax(1), y)
    assert torch.equal(squares.sample(8, seed=3)[0], squares.sample(8, seed=3)[0])


@pytest.fixture
def little(tmp_path, monkeypatch):
    """A card and an archive of our own, and an empty cache."""
    monkeypatch.setenv("LEAPFACTUAL_CACHE", str(tmp_path / "cache"))
    member = packages.Member("pkg/data/little.bin", hashlib.sha256(b"content").hexdigest())
    card = packages.Card(
        "little", "a little file", "little-package", "1.0", "0" * 64, "CC0", (member,)
    )
    monkeypatch.setitem(packages.CARDS, "little", card)
    archive = tmp_path / "little_package-1.0-py3-none-any.whl"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("pkg/data/little.bin", b"content")
    return archive


def test_get_unpacks_checks_and_keeps(little, tmp_path):
    (path,) = packages.get("little", little)
    assert path == tmp_path / "cache" / "little" / "little.bin"
    assert path.read_bytes() == b"content"
    little.unlink()
    assert packages.get("little") == [path], "it is in the cache now"
    path.write_bytes(b"changed")
    with pytest.raises(InputError, match="damaged or exchanged since it was fetched. Delete it"):
        packages.files("little")


def test_source_archives_work_too(little, tmp_path):
    import tarfile

    with tarfile.open(tmp_path / "little.tar.gz", "w:gz") as tar:
        info = tarfile.TarInfo("little-1.0/pkg/data/little.bin")
        info.size = 7
        tar.addfile(info, io.BytesIO(b"content"))
    (path,) = packages.get("little", tmp_path / "little.tar.gz")
    assert path.read_bytes() == b"content"


def test_an_exchanged_file_is_refused_and_nothing_is_left(little, tmp_path):
    with zipfile.ZipFile(little, "w") as file:
        file.writestr("pkg/data/little.bin", b"other")
    with pytest.raises(InputError, match="It is another file; nothing was written"):
        packages.get("little", little)
    little.write_bytes(b"no archive")
    with pytest.raises(InputError, match="not the archive that was expected"):
        packages.get("little", little)
    with pytest.raises(MissingData, match="there is no archive"):
        packages.get("little", tmp_path / "nothing.whl")
    assert not list((tmp_path / "cache").rglob("*.bin"))


def test_a_failed_download_leaves_nothing_and_says_how_to_go_on(little, tmp_path, monkeypatch):
    def fails(command, **options):
        listed = Path(command[-1]).read_text()
        assert listed == f"little-package==1.0 --hash=sha256:{'0' * 64}\n"
        assert "--require-hashes" in command
        return subprocess.CompletedProcess(command, 1, "", "ERROR: No matching distribution found")

    monkeypatch.setattr(subprocess, "run", fails)
    with pytest.raises(MissingData, match=r"No matching distribution.*data get little --archive"):
        packages.get("little")
    assert not (tmp_path / "cache").exists()


def test_unknown_names_and_missing_files_are_named(little):
    with pytest.raises(InputError, match="`cats` is not a data set that we know. There are mnist"):
        packages.get("cats")
    with pytest.raises(MissingData, match="Run `leapfactual data get little`"):
        packages.files("little")


def test_what_an_installed_package_gives_is_not_fetched(monkeypatch):
    assert packages.present("wine"), "scikit-learn is installed"
    with pytest.raises(InputError, match=r"Run `leapfactual data export wine wine\.csv`"):
        packages.get("wine")
    card = dataclasses.replace(packages.CARDS["wine"], package="not-installed")
    monkeypatch.setitem(packages.CARDS, "wine", card)
    assert not packages.present("wine")


def test_only_arrays_are_read_from_pickles():
    arrays = (np.arange(3), {"a": np.zeros((2, 2), dtype=np.float32)})
    found = read_arrays(pickle.dumps(arrays, protocol=4))
    np.testing.assert_array_equal(found[0], arrays[0])
    for hostile in (print, subprocess.Popen, torch.Tensor):
        with pytest.raises(InputError, match="only arrays are read"):
            read_arrays(pickle.dumps(hostile))
    with pytest.raises(InputError, match="damaged"):
        read_arrays(b"\x80\x02garbage")


def idx(array):
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def test_digits_from_idx_files(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 28, 28))
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(pixels)))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(np.arange(5)))
    test = lf.data.digits("test", tmp_path)
    assert str(test) == "Dataset(5 images of 1 × 28 × 28, 10 classes)"
    torch.testing.assert_close(test.images[:, 0], torch.tensor(pixels / 255).float())
    assert test.labels.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(MissingData, match="there is no train-images"):
        lf.data.digits("train", tmp_path)
    with pytest.raises(InputError, match="'train' or 'test', got 'all'"):
        lf.data.digits("all", tmp_path)
    for broken in (b"", idx(pixels)[:50], b"\x00\x00\x09\x03" + b"\0" * 40):
        (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(broken))
        with pytest.raises(InputError, match="is no whole IDX file"):
            lf.data.digits("test", tmp_path)
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(pixels[:3])))
    with pytest.raises(InputError, match="3 t10k images and 5 labels"):
        lf.data.digits("test", tmp_path)


def test_digits_from_the_cache(tmp_path, monkeypatch):
    """A file in the layout of the package: three parts of pixels over 256, in a pickle."""
    monkeypatch.setenv("LEAPFACTUAL_CACHE", str(tmp_path))
    with pytest.raises(MissingData, match="Run `leapfactual data get mnist`"):
        lf.data.digits("train")
    bytes_ = np.random.default_rng(0).integers(0, 256, (6, 784))
    parts = [
        ((bytes_[n : n + 2] / 256).astype(np.float32), np.array([n, n + 1])) for n in (0, 2, 4)
    ]
    (tmp_path / "mnist").mkdir()
    content = gzip.compress(pickle.dumps(tuple(parts), protocol=4))
    (tmp_path / "mnist" / "mnist.pkl.gz").write_bytes(content)
    own = packages.Member("mnist/data/mnist.pkl.gz", hashlib.sha256(content).hexdigest())
    card = dataclasses.replace(packages.CARDS["mnist"], members=(own,))
    monkeypatch.setitem(packages.CARDS, "mnist", card)
    train, test = lf.data.digits("train"), lf.data.digits("test")
    torch.testing.assert_close(train.images.flatten(1), torch.tensor(bytes_[:4] / 255).float())
    assert train.labels.tolist() == [0, 1, 2, 3]
    assert test.labels.tolist() == [4, 5]


def test_a_download_that_hangs_ends(little, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        monkeypatch.setenv("PIP_INDEX_URL", index)
        monkeypatch.setattr(packages, "MAX_DOWNLOAD_SECONDS", 3)
        with pytest.raises(MissingData, match=r"within 0.05 minutes.*data get little --archive"):
            packages.get("little")
