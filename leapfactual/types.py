"""The vocabulary: what people bring, and what the letters mean.

====== ============================================================ ==============================
letter meaning                                                      shape
====== ============================================================ ==============================
``x``  images in [0, 1], or plain rows of numbers                   ``(B, C, H, W)`` or ``(B, D)``
``z``  latents; at t = 1 they carry the class, at t = 0 they do not ``(B, D)``
``y``  integer labels                                               ``(B,)``
``p``  class probabilities as the classifier gave them              ``(B, K)``
``c``  the condition that the flow sees, hard or soft               ``(B, K)``
``t``  time in [0, 1]                                               ``()`` or ``(B,)``
``v``  velocity                                                     as ``z``
====== ============================================================ ==============================

Generators and classifiers are protocols: anything with the right methods will do, and nobody has
to inherit from us.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

# The class to reach, by its number or its name: one for all images, or one for each.
Target = int | str | Tensor | Sequence[str]


@runtime_checkable
class Generator(Protocol):
    """Turns images into latents and latents into images, row by row."""

    def encode(self, x: Tensor) -> Tensor:
        """Returns the latents ``(B, D)`` of the images ``x``."""
        ...

    def decode(self, z: Tensor) -> Tensor:
        """Returns the images of the latents ``z``."""
        ...


class Conditional(Protocol):
    """Protocol of generators with a condition ``c`` ``(B, K)``, such as a VAE with classes."""

    classes: int

    def encode(self, x: Tensor, c: Tensor) -> Tensor:
        """Returns the latents ``(B, D)`` of the images ``x``, which carry all but the class."""
        ...

    def decode(self, z: Tensor, c: Tensor) -> Tensor:
        """Returns the images of the latents ``z`` under the condition."""
        ...


@runtime_checkable
class Classifier(Protocol):
    """Answers with class probabilities. It is only ever queried, never differentiated."""

    def __call__(self, x: Tensor) -> Tensor:
        """Returns one row of probabilities ``(B, K)`` for each image in ``x``."""
        ...


@runtime_checkable
class Batched(Protocol):
    """Set of images too large for memory, which is read in batches."""

    def batches(self, batch_size: int) -> Iterator[Tensor]:
        """Yields batches of images, in order."""
        ...


def no_op(*_: object) -> None:
    """Does nothing: the default of callbacks that report progress."""
