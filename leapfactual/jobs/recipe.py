"""The recipe of a fit: its settings, its budget, its files and the images it learns from."""

import json
import math
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from .. import checks
from ..data import Images, Table
from ..errors import InputError
from ..files import atomic, fingerprint, remove_temporaries
from ..flow import Flow
from ..training.loop import Epoch
from ..types import no_op
from .budget import Budget
from .job import drop_damaged
from .progress import OnProgress, Stages, duration
from .queries import Queries
from .subject import Log

GENERATORS = ("auto", "vae", "wae", "spatial")
# Far more than any image needs; what is larger fills the memory, or takes years.
MOST = {"features": 4096, "epochs": 1_000_000, "flow_epochs": 1_000_000}
# The minutes of a fit of photographs, on a GPU and on a CPU, and how they are shared out. A flow
# on maps gets what is left. Walks gain more by a GPU than training does, so that the choice of
# plans takes a smaller share there, and the autoencoder a larger one: a brittle classifier sees
# diseases in what 90 seconds leave rough of a healthy leaf.
GPU_MINUTES, CPU_MINUTES = 8.0, 45.0
TRY_SHARE, ORACLE_SHARE, FLOW_SHARE = 0.05, 0.04, 0.34
GPU_AUTOENCODER_SHARE, CPU_AUTOENCODER_SHARE = 0.44, 0.34
GPU_PLAN_SHARE, CPU_PLAN_SHARE = 0.1, 0.2
# What is searched for plans without --minutes, as a share of the whole, and at least.
ROWS_PLAN_SHARE, MIN_PLAN_SECONDS = 0.25, 60.0
# A tenth is held out: enough to rate plans on, and little to lose for the training.
HELD_OUT_SHARE, MAX_HELD_OUT = 0.1, 1000
# A few dozen plans are tried; on 256 images, one image is a difference of 0.4 %.
MAX_SEARCH_IMAGES = 256
# The file of the classifier's answers, among the parts.
ANSWERS = "answers.db"
# What a fit writes into its folder: parts, answers, walks, pictures, and what is hidden.
OWN_FILES = re.compile(
    r"[a-z-]+-[0-9a-f]{12}\.(json|safetensors)|answers\.db.*|walks\.jsonl"
    r"|(preview|reconstructions)\.png|\..*"
)
# What a budget knows of a bundle that was begun to be written, and of a fit that is over but for
# the removal of its parts.
WRITTEN, OVER = "written", "over"
# Images are kept as bytes, or in half precision, up to 1 GiB; more are read when they are needed.
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
        minutes: The time for the whole fit. Photographs take 8 minutes on a GPU and 45 on a CPU
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
        for name, most in MOST.items():
            if getattr(self, name) is not None:
                checks.positive(getattr(self, name), name, most)
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise InputError(f"`minutes` must be positive, got {self.minutes!r}. Try 10.")


@dataclass(frozen=True, eq=False)
class Run:
    """The settings of a fit, where its parts are kept, and who hears of it.

    Arguments:
        recipe: The settings.
        work: The folder of what is kept until the bundle is done.
        log: Called with a sentence at a time.
        device: Where to compute.
        stages: Tells how far the whole is.
        queries: The classifier, whose queries are counted; None where people voted.
    """

    recipe: Recipe
    work: Path
    log: Log
    device: str
    stages: Stages = field(default_factory=Stages)
    queries: Queries | None = None

    @classmethod
    def begin(
        cls,
        recipe: Recipe,
        work: Path,
        classifier: object,
        device: str,
        log: Log,
        on_progress: OnProgress,
    ) -> Self:
        """Begins a fit, or resumes the one whose parts are in the folder.

        Arguments:
            recipe: The settings.
            work: The folder of what is kept until the bundle is done.
            classifier: The classifier, or votes of people.
            device: Where to compute.
            log: Called with a sentence at a time.
            on_progress: Called with how far the whole is.
        """
        _refuse_foreign_files(work)
        remove_temporaries(work)
        for path in sorted(work.glob("*.*")):
            drop_damaged(path, log)
        queries = None
        if callable(classifier):
            queries = Queries(classifier, work / ANSWERS, watched=True)
        run = cls(recipe, work, log, device, Stages(on_progress), queries)
        if OVER in run.budget.kept:
            run._remove()
            run = cls(recipe, work, log, device, Stages(on_progress), queries)
        if queries is not None:
            queries.on_call = run.stages.pulse
            queries.asked = run.budget.tally("queries")
            queries.seconds = run.budget.tally("seconds of queries")
        run.stages.started -= run.budget.spent_before
        return run

    def end(self, answers: Path) -> None:
        """Removes the folder of the parts; answers that were kept go where they are asked for.

        Until all of them are there, a fit that is killed can be resumed; from there on it is over.

        Arguments:
            answers: The file to keep them in.
        """
        if self.queries is not None:
            kept = self.queries.kept
            self.queries.close()
            if kept:
                try:
                    with atomic(answers) as temporary:
                        shutil.copyfile(self.work / ANSWERS, temporary)
                except OSError as error:
                    self.log(f"The classifier's answers cannot be kept for later: {error}.")
        self.budget.decide(OVER, lambda: True)
        self._remove()

    def _remove(self) -> None:
        """Removes the folder of the parts, and last the file that says that the fit is over."""
        for path in self.work.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path != self.budget.path:
                path.unlink()
        shutil.rmtree(self.work, ignore_errors=True)

    def tell_cost(self) -> None:
        """Says how long the fit took, and how many queries each stage made."""
        text = f"It took {duration(self.budget.spent)}."
        if self.queries is not None and self.asked:
            stages = ", ".join(f"{n:,} for the {name}" for name, n in self.asked.items())
            text += (
                f" The classifier was asked about {sum(self.asked.values()):,} images ({stages}), "
                f"which took {duration(sum(self.queries.seconds.values()))}."
            )
        self.log(text)

    def forget_answers(self) -> None:
        """Removes what depends on the classifier's answers, since the classifier has changed."""
        for path in self.work.iterdir():
            if not path.name.startswith(("generator", "autoencoder", "budget", ANSWERS, ".")):
                path.unlink()
        self.budget.forget("orientations")

    @property
    def asked(self) -> dict[str, int]:
        """How many images each stage asked the classifier about, before an interruption too."""
        return {} if self.queries is None else dict(self.queries.asked)

    @property
    def seconds_of_stages(self) -> dict[str, float]:
        """How long each stage took, and all of them, before an interruption too."""
        return {
            **{name: round(seconds, 1) for name, seconds in self.budget.tally("seconds").items()},
            "all": round(self.budget.spent, 1),
        }

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

    @property
    def autoencoder_seconds(self) -> float:
        """The time for a generator."""
        share = GPU_AUTOENCODER_SHARE if self.on_gpu else CPU_AUTOENCODER_SHARE
        return share * self.budget.seconds

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Times a stage, and counts its queries."""
        started = time.perf_counter()
        self.stages.begin(name)
        if self.queries is not None:
            self.queries.stage = name
        try:
            yield
        finally:
            seconds = self.budget.tally("seconds")
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - started
            if self.work.exists():
                self.budget.save()
        if name in self.stages.expected:
            self.stages.share = 1.0
            self.budget.note(self.stages.left)
        self.budget.save()

    def advance(self, share: float, what: str) -> None:
        """Says that a share of the stage is done, and what is going on."""
        self.stages.advance(share, what)
        self.budget.note(self.stages.left)

    def training(self, what: str, start: float = 0.0, end: float = 1.0) -> dict[str, Any]:
        """Returns what a training calls on its way, which is a part of a stage."""

        def advance(share: float) -> None:
            self.advance(start + (end - start) * share, what)

        def finish(epoch: Epoch) -> None:
            advance(epoch.number / epoch.of)
            self.budget.save()

        return {"on_epoch": finish, "on_progress": advance}

    def checkpoint(self, part: str, *settings: object) -> Path:
        """Returns the file of a part; another recipe has another file."""
        name = fingerprint(json.dumps([asdict(self.recipe), *settings]))[:12]
        return self.work / f"{part}-{name}.safetensors"


def _refuse_foreign_files(work: Path) -> None:
    """Refuses a folder that is to be removed in the end, but holds what no fit has written."""
    names = [path.name for path in work.iterdir()] if work.is_dir() else []
    foreign = sorted(name for name in names if not OWN_FILES.fullmatch(name))
    if foreign:
        raise InputError(
            f"{work} is where the parts of a fit are kept until it is over, but it holds "
            f"{', '.join(foreign[:3])}. Move that away first, or give another --out."
        )


class Part:
    """Some rows of a set: in memory where they fit, else read when they are needed."""

    def __init__(
        self,
        images: Images | Table,
        rows: Tensor,
        device: str,
        p: Tensor | None = None,
        on_progress: Callable[[float], object] = no_op,
    ) -> None:
        self.images, self.rows, self.device, self.p = images, rows, device, p
        self.names = [f"{len(images)} images", *images.names[:: max(1, len(images) // 1000)]]
        self.kept: Tensor | None = None
        size = 2 * len(rows) * math.prod(images.shape)
        if size <= MAX_BYTES_IN_MEMORY and len(images.shape) == 3:
            self.kept = _read_all(images, rows, on_progress).to(device)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        if self.kept is not None:
            where = index if isinstance(index, slice) else index.to(self.kept.device)
            some = self.kept[where].float()
            return some / 255 if self.kept.dtype == torch.uint8 else some
        where = index if isinstance(index, slice) else index.to(self.rows.device)
        return self.images[self.rows[where]].to(self.device)

    def batches(self, batch_size: int) -> Iterator[Tensor]:
        """Yields the images in order, batch by batch."""
        for start in range(0, len(self), batch_size):
            yield self[start : start + batch_size]


def _read_all(
    images: Images | Table, rows: Tensor, on_progress: Callable[[float], object]
) -> Tensor:
    """Returns images as bytes, or in half precision where they have finer shades."""
    kept = torch.empty(len(rows), *images.shape, dtype=torch.uint8)
    for start in range(0, len(rows), 256):
        x = images[rows[start : start + 256]]
        levels = (x * 255).round()
        if kept.dtype == torch.uint8 and not torch.equal(levels / 255, x):
            kept = (kept.float() / 255).half()
        kept[start : start + 256] = levels if kept.dtype == torch.uint8 else x
        on_progress(min(1.0, (start + 256) / len(rows)))
    return kept


def split(
    images: Images | Table,
    seed: int,
    device: str,
    on_progress: Callable[[float], object] = no_op,
) -> tuple[Part, Tensor]:
    """Returns the images to train on, and those held out, in random order.

    Folders stand one class behind the other, and plans are tried on the first of those held out.
    """
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    out = min(MAX_HELD_OUT, max(10, round(HELD_OUT_SHARE * len(images))))
    train = Part(images, order[out:].sort().values, device, on_progress=on_progress)
    return train, images[order[:out]].to(device)


def evenly_spaced_rows(of: int, n: int) -> Tensor:
    """Returns some of the rows, or all if there are no more."""
    return torch.linspace(0, of - 1, min(of, n)).long()


def evenly_spaced(train: Part, n: int) -> Tensor:
    """Returns some of the images, or all if there are no more."""
    return train[evenly_spaced_rows(len(train), n)]


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


def fit_scale(
    run: Run, flow: Flow, z: Tensor, p: Tensor, per_class: int, batch_size: int = 1024
) -> None:
    """Gives a flow its scale of typicality; what is done of it, class by class, is kept.

    On maps a CPU takes a fifth of a second for each latent.

    Arguments:
        run: The fit.
        flow: The flow, trained.
        z: The training latents, with shape ``(N, D)``.
        p: What the classifier says of their images, with shape ``(N, K)``.
        per_class: How many latents of each class to look at.
        batch_size: How many latents at a time.
    """
    weights, labels = fingerprint(*flow.field.state_dict().values())[:12], p.argmax(1)
    scale = torch.full_like(flow.quantiles, math.nan)
    seen, start = sorted({*labels.tolist()}), run.stages.share
    for n, label in enumerate(seen):
        rows = (labels == label).nonzero()[:per_class, 0]

        def tell(done: int, n: int = n, of: int = len(rows)) -> None:
            share = (n + done / of) / len(seen)
            run.advance(start + (1 - start) * share, "measuring typicality")

        def measure(label: int = label, rows: Tensor = rows) -> list[float]:
            flow.fit_typicality(z[rows], p[rows], per_class, batch_size, tell)
            return flow.quantiles[label].tolist()

        kept = run.budget.decide(f"scale {label} {weights}", measure)
        scale[label] = torch.tensor(kept)
    flow.quantiles.copy_(scale)


def check_square(shape: Sequence[int]) -> None:
    """Checks that images can be rotated."""
    if shape[1] != shape[2]:
        raise InputError(
            f"images of {shape[1]} × {shape[2]} cannot be rotated: only square ones can. Resize "
            "them with --size, or leave out --rotate."
        )
