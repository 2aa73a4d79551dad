r"""A spatial autoencoder: latents that are small pictures, for photographs.

A latent of some dozen numbers cannot hold what a classifier of photographs looks at: spots,
veins, the corner of a mouth. A *map* of :math:`C` channels at an eighth of the size can.

.. math::
    \mathcal{L} = \frac{1}{|x|} \|x - \hat x\|_1 + \beta \, \frac{1}{|z|} \text{KL}\big(
    \mathcal{N}(\mu, \sigma^2) \,\|\, \mathcal{N}(0, I)\big) , \qquad
    \hat x = g(z) , \; z = \mu + \sigma \epsilon ,

with both terms averaged over their numbers. The divergence is weighted so little that it takes
nothing away; it keeps latents in bounds, and the noise keeps the decoder smooth between them. What
L1 leaves soft is the business of the perceptual and the adversarial term of
:func:`leapfactual.training.fit_generator`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import checks
from .layers import Autoencoder, center_crop, check_images, check_latents, padding

# The variance of a latent stays between e^-12 and e^4, so that half precision can hold it.
MIN_LOG_VARIANCE, MAX_LOG_VARIANCE = -12.0, 4.0
# It begins at e^-6: noise as large as the latents would have to be unlearnt first.
FIRST_LOG_VARIANCE = -6.0
# Components that hardly vary are not blown up to those that do.
MIN_STD = 1e-3


class SpatialAutoencoder(Autoencoder):
    """Creates an autoencoder whose latents are maps, flattened with their channels last.

    Two by two pixels are first taken together as channels, since convolutions at the full size
    would cost the most and see the least. Every further width halves the map. Images whose size
    that does not divide are padded by reflection, and cropped again.

    Beside the networks stand linear shortcuts from patches of pixels to places of the map, and
    back. :meth:`initialize` sets them to the principal components of patches, so that training
    begins with the best linear autoencoder and the networks learn what it lacks: in the time that
    a CPU has, that is most of the way.

    References:
        | High-Resolution Image Synthesis with Latent Diffusion Models (Rombach et al., 2022)
        | https://arxiv.org/abs/2112.10752

    Arguments:
        shape: The shape of an image, ``(C, H, W)``.
        channels: The number of channels of a latent map.
        widths: The number of channels of the networks, at half of the size, at a quarter, and so
            on; the last is that of the latent map's size.
        blocks: The number of residual blocks at each size.
        kl_weight: The weight of the KL divergence.

    Example:
        >>> model = SpatialAutoencoder((3, 32, 32), channels=4, widths=(16, 32))
        >>> model.encode(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 256])
        >>> model.latent_shape
        (4, 8, 8)
    """

    def __init__(
        self,
        shape: Sequence[int],
        channels: int = 16,
        *,
        widths: Sequence[int] = (128, 256, 256),
        blocks: int = 2,
        kl_weight: float = 1e-4,
    ) -> None:
        height, width = (-(-n // 2 ** len(widths)) for n in tuple(shape)[1:])
        super().__init__(shape, checks.positive(channels, "channels") * height * width, widths)
        self.blocks = checks.positive(blocks, "blocks", checks.MAX_BLOCKS)
        self.kl_weight = checks.number(kl_weight, "kl_weight")
        self.latent_shape = (channels, height, width)
        self.pad = padding(*self.shape[1:], 2 ** len(self.widths))
        side = 2 ** len(self.widths)
        self.project = nn.Conv2d(self.shape[0], channels, side, stride=side)
        self.expand = nn.Conv2d(channels, self.shape[0] * side**2, 1)
        pixels, finest, coarsest = 4 * self.shape[0], self.widths[0], self.widths[-1]
        down: list[nn.Module] = [nn.PixelUnshuffle(2), nn.Conv2d(pixels, finest, 3, padding=1)]
        up: list[nn.Module] = [nn.Conv2d(channels, coarsest, 3, padding=1)]
        before = finest
        for n, after in enumerate(self.widths):
            down += [_Block(after if b else before, after) for b in range(blocks)]
            down += [nn.AvgPool2d(2)] if n < len(self.widths) - 1 else []
            before = after
        for n, after in enumerate(reversed(self.widths)):
            up += [nn.Upsample(scale_factor=2)] if n else []
            up += [_Block(after if b else before, after) for b in range(blocks)]
            before = after
        inner = nn.Conv2d(coarsest, 2 * channels, 3, padding=1)
        outer = nn.Conv2d(finest, pixels, 3, padding=1)
        for layer in (inner, outer):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        nn.init.constant_(inner.bias[channels:], FIRST_LOG_VARIANCE)  # type: ignore[index]
        self.encoder = nn.Sequential(*down, _Norm(coarsest), nn.SiLU(), inner)
        self.decoder = nn.Sequential(
            *up,
            _Norm(finest),
            nn.SiLU(),
            outer,
            nn.PixelShuffle(2),
        )
        self.eval()

    @torch.no_grad()
    def initialize(self, x: Tensor) -> None:
        r"""Sets the shortcuts to the principal components of patches, before training.

        With the mean :math:`m`, the components :math:`v_k` and their standard deviations
        :math:`s_k`, a patch :math:`u` becomes :math:`z_k = v_k^\top (u - m) / s_k`, and
        :math:`m + \sum_k z_k s_k v_k` again.

        Arguments:
            x: Some hundred images.
        """
        check_images(x, self.shape)
        project, expand, side = self.project, self.expand, self.project.stride[0]
        assert project.bias is not None
        assert expand.bias is not None
        u = F.pixel_unshuffle(_reflect(2 * x - 1, self.pad), side).permute(0, 2, 3, 1)
        u = u.flatten(0, 2).double()
        mean = u.mean(0)
        variance, v = torch.linalg.eigh((u - mean).T @ (u - mean) / len(u))
        v = v.T.flip(0)[: self.latent_shape[0]]
        s = variance.flip(0)[: len(v)].clamp_min(0).sqrt().clamp_min(MIN_STD)[:, None]
        project.weight[: len(v)] = (v / s).reshape(-1, *project.weight.shape[1:]).to(x)
        project.bias[: len(v)] = -(v @ mean / s[:, 0]).to(x)
        expand.weight.zero_()
        expand.weight[:, : len(v), 0, 0] = (s * v).T.to(x)
        expand.bias.copy_(mean)

    def encode(self, x: Tensor) -> Tensor:
        """Returns the means ``(B, D)`` of the latents of ``x``."""
        return self._posterior(x)[0]

    def decode(self, z: Tensor) -> Tensor:
        """Returns the images of ``z``."""
        return self._image(z).clamp(0, 1)

    def loss(self, x: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Returns the objective on a batch, as a scalar, and the reconstruction."""
        mean, log_variance = self._posterior(x)
        noise = torch.randn(mean.shape, generator=rng, device=mean.device, dtype=mean.dtype)
        x_hat = self._image(mean + (0.5 * log_variance).exp() * noise).float()
        kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).float().mean()
        return F.l1_loss(x_hat, x) + self.kl_weight * kl, x_hat

    def _posterior(self, x: Tensor) -> tuple[Tensor, Tensor]:
        check_images(x, self.shape)
        self.check_dtype(x)
        x = _reflect(2 * x - 1, self.pad).contiguous(memory_format=torch.channels_last)
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        mean = mean + self.project(x)
        log_variance = log_variance.clamp(MIN_LOG_VARIANCE, MAX_LOG_VARIANCE)
        return _flatten(mean), _flatten(log_variance)

    def _image(self, z: Tensor) -> Tensor:
        check_latents(z, self.features)
        self.check_dtype(z)
        channels, height, width = self.latent_shape
        z = z.reshape(-1, height, width, channels).permute(0, 3, 1, 2)
        x = self.decoder(z) + F.pixel_shuffle(self.expand(z), self.project.stride[0])
        return (center_crop(x, *self.shape[1:]) + 1) / 2

    def config(self) -> dict[str, object]:
        """Returns the constructor's arguments."""
        return {
            "shape": list(self.shape),
            "channels": self.latent_shape[0],
            "widths": list(self.widths),
            "blocks": self.blocks,
            "kl_weight": self.kl_weight,
        }


def _flatten(x: Tensor) -> Tensor:
    """Returns maps ``(B, C, H, W)`` as rows, with the channels last."""
    return x.permute(0, 2, 3, 1).flatten(1)


def _reflect(x: Tensor, pad: tuple[int, int, int, int]) -> Tensor:
    """Pads images by reflection; tiny ones, which have nothing to reflect, by their edge."""
    if not any(pad):
        return x
    small = max(pad[:2]) >= x.shape[3] or max(pad[2:]) >= x.shape[2]
    return F.pad(x, pad, mode="replicate" if small else "reflect")


class _Norm(nn.Module):
    """Creates a normalization of each position over its channels.

    Unlike a group norm it looks at no other position, so that a spot in one corner changes nothing
    in the other; and with the channels last it is one fused kernel.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        return F.layer_norm(x, x.shape[3:], self.weight, self.bias).permute(0, 3, 1, 2)


class _Block(nn.Module):
    """Creates a residual block of two convolutions, at first the identity."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        self.norm = _Norm(inputs)
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(F.silu(self.first(F.silu(self.norm(x)))))
        out: Tensor = self.skip(x) + y
        return out
