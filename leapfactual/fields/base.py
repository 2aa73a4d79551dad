"""What every velocity field is: a function of time, latents and class weights."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor, nn

from .. import checks
from ..errors import InputError


def expand_time(t: Tensor, z: Tensor) -> Tensor:
    """Returns the time as a column ``(B, 1)``, from a scalar or from one time per row.

    Example:
        >>> import torch
        >>> expand_time(torch.tensor(0.5), torch.zeros(3, 2)).shape
        torch.Size([3, 1])
    """
    return t.to(z).reshape(-1, 1).expand(len(z), 1)


class VelocityField(nn.Module, ABC):
    """Abstract velocity field. A field of your own needs :meth:`forward` and nothing else.

    Arguments:
        features: The number of latent features D.
        classes: The number of classes K.
    """

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        checks.positive(features, "features")
        checks.positive(classes, "classes")
        self.features, self.classes = features, classes

    @property
    def latent_channels(self) -> int:
        """How many features are standardized, each on its own; all of them unless it is a map."""
        return self.features

    @abstractmethod
    def forward(self, t: Tensor, z: Tensor, c: Tensor) -> Tensor:
        """Returns the velocity ``(B, D)`` of ``z`` under ``c`` at ``t``, ``()`` or ``(B,)``."""

    def bind(self, c: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """Returns the velocity under one condition, as a function of ``t`` and ``z``.

        An integration evaluates the field many times under one condition; a field that can
        precompute something for it does so here.
        """
        return lambda t, z: self(t, z, c)

    def config(self) -> dict[str, object]:
        """Returns the constructor's arguments, as values that JSON can hold.

        Only saving asks for them.
        """
        name = type(self).__name__
        raise InputError(
            f"{name} cannot be saved: it does not say how it was built. Give it a method "
            "config() that returns its constructor's arguments as a dictionary."
        )
