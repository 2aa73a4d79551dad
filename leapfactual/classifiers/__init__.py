"""Classifiers: from images to class probabilities.

Any function from images ``(B, C, H, W)`` to rows ``(B, K)`` on the simplex is one. Here are
functions that create one from networks, labels and other libraries, and wrappers around it.
"""

from .adapters import clip_preprocessing, from_clip, from_onnx, from_sklearn, load_clip
from .loading import open_classifier
from .preprocessing import Preprocessing, undo_stretch
from .wrap import Network, from_labels, from_logits, from_probabilities
from .wrappers import Cached, Counted, Retrying

__all__ = [
    "Cached",
    "Counted",
    "Network",
    "Preprocessing",
    "Retrying",
    "clip_preprocessing",
    "from_clip",
    "from_labels",
    "from_logits",
    "from_onnx",
    "from_probabilities",
    "from_sklearn",
    "load_clip",
    "open_classifier",
    "undo_stretch",
]
