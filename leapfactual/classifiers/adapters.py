"""Adapters for classifiers of other libraries, each imported where it is used."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import checks
from ..errors import InputError, MissingData
from ..extras import require
from ..types import Classifier
from .preprocessing import Preprocessing
from .wrap import (
    NO_PREPROCESSING,
    check_classes,
    from_labels,
    from_probabilities,
    prepare,
    to_tensor,
)


def from_sklearn(
    estimator: Any,  # noqa: ANN401 - any estimator of scikit-learn, which is not required
    preprocessing: Preprocessing = NO_PREPROCESSING,
) -> Classifier:
    """Creates a classifier from a fitted scikit-learn estimator, which sees images as flat rows.

    Class k is the estimator's ``classes_[k]``. If it has no ``predict_proba`` its labels are used,
    which is enough.
    """
    if not hasattr(estimator, "classes_"):
        raise InputError(
            f"{type(estimator).__name__} is not fitted, or no classifier: it has no `classes_`. "
            "Call its fit first."
        )
    classes = np.asarray(estimator.classes_)

    def rows(x: Tensor) -> NDArray[Any]:
        return torch.flatten(x.detach().cpu(), 1).numpy()

    def labels(x: Tensor) -> NDArray[np.integer]:
        y: NDArray[np.integer] = np.searchsorted(classes, estimator.predict(rows(x)))
        return y

    if hasattr(estimator, "predict_proba"):
        return from_probabilities(lambda x: estimator.predict_proba(rows(x)), preprocessing)
    return from_labels(labels, len(classes), preprocessing)


def from_onnx(
    path: str | Path,
    preprocessing: Preprocessing = NO_PREPROCESSING,
    *,
    output: str = "logits",
) -> Classifier:
    """Creates a classifier from an ONNX file, run by ONNX Runtime on the CPU.

    Arguments:
        path: The file; its first input takes images, its first output gives a row for each. Its
            weights are in it, or in a file beside it that is called as it is, with ``.data``
            behind.
        preprocessing: Applied to the images first.
        output: Whether that row holds ``logits`` or ``probabilities``.
    """
    if output not in ("logits", "probabilities"):
        raise InputError(f"`output` must be 'logits' or 'probabilities', got {output!r}.")
    rows = onnx_rows(path, preprocessing)
    return from_probabilities(lambda x: rows(x).softmax(1) if output == "logits" else rows(x))


def onnx_rows(
    path: str | Path, preprocessing: Preprocessing = NO_PREPROCESSING
) -> Callable[[Tensor], Tensor]:
    """Returns a function from images to the rows of an ONNX file's first output, as they are."""
    path = checks.path(path)
    if not path.is_file():
        raise MissingData(f"there is no ONNX file at {path}. Give the path of an .onnx file.")
    onnxruntime = require("onnxruntime", extra="onnx", subject="ONNX files need")
    try:
        session = _onnx_session(onnxruntime, path)
    except Exception as error:  # onnxruntime's own errors have no common parent but this
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"{path} is no ONNX model ({reason}). Export it again.") from error
    if not session.get_inputs():
        raise InputError(f"{path} takes no input. Export the network, not a constant.")
    entry = session.get_inputs()[0]

    def run(x: Tensor) -> Tensor:
        array = prepare(x, preprocessing).detach().cpu().float().numpy()
        try:
            out = session.run(None, {entry.name: array})[0]
        except Exception as error:  # as above
            reason = str(error).strip().splitlines()[0]
            raise InputError(
                f"{path} wants input of shape {entry.shape} and type {entry.type}, got "
                f"{array.shape} floats ({reason}). Declare the right Preprocessing, and export "
                "with a dynamic batch size."
            ) from error
        row = to_tensor(out, x.device, str(path))
        if row.ndim != 2 or len(row) != len(x):
            raise InputError(
                f"{path} must give one row for each of {len(x)} images, got {checks.shape(row)}."
            )
        check_classes(row.shape[1], str(path))
        return row.float()

    return run


def _onnx_session(onnxruntime: Any, path: Path) -> Any:  # noqa: ANN401 - it is not required
    """Opens a model, with the weights in ``NAME.onnx.data`` if they are there.

    A model may name any file as that of its weights. It gets no folder to find one in.
    """
    options = onnxruntime.SessionOptions()
    weights = path.with_name(f"{path.name}.data")
    if weights.is_file():
        content = weights.read_bytes()
        options.add_external_initializers_from_files_in_memory(
            [weights.name], [content], [len(content)]
        )
    with tempfile.TemporaryDirectory() as empty:
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", empty
        )
        return onnxruntime.InferenceSession(
            path.read_bytes(), options, providers=["CPUExecutionProvider"]
        )


def from_clip(
    model: Any,  # noqa: ANN401 - a CLIPModel of transformers, which is not required
    tokens: Any,  # noqa: ANN401 - what its tokenizer gives
    preprocessing: Preprocessing,
) -> Classifier:
    """Creates a zero-shot classifier from a CLIP model, with one prompt for each class.

    Arguments:
        model: A ``transformers.CLIPModel``.
        tokens: What its tokenizer gives for the prompts: a mapping with ``input_ids`` and
            ``attention_mask``. With weights of your own: ``tokenizer(["a smiling face", "a face"],
            padding=True, return_tensors="pt")``.
        preprocessing: The model's image size, mean and standard deviation.
    """
    with torch.no_grad():
        text = _features(model.get_text_features(**tokens))

    @torch.no_grad()
    def classify(x: Tensor) -> Tensor:
        pixels = preprocessing(x).to(model.device)
        image = _features(model.get_image_features(pixel_values=pixels))
        logits = model.logit_scale.exp() * image @ text.T
        p: Tensor = logits.softmax(1).to(x)
        return p

    return classify


def clip_preprocessing(size: int = 224) -> Preprocessing:
    """Returns the preprocessing of the published CLIP models."""
    return Preprocessing(
        size=(size, size),
        channels=3,
        mean=(0.48145466, 0.4578275, 0.40821073),
        std=(0.26862954, 0.26130258, 0.27577711),
    )


def load_clip(
    folder: str | Path, prompts: Sequence[str], preprocessing: Preprocessing | None = None
) -> Classifier:
    """Creates a zero-shot classifier from CLIP weights on disk, with one prompt for each class.

    Arguments:
        folder: A folder that ``transformers`` can read a CLIP model and its tokenizer from.
        prompts: One for each class, for example ``["a smiling face", "a face"]``.
        preprocessing: Applied to the images first. Defaults to CLIP's own.
    """
    if not checks.path(folder).is_dir():
        raise MissingData(
            f"there is no folder {folder}. Give one with CLIP weights in safetensors, config.json "
            "and the tokenizer's files."
        )
    if len(prompts) < 2:
        raise InputError(f"`prompts` must be one for each of several classes, got {prompts!r}.")
    transformers = require("transformers", extra="clip", subject="CLIP needs")
    try:
        model = transformers.CLIPModel.from_pretrained(
            folder, local_files_only=True, use_safetensors=True
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"{folder} holds no CLIP model ({reason}).") from error
    tokens = tokenizer(list(prompts), padding=True, return_tensors="pt")
    size = model.config.vision_config.image_size
    return from_clip(model.eval(), tokens, preprocessing or clip_preprocessing(size))


def _features(out: Any) -> Tensor:  # noqa: ANN401 - a tensor, or an output object that holds it
    features: Tensor = out if isinstance(out, Tensor) else out.pooler_output
    return torch.nn.functional.normalize(features, dim=1)
