"""MNIST, from the cache or from the four IDX files of the original."""

import gzip
import struct
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import InputError, MissingData
from . import packages
from .arrays import read_arrays
from .datasets import Dataset

STEMS = {"train": "train", "test": "t10k"}


def digits(split: str, folder: str | Path | None = None) -> Dataset:
    """Returns the 60,000 training or the 10,000 test digits of MNIST.

    Arguments:
        split: ``train`` or ``test``.
        folder: A folder with the four IDX files, packed or not. Without it the cache is used,
            which ``leapfactual data get mnist`` fills.
    """
    if split not in STEMS:
        raise InputError(f"`split` must be 'train' or 'test', got {split!r}.")
    pixels, labels = (
        _read_cache(split) if folder is None else _read_folder(Path(folder), STEMS[split])
    )
    images = torch.from_numpy(pixels.astype(np.float32) / 255).reshape(-1, 1, 28, 28)
    return Dataset(images, torch.from_numpy(labels.astype(np.int64)), tuple("0123456789"))


@lru_cache(maxsize=1)
def _parts(path: Path) -> Any:  # noqa: ANN401
    return read_arrays(gzip.decompress(path.read_bytes()))


def _read_cache(split: str) -> tuple[NDArray[Any], NDArray[Any]]:
    (path,) = packages.files("mnist")
    train, middle, test = _parts(path)
    parts = [train, middle] if split == "train" else [test]
    pixels = np.concatenate([images for images, _ in parts])
    # The package divides by 256, which loses nothing: multiplying gives the bytes back.
    whole = np.rint(pixels * 256).astype(np.uint8)
    return whole, np.concatenate([labels for _, labels in parts])


def _read_folder(folder: Path, stem: str) -> tuple[NDArray[Any], NDArray[Any]]:
    images = _read_idx(folder, f"{stem}-images-idx3-ubyte", 3)
    labels = _read_idx(folder, f"{stem}-labels-idx1-ubyte", 1)
    if len(images) != len(labels):
        raise InputError(
            f"{folder} has {len(images)} {stem} images and {len(labels)} labels. Copy it again."
        )
    return images, labels


def _read_idx(folder: Path, name: str, dimensions: int) -> NDArray[Any]:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            break
    else:
        raise MissingData(
            f"there is no {name} or {name}.gz in {folder}. Give a folder with the four IDX files, "
            "or run `leapfactual data get mnist` and give none."
        )
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix else path.read_bytes()
        magic = struct.unpack_from(">HBB", content)
        shape = struct.unpack_from(f">{dimensions}I", content, 4)
        if magic != (0, 8, dimensions):
            raise ValueError(f"its first bytes are {magic}")
        array = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
    except (OSError, EOFError, ValueError, struct.error) as error:
        raise InputError(f"{path} is no whole IDX file ({error}). Copy it again.") from error
    return array
