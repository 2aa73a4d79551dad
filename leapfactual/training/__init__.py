"""Training: flows, autoencoders, and what their loops share."""

from .autoencoder import fit as fit_generator
from .flow import embed, fit

__all__ = ["embed", "fit", "fit_generator"]
