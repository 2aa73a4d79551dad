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
from .colors import PHOTO_SIDE, full_change

if TYPE_CHECKING:
    from ..explanation import Explanation

# Kept small, so that a page of a hundred images still opens at once.
MAX_FRAMES = 24
MAX_SIDE = 256
# More curves than this in one plot cannot be told apart.
MAX_CURVES = 4
MIN_CURVE = 0.05
# A change of a fifth of the full colour is seen at a glance; a ninth of the picture with a third
# of the change is where to look.
VISIBLE, MIN_PLACE = 0.2, 1 / 3
PLACES = (
    *("at the upper left", "at the top", "at the upper right"),
    *("on the left", "in the middle", "on the right"),
    *("at the lower left", "at the bottom", "at the lower right"),
)


def cards(
    e: "Explanation",
    *,
    names: Sequence[str],
    typicality: Tensor | None = None,
    oracle: Tensor | None = None,
    reliable: "Explanation | None" = None,
    reliable_typicality: Tensor | None = None,
    reliable_oracle: Tensor | None = None,
    generator: Generator | None = None,
) -> Iterator[dict[str, Any]]:
    """Yields what the page shows of each image, one after the other.

    Arguments:
        e: The explanation.
        names: What the images are called.
        typicality: Percentiles ``(B,)`` of the counterfactuals.
        oracle: The classes ``(B,)`` that an oracle gives them.
        reliable: The reliable counterfactuals of the same images, whose path is shown then.
        reliable_typicality: Their percentiles.
        reliable_oracle: The classes that an oracle gives them.
        generator: Decodes the iterates of a path that was kept. Without it a card shows the two
            ends.
    """
    near = _outcomes(e, typicality, oracle)
    far: list[dict[str, Any]] | None = None
    walked = e
    if reliable is not None:
        far, walked = _outcomes(reliable, reliable_typicality, reliable_oracle), reliable
    labels_only = all(_labels_only(part) for part in (e, walked))
    for row in range(len(e)):
        x, leaps, p = frames(walked, row, generator)
        card: dict[str, Any] = {
            "name": names[row],
            "source": int(e.source[row]),
            "target": int(e.target[row]),
            **near[row],
            "reliable": None if far is None else far[row],
            "labels": labels_only,
            "frames": {"n": len(x), "leaps": leaps},
            "curve": _curve(p, int(e.source[row]), int(e.target[row])),
        }
        last = None if reliable is None else reliable.counterfactual[row]
        stills = {"input": e.x[row], "counterfactual": e.counterfactual[row], "reliable": last}
        if e.x.ndim == 4:
            card["redrawn"] = _to_json(float((e.reconstruction[row] - e.x[row]).abs().mean()))
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


def _outcomes(
    e: "Explanation", typicality: Tensor | None, oracle: Tensor | None
) -> list[dict[str, Any]]:
    """Returns what came of each search, as values that JSON can hold."""
    columns = numbers(e, None if typicality is None else typicality / 100)
    status, reason = e.status, e.reason
    return [
        {
            "status": str(status[row]),
            "reason": reason[row],
            "numbers": {name: _to_json(column[row]) for name, column in columns.items()},
            "oracle": None if oracle is None else int(oracle[row]),
            "changed": _changed(e.reconstruction[row], e.counterfactual[row]),
        }
        for row in range(len(e))
    ]


def _labels_only(e: "Explanation") -> bool:
    """Returns whether all that is known of the classifier's answers is labels, as one-hot rows."""
    answers = [e.probabilities, *([] if e.path is None else [e.path.probabilities])]
    return all(bool(((p == 0) | (p == 1) | p.isnan()).all()) for p in answers)


def _changed(before: Tensor, after: Tensor) -> dict[str, Any] | None:
    """Returns how much of an image ``(C, H, W)`` changed visibly, where, and which way.

    What became lighter, darker or another colour are shares of the change, as
    :func:`~leapfactual.report.figures.change_map` draws them.
    """
    if before.ndim != 3:
        return None
    d = (after - before).detach().cpu().float()
    size, balance = d.abs().mean(0), d.mean(0)
    total = float(size.sum()) or 1.0
    cells = torch.nn.functional.adaptive_avg_pool2d(size[None], 3).flatten()
    place = int(cells.argmax())
    lighter, darker = (float(part.clamp_min(0).sum()) / total for part in (balance, -balance))
    return {
        "share": _to_json(float((size >= VISIBLE * full_change(*size.shape)).float().mean())),
        "where": PLACES[place] if cells[place] >= MIN_PLACE * cells.sum() > 0 else None,
        "lighter": _to_json(lighter),
        "darker": _to_json(darker),
        "other": _to_json(max(0.0, 1 - lighter - darker) if size.any() else 0.0),
    }


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
