"""The consistency of a generator and a classifier, to check before a flow is trained.

Does the classifier answer the same on an image and on its reconstruction? Where it does not, what
is explained is not the image, and no flow can help: the counterfactuals of images that the
classifier does not recognize mean nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import checks
from .._engine.memory import in_halves
from ..errors import InputError
from ..files import json_number
from ..training.flow import batches_of
from ..types import Batched, Classifier, Generator

# Below 80 % one counterfactual in five starts from the wrong class; above 95 % what is lost is
# about what the classifier gets wrong anyway.
MIN_AGREEMENT, GOOD_AGREEMENT = 0.8, 0.95
# Nine of ten reconstructions in one class are a collapse, unless nearly as many images are in it.
COLLAPSE_SHARE, COLLAPSE_GROWTH = 0.9, 0.1


@dataclass(frozen=True, eq=False)
class Agreement:
    """The agreement of a classifier's answers on images and on their reconstructions.

    Arguments:
        confusion: How many images of each class (row) are reconstructed as each class (column),
            by the classifier's answers, with shape ``(K, K)``.
        error: The mean absolute difference between image and reconstruction, for each class of
            the image, with shape ``(K,)``; NaN where there is none.
        classes: The names of the classes, for the advice.
    """

    confusion: Tensor
    error: Tensor
    classes: Sequence[str] = ()

    @property
    def count(self) -> Tensor:
        """How many images each class has, ``(K,)``."""
        return self.confusion.sum(1)

    @property
    def per_class(self) -> Tensor:
        """The share of each class's images whose reconstruction has the same class, ``(K,)``."""
        return self.confusion.diagonal() / self.count

    @property
    def overall(self) -> float:
        """The share of all images whose reconstruction has the same class."""
        return (self.confusion.diagonal().sum() / self.confusion.sum()).item()

    def _name(self, k: int) -> str:
        return self.classes[k] if self.classes else f"class {k}"

    @property
    def advice(self) -> str:
        """What to do, in a sentence."""
        kept, total = self.confusion.sum(0), self.confusion.sum()
        collapsed = int(kept.argmax())
        grown = (kept[collapsed] - self.count[collapsed]) / total
        if kept[collapsed] > COLLAPSE_SHARE * total and grown > COLLAPSE_GROWTH:
            return (
                f"the classifier gives {self._name(collapsed)} to nearly every reconstruction: it "
                "sees something in them that images do not have. Look at a reconstruction beside "
                "its image. Try to stretch the images (sqrt, asinh) for generator and classifier "
                "alike, a background threshold, or train the classifier on reconstructions too."
            )
        if self.overall < MIN_AGREEMENT:
            return (
                f"the classifier does not recognize {1 - self.overall:.0%} of reconstructions: "
                "train the generator longer, give it more features or a perceptual term, before "
                "you train a flow."
            )
        weak = [k for k, v in enumerate(self.per_class.tolist()) if v < MIN_AGREEMENT]
        if weak:
            return (
                "the classifier does not recognize the reconstructions of "
                f"{', '.join(map(self._name, weak))}: look at them before you explain images of "
                "that class."
            )
        if self.overall < GOOD_AGREEMENT:
            return "usable; a better generator would make counterfactuals more faithful."
        return "good: generator and classifier fit together."

    def to_json(self) -> dict[str, object]:
        """Returns the numbers, as values that JSON can hold."""
        return {
            "overall": self.overall,
            "per_class": [json_number(round(v, 4)) for v in self.per_class.tolist()],
            "images": int(self.count.sum()),
        }

    def __repr__(self) -> str:
        error = self.error.nanmean().item()
        return f"Agreement({self.overall:.1%} of {int(self.count.sum())}, error {error:.4f})"


@torch.no_grad()
def agreement(
    images: Tensor | Batched | Iterable[Tensor],
    generator: Generator,
    classifier: Classifier,
    batch_size: int = 256,
    *,
    classes: Sequence[str] = (),
) -> Agreement:
    """Measures whether a classifier answers the same on images and on their reconstructions.

    Arguments:
        images: Images, as :func:`leapfactual.embed` takes them.
        generator: The generator.
        classifier: The classifier.
        batch_size: How many images at a time.
        classes: The names of the classes, for the advice.

    Example:
        >>> from leapfactual.data import squares
        >>> from leapfactual.generators import Identity
        >>> agreement(squares.sample(100)[0], Identity(), squares.quadrant)
        Agreement(100.0% of 100, error 0.0000)
    """
    confusion: Tensor | None = None
    error = torch.zeros(0)

    def reconstruct(x: Tensor) -> Tensor:
        return generator.decode(generator.encode(x))

    for x in batches_of(images, batch_size):
        x_hat = in_halves(reconstruct, x)
        if x_hat.shape != x.shape:
            raise InputError(
                f"the generator must give {checks.shape(x)} back, got {checks.shape(x_hat)}. "
                "Check it with leapfactual.testing.check_generator."
            )
        before, after = in_halves(classifier, x), in_halves(classifier, x_hat)
        k = _columns(before) if confusion is None else len(confusion)
        checks.probabilities(before, len(x), k, "the classifier's answer")
        checks.probabilities(after, len(x), k, "the classifier's answer")
        if confusion is None:
            confusion, error = torch.zeros(k, k), torch.zeros(k)
        pairs = before.argmax(1) * k + after.argmax(1)
        confusion += pairs.bincount(minlength=k**2).reshape(k, k).cpu()
        gap = (x_hat - x).abs().flatten(1).mean(1).cpu().float()
        error.index_add_(0, before.argmax(1).cpu(), gap)
    assert confusion is not None, "batches_of gives at least one batch"
    return Agreement(confusion, error / confusion.sum(1), tuple(classes))


def _columns(p: Tensor) -> int:
    return p.shape[1] if isinstance(p, Tensor) and p.ndim == 2 else 0
