"""Galaxies: of the FIRST survey, of Galaxy10 DECaLS, or from class folders of your own."""

import io
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import checks
from ..errors import InputError, LeapError, MissingData
from ..imaging import stretch
from . import packages
from .datasets import Dataset, split
from .hdf5 import check_written, open_hdf5, plain_dataset
from .images import OnImage, open_images, resize
from .reading import to_unit

RADIO = "radio-galaxies"
RADIO_CLASSES = ("FRI", "FRII", "Compact", "Bent")
# The galaxies fill the centre; the rest is sky.
RADIO_SIDE, RADIO_CENTRE = 300, 128
DECALS_CLASSES = (
    "Disturbed",
    "Merging",
    "Round smooth",
    "In-between round smooth",
    "Cigar-shaped smooth",
    "Barred spiral",
    "Unbarred tight spiral",
    "Unbarred loose spiral",
    "Edge-on without bulge",
    "Edge-on with bulge",
)
DECALS_SHAPE = (256, 256, 3)
DECALS_CENTRE = 150
# How many images to read at a time.
BLOCK = 128


def galaxies(
    source: str | Path = RADIO,
    *,
    size: int = 128,
    crop: int | None = None,
    test_share: float = 0.1,
    seed: int = 0,
    on_image: OnImage = None,
) -> tuple[Dataset, Dataset]:
    """Returns a training and a test set of galaxies.

    Of the radio galaxies the square root is taken, since almost all of them is black. They come
    with a split, 1,758 to train and 400 to test with, so that ``test_share`` and ``seed`` do not
    matter. (:func:`leapfactual.data.export.export` counts 200 of the 400 among those to train
    with: do not train on the one and test on the other.)

    Arguments:
        source: ``radio-galaxies``, which ``leapfactual data get radio-galaxies`` fetches; the file
            ``Galaxy10_DECals.h5``; or a folder of class folders, or a zip of such.
        size: Height and width to resize to.
        crop: The side of the centre that is cut out first. Defaults to 128 pixels of a radio
            galaxy, 150 of one of Galaxy10 DECaLS, and all of a picture.
        test_share: The share of each class that is kept for testing.
        seed: Which images those are.
        on_image: Called with the number of images looked at and of all, to show progress.

    Returns:
        The training and the test set. A warning names what could not be read.
    """
    checks.positive(size, "size")
    if crop is not None:
        checks.positive(crop, "crop")
    if not 0 < checks.number(test_share, "test_share") < 1:
        raise InputError(f"`test_share` must lie between 0 and 1, got {test_share!r}.")
    checks.whole(seed, "seed")
    if isinstance(source, str) and source == RADIO:
        return _radio(size, _check_crop(crop or RADIO_CENTRE, RADIO_SIDE, RADIO), on_image)
    path = checks.path(source)
    if not path.exists():
        raise MissingData(
            f"there is nothing at {path}. Give `{RADIO}`, the file Galaxy10_DECals.h5, a folder "
            "of class folders or a zip of such."
        )
    if path.is_dir() or path.suffix.lower() == ".zip":
        return _pictures(path, size, crop, test_share, seed, on_image)
    if path.suffix.lower() in (".h5", ".hdf5"):
        crop = _check_crop(crop or DECALS_CENTRE, DECALS_SHAPE[0], str(path))
        return _decals(path, size, crop, test_share, seed, on_image)
    raise InputError(
        f"{path} is neither an .h5 or .hdf5 file, nor a folder, nor a .zip. Give one of those, or "
        f"`{RADIO}`."
    )


def _check_crop(crop: int, side: int, name: str) -> int:
    if crop > side:
        raise InputError(
            f"`crop` must be at most the {side} pixels that the images of {name} have, got {crop}."
        )
    return crop


def radio_galaxies(
    on_image: OnImage = None, crop: int = RADIO_CENTRE
) -> Iterator[tuple[str, int, NDArray[np.uint8]]]:
    """Yields the literature's split (train, valid or test), the class and the centre of each."""
    (path,) = packages.files(RADIO)
    with zipfile.ZipFile(path) as archive:
        content = archive.read("galaxy_data_h5.h5")
    with open_hdf5(io.BytesIO(content)) as file:
        keys = sorted(file, key=lambda key: int(key.removeprefix("data_")))
        for n, key in enumerate(keys, 1):
            entry = file[key]
            pixels = entry["Img"][()]
            edge = (pixels.shape[0] - crop) // 2
            centre = slice(edge, edge + crop)
            label = int(entry["Label_literature"][()])
            yield entry["Split_literature"][()].decode(), label, pixels[centre, centre]
            if on_image is not None:
                on_image(n, len(keys))


def _radio(size: int, crop: int, on_image: OnImage) -> tuple[Dataset, Dataset]:
    parts, labels, pixels = zip(*radio_galaxies(on_image, crop), strict=True)
    x = to_unit(np.stack(pixels), lambda n: f"radio galaxy {n}")[:, None]
    x = stretch(resize(x, (size, size)), "sqrt")
    y = torch.tensor(labels)
    train = torch.tensor([part == "train" for part in parts])
    return (
        Dataset(x[train], y[train], RADIO_CLASSES),
        Dataset(x[~train], y[~train], RADIO_CLASSES),
    )


def _pictures(
    path: Path, size: int, crop: int | None, share: float, seed: int, on_image: OnImage
) -> tuple[Dataset, Dataset]:
    images = open_images(path, size=(size, size), crop=crop, on_image=on_image)
    if images.labels is None:
        raise InputError(
            f"{path} has no class folders, so that it is not known what the galaxies are. Put "
            "those of each class into a folder of its own."
        )
    if images.broken:
        warnings.warn(
            f"{len(images.broken)} of {path} were left out. The first: {images.broken[0]} All "
            f"stand in leapfactual.data.open_images({str(path)!r}).broken.",
            stacklevel=3,
        )
    rows = _split(path, images.labels, share, seed, images.classes)
    return _fill(rows, images.batches(BLOCK), images.shape, images.labels, images.classes)


def _decals(
    path: Path, size: int, crop: int, share: float, seed: int, on_image: OnImage
) -> tuple[Dataset, Dataset]:
    with _explain_damage(path):
        file = open_hdf5(path)
    with file:
        with _explain_damage(path):
            images, labels = _decals_arrays(path, file)
        rows = _split(path, labels, share, seed, DECALS_CLASSES)
        blocks = _decals_blocks(path, images, size, crop, on_image)
        return _fill(rows, blocks, (3, size, size), labels, DECALS_CLASSES)


@contextmanager
def _explain_damage(path: Path) -> Iterator[None]:
    """Turns what h5py raises on a damaged file into an error that says what to do."""
    try:
        yield
    except LeapError:
        raise
    except Exception as error:  # a damaged file can raise anything
        raise InputError(
            f"{path} cannot be read ({type(error).__name__}: {error}). Expected the whole of "
            "Galaxy10_DECals.h5. Download it again."
        ) from error


def _decals_arrays(path: Path, file: Any) -> tuple[Any, Tensor]:  # noqa: ANN401 - h5py has no types
    """Returns the images, still on disk, and the labels, and sees that they are as expected."""
    remedy = "Give Galaxy10_DECals.h5, or pictures in class folders."
    for name in ("images", "ans"):
        if name not in file:
            found = ", ".join(sorted(file)) or "nothing"
            raise InputError(f"{path} must hold an array `{name}`; it has {found}. {remedy}")
    images, ans = plain_dataset(file, "images"), plain_dataset(file, "ans")
    if images.shape[1:] != DECALS_SHAPE or images.dtype != np.uint8:
        raise InputError(
            f"`images` in {path} must be uint8 of shape (N, 256, 256, 3), got {images.dtype} of "
            f"{images.shape}. {remedy}"
        )
    if ans.shape != (len(images),) or ans.dtype.kind not in "iu":
        raise InputError(
            f"`ans` in {path} must be whole numbers, one for each of {len(images)} images, got "
            f"{ans.dtype} of {ans.shape}. {remedy}"
        )
    if not len(images):
        raise InputError(f"{path} must hold images, got none. {remedy}")
    check_written(images)
    labels = ans[()].astype(np.int64)
    wrong = labels[(labels < 0) | (labels >= len(DECALS_CLASSES))]
    if len(wrong):
        raise InputError(
            f"`ans` in {path} must be 0 to {len(DECALS_CLASSES) - 1}, got {wrong[0]}. {remedy}"
        )
    return images, torch.from_numpy(labels)


def _decals_blocks(
    path: Path,
    images: Any,  # noqa: ANN401 - h5py has no types
    size: int,
    crop: int,
    on_image: OnImage,
) -> Iterator[Tensor]:
    edge = (DECALS_SHAPE[0] - crop) // 2
    centre = slice(edge, edge + crop)
    for start in range(0, len(images), BLOCK):
        with _explain_damage(path):
            pixels = images[start : start + BLOCK, centre, centre]
        x = to_unit(pixels, lambda n: f"{path}[{n}]").permute(0, 3, 1, 2)
        yield resize(x, (size, size))
        if on_image is not None:
            on_image(start + len(pixels), len(images))


def _split(
    path: Path, labels: Tensor, share: float, seed: int, classes: tuple[str, ...]
) -> tuple[Tensor, Tensor]:
    try:
        return split(labels, share, seed, classes)
    except InputError as error:
        raise InputError(f"{path} cannot be split: {error}") from error


def _fill(
    rows: tuple[Tensor, Tensor],
    blocks: Iterable[Tensor],
    shape: tuple[int, int, int],
    labels: Tensor,
    classes: tuple[str, ...],
) -> tuple[Dataset, Dataset]:
    """Fills both sets block by block, so that no image is in memory twice."""
    train, test = (torch.empty(len(part), *shape) for part in rows)
    start = 0
    for x in blocks:
        for images, part in zip((train, test), rows, strict=True):
            here = (part >= start) & (part < start + len(x))
            images[here] = x[part[here] - start]
        start += len(x)
    return Dataset(train, labels[rows[0]], classes), Dataset(test, labels[rows[1]], classes)
