"""Generators: what turns images into latents and back.

Anything with ``encode(x) → z`` and ``decode(z) → x`` is one; these are ours, and adapters for
those that others have trained.
"""

from .adapters import LatentDiffusionVAE, from_openvino, stylegan
from .gan import GAN, Inversion, Inverted
from .identity import Identity, Standardized
from .io import load, save
from .vae import VAE, ConditionalVAE
from .wae import WAE

__all__ = [
    "GAN",
    "VAE",
    "WAE",
    "ConditionalVAE",
    "Identity",
    "Inversion",
    "Inverted",
    "LatentDiffusionVAE",
    "Standardized",
    "from_openvino",
    "load",
    "save",
    "stylegan",
]
