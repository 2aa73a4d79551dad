"""What a classifier wants done to an image first, declared in one place."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import checks
from ..errors import InputError
from ..types import Classifier

STRETCHES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "none": lambda x, a: x,
    "sqrt": lambda x, a: x.clamp_min(0).sqrt(),
    "asinh": lambda x, a: torch.asinh(a * x) / math.asinh(a),
    "log": lambda x, a: torch.log1p(a * x) / math.log1p(a),
}
BACK: dict[str, Callable[[Tensor, float], Tensor]] = {
    "none": lambda x, a: x,
    "sqrt": lambda x, a: x.square(),
    "asinh": lambda x, a: torch.sinh(x * math.asinh(a)) / a,
    "log": lambda x, a: torch.expm1(x * math.log1p(a)) / a,
}
STRENGTH = 10.0


def stretched(x: Tensor, stretch: str) -> Tensor:
    """Lifts what is faint in images in [0, 1]: ``none``, ``sqrt``, ``asinh`` or ``log``."""
    return STRETCHES[stretch](x, STRENGTH)


def unstretch(x: Tensor, stretch: str) -> Tensor:
    """Takes back what :func:`stretched` did."""
    return BACK[stretch](x, STRENGTH)


def unstretched(classifier: Classifier, stretch: str) -> Classifier:
    """Lets a classifier see stretched images as they were before.

    So the generator works on what can be seen, and the classifier on what it was trained with.
    A faint floor that a decoder leaves where images are black all but vanishes on the way back.

    Example:
        >>> bright = unstretched(lambda x: x.flatten(1), "sqrt")
        >>> bright(stretched(torch.tensor([[[[0.25]]]]), "sqrt"))
        tensor([[0.2500]])
    """
    if stretch == "none":
        return classifier
    return lambda x: classifier(unstretch(x, stretch))


@dataclass(frozen=True)
class Preprocessing:
    """Turns images in [0, 1] into what a classifier was trained on.

    The order is: stretch, channels, size, range, mean and standard deviation.

    Arguments:
        size: Height and width to resize to.
        channels: 1 makes colours grey, 3 repeats grey.
        low: What black becomes.
        high: What white becomes.
        mean: What is taken off each channel afterwards.
        std: What each channel is divided by afterwards.
        stretch: ``none``, ``sqrt``, ``asinh`` or ``log``: lifts what is faint, for astronomical
            images. All keep 0 and 1.
        strength: How much ``asinh`` and ``log`` lift.

    Example:
        >>> imagenet = Preprocessing(
        ...     size=(224, 224), channels=3, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
        ... )
        >>> imagenet(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 3, 224, 224])
    """

    size: tuple[int, int] | None = None
    channels: int | None = None
    low: float = 0.0
    high: float = 1.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    stretch: str = "none"
    strength: float = STRENGTH

    def __post_init__(self) -> None:
        if self.stretch not in STRETCHES:
            raise InputError(f"`stretch` must be one of {list(STRETCHES)}, got {self.stretch!r}.")
        if self.strength <= 0:
            raise InputError(f"`strength` must be positive, got {self.strength!r}.")
        if self.channels not in (None, 1, 3):
            raise InputError(f"`channels` must be 1 or 3, got {self.channels!r}.")
        if self.low >= self.high:
            raise InputError(f"`low` must be below `high`, got {self.low} and {self.high}.")
        for name in ("mean", "std"):
            if not isinstance(getattr(self, name), tuple | list):
                raise InputError(
                    f"`{name}` must be a tuple, one value for each channel or one for all, got "
                    f"{getattr(self, name)!r}."
                )
        if any(s <= 0 for s in self.std):
            raise InputError(f"`std` must be positive, got {self.std}.")
        if self.size is not None:
            checks.size(self.size)

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the images as the classifier wants them."""
        if x.ndim != 4:
            raise InputError(
                f"preprocessing takes images (B, C, H, W), got {checks.shape(x)}. "
                "Rows of a table need none."
            )
        x = STRETCHES[self.stretch](x, self.strength)
        if self.channels == 1 and x.shape[1] == 3:
            x = (x * x.new_tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)
        elif self.channels == 3 and x.shape[1] == 1:
            x = x.expand(-1, 3, -1, -1)
        elif self.channels not in (None, x.shape[1]):
            raise InputError(
                f"the classifier wants {self.channels} channels, got {x.shape[1]}. "
                "Only grey and colour can be turned into each other."
            )
        if self.size is not None and tuple(x.shape[2:]) != tuple(self.size):
            x = F.interpolate(
                x, self.size, mode="bilinear", antialias=True, align_corners=False
            ).clamp(0, 1)
        x = self.low + (self.high - self.low) * x
        if self.mean:
            x = x - self._per_channel(self.mean, "mean", x)
        if self.std:
            x = x / self._per_channel(self.std, "std", x)
        return x

    def _per_channel(self, values: tuple[float, ...], name: str, x: Tensor) -> Tensor:
        if len(values) not in (1, x.shape[1]):
            raise InputError(
                f"`{name}` must have one value or one for each of the {x.shape[1]} channels, "
                f"got {len(values)}."
            )
        return x.new_tensor(values)[:, None, None]

    def config(self) -> dict[str, object]:
        """Returns the arguments, as values that JSON can hold."""
        return asdict(self)
