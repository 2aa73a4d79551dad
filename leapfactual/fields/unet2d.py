"""A two-dimensional U-Net, for latents that are maps, such as a spatial autoencoder's."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import checks
from ..errors import InputError
from .base import VelocityField

# Attention costs the square of the number of positions. Up to 16 × 16 it is less than that of the
# convolutions beside it.
MAX_ATTENTION_POSITIONS = 256
HEAD_CHANNELS = 32
# Time enters as the cosines and sines of this many harmonics of a half period. More of them could
# not be told apart in half precision.
HARMONICS = 32


class UNet2dField(VelocityField):
    """Creates a two-dimensional U-Net on latents that are maps, for photographs.

    A latent row holds a map of ``C`` channels, flattened with the channels last: the layout that
    convolutions are fastest in, so that nothing is copied on the way in. Time and class are
    embedded, added, and enter every block as the scale and shift of its normalization. Levels of
    at most 16 × 16 positions attend. Maps whose sides the levels do not divide are padded with
    zeros.

    References:
        | Diffusion Models Beat GANs on Image Synthesis (Dhariwal and Nichol, 2021)
        | https://arxiv.org/abs/2105.05233

    Arguments:
        shape: The shape of a latent map, ``(C, H, W)``; a latent has D = C · H · W features.
        classes: The number of classes K.
        channels: The number of channels at the finest level.
        multipliers: The number of channels at each level, in units of ``channels``.
        blocks: The number of residual blocks at each level, on the way down and on the way up.
        dropout: The share of activations that is left out at random in training: with a few
            thousand images a field would otherwise learn them by heart.

    Example:
        >>> field = UNet2dField((4, 6, 8), classes=2, channels=16, multipliers=(1, 2), blocks=1)
        >>> field(torch.tensor(0.5), torch.zeros(3, 192), torch.eye(2)[[0, 1, 0]]).shape
        torch.Size([3, 192])
    """

    def __init__(
        self,
        shape: Sequence[int],
        classes: int,
        channels: int = 128,
        multipliers: Sequence[int] = (1, 2, 2),
        blocks: int = 2,
        dropout: float = 0.0,
    ) -> None:
        if len(shape) != 3:
            raise InputError(
                f"`shape` must be (channels, height, width) of a latent map, got {shape!r}."
            )
        c, h, w = (checks.positive(n, "shape") for n in shape)
        super().__init__(c * h * w, classes)
        checks.positive(channels, "channels")
        checks.positive(blocks, "blocks", checks.MAX_BLOCKS)
        widths = [channels * m for m in checks.levels(multipliers, "multipliers", "(1, 2)")]
        self.shape, self.channels = (c, h, w), channels
        self.multipliers, self.blocks, self.dropout = tuple(multipliers), blocks, dropout
        multiple = 2 ** (len(widths) - 1)
        self.pad = (0, -w % multiple, 0, -h % multiple)

        self.embedding = nn.Sequential(
            nn.Linear(2 * HARMONICS, 4 * channels),
            nn.SiLU(),
            nn.Linear(4 * channels, 4 * channels),
        )
        self.class_embedding = nn.Linear(classes, 4 * channels, bias=False)
        self.inlet = nn.Conv2d(c, widths[0], 3, padding=1)
        self.places = nn.Parameter(torch.zeros(h, w, widths[0]))
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        before = widths[0]
        for level, width in enumerate(widths):
            positions = math.ceil(h / 2**level) * math.ceil(w / 2**level)
            attends = positions <= MAX_ATTENTION_POSITIONS
            self.down.append(_level(before, width, 4 * channels, blocks, attends, dropout))
            finer = widths[max(level - 1, 0)]
            skip = width if level < len(widths) - 1 else 0
            self.up.insert(0, _level(width + skip, finer, 4 * channels, blocks, attends, dropout))
            before = width
        self.outlet = nn.Conv2d(widths[0], c, 3, padding=1)
        nn.init.zeros_(self.outlet.weight)
        nn.init.zeros_(self.outlet.bias)  # type: ignore[arg-type]

    @property
    def latent_channels(self) -> int:
        """See :attr:`VelocityField.latent_channels`; here, the channels of the map."""
        return self.shape[0]

    def forward(self, t: Tensor, z: Tensor, c: Tensor) -> Tensor:
        """See :meth:`VelocityField.forward`."""
        return self.bind(c)(t, z)

    def bind(self, c: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """See :meth:`VelocityField.bind`. The class is embedded once."""
        of_class = self.class_embedding(c)

        def velocity(t: Tensor, z: Tensor) -> Tensor:
            # High harmonics of a time in half precision would be noise.
            times = _harmonics(t.to(z.device, torch.promote_types(t.dtype, torch.float32)))
            times = times.to(z).expand(len(z), -1)
            return self._unet(z, F.silu(self.embedding(times) + of_class))

        return velocity

    def _unet(self, z: Tensor, e: Tensor) -> Tensor:
        channels, height, width = self.shape
        x = z.reshape(-1, height, width, channels).permute(0, 3, 1, 2)
        x = self.inlet(x) + self.places.permute(2, 0, 1)
        x = F.pad(x, self.pad) if any(self.pad) else x
        skips = []
        for n, level in enumerate(self.down):
            x = level(F.avg_pool2d(x, 2) if n else x, e)
            skips.append(x)
        for n, level in enumerate(self.up):
            skip = skips.pop()
            if n:
                x = torch.cat([F.interpolate(x, scale_factor=2, mode="nearest"), skip], dim=1)
            x = level(x, e)
        x = self.outlet(_normalized(x))[:, :, :height, :width]
        v: Tensor = x.permute(0, 2, 3, 1).reshape(len(z), -1)
        return v

    def config(self) -> dict[str, object]:
        """See :meth:`VelocityField.config`."""
        return {
            "shape": list(self.shape),
            "classes": self.classes,
            "channels": self.channels,
            "multipliers": list(self.multipliers),
            "blocks": self.blocks,
            "dropout": self.dropout,
        }


def _harmonics(t: Tensor) -> Tensor:
    """Returns the cosines and sines of the harmonics of half a period, ``(B or 1, 2 · 32)``."""
    k = torch.arange(1, HARMONICS + 1, dtype=t.dtype, device=t.device)
    angle = math.pi * k * t.reshape(-1, 1)
    return torch.cat([angle.cos(), angle.sin()], dim=1)


def _normalized(x: Tensor) -> Tensor:
    """Normalizes each position over its channels; with channels last that is one fused kernel."""
    return F.layer_norm(x.permute(0, 2, 3, 1), x.shape[1:2]).permute(0, 3, 1, 2)


class _Level(nn.Module):
    """Creates the blocks of a level, each with attention behind it where the level attends."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, e: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, e)
        return x


def _level(
    inputs: int, outputs: int, embedding: int, blocks: int, attends: bool, dropout: float
) -> _Level:
    layers: list[nn.Module] = []
    for n in range(blocks):
        layers.append(_Block(outputs if n else inputs, outputs, embedding, dropout))
        if attends:
            layers.append(_Attention(outputs))
    return _Level(layers)


class _Block(nn.Module):
    """Creates a residual block of two convolutions, at first the identity.

    Time and class scale and shift its normalized input.
    """

    def __init__(self, inputs: int, outputs: int, embedding: int, dropout: float) -> None:
        super().__init__()
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        self.modulation = nn.Linear(embedding, 2 * inputs)
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.dropout = nn.Dropout(dropout)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        for layer in (self.modulation, self.second):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor, e: Tensor) -> Tensor:
        scale, shift = self.modulation(e)[:, :, None, None].chunk(2, dim=1)
        y = F.silu(_normalized(x) * (1 + scale) + shift)
        out: Tensor = self.skip(x) + self.second(self.dropout(F.silu(self.first(y))))
        return out


class _Attention(nn.Module):
    """Creates a residual attention, at first the identity: every position looks at every other."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.heads = math.gcd(channels, max(1, channels // HEAD_CHANNELS))
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor, _: Tensor) -> Tensor:
        b, channels, height, width = x.shape
        rows = _normalized(x).permute(0, 2, 3, 1).reshape(b, height * width, channels)
        qkv = self.qkv(rows).reshape(b, -1, 3, self.heads, channels // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(rows.shape)
        out: Tensor = self.out(y)
        return x + out.reshape(x.shape[0], height, width, channels).permute(0, 3, 1, 2)
