"""A budget of time, and how much training fits into a share of it."""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..files import atomic
from ..training.loop import Epoch

# Steps that are timed, after as many that warm up: long enough to tell, short enough to spend.
TIMED_STEPS = 6
# How often what was spent is kept, while a stage goes on.
NOTE_SECONDS = 5.0


class Budget:
    """Creates a budget for a whole job, which survives an interruption.

    What was decided by a measured speed is kept in a file, so that a job that is resumed decides
    the same, even if the machine is slower now.

    Arguments:
        seconds: The budget.
        path: The file of what was spent and decided.
    """

    def __init__(self, seconds: float, path: Path) -> None:
        self.seconds, self.path = seconds, path
        self.kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        self.started, self.saved = time.perf_counter() - self.spent_before, -math.inf

    @property
    def spent(self) -> float:
        """The seconds that were spent, before an interruption too."""
        return time.perf_counter() - self.started

    @property
    def spent_before(self) -> float:
        """The seconds that had been spent when this was kept last."""
        return float(self.kept.get("spent", 0.0))

    @property
    def left(self) -> float:
        """The seconds that are left, at least a twentieth of the whole."""
        return max(self.seconds - self.spent, 0.05 * self.seconds)

    @property
    def expected_left(self) -> float | None:
        """What was expected to be left when this was kept last; None for a job that begins."""
        value = self.kept.get("expected left")
        return None if value is None else float(value)

    def forget(self, *names: str) -> None:
        """Forgets what was decided under some names."""
        for name in names:
            self.kept.pop(name, None)
        self.save()

    def decide(self, name: str, choose: Callable[[], Any]) -> Any:  # noqa: ANN401 - JSON
        """Returns what was decided under a name, or decides it now and keeps it."""
        if name not in self.kept:
            self.kept[name] = choose()
        self.save()
        return self.kept[name]

    def tally(self, name: str) -> dict[str, Any]:
        """Returns a number for each stage, kept with what was spent."""
        return self.kept.setdefault(name, {})  # type: ignore[no-any-return]

    def save(self) -> None:
        """Keeps what was spent so far, so that a job that is resumed does not spend it again."""
        self.kept["spent"], self.saved = self.spent, time.perf_counter()
        with atomic(self.path) as temporary:
            temporary.write_text(json.dumps(self.kept))

    def note(self, left: float | None) -> None:
        """Notes how much the job expects to take from here on, and keeps it now and then."""
        if left is not None:
            self.kept["expected left"] = left
            if time.perf_counter() - self.saved >= NOTE_SECONDS:
                self.save()


def seconds_per_step(train: Callable[[int, Callable[[Epoch], object]], object]) -> float:
    """Times a training on a sample that has :data:`TIMED_STEPS` steps to an epoch.

    Arguments:
        train: Trains for so many epochs and calls back after each.
    """
    marks: list[float] = []

    def on_epoch(_: Epoch) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        marks.append(time.perf_counter())

    train(3, on_epoch)
    return (marks[-1] - marks[-2]) / TIMED_STEPS
