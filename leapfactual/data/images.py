"""Sets of images on disk, read when they are needed, so that memory does not grow with them.

A set is opened from a folder of class folders, a flat folder, a list of files, an ``.npz`` or an
HDF5 file. Opening looks at every image once: those that cannot be read are named with the reason
and left out, the rest is done.
"""

import math
import os
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from .. import checks
from ..classifiers.preprocessing import STRETCHES, stretched
from ..errors import InputError, MissingData, MissingExtra
from .reading import MOST_PIXELS, read_image, unit

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff")
MOST_BYTES = 16 * 2**30
BLOCK_BYTES = 64 * 2**20
EMPTY = "the folder holds no images; folders inside it are not searched"
IMAGE_KEYS = ("images", "x", "image", "data", "arr_0")
LABEL_KEYS = ("labels", "ans", "y", "label", "target", "targets", "arr_1")


@dataclass(frozen=True)
class Broken:
    """Is an image that could not be read, and why."""

    name: str
    reason: str


class Images:
    """Is a set of images, all of one shape, that are read when they are asked for.

    Make one with :func:`open_images`. It can be indexed with rows, gone through in batches, and
    given to :func:`leapfactual.embed` and :func:`leapfactual.generators.fit`.
    """

    def __init__(
        self,
        source: "Source",
        rows: Sequence[int],
        shape: tuple[int, int, int],
        broken: Sequence[Broken],
        stretch: str = "none",
    ) -> None:
        self._source, self._rows, self.stretch = source, list(rows), stretch
        self.shape, self.broken = shape, list(broken)
        self.classes = source.classes
        labels = source.labels
        self.labels = (
            None if labels is None else labels[torch.tensor(self._rows, dtype=torch.long)]
        )

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def names(self) -> list[str]:
        """What each image is called: its file, or its place in the file."""
        return [self._source.name(row) for row in self._rows]

    def __getitem__(self, rows: int | slice | Sequence[int] | Tensor) -> Tensor:
        """Reads some of the images, with shape ``(B, C, H, W)`` and values in [0, 1]."""
        if isinstance(rows, Tensor):
            rows = rows.nonzero()[:, 0] if rows.dtype == torch.bool else rows
            rows = [int(row) for row in rows.reshape(-1)]
        elif isinstance(rows, slice):
            rows = range(len(self))[rows]
        elif isinstance(rows, int):
            rows = [rows]
        chosen = [self._rows[row] for row in rows]
        if not chosen:
            return torch.zeros(0, *self.shape)
        x = torch.stack([_fitted(image, self.shape) for image in self._source.read(chosen)])
        return stretched(x, self.stretch)

    def stretched(self, stretch: str) -> "Images":
        """Returns the same set with what is faint lifted: ``sqrt``, ``asinh`` or ``log``."""
        if stretch not in STRETCHES:
            raise InputError(
                f"the stretch must be one of {', '.join(STRETCHES)}, got {stretch!r}."
            )
        return Images(self._source, self._rows, self.shape, self.broken, stretch)

    def batches(self, batch_size: int) -> Iterator[Tensor]:
        """Goes through the images in order."""
        checks.positive(batch_size, "batch_size")
        for start in range(0, len(self), batch_size):
            yield self[start : start + batch_size]

    def __repr__(self) -> str:
        channels, height, width = self.shape
        kinds = f", {len(self.classes)} classes" if self.classes else ""
        broken = f", {len(self.broken)} left out" if self.broken else ""
        return f"Images({len(self)} of {channels} × {height} × {width}{kinds}{broken})"


class Source(ABC):
    """Is where images come from: files, or one array."""

    classes: tuple[str, ...] = ()
    labels: Tensor | None = None
    empty: Sequence[Path] = ()
    block = 1

    @abstractmethod
    def __len__(self) -> int:
        """The number of images, broken ones included."""

    @abstractmethod
    def name(self, row: int) -> str:
        """Returns what an image is called."""

    @abstractmethod
    def read(self, rows: Sequence[int]) -> list[Tensor]:
        """Returns images ``(C, H, W)`` in [0, 1]; raises :class:`InputError` where it cannot."""


class Files(Source):
    """Reads image files, one at a time."""

    def __init__(
        self,
        paths: Sequence[Path],
        labels: Sequence[int] | None,
        classes: Sequence[str],
        empty: Sequence[Path] = (),
    ) -> None:
        self.paths, self.classes, self.empty = list(paths), tuple(classes), list(empty)
        self.labels = None if labels is None else torch.tensor(labels, dtype=torch.long)

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, row: int) -> str:
        """See :meth:`Source.name`."""
        return str(self.paths[row])

    def read(self, rows: Sequence[int]) -> list[Tensor]:
        """See :meth:`Source.read`."""
        return [read_image(self.paths[row]) for row in rows]


class Array(Source):
    """Reads rows of an array ``(N, H, W)``, ``(N, H, W, C)`` or ``(N, C, H, W)``, also on disk."""

    def __init__(self, path: Path, array: Any, labels: NDArray[Any] | None) -> None:  # noqa: ANN401
        if array.ndim not in (3, 4):
            raise InputError(
                f"{path} must hold images of shape (N, H, W), (N, H, W, C) or (N, C, H, W), got "
                f"{tuple(array.shape)}."
            )
        if len(array) and math.prod(array.shape[1:]) > 3 * MOST_PIXELS:
            raise InputError(
                f"{path} holds images of shape {tuple(array.shape[1:])}, more than "
                f"{MOST_PIXELS // 1_000_000} million pixels each. Make them smaller first."
            )
        if not math.prod(array.shape[1:]):
            raise InputError(f"{path} holds images without pixels, of {tuple(array.shape[1:])}.")
        self.path, self.array = path, array
        size = math.prod(array.shape[1:]) * 4
        self.block = max(1, min(256, BLOCK_BYTES // size))
        self.channels_last = array.ndim == 4 and array.shape[3] in (1, 3)
        if array.ndim == 4 and not self.channels_last and array.shape[1] not in (1, 3):
            raise InputError(
                f"{path} must hold images with 1 or 3 channels, first or last, got "
                f"{tuple(array.shape)}."
            )
        if labels is not None:
            labels = np.asarray(labels).reshape(-1)
            if len(labels) != len(array):
                raise InputError(
                    f"{path} must hold one label per image, got {len(labels)} labels for "
                    f"{len(array)} images."
                )
            kinds, index = np.unique(labels, return_inverse=True)
            self.classes = tuple(_text(kind) for kind in kinds)
            self.labels = torch.from_numpy(index.astype(np.int64))

    def __len__(self) -> int:
        return len(self.array)

    def name(self, row: int) -> str:
        """See :meth:`Source.name`."""
        return f"{self.path}[{row}]"

    def read(self, rows: Sequence[int]) -> list[Tensor]:
        """See :meth:`Source.read`."""
        order = sorted(set(rows))
        place = {row: n for n, row in enumerate(order)}
        first, last = order[0], order[-1]
        index = slice(first, last + 1) if len(order) == last + 1 - first else order
        try:
            pixels = np.asarray(self.array[index])
        except OSError as error:
            raise InputError(f"{self.name(first)} cannot be read ({error}).") from error
        block = unit(pixels, lambda n: self.name(order[n]))
        return [self._image(block[place[row]]) for row in rows]

    def _image(self, pixels: Tensor) -> Tensor:
        if pixels.ndim == 2:
            return pixels[None]
        return pixels.permute(2, 0, 1) if self.channels_last else pixels


def _text(label: Any) -> str:  # noqa: ANN401 - what an array holds
    return label.decode(errors="replace") if isinstance(label, bytes) else str(label)


def open_images(
    source: str | Path | Sequence[str | Path],
    *,
    size: tuple[int, int] | None = None,
    channels: int | None = None,
    on_image: Callable[[int, int], object] | None = None,
) -> Images:
    """Opens a set of images and looks at each once.

    Arguments:
        source: A folder of class folders, a flat folder, a list of files, an ``.npz`` file with
            ``images`` and maybe ``labels``, which is read whole, or an HDF5 file with ``images``
            and maybe ``ans`` or ``labels``.
        size: Height and width to resize to. Without it all images must have the first one's size.
        channels: 1 for grey, 3 for colour. Without it, what the first image has.
        on_image: Called with the number of images looked at and of all, to show progress.

    Returns:
        The set. What could not be read stands in its ``broken``.
    """
    if size is not None:
        checks.size(size)
    try:
        where = _source(source)
    except OSError as error:
        if isinstance(error, MissingData):
            raise
        raise InputError(f"{source} cannot be read ({error}). Check its permissions.") from error
    if channels not in (None, 1, 3):
        raise InputError(f"`channels` must be 1 or 3, got {channels!r}.")
    shape: tuple[int, int, int] | None = None
    rows = []
    broken = [Broken(str(path), EMPTY) for path in where.empty]
    for row, image in _each(where):
        try:
            if not isinstance(image, Tensor):
                raise image
            if shape is None:
                height, width = size or tuple(image.shape[1:])
                shape = (channels or image.shape[0], height, width)
            _fits(image, shape, size, channels)
        except (InputError, MissingData) as error:
            broken.append(Broken(where.name(row), str(error)))
        else:
            rows.append(row)
        if on_image is not None:
            on_image(row + 1, len(where))
    if shape is None or not rows:
        first = f" The first: {broken[0].reason}" if broken else ""
        raise InputError(
            f"there is no image in {source} that can be read: {len(broken)} were tried.{first} "
            f"Give a folder with files of the kinds {', '.join(SUFFIXES)}."
        )
    return Images(where, rows, shape, broken)


def _each(where: Source) -> Iterator[tuple[int, Tensor | InputError | MissingData]]:
    """Yields every image, or the error that it gives, reading in blocks while all goes well."""
    for start in range(0, len(where), where.block):
        rows = range(start, min(start + where.block, len(where)))
        try:
            yield from zip(rows, where.read(rows), strict=True)
        except (InputError, MissingData):
            for row in rows:
                try:
                    (image,) = where.read([row])
                except (InputError, MissingData) as error:
                    yield row, error
                else:
                    yield row, image


def _fits(
    image: Tensor, shape: tuple[int, int, int], size: tuple[int, int] | None, channels: int | None
) -> None:
    if size is None and tuple(image.shape[1:]) != shape[1:]:
        raise InputError(
            f"it has {image.shape[1]} × {image.shape[2]} pixels, the first image {shape[1]} × "
            f"{shape[2]}. Pass size=(height, width) to resize all."
        )
    if channels is None and image.shape[0] != shape[0]:
        raise InputError(
            f"it has {image.shape[0]} channels, the first image {shape[0]}. Pass channels=1 or 3."
        )


def _fitted(image: Tensor, shape: tuple[int, int, int]) -> Tensor:
    if image.shape[0] == 3 and shape[0] == 1:
        image = (image * image.new_tensor([0.299, 0.587, 0.114])[:, None, None]).sum(0, True)
    elif image.shape[0] == 1 and shape[0] == 3:
        image = image.expand(3, -1, -1)
    if tuple(image.shape[1:]) != shape[1:]:
        resized = F.interpolate(
            image[None], shape[1:], mode="bilinear", antialias=True, align_corners=False
        )
        image = resized[0].clamp(0, 1)
    return image


def _source(source: str | Path | Sequence[str | Path]) -> Source:
    if not isinstance(source, str | Path):
        paths = [Path(path) for path in source]
        if not paths:
            raise InputError("the list of files is empty. Name at least one image.")
        return Files(paths, None, ())
    path = Path(source)
    if path.is_dir():
        return _folder(path)
    if not path.exists():
        raise MissingData(f"there is nothing at {path}. Give a folder, or an .npz or .h5 file.")
    if path.suffix.lower() == ".npz":
        return _npz(path)
    if path.suffix.lower() in (".h5", ".hdf5"):
        return _hdf5(path)
    if path.suffix.lower() in SUFFIXES:
        return Files([path], None, ())
    raise InputError(
        f"{path} is neither a folder nor an .npz, .h5, .hdf5 or image file. Give one of those."
    )


def _folder(path: Path) -> Files:
    entries = sorted(os.scandir(path), key=lambda entry: entry.name)
    folders = [e for e in entries if e.is_dir() and not e.name.startswith(".")]
    found: list[tuple[Path, int]] = []
    names: list[str] = []
    empty: list[Path] = []
    for entry in folders:
        inside = _pictures(Path(entry.path))
        if inside:
            found += [(file, len(names)) for file in inside]
            names.append(entry.name)
        else:
            empty.append(Path(entry.path))
    loose = _pictures(path)
    if found and loose:
        raise InputError(
            f"{path} has both class folders ({', '.join(names[:3])}, …) and {len(loose)} loose "
            f"images ({loose[0].name}, …). Keep one of the two."
        )
    if found:
        files, labels = [file for file, _ in found], [label for _, label in found]
        return Files(files, labels, names, empty)
    if not loose:
        raise InputError(
            f"{path} holds no images, neither in it nor in folders in it. Give a folder with "
            f"files of the kinds {', '.join(SUFFIXES)}."
        )
    return Files(loose, None, ())


def _pictures(path: Path) -> list[Path]:
    entries = (e for e in os.scandir(path) if not e.is_dir(follow_symlinks=False))
    files = (Path(entry.path) for entry in entries)
    return sorted(f for f in files if f.suffix.lower() in SUFFIXES and not f.name.startswith("."))


def _npz(path: Path) -> Array:
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > MOST_BYTES:
            raise InputError(
                f"{path} unpacks to {size / 2**30:.0f} GiB, more than {MOST_BYTES // 2**30}. Use "
                "HDF5 or image files, which are read piece by piece."
            )
        with np.load(path, allow_pickle=False) as file:
            images, labels = _keys(path, list(file))
            return Array(path, file[images], file[labels] if labels else None)
    except InputError:
        raise
    except Exception as error:  # a damaged archive can raise anything
        raise InputError(f"{path} cannot be read ({type(error).__name__}: {error}).") from error


def _hdf5(path: Path) -> Array:
    try:
        import h5py
    except ImportError as error:
        raise MissingExtra(
            "HDF5 files need h5py, which is not installed. Run `pip install 'leapfactual[hdf5]'`."
        ) from error
    try:
        file = h5py.File(path, "r")
        images, labels = _keys(path, list(file))
        return Array(path, file[images], file[labels][()] if labels else None)
    except InputError:
        raise
    except Exception as error:  # a damaged file can raise anything
        raise InputError(f"{path} cannot be read ({type(error).__name__}: {error}).") from error


def _keys(path: Path, names: list[str]) -> tuple[str, str | None]:
    images = next((key for key in IMAGE_KEYS if key in names), None)
    if images is None:
        raise InputError(
            f"{path} must hold an array named one of {', '.join(IMAGE_KEYS)}; it has "
            f"{', '.join(sorted(names)) or 'none'}."
        )
    return images, next((key for key in LABEL_KEYS if key in names), None)
