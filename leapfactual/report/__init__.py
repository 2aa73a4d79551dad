"""Reports: an explanation as a page, a figure, an animation.

They read an explanation and make none.
"""

from .cards import cards
from .figures import animation, figure, thumbnails
from .page import write_page

__all__ = ["animation", "cards", "figure", "thumbnails", "write_page"]
