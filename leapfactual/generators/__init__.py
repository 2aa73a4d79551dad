"""Generators: from images to latents, and from latents to images.

Any object with ``encode(x) → z`` and ``decode(z) → x`` is one. Here are autoencoders, GANs with
inversion, and adapters for models of other libraries.
"""

from .adapters import LatentDiffusionVAE, from_openvino, stylegan
from .gan import GAN, Inversion, InversionResult
from .identity import Identity, Standardized
from .io import load, save
from .spatial import SpatialAutoencoder
from .vae import VAE
from .wae import WAE

__all__ = [
    "GAN",
    "VAE",
    "WAE",
    "Identity",
    "Inversion",
    "InversionResult",
    "LatentDiffusionVAE",
    "SpatialAutoencoder",
    "Standardized",
    "from_openvino",
    "load",
    "save",
    "stylegan",
]
