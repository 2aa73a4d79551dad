"""Classifiers from whatever answers: by name, as the command line is given them, or as they are.

A name is ``my_models.py:predict``, ``package.module:attribute`` or ``network.onnx``. What it names
may be a torch module, a scikit-learn estimator, or a function of images that returns labels, names
of classes, probabilities or logits; its output for an example tells which.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import ClassifierError, InputError, MissingData
from ..types import Classifier
from .adapters import from_sklearn, onnx_rows
from .preprocessing import Preprocessing
from .wrap import (
    NO_PREPROCESSING,
    describe,
    from_labels,
    from_logits,
    from_probabilities,
    last_line,
    naming_errors,
    prepare,
    to_tensor,
)

OUTPUT_TYPES = ("labels", "names", "probabilities", "logits")
# Narrower than the tolerance of probabilities elsewhere: logits must not pass for them by chance.
SIMPLEX_ATOL = 1e-3


def open_classifier(
    spec: object,
    example: Tensor,
    classes: Sequence[str] = (),
    *,
    output_type: str | None = None,
    preprocessing: Preprocessing = NO_PREPROCESSING,
    folder: Path | None = None,
) -> Classifier:
    """Opens a classifier and infers what it returns.

    What answers with probabilities already, as a tensor, is returned as it is. A torch module is
    put into evaluation mode.

    Arguments:
        spec: ``file.py:attribute``, ``package.module:attribute``, ``file.onnx``, or the object
            itself: a torch module, a fitted estimator of scikit-learn, a function.
        example: Some images, or rows, to infer from.
        classes: The names of the classes. Labels and names need them.
        output_type: ``labels``, ``names``, ``probabilities`` or ``logits``. Defaults to what the
            output for ``example`` looks like.
        preprocessing: Applied to the images first.
        folder: Where to look for files. Defaults to the current folder.

    Example:
        >>> def is_light(x):
        ...     return (x.mean((1, 2, 3)) > 0.5).long()
        >>> open_classifier(is_light, torch.zeros(2, 1, 4, 4), ["dark", "light"])(
        ...     torch.ones(1, 1, 4, 4)
        ... )
        tensor([[0., 1.]])
    """
    if output_type not in (None, *OUTPUT_TYPES):
        raise InputError(
            f"`output_type` must be one of {', '.join(OUTPUT_TYPES)}, got {output_type!r}."
        )
    model: Any = spec
    named = isinstance(spec, str | Path)
    name = str(spec) if named else _name(spec)
    if named:
        if name.lower().endswith(".onnx"):
            path = Path(name) if folder is None else folder / name
            model = onnx_rows(path, preprocessing)
            preprocessing = NO_PREPROCESSING
        else:
            model = import_object(name, folder)
    if hasattr(model, "predict") and hasattr(model, "classes_"):
        return from_sklearn(model, preprocessing)
    if not callable(model):
        raise InputError(
            f"`{name}` must be a function of images, a torch module or a fitted scikit-learn "
            f"estimator, got {type(model).__name__}."
        )
    if isinstance(model, nn.Module):
        model.eval()

    @torch.no_grad()
    def query(x: Tensor) -> Any:  # noqa: ANN401 - whatever the user's function gives
        with naming_errors(x):
            return model(prepare(x, preprocessing))

    first = query(example)
    kind = output_type or _infer_output_type(first, example, name)
    if output_type == "probabilities" and _infer_output_type(first, example, name) == "logits":
        raise InputError(
            f"`{name}` must answer with probabilities, each row non-negative with sum 1, got rows "
            "of other numbers. If they are logits: --output-type logits, in Python "
            "output_type='logits'."
        )
    if kind in ("labels", "names") and len(classes) < 2:
        raise InputError(
            f"`{name}` answers with {kind}, so the classes must be known. Name them: --classes "
            "cat,dog, in the order of the labels; or give a folder with one folder a class."
        )
    if kind == "names":
        return from_labels(_label_by_name(query, classes, name), len(classes))
    if kind == "labels":
        return from_labels(lambda x: _read(query(x), x, name).reshape(-1), len(classes))
    as_tensor = isinstance(first, Tensor) and first.device == example.device
    if kind == "logits" and isinstance(model, nn.Module) and as_tensor:
        return from_logits(model, preprocessing)
    if kind == "probabilities" and not named and preprocessing is NO_PREPROCESSING and as_tensor:
        return model  # type: ignore[no-any-return]
    if kind == "logits":
        return from_logits(lambda x: _read(query(x), x, name))
    return from_probabilities(lambda x: _read(query(x), x, name).to(x.dtype))


def _name(model: object) -> str:
    """Returns what a function, or the type of another object, is called."""
    return str(getattr(model, "__name__", type(model).__name__))


def import_object(name: str, folder: Path | None = None) -> Any:  # noqa: ANN401 - whatever it names
    """Imports the object that ``package.module:attribute`` or ``file.py:attribute`` names.

    Arguments:
        name: The name.
        folder: Where to look besides the installed packages. Defaults to the current folder.
    """
    place, colon, attribute = name.rpartition(":")
    from_file = place.endswith(".py")
    if not (place and colon and attribute) or (place.startswith(".") and not from_file):
        raise InputError(
            f"`{name}` must be `package.module:attribute` or `file.py:attribute`, for example "
            f"`{name if name.endswith('.py') else 'my_models'}:classify`."
        )
    here = folder or Path.cwd()
    path = here / place
    if from_file:
        here = path.parent
        if not path.is_file():
            raise MissingData(f"there is no file {path}. Give its path, from the current folder.")
    sys.path.insert(0, str(here))
    try:
        module = _load_module(path) if from_file else importlib.import_module(place)
    except Exception as error:  # a user's code may raise anything
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{place}.".startswith(f"{missing}."):
            raise MissingData(
                f"there is no module `{place}`, here or installed. Run from the folder that holds "
                "it, or install it."
            ) from error
        remedy = f"Mend {place}" if missing is None else f"Install {missing}"
        raise ClassifierError(
            f"`{place}` cannot be imported: {last_line(error)}. {remedy}.", []
        ) from error
    finally:
        sys.path.remove(str(here))
    value: object = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            names = sorted(n for n in vars(module) if not n.startswith("_"))
            near = get_close_matches(part, names, n=1)
            hint = f" Did you mean `{place}:{near[0]}`?" if near else ""
            raise InputError(f"`{place}` has no `{attribute}`; it has {', '.join(names)}.{hint}")
        value = getattr(value, part)
    return value


def _load_module(path: Path) -> ModuleType:
    description = importlib.util.spec_from_file_location(path.stem, path)
    assert description is not None
    assert description.loader is not None
    module = importlib.util.module_from_spec(description)
    description.loader.exec_module(module)
    return module


def _infer_output_type(answer: Any, x: Tensor, spec: str) -> str:  # noqa: ANN401 - whatever the user's function gives
    names = _are_names(answer)
    y: Any = np.asarray(answer) if names else _read(answer, x, spec)
    if len(y) != len(x):
        raise InputError(
            f"`{spec}` must answer once for each image: {len(x)} were given, {len(y)} came back."
        )
    if y.ndim == 1 or (y.ndim == 2 and y.shape[1] == 1):
        if names:
            return "names"
        if y.is_floating_point():
            raise InputError(
                f"`{spec}` answers with one number with a fraction for each image. Return labels "
                "(whole numbers), or a row with a probability for each class."
            )
        return "labels"
    if y.ndim != 2 or names or y.dtype == torch.bool:
        raise InputError(
            f"`{spec}` must answer with labels (N,) or rows (N, K), got {describe(answer)}."
        )
    rows = y.double()
    bad = int((~rows.isfinite()).any(1).sum())
    if bad:
        raise InputError(
            f"`{spec}` answers with NaN or infinite numbers about {bad} of {len(x)} images. "
            "Return finite probabilities or logits."
        )
    on_simplex = (rows >= 0).all() and ((rows.sum(1) - 1).abs() <= SIMPLEX_ATOL).all()
    return "probabilities" if on_simplex else "logits"


def _read(answer: Any, x: Tensor, spec: str) -> Tensor:  # noqa: ANN401 - as above
    return to_tensor(answer, x.device, f"`{spec}`").detach()


def _are_names(answer: Any) -> bool:  # noqa: ANN401 - as above
    """Tells whether an answer is made of text."""
    if isinstance(answer, Tensor):
        return False
    try:
        array = np.asarray(answer)
    except Exception:  # lists of different lengths; an object of the user's own may raise anything
        return False
    return array.ndim > 0 and all(isinstance(value, str | bytes) for value in array.flat)


def _label_by_name(
    query: Callable[[Tensor], Any], classes: Sequence[str], spec: str
) -> Callable[[Tensor], list[int]]:
    known = {name: n for n, name in enumerate(classes)}

    def label(x: Tensor) -> list[int]:
        answer = query(x)
        if not _are_names(answer):
            answer = _read(answer, x, spec).tolist()
        names = [
            name.decode(errors="replace") if isinstance(name, bytes) else str(name)
            for name in np.asarray(answer).reshape(-1)
        ]
        unknown = sorted(set(names) - set(known))
        if unknown:
            raise InputError(
                f"`{spec}` answers {unknown[0]!r}, which is none of the classes "
                f"{', '.join(classes)}. Name them with --classes."
            )
        return [known[name] for name in names]

    return label
