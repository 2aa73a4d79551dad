"""Reports: an explanation as a page, a figure, an animation.

They read an explanation and make none.
"""

from .cards import cards
from .page import write_page
from .pictures import animation, figure, thumbnails

__all__ = ["animation", "cards", "figure", "thumbnails", "write_page"]
