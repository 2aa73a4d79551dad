r"""Velocity fields: networks that say where a latent should go next.

A field is a function :math:`v_\psi(t, z, c)` of the time, the latents and one row of class weights
for each latent. The weights are one-hot for a hard condition and the classifier's probabilities
for a soft one.

===================  ==============================================================================
:mod:`.mlp`          rows of some dozen features: the latents of a VAE, tables
:mod:`.unet1d`       long rows: the *w* of a GAN
:mod:`.unet2d`       maps: the latents of a spatial autoencoder
===================  ==============================================================================
"""

from .base import VelocityField, expand_time
from .mlp import ACTIVATIONS, MLPField
from .unet1d import UNet1dField
from .unet2d import UNet2dField

__all__ = [
    "ACTIVATIONS",
    "FIELDS",
    "MLPField",
    "UNet1dField",
    "UNet2dField",
    "VelocityField",
    "expand_time",
]

FIELDS: dict[str, type[VelocityField]] = {
    field.__name__: field for field in (MLPField, UNet1dField, UNet2dField)
}
