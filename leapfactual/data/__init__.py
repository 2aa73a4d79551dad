"""Data: images on disk, data sets by name, and the toy."""

from . import packages, squares
from .digits import Dataset, digits
from .images import Broken, Images, open_images
from .reading import read_image

__all__ = [
    "Broken",
    "Dataset",
    "Images",
    "digits",
    "open_images",
    "packages",
    "read_image",
    "squares",
]
