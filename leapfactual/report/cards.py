"""Cards: what the page shows of each image, as values that JSON can hold.

The leaps of a path become frames, at most 24 of them: the start, the end, the leap that first saw
the target class, and the rest evenly spaced. Pictures are data URIs, so that the page needs
nothing beside it.

The input, the reconstruction and the counterfactuals are stored without loss, so that a change map
shows what changed and not how it was compressed. So are all frames of small images. Photographs
would be too many bytes: what is between the ends is stored with loss, as the difference from the
reconstruction, which is nothing where nothing changed.
"""

import base64
import io
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..imaging import to_pil
from ..metrics import l1
from ..types import Generator
from .colors import PHOTO_SIDE

if TYPE_CHECKING:
    from ..explanation import Explanation

# Kept small, so that a page of a hundred images still opens at once.
MAX_FRAMES = 24
MAX_SIDE = 256
# More curves than this in one plot cannot be told apart.
MAX_CURVES = 4
MIN_CURVE = 0.05


def cards(
    e: "Explanation",
    *,
    names: Sequence[str],
    classes: Sequence[str] | None = None,
    typicality: Tensor | None = None,
    reliable: "Explanation | None" = None,
    reliable_typicality: Tensor | None = None,
    generator: Generator | None = None,
) -> Iterator[dict[str, Any]]:
    """Yields what the page shows of each image, one after the other.

    Arguments:
        e: The explanation.
        names: What the images are called.
        classes: What the classes are called, in the sentences. Defaults to their numbers.
        typicality: Percentiles ``(B,)`` of the counterfactuals.
        reliable: The reliable counterfactuals of the same images, whose path is shown then.
        reliable_typicality: Their percentiles.
        generator: Decodes the iterates of a path that was kept. Without it a card shows the two
            ends.
    """
    status, reason = e.status, e.reason if classes is None else e.reasons(classes)
    numbers = _numbers(e, typicality)
    reliable_numbers = _numbers(reliable, reliable_typicality) if reliable is not None else None
    walked = e if reliable is None else reliable
    reliable_reason = walked.reason if classes is None else walked.reasons(classes)
    for row in range(len(e)):
        x, leaps, p = frames(walked, row, generator)
        card: dict[str, Any] = {
            "name": names[row],
            "source": int(e.source[row]),
            "target": int(e.target[row]),
            "status": str(status[row]),
            "reason": reason[row],
            "numbers": numbers[row],
            "reliable": None,
            "frames": {"n": len(x), "leaps": leaps},
            "curve": _curve(p, int(e.source[row]), int(e.target[row])),
        }
        if reliable is not None and reliable_numbers is not None:
            card["reliable"] = {
                "status": str(walked.status[row]),
                "reason": reliable_reason[row],
                "numbers": reliable_numbers[row],
            }
        last = None if reliable is None else reliable.counterfactual[row]
        stills = {"input": e.x[row], "counterfactual": e.counterfactual[row], "reliable": last}
        if e.x.ndim == 4:
            pictures = [_picture(frame) for frame in x]
            card["frames"] |= _strip(pictures)
            card["pictures"] = {
                k: v if v is None else data_uri(_picture(v)) for k, v in stills.items()
            }
            if card["frames"]["differences"]:
                # Where the input's own pixels are kept, it is the reconstruction too.
                start = data_uri(pictures[0])
                same = start == card["pictures"]["input"]
                card["pictures"]["reconstruction"] = None if same else start
        else:
            rows = {k: v if v is None else _values(v) for k, v in stills.items()}
            card["rows"] = {**rows, "frames": [_values(frame) for frame in x]}
        yield card


def frames(
    e: "Explanation", row: int, generator: Generator | None = None
) -> tuple[Tensor, list[int], Tensor]:
    """Returns the iterates of one image as frames, the leap of each, and the classifier's answers.

    Without a path or a generator there are two frames, the reconstruction and the counterfactual.

    Arguments:
        e: The explanation.
        row: Which image.
        generator: Decodes the iterates.
    """
    if e.path is None or generator is None:
        x = torch.stack([e.reconstruction[row], e.counterfactual[row]])
        p = torch.stack([torch.full_like(e.probabilities[row], math.nan), e.probabilities[row]])
        return x.cpu(), [0, int(e.leaps[row])], p.cpu()
    end = int(e.leaps[row])
    count = min(MAX_FRAMES, end + 1)
    leaps = {round(place) for place in torch.linspace(0, end, count).tolist()}
    first = int(e.first[row])
    if 0 < first < end and first not in leaps:
        leaps.discard(min(leaps - {0, end}, key=lambda leap: abs(leap - first), default=-1))
        leaps.add(first)
    chosen = sorted(leaps)
    x = e.iterates(row, chosen, generator)
    return x.cpu(), chosen, e.path.probabilities[row, chosen].cpu()


def data_uri(image: Image.Image, lossless: bool = True) -> str:
    """Returns a picture as a data URI, a WEBP: a third smaller than a PNG without loss."""
    buffer = io.BytesIO()
    image.save(buffer, format="WEBP", lossless=lossless, quality=80 if lossless else 88)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _picture(x: Tensor) -> Image.Image:
    image = to_pil(x)
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    return image


def _strip(pictures: list[Image.Image]) -> dict[str, Any]:
    """Lays frames out side by side; those of photographs as differences, without the ends."""
    first = pictures[0]
    width, height = first.size
    photo = max(width, height) >= PHOTO_SIDE
    shown = _differences(pictures) if photo else pictures
    strip = Image.new(first.mode, (width * len(shown), height))
    for n, frame in enumerate(shown):
        strip.paste(frame, (n * width, 0))
    return {
        "strip": data_uri(strip, lossless=not photo) if shown else None,
        "differences": photo,
        "width": width,
        "height": height,
        "color": first.mode != "L",
    }


def _differences(pictures: list[Image.Image]) -> list[Image.Image]:
    """Returns half the difference of each picture between the ends from the first, around 128."""
    start = np.asarray(pictures[0], dtype=np.int16)
    return [
        Image.fromarray((128 + np.fix((np.asarray(p) - start) / 2)).astype(np.uint8))
        for p in pictures[1:-1]
    ]


def _curve(p: Tensor, source: int, target: int) -> dict[str, Any]:
    """Returns the probabilities along the path, for source, target and the highest others."""
    highest = p.nan_to_num(0.0).max(0).values
    others = [k for k in highest.argsort(descending=True).tolist() if k not in (source, target)]
    shown = list(dict.fromkeys([source, target, *(k for k in others if highest[k] > MIN_CURVE)]))
    shown = shown[:MAX_CURVES]
    return {"classes": shown, "p": [_values(p[:, k]) for k in shown]}


def _numbers(e: "Explanation", typicality: Tensor | None) -> list[dict[str, Any]]:
    columns = numbers(e, None if typicality is None else typicality / 100)
    return [
        {name: _to_json(column[row]) for name, column in columns.items()} for row in range(len(e))
    ]


def numbers(e: "Explanation", typicality: Tensor | None = None) -> dict[str, list[float]]:
    """Returns the numbers of all images, column by column; NaN where there is none."""
    columns = {
        "label": e.label.tolist(),
        "leaps": e.leaps.tolist(),
        "queries": e.queries.tolist(),
        "nfe": e.nfe.tolist(),
        "milliseconds": (1000 * e.seconds.double()).tolist(),
        "L1": l1(e).tolist(),
        "margin": e.margin.tolist(),
    }
    columns["typicality"] = [math.nan] * len(e) if typicality is None else typicality.tolist()
    return columns


def _to_json(value: float) -> float | None:
    """Returns a number with four digits, which is what the page shows, or None for NaN."""
    if isinstance(value, int):
        return value
    return None if math.isnan(value) else float(f"{value:.4g}")


def _values(x: Tensor) -> list[float | None]:
    return [_to_json(float(value)) for value in x.detach().cpu().flatten()]
