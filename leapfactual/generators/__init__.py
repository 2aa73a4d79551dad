"""Generators: what turns images into latents and back."""

from .identity import Identity

__all__ = ["Identity"]
