"""What is measured of a bundle: reconstructions, counterfactuals, own pixels, leaps, and the cost.

Distances are to the input, not to its reconstruction: what a generator loses counts. LPIPS is also
given as a share of that between photographs that have nothing to do with each other.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leapfactual.bundle import Bundle
from leapfactual.explainer import LeapFactual
from leapfactual.explanation import Explanation
from leapfactual.jobs.consistency import agreement
from leapfactual.leaps import Focus, Plan, Stage, Tightening, describe, focus, inject, tighten
from leapfactual.metrics import (
    LPIPS,
    METRICS,
    EfficientNetLite0,
    Metric,
    oracle_validity,
    perceptual,
    split_half,
)
from leapfactual.types import Generator

from .subjects import Subject

WAYS = {"plain": 0, "reliable": -1}
# Where the decoded picture changed by more, what is put back of the input would be a ghost.
MIN_GHOST_CHANGE = 0.1
# Walks that are timed on a GPU, after two that warm up: the first sees a size, the second captures
# it. A CPU captures nothing.
TIMED, WARM_UP, SINGLE_IMAGES = 3, 2, 16
BATCH_SIZE = 256
# What may follow the leaps that arrive, from nothing to strong injections with a focus.
TAILS: tuple[Plan, ...] = (
    (),
    (tighten(5),),
    (focus(0.6), tighten(5)),
    *(
        (tighten(5), inject(n, gamma, gamma, 1.0, w), *more)
        for n, gamma, w in ((1, 0.3, 4.0), (1, 0.5, 3.0), (1, 0.5, 4.0), (2, 0.5, 3.0))
        for more in ((), (focus(0.6),), (focus(1.0),))
    ),
)


@dataclass(frozen=True, eq=False)
class Meter:
    """Networks that measure, and what they compare with.

    Arguments:
        lpips: The perceptual distance.
        features: The network whose features the Fréchet distance is in.
    """

    lpips: LPIPS
    features: EfficientNetLite0


@dataclass(frozen=True, eq=False)
class Walks:
    """The counterfactuals of a bundle.

    Arguments:
        x: The test photographs.
        target: The class to reach with each.
        found: The explanations, plain and reliable.
    """

    x: Tensor
    target: Tensor
    found: dict[str, Explanation]


def explain(bundle: Bundle, subject: Subject, tested: int, device: str, seed: int) -> Walks:
    """Explains test photographs, in random order, plain and reliable."""
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(subject.test), generator=rng)[:tested]
    x = subject.test[order].to(device)
    target = subject.targets(subject.classifier(x).argmax(1), seed)
    found = {
        way: explainer_of(bundle, subject, number).explain(x, target)
        for way, number in WAYS.items()
    }
    return Walks(x, target, found)


def measure(bundle: Bundle, subject: Subject, walks: Walks, meter: Meter) -> dict[str, float]:
    """Returns the numbers of a bundle, by ``what | way | metric``."""
    x = walks.x
    random = _between_random(walks, meter)
    numbers = {"photographs | random pairs | LPIPS to input": random}
    reconstruction = _reconstruct(bundle.generator, x)
    for name, classifier in (("classifier", subject.classifier), ("oracle", subject.oracle)):
        same = agreement(x, bundle.generator, classifier).overall
        numbers[f"reconstructions | all | same class for the {name}"] = same
    still = replace(walks.found["plain"], counterfactual=reconstruction)
    numbers |= _similarity("reconstructions | all", still, meter, random)
    many = min(2 * len(x), len(subject.train))
    rows = torch.linspace(0, len(subject.train) - 1, many).long()
    real = meter.features.rows(subject.train[rows].to(x.device))
    for way, e in walks.found.items():
        key = f"counterfactuals | {way}"
        metrics = [
            METRICS["ACC"],
            METRICS["validity"],
            oracle_validity(subject.oracle, "oracle", BATCH_SIZE),
            *subject.metrics,
            *(METRICS[name] for name in ("L1 to input", "leaps", "queries", "nfe")),
        ]
        numbers |= {f"{key} | {metric.name}": metric.mean(e) for metric in metrics}
        numbers |= _similarity(key, e, meter, random)
        made = meter.features.rows(e.counterfactual[e.valid].clamp(0, 1))
        if len(made) > 1:
            compared = split_half(made, real)
            numbers[f"{key} | Fréchet"] = compared.distance
            numbers[f"{key} | Fréchet of real halves"] = compared.floor
    return numbers


def measure_pixels(
    bundle: Bundle, subject: Subject, walks: Walks, meter: Meter
) -> dict[str, float]:
    """Returns what keeping the input's own pixels does, by ``what | way | metric``."""
    numbers: dict[str, float] = {}
    for way, number in WAYS.items():
        for keeps in (True, False):
            chosen = explainer_of(bundle, subject, number, keep_pixels=keeps)
            e = chosen.explain(walks.x, walks.target)
            key = f"own pixels, {way} | {'kept' if keeps else 'not kept'}"
            metrics: Sequence[Metric] = (
                METRICS["validity"],
                oracle_validity(subject.oracle, "oracle", BATCH_SIZE),
                METRICS["SSIM to input"],
                perceptual(meter.lpips, "x"),
            )
            numbers |= {f"{key} | {metric.name}": metric.mean(e) for metric in metrics}
            numbers[f"{key} | ghosts"] = ghosts(e, bundle.generator)
    return numbers


def measure_leaps(
    bundle: Bundle, subject: Subject, walks: Walks, meter: Meter
) -> dict[str, float]:
    """Returns what injections and a focus give, by ``what | way | metric``.

    Every plan begins with the leaps of the bundle's nearest, so that only the rest differs.
    """
    x = walks.x
    random = _between_random(walks, meter)
    arriving: list[Stage] = []
    for stage in bundle.front[0].plan:
        if isinstance(stage, Tightening | Focus):
            break
        arriving.append(stage)
    metrics = (METRICS["ACC"], oracle_validity(subject.oracle, "oracle", BATCH_SIZE))
    numbers: dict[str, float] = {}
    for tail in TAILS:
        explainer = bundle.explainer(subject.classifier, plan=[*arriving, *tail], force=True)
        e = explainer.explain(x, walks.target)
        # Metrics are the columns of this table, since there are more plans than metrics.
        row = describe(tail) or "arrived"
        for metric in (*metrics, *subject.metrics, METRICS["nfe"]):
            numbers[f"leaps | {metric.name} | {row}"] = metric.mean(e)
        share = perceptual(meter.lpips, "x").mean(e) / random
        numbers[f"leaps | LPIPS, share of random pairs | {row}"] = share
    return numbers


@torch.no_grad()
def ghosts(e: Explanation, generator: Generator) -> float:
    """Returns how much is put back of the input where the decoded picture has changed.

    That is the mean absolute difference between what is shown and what was decoded, over the
    pixels that changed by more than a tenth.
    """
    shown, changed = 0.0, 0
    for part in range(0, len(e), BATCH_SIZE):
        some = e[part : part + BATCH_SIZE]
        y, start = generator.decode(some.z_counterfactual), generator.decode(some.z)
        where = (y - start).abs().mean(1) > MIN_GHOST_CHANGE
        shown += (some.counterfactual - y).abs().mean(1)[where].sum().item()
        changed += int(where.sum())
    return shown / max(1, changed)


def measure_cost(bundle: Bundle, subject: Subject, walks: Walks) -> dict[str, float]:
    """Returns the time of a counterfactual in a batch and alone, warm, and the memory it takes."""
    x, target = walks.x, walks.target
    on_gpu = x.is_cuda
    numbers: dict[str, float] = {}
    for way, number in WAYS.items():
        explainer = explainer_of(bundle, subject, number)
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        before = WARM_UP if on_gpu else 0
        walked = [(x, target)] * (before + (TIMED if on_gpu else 1))
        seconds = _time(explainer, walked)[before:]
        numbers[f"cost | {way} | ms in a batch"] = 1000 * min(seconds) / len(x)
        if on_gpu:
            peak = torch.cuda.max_memory_allocated() / 2**30
            numbers[f"cost | {way} | GiB of the GPU's memory"] = peak
        alone = [(x[n : n + 1], target[n : n + 1]) for n in range(min(SINGLE_IMAGES, len(x)))]
        seconds = _time(explainer, [alone[0]] * WARM_UP + alone)[WARM_UP:]
        numbers[f"cost | {way} | ms alone"] = 1000 * statistics.median(seconds)
    return numbers


def _time(explainer: LeapFactual, batches: Sequence[tuple[Tensor, Tensor]]) -> list[float]:
    seconds = []
    for x, target in batches:
        started = time.perf_counter()
        explainer.explain(x, target)
        if x.is_cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return seconds


def _between_random(walks: Walks, meter: Meter) -> float:
    """Returns the distance between photographs that have nothing to do with each other."""
    others = walks.x.roll(max(1, len(walks.x) // 2), 0)
    return perceptual(meter.lpips, "x").mean(replace(walks.found["plain"], counterfactual=others))


def _similarity(key: str, e: Explanation, meter: Meter, random: float) -> dict[str, float]:
    lpips = perceptual(meter.lpips, "x").mean(e)
    return {
        f"{key} | SSIM to input": METRICS["SSIM to input"].mean(e),
        f"{key} | LPIPS to input": lpips,
        f"{key} | LPIPS, share of random pairs": lpips / random,
    }


def explainer_of(
    bundle: Bundle, subject: Subject, number: int, keep_pixels: bool | None = None
) -> LeapFactual:
    """Returns the explainer with one of the bundle's plans, the first or the last."""
    rated = bundle.front[number]
    return bundle.explainer(
        subject.classifier,
        plan=rated.plan,
        solver=rated.solver,
        force=True,
        keep_pixels=keep_pixels,
    )


@torch.no_grad()
def _reconstruct(generator: Generator, x: Tensor) -> Tensor:
    return torch.cat([generator.decode(generator.encode(p)) for p in torch.split(x, BATCH_SIZE)])
