"""The paper's multi-layer perceptron, for latents of some dozen features."""

from collections.abc import Callable
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import checks
from ..errors import InputError
from .base import VelocityField, expand_time

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "silu": nn.SiLU,
    "selu": nn.SELU,
    "elu": nn.ELU,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
}


class MLPField(VelocityField):
    """Creates a multi-layer perceptron on the row ``(z, c, t)``, as in the paper's appendix.

    The defaults are the paper's network for Morpho-MNIST: ``depth`` hidden layers of ``width``
    units.

    Arguments:
        features: The number of latent features D.
        classes: The number of classes K.
        width: The number of units in a hidden layer.
        depth: The number of hidden layers.
        activation: One of ``silu``, ``selu``, ``elu``, ``relu``, ``gelu``, ``tanh``.

    Example:
        >>> field = MLPField(features=32, classes=10)
        >>> field(torch.tensor(0.5), torch.zeros(7, 32), torch.eye(10)[:7]).shape
        torch.Size([7, 32])
    """

    def __init__(
        self,
        features: int,
        classes: int,
        width: int = 64,
        depth: int = 3,
        activation: str = "silu",
    ) -> None:
        super().__init__(features, classes)
        checks.positive(width, "width")
        checks.positive(depth, "depth", checks.MAX_DEPTH)
        if activation not in ACTIVATIONS:
            raise InputError(
                f"`activation` must be one of {list(ACTIVATIONS)}, got {activation!r}."
            )
        self.width, self.depth, self.activation = width, depth, activation
        widths = [features + classes + 1] + [width] * depth
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), ACTIVATIONS[activation]()]
        self.layers = nn.Sequential(*layers, nn.Linear(width, features))

    def forward(self, t: Tensor, z: Tensor, c: Tensor) -> Tensor:
        """See :meth:`VelocityField.forward`."""
        v: Tensor = self.layers(torch.cat([z, c, expand_time(t, z)], dim=1))
        return v

    def bind(self, c: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """See :meth:`VelocityField.bind`. The condition goes through the first layer once."""
        if type(self).forward is not MLPField.forward:
            return super().bind(c)
        first, *others = self.layers
        weight, bias = cast(Tensor, first.weight), cast(Tensor, first.bias)
        of_z, of_c, of_t = torch.split(weight, [self.features, self.classes, 1], dim=1)
        constant = F.linear(c, of_c, bias)

        def velocity(t: Tensor, z: Tensor) -> Tensor:
            h = torch.addmm(constant.addcmul(t.to(z).reshape(-1, 1), of_t.T), z, of_z.T)
            for layer in others:
                h = layer(h)
            return h

        return velocity

    def config(self) -> dict[str, object]:
        """See :meth:`VelocityField.config`."""
        return {
            "features": self.features,
            "classes": self.classes,
            "width": self.width,
            "depth": self.depth,
            "activation": self.activation,
        }

    def extra_repr(self) -> str:
        """Returns what ``print`` shows."""
        return f"features={self.features}, classes={self.classes}"
