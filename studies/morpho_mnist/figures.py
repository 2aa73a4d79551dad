"""The figures: methods × targets, all targets of all digits, failures, effects."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leapfactual.classifiers import from_logits
from leapfactual.explainer import Explainer
from leapfactual.explanation import Explanation
from leapfactual.metrics import morphology_errors
from leapfactual.report import tables
from leapfactual.report.figures import save, sheet, show

from .comparison import explainers
from .training import Parts, Settings

LEGEND = "red frame: the classifier does not say target; orange: the oracle does not"
INVALID, DISPUTED = "tab:red", "tab:orange"
METRICS = {"ACC": "tab:blue", "oracle": "tab:green", "L1": "tab:gray"}
CURVES = ("N_b", "gamma_b", "N_i", "tightening")


def draw(
    parts: Parts,
    x: Tensor,
    target: Tensor,
    settings: Settings,
    rows: Sequence[tables.Row],
    out: Path,
) -> None:
    """Draws all figures from the parts of one seed and the rows of the study.

    Arguments:
        parts: The parts of one seed.
        x: Test digits.
        target: Their targets in the table, for the failures.
        settings: The study's settings.
        rows: The study's rows, for the effects.
        out: The folder to write to.
    """
    methods = explainers(parts, settings)
    digits = one_of_each(parts, x)
    draw_methods(parts, methods, digits[7:8], out / "methods.png")
    ours = methods["ours", "LeapFactual_R"]
    draw_targets(parts, ours, digits, out / "targets.png")
    draw_failures(parts, ours.explain(x[:2000], target[:2000]), out / "failures.png")
    draw_effects(rows, out / "effects.png")


@torch.no_grad()
def one_of_each(parts: Parts, x: Tensor) -> Tensor:
    """Returns a digit of each class, if possible one whose class survives the generator."""
    x = x[:1000]
    classify = from_logits(parts.network)
    seen, kept = classify(x).argmax(1), classify(parts.vae.decode(parts.vae.encode(x))).argmax(1)
    rows = []
    for n in range(10):
        rows.append((2 * (seen == n) + (kept == n)).argmax())
    return x[torch.stack(rows)]


def draw_methods(
    parts: Parts, methods: Mapping[tuple[str, str], Explainer], digit: Tensor, path: Path
) -> None:
    """Draws one digit turned into each class by each method."""
    lines = []
    for (setting, method), explainer in methods.items():
        found = explainer.explain(digit.expand(10, -1, -1, -1), torch.arange(10).to(digit.device))
        lines.append((f"{method}\n({setting})", found))
    _sheet(parts, lines, path)


def draw_targets(parts: Parts, explainer: Explainer, digits: Tensor, path: Path) -> None:
    """Draws one digit of each class turned into each class."""
    target = torch.arange(10, device=digits.device).repeat(len(digits))
    found = explainer.explain(digits.repeat_interleave(10, 0), target)
    lines = [(f"from {n}", found[10 * n : 10 * n + 10]) for n in range(len(digits))]
    _sheet(parts, lines, path)


def _sheet(parts: Parts, lines: Sequence[tuple[str, Explanation]], path: Path) -> None:
    figure, axes = sheet(len(lines), 12, LEGEND)
    for row, (name, found) in zip(axes, lines, strict=True):
        disputed = _disputed(parts, found)
        show(row[0], found.x[0])
        show(row[1], found.reconstruction[0])
        row[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=7)
        for n in range(10):
            colour = INVALID if not found.valid[n] else DISPUTED if disputed[n] else None
            show(row[n + 2], found.counterfactual[n], colour)
    for axis, title in zip(axes[0], ("input", "g(z)", *map(str, range(10))), strict=True):
        axis.set_title(title, fontsize=7)
    save(figure, path)


def draw_failures(parts: Parts, found: Explanation, path: Path, columns: int = 12) -> None:
    """Draws what went wrong: not reached, disputed by the oracle, or with strokes much changed."""
    disputed = _disputed(parts, found)
    crossed = found.source != found.target
    strokes = morphology_errors(found)["D(thickness)"].to(found.z.device)
    most = strokes.where(crossed & strokes.isfinite(), 0.0).argsort(descending=True)
    found_in = {
        "not reached": (crossed & ~found.valid).nonzero()[:, 0],
        "oracle disagrees": (crossed & found.valid & disputed).nonzero()[:, 0],
        "thickness most changed": most,
    }
    groups = [(name, rows) for name, rows in found_in.items() if len(rows)]
    figure, axes = sheet(2 * len(groups), columns)
    for n, (name, rows) in enumerate(groups):
        axes[2 * n][0].set_ylabel(f"{name}:\ng(z)", rotation=0, ha="right", fontsize=7)
        axes[2 * n + 1][0].set_ylabel("counterfactual", rotation=0, ha="right", fontsize=7)
        for column in range(columns):
            before, after = axes[2 * n][column], axes[2 * n + 1][column]
            if column >= len(rows):
                before.spines[:].set_visible(False)
                after.spines[:].set_visible(False)
                continue
            row = int(rows[column])
            show(before, found.reconstruction[row])
            show(after, found.counterfactual[row])
            before.set_title(f"{found.source[row]} → {found.target[row]}", fontsize=7)
    save(figure, path)


def draw_effects(rows: Sequence[tables.Row], path: Path) -> None:
    """Draws ACC, the oracle's agreement and the L1 distance against each setting."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3 * len(CURVES), 2.6), layout="constrained")
    for n, effect in enumerate(CURVES):
        axis = figure.add_subplot(1, len(CURVES), n + 1)
        beside = axis.twinx()
        for metric, colour in METRICS.items():
            picked = [r for r in rows if r.setting == f"effect of {effect}" and r.metric == metric]
            values = [float(r.method) for r in picked]
            where: Any = beside if metric == "L1" else axis
            errors = [r.sem or 0.0 for r in picked]
            where.errorbar(values, [r.mean for r in picked], errors, color=colour, label=metric)
        axis.set_xlabel(effect)
        axis.set_ylim(0, 1.02)
        beside.set_ylim(0, None)
        if n == 0:
            axis.set_ylabel("share")
            figure.legend(loc="outside upper center", ncols=3, fontsize=8)
    save(figure, path)


@torch.no_grad()
def _disputed(parts: Parts, found: Explanation) -> Tensor:
    return from_logits(parts.oracle)(found.counterfactual).argmax(1) != found.target
