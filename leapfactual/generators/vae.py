r"""Variational autoencoders, plain and conditional.

.. math::
    \mathcal{L} = \lambda \, \text{MSE}(x, g(z)) + \text{KL}\big(\mathcal{N}(\mu, \sigma^2) \,\|\,
    \mathcal{N}(0, I)\big) , \qquad z = \mu + \sigma \epsilon ,

with the squared error averaged over pixels, the divergence summed over features, and the paper's
:math:`\lambda = 4000`. The latent of an image is the mean :math:`\mu`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import checks
from .layers import ConvDecoder, ConvEncoder, check_images, check_shape, check_widths

WIDTHS = (8, 16, 32, 32)


class VAE(nn.Module):
    """Is the paper's variational autoencoder for Morpho-MNIST, for any image size.

    Images whose size the halvings do not divide are padded with zeros and cropped again.

    Arguments:
        shape: The shape of an image, ``(C, H, W)``.
        features: The number of latent features D.
        widths: The number of channels after each halving.
        weight: How much the squared error counts against the divergence.
        kernel: The size of the decoder's last convolution.

    Example:
        >>> vae = VAE((1, 28, 28))
        >>> vae.decode(vae.encode(torch.zeros(2, 1, 28, 28))).shape
        torch.Size([2, 1, 28, 28])
    """

    def __init__(
        self,
        shape: Sequence[int],
        features: int = 32,
        *,
        widths: Sequence[int] = WIDTHS,
        weight: float = 4000.0,
        kernel: int = 1,
    ) -> None:
        super().__init__()
        self.shape, self.widths = check_shape(shape), check_widths(widths)
        self.features = checks.positive(features, "features")
        features, widths = self.features, self.widths
        self.weight, self.kernel = weight, kernel
        self.encoder = ConvEncoder(self.shape, self.widths, 2 * features)
        self.decoder = ConvDecoder(self.shape, self.widths, features, kernel=kernel)
        self.eval()

    def encode(self, x: Tensor) -> Tensor:
        """Returns the means ``(B, D)`` of the latents of ``x``."""
        check_images(x, self.shape)
        mean: Tensor = self.encoder(x)[:, : self.features]
        return mean

    def decode(self, z: Tensor) -> Tensor:
        """Returns the images of ``z``."""
        checks.latents(z, self.features)
        x: Tensor = self.decoder(z)
        return x

    def loss(self, x: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Returns the objective on a batch, as a scalar, and the reconstruction."""
        check_images(x, self.shape)
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        back = self.decoder(_sample(mean, log_variance, rng))
        return _objective(x, back, mean, log_variance, self.weight), back

    def config(self) -> dict[str, object]:
        """Returns the constructor's arguments."""
        return {
            "shape": list(self.shape),
            "features": self.features,
            "widths": list(self.widths),
            "weight": self.weight,
            "kernel": self.kernel,
        }


class ConditionalVAE(nn.Module):
    """Is the paper's conditional variational autoencoder, for the CGM-based rival.

    The condition joins the last layer of the encoder and the first of the decoder.

    Arguments:
        shape: The shape of an image, ``(C, H, W)``.
        classes: The number of classes K.
        features: The number of latent features D.
        widths: The number of channels after each halving.
        weight: How much the squared error counts against the divergence.
        kernel: The size of the decoder's last convolution.

    Example:
        >>> cvae = ConditionalVAE((1, 28, 28), classes=10)
        >>> x, c = torch.zeros(2, 1, 28, 28), torch.eye(10)[:2]
        >>> cvae.decode(cvae.encode(x, c), c.flip(0)).shape
        torch.Size([2, 1, 28, 28])
    """

    def __init__(
        self,
        shape: Sequence[int],
        classes: int,
        features: int = 32,
        *,
        widths: Sequence[int] = WIDTHS,
        weight: float = 4000.0,
        kernel: int = 1,
    ) -> None:
        super().__init__()
        self.shape, self.widths = check_shape(shape), check_widths(widths)
        self.features = checks.positive(features, "features")
        self.classes = checks.positive(classes, "classes")
        self.weight, self.kernel = weight, kernel
        self.encoder = ConvEncoder(self.shape, self.widths, 2 * features, classes)
        self.decoder = ConvDecoder(self.shape, self.widths, features, classes, kernel)
        self.eval()

    def encode(self, x: Tensor, c: Tensor) -> Tensor:
        """Returns the means ``(B, D)`` of the latents of ``x`` under the condition ``(B, K)``."""
        check_images(x, self.shape)
        checks.probabilities(c, len(x), self.classes, "c")
        mean: Tensor = self.encoder(x, c)[:, : self.features]
        return mean

    def decode(self, z: Tensor, c: Tensor) -> Tensor:
        """Returns the images of ``z`` under the condition ``(B, K)``."""
        checks.probabilities(c, len(z), self.classes, "c")
        x: Tensor = self.decoder(z, c)
        return x

    def loss(self, x: Tensor, c: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Returns the objective on a batch, as a scalar, and the reconstruction."""
        check_images(x, self.shape)
        mean, log_variance = self.encoder(x, c).chunk(2, dim=1)
        back = self.decoder(_sample(mean, log_variance, rng), c)
        return _objective(x, back, mean, log_variance, self.weight), back

    def config(self) -> dict[str, object]:
        """Returns the constructor's arguments."""
        return {
            "shape": list(self.shape),
            "classes": self.classes,
            "features": self.features,
            "widths": list(self.widths),
            "weight": self.weight,
            "kernel": self.kernel,
        }


def _sample(mean: Tensor, log_variance: Tensor, rng: torch.Generator) -> Tensor:
    noise = torch.randn(mean.shape, generator=rng, device=mean.device, dtype=mean.dtype)
    return mean + (0.5 * log_variance).exp() * noise


def _objective(
    x: Tensor, back: Tensor, mean: Tensor, log_variance: Tensor, weight: float
) -> Tensor:
    divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
    return weight * F.mse_loss(back, x) + divergence
