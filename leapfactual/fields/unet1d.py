"""A one-dimensional U-Net, for long latent vectors such as the *w* of a GAN."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import checks
from .base import VelocityField, expand_time


def _unit(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Scales ``x`` so that its mean square over ``dims`` is one."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=tuple(dims), keepdim=True)
    count = math.prod(x.shape[d] for d in dims)
    return x / (norm / math.sqrt(count) + 1e-4)


def _silu(x: Tensor) -> Tensor:
    """Computes SiLU, scaled so that unit-variance input gives output of mean square one."""
    return F.silu(x) / 0.596


def _blend(a: Tensor, b: Tensor, share: float) -> Tensor:
    """Adds two independent unit-variance signals so that the sum has unit variance."""
    return ((1 - share) * a + share * b) / math.hypot(1 - share, share)


def _join(a: Tensor, b: Tensor) -> Tensor:
    """Concatenates channels so that both parts weigh the same in what follows."""
    n, m = a.shape[1], b.shape[1]
    scale = math.sqrt((n + m) / 2)
    return torch.cat([a * (scale / math.sqrt(n)), b * (scale / math.sqrt(m))], dim=1)


class _Conv(nn.Module):
    """Convolution (or, with size 0, linear map) whose weights always have unit norm.

    Weights are normalised in use, so their length carries no information; in training the stored
    weights are pulled back to the sphere as well, which keeps the effective learning rate from
    decaying as they would grow.
    """

    def __init__(self, inputs: int, outputs: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, *([size] if size else [])))

    def forward(self, x: Tensor, gain: Tensor | float = 1.0) -> Tensor:
        dims = range(1, self.weight.ndim)
        if self.training and self.weight.requires_grad:
            with torch.no_grad():
                self.weight.copy_(_unit(self.weight, dims))
        fan_in = self.weight[0].numel()
        weight = _unit(self.weight, dims) * (gain / math.sqrt(fan_in))
        if weight.ndim == 2:
            return x @ weight.T
        return F.conv1d(x, weight, padding=weight.shape[2] // 2)


class _Fourier(nn.Module):
    """Turns time into fixed random cosines of mean square one."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("frequency", 2 * math.pi * torch.randn(channels))
        self.register_buffer("phase", 2 * math.pi * torch.rand(channels))

    frequency: Tensor
    phase: Tensor

    def forward(self, t: Tensor) -> Tensor:
        return math.sqrt(2) * torch.cos(t * self.frequency + self.phase)


class _Attention(nn.Module):
    """Lets every position look at every other: latent features have no natural neighbours."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.heads = math.gcd(channels, max(1, channels // 64))
        self.qkv = _Conv(channels, 3 * channels, 1)
        self.out = _Conv(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, channels, length = x.shape
        qkv = self.qkv(x).reshape(b, self.heads, channels // self.heads, 3, length)
        q, k, v = _unit(qkv, [2]).permute(3, 0, 1, 4, 2)
        y = F.scaled_dot_product_attention(q, k, v).transpose(2, 3).reshape(b, channels, length)
        return _blend(x, self.out(y), 0.3)


class _Block(nn.Module):
    """Residual block of two convolutions, modulated by the embedding of time and class."""

    def __init__(self, inputs: int, outputs: int, embedding: int, attends: bool) -> None:
        super().__init__()
        self.skip = _Conv(inputs, outputs, 1) if inputs != outputs else None
        self.first = _Conv(outputs, outputs, 3)
        self.second = _Conv(outputs, outputs, 3)
        self.modulation = _Conv(embedding, outputs, 0)
        self.gain = nn.Parameter(torch.zeros(()))
        self.attention = _Attention(outputs) if attends else None

    def forward(self, x: Tensor, e: Tensor) -> Tensor:
        x = _unit(x if self.skip is None else self.skip(x), [1])
        y = self.first(_silu(x))
        y = _silu(y * (1 + self.modulation(e, self.gain))[:, :, None])
        x = _blend(x, self.second(y), 0.3)
        return x if self.attention is None else self.attention(x)


class UNet1dField(VelocityField):
    """Creates a one-dimensional U-Net that preserves magnitudes, for long latent vectors.

    The paper's choice for the 512 features of a GAN's *w*. The latent is read as a signal of one
    channel; the coarsest level attends over all positions. Latents whose length the levels do not
    divide are padded with zeros.

    A convolution treats all positions alike, but a latent's features are not alike: each has its
    own meaning. So every position has a learnt signal of its own, which enters beside the latent;
    without it the network learns little more than how each feature is distributed by itself.

    References:
        | Analyzing and Improving the Training Dynamics of Diffusion Models (Karras et al., 2024)
        | https://arxiv.org/abs/2312.02696

    Arguments:
        features: The number of latent features D.
        classes: The number of classes K.
        channels: The number of channels at the finest level.
        multipliers: The number of channels at each level, in units of ``channels``.
        blocks: The number of residual blocks at each level.

    Example:
        >>> field = UNet1dField(features=20, classes=2, channels=8, multipliers=(1, 2))
        >>> field(torch.tensor(0.5), torch.zeros(3, 20), torch.eye(2)[[0, 1, 0]]).shape
        torch.Size([3, 20])
    """

    def __init__(
        self,
        features: int,
        classes: int,
        channels: int = 64,
        multipliers: Sequence[int] = (1, 2, 4),
        blocks: int = 2,
    ) -> None:
        super().__init__(features, classes)
        checks.positive(channels, "channels")
        checks.positive(blocks, "blocks", checks.MAX_BLOCKS)
        checks.levels(multipliers, "multipliers", "(1, 2, 4)")
        self.channels, self.multipliers, self.blocks = channels, tuple(multipliers), blocks
        widths = [channels * m for m in multipliers]
        deepest, embedding = len(widths) - 1, max(widths)

        self.time = _Fourier(channels)
        self.time_embedding = _Conv(channels, embedding, 0)
        self.class_embedding = _Conv(classes, embedding, 0)
        self.length = features + -features % 2**deepest
        self.places = nn.Parameter(torch.randn(channels, self.length))
        self.inlet = _Conv(1 + channels, widths[0], 3)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        before, skips = widths[0], [widths[0]]
        for level, width in enumerate(widths):
            for _ in range(blocks):
                self.down.append(_Block(before, width, embedding, level == deepest))
                skips.append(width)
                before = width
        for level, width in reversed(list(enumerate(widths))):
            for _ in range(blocks + (level == 0)):
                self.up.append(_Block(before + skips.pop(), width, embedding, level == deepest))
                before = width
        self.outlet = _Conv(before, 1, 3)
        self.gain = nn.Parameter(torch.zeros(()))

    def forward(self, t: Tensor, z: Tensor, c: Tensor) -> Tensor:
        """See :meth:`VelocityField.forward`."""
        # A one-hot row has mean square 1/K; scaled by the root of K it enters with unit magnitude.
        e = _silu(
            _blend(
                self.time_embedding(self.time(expand_time(t, z))),
                self.class_embedding(c * math.sqrt(self.classes)),
                0.5,
            )
        )
        x = F.pad(z, (0, self.length - z.shape[1]))[:, None]
        x = self.inlet(_join(x, _unit(self.places, [0]).expand(len(x), -1, -1)))

        skips = [x]
        for n, block in enumerate(self.down):
            if n and n % self.blocks == 0:
                x = F.avg_pool1d(x, 2)
            x = block(x, e)
            skips.append(x)
        for block in self.up:
            skip = skips.pop()
            if skip.shape[2] != x.shape[2]:
                x = F.interpolate(x, scale_factor=2, mode="nearest")
            x = block(_join(x, skip), e)
        v: Tensor = self.outlet(x, self.gain)
        return v[:, 0, : z.shape[1]]

    def config(self) -> dict[str, object]:
        """See :meth:`VelocityField.config`."""
        return {
            "features": self.features,
            "classes": self.classes,
            "channels": self.channels,
            "multipliers": list(self.multipliers),
            "blocks": self.blocks,
        }
