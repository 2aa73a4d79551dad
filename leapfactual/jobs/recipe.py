"""The recipe of a fit: its settings, its budget, its files and the images it learns from."""

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from ..data import Images, Table
from ..errors import InputError
from ..files import fingerprint
from ..training.loop import Epoch
from .budget import Budget
from .job import OnProgress
from .subject import Log

GENERATORS = ("auto", "vae", "wae", "spatial")
# The minutes of a fit of photographs, on a GPU and on a CPU, and how they are shared out. A flow
# on maps gets what is left. Walks gain more by a GPU than training does, so that the choice of
# plans takes a smaller share there.
GPU_MINUTES, CPU_MINUTES = 4.5, 45.0
TRY_SHARE, AUTOENCODER_SHARE, JUDGE_SHARE, FLOW_SHARE = 0.05, 0.34, 0.04, 0.34
GPU_PLAN_SHARE, CPU_PLAN_SHARE = 0.1, 0.2
# A tenth is held out: enough to rate plans on, and little to lose for the training.
HELD_OUT_SHARE, MAX_HELD_OUT = 0.1, 1000
# Images are kept in half precision, up to 1 GiB; more are read when they are needed.
MAX_BYTES_IN_MEMORY = 1 << 30
# A class with less than a third of the mean number of images is drawn as often as the others.
RARE_CLASS_RATIO = 1 / 3
# With fewer images of a class, a flow learns these by heart.
MIN_COUNT = 50
# Images of one batch stand together with their rotations or reflections.
BATCH_SIZE = 256


@dataclass(frozen=True)
class Recipe:
    """The settings of a fit; what is None is chosen by the data.

    Arguments:
        generator: ``auto``, ``vae``, ``wae`` or ``spatial``; for tables there is one choice only.
        features: The number of latent features.
        epochs: The epochs of the generator.
        flow_epochs: The epochs of the flow.
        rotate: Whether to augment with rotations and reflections, for images that have no up.
        seed: The seed of everything random.
        minutes: The time for the whole fit. Photographs take 4.5 minutes on a GPU and 45 on a CPU
            unless it is given; others what they need.
    """

    generator: str = "auto"
    features: int | None = None
    epochs: int | None = None
    flow_epochs: int | None = None
    rotate: bool = False
    seed: int = 0
    minutes: float | None = None

    def __post_init__(self) -> None:
        if self.generator not in GENERATORS:
            raise InputError(
                f"the generator must be one of {', '.join(GENERATORS)}, got {self.generator!r}."
            )
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise InputError(f"`minutes` must be positive, got {self.minutes!r}. Try 10.")


@dataclass(frozen=True, eq=False)
class Run:
    """The settings of a fit, where its parts are kept, and who hears of it."""

    recipe: Recipe
    work: Path
    log: Log
    on_progress: OnProgress
    device: str
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def on_gpu(self) -> bool:
        """Whether it is a GPU that computes."""
        return torch.device(self.device).type == "cuda"

    @cached_property
    def budget(self) -> Budget:
        """The budget of the whole fit."""
        minutes = self.recipe.minutes or (GPU_MINUTES if self.on_gpu else CPU_MINUTES)
        name = fingerprint(json.dumps(asdict(self.recipe)))[:12]
        return Budget(60 * minutes, self.work / f"budget-{name}.json")

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Measures how long a step takes."""
        started = time.perf_counter()
        yield
        self.seconds[step] = time.perf_counter() - started

    def on_epoch(self, step: str) -> Callable[[Epoch], object]:
        """Returns what to call after every epoch of a step."""

        def finish(epoch: Epoch) -> None:
            self.budget.save()
            self.on_progress(epoch.number / epoch.of, step)

        return finish

    def checkpoint(self, part: str, *settings: object) -> Path:
        """Returns the file of a part; another recipe has another file."""
        name = fingerprint(json.dumps([asdict(self.recipe), *settings]))[:12]
        return self.work / f"{part}-{name}.safetensors"


class Part:
    """Some rows of a set: in memory where they fit, else read when they are needed."""

    def __init__(
        self, images: Images | Table, rows: Tensor, device: str, p: Tensor | None = None
    ) -> None:
        self.images, self.rows, self.device, self.p = images, rows, device, p
        self.names = [f"{len(images)} images", *images.names[:: max(1, len(images) // 1000)]]
        self.kept: Tensor | None = None
        size = 2 * len(rows) * math.prod(images.shape)
        if size <= MAX_BYTES_IN_MEMORY and len(images.shape) == 3:
            kept = torch.empty(len(rows), *images.shape, dtype=torch.float16)
            for start in range(0, len(rows), 256):
                kept[start : start + 256] = images[rows[start : start + 256]].half()
            self.kept = kept.to(device)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        if self.kept is not None:
            where = index if isinstance(index, slice) else index.to(self.kept.device)
            return self.kept[where].float()
        where = index if isinstance(index, slice) else index.to(self.rows.device)
        return self.images[self.rows[where]].to(self.device)

    def batches(self, batch_size: int) -> Iterator[Tensor]:
        """Yields the images in order, batch by batch."""
        for start in range(0, len(self), batch_size):
            yield self[start : start + batch_size]


def split(images: Images | Table, seed: int, device: str) -> tuple[Part, Tensor]:
    """Returns the images to train on, and those held out, in random order.

    Folders stand one class behind the other, and plans are tried on the first of those held out.
    """
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    out = min(MAX_HELD_OUT, max(10, round(HELD_OUT_SHARE * len(images))))
    return Part(images, order[out:].sort().values, device), images[order[:out]].to(device)


def evenly_spaced(train: Part, n: int) -> Tensor:
    """Returns some of the images, or all if there are no more."""
    return train[torch.linspace(0, len(train) - 1, min(len(train), n)).long()]


def orbits(train: Part, orbit: Callable[[Tensor], Iterable[Tensor]]) -> Iterator[Tensor]:
    """Yields the images in all rotations or reflections, batch by batch."""
    for x in train.batches(BATCH_SIZE):
        yield from orbit(x)


def balance(run: Run, p: Tensor, classes: Sequence[str]) -> bool:
    """Returns whether classes are so uneven that each should be drawn equally often."""
    count = p.argmax(1).bincount(minlength=len(classes))
    present = count[count > 0].double()
    if len(present) < 2:
        raise InputError(
            f"the classifier gives one class, {classes[int(count.argmax())]}, to all of {len(p)} "
            f"images to train on. Give images of other classes too, at least {MIN_COUNT} of each."
        )
    balanced = bool(present.min() < RARE_CLASS_RATIO * present.mean())
    few = [f"{name} {n}" for name, n in zip(classes, count.tolist(), strict=True) if n < MIN_COUNT]
    if few:
        run.log(
            f"Few images to learn a class from: {', '.join(few[:8])}. Below {MIN_COUNT}, expect "
            "counterfactuals of it to be rare and all alike."
        )
    if balanced:
        rare = classes[int(count.where(count > 0, count.max()).argmin())]
        run.log(f"The classes are uneven ({rare} is rare), so each is drawn equally often.")
    return balanced


def check_square(shape: Sequence[int]) -> None:
    """Checks that images can be rotated."""
    if shape[1] != shape[2]:
        raise InputError(
            f"images of {shape[1]} × {shape[2]} cannot be rotated: only square ones can. Resize "
            "them with --size, or leave out --rotate."
        )
