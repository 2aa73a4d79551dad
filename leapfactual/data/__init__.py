"""Data: images on disk, data sets by name, and the toy."""

from . import packages, squares
from .datasets import Dataset
from .digits import digits
from .galaxies import galaxies
from .images import Images, open_images
from .reading import read_image
from .sources import Broken
from .tables import Table, open_data, open_table

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
