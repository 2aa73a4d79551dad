r"""The toy study: lifting, landing, replacement, blending and injection on four squares.

A flow is trained between the uniform unit square (t = 0) and the four squares of
:mod:`leapfactual.data.squares` (t = 1). The study draws the five panels of the paper's figure and
measures what they show:

- *replacement* (step sizes 1 and 1) keeps the relative position: how far does it move?
- *blending* (:math:`\gamma, \gamma`) gives :math:`z = \alpha c_s + (1 - \alpha) c_t + r`: which
  :math:`\alpha`, and how large is what the formula leaves over?
- *injection* (:math:`0, \gamma`) within a class gives :math:`z = (1 + \alpha) c_t + (1 - \alpha)
  r`: likewise.

Both have an exact side. Two uniform squares have only one monotone map between them, coordinate by
coordinate, so full replacement must keep :math:`r`, and full injection must have :math:`\alpha =
1/2`. :class:`SquaresField` is the exact velocity; its numbers stand beside those of the trained
flow.

Where paper and published code differ: the paper's text conditions on the class; the code feeds its
index as one number, we a one-hot row. Step sizes of the panels, training steps and rate are the
code's; the text does not give them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leapfactual.bases import Uniform
from leapfactual.data import squares
from leapfactual.errors import InputError
from leapfactual.explainer import LeapFactual
from leapfactual.explanation import Explanation
from leapfactual.fields import MLPField, VelocityField, expand_time
from leapfactual.files import atomic
from leapfactual.flow import Flow
from leapfactual.generators import Identity
from leapfactual.leaps import blend, inject, leap
from leapfactual.report import tables as results
from leapfactual.report.figures import require_matplotlib, save
from leapfactual.report.tables import Row
from leapfactual.solvers import RK4
from leapfactual.training import embed, fit
from leapfactual.training.loop import Epoch

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from mpl_toolkits.mplot3d import Axes3D

BLUE, YELLOW, GREEN, RED = range(4)
GAMMAS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
PLAN = (blend(8, 0.1), inject(3, lift=0.0, land=0.1))
SIDE = 2 * squares.HALF
STEPS_PER_EPOCH = 300
EXACT_STEPS = 200  # the exact velocity has kinks, at which RK4 loses its order
POINTS = 4_000  # measured per number: the standard error of a share is at most 0.8 %


@dataclass(frozen=True)
class Settings:
    """How to train and how often. Defaults to the published code's values."""

    steps: int = 30_000
    batch_size: int = 256
    width: int = 64
    depth: int = 3
    learning_rate: float = 1e-3
    runs: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < STEPS_PER_EPOCH or self.steps % STEPS_PER_EPOCH:
            raise InputError(
                f"`steps` must be a multiple of {STEPS_PER_EPOCH}, got {self.steps}. "
                "The published code takes 30,000."
            )


SMOKE = Settings(steps=6_000, runs=1)


class SquaresField(VelocityField):
    r"""Creates the exact velocity field from the unit square to the four squares.

    It holds inside the path's support.

    Given :math:`z = (1 - t) z_0 + t z_1`, the pair :math:`(z_0, z_1)` is uniform on a segment,
    coordinate by coordinate, so the mean of :math:`z_1 - z_0` is its value at the segment's
    middle.
    """

    def __init__(self) -> None:
        super().__init__(2, 4)

    def forward(self, t: Tensor, z: Tensor, c: Tensor) -> Tensor:
        """See :meth:`VelocityField.forward`."""
        t = expand_time(t, z).clamp(1e-9, 1 - 1e-9)
        centre, half, edge = c @ z.new_tensor(squares.CENTRES), squares.HALF, 0.5
        z0 = _middle(
            (z - t * (centre + half)) / (1 - t), (z - t * (centre - half)) / (1 - t), edge
        )
        z1 = (
            _middle((z - (1 - t) * edge) / t - centre, (z + (1 - t) * edge) / t - centre, half)
            + centre
        )
        return z1 - z0

    def config(self) -> dict[str, object]:
        """See :meth:`VelocityField.config`."""
        return {}


def _middle(low: Tensor, high: Tensor, edge: float) -> Tensor:
    return (low.clamp_min(-edge) + high.clamp_max(edge)) / 2


def run(
    out: Path, settings: Settings, command: str, progress: Callable[[float, str], None]
) -> list[Row]:
    """Trains the flows, draws the figures, writes and returns the numbers.

    Arguments:
        out: The folder to write to. An interrupted run resumes where it stopped.
        settings: How to train.
        command: How the study was called, for the record.
        progress: Called with the share that is done and what is going on.
    """
    require_matplotlib()
    out.mkdir(parents=True, exist_ok=True)
    checkpoints = [
        out / f"squares-{settings.steps}-{settings.seed + n}.checkpoint.safetensors"
        for n in range(settings.runs)
    ]
    flows = []
    for n, checkpoint in enumerate(checkpoints):
        flows.append(
            train(settings, settings.seed + n, checkpoint, _share(progress, n, settings.runs))
        )
    rows = measure(flows)
    flows[0].save(out / "squares.safetensors")
    draw_panels(flows[0], out / "squares.png")
    draw_alphas(rows, out / "alphas.png")
    results.write(out / "squares.json", rows, seed=settings.seed, command=command)
    with atomic(out / "squares.md") as temporary:
        temporary.write_text(results.markdown(rows) + "\n")
    for checkpoint in checkpoints:
        checkpoint.unlink(missing_ok=True)
    return rows


def _share(progress: Callable[[float, str], None], n: int, runs: int) -> Callable[[Epoch], None]:
    def show(epoch: Epoch) -> None:
        progress(
            (n + epoch.number / epoch.of) / runs, f"flow {n + 1} of {runs}, loss {epoch.loss:.4f}"
        )

    return show


def train(
    settings: Settings, seed: int, checkpoint: Path, on_epoch: Callable[[Epoch], None]
) -> Flow:
    """Trains one flow on fresh points of the squares."""
    points, _ = squares.sample(settings.batch_size * STEPS_PER_EPOCH, seed)
    z, p = embed(points, Identity(), squares.quadrant, batch_size=4096)
    torch.manual_seed(seed)
    field = MLPField(features=2, classes=4, width=settings.width, depth=settings.depth)
    flow = Flow(field, RK4(10), base=Uniform())
    fit(
        flow,
        z,
        p,
        epochs=settings.steps // STEPS_PER_EPOCH,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        seed=seed,
        checkpoint=checkpoint,
        on_epoch=on_epoch,
    )
    return flow


# -- what the panels show, in numbers --


def measure(flows: list[Flow]) -> list[Row]:
    """Measures the trained flows, and the exact velocity where points stay in its support."""
    trained = [numbers(flow, GAMMAS) for flow in flows]
    exact = numbers(Flow(SquaresField(), RK4(EXACT_STEPS), base=Uniform()), (1.0,))
    rows = []
    for setting, metric in trained[0]:
        if (setting, metric) in exact:
            rows.append(results.row(setting, "exact velocity", metric, [exact[setting, metric]]))
        values = [run[setting, metric] for run in trained]
        rows.append(results.row(setting, "trained flow", metric, values))
    reached = [path_reached(flow) for flow in flows]
    rows.append(
        results.row("path, 8 × 0.1 / 0.1, 3 × 0 / 0.1", "trained flow", "target reached", reached)
    )
    return rows


def numbers(flow: Flow, gammas: Sequence[float]) -> dict[tuple[str, str], float]:
    """Returns the numbers of one flow, by setting and metric."""
    shift, reached = replacement(flow)
    values = {
        ("replacement, 1 / 1", "shift of r, in sides"): shift,
        ("replacement, 1 / 1", "target reached"): reached,
    }
    for gamma in gammas:
        alpha, residual = blending(flow, gamma)
        values[f"blending, {gamma:g} / {gamma:g}", "alpha"] = alpha
        values[f"blending, {gamma:g} / {gamma:g}", "residual, in sides"] = residual
    for gamma in gammas:
        alpha, residual = injection(flow, gamma)
        values[f"injection, 0 / {gamma:g}", "alpha"] = alpha
        values[f"injection, 0 / {gamma:g}", "residual, in sides"] = residual
    return values


def _pairs() -> tuple[Tensor, Tensor, Tensor]:
    """Returns points, their classes and, for each, one of the three other classes."""
    z, y = squares.sample(POINTS, seed=1_000_003)
    return z, y, (y + 1 + torch.arange(POINTS) // 4 % 3) % 4


def _leap(flow: Flow, z: Tensor, y: Tensor, target: Tensor, lift: float, land: float) -> Tensor:
    with torch.no_grad():
        return leap(flow, z, flow.one_hot(y), flow.one_hot(target), lift=lift, land=land)


def replacement(flow: Flow) -> tuple[float, float]:
    """Returns how far replacement moves the relative position and how often it arrives."""
    z, y, target = _pairs()
    r = z - squares.centres(y)
    moved = _leap(flow, z, y, target, 1, 1)
    shift = (moved - squares.centres(target) - r).norm(dim=1).mean().item() / SIDE
    return shift, (squares.quadrant(moved).argmax(1) == target).double().mean().item()


def blending(flow: Flow, gamma: float) -> tuple[float, float]:
    r"""Fits :math:`z = \alpha c_s + (1 - \alpha) c_t + r`; returns :math:`\alpha`, residual."""
    z, y, target = _pairs()
    c_s, c_t = squares.centres(y), squares.centres(target)
    return _fit_alpha(_leap(flow, z, y, target, gamma, gamma) - c_t - (z - c_s), c_s - c_t)


def injection(flow: Flow, gamma: float) -> tuple[float, float]:
    r"""Fits :math:`z = (1 + \alpha) c_t + (1 - \alpha) r`; returns :math:`\alpha`, residual."""
    z, y, _ = _pairs()
    c_t = squares.centres(y)
    return _fit_alpha(_leap(flow, z, y, y, 0, gamma) - z, c_t - (z - c_t))


def _fit_alpha(left: Tensor, right: Tensor) -> tuple[float, float]:
    """Fits ``left = alpha * right``; returns alpha and the mean distance that is left over."""
    alpha = ((left * right).sum() / right.square().sum()).item()
    return alpha, (left - alpha * right).norm(dim=1).mean().item() / SIDE


def walk(flow: Flow, z: Tensor, target: int | Tensor) -> Explanation:
    """Walks the plan of panel (e), querying the quadrant after every leap."""
    return LeapFactual(
        Identity(), squares.quadrant, flow, PLAN, batch_size=4096, keep_path=True
    ).explain(z, target)


def path_reached(flow: Flow) -> float:
    """Returns the share of points that the plan of panel (e) brings to the target class."""
    z, _, target = _pairs()
    return walk(flow, z, target).valid.double().mean().item()


# -- the figures --

COLOURS = ("tab:blue", "goldenrod", "tab:green", "tab:red")
LIFTING, LANDING = "darkturquoise", "olive"
TIMES = [n / 40 for n in range(41)]


def draw_panels(flow: Flow, path: Path) -> None:
    """Draws the five panels of the paper's figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(20, 4.6), layout="constrained")
    axes = [figure.add_subplot(1, 5, n + 1, projection="3d") for n in range(4)]
    r = torch.tensor([[-0.12, 0.10], [0.08, -0.15], [0.16, 0.14]])
    blue = squares.centres(torch.full((3,), BLUE)) + r
    _transport_panel(axes[0], flow, blue, torch.full((3,), BLUE), 1, 1)
    axes[0].set_title("(a) lifting and landing")

    r = torch.tensor([[-0.08, 0.06]])
    y = torch.tensor([GREEN, BLUE, YELLOW])
    _transport_panel(axes[1], flow, squares.centres(y) + r, y, 1, 1)
    axes[1].set_title("(b) replacement: 1 / 1")

    y = torch.tensor([GREEN, BLUE, RED])
    _transport_panel(axes[2], flow, squares.centres(y) + r, y, 0.3, 0.3)
    _interpolation(axes[2], squares.centres(y) + r, squares.centres(torch.full((3,), RED)) + r)
    axes[2].set_title("(c) blending: 0.3 / 0.3")

    _transport_panel(axes[3], flow, squares.centres(y) + r, y, 0, 1)
    _interpolation(
        axes[3], squares.centres(y) + r, 1.5 * squares.centres(torch.full((3,), RED)) + 0.5 * r
    )
    axes[3].set_title("(d) injection: 0 / 1")

    _path_panel(figure.add_subplot(1, 5, 5), flow)
    figure.suptitle(
        "Four squares: hollow points start, filled points arrive; the target is red",
        fontsize="medium",
    )
    save(figure, path)


def _transport_panel(
    axes: "Axes3D", flow: Flow, z: Tensor, y: Tensor, lift: float, land: float
) -> None:
    """Draws a leap to the red class in space: the plane is the latent's, the height is 1 - t."""
    target = flow.one_hot(torch.full_like(y, RED))
    with torch.no_grad():
        up = flow.trace(z, flow.one_hot(y), lift, TIMES[::-1])
        down = flow.trace(up[-1], target, land, TIMES)
    height = torch.tensor(TIMES)
    for centre, colour in zip(squares.CENTRES, COLOURS, strict=True):
        _outline(axes, centre, squares.HALF, colour, 0)
    _outline(axes, (0, 0), 0.5, "grey", 1)
    for n, label in enumerate(y.tolist()):
        axes.plot(*up[:, n].T, height, color=LIFTING, lw=1.5)
        axes.plot(*down[:, n].T, height.flip(0), color=LANDING, lw=1.5)
        axes.plot(*up[-1, n], 1, "o", color="black", ms=4)
        axes.plot(*z[n], 0, "o", mfc="none", mec=COLOURS[label], ms=8, mew=1.6)
        axes.plot(*down[-1, n], 0, "o", color=COLOURS[label], ms=6)
    axes.set_zticks([0, 0.5, 1], ["1", "0.5", "0"])
    axes.set_zlabel("t")
    axes.set_box_aspect((1, 1, 1.1), zoom=0.92)
    axes.view_init(22, -62)
    _ticks(axes)


def _outline(
    axes: "Axes3D", centre: tuple[float, float], half: float, colour: str, height: float
) -> None:
    x, y = centre
    corners = [
        (x - half, y - half),
        (x + half, y - half),
        (x + half, y + half),
        (x - half, y + half),
    ]
    xs, ys = zip(*corners, corners[0], strict=True)
    axes.plot(xs, ys, [height] * 5, color=colour, lw=1, alpha=0.6)


def _interpolation(axes: "Axes3D", start: Tensor, end: Tensor) -> None:
    for a, b in zip(start.tolist(), end.tolist(), strict=True):
        axes.plot([a[0], b[0]], [a[1], b[1]], [0, 0], "--", color="black", lw=0.8)


def _path_panel(axes: "Axes", flow: Flow) -> None:
    """Draws the progressive path at t = 1: circles for blending, triangles for injection."""
    from matplotlib.patches import Rectangle

    for centre, colour in zip(squares.CENTRES, COLOURS, strict=True):
        corner = (centre[0] - squares.HALF, centre[1] - squares.HALF)
        axes.add_patch(Rectangle(corner, SIDE, SIDE, color=colour, alpha=0.12, lw=0))
    y = torch.tensor([GREEN, BLUE, YELLOW])
    r = torch.tensor([[0.05, 0.08], [-0.10, 0.08], [-0.10, -0.02]])
    z = squares.centres(y) + r
    explanation = walk(flow, z, RED)
    path = explanation.path
    assert path is not None
    for n, label in enumerate(y.tolist()):
        taken = int(path.taken[n])
        blended = taken - PLAN[1].n
        points, colour = path.z[n, : taken + 1], COLOURS[label]
        end = squares.centres(torch.tensor(RED)) + r[n]
        axes.plot(*torch.stack([z[n], end]).T, "--", color=colour, lw=0.9)
        outer = 1.5 * squares.centres(torch.tensor(RED)) + 0.5 * r[n]
        axes.plot(*torch.stack([points[blended], outer]).T, ":", color=colour, lw=0.9)
        axes.plot(*points.T, color=colour, lw=0.8)
        axes.plot(*points[1 : blended + 1].T, "o", color=colour, ms=5)
        axes.plot(*points[blended + 1 :].T, "^", color=colour, ms=6)
        axes.plot(*z[n], "o", mfc="none", mec=colour, ms=8, mew=1.6)
    axes.set_aspect("equal")
    axes.set_title("(e) path: 8 × 0.1 / 0.1, then 3 × 0 / 0.1")
    _ticks(axes)


def _ticks(axes: "Axes") -> None:
    axes.set_xlim(-0.55, 0.55)
    axes.set_ylim(-0.55, 0.55)
    axes.set_xticks([-0.5, 0, 0.5])
    axes.set_yticks([-0.5, 0, 0.5])


def draw_alphas(rows: list[Row], path: Path) -> None:
    r"""Draws the fitted :math:`\alpha` of blending and injection against the step size."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    for axes, kind in zip(figure.subplots(1, 2), ("blending", "injection"), strict=True):
        chosen = [r for r in rows if r.setting.startswith(kind) and r.method == "trained flow"]
        alphas = [r for r in chosen if r.metric == "alpha"]
        axes.errorbar(
            GAMMAS,
            [r.mean for r in alphas],
            [r.sem or 0 for r in alphas],
            fmt="o-",
            ms=4,
            label="α, fitted",
        )
        left = [r.mean for r in chosen if r.metric != "alpha"]
        axes.plot(GAMMAS, left, "s:", color="grey", ms=3, label="residual, in sides")
        axes.set_xlabel("step size γ")
        axes.set_title(kind)
        axes.set_ylim(-0.05, 1.05)
        axes.legend(frameon=False)
    save(figure, path)
