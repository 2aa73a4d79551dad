"""Data: images and tables on disk, data sets by name, and the toy."""

from collections.abc import Sequence
from pathlib import Path

from ..errors import InputError
from . import packages, squares
from .datasets import Dataset
from .digits import digits
from .galaxies import galaxies
from .images import Images, OnImage, open_images
from .reading import read_image
from .sources import Broken
from .tables import Table, open_table

__all__ = [
    "Broken",
    "Dataset",
    "Images",
    "Table",
    "digits",
    "galaxies",
    "open_data",
    "open_images",
    "open_table",
    "packages",
    "read_image",
    "squares",
]


def open_data(
    source: str | Path | Sequence[str | Path],
    *,
    size: tuple[int, int] | None = None,
    channels: int | None = None,
    label: str | None = None,
    on_image: OnImage = None,
) -> Images | Table:
    """Opens a table if the source is a CSV file, and images otherwise.

    Arguments:
        source: What :func:`open_table` or :func:`open_images` takes.
        size: Height and width to resize images to.
        channels: 1 for grey images, 3 for colour.
        label: The column of a table that names the class of each row.
        on_image: Called with the number of images looked at and of all, to show progress.
    """
    if isinstance(source, str | Path) and Path(source).suffix.lower() == ".csv":
        return open_table(source, label=label)
    if label is not None:
        raise InputError(
            f"`label` is the column of a table, got {label!r} for images. Their classes are the "
            "names of their folders."
        )
    return open_images(source, size=size, channels=channels, on_image=on_image)
