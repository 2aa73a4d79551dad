"""What the studies' figures share: sheets of small images, files."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..errors import MissingExtra
from ..files import atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def require_matplotlib() -> None:
    """Says how to get matplotlib, before any work is done, where it is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            "the figures need matplotlib, which is not installed. Run `pip install "
            "'leapfactual[plot]'`."
        ) from error


def sheet(rows: int, columns: int, legend: str = "") -> tuple[Any, list[list["Axes"]]]:
    """Returns a figure and its empty panels, row by row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(0.6 * columns + 1.2, 0.68 * rows + 0.4), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])
    if legend:
        figure.supxlabel(legend, fontsize=7)
    return figure, axes.tolist()


def show(
    axis: "Axes", image: Tensor, frame: str | None = None, colours: str | None = None
) -> None:
    """Draws an image ``(C, H, W)``, grey or coloured.

    Arguments:
        axis: Where.
        image: The image, in [0, 1], or in [-1, 1] with ``colours``.
        frame: The colour of a frame around it.
        colours: The colours of a change, from -1 to 1.
    """
    pixels = image[0].cpu().numpy()
    if image.shape[0] == 3:
        axis.imshow(image.clamp(0, 1).permute(1, 2, 0).cpu().numpy())
    elif colours is None:
        axis.imshow(pixels, cmap="gray", vmin=0, vmax=1)
    else:
        axis.imshow(pixels, cmap=colours, vmin=-1, vmax=1)
    if frame is not None:
        axis.spines[:].set(color=frame, linewidth=2)


def save(figure: Any, path: Path) -> None:  # noqa: ANN401 - a figure
    """Writes a figure as PNG, or, for photographs, as JPEG, by the ending of the path."""
    kind = path.suffix.removeprefix(".")
    finely = {"quality": 90} if kind == "jpg" else {}
    with atomic(path) as temporary:
        figure.savefig(temporary, format=kind, dpi=150, pil_kwargs=finely)
