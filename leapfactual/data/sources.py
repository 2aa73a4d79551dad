"""Sources of images: folders, files, zips and arrays, read lazily."""

import io
import math
import os
import zipfile
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import checks
from ..errors import InputError, LeapError, MissingData
from .hdf5 import check_written, open_hdf5, plain_dataset
from .reading import FROM_16_BITS, decode, read_image, to_unit

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff")
# Guards against archives that unpack without end: an .npz is read whole, up to so many GiB unless
# the variable says otherwise, and a zip member by member.
MAX_GIB, MAX_GIB_VARIABLE = 1.0, "LEAPFACTUAL_MAX_GIB"
MAX_MEMBER_BYTES = 256 * 2**20
# Of a class's name in an array.
MAX_LABEL_BYTES = 4096
# Each is looked at, and its name is kept.
MAX_IMAGES = 10_000_000
# How much of an array to read at a time.
BLOCK_BYTES = 64 * 2**20
EMPTY_FOLDER = "the folder holds no images; folders inside it are not searched"
OTHER_KIND = f"it is of none of the kinds {', '.join(SUFFIXES)}"
DEEP_FOLDER = "the folder lies in a class folder; those are not searched"
TOO_DEEP = "it lies in a folder inside a class folder; those are not searched"
IMAGE_KEYS = ("images", "x", "image", "data", "arr_0")
# The bit of a zip member's flags that says so.
ENCRYPTED = 1
LABEL_KEYS = ("labels", "ans", "y", "label", "target", "targets", "arr_1")


# What was converted, for each row.
Notes = defaultdict[int, set[str]]


@dataclass(frozen=True)
class Broken:
    """Image that could not be read, and why."""

    name: str
    reason: str

    def __str__(self) -> str:
        return self.reason if self.name in self.reason else f"{self.name}: {self.reason}"


class Source(ABC):
    """Abstract source of images: files, or one array."""

    classes: tuple[str, ...] = ()
    labels: Tensor | None = None
    left_out: Sequence[Broken] = ()
    block = 1

    @abstractmethod
    def __len__(self) -> int:
        """The number of images, broken ones included."""

    @abstractmethod
    def name(self, row: int) -> str:
        """Returns what an image is called."""

    @abstractmethod
    def read(self, rows: Sequence[int], notes: Notes | None = None) -> list[Tensor]:
        """Returns images ``(C, H, W)`` in [0, 1]; raises :class:`InputError` where it cannot.

        Arguments:
            rows: Which images.
            notes: Takes for each row what was converted, in words.
        """


class Files(Source):
    """Reads image files, one at a time."""

    def __init__(
        self,
        paths: Sequence[Path],
        labels: Sequence[int] | None,
        classes: Sequence[str],
        left_out: Sequence[Broken] = (),
    ) -> None:
        self.paths, self.classes, self.left_out = list(paths), tuple(classes), list(left_out)
        self.labels = None if labels is None else torch.tensor(labels, dtype=torch.long)

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, row: int) -> str:
        """See :meth:`Source.name`."""
        # A name that is not UTF-8 could be written nowhere.
        return os.fsencode(self.paths[row]).decode(errors="backslashreplace")

    def read(self, rows: Sequence[int], notes: Notes | None = None) -> list[Tensor]:
        """See :meth:`Source.read`."""
        notes = defaultdict(set) if notes is None else notes
        return [read_image(self.paths[row], notes[row]) for row in rows]


class ZipFiles(Source):
    """Reads pictures of a zip file, one at a time; the file stays open."""

    def __init__(
        self,
        path: Path,
        archive: zipfile.ZipFile,
        members: Sequence[zipfile.ZipInfo],
        labels: Sequence[int] | None,
        classes: Sequence[str],
        left_out: Sequence[Broken],
    ) -> None:
        self.path, self.archive, self.members = path, archive, list(members)
        self.classes, self.left_out = tuple(classes), list(left_out)
        self.labels = None if labels is None else torch.tensor(labels, dtype=torch.long)

    def __len__(self) -> int:
        return len(self.members)

    def name(self, row: int) -> str:
        """See :meth:`Source.name`."""
        return f"{self.path}/{self.members[row].filename}"

    def read(self, rows: Sequence[int], notes: Notes | None = None) -> list[Tensor]:
        """See :meth:`Source.read`."""
        notes = defaultdict(set) if notes is None else notes
        return [self._image(self.members[row], self.name(row), notes[row]) for row in rows]

    def _image(self, member: zipfile.ZipInfo, name: str, notes: set[str]) -> Tensor:
        if member.file_size > MAX_MEMBER_BYTES:
            raise InputError(
                f"{name} unpacks to {member.file_size / 2**20:.0f} MiB, more than "
                f"{MAX_MEMBER_BYTES // 2**20}. Make it smaller first."
            )
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise InputError(
                f"{name} is packed with method {member.compress_type}; 0 (stored) and 8 "
                "(deflated) are read. Pack it again with one of those."
            )
        try:
            with self.archive.open(member) as file:
                content = file.read(member.file_size + 1)
        except Exception as error:  # a damaged archive can raise anything
            raise InputError(
                f"{name} cannot be unpacked ({type(error).__name__}: {error}). Pack it again."
            ) from error
        return decode(io.BytesIO(content), name, notes)


class Array(Source):
    """Reads rows of an array ``(N, H, W)``, ``(N, H, W, C)`` or ``(N, C, H, W)``, also on disk."""

    def __init__(self, path: Path, array: Any, labels: Any | None) -> None:  # noqa: ANN401
        if array.ndim not in (3, 4):
            raise InputError(
                f"{path} must hold images of shape (N, H, W), (N, H, W, C) or (N, C, H, W), got "
                f"{tuple(array.shape)}."
            )
        if len(array) and math.prod(array.shape[1:]) > 3 * checks.MAX_PIXELS:
            raise InputError(
                f"{path} holds images of shape {tuple(array.shape[1:])}, more than "
                f"{checks.MAX_PIXELS // 1_000_000} million pixels each. Make them smaller first."
            )
        if len(array) > MAX_IMAGES:
            raise InputError(
                f"{path} holds {len(array):,} images, more than {MAX_IMAGES:,}. Split it."
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
            _check_labels(path, labels.shape, labels.dtype, len(array))
            kinds, index = np.unique(np.asarray(labels[()]).reshape(-1), return_inverse=True)
            self.classes = tuple(_text(kind) for kind in kinds)
            self.labels = torch.from_numpy(index.astype(np.int64))

    def __len__(self) -> int:
        return len(self.array)

    def name(self, row: int) -> str:
        """See :meth:`Source.name`."""
        return f"{self.path}[{row}]"

    def read(self, rows: Sequence[int], notes: Notes | None = None) -> list[Tensor]:
        """See :meth:`Source.read`."""
        order = sorted(set(rows))
        place = {row: n for n, row in enumerate(order)}
        first, last = order[0], order[-1]
        index = slice(first, last + 1) if len(order) == last + 1 - first else order
        try:
            pixels = np.asarray(self.array[index])
        except OSError as error:
            raise InputError(f"{self.name(first)} cannot be read ({error}).") from error
        block = to_unit(pixels, lambda n: self.name(order[n]))
        if notes is not None and pixels.dtype.itemsize == 2:
            for row in rows:
                notes[row].add(FROM_16_BITS)
        return [self._image(block[place[row]]) for row in rows]

    def _image(self, pixels: Tensor) -> Tensor:
        if pixels.ndim == 2:
            return pixels[None]
        return pixels.permute(2, 0, 1) if self.channels_last else pixels


def _text(label: Any) -> str:  # noqa: ANN401 - what an array holds
    return label.decode(errors="replace") if isinstance(label, bytes) else str(label)


def open_source(source: str | Path | Sequence[str | Path]) -> Source:
    """Opens a source, whatever kind it is."""
    if not isinstance(source, str | Path):
        if not isinstance(source, Sequence) or not all(isinstance(s, str | Path) for s in source):
            raise InputError(
                f"images are named by a path, or by a list of paths, got {type(source).__name__}."
            )
        paths = [checks.path(path) for path in source]
        if not paths:
            raise InputError("the list of files is empty. Name at least one image.")
        return Files(paths, None, ())
    path = checks.path(source)
    if path.is_dir():
        return _folder(path)
    if not path.exists():
        raise MissingData(
            f"there is nothing at {path}. Give a folder, or a .zip, .npz or .h5 file."
        )
    if path.suffix.lower() == ".zip":
        return _zip(path)
    if path.suffix.lower() == ".npz":
        return _npz(path)
    if path.suffix.lower() in (".h5", ".hdf5"):
        return _hdf5(path)
    if path.suffix.lower() in SUFFIXES:
        return Files([path], None, ())
    raise InputError(
        f"{path} is neither a folder nor a .zip, .npz, .h5, .hdf5 or image file. Give one of "
        "those."
    )


def _folder(path: Path) -> Files:
    entries = sorted(os.scandir(path), key=lambda entry: entry.name)
    folders = [e for e in entries if e.is_dir() and not e.name.startswith(".")]
    nested: list[str] = []
    found: list[tuple[Path, int]] = []
    names: list[str] = []
    left_out: list[Broken] = []
    for entry in folders:
        inside, others = _list_images(Path(entry.path))
        deeper = [inner for inner in _folders(entry.path) if _list_images(Path(inner))[0]]
        if inside:
            found += [(file, len(names)) for file in inside]
            names.append(entry.name)
            left_out += [*others, *(Broken(inner, DEEP_FOLDER) for inner in deeper)]
        else:
            left_out.append(Broken(entry.path, EMPTY_FOLDER))
            nested += deeper
    loose, others = _list_images(path)
    _check_layout(path, names, [file.name for file in loose])
    if found:
        files, labels = [file for file, _ in found], [label for _, label in found]
        return Files(files, labels, names, left_out)
    if not loose and nested:
        raise InputError(
            f"{path} has its images in folders inside folders ({nested[0]}, …). Give the folder "
            f"of class folders, such as {Path(nested[0]).parent}."
        )
    if not loose:
        raise InputError(
            f"{path} holds no images, neither in it nor in folders in it. Give a folder with "
            f"files of the kinds {', '.join(SUFFIXES)}."
        )
    return Files(loose, None, (), [*others, *left_out])


def _folders(path: str) -> list[str]:
    """Returns the folders in a folder, without those that are hidden."""
    entries = (e for e in os.scandir(path) if e.is_dir(follow_symlinks=False))
    return sorted(entry.path for entry in entries if not entry.name.startswith("."))


def _check_layout(path: Path, names: Sequence[str], loose: Sequence[str]) -> None:
    if names and loose:
        raise InputError(
            f"{path} has both class folders ({', '.join(names[:3])}, …) and loose images "
            f"({len(loose)}, such as {loose[0]}). Keep one of the two."
        )


def _list_images(path: Path) -> tuple[list[Path], list[Broken]]:
    """Returns the images of a folder, and the files of other kinds that lie among them."""
    entries = (e for e in os.scandir(path) if not e.is_dir(follow_symlinks=False))
    files = sorted(Path(entry.path) for entry in entries if not entry.name.startswith("."))
    others = [Broken(str(f), OTHER_KIND) for f in files if not _is_image(f.name)]
    return [f for f in files if _is_image(f.name)], others


def _is_image(name: str) -> bool:
    return Path(name).suffix.lower() in SUFFIXES


def _zip(path: Path) -> ZipFiles:
    try:
        archive = zipfile.ZipFile(path)
    except PermissionError:
        raise
    except Exception as error:  # a damaged archive can raise anything
        raise InputError(
            f"{path} is damaged or no zip ({type(error).__name__}: {error}). Expected pictures, "
            "loose or in class folders. Copy or pack it again."
        ) from error
    every = _members(archive)
    members = {place: member for place, member in every.items() if _is_image(place[-1])}
    if not members:
        raise InputError(
            f"{path} holds no images. Pack files of the kinds {', '.join(SUFFIXES)}, loose or in "
            "class folders."
        )
    for member in members.values():
        if member.flag_bits & ENCRYPTED:
            raise InputError(
                f"{path} is encrypted ({member.filename}). Pack it again without a password."
            )
    folders = [place[:-1] for place in members]
    around = len(os.path.commonprefix(folders))  # noqa: RUF071 - of tuples, not of text
    inside = {place[around:]: members[place] for place in sorted(members)}
    loose = [place[0] for place in inside if len(place) == 1]
    names = sorted({place[0] for place in inside if len(place) == 2})
    _check_layout(path, names, loose)
    if not names and not loose:
        raise InputError(
            f"{path} has its images in folders inside folders "
            f"({next(iter(members.values())).filename}, …). Pack class folders, or loose images."
        )
    depth, label = (2 if names else 1), {name: n for n, name in enumerate(names)}
    others = [place for place in every if place not in members and len(place) == around + depth]
    kept = [place for place in inside if len(place) == depth]
    # A folder with images that lie too deep is named with these.
    holding = {place[: around + 1] for place in members if len(place) > around + 1}
    empty = _empty_folders(archive, holding) if names else []
    return ZipFiles(
        path,
        archive,
        [inside[place] for place in kept],
        [label[place[0]] for place in kept] if names else None,
        names,
        [
            Broken(f"{path}/{member.filename}", TOO_DEEP)
            for place, member in inside.items()
            if len(place) > depth
        ]
        + [Broken(f"{path}/{every[place].filename}", OTHER_KIND) for place in others]
        + [Broken(f"{path}/{name}", EMPTY_FOLDER) for name in empty],
    )


def _members(archive: zipfile.ZipFile) -> dict[tuple[str, ...], zipfile.ZipInfo]:
    """Returns the files of a zip by the folders that they lie in and their names."""
    return {place: member for place, member in _places(archive) if not member.is_dir()}


def _empty_folders(archive: zipfile.ZipFile, holding: Collection[tuple[str, ...]]) -> list[str]:
    """Returns the folders of a zip beside those that hold something, and that hold nothing."""
    depth = len(next(iter(holding)))
    folders = {
        place[:depth]
        for place, member in _places(archive)
        if len(place) > depth or (len(place) == depth and member.is_dir())
    }
    around = {place[:-1] for place in holding}
    return sorted("/".join(f) for f in folders if f[:-1] in around and f not in holding)


def _places(archive: zipfile.ZipFile) -> Iterator[tuple[tuple[str, ...], zipfile.ZipInfo]]:
    """Yields what a zip holds, each with the folders that it lies in and its name."""
    for member in archive.infolist():
        place = tuple(part for part in member.filename.replace("\\", "/").split("/") if part)
        hidden = any(part.startswith(".") or part == "__MACOSX" for part in place)
        # A member without a name breaks is_dir.
        if place and not hidden:
            yield place, member


def _check_labels(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], images: int) -> None:
    """Checks that there is a label for each image, and none vast, before they are read."""
    if dtype.itemsize > MAX_LABEL_BYTES:
        raise InputError(
            f"the labels in {path} take {dtype.itemsize:,} bytes each, more than "
            f"{MAX_LABEL_BYTES:,}. Save numbers or shorter names."
        )
    if math.prod(shape) != images:
        raise InputError(
            f"{path} must hold one label per image, got {math.prod(shape)} labels for {images} "
            "images."
        )


def _max_bytes() -> float:
    """Returns how much may be read at once."""
    given = os.environ.get(MAX_GIB_VARIABLE, str(MAX_GIB))
    try:
        gib = float(given)
    except ValueError:
        gib = math.nan
    if not 0 < gib < math.inf:
        raise InputError(f"${MAX_GIB_VARIABLE} must be a number of GiB above 0, got {given!r}.")
    return gib * 2**30


def _npz(path: Path) -> Array:
    try:
        with np.load(path, allow_pickle=False) as file:
            images, labels = _keys(path, list(file))
            shape, _ = _declared(path, file, images)
            if labels and shape:
                _check_labels(path, *_declared(path, file, labels), shape[0])
            return Array(path, file[images], file[labels] if labels else None)
    except InputError:
        raise
    except Exception as error:  # a damaged archive can raise anything
        raise InputError(f"{path} cannot be read ({type(error).__name__}: {error}).") from error


def _declared(
    path: Path,
    file: Any,  # noqa: ANN401 - an NpzFile
    key: str,
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Returns what an array in an .npz file declares to be, if it is not too large to read."""
    read: Any = np.lib.format  # numpy gives these functions no types
    with file.zip.open(f"{key}.npy") as member:
        first = read.read_magic(member) == (1, 0)
        header = read.read_array_header_1_0 if first else read.read_array_header_2_0
        shape, _, dtype = header(member)
    size, most = math.prod(shape) * dtype.itemsize, _max_bytes()
    if size > most:
        raise InputError(
            f"`{key}` in {path} unpacks to {size / 2**30:.2g} GiB, more than {most / 2**30:.2g}. "
            "Use HDF5 or image files, which are read piece by piece, or allow it: "
            f"{MAX_GIB_VARIABLE}={math.ceil(size / 2**30)}."
        )
    return tuple(shape), dtype


def _hdf5(path: Path) -> Array:
    try:
        file = open_hdf5(path)
        images, labels = _keys(path, list(file))
        array = plain_dataset(file, images)
        source = Array(path, array, plain_dataset(file, labels) if labels else None)
        check_written(array)
        return source
    except LeapError:
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
