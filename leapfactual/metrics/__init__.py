"""Measures of how alike two images are."""

from .lpips import LPIPS

__all__ = ["LPIPS"]
