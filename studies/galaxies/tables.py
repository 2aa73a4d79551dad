"""The tables of counterfactuals: how many leaps, and how far to inject."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from leapfactual.explanation import Explanation
from leapfactual.jobs.pairs import random_targets
from leapfactual.metrics import LPIPS, METRICS, Metric, oracle_validity, perceptual
from leapfactual.metrics.standard import auroc
from leapfactual.types import Classifier

from ..truncated import BlendingWalk
from .training import Parts, Settings

GAMMA_B = 0.1
STRONG = (1.0, 1.025)
GENTLE = (0.5, 0.6)
MAX_SWEPT = 200
LIFTS = (0.0, 0.25, 0.5, 0.75, 1.0)
LAND_MINUS_LIFT = 0.025
LANDS = (1.0125, 1.025, 1.05, 1.1)
MIN_TYPICALITY = 5.0
SHOWN = ("ACC", "AUC", "ACC_r", "AUC_r", "SSIM", "PSNR", "LPIPS")


def reliability(oracle: Classifier, lpips: LPIPS) -> list[Metric]:
    """Returns the metrics of the paper's tables, with an oracle for the reliable ones."""

    def oracle_answers(e: Explanation) -> Tensor:
        return torch.cat([oracle(e.counterfactual).double(), e.target[:, None].double()], 1)

    return [
        METRICS["ACC"],
        METRICS["AUC"],
        oracle_validity(oracle, "ACC_r"),
        Metric("AUC_r", True, oracle_answers, auroc),
        METRICS["SSIM"],
        METRICS["PSNR"],
        perceptual(lpips),
    ]


def three_ways(
    parts: Parts, x: Tensor, target: Tensor, settings: Settings
) -> dict[str, Explanation]:
    """Returns standard counterfactuals, reliable ones as in the paper, and gently injected."""
    blended = _walk(parts, x, target, settings.blending)
    found = {"CE": blended.stop_after(settings.blending)}
    for name, n, steps in (
        ("reliable CE", settings.injections, STRONG),
        ("gentle CE", settings.gentle, GENTLE),
    ):
        way = blended.inject(settings.blending, n, *steps)
        found[name] = blended.stop_injections_after(way, n)
    return found


def measure_tables(
    parts: Parts, x: Tensor, lpips: LPIPS, settings: Settings, seed: int, name: str
) -> dict[str, float]:
    """Returns the numbers of both tables, by ``setting | method | metric``."""
    blended = _elsewhere(parts, x, seed, max(settings.n_b))
    measure = partial(_measure, parts, metrics=reliability(parts.strong, lpips))
    numbers: dict[str, float] = {}
    for n in settings.n_b:
        numbers |= measure(f"{name}: N_b | {n}", blended.stop_after(n))
    for lift, land in (STRONG, GENTLE):
        setting = f"{name}: N_i, {lift:g} / {land:g}"
        way = blended.inject(settings.blending, max(settings.n_i), lift, land)
        for n in settings.n_i:
            numbers |= measure(f"{setting} | {n}", blended.stop_injections_after(way, n))
    return numbers


def sweep(
    parts: Parts, x: Tensor, lpips: LPIPS, settings: Settings, seed: int, name: str
) -> dict[str, float]:
    """Returns the curves over the injection's two steps, for several numbers of injections."""
    blended = _elsewhere(parts, x[:MAX_SWEPT], seed, settings.blending)
    metrics = [m for m in reliability(parts.strong, lpips) if m.name in ("ACC", "ACC_r", "LPIPS")]
    curves = {
        f"{name}: γ_i,lift, γ_i,land {LAND_MINUS_LIFT} more": [
            (v, v + LAND_MINUS_LIFT) for v in LIFTS
        ],
        f"{name}: γ_i,land, γ_i,lift 1": [(1.0, v) for v in LANDS],
    }
    numbers: dict[str, float] = {}
    for (setting, steps), swept in zip(curves.items(), (0, 1), strict=True):
        for step in steps:
            way = blended.inject(settings.blending, max(settings.swept), *step)
            for n in settings.swept:
                key = f"{setting} | {step[swept]:g}, N_i = {n}"
                numbers |= _measure(
                    parts, key, blended.stop_injections_after(way, n), metrics=metrics
                )
    return numbers


def _walk(parts: Parts, x: Tensor, target: Tensor, leaps: int) -> BlendingWalk:
    return BlendingWalk(parts.wae, parts.weak, parts.flow, x, target, leaps, GAMMA_B)


def _elsewhere(parts: Parts, x: Tensor, seed: int, leaps: int) -> BlendingWalk:
    """Walks galaxies to classes that are not their own."""
    with torch.no_grad():
        source = parts.weak(parts.wae.decode(parts.wae.encode(x))).argmax(1)
    return _walk(parts, x, random_targets(source, parts.flow.classes, seed), leaps)


def _measure(
    parts: Parts, key: str, e: Explanation, *, metrics: Sequence[Metric]
) -> dict[str, float]:
    numbers = {metric.name: metric.mean(e) for metric in metrics}
    typicality = parts.flow.typicality(e.z_counterfactual, e.target)
    numbers["typical"] = (typicality >= MIN_TYPICALITY).double().mean().item()
    return {f"{key} | {metric}": value for metric, value in numbers.items()}
