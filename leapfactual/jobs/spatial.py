"""Training for photographs: a spatial autoencoder and a flow on its maps, within a budget.

Sizes are chosen by what the machine can do in the time: it is measured, not guessed. The smallest
networks are timed first, and larger ones as long as enough steps of them still fit.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from ..fields import UNet2dField
from ..flow import Flow
from ..generators import SpatialAutoencoder
from ..metrics import best_distance
from ..solvers import Midpoint
from ..training import fit, fit_generator
from ..training.augmentation import random_d4, random_mirror
from ..training.autoencoder import Indexed
from ..training.loop import Epoch
from .budget import TIMED_STEPS, Budget, seconds_per_step

# Latent maps have about 16 × 16 places: what a U-Net can attend over, and a spot of two pixels
# in 128 still has a say in one of them.
PLACES = 16
# The channels of the autoencoder at half of the image's size, and those of the flow.
SIZES = ((32, 48), (64, 96), (128, 128))
# Fewer steps than these and a smaller network learns more in the same time.
MIN_STEPS = 2000
PERCEPTUAL_WEIGHT, ADVERSARIAL_WEIGHT = 0.2, 0.01
SOLVER = Midpoint(3)
MIN_BATCH = 8
T = TypeVar("T")


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
        self, seconds: float, on_epoch: Callable[[Epoch], object], log: Callable[[str], object]
    ) -> tuple[SpatialAutoencoder, int]:
        """Trains the autoencoder; returns it and its number of epochs."""
        return with_memory(
            64 if self.on_gpu else 32, partial(self._autoencoder, seconds, on_epoch, log), log
        )

    def _autoencoder(
        self,
        seconds: float,
        on_epoch: Callable[[Epoch], object],
        log: Callable[[str], object],
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

            size, steps = _largest(seconds, measure)
            return [size, max(2, round(steps * batch / len(self.train)))]

        size, epochs = self.budget.decide(f"autoencoder {batch}", choose)
        model = self._build(size)
        log(
            f"Training a spatial autoencoder of {' × '.join(map(str, model.latent_shape))} "
            f"numbers for {epochs} epochs, about {duration(seconds)}; its sharpness is judged by "
            f"{name}."
        )
        run(
            model,
            self.train,
            epochs=epochs,
            learning_rate=4e-4 * math.sqrt(SIZES[-1][0] / SIZES[size][0]),
            adversarial_from=0.5,
            checkpoint=self.checkpoint("autoencoder", size, epochs, batch, name),
            preview=self.preview,
            on_epoch=on_epoch,
        )
        model.requires_grad_(False)
        return model, epochs

    def flow(
        self,
        model: SpatialAutoencoder,
        z: Tensor,
        p: Tensor,
        seconds: float,
        on_epoch: Callable[[Epoch], object],
        log: Callable[[str], object],
        *,
        balanced: bool,
    ) -> tuple[Flow, int]:
        """Trains the flow on latents and the classifier's answers; returns it and its epochs."""
        return with_memory(
            256 if self.on_gpu else 64,
            partial(self._flow, model, z, p, seconds, on_epoch, balanced),
            log,
        )

    def _flow(
        self,
        model: SpatialAutoencoder,
        z: Tensor,
        p: Tensor,
        seconds: float,
        on_epoch: Callable[[Epoch], object],
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
            field = UNet2dField(model.latent_shape, p.shape[1], channels=SIZES[size][1])
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

            size, steps = _largest(seconds, measure)
            return [size, max(2, round(steps * batch / len(z)))]

        size, epochs = self.budget.decide(f"flow {batch}", choose)
        flow = build(size)
        run(
            flow,
            z,
            p,
            epochs=epochs,
            learning_rate=5e-4 * math.sqrt(SIZES[-1][1] / SIZES[size][1]),
            checkpoint=self.checkpoint("map-flow", size, epochs, batch, balanced),
            on_epoch=on_epoch,
        )
        flow.requires_grad_(False)
        return flow, epochs

    def _build(self, size: int) -> SpatialAutoencoder:
        torch.manual_seed(self.seed)
        return build_autoencoder(self.shape, SIZES[size][0]).to(self.device)


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


def _largest(seconds: float, measure: Callable[[int], float]) -> tuple[int, float]:
    """Returns the largest size of which enough steps fit, and how many do.

    Measuring is part of the time: what it took is not there for the steps.
    """
    started = time.perf_counter()

    def fitting(size: int) -> float:
        each = measure(size)
        return (seconds - (time.perf_counter() - started)) / each

    size, steps = 0, fitting(0)
    # The next larger networks take up to four times as long.
    while size + 1 < len(SIZES) and steps / 4 > MIN_STEPS / 2:
        more = fitting(size + 1)
        if more < MIN_STEPS:
            break
        size, steps = size + 1, more
    return size, steps


def duration(seconds: float) -> str:
    """Writes a duration as people say it."""
    return f"{seconds:.0f} seconds" if seconds < 90 else f"{seconds / 60:.0f} minutes"
