"""The paper's study of galaxies: do reliable counterfactuals make a weak classifier better?

A weak classifier learns from a fifth of the labels, a strong one from all. Counterfactuals of the
weak one are checked with the strong one; then they are added to the fifth, and a classifier
trained on both is compared with the weak one.

What the paper leaves open, or where we do otherwise: the generator is trained on all training
images, without their labels; the flow on the weak classifier's answers about them, each in the
eight orientations of D4, every class drawn equally often. Classifiers start from random
weights and learn from images and reconstructions alike. A run has a fifth, classifiers and a flow
of its own, so that the errors tell how much all of these matter. Targets are never the class that
a galaxy has already.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from leapfactual.data import Dataset
from leapfactual.errors import InputError
from leapfactual.files import fingerprint
from leapfactual.generators import WAE
from leapfactual.metrics import LPIPS
from leapfactual.metrics.standard import require_torchmetrics
from leapfactual.report import tables as results
from leapfactual.report.figures import require_matplotlib

from .. import gathering
from ..state import read_json, same_study, write_json
from .figures import draw, draw_curves, draw_retraining
from .improvement import leads, measure_improvement
from .tables import SHOWN, STRONG, measure_tables, sweep
from .training import (
    ORACLES,
    Galaxies,
    Parts,
    Settings,
    draw_fifth,
    prepare,
    train,
    train_generator,
)
from .vgg import imagenet

__all__ = ["Settings", "collect", "gather", "require", "run"]

PAPER_N_B = {
    100: (0.9718, 0.9855, 0.4868, 0.8798, 0.8579, 22.8416, 0.0641),
    150: (0.9772, 0.9884, 0.4862, 0.8829, 0.8562, 22.3836, 0.0655),
    200: (0.9814, 0.9896, 0.4880, 0.8832, 0.8551, 22.1526, 0.0663),
    250: (0.9832, 0.9901, 0.4892, 0.8836, 0.8544, 21.9950, 0.0668),
    300: (0.9832, 0.9898, 0.4874, 0.8835, 0.8538, 21.8846, 0.0673),
}
PAPER_N_I = {
    0: (0.9821, 0.9897, 0.4738, 0.8797, 0.8577, 22.4959, 0.0651),
    5: (0.9439, 0.9934, 0.6620, 0.9404, 0.8255, 21.0064, 0.0821),
    15: (0.9599, 0.9973, 0.7899, 0.9740, 0.7774, 19.2938, 0.1095),
    25: (0.9612, 0.9975, 0.8171, 0.9815, 0.7417, 18.0882, 0.1324),
    35: (0.9545, 0.9974, 0.8135, 0.9832, 0.7122, 17.0410, 0.1524),
}
PAPER_RETRAINING = {
    "20 %": (0.8107, 0.9770),
    "100 %": (0.8530, 0.9813),
    "CE, 10%": (0.7975, 0.9749),
    "CE, 50%": (0.7968, 0.9744),
    "CE, 100%": (0.7967, 0.9738),
    "reliable CE, 10%": (0.8163, 0.9776),
    "reliable CE, 50%": (0.8197, 0.9788),
    "reliable CE, 100%": (0.8237, 0.9793),
}
MIN_SIDE = 32
STAGES, MORE_STAGES = 4, 16


def run(
    out: Path,
    name: str,
    train_set: Dataset,
    test_set: Dataset,
    settings: Settings,
    *,
    lpips: LPIPS,
    command: str,
    device: str,
    progress: Callable[[float, str], object],
) -> list[results.Row]:
    """Trains, explains, retrains and measures for every run; writes tables and figures.

    Numbers are kept run by run in a folder of the data set's name, so that an interrupted study
    resumes with the run that it was in. ``galaxies.json`` and ``galaxies.md`` gather all data sets
    that were studied in the same folder.

    Arguments:
        out: The folder to write to. What is there already is not done again.
        name: What the data set is called.
        train_set: The galaxies to train on.
        test_set: The galaxies to explain.
        settings: How long to train, on how many galaxies, how often.
        lpips: The perceptual distance.
        command: How the study was called, for the record.
        device: Where to compute.
        progress: Called with the share that is done and what is going on.

    Returns:
        The rows of all data sets in the folder.
    """
    own = out / name
    _check(train_set, settings)
    begun = {k: v for k, v in asdict(settings).items() if k not in ("runs", "retrained", "seed")}
    kind = torch.device(device).type
    pixels = (train_set.images, train_set.labels, test_set.images, test_set.labels)
    same_study(own, begun | {"device": kind, "galaxies": fingerprint(*pixels)})
    say = _Share(progress, settings)
    wae = train_generator(
        train_set.images.to(device),
        settings,
        lpips.to(device),
        own / "generator.safetensors",
        lambda share: progress(0.15 * share, f"{name}: training the generator"),
    )
    learnt, held = prepare(wae, train_set, device), prepare(wae, test_set, device)
    record = results.record(command, device)
    for n in range(settings.runs):
        path = own / f"seed-{settings.seed + n}.json"
        if not _done(path, n < settings.retrained):
            numbers = _run(n, name, own, wae, learnt, held, settings, lpips, partial(say, n))
            finite = {k: v if math.isfinite(v) else None for k, v in numbers.items()}
            write_json({**record, "numbers": finite}, path)
    progress(1.0, f"{name}: done")
    return gather(out, settings.seed)


def _run(
    n: int,
    name: str,
    out: Path,
    wae: WAE,
    train_set: Galaxies,
    test_set: Galaxies,
    settings: Settings,
    lpips: LPIPS,
    say: Callable[[str], object],
) -> dict[str, float]:
    """Does one run; the first one draws the pictures, too."""
    seed, retrains = settings.seed + n, n < settings.retrained

    def tell(what: str) -> None:
        say(f"{name}, run {n + 1} of {settings.runs}: {what}")

    parts = train(seed, wae, train_set, settings, ORACLES * retrains, tell)
    numbers = measure(parts, test_set, settings, seed, name, lpips, swept=n == 0)
    tell("tables")
    if n == 0:
        draw(parts, test_set, settings, out)
        tell("figures")
    if retrains:
        numbers |= measure_improvement(parts, train_set, test_set, settings, seed, name, tell)
    return numbers


def _check(train_set: Dataset, settings: Settings) -> None:
    """Finds out before any work is done what would stop it later."""
    height, width = train_set.images.shape[2:]
    if height != width or height < MIN_SIDE:
        raise InputError(
            f"the galaxies must be square, at least {MIN_SIDE} pixels a side, got {height} × "
            f"{width}. Resize them."
        )
    draw_fifth(train_set.labels, settings.seed, train_set.classes)
    if settings.imagenet:
        imagenet()


def _done(path: Path, retrains: bool) -> bool:
    """Tells whether a run is there, with its retraining where that is wanted."""
    if not path.exists():
        return False
    return not retrains or any(": retraining |" in key for key in read_json(path)["numbers"])


def require() -> None:
    """Says which extras are missing, before any work is done."""
    require_matplotlib()
    require_torchmetrics()


def measure(
    parts: Parts,
    test_set: Galaxies,
    settings: Settings,
    seed: int,
    name: str,
    lpips: LPIPS,
    *,
    swept: bool,
) -> dict[str, float]:
    """Returns the numbers of one run, by ``setting | method | metric``."""
    numbers: dict[str, float] = {}
    for called, classifier in (("weak", parts.weak), ("strong", parts.strong)):
        answers = {
            "images": classifier(test_set.x),
            "reconstructions": classifier(test_set.reconstruction),
        }
        said = {what: p.argmax(1) for what, p in answers.items()}
        for what, label in said.items():
            right = (label == test_set.y).double().mean().item()
            numbers[f"{name}: classifiers | {called} | ACC on {what}"] = right
        same = (said["images"] == said["reconstructions"]).double().mean().item()
        numbers[f"{name}: classifiers | {called} | same answer on both"] = same
    order = torch.randperm(len(test_set.x), generator=torch.Generator().manual_seed(seed))
    x = test_set.x[order[: settings.tested].to(test_set.x.device)]
    numbers |= measure_tables(parts, x, lpips, settings, seed, name)
    if swept:
        numbers |= sweep(parts, x, lpips, settings, seed, name)
    return numbers


def gather(out: Path, seed: int) -> list[results.Row]:
    """Makes the rows of all data sets in the folder, and writes them."""
    rows: list[results.Row] = []
    runs: list[dict[str, Any]] = []
    for own in sorted(path.parent for path in out.glob("*/settings.json")):
        paths = sorted(own.glob("seed-*.json"), key=lambda p: int(p.stem.removeprefix("seed-")))
        found = [read_json(path) for path in paths]
        rows += collect([run["numbers"] for run in found])
        runs += found
        draw_curves(rows, own.name, own / "curves.png")
        draw_retraining(rows, own.name, own / "retraining.png")
    gathering.write(out, "galaxies", rows, runs, seed)
    return rows


def collect(runs: Sequence[Mapping[str, float | None]]) -> list[results.Row]:
    """Makes the rows of the numbers of several runs, with leads over the control."""
    return gathering.collect([dict(numbers) | leads(numbers) for numbers in runs], _paper)


def _paper(setting: str, method: str, metric: str) -> float | None:
    table = setting.split(": ", 1)[1]
    if table == "retraining" and method in PAPER_RETRAINING:
        return dict(zip(("ACC", "AUC"), PAPER_RETRAINING[method], strict=True)).get(metric)
    known = {"N_b": PAPER_N_B, f"N_i, {STRONG[0]:g} / {STRONG[1]:g}": PAPER_N_I}.get(table)
    if known is None or metric == "LPIPS":  # the paper's has another network
        return None
    return dict(zip(SHOWN, known.get(int(method), ()), strict=False)).get(metric)


class _Share:
    """Counts what is trained and measured."""

    def __init__(self, progress: Callable[[float, str], object], settings: Settings) -> None:
        self.progress, self.run, self.done = progress, -1, 0
        stages = [STAGES + (n < settings.retrained) * MORE_STAGES for n in range(settings.runs)]
        self.before = [sum(stages[:n]) for n in range(settings.runs)]
        self.all = sum(stages)

    def __call__(self, run: int, what: str) -> None:
        self.done = self.done + 1 if run == self.run else 1
        self.run = run
        share = (self.before[run] + self.done) / self.all
        self.progress(0.15 + 0.85 * min(share, 1.0), what)
