"""The preprocessing of images that a classifier expects, declared in one place."""

from dataclasses import asdict, dataclass

from torch import Tensor
from torch.nn import functional as F

from .. import checks
from ..errors import InputError
from ..imaging import STRETCH_STRENGTH, STRETCHES, unstretch
from ..types import Classifier

# The luma of ITU-R BT.601, as Pillow converts colours to grey.
LUMA = (0.299, 0.587, 0.114)


def undo_stretch(classifier: Classifier, kind: str) -> Classifier:
    """Returns a classifier of stretched images, which sees them as they were before.

    So the generator works on what can be seen, and the classifier on what it was trained with. A
    faint floor that a decoder leaves where images are black nearly vanishes when it is undone.

    Example:
        >>> import torch
        >>> from leapfactual.imaging import stretch
        >>> classifier = undo_stretch(lambda x: x.flatten(1), "sqrt")
        >>> classifier(stretch(torch.tensor([[[[0.25]]]]), "sqrt"))
        tensor([[0.2500]])
    """
    if kind == "none":
        return classifier
    return lambda x: classifier(unstretch(x, kind))


@dataclass(frozen=True)
class Preprocessing:
    """Creates a function from images in [0, 1] to what a classifier was trained on.

    The order is: stretch, channels, size, range, mean and standard deviation.

    Arguments:
        size: Height and width to resize to.
        channels: 1 makes colours grey, 3 repeats grey.
        low: The value of black.
        high: The value of white.
        mean: Subtracted from each channel afterwards.
        std: Divides each channel afterwards.
        stretch: ``none``, ``sqrt``, ``asinh`` or ``log``: brightens the faint parts of
            astronomical images. All keep 0 and 1.
        strength: How much ``asinh`` and ``log`` brighten.

    Example:
        >>> import torch
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
    strength: float = STRETCH_STRENGTH

    def __post_init__(self) -> None:
        if self.stretch not in STRETCHES:
            raise InputError(f"`stretch` must be one of {list(STRETCHES)}, got {self.stretch!r}.")
        for name in ("low", "high", "strength"):
            checks.number(getattr(self, name), name)
        if self.strength <= 0:
            raise InputError(f"`strength` must be positive, got {self.strength!r}.")
        if self.channels not in (None, 1, 3):
            raise InputError(f"`channels` must be 1 or 3, got {self.channels!r}.")
        if self.low >= self.high:
            raise InputError(f"`low` must be below `high`, got {self.low} and {self.high}.")
        for name in ("mean", "std"):
            values = getattr(self, name)
            if not isinstance(values, tuple | list) or not all(
                isinstance(value, int | float) for value in values
            ):
                raise InputError(
                    f"`{name}` must be a tuple of numbers, one for each channel or one for all, "
                    f"got {values!r}."
                )
        if any(s <= 0 for s in self.std):
            raise InputError(f"`std` must be positive, got {self.std}.")
        if self.size is not None:
            checks.size(self.size)

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the images as the classifier expects them."""
        if x.ndim != 4:
            raise InputError(
                f"preprocessing takes images (B, C, H, W), got {checks.shape(x)}. "
                "Rows of a table need none."
            )
        x = STRETCHES[self.stretch](x, self.strength)
        if self.channels == 1 and x.shape[1] == 3:
            x = (x * x.new_tensor(LUMA)[:, None, None]).sum(1, keepdim=True)
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
