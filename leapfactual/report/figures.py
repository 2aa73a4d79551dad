"""Explanations as pictures: the change map, an animation, thumbnails for a notebook, figures.

Figures are matplotlib's, which is imported where it is used.
"""

import html
import io
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import Tensor

from .. import checks
from ..errors import InputError
from ..extras import require
from ..files import atomic
from ..imaging import to_pil
from ..types import Generator
from .cards import data_uri, frames
from .colors import CHANGE_COLORS, PHOTO_SIDE, full_change

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..explanation import Explanation

FORMATS = {".gif": "GIF", ".webp": "WEBP", ".png": "PNG"}
# Digits of 28 pixels are hardly visible at their own size.
MIN_SIDE = 128
FRAME_MS = 120
PAUSE_MS = 900
MAX_COLUMNS = 10
MAX_THUMBNAILS = 8


def change_map(before: Tensor, after: Tensor) -> Image.Image:
    r"""Draws what changed from one image ``(C, H, W)`` to another: red added, blue taken away.

    The colours are those of :data:`leapfactual.report.colors.CHANGE_COLORS`. The scale is fixed: a
    mean absolute change :math:`|d|` over the channels has :math:`|d|` of the full colour, four
    times as much in photographs, and none is white. Where channels change against each other, such
    as from green to brown, red and blue turn into violet.
    """
    d = (after - before).detach().cpu().float()
    size = d.abs().mean(0)[..., None]
    balance = d.mean(0)[..., None] / size.clamp_min(1e-9)
    less, none, more, other = (torch.tensor([*bytes.fromhex(c[1:])]) for c in CHANGE_COLORS)
    full = other + balance.abs() * (torch.where(balance < 0, less, more) - other)
    pixels = none + (size / full_change(*d.shape[-2:])).clamp(max=1) * (full - none)
    return Image.fromarray(pixels.round().byte().numpy())


def write_animation(
    e: "Explanation", path: str | Path, row: int = 0, generator: Generator | None = None
) -> None:
    """Writes the path of one image as an animated GIF, WEBP or PNG.

    Arguments:
        e: The explanation, made with ``keep_path=True`` to show its iterates.
        path: The file.
        row: Which image.
        generator: Decodes the iterates. Without it the animation shows the two ends.
    """
    _check_images(e)
    kind = FORMATS.get(checks.path(path).suffix.lower())
    if kind is None:
        raise InputError(
            f"an animation is written as {', '.join(FORMATS)}, got `{Path(path).name}`."
        )
    x, _, _ = frames(e, row, generator)
    shown = [_enlarge(to_pil(frame)) for frame in x]
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


def thumbnails(e: "Explanation", limit: int = MAX_THUMBNAILS) -> str:
    """Returns a small table of HTML for notebooks: images before and after, with the reason.

    Arguments:
        e: The explanation.
        limit: How many images to show at most.
    """
    lines = []
    for row in range(min(limit, len(e))):
        cells = ""
        if e.x.ndim == 4:
            for image, name in (
                (to_pil(e.x[row]), "image"),
                (to_pil(e.counterfactual[row]), "counterfactual"),
                (change_map(e.reconstruction[row], e.counterfactual[row]), "what changed"),
            ):
                image.thumbnail((MIN_SIDE, MIN_SIDE))
                photo = max(image.size) >= PHOTO_SIDE
                style = (
                    f"width:{image.width}px" if photo else "width:72px;image-rendering:pixelated"
                )
                cells += (
                    f'<td><img src="{data_uri(image)}" alt="{name}" title="{name}" '
                    f'style="{style}"></td>'
                )
        lines.append(f"<tr>{cells}<td>{html.escape(e.reason[row])}</td></tr>")
    rest = f"<p>and {len(e) - limit} more</p>" if len(e) > limit else ""
    return f"<p>{html.escape(repr(e))}</p><table>{''.join(lines)}</table>{rest}"


# -- with matplotlib --


def can_draw() -> bool:
    """Returns whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def require_matplotlib() -> None:
    """Checks that matplotlib is installed, before any work is done, and says how to get it."""
    require("matplotlib", extra="plot", subject="figures need")


def figure(e: "Explanation", rows: Sequence[int] | None = None) -> Any:  # noqa: ANN401 - a figure of matplotlib, which is not required
    """Draws images, reconstructions, counterfactuals and what changed, for some of the images.

    Arguments:
        e: The explanation.
        rows: Which images. Defaults to the first ten.
    """
    _check_images(e)
    require_matplotlib()
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        """Figure that notebooks show."""

        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png")
            return buffer.getvalue()

    chosen = list(range(min(MAX_COLUMNS, len(e)))) if rows is None else list(rows)
    lines = ("image", "as the generator\nsees it", "counterfactual", "what changed")
    size = (1.0 * len(chosen) + 1.2, 1.1 * len(lines))
    drawn = NotebookFigure(figsize=size, layout="constrained")
    axes = drawn.subplots(len(lines), len(chosen), squeeze=False)
    for column, row in enumerate(chosen):
        shown = (
            to_pil(e.x[row]),
            to_pil(e.reconstruction[row]),
            to_pil(e.counterfactual[row]),
            change_map(e.reconstruction[row], e.counterfactual[row]),
        )
        for line, image in enumerate(shown):
            axes[line][column].imshow(image, cmap="gray", vmin=0, vmax=255)
            axes[line][column].set_xticks([])
            axes[line][column].set_yticks([])
        names = (e.name(e.source[row]), e.name(e.target[row]))
        axes[0][column].set_title(" →\n".join(names), fontsize=8)
    for line, name in enumerate(lines):
        axes[line][0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
    return drawn


def sheet(rows: int, columns: int, legend: str = "") -> tuple[Any, list[list["Axes"]]]:
    """Returns a figure of matplotlib and its empty panels, row by row.

    Arguments:
        rows: How many rows of panels.
        columns: How many panels to a row.
        legend: What to write below.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(0.6 * columns + 1.2, 0.68 * rows + 0.4), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])
    if legend:
        figure.supxlabel(legend, fontsize=7)
    return figure, axes.tolist()


def show(axis: "Axes", image: Tensor, frame: str | None = None) -> None:
    """Draws an image ``(C, H, W)`` in [0, 1], grey or in colour, into a panel.

    Arguments:
        axis: The panel.
        image: The image.
        frame: The colour of a frame around it, if there is to be one.
    """
    if image.shape[0] == 3:
        axis.imshow(image.clamp(0, 1).permute(1, 2, 0).cpu().numpy())
    else:
        axis.imshow(image[0].cpu().numpy(), cmap="gray", vmin=0, vmax=1)
    if frame is not None:
        axis.spines[:].set(color=frame, linewidth=2)


def show_change(axis: "Axes", before: Tensor, after: Tensor) -> None:
    """Draws the :func:`change_map` of two images ``(C, H, W)`` into a panel."""
    axis.imshow(change_map(before, after))


def save(figure: Any, path: Path) -> None:  # noqa: ANN401 - a figure
    """Writes a figure as PNG, or, for photographs, as JPEG, by the ending of the path."""
    kind = path.suffix.removeprefix(".")
    options = {"quality": 90} if kind == "jpg" else {}
    with atomic(path) as temporary:
        figure.savefig(temporary, format=kind, dpi=150, pil_kwargs=options)


def _enlarge(image: Image.Image) -> Image.Image:
    factor = max(1, -(-MIN_SIDE // max(image.size)))
    photo = max(image.size) >= PHOTO_SIDE
    how = Image.Resampling.BICUBIC if photo else Image.Resampling.NEAREST
    return image.resize((image.width * factor, image.height * factor), how).convert("RGB")


def _check_images(e: "Explanation") -> None:
    if e.x.ndim != 4:
        raise InputError("rows of numbers have no picture. Use to_frame() or report().")
