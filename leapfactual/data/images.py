"""Sets of images on disk, read lazily, so that memory does not grow with them.

A set is opened from a folder of class folders, a flat folder, a zip of either, a list of files, an
``.npz`` or an HDF5 file. Opening looks at every image once: those that cannot be read are named
with the reason and left out, the rest is done.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import checks
from ..errors import InputError, MissingData
from ..imaging import STRETCHES, stretch
from .sources import Broken, Notes, Source, open_source

# Called with the number of images looked at and of all, to show progress.
OnImage = Callable[[int, int], object] | None


class Images:
    """Set of images on disk, all of one shape, that is read lazily.

    Create one with :func:`open_images`. It can be indexed with rows, iterated in batches, and
    given to :func:`leapfactual.embed` and :func:`leapfactual.training.fit_generator`. What was
    left out stands in ``broken``, and in ``converted`` how many images were converted, and how.
    """

    def __init__(
        self,
        source: Source,
        rows: Sequence[int],
        shape: tuple[int, int, int],
        broken: Sequence[Broken],
        stretch: str = "none",
        crop: int | None = None,
        converted: Mapping[str, int] | None = None,
    ) -> None:
        self.converted = dict(converted or {})
        self._source, self._rows = source, list(rows)
        self.stretch, self.crop = stretch, crop
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
        """The name of each image, which is its file or its place in the file."""
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
        # Large images are resized as soon as they are read: many at full size fill the memory.
        blocks = (
            self._source.read(chosen[start : start + self._source.block])
            for start in range(0, len(chosen), self._source.block)
        )
        fitted = [
            convert(_crop(image, self.crop), self.shape) for block in blocks for image in block
        ]
        return stretch(torch.stack(fitted), self.stretch)

    def take(self, rows: Sequence[int] | Tensor) -> "Images":
        """Returns the set of some of the images."""
        chosen = [self._rows[int(row)] for row in rows]
        return self._with(chosen, self.stretch)

    def stretched(self, stretch: str) -> "Images":
        """Returns the same set with what is faint lifted: ``sqrt``, ``asinh`` or ``log``."""
        if stretch not in STRETCHES:
            raise InputError(
                f"the stretch must be one of {', '.join(STRETCHES)}, got {stretch!r}."
            )
        return self._with(self._rows, stretch)

    def _with(self, rows: Sequence[int], stretch: str) -> "Images":
        return Images(
            self._source, rows, self.shape, self.broken, stretch, self.crop, self.converted
        )

    def batches(self, batch_size: int) -> Iterator[Tensor]:
        """Yields the images in order, batch by batch."""
        checks.positive(batch_size, "batch_size")
        for start in range(0, len(self), batch_size):
            yield self[start : start + batch_size]

    def __repr__(self) -> str:
        channels, height, width = self.shape
        kinds = f", {len(self.classes)} classes" if self.classes else ""
        broken = f", {len(self.broken)} left out" if self.broken else ""
        return f"Images({len(self)} of {channels} × {height} × {width}{kinds}{broken})"


def open_images(
    source: str | Path | Sequence[str | Path],
    *,
    size: tuple[int, int] | None = None,
    channels: int | None = None,
    crop: int | None = None,
    on_image: OnImage = None,
) -> Images:
    """Opens a set of images and looks at each once.

    Arguments:
        source: A folder of class folders, a flat folder, a ``.zip`` of either, a list of files,
            an ``.npz`` file with ``images`` and maybe ``labels``, which is read whole, or an HDF5
            file with ``images`` and maybe ``ans`` or ``labels``. Folders around everything in a
            zip do not count.
        size: Height and width to resize to. Without it all images must have the first one's size.
        channels: 1 for grey, 3 for colour. Without it, what the first image has.
        crop: How many pixels the square has that is cut out of the centre, before resizing.
        on_image: Called with the number of images looked at and of all, to show progress.

    Returns:
        The set. What could not be read stands in its ``broken``.
    """
    if size is not None:
        checks.size(size)
    try:
        where = open_source(source)
    except OSError as error:
        if isinstance(error, MissingData):
            raise
        raise InputError(f"{source} cannot be read ({error}). Check its permissions.") from error
    if crop is not None:
        checks.positive(crop, "crop")
    if channels not in (None, 1, 3):
        raise InputError(f"`channels` must be 1 for grey or 3 for colour, got {channels!r}.")
    shape: tuple[int, int, int] | None = None
    rows = []
    broken = []
    notes: Notes = defaultdict(set)
    converted = Counter[str]()
    for row, image in _each(where, notes):
        try:
            if not isinstance(image, Tensor):
                raise image
            image = _crop(image, crop)
            if shape is None:
                height, width = size or tuple(image.shape[1:])
                shape = (channels or image.shape[0], height, width)
            _check_fits(image, shape, size, channels)
        except (InputError, MissingData) as error:
            broken.append(Broken(where.name(row), str(error)))
        else:
            rows.append(row)
            converted.update([*sorted(notes.pop(row, ())), *_conversions(image, shape)])
        if on_image is not None:
            on_image(row + 1, len(where))
    if shape is None or not rows:
        if not broken:
            raise InputError(f"{source} holds no images. Give one that does.")
        if len(broken) == 1:
            raise InputError(f"the only image cannot be used. {broken[0]}")
        raise InputError(f"none of {len(broken)} images can be used. The first: {broken[0]}")
    left_out = [*broken, *where.left_out]
    return Images(where, rows, shape, left_out, crop=crop, converted=converted)


def _conversions(image: Tensor, shape: tuple[int, int, int]) -> Iterator[str]:
    """Yields what is done to an image so that it fits."""
    if tuple(image.shape[1:]) != shape[1:]:
        yield f"resized to {shape[1]} × {shape[2]}"
    if image.shape[0] != shape[0]:
        yield "turned from colour to grey" if shape[0] == 1 else "turned from grey to colour"


def _each(where: Source, notes: Notes) -> Iterator[tuple[int, Tensor | InputError | MissingData]]:
    """Yields every image, or the error that it raises; reads in blocks as long as none does."""
    for start in range(0, len(where), where.block):
        rows = range(start, min(start + where.block, len(where)))
        try:
            yield from zip(rows, where.read(rows, notes), strict=True)
        except (InputError, MissingData):
            for row in rows:
                try:
                    (image,) = where.read([row], notes)
                except (InputError, MissingData) as error:
                    yield row, error
                else:
                    yield row, image


def _check_fits(
    image: Tensor, shape: tuple[int, int, int], size: tuple[int, int] | None, channels: int | None
) -> None:
    if size is None and tuple(image.shape[1:]) != shape[1:]:
        raise InputError(
            f"it has {image.shape[1]} × {image.shape[2]} pixels, the first image {shape[1]} × "
            f"{shape[2]}. Pass size=(height, width), or --size HEIGHT WIDTH, to resize all."
        )
    if channels is None and image.shape[0] != shape[0]:
        raise InputError(
            f"it has {image.shape[0]} channels, the first image {shape[0]}. Pass channels=1 or "
            "3, or --channels."
        )


def convert(image: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Converts one image ``(C, H, W)`` to the channels and the size of others."""
    if image.shape[0] == 3 and shape[0] == 1:
        image = (image * image.new_tensor([0.299, 0.587, 0.114])[:, None, None]).sum(0, True)
    elif image.shape[0] == 1 and shape[0] == 3:
        image = image.expand(3, -1, -1)
    return resize(image[None], (shape[1], shape[2]))[0]


def _crop(image: Tensor, crop: int | None) -> Tensor:
    if crop is None:
        return image
    height, width = image.shape[1:]
    if min(height, width) < crop:
        raise InputError(
            f"it has {height} × {width} pixels, too few for a crop of {crop} × {crop}. Pass a "
            "smaller crop, or leave it out."
        )
    top, left = (height - crop) // 2, (width - crop) // 2
    return image[:, top : top + crop, left : left + crop]


def resize(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Resizes images ``(B, C, H, W)`` in [0, 1], smoothly, without aliasing."""
    if tuple(x.shape[2:]) == tuple(size):
        return x
    x = F.interpolate(x, size, mode="bilinear", antialias=True, align_corners=False)
    return x.clamp(0, 1)
