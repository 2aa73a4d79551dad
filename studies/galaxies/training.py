"""What the study trains: the generator once; for every run two classifiers, oracles and a flow."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leapfactual.data import Dataset
from leapfactual.data.datasets import split
from leapfactual.fields import MLPField
from leapfactual.flow import Flow
from leapfactual.generators import WAE, load, save
from leapfactual.metrics import LPIPS
from leapfactual.solvers import Midpoint
from leapfactual.training import embed, fit, fit_generator
from leapfactual.training.augmentation import d4_orbit, random_rotation

from .vgg import BATCH, BatchedClassifier, from_imagenet, train_classifier, vgg16

GENERATOR_BATCH, FLOW_BATCH = 64, 512
WEAK_SHARE = 0.2
ORACLES = 2
SEED_STRIDE, STRONG = 1_000_000, 9


@dataclass(frozen=True)
class Settings:
    """How long to train, on how many galaxies to measure, and how often.

    Arguments:
        generator_steps: The steps of the autoencoder.
        weak_epochs: How often classifiers go through a fifth of the galaxies, and through what is
            added to them.
        strong_epochs: How often the one that learns from all goes through them.
        least_steps: The steps that a weak classifier takes at least, without anything added; a
            strong one takes at least twice as many.
        flow_steps: The steps of the flow.
        widths: The channels of the autoencoder.
        width: The channels of a classifier's first layer.
        tested: How many test galaxies are explained, at most.
        n_b: The numbers of blending leaps that are compared.
        blending: The number that is used elsewhere.
        n_i: The numbers of injections that are compared.
        injections: The number for reliable counterfactuals.
        gentle: The number for gentle ones.
        swept: The numbers for which an injection's steps are varied.
        runs: How many runs, each with a fifth of its own, classifiers and flow of its own.
        retrained: In how many of them counterfactuals are trained on.
        imagenet: Whether classifiers start from ImageNet.
        seed: The first run's seed.
    """

    generator_steps: int = 6000
    weak_epochs: int = 25
    strong_epochs: int = 10
    least_steps: int = 400
    flow_steps: int = 5000
    widths: tuple[int, ...] = (32, 64, 128, 256)
    width: int = 64
    tested: int = 400
    n_b: tuple[int, ...] = (100, 150, 200, 250, 300)
    blending: int = 250
    n_i: tuple[int, ...] = (0, 5, 15, 25, 35)
    injections: int = 25
    gentle: int = 5
    swept: tuple[int, ...] = (10, 20, 30, 40, 50)
    runs: int = 10
    retrained: int = 5
    imagenet: bool = False
    seed: int = 0


class Sharpness(nn.Module):
    """Creates the perceptual term of the autoencoder's objective: LPIPS and pixels.

    Images are enlarged first. Galaxies are small in them, and LPIPS's network looks at every
    fourth pixel only: at their own size it would leave a grid.

    Arguments:
        lpips: The perceptual distance.
        scale: How much to enlarge.
    """

    def __init__(self, lpips: LPIPS, scale: int = 2) -> None:
        super().__init__()
        self.lpips, self.scale = lpips, scale

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        """Returns the distance of each pair, with shape ``(B,)``."""
        a, b = (F.interpolate(v, scale_factor=self.scale, mode="bilinear") for v in (x, other))
        distance: Tensor = self.lpips(a, b) + (x - other).abs().flatten(1).mean(1)
        return distance


def train_generator(
    x: Tensor, settings: Settings, lpips: LPIPS, path: Path, progress: Callable[[float], object]
) -> WAE:
    """Trains the autoencoder on images without labels, or reads it from ``path``.

    On a CPU, where that takes hours, it can be interrupted and resumes.
    """
    if path.exists():
        found = load(path)
        assert isinstance(found, WAE)
        return found.to(x.device).requires_grad_(False)
    torch.manual_seed(settings.seed)
    wae = WAE(tuple(x.shape[1:]), 64, widths=settings.widths).to(x.device)
    batch = min(GENERATOR_BATCH, len(x))
    fit_generator(
        wae,
        x,
        epochs=max(1, round(settings.generator_steps * batch / len(x))),
        batch_size=batch,
        learning_rate=1e-3,
        weight_decay=1e-5,
        schedule="cosine",
        ema=0.999,
        perceptual=Sharpness(lpips).to(x.device),
        augment=random_rotation,
        precision="bfloat16" if x.is_cuda else "float32",
        seed=settings.seed,
        checkpoint=None if x.is_cuda else path.with_suffix(".checkpoint"),
        on_epoch=lambda epoch: progress(epoch.number / epoch.of),
    )
    save(wae, path)
    path.with_suffix(".checkpoint").unlink(missing_ok=True)
    return wae.requires_grad_(False)


@torch.no_grad()
def reconstruct(wae: WAE, x: Tensor, batch_size: int = 512) -> Tensor:
    """Returns the reconstructions of images."""
    return torch.cat([wae.decode(wae.encode(part)) for part in torch.split(x, batch_size)])


def draw_fifth(y: Tensor, seed: int, classes: tuple[str, ...]) -> Tensor:
    """Draws the rows that the weak classifier learns from, of every class a fifth."""
    return split(y, 1 - WEAK_SHARE, seed, classes)[0]


@dataclass(frozen=True, eq=False)
class Parts:
    """The networks of one run.

    Arguments:
        few: The rows of the fifth that the weak classifier learns from.
        wae: The generator.
        weak: The classifier that is explained.
        strong: The one that oracles, trained on all labels.
        oracles: Further weak ones, to agree or not.
        flow: The flow, trained on the weak one's answers.
    """

    few: Tensor
    wae: WAE
    weak: BatchedClassifier
    strong: BatchedClassifier
    oracles: tuple[BatchedClassifier, ...]
    flow: Flow


@dataclass(frozen=True, eq=False)
class Galaxies:
    """A data set on its device, with its reconstructions.

    Arguments:
        x: Images.
        reconstruction: Their reconstructions.
        y: Labels.
        classes: What the classes are called.
    """

    x: Tensor
    reconstruction: Tensor
    y: Tensor
    classes: tuple[str, ...]

    def learn(
        self,
        rows: Tensor,
        more: tuple[Tensor, Tensor] | None,
        settings: Settings,
        *,
        steps: float,
        seed: int,
    ) -> BatchedClassifier:
        """Trains a classifier on some galaxies and what is added to them.

        It learns from images and their reconstructions alike. A classifier that never saw a
        reconstruction can fail on all of them, by what a decoder leaves where the sky is black;
        then its counterfactuals mean nothing, and what they add to training is the decoder's
        touch, not the class.

        Arguments:
            rows: Which galaxies.
            more: Further images and labels.
            settings: The study's settings.
            steps: How many steps for each image and reconstruction; what is added takes as many
                again, so that the galaxies are seen as often as without it.
            seed: The seed.
        """
        x = torch.cat(
            [self.x[rows], self.reconstruction[rows], *([] if more is None else [more[0]])]
        )
        y = torch.cat([self.y[rows], self.y[rows], *([] if more is None else [more[1]])])
        torch.manual_seed(seed)
        network = vgg16(x.shape[1], len(self.classes), settings.width)
        if settings.imagenet:
            from_imagenet(network)
        network.to(x.device)
        train_classifier(network, x, y, steps=max(1, round(steps * len(x))), seed=seed)
        return BatchedClassifier(network)

    def pace(self, rows: Tensor, epochs: int, least: int) -> float:
        """Returns how many steps to take for each image, to go through some galaxies so often."""
        images = 2 * len(rows)
        return max(epochs / BATCH, least / images)


def prepare(wae: WAE, data: Dataset, device: str) -> Galaxies:
    """Moves a data set to its device and reconstructs it."""
    x = data.images.to(device)
    return Galaxies(x, reconstruct(wae, x), data.labels.to(device), data.classes)


def train(
    seed: int,
    wae: WAE,
    train_set: Galaxies,
    settings: Settings,
    oracles: int,
    progress: Callable[[str], object],
) -> Parts:
    """Trains what one run needs."""
    few = draw_fifth(train_set.y.cpu(), seed, train_set.classes).to(train_set.y.device)
    everyone = torch.arange(len(train_set.y), device=few.device)
    pace = train_set.pace(few, settings.weak_epochs, settings.least_steps)
    weak, *others = (
        train_set.learn(few, None, settings, steps=pace, seed=SEED_STRIDE * n + seed)
        for n in range(1 + oracles)
    )
    progress("weak classifier")
    pace = train_set.pace(everyone, settings.strong_epochs, 2 * settings.least_steps)
    strong = train_set.learn(
        everyone, None, settings, steps=pace, seed=SEED_STRIDE * STRONG + seed
    )
    progress("strong classifier")
    flow = train_flow(seed, wae, train_set.x, weak, len(train_set.classes), settings)
    progress("flow")
    return Parts(few, wae, weak, strong, tuple(others), flow)


def train_flow(
    seed: int, wae: WAE, x: Tensor, weak: BatchedClassifier, classes: int, settings: Settings
) -> Flow:
    """Trains the paper's flow on the weak classifier's answers, every class equally often."""
    views = (part for view in d4_orbit(x) for part in torch.split(view, 512))
    z, p = embed(views, wae, weak)
    torch.manual_seed(seed)
    flow = Flow(MLPField(z.shape[1], classes, width=256, depth=5), Midpoint(2), soft=False)
    flow.to(z.device)
    batch = min(FLOW_BATCH, len(z))
    fit(
        flow,
        z,
        p,
        epochs=max(1, round(settings.flow_steps * batch / len(z))),
        batch_size=batch,
        learning_rate=1e-3,
        schedule="cosine",
        ema=0.999 if settings.flow_steps > 2000 else 0.0,
        balanced=True,
        standardize=True,
        seed=seed,
    )
    flow.requires_grad_(False)
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(seed)).to(z.device)
    flow.fit_typicality(z[order], p[order], per_class=500)
    return flow
