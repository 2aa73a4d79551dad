"""Colours of the change map, for the page, for PNG files and for figures alike.

Change them here and nowhere else: the page takes them as the CSS variables ``--less``, ``--none``
and ``--more``, PNG files and figures take the light ones. Captions that call them red and blue
are found with ``git grep "taken away"``.
"""

from typing import NamedTuple


class ChangeColors(NamedTuple):
    """Colours of a change map, as ``#rrggbb``.

    Arguments:
        less: Where a whole 1 was taken away.
        none: Where nothing changed.
        more: Where a whole 1 was added.
    """

    less: str
    none: str
    more: str


# Red and blue of the colour-blind safe scale RdBu; on a dark page they have to be lighter to stand
# out as much.
CHANGE_COLORS = ChangeColors(less="#0571b0", none="#ffffff", more="#ca0020")
DARK_CHANGE_COLORS = ChangeColors(less="#4aa8ff", none="#141416", more="#ff5a4a")
