"""Training for photographs: a spatial autoencoder and a flow on its maps, within a budget.

Sizes are chosen by what the machine can do in the time: it is measured, not guessed. The smallest
networks are timed first, and larger ones as long as enough steps of them still fit.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from .._engine.memory import in_halves
from ..data import Images
from ..fields import UNet2dField
from ..flow import Flow
from ..generators import SpatialAutoencoder
from ..metrics import best_distance
from ..training import embed, fit, fit_generator
from ..training.augmentation import d4_orbit, random_d4, random_mirror
from ..training.autoencoder import Indexed
from ..training.loop import Epoch
from ..types import Classifier
from .budget import TIMED_STEPS, Budget, seconds_per_step
from .guided_plans import SOLVER, enough_images, search_guided_plans
from .held_out import HeldOut
from .plans import PlanSearch
from .recipe import (
    BATCH_SIZE,
    CPU_PLAN_SHARE,
    GPU_PLAN_SHARE,
    ORACLE_SHARE,
    TRY_SHARE,
    Part,
    Run,
    balance,
    check_square,
    evenly_spaced,
    fit_scale,
    orbits,
)

# Latent maps have about 16 × 16 places: what a U-Net can attend over, and a spot of two pixels
# in 128 still has a say in one of them.
PLACES = 16
# The channels of autoencoders, at half of the image's size, and of flows. An autoencoder of 128
# channels was no better in six minutes of a GPU than one of 64 in four and a half.
AUTOENCODER_SIZES, FLOW_SIZES = (32, 64), (48, 96, 128)
AUTOENCODER_RATE, FLOW_RATE = 5.7e-4, 5e-4
# Fewer steps than these and a smaller network learns more in the same time.
MIN_STEPS = 2000
PERCEPTUAL_WEIGHT, ADVERSARIAL_WEIGHT = 0.2, 0.01
# A field that sees a few thousand latents hundreds of times learns them by heart: on leaves, 380
# passes with a dropout of .15 came to counterfactuals that an independent oracle agreed with as
# often (.90) at a distance of 30 % of that between random leaves, 70 passes over leaves turned in
# eight ways with a dropout of .3 at 24 %. On a CPU, with its few passes, .15 was tried.
GPU_DROPOUT, CPU_DROPOUT, MAX_PASSES = 0.3, 0.15, 150
MIN_BATCH = 8
# Latents of each class that make the scale of typicality.
PER_CLASS = 200
# A CPU takes a fifth of a second for each, and somebody may be watching.
SCORED_ON_CPU = 8
# A flow gets this share of the time even where the autoencoder took longer than it should.
MIN_FLOW_SHARE = 0.2
# Images whose patches an autoencoder begins with: a hundred thousand patches are plenty.
MAX_FIRST_IMAGES = 512
# Mirrored or turned images are trained on too, each with what the classifier says of it, if that
# is mostly the same class. Turning takes eight times the latents and more steps, which a CPU has
# no time for and large sets do not need; and eight times the queries, which a slow classifier may
# take a share of the budget for.
QUERY_SHARE = 0.1
MIN_SYMMETRY, MAX_SYMMETRY_IMAGES, MAX_TURNED_IMAGES = 0.9, 200, 10_000
T = TypeVar("T")
Orbit = Callable[[Tensor], Iterable[Tensor]]


@dataclass(frozen=True, eq=False)
class Trainer:
    """Creates a trainer of photographs' generator and flow.

    Arguments:
        train: The images.
        shape: The shape of an image.
        device: Where to compute.
        budget: The budget of the whole job.
        seed: The seed of everything random.
        checkpoint: Returns the file of a part.
        preview: The picture of reconstructions.
    """

    train: Indexed
    shape: tuple[int, int, int]
    device: str
    budget: Budget
    seed: int
    checkpoint: Callable[..., Path]
    preview: Path

    @property
    def on_gpu(self) -> bool:
        """Whether it is a GPU that computes."""
        return torch.device(self.device).type == "cuda"

    @property
    def precision(self) -> str:
        """The precision to train in."""
        return "bfloat16" if self.on_gpu else "float32"

    def autoencoder(
        self,
        seconds: float,
        log: Callable[[str], object],
        **calls: Any,  # noqa: ANN401 - on_epoch and on_progress
    ) -> tuple[SpatialAutoencoder, int]:
        """Trains the autoencoder; returns it and its number of epochs."""
        return with_memory(
            64 if self.on_gpu else 32, partial(self._autoencoder, seconds, log, calls), log
        )

    def _autoencoder(
        self,
        seconds: float,
        log: Callable[[str], object],
        calls: Mapping[str, Any],
        batch: int,
    ) -> tuple[SpatialAutoencoder, int]:
        batch = min(batch, max(2, len(self.train) // 2))
        distance, name = best_distance(min(self.shape[1:]))
        distance.to(self.device)
        augment = random_d4 if self.shape[1] == self.shape[2] else random_mirror
        run = partial(
            fit_generator,
            batch_size=batch,
            weight_decay=1e-2,
            schedule="cosine",
            ema=0.999,
            perceptual=distance,
            perceptual_weight=PERCEPTUAL_WEIGHT,
            adversarial_weight=ADVERSARIAL_WEIGHT,
            augment=augment,
            precision=self.precision,
            seed=self.seed,
        )

        def choose() -> list[int]:
            rows = torch.arange(TIMED_STEPS * batch) % len(self.train)
            sample = self.train[rows]

            def measure(size: int) -> float:
                """Returns the time of a step, with the critic in half of them."""
                times = []
                for start in (0.0, 1.0):
                    model = self._build(size)

                    def timed(epochs: int, on_epoch: Callable[[Epoch], object]) -> object:
                        return run(
                            model,  # noqa: B023 - used at once
                            sample,
                            epochs=epochs,
                            learning_rate=1e-5,
                            adversarial_from=start,  # noqa: B023
                            on_epoch=on_epoch,
                        )

                    times.append(seconds_per_step(timed))
                return sum(times) / 2

            size, steps = _largest(AUTOENCODER_SIZES, seconds, measure)
            return [size, max(2, round(steps * batch / len(self.train)))]

        size, epochs = self.budget.decide(f"autoencoder {batch}", choose)
        model = self._build(size)
        rows = torch.linspace(0, len(self.train) - 1, min(len(self.train), MAX_FIRST_IMAGES))
        model.initialize(self.train[rows.long()])
        log(
            f"Training a spatial autoencoder of {' × '.join(map(str, model.latent_shape))} "
            f"numbers for {epochs} epochs; sharpness is measured by {name}."
        )
        run(
            model,
            self.train,
            epochs=epochs,
            learning_rate=AUTOENCODER_RATE * math.sqrt(AUTOENCODER_SIZES[-1] / size),
            adversarial_from=0.5,
            checkpoint=self.checkpoint("autoencoder", size, epochs, batch, name),
            preview=self.preview,
            **calls,
        )
        model.requires_grad_(False)
        return model, epochs

    def flow(
        self,
        model: SpatialAutoencoder,
        z: Tensor,
        p: Tensor,
        seconds: float,
        log: Callable[[str], object],
        *,
        balanced: bool,
        **calls: Any,  # noqa: ANN401 - on_epoch and on_progress
    ) -> tuple[Flow, int]:
        """Trains the flow on latents and the classifier's answers; returns it and its epochs."""
        return with_memory(
            256 if self.on_gpu else 64,
            partial(self._flow, model, z, p, seconds, calls, balanced),
            log,
        )

    def _flow(
        self,
        model: SpatialAutoencoder,
        z: Tensor,
        p: Tensor,
        seconds: float,
        calls: Mapping[str, Any],
        balanced: bool,
        batch: int,
    ) -> tuple[Flow, int]:
        batch = min(batch, len(z))
        run = partial(
            fit,
            batch_size=batch,
            weight_decay=1e-2,
            optimizer="adamw",
            schedule="cosine",
            ema=0.9995,
            balanced=balanced,
            standardize=True,
            precision=self.precision,
            seed=self.seed,
        )

        def build(size: int) -> Flow:
            torch.manual_seed(self.seed)
            dropout = GPU_DROPOUT if self.on_gpu else CPU_DROPOUT
            field = UNet2dField(model.latent_shape, p.shape[1], channels=size, dropout=dropout)
            return Flow(field, SOLVER).to(z.device)

        def choose() -> list[int]:
            rows = torch.arange(TIMED_STEPS * batch, device=z.device) % len(z)

            def measure(size: int) -> float:
                flow = build(size)
                return seconds_per_step(
                    lambda epochs, on_epoch: run(
                        flow,
                        z[rows],
                        p[rows],
                        epochs=epochs,
                        learning_rate=1e-5,
                        on_epoch=on_epoch,
                    )
                )

            size, steps = _largest(FLOW_SIZES, seconds, measure)
            return [size, max(2, round(min(MAX_PASSES, steps * batch / len(z))))]

        size, epochs = self.budget.decide(f"flow {batch}", choose)
        flow = build(size)
        run(
            flow,
            z,
            p,
            epochs=epochs,
            learning_rate=FLOW_RATE * math.sqrt(FLOW_SIZES[-1] / size),
            checkpoint=self.checkpoint("map-flow", size, epochs, batch, balanced),
            **calls,
        )
        flow.requires_grad_(False)
        return flow, epochs

    def _build(self, size: int) -> SpatialAutoencoder:
        torch.manual_seed(self.seed)
        return build_autoencoder(self.shape, size).to(self.device)


def train_generator(
    run: Run, images: Images, train: Part, start: float = 0.0
) -> tuple[SpatialAutoencoder, int]:
    """Trains the autoencoder in its share of the budget; returns it and its epochs.

    Arguments:
        run: The fit.
        images: The set.
        train: The images to train on.
        start: The share of the stage that is done already.
    """
    if not run.on_gpu:
        run.log(
            "On a GPU it would be larger, keep finer detail and take minutes; see --device cuda."
        )
    return _trainer(run, train, images.shape).autoencoder(
        run.autoencoder_seconds, run.log, **run.training("training the generator", start)
    )


def train_flow(
    run: Run,
    train: Part,
    generator: Any,  # noqa: ANN401 - a spatial autoencoder
    classifier: Classifier,
    classes: Sequence[str],
) -> tuple[Flow, dict[str, Any], Tensor]:
    """Trains the flow of a spatial generator; conditions are hard, since guidance needs sides."""
    shape = generator.shape
    orbit = _orbit(run, train, classifier)
    turns = len(list(orbit(train[:1])))
    z, p = embed(orbits(train, orbit), generator, classifier)
    if train.p is not None:
        p = torch.cat([part.repeat(turns, 1) for part in torch.split(train.p, BATCH_SIZE)])
    balanced = balance(run, p, classes)
    flow, epochs = _trainer(run, train, shape).flow(
        generator,
        z,
        p,
        _flow_seconds(run),
        run.log,
        balanced=balanced,
        **run.training("training the flow", 0.05, 0.95),
    )
    batch = 256 if run.on_gpu else SCORED_ON_CPU
    with_memory(batch, lambda batch: fit_scale(run, flow, z, p, PER_CLASS, batch), run.log)
    first = torch.cat([part[:n] for part, n in _first_of_each(p, turns)])
    return flow, {"flow epochs": epochs, "soft": False, "balanced": balanced}, first


def expected_seconds(run: Run) -> dict[str, float]:
    """Returns how long each stage is to take: together, the whole budget."""
    tried = TRY_SHARE * (run.recipe.generator == "auto")
    shares = {
        "generator": tried + run.autoencoder_seconds / run.budget.seconds,
        "flow": 0.0,
        "oracle": ORACLE_SHARE,
        "plan": GPU_PLAN_SHARE if run.on_gpu else CPU_PLAN_SHARE,
    }
    shares["flow"] = 1 - sum(shares.values())
    return {stage: share * run.budget.seconds for stage, share in shares.items()}


def _flow_seconds(run: Run) -> float:
    """Returns what is left of the budget, less what comes behind the flow."""
    behind = ORACLE_SHARE + (GPU_PLAN_SHARE if run.on_gpu else CPU_PLAN_SHARE)
    return max(run.budget.left - behind * run.budget.seconds, MIN_FLOW_SHARE * run.budget.seconds)


def search(run: Run, held_out: HeldOut) -> PlanSearch:
    """Searches guided plans, on as many images as there is time for."""
    # Decided once: a fit that is resumed must rate plans on the same images.
    images = run.budget.decide(
        "plan images", lambda: len(enough_images(held_out, 0.8 * run.budget.left).x)
    )
    few = held_out.first(images)
    search = search_guided_plans(
        few, run.budget.left, lambda share: run.advance(share, "choosing a plan")
    )
    run.log(search.why)
    return search


def _trainer(run: Run, train: Part, shape: tuple[int, int, int]) -> Trainer:
    return Trainer(
        train,
        shape,
        run.device,
        run.budget,
        run.recipe.seed,
        run.checkpoint,
        run.work / "preview.png",
    )


def _first_of_each(p: Tensor, turns: int) -> Iterator[tuple[Tensor, int]]:
    """Yields the answers on every batch of images and its copies, and how many are originals."""
    for part in torch.split(p, BATCH_SIZE * turns):
        yield part, len(part) // turns


def _orbit(run: Run, train: Part, classifier: Classifier) -> Orbit:
    """Returns the symmetries to train with: those that hardly matter to the classifier."""
    if run.recipe.rotate:
        check_square(train.images.shape)
        return d4_orbit
    # Votes are about the images as they are.
    if train.p is not None:
        return _alone
    # Kept, since it depends on how fast the classifier is, and a fit that is resumed must not
    # decide otherwise.
    return ORBITS[run.budget.decide("orientations", lambda: _choose_orbit(run, train, classifier))]


def _choose_orbit(run: Run, train: Part, classifier: Classifier) -> str:
    x = evenly_spaced(train, MAX_SYMMETRY_IMAGES)
    labels = in_halves(classifier, x).argmax(1)

    def same(turned: Tensor) -> float:
        """Returns the share of images that keep their class."""
        kept = in_halves(classifier, turned.contiguous()).argmax(1) == labels
        return kept.double().mean().item()

    started = time.perf_counter()
    name, share = "mirrored", same(x.flip(3))
    seconds = 8 * len(train) * (time.perf_counter() - started) / len(x)
    if share < MIN_SYMMETRY:
        return "as they are"
    affordable = len(train) <= MAX_TURNED_IMAGES and seconds <= QUERY_SHARE * run.budget.seconds
    if run.on_gpu and x.shape[2] == x.shape[3] and affordable:
        least = min(same(turned) for turned in d4_orbit(x))
        if least >= MIN_SYMMETRY:
            name, share = "turned and mirrored", least
    run.log(
        f"The classifier gives {name} images the same class in at least {share:.0%}, so that they "
        "are used as well."
    )
    return name


def _mirrored(x: Tensor) -> tuple[Tensor, ...]:
    return x, x.flip(3)


def _alone(x: Tensor) -> tuple[Tensor, ...]:
    return (x,)


ORBITS: dict[str, Orbit] = {
    "as they are": _alone,
    "mirrored": _mirrored,
    "turned and mirrored": d4_orbit,
}


def build_autoencoder(shape: tuple[int, int, int], width: int) -> SpatialAutoencoder:
    """Builds an autoencoder for images of a shape.

    The more an image is shrunk, the more channels its map has.

    Arguments:
        shape: The shape of an image.
        width: The number of channels at half of the size; further down there are twice as many.

    Example:
        >>> [build_autoencoder((3, n, n), 8).latent_shape for n in (32, 64, 100, 128, 256)]
        [(8, 8, 8), (8, 16, 16), (16, 13, 13), (16, 16, 16), (32, 16, 16)]
    """
    halvings = max(2, round(math.log2(min(shape[1:]) / PLACES)))
    channels = 8 * 2 ** (halvings - 2)
    widths = (width, *[2 * width] * (halvings - 1))
    return SpatialAutoencoder(shape, channels, widths=widths, kl_weight=1e-6)


def with_memory(batch: int, train: Callable[[int], T], log: Callable[[str], object]) -> T:
    """Trains with a batch size, or with half of it where the device runs out of memory."""
    while True:
        try:
            return train(batch)
        except torch.OutOfMemoryError:
            if batch <= MIN_BATCH:
                raise
        # Outside of the handler, so that the failed batch is let go before the next try.
        batch //= 2
        torch.cuda.empty_cache()
        log(f"The device ran out of memory; going on with {batch} images at a time.")


def _largest(
    sizes: Sequence[int], seconds: float, measure: Callable[[int], float]
) -> tuple[int, float]:
    """Returns the largest size of which enough steps fit, and how many do.

    Measuring is part of the time: what it took is not there for the steps.
    """
    started = time.perf_counter()

    def fitting(size: int) -> float:
        each = measure(size)
        return (seconds - (time.perf_counter() - started)) / each

    chosen, steps = sizes[0], fitting(sizes[0])
    for size in sizes[1:]:
        # The next larger networks take up to four times as long.
        if steps / 4 <= MIN_STEPS / 2:
            break
        more = fitting(size)
        if more < MIN_STEPS:
            break
        chosen, steps = size, more
    return chosen, steps
