"""Reports: an explanation as a page, a figure, an animation; numbers as tables.

A report reads an explanation and makes none. Where it shows the iterates of a path, it takes the
generator that decodes them as an argument.
"""

from .cards import cards
from .figures import change_map, figure, thumbnails, write_animation
from .page import write_page

__all__ = ["cards", "change_map", "figure", "thumbnails", "write_animation", "write_page"]
