"""Demo on digits: explains MNIST with what the package ships, in seconds, and writes a page."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from ..explanation import Explanation
from ..files import atomic
from ..jobs.job import typicality
from ..leaps import Stage, describe
from ..metrics import METRICS, oracle_validity
from ..pretrained import PLAN, RELIABLE_PLAN, Pretrained, load
from ..report import cards, tables, write_page
from ..report.figures import can_draw, save, sheet, show, show_change

PLANS: dict[str, tuple[Stage, ...]] = {
    "counterfactual": PLAN,
    "reliable counterfactual": RELIABLE_PLAN,
}
# What the page calls them.
NAMES = ("nearest", "reliable")
MEASURED = ("validity", "L1", "queries", "milliseconds")
SHARES = ("validity", "oracle")
# How many of the 200 digits the page shows: all of them would make it large.
SHOWN = 60


def run(out: Path, command: str, progress: Callable[[float, str], None]) -> list[tables.Row]:
    """Explains the shipped digits with two plans; writes a page and a table, returns its rows.

    Where matplotlib is installed it draws figures too.

    Arguments:
        out: The folder to write to.
        command: How the demo was called, for the record.
        progress: Called with the share that is done and what is going on.
    """
    progress(0.0, "loading")
    shipped = load()
    x = shipped.digits.images
    target = torch.randint(10, (len(x),), generator=torch.Generator().manual_seed(0))
    oracle = oracle_validity(shipped.oracle)
    rows, found = [], {}
    for n, (name, plan) in enumerate(PLANS.items()):
        progress((n + 0.5) / 4, f"explaining {len(x)} digits: {name}")
        explainer = shipped.bundle.explainer(shipped.classifier, plan=plan, keep_path=True)
        e = found[name] = explainer.explain(x, target)
        for metric in (*(METRICS[m] for m in MEASURED), oracle):
            rows.append(tables.row("200 digits", name, metric.name, [metric.mean(e)]))
    progress(0.6, "explaining a digit of each class towards every class")
    first = torch.stack([(shipped.digits.labels == n).nonzero()[0, 0] for n in range(10)])
    explainer = shipped.bundle.explainer(shipped.classifier)
    every = torch.arange(10).repeat(10)
    grid = explainer.explain(x[first].repeat_interleave(10, 0), every)
    if can_draw():
        progress(0.8, "drawing")
        draw_changes(list(found.values()), out / "changes.png")
        draw_grid(grid, out / "grid.png")
    plain, reliable = found.values()
    write_cards(shipped, plain, reliable, rows, out / "index.html")
    tables.write(out / "demo.json", rows, seed=0, command=command)
    with atomic(out / "demo.md") as temporary:
        temporary.write_text(tables.pivot(rows) + "\n")
    progress(1.0, "done")
    return rows


def write_cards(
    shipped: Pretrained,
    plain: Explanation,
    reliable: Explanation,
    rows: Sequence[tables.Row],
    path: Path,
) -> None:
    """Writes the page, with digits whose class had to change, evenly spaced."""
    bundle = shipped.bundle
    crossed = (plain.source != plain.target).nonzero()[:, 0]
    chosen = crossed[torch.linspace(0, len(crossed) - 1, SHOWN).long()]
    near, far = plain[chosen], reliable[chosen]
    typical = [
        typicality(bundle.generator, bundle.flow, e.counterfactual, e.target) for e in (near, far)
    ]
    answers = [shipped.oracle(e.counterfactual).argmax(1) for e in (near, far)]
    made = cards(
        near,
        names=[f"test digit {n}" for n in chosen.tolist()],
        typicality=typical[0],
        oracle=answers[0],
        reliable=far,
        reliable_typicality=typical[1],
        reliable_oracle=answers[1],
        generator=bundle.generator,
    )
    write_page(
        path,
        made,
        title="What would have had to be different?",
        about=f"{SHOWN} of {len(plain)} handwritten digits, as {bundle.classifier_name} sees "
        "them. The nearest counterfactual lies just across the decision boundary; the reliable "
        "one goes on into the class. An oracle, a second classifier that was trained on its own, "
        "was asked what it says of both.",
        classes=bundle.classes,
        table=summary(rows, len(plain)),
        plans=[
            (f"{name} counterfactual", describe(plan))
            for name, plan in zip(NAMES, PLANS.values(), strict=True)
        ],
    )


def summary(rows: Sequence[tables.Row], count: int) -> list[list[str]]:
    """Returns the table at the top of the page: shares as counts, and means of the rest."""
    table = [[f"all {count}", *NAMES]]
    for metric in dict.fromkeys(row.metric for row in rows):
        means = [row.mean for row in rows if row.metric == metric]
        if metric in SHARES:
            table.append([metric, *(f"{round(count * mean)} of {count}" for mean in means)])
        else:
            table.append([f"mean {metric}", *(f"{mean:.3g}" for mean in means)])
    return table


def draw_changes(found: Sequence[Explanation], path: Path, columns: int = 12) -> None:
    """Draws digits, their counterfactuals and what changed: red was added, blue taken away."""
    plain, reliable = found
    crossed = (plain.source != plain.target).nonzero()[:, 0]
    chosen = crossed[torch.linspace(0, len(crossed) - 1, columns).long()]
    lines = (
        ("digit", None, plain.x),
        ("as the generator\nsees it", None, plain.reconstruction),
        ("counterfactual", None, plain.counterfactual),
        ("what changed", plain.reconstruction, plain.counterfactual),
        ("reliable\ncounterfactual", None, reliable.counterfactual),
        ("what changed", reliable.reconstruction, reliable.counterfactual),
    )
    figure, axes = sheet(len(lines), columns)
    for row, (name, before, after) in zip(axes, lines, strict=True):
        row[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=7)
        for axis, n in zip(row, chosen.tolist(), strict=True):
            if before is None:
                show(axis, after[n])
            else:
                show_change(axis, before[n], after[n])
    for axis, n in zip(axes[0], chosen.tolist(), strict=True):
        axis.set_title(f"{plain.source[n]} → {plain.target[n]}", fontsize=8)
    save(figure, path)


def draw_grid(found: Explanation, path: Path) -> None:
    """Draws one digit of each class and its counterfactuals in every class."""
    figure, axes = sheet(10, 11)
    for n, row in enumerate(axes):
        show(row[0], found.x[10 * n])
        row[0].set_ylabel(str(n), rotation=0, ha="right", va="center", fontsize=8)
        for k, axis in enumerate(row[1:]):
            valid = bool(found.valid[10 * n + k])
            show(axis, found.counterfactual[10 * n + k], None if valid else "tab:red")
    for axis, title in zip(axes[0], ("digit", *(f"to {k}" for k in range(10))), strict=True):
        axis.set_title(title, fontsize=8)
    save(figure, path)
