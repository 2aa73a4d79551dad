"""Classifiers: what answers with class probabilities.

Any function from images ``(B, C, H, W)`` to rows ``(B, K)`` on the simplex is one. These make one
of what people have, and put layers around it.
"""

from .adapters import clip_preprocessing, from_clip, from_onnx, from_sklearn, load_clip
from .loading import open_classifier
from .preprocessing import Preprocessing, stretched, unstretch, unstretched
from .wrap import Network, from_labels, from_logits, from_probabilities, from_string
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
    "from_string",
    "load_clip",
    "open_classifier",
    "stretched",
    "unstretch",
    "unstretched",
]
