"""A page on which one asks "what if" and sees the answer at once.

==================  ========================================================================
:mod:`.gallery`     the pictures: those that it was opened with, and those brought to it
:mod:`.studio`      what is explained, and the questions: a walk, other ways, a real picture
:mod:`.opening`     what it can be opened with: a bundle, the digits that ship, faces
:mod:`.worker`      the thread that computes, one question after the other
:mod:`.kept`        counterfactuals that were kept, on disk
:mod:`.web`         the page, which needs the extra ``studio``
==================  ========================================================================

Example:
    >>> from leapfactual.studio import open_digits
    >>> studio = open_digits()
    >>> studio.open()
    >>> *steps, answer = studio.walk("0", 3, number=0)
    >>> answer["card"]["reason"]
    '7 became 3 after 2 leaps; the search went on for 21 more to improve it'
"""

from .gallery import Gallery, Picture
from .opening import open_bundle, open_digits, open_faces
from .studio import Position, Studio

__all__ = [
    "Gallery",
    "Picture",
    "Position",
    "Studio",
    "open_bundle",
    "open_digits",
    "open_faces",
]
