"""Metrics: what can be read off an explanation, and measures of how alike two images are."""

from .lpips import LPIPS
from .morphology import morphometrics, relative_error
from .table import METRICS, Metric, Score, evaluate, judged, morphology_errors

__all__ = [
    "LPIPS",
    "METRICS",
    "Metric",
    "Score",
    "evaluate",
    "judged",
    "morphology_errors",
    "morphometrics",
    "relative_error",
]
