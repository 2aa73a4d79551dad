"""Metrics: what can be read off an explanation, and measures of how alike two images are."""

from .distributions import SplitHalf, frechet, split_half
from .factories import (
    cout,
    diversity,
    inside,
    oracle_validity,
    perceptual,
    realism,
    stability,
)
from .imagenet import EfficientNetLite0
from .lpips import LPIPS
from .morphology import morphometrics, relative_error
from .pyramid import PyramidDistance, best_distance
from .standard import METRICS, Metric, Score, evaluate, l1, morphology_errors

__all__ = [
    "LPIPS",
    "METRICS",
    "EfficientNetLite0",
    "Metric",
    "PyramidDistance",
    "Score",
    "SplitHalf",
    "best_distance",
    "cout",
    "diversity",
    "evaluate",
    "frechet",
    "inside",
    "l1",
    "morphology_errors",
    "morphometrics",
    "oracle_validity",
    "perceptual",
    "realism",
    "relative_error",
    "split_half",
    "stability",
]
