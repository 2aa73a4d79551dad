"""Export of data sets as folders of pictures or as tables, to try the commands on."""

import csv
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .. import checks
from ..errors import InputError
from ..extras import require
from ..files import atomic
from ..types import no_op
from .digits import digits
from .galaxies import RADIO_CLASSES, radio_galaxies

Pixels = NDArray[np.uint8]
# Galaxies of the literature's validation set count as training.
SPLITS = {"train": "train", "test": "test", "valid": "train"}


def export(
    name: str,
    folder: str | Path,
    *,
    limit: int | None = None,
    on_progress: Callable[[int], object] = no_op,
) -> Path:
    """Writes a data set to disk and returns what to look at.

    ``mnist`` and ``radio-galaxies`` become ``train`` and ``test``, each a folder of class folders
    of PNG files; of the galaxies the centre of 128 × 128, since the rest is black sky. ``wine``
    becomes a table with 13 measurements of 178 wines, which scikit-learn carries.

    Arguments:
        name: ``mnist``, ``radio-galaxies`` or ``wine``.
        folder: Where to; a CSV file for a table.
        limit: How many images of each class and split at most.
        on_progress: Called with the number of images that are written.
    """
    sets: dict[str, Callable[[], Iterator[tuple[str, str, Pixels]]]] = {
        "mnist": _digits,
        "radio-galaxies": _galaxies,
    }
    folder = checks.path(folder)
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
        if limit is not None and n >= limit:
            continue
        path = folder / split / kind / f"{n:05d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
        written += 1
        on_progress(written)
    return folder


def _digits() -> Iterator[tuple[str, str, Pixels]]:
    for split in ("train", "test"):
        dataset = digits(split)
        pixels = (dataset.images[:, 0] * 255).round().byte().numpy()
        for image, label in zip(pixels, dataset.labels.tolist(), strict=True):
            yield split, dataset.classes[label], image


def _galaxies() -> Iterator[tuple[str, str, Pixels]]:
    for split, label, pixels in radio_galaxies():
        yield SPLITS[split], RADIO_CLASSES[label], pixels


def _wine(path: Path) -> Path:
    datasets = require(
        "sklearn.datasets", extra="sklearn", subject="the wines need", package="scikit-learn"
    )
    wine = datasets.load_wine()
    with atomic(path) as temporary, temporary.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*wine.feature_names, "class"])
        for row, label in zip(wine.data, wine.target, strict=True):
            table.writerow([*row, wine.target_names[label]])
    return path
