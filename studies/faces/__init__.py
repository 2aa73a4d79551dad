"""The paper's study of faces: a GAN of 1024 × 1024 and a black box that only answers.

Flows are trained on faces that the GAN draws and on whether a black box says that they smile. New
faces are turned into the class that they are not, with the paper's steps and with ours.

What the paper leaves open, or where we do otherwise: the GAN is MobileStyleGAN, the black box a
network of expressions, because these weights can be fetched with pip; any other yes or no can take
its place. AUC is that of probabilities; the paper's is of labels, and equals ACC. The paper's
steps are taken with its U-Net, ours with an MLP.
"""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leapfactual.alternatives import CANDIDATES_EACH, Alternatives, diverse
from leapfactual.demos.faces.album import Album
from leapfactual.demos.faces.demo import PLAN, RELIABLE_PLAN
from leapfactual.demos.faces.identity import SAME
from leapfactual.explanation import Explanation
from leapfactual.flow import Flow
from leapfactual.generators import GAN
from leapfactual.metrics import diversity
from leapfactual.report import tables as results
from leapfactual.types import Classifier

from .. import gathering
from ..state import read_json, same_study, write_json
from .figures import draw, draw_alternatives
from .sampling import LabeledFaces, sample
from .tables import MASKED, Measurements, Setup, explain_as_paper, explain_with_plans
from .training import Oracles, Settings, sample_faces, train_flow

__all__ = ["Oracles", "Settings", "gather", "run"]

PAPER = {
    "LeapFactual N_b = 5": (0.706, 0.706, 0.564, 18.036, 0.149),
    "LeapFactual N_b = 10": (0.957, 0.957, 0.538, 17.126, 0.171),
    "LeapFactual N_b = 15": (0.982, 0.982, 0.531, 16.946, 0.176),
    "LeapFactual N_b = 20": (0.993, 0.993, 0.525, 16.833, 0.180),
    "random pairs": (None, None, 0.070, 8.848, 0.555),
}
PAPER_METRICS = ("ACC", "AUC", "SSIM", "PSNR", "LPIPS")
FIRST_TESTED_SEED = 1 << 31
MASK_SHARE, MASK_RADIUS = 0.1, 0.03
ALTERNATIVES, NOISE_LEVEL = 4, 0.3
KINDS = ("U-Net", "MLP")


def run(
    out: Path,
    gan: GAN,
    classifier: Classifier,
    oracles: Oracles,
    settings: Settings,
    *,
    command: str,
    device: str = "cpu",
    batch_size: int = 8,
    progress: Callable[[float, str], object],
) -> list[results.Row]:
    """Draws faces, trains flows, explains and measures; writes tables and figures.

    What is done is kept in the folder, so that an interrupted study resumes where it stopped.

    Arguments:
        out: The folder to write to.
        gan: Draws the faces.
        classifier: The black box, of two classes.
        oracles: The networks that assess counterfactuals.
        settings: How long to train, on how many faces, how often.
        command: How the study was called, for the record.
        device: Where to compute.
        batch_size: How many faces to draw at a time.
        progress: Called with the share that is done and what is going on.
    """
    begun = {k: v for k, v in asdict(settings).items() if k != "runs"}
    same_study(out, begun | {"device": device, "distances": sorted(oracles.lpips)})
    faces = sample(
        gan,
        classifier,
        settings.per_class,
        seed=settings.seed,
        batch_size=batch_size,
        path=out / "faces.safetensors",
        progress=lambda share: progress(0.2 * share, "drawing faces"),
    )
    record = results.record(command, device)
    for n in range(settings.runs):
        path = out / f"seed-{settings.seed + n}.json"
        if path.exists():
            continue

        def say(share: float, what: str, n: int = n) -> None:
            done = (n + share) / settings.runs
            progress(0.2 + 0.8 * done, f"run {n + 1} of {settings.runs}: {what}")

        flows = {
            kind: _flow(kind, faces, settings, settings.seed + n, out, device, say)
            for kind in KINDS
        }
        setup = {k: Setup(gan, classifier, flow, oracles, batch_size) for k, flow in flows.items()}
        seed = FIRST_TESTED_SEED + settings.seed + n
        tested = sample_faces(gan, classifier, settings.tested, seed, batch_size)
        if n == 0:
            flows["MLP"].save(out / "shipped.safetensors", half=True)
        numbers = _run(setup, tested, settings, out if n == 0 else None, say)
        write_json({**record, "numbers": numbers}, path)
    progress(1.0, "done")
    return gather(out, settings.seed)


def _flow(
    kind: str,
    faces: LabeledFaces,
    settings: Settings,
    seed: int,
    out: Path,
    device: str,
    say: Callable[[float, str], object],
) -> Flow:
    """Returns a flow that was trained before, or trains it."""
    path = out / f"{kind}-{seed}.safetensors"
    if path.exists():
        return Flow.load(path).to(device).requires_grad_(False)
    checkpoint = out / f"{kind}-{seed}.checkpoint"
    flow = train_flow(
        kind,
        faces,
        settings,
        seed,
        device=device,
        checkpoint=checkpoint,
        progress=lambda share: say(0.1 * (KINDS.index(kind) + share), f"training the {kind}"),
    )
    flow.save(path)
    checkpoint.unlink(missing_ok=True)
    return flow


def _run(
    setup: dict[str, Setup],
    tested: LabeledFaces,
    settings: Settings,
    out: Path | None,
    say: Callable[[float, str], object],
) -> dict[str, float]:
    """Returns the numbers of one run, by ``setting | method | metric``; the first one draws."""
    found: dict[str, dict[str, Measurements]] = {}
    found["paper"] = explain_as_paper(
        setup["U-Net"], tested, lambda share: say(0.2 + 0.3 * share, "the paper's steps")
    )
    plans = {"LeapFactual": PLAN, "LeapFactual_R": RELIABLE_PLAN}
    ours = setup["MLP"]
    found["ours"] = explain_with_plans(
        ours, tested, plans, lambda share: say(0.5 + 0.2 * share, "our steps")
    )
    radius = round(MASK_RADIUS * ours.gan.shape[1])
    mask = found["ours"]["LeapFactual"].change.mask(MASK_SHARE, radius, around=radius)
    some = settings.masks
    kept = explain_with_plans(
        ours, tested[:some], plans, lambda share: say(0.7 + 0.2 * share, "in a mask"), mask
    )
    found["masks"] = {name: measured.first(some) for name, measured in found["ours"].items()}
    found["masks"] |= {f"{name} {MASKED}": measured for name, measured in kept.items()}
    numbers = {
        f"{setting} | {method} | {metric}": value
        for setting, methods in found.items()
        for method, measured in methods.items()
        for metric, value in measured.means().items()
    }
    alternatives = find_alternatives(ours, tested[: settings.alternatives], mask)
    numbers |= {
        f"several | {name} | {metric}": value
        for name, some in alternatives.items()
        for metric, value in _measure_alternatives(ours, some).items()
    }
    if out is not None:
        say(0.95, "pictures")
        draw(ours, tested, found["ours"], mask, out)
        draw_alternatives(alternatives[MASKED], out / "alternatives.jpg")
    return numbers


def find_alternatives(setup: Setup, faces: LabeledFaces, mask: Tensor) -> dict[str, Alternatives]:
    """Finds several counterfactuals of faces, everywhere and in a mask, in small pictures."""
    album = Album(setup.gan)
    together = max(1, setup.batch_size // (CANDIDATES_EACH * ALTERNATIVES))
    found = {}
    for name, where in (("everywhere", None), (MASKED, mask)):
        explainer = setup.explainer(PLAN, where)
        parts = []
        for w, target in replace(setup, batch_size=together).batches(faces):
            with torch.no_grad():
                x = setup.gan.decode(w)
            some = diverse(explainer, x, target, ALTERNATIVES, noise=NOISE_LEVEL, z=w)
            small = album.shrink(some.explanation).to("cpu")
            parts.append((small, some.found.cpu(), some.apart.cpu()))
        explanations, counts, distances = zip(*parts, strict=True)
        found[name] = Alternatives(
            Explanation.cat(explanations), ALTERNATIVES, torch.cat(counts), torch.cat(distances)
        )
    return found


def _measure_alternatives(setup: Setup, found: Alternatives) -> dict[str, float]:
    """Returns how many were found, how far they are from each other, and from the person."""
    name, lpips = next(iter(setup.oracles.lpips.items()))
    device, e = setup.gan.device, found.explanation

    def distance(a: Tensor, b: Tensor) -> Tensor:
        with torch.no_grad():
            return lpips(a.to(device), b.to(device)).cpu()

    likeness = setup.oracles.likeness(e.x.to(device), e.counterfactual.to(device))
    return {
        "found": found.found.double().mean().item() / ALTERNATIVES,
        f"diversity, {name} of 256 × 256": diversity(found.each(), distance).mean().item(),
        "same person": (likeness < SAME).double().mean().item(),
    }


def gather(out: Path, seed: int) -> list[results.Row]:
    """Makes the rows of all runs in the folder, and writes them."""
    paths = sorted(out.glob("seed-*.json"), key=lambda p: int(p.stem.removeprefix("seed-")))
    runs: list[dict[str, Any]] = [read_json(path) for path in paths]
    rows = gathering.collect([run["numbers"] for run in runs], _paper)
    gathering.write(out, "faces", rows, runs, seed)
    return rows


def _paper(setting: str, method: str, metric: str) -> float | None:
    known = dict(zip(PAPER_METRICS, PAPER.get(method, ()), strict=False))
    return known.get(metric) if setting == "paper" else None
