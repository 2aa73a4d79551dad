"""Metrics: what can be read off an explanation, and measures of how alike two images are."""

from .lpips import LPIPS
from .made import cout, diversity, frechet, inside, judged, perceptual, realism, stability
from .morphology import morphometrics, relative_error
from .table import METRICS, Metric, Score, evaluate, morphology_errors

__all__ = [
    "LPIPS",
    "METRICS",
    "Metric",
    "Score",
    "cout",
    "diversity",
    "evaluate",
    "frechet",
    "inside",
    "judged",
    "morphology_errors",
    "morphometrics",
    "perceptual",
    "realism",
    "relative_error",
    "stability",
]
