"""Data sets as folders of pictures or tables: something to try the commands on."""

import csv
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..errors import InputError, MissingExtra
from ..files import atomic
from ..types import silent
from .digits import digits
from .galaxies import RADIO_CLASSES, radio_galaxies

Pixels = NDArray[np.uint8]
SPLITS = {"train": "train", "test": "test", "valid": "train"}


def export(
    name: str,
    folder: str | Path,
    *,
    most: int | None = None,
    progress: Callable[[int], object] = silent,
) -> Path:
    """Writes a data set to disk and returns what to look at.

    ``mnist`` and ``radio-galaxies`` become ``train`` and ``test``, each a folder of class folders
    of PNG files; of the galaxies the centre of 128 × 128, since the rest is black sky. ``wine``
    becomes a table with 13 measurements of 178 wines, which scikit-learn carries.

    Arguments:
        name: ``mnist``, ``radio-galaxies`` or ``wine``.
        folder: Where to; a CSV file for a table.
        most: How many images of each class and split at most.
        progress: Is told how many images are written.
    """
    sets: dict[str, Callable[[], Iterator[tuple[str, str, Pixels]]]] = {
        "mnist": _digits,
        "radio-galaxies": _galaxies,
    }
    folder = Path(folder)
    if name not in (*sets, "wine"):
        raise InputError(f"`{name}` cannot be exported: there are {', '.join((*sets, 'wine'))}.")
    if folder.exists() and (folder.is_file() or any(folder.iterdir())):
        raise InputError(f"there is something at {folder} already. Give another place.")
    if name == "wine":
        return _wine(folder)
    count: dict[tuple[str, str], int] = {}
    written = 0
    for split, kind, pixels in sets[name]():
        n = count.get((split, kind), 0)
        count[split, kind] = n + 1
        if most is not None and n >= most:
            continue
        path = folder / split / kind / f"{n:05d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
        written += 1
        progress(written)
    return folder


def _digits() -> Iterator[tuple[str, str, Pixels]]:
    for split in ("train", "test"):
        found = digits(split)
        pixels = (found.images[:, 0] * 255).round().byte().numpy()
        for image, label in zip(pixels, found.labels.tolist(), strict=True):
            yield split, found.classes[label], image


def _galaxies() -> Iterator[tuple[str, str, Pixels]]:
    for split, label, pixels in radio_galaxies():
        yield SPLITS[split], RADIO_CLASSES[label], pixels


def _wine(path: Path) -> Path:
    try:
        from sklearn.datasets import load_wine
    except ImportError as error:
        raise MissingExtra(
            "the wines come with scikit-learn, which is not installed. Run `pip install "
            "'leapfactual[sklearn]'`."
        ) from error
    found = load_wine()
    with atomic(path) as temporary, temporary.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*found.feature_names, "class"])
        for row, label in zip(found.data, found.target, strict=True):
            table.writerow([*row, found.target_names[label]])
    return path
