"""The study's pictures: many faces before and after, the worst of them, where they change."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from leapfactual.alternatives import Alternatives
from leapfactual.demos.faces.album import Album, Line, write_sheet
from leapfactual.demos.faces.demo import PLAN, RELIABLE_PLAN
from leapfactual.demos.faces.identity import SAME
from leapfactual.demos.faces.portraits import CLASSES
from leapfactual.explanation import Explanation
from leapfactual.leaps import Stage
from leapfactual.masks import Change

from .sampling import LabeledFaces
from .tables import Measurements, Setup

COLUMNS = 8
MAX_FACES = 64


def explain_small(
    setup: Setup,
    faces: LabeledFaces,
    rows: Tensor,
    plan: Sequence[Stage] = PLAN,
    mask: Tensor | None = None,
) -> Explanation:
    """Explains some faces again, and keeps small pictures only."""
    album = Album(setup.gan)
    explainer = setup.explainer(plan, mask)
    parts = []
    for part in torch.split(rows, setup.batch_size):
        w, target = faces.w[part], 1 - faces.p[part].argmax(1)
        e = explainer.explain(setup.gan.decode(w), target, w)
        parts.append(album.shrink(e).to("cpu"))
    return Explanation.cat(parts)


def draw_many(setup: Setup, faces: LabeledFaces, path: Path) -> None:
    """Draws the first faces of both classes, and below each its counterfactual."""
    label = faces.p.argmax(1)
    lines = []
    for k in range(len(CLASSES)):
        rows = (label == k).nonzero()[: MAX_FACES // 2, 0]
        if not len(rows):
            continue
        e = explain_small(setup, faces, rows)
        for first in range(0, len(e), COLUMNS):
            part = e[first : first + COLUMNS]
            frames = [None if valid else "red" for valid in part.valid.tolist()]
            lines += [
                Line(CLASSES[k], part.x),
                Line(f"made\n{CLASSES[1 - k]}", part.counterfactual, frames),
            ]
    write_sheet(lines, path, side=128)


def draw_worst(setup: Setup, faces: LabeledFaces, measured: Measurements, path: Path) -> None:
    """Draws what went wrong: not reached, disputed by the oracle, another person, changed most."""
    changed = measured.of(next(name for name in measured.values if name.startswith("LPIPS")))
    distance = measured.of("identity distance")
    found = {
        "not reached": (measured.of("ACC") == 0).nonzero()[:, 0],
        "the oracle\ndisagrees": (measured.of("oracle") == 0).nonzero()[:, 0],
        "another person": distance.argsort(descending=True)[: (distance >= SAME).sum()],
        "changed most": changed.argsort(descending=True),
    }
    lines = []
    for title, rows in found.items():
        if len(rows):
            e = explain_small(setup, faces, rows[:COLUMNS].to(faces.w.device))
            lines += [Line(f"{title}:\nbefore", e.x), Line("after", e.counterfactual)]
    write_sheet(lines, path)


def draw_masks(
    setup: Setup, faces: LabeledFaces, change: Change, mask: Tensor, path: Path
) -> None:
    """Draws where faces change on average, and counterfactuals everywhere and in a mask."""
    rows = torch.arange(min(COLUMNS - 2, len(faces.w)), device=faces.w.device)
    free, kept = explain_small(setup, faces, rows), explain_small(setup, faces, rows, mask=mask)
    mean = change.mean.float()
    maps = torch.stack([mean / mean.max(), mask[0].to(mean)])[:, None]
    write_sheet(
        [
            Line("change, mask", maps),
            Line("face", free.x),
            Line("counterfactual", free.counterfactual),
            Line("in the mask", kept.counterfactual),
        ],
        path,
    )


def draw_alternatives(found: Alternatives, path: Path) -> None:
    """Draws faces, and below each its counterfactuals."""
    first = [e[:COLUMNS] for e in found.each()]
    lines = [Line("face", first[0].x)]
    for n, e in enumerate(first):
        frames = [None if valid else "red" for valid in e.valid.tolist()]
        lines.append(Line(f"counterfactual {n + 1}", e.counterfactual, frames))
    write_sheet(lines, path)


def draw(
    setup: Setup,
    faces: LabeledFaces,
    measured: Mapping[str, Measurements],
    mask: Tensor,
    out: Path,
) -> None:
    """Draws what one run shows."""
    draw_many(setup, faces, out / "many.jpg")
    draw_worst(setup, faces, measured["LeapFactual"], out / "worst.jpg")
    draw_masks(setup, faces, measured["LeapFactual"].change, mask, out / "masks.jpg")
    rows = torch.arange(min(COLUMNS, len(faces.w)), device=faces.w.device)
    near, far = (explain_small(setup, faces, rows, plan) for plan in (PLAN, RELIABLE_PLAN))
    write_sheet(
        [
            Line("face", near.x),
            Line("counterfactual", near.counterfactual),
            Line("reliable", far.counterfactual),
        ],
        out / "reliable.jpg",
    )
