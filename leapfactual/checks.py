"""Checks at the public edge, with errors that say what to do.

A look at values synchronizes with the device, which is not allowed while a CUDA graph is captured
or tried out. Shapes are checked then, and values are not.
"""

import difflib
import math
import operator
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeGuard

import torch
from torch import Tensor

from .errors import InputError
from .types import Target

# Wide enough for rows that a half-precision softmax gave.
SIMPLEX_TOLERANCE = 1e-2
# What sums and products of half precision are off by.
PIXEL_TOLERANCE = 5e-3
SYNC_IS_ERROR = 2
# What is computed in; other types, such as float8, are for storage.
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
# More than any network of ours has. A file that declares more would be built for hours.
MAX_DEPTH, MAX_BLOCKS, MAX_LEVELS = 256, 64, 16
# What is counted at all; torch cannot make tensors of sizes far beyond that.
MAX_COUNT = 2**40
# What file systems allow.
MAX_NAME_BYTES, MAX_PATH_BYTES = 255, 4096
# Of one image: a guard against files that unpack to more than memory holds.
MAX_PIXELS = 25_000_000


def shape(x: Tensor) -> str:
    """Writes a shape as people write it: ``(64, 1, 28, 28)``."""
    return f"({', '.join(map(str, x.shape))}{',' if x.ndim == 1 else ''})"


def is_plain(x: object) -> TypeGuard[Tensor]:
    """Tells whether a value is a tensor of real numbers that are all there, in memory."""
    return (
        isinstance(x, Tensor)
        and x.layout == torch.strided
        and not (x.is_meta or x.is_complex() or x.is_quantized)
    )


def is_floating(x: object) -> TypeGuard[Tensor]:
    """Tells whether a value is such a tensor, of a type that networks are computed in."""
    return is_plain(x) and x.dtype in FLOATS


def capturing(x: Tensor) -> bool:
    """Tells whether work on ``x`` is being captured, so that its values cannot be looked at."""
    return x.is_cuda and (
        torch.cuda.is_current_stream_capturing()
        or torch.cuda.get_sync_debug_mode() == SYNC_IS_ERROR
    )


def finite(x: Tensor, name: str) -> None:
    """Checks that no value is NaN or infinite."""
    if capturing(x):
        return
    bad = ~torch.isfinite(x).flatten(1).all(1) if x.ndim > 1 else ~torch.isfinite(x)
    if bad.any():
        raise InputError(
            f"`{name}` must be finite, got NaN or infinite values in {int(bad.sum())} of {len(x)} "
            f"rows (first: row {int(bad.nonzero()[0])}). Leave those rows out or mend what made "
            "them."
        )


def check_floating(x: Tensor, name: str = "x") -> None:
    """Checks that a value is a tensor of floating-point numbers that can be computed with."""
    if not is_floating(x):
        got = str(x.dtype) if isinstance(x, Tensor) else type(x).__name__
        if isinstance(x, Tensor) and (x.is_meta or x.layout != torch.strided):
            got += f", {x.layout} on {x.device}"
        raise InputError(
            f"`{name}` must be floating point, got {got}. For 8-bit images: x.float() / 255."
        )


def images(x: Tensor, name: str = "x") -> None:
    """Checks that ``x`` holds images ``(B, C, H, W)`` in [0, 1], or plain rows ``(B, D)``."""
    if not isinstance(x, Tensor):
        raise InputError(
            f"`{name}` must be a torch tensor of images (B, C, H, W) or of rows (B, D), "
            f"got {type(x).__name__}. Convert arrays with torch.as_tensor; of a loader of pairs "
            "pass (x for x, _ in loader)."
        )
    if x.ndim not in (2, 4):
        raise InputError(
            f"`{name}` must be images of shape (B, C, H, W) or rows of shape (B, D), got "
            f"{shape(x)}. A single image needs a batch dimension: x[None]."
        )
    check_floating(x, name)
    if len(x) and not x.numel():
        raise InputError(f"`{name}` must hold images of at least one pixel, got {shape(x)}.")
    finite(x, name)
    if x.ndim == 4 and len(x) and not capturing(x) and (x.min() < 0 or x.max() > 1):
        raise InputError(
            f"`{name}` must be images in [0, 1], got values in [{x.min():.7g}, {x.max():.7g}]. "
            "Rescale them, and rescale inside your generator if it works in another range."
        )


def pixels(x: Tensor, name: str) -> None:
    """Checks that pictures of a generator are finite and, but for rounding, in [0, 1]."""
    if capturing(x) or not x.numel():
        return
    low, high = (bound.item() for bound in x.aminmax())
    # NaN is neither.
    if x.ndim != 4 or not -PIXEL_TOLERANCE <= low <= high <= 1 + PIXEL_TOLERANCE:
        finite(x, name)
        if x.ndim == 4:
            raise InputError(
                f"{name} must be in [0, 1], got values in [{low:.7g}, {high:.7g}]. Rescale what "
                "decode gives: (x + 1) / 2 for [-1, 1], or x.clamp(0, 1)."
            )


def latents(z: Tensor, features: int, name: str = "z") -> None:
    """Checks for finite latents ``(B, D)`` of the flow's size."""
    if not is_floating(z) or z.ndim != 2:
        got = f"{shape(z)} {z.dtype}" if isinstance(z, Tensor) else type(z).__name__
        raise InputError(
            f"`{name}` must be floating-point latents of shape (B, {features}), got {got}. "
            "Flatten the latents of your generator to one row per image."
        )
    if z.shape[1] != features:
        raise InputError(
            f"`{name}` must have {features} features, as the flow's field does, got {shape(z)}. "
            f"Build the field with features={z.shape[1]} or use the generator it was trained with."
        )
    finite(z, name)


def one_row_each(out: Tensor, given: Tensor, what: str) -> None:
    """Checks that a generator or a classifier gives as many rows as it was given."""
    if not isinstance(out, Tensor) or out.ndim < 1 or len(out) != len(given):
        got = shape(out) if isinstance(out, Tensor) else type(out).__name__
        raise InputError(
            f"{what} must give one row for each of {len(given)}, got {got}. "
            "Check it with leapfactual.testing."
        )


def probabilities(p: Tensor, rows: int, classes: int, name: str = "p") -> None:
    """Checks that there is one row on the simplex for each of ``rows`` images."""
    if not is_floating(p):
        got = f"{p.dtype} ({p.layout}, {p.device})" if isinstance(p, Tensor) else type(p).__name__
        raise InputError(
            f"`{name}` must be floating-point probabilities of shape ({rows}, {classes}), got "
            f"{got}. For arrays use leapfactual.classifiers.from_probabilities, for labels "
            "leapfactual.classifiers.from_labels."
        )
    if p.shape != (rows, classes):
        raise InputError(
            f"`{name}` must have shape ({rows}, {classes}): one row per image, one column for "
            f"each of the {classes} classes; got {shape(p)}. A flow explains the classifier that "
            "it was trained with; for another one train another."
        )
    if capturing(p):
        return
    finite(p, name)
    off = (p.sum(1) - 1).abs().max().item() if rows else 0.0
    low = p.min().item() if p.numel() else 0.0
    if low < -SIMPLEX_TOLERANCE or off > SIMPLEX_TOLERANCE:
        raise InputError(
            f"`{name}` must be probabilities, each row non-negative with sum 1; got values down "
            f"to {low:.3g} and sums off by up to {off:.3g}. For logits use "
            "leapfactual.classifiers.from_logits."
        )


def find_class(name: str, classes: Sequence[str], place: str = "") -> int:
    """Returns the number of a class by its name, suggesting the nearest for one that is unknown.

    Upper and lower case are told apart only where two names differ in nothing else.

    Arguments:
        name: The name.
        classes: The names of the classes.
        place: Where the name stands, for the error.

    Example:
        >>> find_class("Spiral", ["edge-on", "spiral"])
        1
    """
    if name in classes:
        return list(classes).index(name)
    folded = [known.casefold() for known in classes]
    if folded.count(name.casefold()) == 1:
        return folded.index(name.casefold())
    near = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.4)
    hint = f"Did you mean `{classes[folded.index(near[0])]}`? " if near else ""
    listed = ", ".join(classes[:12]) + (", …" if len(classes) > 12 else "")
    raise InputError(f"{place}`{name}` is none of the classes. {hint}There are {listed}.")


def targets(
    target: Target, rows: int, classes: int, device: torch.device, names: Sequence[str] = ()
) -> Tensor:
    """Returns one target class per image, from one class or one per image, by number or name.

    Arguments:
        target: The target, or one for each image.
        rows: The number of images.
        classes: The number of classes.
        device: The device of the result.
        names: The names of the classes, if they are known.
    """
    by_name = [target] if isinstance(target, str) else target
    if isinstance(by_name, list | tuple) and by_name and all(isinstance(n, str) for n in by_name):
        if not names:
            raise InputError(
                f"`target` is {by_name[0]!r}, and this explainer knows no names of classes. Give "
                f"a number from 0 to {classes - 1}, or names: LeapFactual(..., classes=[...])."
            )
        found = torch.tensor([find_class(str(name), names) for name in by_name])
        target = found[0] if isinstance(target, str) else found
    if not isinstance(target, Tensor):
        try:
            target = torch.tensor(whole(target, "target"))
        except (ValueError, RuntimeError) as error:
            raise InputError(
                f"`target` must be a class number or a tensor of them, got {target!r}. This flow "
                f"knows {classes} classes, 0 to {classes - 1}. Convert arrays with "
                "torch.as_tensor."
            ) from error
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise InputError(
            f"`target` must hold whole class numbers, got {target.dtype}. Convert it with .long()."
        )
    y = target.to(device, torch.long)
    if y.ndim == 0:
        y = y.expand(rows)
    if y.shape != (rows,):
        raise InputError(
            f"`target` must be one class or one per image, here {rows}, got shape {shape(y)}. "
            "Pass target=7, or a tensor with one class number for each image."
        )
    wrong = (y < 0) | (y >= classes)
    if not capturing(y) and wrong.any():
        listed = f": {', '.join(names[:12])}{', …' if len(names) > 12 else ''}" if names else ""
        raise InputError(
            f"`target` {int(y[wrong][0])} is not a class: this flow knows {classes} classes, "
            f"0 to {classes - 1}{listed}. Choose one of those."
        )
    return y.clone()


def size(value: object) -> None:
    """Checks that a value is ``(height, width)``."""
    if (
        not isinstance(value, tuple | list)
        or len(value) != 2
        or not all(isinstance(n, int) and n > 0 for n in value)
        or math.prod(value) > MAX_PIXELS
    ):
        raise InputError(
            "`size` must be (height, width), at least 1 each and no more than "
            f"{MAX_PIXELS // 1_000_000} million pixels, got {value!r}."
        )


def path(value: object) -> Path:
    """Returns the path of a file or folder, or refuses what cannot be one."""
    if not isinstance(value, str | os.PathLike):
        raise InputError(f"expected the path of a file or folder, got {type(value).__name__}.")
    text = os.fsdecode(value)
    if not text or "\0" in text:
        raise InputError(f"expected the path of a file or folder, got {text!r}.")
    found = Path(text)
    longest = max((len(os.fsencode(part)) for part in found.parts), default=0)
    for what, size, most in (
        ("name", longest, MAX_NAME_BYTES),
        ("path", len(os.fsencode(text)), MAX_PATH_BYTES),
    ):
        if size > most:
            raise InputError(
                f"expected the path of a file or folder, got a {what} of {size:,} bytes, more "
                f"than {most:,}."
            )
    return found


def whole(value: object, name: str) -> int:
    """Returns a whole number, of Python or of another library, or refuses it."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise InputError(f"`{name}` must be a whole number, got {value!r}.") from error


def number(value: object, name: str) -> float:
    """Returns a number, of Python or of another library, or refuses it."""
    try:
        if isinstance(value, bool | str):
            raise TypeError
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise InputError(f"`{name}` must be a number, got {value!r}.") from error


def levels(values: Sequence[object], name: str, example: str) -> tuple[int, ...]:
    """Returns the whole numbers of a network's levels, at least one and not too many."""
    if not 1 <= len(values) <= MAX_LEVELS:
        raise InputError(
            f"`{name}` must name 1 to {MAX_LEVELS} levels, got {len(values)}. Try {example}."
        )
    return tuple(positive(value, name) for value in values)


def positive(value: object, name: str, most: int = MAX_COUNT) -> int:
    """Returns a whole number from 1 to ``most``, or refuses it.

    Numbers that a file or a command line declares are bounded where a large one would run for
    days, or fill the memory.
    """
    try:
        number = whole(value, name)
    except InputError:
        number = 0
    if not 1 <= number <= most:
        open_ended = most == MAX_COUNT and number < 1
        bounds = "of at least 1" if open_ended else f"from 1 to {most:,}"
        raise InputError(f"`{name}` must be a whole number {bounds}, got {value!r}.")
    return number
