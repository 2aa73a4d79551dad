"""Classifiers from networks, and from any function that returns labels or probabilities."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from .. import checks
from ..errors import ClassifierError, InputError, LeapError
from ..types import Classifier
from .preprocessing import Preprocessing

NO_PREPROCESSING = Preprocessing()
Labels = Tensor | Sequence[int] | NDArray[np.integer]
Probabilities = Tensor | Sequence[Sequence[float]] | NDArray[np.floating]


class Network:
    """Creates a classifier from a network that returns logits; see :func:`from_logits`.

    Arguments:
        network: The network.
        preprocessing: Applied to the images first.
    """

    def __init__(self, network: Callable[[Tensor], Tensor], preprocessing: Preprocessing) -> None:
        self.network, self.preprocessing = network, preprocessing

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the probabilities ``(B, K)``."""
        logits = self.network(prepare(x, self.preprocessing))
        if not checks.is_plain(logits) or logits.ndim != 2 or len(logits) != len(x):
            raise InputError(
                f"the network must give logits of shape ({len(x)}, K), got {describe(logits)}. "
                "For a network with another output wrap it in a function that returns its logits."
            )
        check_classes(logits.shape[1], "the network")
        return logits.float().softmax(1) if logits.dtype != torch.float64 else logits.softmax(1)

    def to(self, device: str | torch.device) -> Self:
        """Moves the network to a device, and returns the classifier."""
        if isinstance(self.network, nn.Module):
            self.network.to(device)
        return self


def from_logits(
    network: Callable[[Tensor], Tensor], preprocessing: Preprocessing = NO_PREPROCESSING
) -> Network:
    """Creates a classifier from a network that returns logits ``(B, K)``.

    The network is used in the mode that it is in: call ``network.eval()`` first.

    Example:
        >>> from_logits(lambda x: torch.zeros(len(x), 4))(torch.zeros(1, 2))
        tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """
    return Network(network, preprocessing)


def from_labels(
    label: Callable[[Tensor], Labels],
    classes: int,
    preprocessing: Preprocessing = NO_PREPROCESSING,
) -> Classifier:
    """Creates a classifier from anything that returns labels only: a black box, a rule, a person.

    Arguments:
        label: Returns one class number for each image in a batch.
        classes: The number of classes K.
        preprocessing: Applied to the images first.

    Example:
        >>> from_labels(lambda x: [1] * len(x), classes=3)(torch.zeros(2, 2))
        tensor([[0., 1., 0.],
                [0., 1., 0.]])
    """
    checks.positive(classes, "classes")

    def classify(x: Tensor) -> Tensor:
        y = to_tensor(label(prepare(x, preprocessing)), x.device)
        y = y.long() if y.dtype in (torch.uint16, torch.uint32, torch.uint64) else y
        if y.shape != (len(x),) or y.is_floating_point() or y.dtype == torch.bool:
            raise InputError(
                f"the labels must be one whole number per image, {len(x)} here, got {y.dtype} of "
                f"shape {checks.shape(y)}. Return class numbers from 0 to {classes - 1}."
            )
        if len(y) and (y.min() < 0 or y.max() >= classes):
            wrong = int(y.min()) if y.min() < 0 else int(y.max())
            raise InputError(
                f"the label {wrong} is not a class: there are {classes}, 0 to {classes - 1}. "
                "Count from 0, and give the right number of `classes`, on the command line all "
                "their names: --classes."
            )
        return F.one_hot(y.long(), classes).to(x.dtype)

    return classify


def from_probabilities(
    function: Callable[[Tensor], Probabilities], preprocessing: Preprocessing = NO_PREPROCESSING
) -> Classifier:
    """Creates a classifier from any function that returns probabilities, as tensor or array.

    Example:
        >>> import numpy as np
        >>> from_probabilities(lambda x: np.full((len(x), 2), 0.5))(torch.zeros(1, 2))
        tensor([[0.5000, 0.5000]])
    """

    def classify(x: Tensor) -> Tensor:
        p = to_tensor(function(prepare(x, preprocessing)), x.device)
        if p.ndim != 2:
            raise InputError(
                f"the function must give rows of probabilities, ({len(x)}, K), got "
                f"{checks.shape(p)}. For labels use from_labels."
            )
        checks.probabilities(p, len(x), p.shape[1], "the function's answer")
        return p.to(x.dtype)

    return classify


@contextmanager
def naming_errors(x: Tensor) -> Iterator[None]:
    """Says of whatever a user's classifier raises that it was the classifier, and about what.

    Arguments:
        x: The images that it is asked about.
    """
    try:
        yield
    except (LeapError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a user's code may raise anything
        what = "images in [0, 1]" if x.ndim == 4 else "rows"
        raise ClassifierError(
            f"the classifier failed on {what} of shape {checks.shape(x)}: {last_line(error)}.",
            list(range(len(x))),
        ) from error


def last_line(error: Exception) -> str:
    """Returns what an error is, with the last line of what it says.

    Example:
        >>> last_line(ValueError("too bad"))
        'ValueError: too bad'
    """
    said = str(error).strip().splitlines()[-1:] or ["no reason given"]
    return f"{type(error).__name__}: {said[0].removesuffix('.')}"


def check_classes(classes: int, who: str) -> None:
    """Checks that there are several columns: the softmax of one is 1 for every image."""
    if classes < 2:
        raise InputError(
            f"{who} must give a column for each of several classes, got {classes}. For one logit "
            "s of two classes return torch.cat([-s, s], 1) / 2."
        )


def to_tensor(
    answer: Labels | Probabilities, device: torch.device, who: str = "the classifier"
) -> Tensor:
    """Returns an answer as a plain tensor of real numbers, or says what it is instead.

    Arguments:
        answer: Whatever a user's function gave.
        device: Where to put the tensor.
        who: Who answered, for the error.
    """
    try:
        numbers = torch.as_tensor(answer, device=device)
    except Exception as error:  # an object of the user's own may raise anything
        raise no_numbers(answer, who) from error
    if not checks.is_plain(numbers) or numbers.ndim == 0:
        raise no_numbers(answer, who)
    return numbers


def no_numbers(answer: object, who: str) -> InputError:
    """Returns the error about an answer that is no array of real numbers."""
    # What scikit-learn's classifiers become in ONNX, unless they are exported without it.
    zip_map = isinstance(answer, list) and bool(answer) and isinstance(answer[0], dict)
    remedy = " Of an ONNX model, leave out the ZipMap when it is exported." if zip_map else ""
    return InputError(
        f"{who} must answer with numbers, a label or a row for each image, got "
        f"{describe(answer)}. Return an array (N,) of labels, or (N, K) of probabilities or "
        f"logits.{remedy}"
    )


def describe(answer: object) -> str:
    """Says in words what an answer is.

    Example:
        >>> [describe(answer) for answer in (None, 0.5, [{"cat": 0.9}], [[1, 0], [1]])]
        ['None', 'one float', 'a list of dict', 'a list of lists of different lengths']
    """
    if answer is None:
        return "None"
    if isinstance(answer, Tensor):
        place = "" if answer.layout == torch.strided else f" ({answer.layout})"
        return f"a tensor of {answer.dtype} of shape {checks.shape(answer)}{place}"
    if isinstance(answer, np.ndarray):
        return f"an array of {answer.dtype} of shape {answer.shape}"
    name = type(answer).__name__
    if not isinstance(answer, list | tuple) or not answer:
        return f"one {name}"
    inner = answer[0]
    if all(isinstance(row, list | tuple) for row in answer) and len(set(map(len, answer))) > 1:
        return f"a {name} of lists of different lengths"
    return f"a {name} of {type(inner).__name__}"


def prepare(x: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Returns the images as the classifier expects them; rows pass as they are."""
    checks.check_floating(x)
    return x if preprocessing is NO_PREPROCESSING else preprocessing(x)
