"""What a run of the study is made of: settings, oracles, faces and flows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from leapfactual.demos.faces.portraits import CLASSES
from leapfactual.fields import MLPField, UNet1dField, VelocityField
from leapfactual.flow import Flow
from leapfactual.generators import GAN
from leapfactual.solvers import Midpoint
from leapfactual.training import fit
from leapfactual.types import Classifier, no_op

from .sampling import LabeledFaces

SIGMA = 1e-4


@dataclass(frozen=True)
class Settings:
    """How long to train, on how many faces, and how many to explain.

    Arguments:
        per_class: How many faces of each class the flows learn from.
        epochs: How often a flow goes through them.
        batch_size: How many to a step.
        width: The width of the MLP.
        depth: How many hidden layers it has.
        channels: The channels of the U-Net at its finest level.
        multipliers: How many times as many it has at each level.
        tested: How many faces are explained.
        masks: How many of them are explained in a mask, too.
        alternatives: Of how many faces several counterfactuals are made.
        runs: How many flows of each kind, each with a seed of its own.
        seed: The first seed.
    """

    per_class: int = 10_000
    epochs: int = 80
    batch_size: int = 256
    width: int = 1024
    depth: int = 3
    channels: int = 32
    multipliers: tuple[int, ...] = (1, 2, 4, 8, 16, 16)
    tested: int = 1024
    masks: int = 256
    alternatives: int = 32
    runs: int = 3
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Oracles:
    """Networks that assess counterfactuals.

    Arguments:
        opinion: A classifier that is independent of the explained one.
        likeness: The distance between the persons on two batches of portraits.
        lpips: Perceptual distances, by what they are called.
    """

    opinion: Classifier
    likeness: Callable[[Tensor, Tensor], Tensor]
    lpips: Mapping[str, Callable[[Tensor, Tensor], Tensor]]


def field(kind: str, features: int, settings: Settings) -> VelocityField:
    """Returns the network of a flow: the paper's ``U-Net``, or an ``MLP``."""
    classes = len(CLASSES)
    if kind == "U-Net":
        return UNet1dField(features, classes, settings.channels, settings.multipliers, blocks=1)
    return MLPField(features, classes, width=settings.width, depth=settings.depth)


def train_flow(
    kind: str,
    faces: LabeledFaces,
    settings: Settings,
    seed: int,
    *,
    device: str = "cpu",
    checkpoint: Path | None = None,
    progress: Callable[[float], object] = no_op,
) -> Flow:
    """Trains a flow on faces and the black box's answers on them, as hard labels.

    The paper has batches of 32 and a rate of 2e-4, for 22 hours; here batches are of 256, and the
    rate falls to zero from 1e-2 for the U-Net, whose weights have unit norm, and from 5e-4 for the
    MLP. Leaps take four midpoint steps, where the paper's solver chooses its own.
    """
    torch.manual_seed(seed)
    network = field(kind, faces.w.shape[1], settings)
    flow = Flow(network, Midpoint(4), sigma=SIGMA, soft=False).to(device)
    w, p = faces.w.to(device), faces.p.to(device)
    fit(
        flow,
        w,
        p,
        epochs=settings.epochs,
        batch_size=min(settings.batch_size, len(w)),
        learning_rate=5e-4 if kind == "MLP" else 1e-2,
        weight_decay=1e-5,
        optimizer="adamw",
        schedule="cosine",
        ema=0.999 if settings.epochs * len(w) > 2000 * settings.batch_size else 0.0,
        standardize=True,
        seed=seed,
        checkpoint=checkpoint,
        on_epoch=lambda epoch: progress(epoch.number / epoch.of),
    )
    flow.requires_grad_(False)
    flow.fit_typicality(w, p, per_class=min(500, faces.rarest))
    return flow


@torch.no_grad()
def sample_faces(
    gan: GAN, classifier: Classifier, count: int, seed: int, batch_size: int
) -> LabeledFaces:
    """Samples faces to explain, with the classifier's probabilities."""
    w = gan.sample(count, seed)
    p = torch.cat([classifier(gan.decode(part)) for part in torch.split(w, batch_size)])
    return LabeledFaces(w, p)
