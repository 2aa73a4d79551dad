"""Training of flows and autoencoders, with checkpoints that resume exactly."""

from .autoencoder import fit as fit_generator
from .flow import embed, fit

__all__ = ["embed", "fit", "fit_generator"]
