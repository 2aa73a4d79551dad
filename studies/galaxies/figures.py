"""The figures: reconstructions, galaxies to every class, failures, and the curves."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leapfactual.explanation import Explanation
from leapfactual.jobs.pairs import random_targets
from leapfactual.report import tables as results
from leapfactual.report.figures import save, sheet, show

from .improvement import BASELINE, LONGER, SHARES
from .tables import three_ways
from .training import Galaxies, Parts, Settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEGEND = "red frame: the weak classifier does not say target; orange: the strong one does not"
INVALID, DISPUTED = "tab:red", "tab:orange"
WAYS = ("CE", "reliable CE", "gentle CE")
EXAMPLES_PER_CLASS = 2
MAX_FAILURES_SEARCHED = 300


def draw(parts: Parts, test_set: Galaxies, settings: Settings, out: Path) -> None:
    """Draws what can be seen: reconstructions, counterfactuals to every class, failures."""
    draw_reconstructions(test_set, out / "reconstructions.jpg")
    draw_targets(parts, test_set, settings, out / "targets.jpg")
    draw_failures(parts, test_set, settings, out / "failures.jpg")


def draw_reconstructions(test_set: Galaxies, path: Path, columns: int = 10) -> None:
    """Draws galaxies of each class and what the generator makes of them."""
    figure, axes = sheet(2 * len(test_set.classes), columns)
    for n, name in enumerate(test_set.classes):
        rows = (test_set.y == n).nonzero()[:columns, 0].tolist()
        for label, images, line in (
            (name, test_set.x, axes[2 * n]),
            ("reconstruction", test_set.reconstruction, axes[2 * n + 1]),
        ):
            _label(line[0], label)
            for axis, row in zip(line, rows, strict=False):
                show(axis, images[row])
    save(figure, path)


def draw_targets(parts: Parts, test_set: Galaxies, settings: Settings, path: Path) -> None:
    """Draws galaxies of each class turned into every other class, in three ways, side by side."""
    classes = len(test_set.classes)
    rows = torch.stack([_examples(parts, test_set, n) for n in range(classes)])
    target = torch.arange(classes, device=rows.device).repeat(rows.numel())
    x = test_set.x[rows.flatten()].repeat_interleave(classes, 0)
    found = three_ways(parts, x, target, settings)
    figure, axes = sheet(len(WAYS) * classes, EXAMPLES_PER_CLASS * (classes + 2), LEGEND)
    for n in range(classes):
        for m, name in enumerate(WAYS):
            line = axes[len(WAYS) * n + m]
            _label(line[0], name)
            for k in range(EXAMPLES_PER_CLASS):
                start = classes * (EXAMPLES_PER_CLASS * n + k)
                group = line[k * (classes + 2) : (k + 1) * (classes + 2)]
                _line(parts, group, found[name][start : start + classes], first=m == 0)
    for axis, title in zip(
        axes[0], ("input", "g(z)", *test_set.classes) * EXAMPLES_PER_CLASS, strict=True
    ):
        axis.set_title(title, fontsize=6)
    save(figure, path)


def _line(parts: Parts, line: "Sequence[Axes]", e: Explanation, first: bool) -> None:
    disputed = parts.strong(e.counterfactual).argmax(1) != e.target
    for axis in line:
        axis.spines[:].set_visible(False)
    if first:
        _reveal(line[0], e.x[0])
        _reveal(line[1], e.reconstruction[0])
    for k in range(len(e)):
        colour = INVALID if not e.valid[k] else DISPUTED if disputed[k] else None
        if e.source[k] != e.target[k]:
            _reveal(line[k + 2], e.counterfactual[k], colour)


def _reveal(axis: "Axes", image: Tensor, frame: str | None = None) -> None:
    axis.spines[:].set_visible(True)
    show(axis, image, frame)


def _examples(parts: Parts, test_set: Galaxies, n: int) -> Tensor:
    """Returns galaxies of a class, first those that stay in it when they are reconstructed."""
    kept = parts.weak(test_set.reconstruction).argmax(1) == n
    order = (2.0 * (test_set.y == n) + kept).argsort(descending=True, stable=True)
    return order[:EXAMPLES_PER_CLASS]


def draw_failures(
    parts: Parts, test_set: Galaxies, settings: Settings, path: Path, columns: int = 10
) -> None:
    """Draws what went wrong: not reached, doubted by the strong classifier, least typical."""
    x = test_set.x[:: max(1, len(test_set.x) // MAX_FAILURES_SEARCHED)]
    with torch.no_grad():
        source = parts.weak(parts.wae.decode(parts.wae.encode(x))).argmax(1)
    target = random_targets(source, len(test_set.classes), 0)
    e = three_ways(parts, x, target, settings)["reliable CE"]
    disputed = parts.strong(e.counterfactual).argmax(1) != e.target
    typicality = parts.flow.typicality(e.z_counterfactual, e.target)
    found = {
        "not reached": (~e.valid).nonzero()[:, 0],
        "strong one disagrees": (e.valid & disputed).nonzero()[:, 0],
        "least typical": typicality.argsort(),
    }
    groups = [(name, rows) for name, rows in found.items() if len(rows)]
    figure, axes = sheet(2 * len(groups), columns)
    for n, (name, rows) in enumerate(groups):
        above, below = axes[2 * n], axes[2 * n + 1]
        _label(above[0], f"{name}:\ng(z)")
        _label(below[0], "counterfactual")
        for axis in (*above[len(rows) :], *below[len(rows) :]):
            axis.spines[:].set_visible(False)
        for before, after, row in zip(above, below, rows.tolist(), strict=False):
            show(before, e.reconstruction[row])
            show(after, e.counterfactual[row])
            names = (test_set.classes[int(k[row])][:9] for k in (e.source, e.target))
            before.set_title(" → ".join(names), fontsize=5)
    save(figure, path)


def draw_curves(rows: Sequence[results.Row], name: str, path: Path) -> None:
    """Draws ACC and the strong classifier's agreement against both steps of an injection."""
    from matplotlib.figure import Figure

    settings = [s for s in dict.fromkeys(r.setting for r in rows) if s.startswith(f"{name}: γ")]
    if not settings:
        return
    counts = list(dict.fromkeys(_count(r) for r in rows if r.setting in settings))
    figure = Figure(figsize=(4 * len(settings), 3), layout="constrained")
    for n, setting in enumerate(settings):
        axis = figure.add_subplot(1, len(settings), n + 1)
        for metric, colour in (("ACC", "tab:blue"), ("ACC_r", "tab:green")):
            for m, count in enumerate(counts):
                ending = f", N_i = {count}"
                own = [
                    r
                    for r in rows
                    if r.setting == setting and r.metric == metric and r.method.endswith(ending)
                ]
                axis.plot(
                    [float(r.method.removesuffix(ending)) for r in own],
                    [r.mean for r in own],
                    color=colour,
                    alpha=(m + 1) / len(counts),
                    marker=".",
                    label=f"{metric}{ending}",
                )
        axis.set_xlabel(setting.split(": ", 1)[1])
        axis.set_ylim(0, 1.02)
    figure.axes[0].legend(fontsize=5, ncols=2)
    save(figure, path)


def _count(r: results.Row) -> str:
    return r.method.rpartition(" ")[2]


def draw_retraining(rows: Sequence[results.Row], name: str, path: Path) -> None:
    """Draws how well classifiers do that were trained with counterfactuals."""
    from matplotlib.figure import Figure

    metrics = ("ACC", "balanced ACC")
    own = {
        (r.method, r.metric): r
        for r in rows
        if r.setting == f"{name}: retraining" and r.metric in metrics
    }
    if not own:
        return
    figure = Figure(figsize=(4.4 * len(metrics), 3.4), layout="constrained")
    for n, metric in enumerate(metrics):
        axis = figure.add_subplot(1, len(metrics), n + 1)
        methods = [method for method, of in own if of == metric]
        for place, method in enumerate(methods):
            r = own[method, metric]
            axis.errorbar(r.mean, -place, xerr=r.sem or 0.0, fmt="o", color=_colour(method))
        for control, style in ((BASELINE, "-"), (LONGER, ":")):
            if (control, metric) in own:
                mean = own[control, metric].mean
                axis.axvline(mean, color="tab:gray", linewidth=0.8, linestyle=style)
        axis.set_yticks([-place for place in range(len(methods))], methods, fontsize=7)
        axis.set_xlabel(metric)
    save(figure, path)


def _colour(method: str) -> str:
    if method in (BASELINE, LONGER, "100 %", "repeated"):
        return "tab:gray"
    shares = [f", {share:.0%}" for share in SHARES]
    if not method.endswith(tuple(shares)):
        return "tab:orange"
    return "tab:green" if method.startswith("reliable") else "tab:blue"


def _label(axis: "Axes", text: str) -> None:
    axis.set_ylabel(text, rotation=0, ha="right", va="center", fontsize=6)
