"""Colours and scale of the change map, for the page, for PNG files and for figures alike.

Change them here and nowhere else: the page takes them as the CSS variables ``--less``, ``--none``,
``--more`` and ``--other``, PNG files and figures take the light ones. Captions that call them red
and blue are found with ``git grep "taken away"``.
"""

from typing import NamedTuple


class ChangeColors(NamedTuple):
    """Colours of a change map, as ``#rrggbb``.

    Arguments:
        less: Where a whole 1 was taken away.
        none: Where nothing changed.
        more: Where a whole 1 was added.
        other: Where another colour took the place of one that is as bright.
    """

    less: str
    none: str
    more: str
    other: str


# Red and blue of the colour-blind safe scale RdBu; on a dark page they have to be lighter to stand
# out as much.
CHANGE_COLORS = ChangeColors(less="#0571b0", none="#ffffff", more="#ca0020", other="#7b2d8e")
DARK_CHANGE_COLORS = ChangeColors(less="#4aa8ff", none="#141416", more="#ff5a4a", other="#d08cff")

# Images with a side of this many pixels or more are taken for photographs. What changes in them is
# seldom black on white, so that a quarter of the range has the full colour already.
PHOTO_SIDE = 64
PHOTO_CHANGE = 0.25


def full_change(height: int, width: int) -> float:
    """Returns the change that has the full colour in a change map of this size.

    Example:
        >>> full_change(28, 28), full_change(128, 96)
        (1.0, 0.25)
    """
    return PHOTO_CHANGE if max(height, width) >= PHOTO_SIDE else 1.0
