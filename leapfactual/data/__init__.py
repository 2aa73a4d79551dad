"""Data sets."""

from . import squares

__all__ = ["squares"]
