"""What a page shows of each image, as values that JSON can hold.

The leaps of a path become frames, at most 24 of them: the start, the end, the leap that first saw
the target class, and the rest evenly spaced. Pictures are data URIs, so that the page needs
nothing beside it.
"""

import base64
import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import Tensor

from ..types import Generator

if TYPE_CHECKING:
    from ..explanation import Explanation

FRAMES = 24
SHOWN_CLASSES = 4
STILL = 256
FRAME = 128
LOSSLESS = 64


def cards(
    e: "Explanation",
    *,
    names: Sequence[str],
    classes: Sequence[str] | None = None,
    typicality: Tensor | None = None,
    reliable: "Explanation | None" = None,
    reliable_typicality: Tensor | None = None,
    generator: Generator | None = None,
) -> list[dict[str, Any]]:
    """Returns what the page shows of each image.

    Arguments:
        e: The explanation.
        names: What the images are called.
        classes: What the classes are called, in the sentences.
        typicality: Percentiles ``(B,)`` of the counterfactuals.
        reliable: The reliable counterfactuals of the same images, whose path is shown then.
        reliable_typicality: Their percentiles.
        generator: Decodes the iterates of a path that was kept.
    """
    status, reason = e.status, e.reason if classes is None else e.reasons(classes)
    numbers = _numbers(e, typicality)
    further = _numbers(reliable, reliable_typicality) if reliable is not None else None
    walked = e if reliable is None else reliable
    said = walked.reason if classes is None else walked.reasons(classes)
    found = []
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
        if reliable is not None and further is not None:
            card["reliable"] = {
                "status": str(walked.status[row]),
                "reason": said[row],
                "numbers": further[row],
            }
        last = None if reliable is None else reliable.counterfactual[row]
        stills = {"input": e.x[row], "counterfactual": e.counterfactual[row], "reliable": last}
        if e.x.ndim == 4:
            card["frames"] |= _strip(x)
            card["pictures"] = {k: v if v is None else _still(v) for k, v in stills.items()}
        else:
            rows = {k: v if v is None else _values(v) for k, v in stills.items()}
            card["rows"] = {**rows, "frames": [_values(frame) for frame in x]}
        found.append(card)
    return found


def frames(
    e: "Explanation", row: int, generator: Generator | None = None
) -> tuple[Tensor, list[int], Tensor]:
    """Returns the images along the path of one image, the leaps they stand after, the answers.

    Without a path or a generator there are two frames, the reconstruction and the counterfactual.
    """
    if e.path is None or generator is None:
        x = torch.stack([e.reconstruction[row], e.counterfactual[row]])
        p = torch.stack([torch.full_like(e.probabilities[row], math.nan), e.probabilities[row]])
        return x.cpu(), [0, int(e.leaps[row])], p.cpu()
    end = int(e.leaps[row])
    count = min(FRAMES, end + 1)
    leaps = {round(place) for place in torch.linspace(0, end, count).tolist()}
    first = int(e.first[row])
    if 0 < first < end and first not in leaps:
        leaps.discard(min(leaps - {0, end}, key=lambda leap: abs(leap - first), default=-1))
        leaps.add(first)
    chosen = sorted(leaps)
    return (
        e.iterates(row, chosen, generator).cpu(),
        chosen,
        e.path.probabilities[row, chosen].cpu(),
    )


def uri(image: Image.Image, lossless: bool = True) -> str:
    """Returns a picture as a data URI."""
    buffer = io.BytesIO()
    if lossless:
        image.save(buffer, format="PNG", optimize=True)
    else:
        image.save(buffer, format="WEBP", quality=88)
    kind = "png" if lossless else "webp"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def picture(x: Tensor) -> Image.Image:
    """Makes a picture of one image ``(C, H, W)``."""
    pixels = (x.detach().cpu().float().clamp(0, 1) * 255).round().byte().permute(1, 2, 0)
    array = pixels.contiguous().numpy()
    return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)


def _still(x: Tensor) -> str:
    image = picture(x)
    image.thumbnail((STILL, STILL))
    return uri(image, max(image.size) <= LOSSLESS)


def _strip(x: Tensor) -> dict[str, Any]:
    """Lays the frames out side by side, small enough for a page of a hundred images."""
    small = [picture(frame) for frame in x]
    for frame in small:
        frame.thumbnail((FRAME, FRAME))
    width, height = small[0].size
    strip = Image.new(small[0].mode, (width * len(small), height))
    for n, frame in enumerate(small):
        strip.paste(frame, (n * width, 0))
    return {"strip": uri(strip, width <= LOSSLESS), "width": width, "height": height}


def _curve(p: Tensor, source: int, target: int) -> dict[str, Any]:
    """Returns the answers along the path, for source, target and what else came up most."""
    most = p.nan_to_num(0.0).max(0).values
    others = [k for k in most.argsort(descending=True).tolist() if k not in (source, target)]
    shown = list(dict.fromkeys([source, target, *(k for k in others if most[k] > 0.05)]))
    shown = shown[:SHOWN_CLASSES]
    return {"classes": shown, "p": [_values(p[:, k]) for k in shown]}


def _numbers(e: "Explanation", typicality: Tensor | None) -> list[dict[str, Any]]:
    columns = numbers(e, None if typicality is None else typicality / 100)
    return [
        {name: _plain(column[row]) for name, column in columns.items()} for row in range(len(e))
    ]


def distance(e: "Explanation") -> Tensor:
    """Returns the mean absolute change of each image, ``(B,)``; for rows that of their latents.

    Columns of a table have different units; their latents are in spreads.
    """
    if e.x.ndim == 4:
        return (e.counterfactual - e.reconstruction).abs().flatten(1).mean(1)
    return (e.z_counterfactual - e.z).abs().mean(1)


def numbers(e: "Explanation", typicality: Tensor | None = None) -> dict[str, list[float]]:
    """Returns the numbers of every image, column by column."""
    columns = {
        "label": e.label.tolist(),
        "leaps": e.leaps.tolist(),
        "queries": e.queries.tolist(),
        "nfe": e.nfe.tolist(),
        "milliseconds": (1000 * e.seconds.double()).tolist(),
        "L1": distance(e).tolist(),
        "margin": e.margin.tolist(),
    }
    columns["typicality"] = [math.nan] * len(e) if typicality is None else typicality.tolist()
    return columns


def _plain(value: float) -> float | None:
    if isinstance(value, int):
        return value
    return None if math.isnan(value) else float(f"{value:.4g}")


def _values(x: Tensor) -> list[float | None]:
    return [_plain(float(value)) for value in x.detach().cpu().flatten()]
