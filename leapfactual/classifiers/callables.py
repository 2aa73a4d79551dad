"""Classifiers made of what people have: a network that gives logits, or a function for labels."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import checks
from ..errors import InputError
from ..types import Classifier


def from_logits(network: Callable[[Tensor], Tensor]) -> Classifier:
    """Makes a classifier of a network that gives logits ``(B, K)``.

    The network is used in the mode that it is in: call ``network.eval()`` first.

    Example:
        >>> from_logits(lambda x: torch.zeros(len(x), 4))(torch.zeros(1, 2))
        tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """

    def classify(x: Tensor) -> Tensor:
        logits = network(x)
        if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(x):
            got = checks.shape(logits) if isinstance(logits, Tensor) else type(logits).__name__
            raise InputError(
                f"the network must give logits of shape ({len(x)}, K), got {got}. "
                "For a network with another output wrap it in a function that returns its logits."
            )
        return logits.softmax(1)

    return classify


def from_labels(label: Callable[[Tensor], Tensor | Sequence[int]], classes: int) -> Classifier:
    """Makes a classifier of anything that gives labels only: a black box, a rule, a person.

    Arguments:
        label: Returns one class number for each image in a batch.
        classes: The number of classes K.

    Example:
        >>> from_labels(lambda x: [1] * len(x), classes=3)(torch.zeros(2, 2))
        tensor([[0., 1., 0.],
                [0., 1., 0.]])
    """
    checks.positive(classes, "classes")

    def classify(x: Tensor) -> Tensor:
        y = torch.as_tensor(label(x), device=x.device)
        if y.shape != (len(x),) or y.is_floating_point() or y.dtype == torch.bool:
            raise InputError(
                f"the labels must be one whole number per image, {len(x)} here, got {y.dtype} of "
                f"shape {checks.shape(y)}. Return class numbers from 0 to {classes - 1}."
            )
        if len(y) and (y.min() < 0 or y.max() >= classes):
            wrong = int(y.min()) if y.min() < 0 else int(y.max())
            raise InputError(
                f"the label {wrong} is not a class: there are {classes}, 0 to {classes - 1}. "
                "Pass the right number as `classes`."
            )
        return F.one_hot(y.long(), classes).to(x.dtype)

    return classify
