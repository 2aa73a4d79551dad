"""Photographs: counterfactuals as sharp as the picture, with what ``fit`` trains by itself.

Three kinds of photographs are explained with three generators: the latents of a VAE and of a WAE
are rows of numbers, those of a spatial autoencoder are maps. Everything is trained by
:func:`leapfactual.jobs.fit.fit_bundle`, with its defaults; an independent oracle, which had no
part in it, says whether counterfactuals convince.

=============  ====================================================================================
leaves         a folder with ``train`` and ``test``; diseases are spots of a few pixels
faces          drawn by the GAN of the faces' study, taken as photographs: its latents are not used
galaxies       class folders; the classifier is weak, and learns from its counterfactuals
=============  ====================================================================================

The generator ``auto`` is what ``fit`` chooses by itself, as ``leapfactual fit`` does without any
option. The paper has no such study: its numbers are those of latents that were there already.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from leapfactual.bundle import Bundle
from leapfactual.generators import SpatialAutoencoder
from leapfactual.jobs.fit import fit_bundle
from leapfactual.jobs.recipe import Recipe
from leapfactual.report import tables as results

from .. import gathering
from ..state import read_json, same_study, write_json
from .figures import draw
from .retraining import measure_retraining
from .subjects import Schooling, Subject
from .tables import Meter, explain, measure, measure_cost, measure_leaps, measure_pixels

__all__ = ["GENERATORS", "Schooling", "Settings", "Subject", "gather", "run"]

GENERATORS = ("vae", "wae", "spatial", "auto")


@dataclass(frozen=True)
class Settings:
    """What to train, and on how many photographs to measure.

    Arguments:
        generators: The generators to compare.
        minutes: The time for a fit. Defaults to what fit takes by itself.
        tested: How many photographs are explained, at most.
        schooling: How classifiers of a folder are trained.
        leaps: Whether to compare what may follow the leaps that arrive: injections and focus.
    """

    generators: tuple[str, ...] = GENERATORS[:3]
    minutes: float | None = None
    tested: int = 512
    schooling: Schooling = field(default_factory=Schooling)
    leaps: bool = False


def run(
    out: Path,
    open_subject: Callable[[int], Subject],
    settings: Settings,
    meter: Meter,
    *,
    seeds: Sequence[int],
    command: str,
    device: str,
    log: Callable[[str], object],
    progress: Callable[[float, str], object],
) -> list[results.Row]:
    """Fits, explains and measures for every seed and generator; writes tables and figures.

    Every run is kept as it ends, so that a table can be completed in pieces, and by several
    processes that have other seeds. ``photographs.json`` and ``photographs.md`` gather all sets
    that were studied in the same folder.

    Arguments:
        out: The folder to write to. What is there already is not done again.
        open_subject: Returns the photographs and the networks of a seed.
        settings: What to train.
        meter: The networks that measure.
        seeds: A run for each.
        command: How the study was called, for the record.
        device: Where to compute.
        log: Called with a sentence at a time about what ``fit`` sees.
        progress: Called with the share that is done and what is going on.
    """
    record = results.record(command, device)
    total = len(seeds) * len(settings.generators)
    for n, seed in enumerate(seeds):
        subject = open_subject(seed)
        own = out / _folder(subject.name)
        begun = asdict(settings) | {"device": torch.device(device).type}
        same_study(own, {k: v for k, v in begun.items() if k not in ("generators", "leaps")})
        for m, kind in enumerate(settings.generators):
            path = own / f"{kind}-{seed}.json"
            if path.exists():
                continue
            done, called = n * len(settings.generators) + m, f"{subject.name}, {kind}, seed {seed}"

            def say(share: float, what: str, done: int = done, called: str = called) -> None:
                progress((done + share) / total, f"{called}: {what}")

            numbers = _run(own, subject, kind, settings, meter, seed, device, log, say)
            finite = {k: v if math.isfinite(v) else None for k, v in numbers.items()}
            named = {_name(subject.name, kind, key): v for key, v in finite.items()}
            write_json({**record, "numbers": named}, path)
    progress(1.0, "done")
    return gather(out, min(seeds))


def _run(
    out: Path,
    subject: Subject,
    kind: str,
    settings: Settings,
    meter: Meter,
    seed: int,
    device: str,
    log: Callable[[str], object],
    say: Callable[[float, str], object],
) -> dict[str, float]:
    """Does one run, and returns its numbers by ``what | way | metric``."""
    folder = out / f"{kind}-{seed}"
    if not folder.exists():
        fit_bundle(
            subject.train,
            subject.classifier,
            folder,
            classes=subject.classes,
            recipe=Recipe(
                kind, rotate=settings.schooling.rotate, seed=seed, minutes=settings.minutes
            ),
            classifier_name=f"the study's classifier of {subject.name}",
            force=True,
            device=device,
            log=log,
            on_progress=lambda share, what, _: say(0.7 * share, what),
        )
    bundle = Bundle.load(folder).to(device)
    seconds: Any = bundle.training["seconds"]
    numbers = {"cost | all | minutes to fit": seconds["all"] / 60}
    say(0.75, "explaining")
    walks = explain(bundle, subject, settings.tested, device, seed)
    numbers |= measure(bundle, subject, walks, meter)
    draw(bundle, subject, walks, meter, out / f"{kind}-{seed}.figures")
    say(0.85, "measuring the cost")
    numbers |= measure_cost(bundle, subject, walks)
    if not isinstance(bundle.generator, SpatialAutoencoder):
        return numbers
    numbers |= measure_pixels(bundle, subject, walks, meter)
    if settings.leaps:
        numbers |= measure_leaps(bundle, subject, walks, meter)
    if subject.rows is not None:
        numbers |= measure_retraining(
            bundle,
            subject,
            settings.schooling,
            device,
            seed,
            lambda share: say(0.9 + 0.1 * share, "retraining"),
        )
    return numbers


def _folder(name: str) -> str:
    """Makes the name of a set that of a folder.

    Example:
        >>> _folder("leaves, 64 × 64, grey")
        'leaves-64x64-grey'
    """
    return name.replace(" × ", "x").replace(", ", "-").replace(" ", "-")


def _name(subject: str, kind: str, key: str) -> str:
    """Makes ``setting | method | metric`` of ``what | way | metric``.

    Example:
        >>> _name("leaves", "vae", "counterfactuals | plain | ACC")
        'leaves: counterfactuals | vae, plain | ACC'
        >>> _name("leaves", "vae", "photographs | random pairs | LPIPS")
        'leaves: photographs | random pairs | LPIPS'
    """
    what, way, metric = key.split(" | ")
    method = way if what == "photographs" else kind if way == "all" else f"{kind}, {way}"
    return f"{subject}: {what} | {method} | {metric}"


def gather(out: Path, seed: int) -> list[results.Row]:
    """Makes the rows of all sets in the folder, and writes them."""
    runs: list[dict[str, Any]] = []
    rows: list[results.Row] = []
    for own in sorted(path.parent for path in out.glob("*/settings.json")):
        found = [
            read_json(path) for kind in GENERATORS for path in sorted(own.glob(f"{kind}-*.json"))
        ]
        rows += gathering.collect([each["numbers"] for each in found])
        runs += found
    gathering.write(out, "photographs", rows, runs, seed)
    return rows
