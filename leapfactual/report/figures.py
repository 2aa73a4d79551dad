"""Explanations as pictures: a figure, an animation, thumbnails for a notebook."""

import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import Tensor

from ..errors import InputError, MissingExtra
from ..files import atomic
from ..types import Generator
from .cards import frames, picture, uri

if TYPE_CHECKING:
    from ..explanation import Explanation

ANIMATIONS = {".gif": "GIF", ".webp": "WEBP", ".png": "PNG"}
SMALLEST = 128
FRAME_MS = 120
PAUSE_MS = 900


def change(before: Tensor, after: Tensor) -> Image.Image:
    """Draws what changed from one image ``(C, H, W)`` to another: red was added, blue taken away.

    The scale is fixed: full red is a change of 1 in the mean over channels, white is none.
    """
    d = (after - before).detach().cpu().float().mean(0).clamp(-1, 1)
    red, blue = 1 + d.clamp(max=0), 1 - d.clamp(min=0)
    pixels = torch.stack([red, 1 - d.abs(), blue], dim=2)
    return Image.fromarray((pixels * 255).round().byte().numpy())


def animation(
    e: "Explanation", path: str | Path, row: int = 0, generator: Generator | None = None
) -> None:
    """Writes the path of one image as an animated GIF, WEBP or PNG.

    Arguments:
        e: The explanation, made with ``keep_path=True`` to show the way.
        path: The file.
        row: Which image.
        generator: Decodes the iterates.
    """
    _images_only(e)
    kind = ANIMATIONS.get(Path(path).suffix.lower())
    if kind is None:
        raise InputError(
            f"an animation is written as {', '.join(ANIMATIONS)}, got `{Path(path).name}`."
        )
    x, _, _ = frames(e, row, generator)
    shown = [_enlarged(picture(frame)) for frame in x]
    times = [PAUSE_MS, *[FRAME_MS] * (len(shown) - 2), PAUSE_MS]
    with atomic(path) as temporary:
        shown[0].save(
            temporary,
            format=kind,
            save_all=True,
            append_images=shown[1:],
            duration=times[: len(shown)],
            loop=0,
        )


def figure(e: "Explanation", rows: Sequence[int] | None = None) -> Any:  # noqa: ANN401 - a figure of matplotlib, which is not required
    """Draws images, reconstructions, counterfactuals and what changed, for some of the images.

    Arguments:
        e: The explanation.
        rows: Which images; the first ten when not given.
    """
    _images_only(e)
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra(
            "figures need matplotlib, which is not installed. Run `pip install "
            "'leapfactual[plot]'`."
        ) from error

    class Shown(Figure):
        """Is a figure that notebooks show."""

        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png")
            return buffer.getvalue()

    chosen = list(range(min(10, len(e)))) if rows is None else list(rows)
    lines = ("image", "as the generator\nsees it", "counterfactual", "what changed")
    drawn = Shown(figsize=(1.0 * len(chosen) + 1.2, 1.1 * len(lines)), layout="constrained")
    axes = drawn.subplots(len(lines), len(chosen), squeeze=False)
    for column, row in enumerate(chosen):
        shown = (
            picture(e.x[row]),
            picture(e.reconstruction[row]),
            picture(e.counterfactual[row]),
            change(e.reconstruction[row], e.counterfactual[row]),
        )
        for line, image in enumerate(shown):
            axes[line][column].imshow(image, cmap="gray", vmin=0, vmax=255)
            axes[line][column].set_xticks([])
            axes[line][column].set_yticks([])
        axes[0][column].set_title(f"{e.source[row]} → {e.target[row]}", fontsize=8)
    for line, name in enumerate(lines):
        axes[line][0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
    return drawn


def thumbnails(e: "Explanation", most: int = 8) -> str:
    """Returns a small table of HTML for notebooks: images before and after, with the reason."""
    lines = []
    for row in range(min(most, len(e))):
        cells = ""
        if e.x.ndim == 4:
            for image, name in (
                (picture(e.x[row]), "image"),
                (picture(e.counterfactual[row]), "counterfactual"),
                (change(e.reconstruction[row], e.counterfactual[row]), "what changed"),
            ):
                image.thumbnail((SMALLEST, SMALLEST))
                cells += (
                    f'<td><img src="{uri(image)}" alt="{name}" title="{name}" '
                    'style="width:72px;image-rendering:pixelated"></td>'
                )
        lines.append(f"<tr>{cells}<td>{html.escape(e.reason[row])}</td></tr>")
    rest = f"<p>and {len(e) - most} more</p>" if len(e) > most else ""
    return f"<p>{html.escape(repr(e))}</p><table>{''.join(lines)}</table>{rest}"


def _enlarged(image: Image.Image) -> Image.Image:
    factor = max(1, -(-SMALLEST // max(image.size)))
    return image.resize(
        (image.width * factor, image.height * factor), Image.Resampling.NEAREST
    ).convert("RGB")


def _images_only(e: "Explanation") -> None:
    if e.x.ndim != 4:
        raise InputError("rows of numbers have no picture. Use to_frame() or report().")
