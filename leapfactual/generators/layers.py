"""Convolutional building blocks of the autoencoders, for any image size."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import checks
from ..errors import InputError


def padding(height: int, width: int, multiple: int) -> tuple[int, int, int, int]:
    """Returns how much to pad left, right, top and bottom so that ``multiple`` divides both sides.

    Example:
        >>> padding(28, 28, 16)
        (2, 2, 2, 2)
    """
    across, down = -width % multiple, -height % multiple
    return across // 2, across - across // 2, down // 2, down - down // 2


def center_crop(x: Tensor, height: int, width: int) -> Tensor:
    """Returns the central ``height`` × ``width`` pixels of images."""
    top, left = (x.shape[2] - height) // 2, (x.shape[3] - width) // 2
    return x[:, :, top : top + height, left : left + width]


def check_shape(shape: Sequence[int]) -> tuple[int, int, int]:
    """Returns the shape ``(C, H, W)`` of an image, checked."""
    try:
        channels, height, width = (checks.positive(n, "shape") for n in shape)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"`shape` must be (channels, height, width) of one image, got {shape!r}. "
            "For example (1, 28, 28)."
        ) from error
    return channels, height, width


def check_widths(widths: Sequence[int]) -> tuple[int, ...]:
    """Returns the number of channels after each halving, checked."""
    return checks.levels(tuple(widths), "widths", "(8, 16, 32)")


def check_images(x: Tensor, shape: tuple[int, int, int]) -> None:
    """Checks shape and type of images; values are checked where they enter the library."""
    if x.ndim != 4 or tuple(x.shape[1:]) != shape:
        wanted, got = "(B, {}, {}, {})".format(*shape), f"({', '.join(map(str, x.shape))})"
        raise InputError(
            f"`x` must be images of shape {wanted}, got {got}. Resize or convert them first, or "
            "train a generator for this size."
        )
    checks.check_floating(x)


def check_latents(z: Tensor, features: int) -> None:
    """Checks shape and type of latents; values are checked where they are made."""
    if z.ndim != 2 or z.shape[1] != features or not checks.is_floating(z):
        raise InputError(
            f"`z` must have {features} features, as this generator's latents do, in floating "
            f"point, got {checks.shape(z)} {z.dtype}. Use the flow that was trained with it."
        )


class Autoencoder(nn.Module, ABC):
    """Abstract convolutional autoencoder of images of one shape.

    Arguments:
        shape: The shape of an image, ``(C, H, W)``.
        features: The number of latent features D.
        widths: The number of channels after each halving.
    """

    def __init__(self, shape: Sequence[int], features: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.shape, self.widths = check_shape(shape), check_widths(widths)
        self.features = checks.positive(features, "features")

    def check_dtype(self, x: Tensor) -> None:
        """Checks that images or latents have the type of the weights."""
        dtype = next(self.parameters()).dtype
        if x.dtype != dtype and not torch.is_autocast_enabled(x.device.type):
            raise InputError(
                f"this {type(self).__name__} computes in {dtype}, got {x.dtype}. Convert one of "
                f"them, for example with generator.to({x.dtype})."
            )

    @abstractmethod
    def encode(self, x: Tensor) -> Tensor:
        """Returns the latents ``(B, D)`` of ``x``."""

    @abstractmethod
    def decode(self, z: Tensor) -> Tensor:
        """Returns the images of ``z``."""

    @abstractmethod
    def loss(self, x: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Returns the objective on a batch, as a scalar, and the reconstruction."""

    def config(self) -> dict[str, object]:
        """Returns the constructor's arguments."""
        return {
            "shape": list(self.shape),
            "features": self.features,
            "widths": list(self.widths),
        }


class ConvEncoder(nn.Module):
    """Creates a convolutional encoder: a halving for each width, then a linear layer.

    Arguments:
        shape: The shape of an image, ``(C, H, W)``.
        widths: The number of channels after each halving.
        outputs: The length of the row.
        condition: How many numbers join the row's input.
    """

    def __init__(
        self, shape: tuple[int, int, int], widths: Sequence[int], outputs: int, condition: int = 0
    ) -> None:
        super().__init__()
        channels, height, width = shape
        self.pad = padding(height, width, 2 ** len(widths))
        layers: list[nn.Module] = []
        for before, after in zip([channels, *widths[:-1]], widths, strict=True):
            layers += [
                nn.Conv2d(before, after, 3, stride=2, padding=1),
                nn.BatchNorm2d(after),
                nn.LeakyReLU(0.2),
            ]
        self.convolutions = nn.Sequential(*layers, nn.Flatten())
        self.linear = nn.Linear(math.prod(coarsest_shape(shape, widths)) + condition, outputs)

    def forward(self, x: Tensor, c: Tensor | None = None) -> Tensor:
        """Returns one row for each image, under the condition ``c`` if there is one."""
        h = self.convolutions(F.pad(x, self.pad))
        out: Tensor = self.linear(h if c is None else torch.cat([h, c], dim=1))
        return out


class ConvDecoder(nn.Module):
    """Creates the mirror image of :class:`ConvEncoder`, with a last convolution and a sigmoid.

    Arguments:
        shape: The shape of an image, ``(C, H, W)``.
        widths: The encoder's widths.
        features: The length of a latent.
        condition: How many numbers join the latent.
        kernel: The size of the last convolution, which takes no padding. The paper's text has 1;
            the published code has 5, which brings padded digits of 32 pixels back to 28.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        widths: Sequence[int],
        features: int,
        condition: int = 0,
        kernel: int = 1,
    ) -> None:
        super().__init__()
        self.shape, self.start = shape, coarsest_shape(shape, widths)
        multiple = 2 ** len(widths)
        room = min(-size % multiple for size in shape[1:]) + 1
        if not 1 <= kernel <= room:
            raise InputError(
                f"`kernel` {kernel} does not fit: the padding of images of {shape[1]} × "
                f"{shape[2]} leaves room for at most {room}."
            )
        self.linear = nn.Linear(features + condition, math.prod(self.start))
        layers: list[nn.Module] = []
        backwards = list(reversed(widths))
        for before, after in zip(backwards, [*backwards[1:], widths[0]], strict=True):
            layers += [
                nn.ConvTranspose2d(before, after, 3, stride=2, padding=1, output_padding=1),
                nn.BatchNorm2d(after),
                nn.LeakyReLU(0.2),
            ]
        self.convolutions = nn.Sequential(*layers, nn.Conv2d(widths[0], shape[0], kernel))

    def forward(self, z: Tensor, c: Tensor | None = None) -> Tensor:
        """Returns one image for each latent, under the condition ``c`` if there is one."""
        h = self.linear(z if c is None else torch.cat([z, c], dim=1))
        x: Tensor = self.convolutions(h.reshape(-1, *self.start))
        return center_crop(x.sigmoid(), *self.shape[1:])


def coarsest_shape(shape: tuple[int, int, int], widths: Sequence[int]) -> tuple[int, int, int]:
    """Returns the shape that an image has after all halvings."""
    multiple = 2 ** len(widths)
    return widths[-1], -(-shape[1] // multiple), -(-shape[2] // multiple)
