"""Classifiers by name: what the command line is given.

``my_models.py:predict``, ``package.module:attribute`` or ``network.onnx``. What is found may be a
torch module, a scikit-learn estimator, or a function of images that answers with labels, names of
classes, probabilities or logits; a look at its first answer tells which.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import InputError
from ..types import Classifier
from .adapters import from_sklearn, onnx_rows
from .preprocessing import Preprocessing
from .wrap import NOTHING, find, from_labels, from_logits, prepared

OUTPUT_TYPES = ("labels", "names", "probabilities", "logits")


def open_classifier(
    spec: str,
    example: Tensor,
    classes: Sequence[str] = (),
    *,
    output_type: str | None = None,
    preprocessing: Preprocessing = NOTHING,
    folder: Path | None = None,
) -> Classifier:
    """Opens a classifier by name and finds out what it answers with.

    Arguments:
        spec: ``file.py:attribute``, ``package.module:attribute`` or ``file.onnx``.
        example: Some images, or rows, to ask it about.
        classes: What the classes are called. Labels and names need them.
        output_type: What it answers with, if a look does not tell: ``labels``, ``names``,
            ``probabilities`` or ``logits``.
        preprocessing: What is done to the images first.
        folder: Where to look for files; the current folder when not given.
    """
    if output_type not in (None, *OUTPUT_TYPES):
        raise InputError(
            f"`output_type` must be one of {', '.join(OUTPUT_TYPES)}, got {output_type!r}."
        )
    if spec.lower().endswith(".onnx"):
        path = Path(spec) if folder is None else folder / spec
        found: Any = onnx_rows(path, preprocessing)
        preprocessing = NOTHING
    else:
        found = find(spec, folder)
    if hasattr(found, "predict") and hasattr(found, "classes_"):
        return from_sklearn(found, preprocessing)
    if not callable(found):
        raise InputError(
            f"`{spec}` must be a function of images, a torch module or a fitted scikit-learn "
            f"estimator, got {type(found).__name__}."
        )
    if isinstance(found, nn.Module):
        found.eval()

    @torch.no_grad()
    def ask(x: Tensor) -> Any:  # noqa: ANN401 - whatever the user's function gives
        return found(prepared(x, preprocessing))

    first = ask(example)
    kind = output_type or _kind(first, len(example), spec)
    if kind in ("labels", "names") and len(classes) < 2:
        raise InputError(
            f"`{spec}` answers with {kind}, so the classes must be known. Name them: --classes "
            "cat,dog, in the order of the labels; or give a folder with one folder a class."
        )
    if kind == "names":
        return from_labels(_by_name(ask, classes, spec), len(classes))
    if kind == "labels":
        return from_labels(lambda x: np.asarray(_array(ask(x))).reshape(-1), len(classes))
    if kind == "logits":
        return from_logits(lambda x: torch.as_tensor(_array(ask(x)), device=x.device))
    return lambda x: torch.as_tensor(_array(ask(x)), device=x.device).to(x.dtype)


def _kind(answer: Any, n: int, spec: str) -> str:  # noqa: ANN401 - whatever the user's function gives
    array = np.asarray(_array(answer))
    if len(array) != n:
        raise InputError(
            f"`{spec}` must answer once for each image: {n} were given, {len(array)} came back."
        )
    if array.ndim == 1 or (array.ndim == 2 and array.shape[1] == 1):
        if array.dtype.kind in "USO":
            return "names"
        if array.dtype.kind in "iu":
            return "labels"
        raise InputError(
            f"`{spec}` answers with one number with a fraction for each image. Return labels "
            "(whole numbers), or a row with a probability for each class."
        )
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise InputError(
            f"`{spec}` must answer with labels (N,) or rows (N, K), got shape {array.shape} of "
            f"{array.dtype}."
        )
    on_simplex = (array >= 0).all() and np.allclose(array.sum(1), 1, atol=1e-3)
    return "probabilities" if on_simplex else "logits"


def _array(answer: Any) -> Any:  # noqa: ANN401 - whatever the user's function gives
    return answer.detach().cpu().numpy() if isinstance(answer, Tensor) else np.asarray(answer)


def _by_name(
    ask: Callable[[Tensor], Any], classes: Sequence[str], spec: str
) -> Callable[[Tensor], list[int]]:
    known = {name: n for n, name in enumerate(classes)}

    def label(x: Tensor) -> list[int]:
        names = [str(name) for name in np.asarray(_array(ask(x))).reshape(-1)]
        strange = sorted(set(names) - set(known))
        if strange:
            raise InputError(
                f"`{spec}` answers {strange[0]!r}, which is none of the classes "
                f"{', '.join(classes)}. Name them with --classes."
            )
        return [known[name] for name in names]

    return label
