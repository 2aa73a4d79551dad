r"""A Wasserstein autoencoder of residual blocks, for images with texture.

.. math::
    \mathcal{L} = \text{MSE}(x, g(z)) + \lambda \, \text{MMD}(z, z') , \qquad z = e(x) , \;
    z' \sim \mathcal{N}(0, s^2 I)

with an encoder :math:`e` and a decoder :math:`g`. The maximum mean discrepancy (MMD) compares the
latents of a *batch* with the prior, instead of each latent; encoding stays deterministic and
reconstructions sharper than a VAE's. Its kernel is the inverse multiquadratic one at several
scales.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import checks
from .layers import (
    Autoencoder,
    center_crop,
    check_images,
    check_latents,
    coarsest_shape,
    padding,
)

# Those of the reference implementation: latents near to and far from the prior both see a slope.
SCALES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class WAE(Autoencoder):
    """Creates the autoencoder of the paper's galaxy study: residual blocks, leaky rectifiers.

    References:
        | Wasserstein Auto-Encoders (Tolstikhin et al., 2018)
        | https://arxiv.org/abs/1711.01558

    Arguments:
        shape: The shape of an image, ``(C, H, W)``.
        features: The number of latent features D.
        widths: The number of channels after each halving.
        mmd_weight: The weight of the maximum mean discrepancy.
        variance: The prior's variance.

    Example:
        >>> wae = WAE((3, 32, 32), features=8, widths=(8, 16))
        >>> wae.decode(wae.encode(torch.zeros(2, 3, 32, 32))).shape
        torch.Size([2, 3, 32, 32])
    """

    def __init__(
        self,
        shape: Sequence[int] = (3, 128, 128),
        features: int = 64,
        *,
        widths: Sequence[int] = (16, 32, 64, 128, 256),
        mmd_weight: float = 10.0,
        variance: float = 2.0,
    ) -> None:
        super().__init__(shape, features, widths)
        self.mmd_weight = checks.number(mmd_weight, "mmd_weight")
        self.variance = checks.number(variance, "variance")
        self.pad = padding(*self.shape[1:], 2 ** len(self.widths))
        self.start = coarsest_shape(self.shape, self.widths)
        size = math.prod(self.start)
        finer, coarser = self.widths, (*self.widths[1:], self.widths[-1])
        down = [_Down(*pair) for pair in zip(finer, coarser, strict=True)]
        up = [_Up(*pair) for pair in zip(coarser, finer, strict=True)]
        self.encoder = nn.Sequential(
            nn.Conv2d(self.shape[0], self.widths[0], 3, padding=1),
            *down,
            nn.Flatten(),
            nn.Linear(size, self.features),
        )
        self.inlet = nn.Linear(self.features, size)
        self.decoder = nn.Sequential(
            *reversed(up), nn.Conv2d(self.widths[0], self.shape[0], 3, padding=1), nn.Sigmoid()
        )
        self.eval()

    def encode(self, x: Tensor) -> Tensor:
        """Returns the latents ``(B, D)`` of ``x``."""
        check_images(x, self.shape)
        self.check_dtype(x)
        z: Tensor = self.encoder(F.pad(x, self.pad))
        return z

    def decode(self, z: Tensor) -> Tensor:
        """Returns the images of ``z``."""
        check_latents(z, self.features)
        self.check_dtype(z)
        x: Tensor = self.decoder(self.inlet(z).reshape(-1, *self.start))
        return center_crop(x, *self.shape[1:])

    def loss(self, x: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Returns the objective on a batch, as a scalar, and the reconstruction."""
        z = self.encode(x)
        x_hat = self.decode(z)
        noise = torch.randn(z.shape, generator=rng, device=z.device, dtype=z.dtype)
        discrepancy = mmd(z.float(), noise.float() * self.variance**0.5, self.variance)
        return F.mse_loss(x_hat, x) + self.mmd_weight * discrepancy, x_hat

    def config(self) -> dict[str, object]:
        """Returns the constructor's arguments."""
        return {
            **super().config(),
            "mmd_weight": self.mmd_weight,
            "variance": self.variance,
        }


def mmd(z: Tensor, prior: Tensor, variance: float) -> Tensor:
    r"""Returns the unbiased estimate of the maximum mean discrepancy between two samples.

    The kernel is :math:`k(a, b) = \sum_s C_s / (C_s + \|a - b\|^2)` with
    :math:`C_s = 2 D \sigma^2 s`, averaged over the scales.

    Example:
        >>> z = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
        >>> bool(mmd(z[:250], z[250:], 1.0) < mmd(z[:250], z[250:] + 3, 1.0))
        True
    """
    n = len(z)
    if n < 2:
        return z.new_zeros(())
    base = 2 * z.shape[1] * variance
    both = torch.cat([z, prior])
    norms = both.square().sum(1)
    with torch.autocast(z.device.type, enabled=False):
        squares = (norms[:, None] + norms[None] - 2 * both @ both.T).clamp_min(0)
    kernel = sum((base * s / (base * s + squares) for s in SCALES), torch.zeros_like(squares))
    own, other, cross = kernel[:n, :n], kernel[n:, n:], kernel[:n, n:]
    pairs = n * (n - 1)
    within = sum(part.sum() - part.diagonal().sum() for part in (own, other)) / pairs
    return (within - 2 * cross.mean()) / len(SCALES)


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.BatchNorm2d(inputs),
        nn.LeakyReLU(0.2),
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs),
        nn.LeakyReLU(0.2),
        nn.Conv2d(outputs, outputs, 3, padding=1),
    )


class _Down(nn.Module):
    """Creates a residual block that halves the image."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.block, self.skip = _block(inputs, outputs), nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(self.block(x) + self.skip(x), 2)


class _Up(nn.Module):
    """Creates a residual block that doubles the image."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.block, self.skip = _block(inputs, outputs), nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.interpolate(x, scale_factor=2, mode="nearest")
        out: Tensor = self.block(x) + self.skip(x)
        return out
