r"""Variational autoencoders, unconditional and conditional.

.. math::
    \mathcal{L} = \lambda \, \text{MSE}(x, \hat x) + \text{KL}\big(\mathcal{N}(\mu, \sigma^2)
    \,\|\, \mathcal{N}(0, I)\big) , \qquad \hat x = g(z) , \; z = \mu + \sigma \epsilon ,

with the squared error averaged over pixels, the KL divergence summed over features, and the
paper's :math:`\lambda = 4000`. The latent of an image is the mean :math:`\mu`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import checks
from ..errors import InputError
from .layers import Autoencoder, ConvDecoder, ConvEncoder, check_images, check_latents

WIDTHS = (8, 16, 32, 32)


class VAE(Autoencoder):
    """Creates the paper's convolutional VAE for Morpho-MNIST, for any image size.

    Images whose size the halvings do not divide are padded with zeros and cropped again. With
    ``classes`` it is conditional, as the CGM-based baseline needs: a condition ``c`` of shape
    ``(B, K)`` joins the last layer of the encoder and the first of the decoder.

    Arguments:
        shape: The shape of an image, ``(C, H, W)``.
        features: The number of latent features D.
        classes: The number of classes K of the condition; 0 for none.
        widths: The number of channels after each halving.
        reconstruction_weight: The weight of the squared error against the KL divergence, the
            paper's lambda.
        kernel: The size of the decoder's last convolution.

    Example:
        >>> vae = VAE((1, 28, 28))
        >>> vae.decode(vae.encode(torch.zeros(2, 1, 28, 28))).shape
        torch.Size([2, 1, 28, 28])
        >>> vae = VAE((1, 28, 28), classes=10)
        >>> x, c = torch.zeros(2, 1, 28, 28), torch.eye(10)[:2]
        >>> vae.decode(vae.encode(x, c), c.flip(0)).shape
        torch.Size([2, 1, 28, 28])
    """

    def __init__(
        self,
        shape: Sequence[int],
        features: int = 32,
        *,
        classes: int = 0,
        widths: Sequence[int] = WIDTHS,
        reconstruction_weight: float = 4000.0,
        kernel: int = 1,
    ) -> None:
        super().__init__(shape, features, widths)
        self.classes = checks.positive(classes, "classes") if classes else 0
        self.reconstruction_weight = checks.number(reconstruction_weight, "reconstruction_weight")
        self.kernel = kernel
        self.encoder = ConvEncoder(self.shape, self.widths, 2 * self.features, self.classes)
        self.decoder = ConvDecoder(self.shape, self.widths, self.features, self.classes, kernel)
        self.eval()

    def encode(self, x: Tensor, c: Tensor | None = None) -> Tensor:
        """Returns the means ``(B, D)`` of the latents of ``x``, under the condition if any."""
        return self._posterior(x, c)[0]

    def decode(self, z: Tensor, c: Tensor | None = None) -> Tensor:
        """Returns the images of ``z``, under the condition if any."""
        check_latents(z, self.features)
        self.check_dtype(z)
        self._check_condition(c, len(z))
        x: Tensor = self.decoder(z, c)
        return x

    def loss(
        self, x: Tensor, rng: torch.Generator, c: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns the objective on a batch, as a scalar, and the reconstruction."""
        mean, log_variance = self._posterior(x, c)
        noise = torch.randn(mean.shape, generator=rng, device=mean.device, dtype=mean.dtype)
        x_hat = self.decoder(mean + (0.5 * log_variance).exp() * noise, c)
        kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
        return self.reconstruction_weight * F.mse_loss(x_hat, x) + kl, x_hat

    def _posterior(self, x: Tensor, c: Tensor | None) -> tuple[Tensor, Tensor]:
        check_images(x, self.shape)
        self.check_dtype(x)
        self._check_condition(c, len(x))
        mean, log_variance = self.encoder(x, c).chunk(2, dim=1)
        return mean, log_variance

    def _check_condition(self, c: Tensor | None, rows: int) -> None:
        if c is None and self.classes:
            raise InputError(
                f"this VAE is conditional: pass the condition `c` of shape ({rows}, "
                f"{self.classes}), what the classifier says of the images."
            )
        if c is not None and c.shape != (rows, self.classes):
            raise InputError(
                f"`c` must have shape ({rows}, {self.classes}), got {checks.shape(c)}. Build the "
                f"VAE with classes={c.shape[-1]} for such conditions."
            )

    def config(self) -> dict[str, object]:
        """Returns the constructor's arguments."""
        return {
            **super().config(),
            "classes": self.classes,
            "reconstruction_weight": self.reconstruction_weight,
            "kernel": self.kernel,
        }
