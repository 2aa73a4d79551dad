"""The training loop that flows and autoencoders share: Adam on mini-batches, with exact resume."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW

from .. import checks
from .._engine.cuda_graphs import CapturedStep, make_adam, set_learning_rate
from ..errors import InputError, TrainingError
from ..types import no_op
from .state import TrainingState, reseed

OPTIMIZERS: dict[str, type[Adam]] = {"adam": Adam, "adamw": AdamW}
SCHEDULES = ("constant", "cosine")
PRECISIONS = ("float32", "bfloat16")
# Checkpoints that take less time than this are written after every epoch; within long epochs one
# is written as often as an interruption may cost. Progress is shown as often as a bar moves.
MIN_COST, MAX_LOST_SECONDS, PROGRESS_SECONDS = 0.1, 30.0, 0.5

Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class Epoch:
    """Progress after an epoch: its number, of how many, its mean loss, seconds so far."""

    number: int
    of: int
    loss: float
    seconds: float


def learning_rate_at(schedule: str, largest: float, step: int, steps: int) -> float:
    """Returns the learning rate of a step: constant, or falling to zero as a cosine.

    Example:
        >>> [round(learning_rate_at("cosine", 1.0, step, 4), 2) for step in range(5)]
        [1.0, 0.85, 0.5, 0.15, 0.0]
    """
    if schedule == "constant":
        return largest
    return largest * 0.5 * (1 + math.cos(math.pi * step / steps))


def check_choice(value: str, known: Iterable[str], name: str) -> None:
    """Checks that an option is one of those that are known."""
    if value not in known:
        raise InputError(f"`{name}` must be one of {list(known)}, got {value!r}.")


@contextmanager
def _seeded_dropout(rng: torch.Generator) -> Iterator[None]:
    """Seeds torch's own generator, which dropout draws from, and gives it back as it was."""
    on_gpu = rng.device.type == "cuda"
    with torch.random.fork_rng(devices=[rng.device] if on_gpu else []):
        seed = torch.cuda.manual_seed if on_gpu else torch.default_generator.manual_seed
        seed(rng.initial_seed())
        yield


class _Writer:
    """Writes checkpoints, large ones so seldom that they take a tenth of the time at most."""

    def __init__(self, path: str | Path | None) -> None:
        self.path = path
        self.cost, self.last = 0.0, time.perf_counter()

    @property
    def due(self) -> bool:
        return self.path is not None and (self.cost < MIN_COST or self.waited >= 10 * self.cost)

    @property
    def due_within_epoch(self) -> bool:
        return self.due and self.waited >= MAX_LOST_SECONDS

    @property
    def waited(self) -> float:
        return time.perf_counter() - self.last

    def write(self, state: TrainingState) -> None:
        assert self.path is not None
        started = time.perf_counter()
        state.write(Path(self.path))
        self.last = time.perf_counter()
        self.cost = self.last - started


@dataclass(frozen=True)
class Loop:
    """Creates a training loop.

    Arguments:
        epochs: How often to go through the data.
        batch_size: How many rows to a step.
        learning_rate: The learning rate, at its largest.
        weight_decay: The weight decay.
        optimizer: ``adam`` or ``adamw``.
        schedule: ``constant``, or ``cosine`` for a rate that falls to zero at the end.
        ema: The decay of an exponential moving average of the weights, which become the trained
            ones; 0 for none.
        seed: The seed of everything random, initial weights excepted.
        checkpoint: A file to keep the state in after every epoch, every few where writing takes
            long, and within long ones. If it exists, training resumes from there.
        on_epoch: Called after every epoch.
        on_progress: Called every now and then with the share that is done.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float = 0.0
    optimizer: str = "adam"
    schedule: str = "constant"
    ema: float = 0.0
    seed: int = 0
    checkpoint: str | Path | None = None
    on_epoch: Callable[[Epoch], object] | None = None
    on_progress: Callable[[float], object] = no_op

    def __post_init__(self) -> None:
        checks.positive(self.epochs, "epochs")
        checks.positive(self.batch_size, "batch_size")
        check_choice(self.optimizer, OPTIMIZERS, "optimizer")
        check_choice(self.schedule, SCHEDULES, "schedule")
        if not 0 < self.learning_rate < math.inf:
            raise InputError(
                f"`learning_rate` must be positive, got {self.learning_rate!r}. Try 1e-3."
            )
        if not 0 <= self.weight_decay < math.inf:
            raise InputError(f"`weight_decay` must be at least 0, got {self.weight_decay!r}.")
        if not 0 <= self.ema < 1:
            raise InputError(
                f"`ema` must be in [0, 1), got {self.ema!r}. Try 0.999, or 0 for none."
            )

    def settings(self) -> dict[str, object]:
        """Returns what a checkpoint must agree with, as values that JSON can hold."""
        return {
            name: getattr(self, name)
            for name in self.__dataclass_fields__
            if name not in ("checkpoint", "on_epoch", "on_progress")
        }

    def begin(
        self,
        modules: dict[str, nn.Module],
        identity: Callable[[], tuple[Mapping[str, object], str]],
    ) -> TrainingState:
        """Returns the state to train from: that of the checkpoint, if there is one.

        Arguments:
            modules: The modules to train, by name. The first is the one that :meth:`run` trains
                and averages; others are trained by its objective.
            identity: Returns what else a checkpoint must agree with, the model's configuration
                among it, and a fingerprint of the data; called only if there is a checkpoint.
        """
        settings, data = ({}, "") if self.checkpoint is None else identity()
        kind = OPTIMIZERS[self.optimizer]
        state = TrainingState(
            settings={**self.settings(), **settings},
            data=data,
            modules=modules,
            optimizers={
                name: make_adam(
                    kind, list(module.parameters()), self.learning_rate, self.weight_decay
                )
                for name, module in modules.items()
            },
            ema=self.ema,
        )
        if self.checkpoint is not None and Path(self.checkpoint).exists():
            state.read(Path(self.checkpoint))
        return state

    def run(
        self,
        state: TrainingState,
        objectives: Mapping[int, Callable[..., Tensor]],
        batches: Callable[[], Iterable[Batch]],
        rng: torch.Generator,
        *,
        rows: int,
        capture: bool,
        advice: str = "",
    ) -> list[float]:
        """Trains the first module of ``state``, and returns the mean loss of every epoch.

        Arguments:
            state: What :meth:`begin` returned.
            objectives: From the number of an epoch to the objective from there on: it returns the
                loss of a batch, a scalar.
            batches: Goes through the data once, in random order.
            rng: What objectives and ``batches`` draw from, seeded anew for every epoch.
            rows: The number of rows in the data.
            capture: Whether a step on a GPU may be captured in a CUDA graph.
            advice: What else to try when training diverges.
        """
        optimizer = next(iter(state.optimizers.values()))

        def step(objective: Callable[..., Tensor], *batch: Tensor) -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = objective(*batch)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            state.average()
            return loss.detach()

        def objective_at(epoch: int) -> Callable[..., Tensor]:
            return objectives[max(first for first in objectives if first <= epoch)]

        steps = math.ceil(rows / self.batch_size)
        started = shown = time.perf_counter()
        take: CapturedStep | None = None
        writer = _Writer(self.checkpoint)
        for epoch in range(len(state.losses), self.epochs):
            if take is None or epoch in objectives:
                take = CapturedStep(partial(step, objective_at(epoch)), rng, capture)
            reseed(rng, self.seed, epoch)
            with _seeded_dropout(rng):
                todo = iter(batches())
                total = state.resume_epoch(todo, rng)
                for n, batch in enumerate(todo, epoch * steps + state.step):
                    rate = learning_rate_at(
                        self.schedule, self.learning_rate, n, self.epochs * steps
                    )
                    for each in state.optimizers.values():
                        set_learning_rate(each, rate)
                    total += take(*batch) * len(batch[0])
                    if time.perf_counter() - shown >= PROGRESS_SECONDS:
                        shown = time.perf_counter()
                        self.on_progress((n + 1) / (self.epochs * steps))
                    if writer.due_within_epoch:
                        self._check(state, total.item() / rows, advice)
                        state.pause_epoch(n + 1 - epoch * steps, total, rng)
                        writer.write(state)
            self._check(state, total.item() / rows, advice)
            state.end_epoch(total.item() / rows)
            if writer.due or (self.checkpoint is not None and epoch + 1 == self.epochs):
                writer.write(state)
            if self.on_epoch is not None:
                seconds = time.perf_counter() - started
                self.on_epoch(Epoch(epoch + 1, self.epochs, state.losses[-1], seconds))
        state.finish()
        return list(state.losses)

    def _check(self, state: TrainingState, loss: float, advice: str) -> None:
        """Checks an epoch before it is kept: a step behind the last loss may have diverged too."""
        what = f"the loss is {loss}" if not math.isfinite(loss) else "weights are not finite"
        if math.isfinite(loss) and state.is_finite():
            return
        kept = self.checkpoint is not None and Path(self.checkpoint).exists()
        raise TrainingError(
            f"training diverged in epoch {len(state.losses) + 1}: {what}. Lower learning_rate "
            f"(now {self.learning_rate:g}){advice}."
            + (f" {self.checkpoint} has the last good state that was kept." if kept else "")
        )
