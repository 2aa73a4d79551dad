"""The tables of counterfactuals: how many leaps, and how far to inject."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ...explain import LeapFactual
from ...explanation import Explanation
from ...explanation import Path as Way
from ...leaps import blend, inject
from ...metrics import LPIPS, METRICS, Metric, judged, perceptual
from ...metrics.table import auroc
from ...types import Classifier
from ...walk import Route, converse
from .parts import Parts, Settings

GAMMA_B = 0.1
STRONG = (1.0, 1.025)
GENTLE = (0.5, 0.6)
SWEPT = 200
LIFTS = (0.0, 0.25, 0.5, 0.75, 1.0)
DIFFERENCE = 0.025
LANDS = (1.0125, 1.025, 1.05, 1.1)
TYPICAL = 5.0
SHOWN = ("ACC", "AUC", "ACC_r", "AUC_r", "SSIM", "PSNR", "LPIPS")


def reliability(judge: Classifier, lpips: LPIPS) -> list[Metric]:
    """Returns the metrics of the paper's tables, with a judge for the reliable ones."""

    def judged_answers(e: Explanation) -> Tensor:
        return torch.cat([judge(e.counterfactual).double(), e.target[:, None].double()], 1)

    return [
        METRICS["ACC"],
        METRICS["AUC"],
        judged(judge, "ACC_r"),
        Metric("AUC_r", True, judged_answers, auroc),
        METRICS["SSIM"],
        METRICS["PSNR"],
        perceptual(lpips),
    ]


def targets(source: Tensor, classes: int, seed: int) -> Tensor:
    """Draws a class for each galaxy that is not its own."""
    random = torch.Generator().manual_seed(seed)
    other = torch.randint(1, classes, (len(source),), generator=random).to(source.device)
    return (source + other) % classes


class Blended:
    """Is a batch of galaxies after blending, from where injections go on.

    Arguments:
        parts: The parts of a run.
        x: The galaxies.
        target: The class to reach with each.
        leaps: How many blending leaps, at most.
    """

    def __init__(self, parts: Parts, x: Tensor, target: Tensor, leaps: int) -> None:
        self.parts, self.leaps = parts, leaps
        plan = [blend(leaps, GAMMA_B)]
        walker = LeapFactual(
            parts.wae, parts.weak, parts.flow, plan, batch_size=len(x), keep_path=True, plain=True
        )
        found = walker.explain(x, target)
        assert found.path is not None
        self.way, self.found = found.path, replace(found, path=None)

    def after(self, leaps: int) -> Explanation:
        """Returns what so many leaps of blending would have given."""
        return stopped(self.found, self.way, self.way.taken.clamp_max(leaps), self.parts)

    @torch.no_grad()
    def injected(self, after: int, n: int, lift: float, land: float) -> Way:
        """Goes on with injections after so many leaps of blending, and returns their way."""
        parts = self.parts
        start = self.after(after).z_counterfactual
        route = Route(parts.wae, parts.flow, [inject(n, lift=lift, land=land)], keep_path=True)
        walk = converse(route.go(start, self.found.target), parts.weak)
        way = walk.explanation(self.found.x, 0.0).path
        assert way is not None
        for k in range(n + 1):
            if way.probabilities[:, k].isnan().any():
                way.probabilities[:, k] = parts.weak(parts.wae.decode(way.z[:, k]))
        return way


@torch.no_grad()
def stopped(e: Explanation, way: Way, at: Tensor, parts: Parts) -> Explanation:
    """Returns what a walk would have given had it stopped after ``at`` leaps.

    That is the last iterate in the target class, or else the last.
    """
    steps = torch.arange(way.z.shape[1], device=way.z.device)
    inside = way.probabilities.argmax(2) == e.target[:, None]
    last = (steps * (inside & (steps <= at[:, None]))).max(1).values
    chosen = torch.where(inside[:, 0] | (last > 0), last, at)
    rows = torch.arange(len(chosen), device=chosen.device)
    z = way.z[rows, chosen]
    image = torch.cat([parts.wae.decode(part) for part in torch.split(z, 512)])
    p = parts.weak(image)
    return replace(
        e, z_counterfactual=z, counterfactual=image, probabilities=p, label=p.argmax(1), path=None
    )


def three_ways(
    parts: Parts, x: Tensor, target: Tensor, settings: Settings
) -> dict[str, Explanation]:
    """Returns standard counterfactuals, reliable ones as in the paper, and gently injected."""
    blended = Blended(parts, x, target, settings.blending)
    found = {"CE": blended.after(settings.blending)}
    for name, n, steps in (
        ("reliable CE", settings.injections, STRONG),
        ("gentle CE", settings.gentle, GENTLE),
    ):
        way = blended.injected(settings.blending, n, *steps)
        found[name] = _injections(blended, way, n)
    return found


def measure_tables(
    parts: Parts, x: Tensor, lpips: LPIPS, settings: Settings, seed: int, name: str
) -> dict[str, float]:
    """Returns the numbers of both tables, by ``setting | method | metric``."""
    blended = _blended(parts, x, seed, max(settings.n_b))
    measure = partial(_measured, parts, metrics=reliability(parts.strong, lpips))
    numbers: dict[str, float] = {}
    for n in settings.n_b:
        numbers |= measure(f"{name}: N_b | {n}", blended.after(n))
    for lift, land in (STRONG, GENTLE):
        setting = f"{name}: N_i, {lift:g} / {land:g}"
        way = blended.injected(settings.blending, max(settings.n_i), lift, land)
        for n in settings.n_i:
            numbers |= measure(f"{setting} | {n}", _injections(blended, way, n))
    return numbers


def sweep(
    parts: Parts, x: Tensor, lpips: LPIPS, settings: Settings, seed: int, name: str
) -> dict[str, float]:
    """Returns the curves over the injection's two steps, for several numbers of injections."""
    blended = _blended(parts, x[:SWEPT], seed, settings.blending)
    metrics = [m for m in reliability(parts.strong, lpips) if m.name in ("ACC", "ACC_r", "LPIPS")]
    curves = {
        f"{name}: γ_i,lift, γ_i,land {DIFFERENCE} more": [(v, v + DIFFERENCE) for v in LIFTS],
        f"{name}: γ_i,land, γ_i,lift 1": [(1.0, v) for v in LANDS],
    }
    numbers: dict[str, float] = {}
    for (setting, steps), swept in zip(curves.items(), (0, 1), strict=True):
        for step in steps:
            way = blended.injected(settings.blending, max(settings.swept), *step)
            for n in settings.swept:
                key = f"{setting} | {step[swept]:g}, N_i = {n}"
                numbers |= _measured(parts, key, _injections(blended, way, n), metrics=metrics)
    return numbers


def _blended(parts: Parts, x: Tensor, seed: int, leaps: int) -> Blended:
    with torch.no_grad():
        source = parts.weak(parts.wae.decode(parts.wae.encode(x))).argmax(1)
    return Blended(parts, x, targets(source, parts.flow.classes, seed), leaps)


def _injections(blended: Blended, way: Way, n: int) -> Explanation:
    return stopped(blended.found, way, way.taken.clamp_max(n), blended.parts)


def _measured(
    parts: Parts, key: str, e: Explanation, *, metrics: Sequence[Metric]
) -> dict[str, float]:
    numbers = {metric.name: metric.mean(e) for metric in metrics}
    typicality = parts.flow.typicality(e.z_counterfactual, e.target)
    numbers["typical"] = (typicality >= TYPICAL).double().mean().item()
    return {f"{key} | {metric}": value for metric, value in numbers.items()}
