"""Bundles: what was trained, on disk, without pickle."""

from .bundle import Bundle

__all__ = ["Bundle"]
