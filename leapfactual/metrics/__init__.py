"""Measures of how alike two images are."""

from .lpips import LPIPS
from .morphology import morphometrics, relative_error

__all__ = ["LPIPS", "morphometrics", "relative_error"]
