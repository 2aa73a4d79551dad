"""How time and memory grow: with images, classes, leaps, latent size and image size; training."""

import time
from dataclasses import dataclass, replace

import torch
from torch import nn

from leapfactual.classifiers import from_logits
from leapfactual.explainer import LeapFactual
from leapfactual.fields import MLPField
from leapfactual.flow import Flow
from leapfactual.generators import VAE
from leapfactual.leaps import blend
from leapfactual.report.tables import Row, row
from leapfactual.solvers import Midpoint
from leapfactual.training import fit, fit_generator

from .clock import peak, resident, seconds, wait
from .published import Work

IMAGES = {"cpu": (1000, 3000, 10_000), "cuda": (10_000, 100_000, 1_000_000)}
PIECE = {"cpu": 1000, "cuda": 10_000}
BATCH_SIZE = 64
LATENTS = 60_000
EPOCHS = 30


@dataclass(frozen=True)
class Size:
    """The size of a problem, of which one number is varied at a time."""

    classes: int = 10
    leaps: int = 5
    features: int = 32
    pixels: int = 32


GROWN: dict[str, tuple[int, ...]] = {
    "classes": (2, 10, 100, 1000),
    "leaps": (1, 5, 20, 80),
    "features": (8, 32, 128, 512),
    "pixels": (32, 64, 128),
}


def measure(work: Work, setting: str) -> list[Row]:
    """Returns time and memory for one size after the other."""
    rows = _many(work, f"{setting}, images")
    for what, values in GROWN.items():
        for value in values:
            explainer, x, y = _problem(replace(Size(), **{what: value}), work.device)
            took = seconds(lambda: explainer.explain(x, y), work.device, warm=2, times=3)  # noqa: B023
            memory = peak(lambda: explainer.explain(x, y), work.device)  # noqa: B023
            where, method = f"{setting}, {what}", f"{value}"
            per_image = [1e6 * s / BATCH_SIZE for s in took]
            rows.append(row(where, method, "microseconds", per_image))
            rows.append(row(where, method, "MiB, peak", [memory]))
    return rows


def _many(work: Work, setting: str) -> list[Row]:
    """Explains more and more images, piece by piece, and reads the memory on the way."""
    piece, rows, done = PIECE[work.device], [], 0
    x = work.x.repeat(-(-piece // len(work.x)), 1, 1, 1)[:piece]
    y = work.target.repeat(-(-piece // len(work.target)))[:piece]
    explainer = work.explainer()
    for _ in range(3):
        explainer.explain(x, y)
    wait(work.device)
    started = time.perf_counter()
    for total in IMAGES[work.device]:
        while done < total:
            explainer.explain(x, y)
            done += piece
        wait(work.device)
        took = time.perf_counter() - started
        rows.append(row(setting, f"{total:,}", "microseconds", [1e6 * took / total]))
        rows.append(row(setting, f"{total:,}", "MiB, held", [resident(work.device)]))
    return rows


def _problem(size: Size, device: str) -> tuple[LeapFactual, torch.Tensor, torch.Tensor]:
    """Makes an untrained problem of some size."""
    torch.manual_seed(0)
    vae = VAE((1, size.pixels, size.pixels), size.features).to(device).eval()
    network = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(256, size.classes),
    )
    network.to(device).eval().requires_grad_(False)
    field = MLPField(size.features, size.classes, width=256, depth=4)
    flow = Flow(field.requires_grad_(False), Midpoint(2), soft=True).to(device)
    explainer = LeapFactual(vae, from_logits(network), flow, [blend(size.leaps, 0.2)])
    x = torch.rand(BATCH_SIZE, 1, size.pixels, size.pixels, device=device)
    return explainer, x, torch.arange(BATCH_SIZE, device=device) % size.classes


def training(work: Work, setting: str) -> list[Row]:
    """Returns how long the paper's flow takes to train, and one epoch of its generator."""
    device = work.device
    rng = torch.Generator().manual_seed(0)
    z = torch.randn(LATENTS, 32, generator=rng).to(device)
    p = (3 * torch.randn(LATENTS, 10, generator=rng)).softmax(1).to(device)

    def flow(epochs: int) -> float:
        network = Flow(MLPField(32, 10, activation="selu"), soft=True).to(device)
        wait(device)
        started = time.perf_counter()
        fit(network, z, p, epochs=epochs)
        wait(device)
        return time.perf_counter() - started

    flow(1)
    rows = [row(setting, "the paper's flow", f"seconds, {EPOCHS} epochs", [flow(EPOCHS)])]
    if device != "cpu":
        x = work.x.repeat(-(-LATENTS // len(work.x)), 1, 1, 1)[:LATENTS]
        vae = VAE((1, 28, 28), kernel=5).to(device)
        fit_generator(vae, x, epochs=1)
        marks = [time.perf_counter()]
        fit_generator(vae, x, epochs=5, on_epoch=lambda _: marks.append(time.perf_counter()))
        rows.append(
            row(setting, "the paper's VAE", "seconds, an epoch", [(marks[-1] - marks[1]) / 4])
        )
    return rows
