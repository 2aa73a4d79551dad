"""Progress of a job: the share that is done, what is going on, and the time that is left.

What a job of several stages takes is told before it begins, by what was measured: the time of a
step of training, of a query. While a stage runs, its own rate takes the place of that estimate, so
that the time left is that of this machine now. The share that is done is one of time.
"""

import time
from collections.abc import Callable, Mapping

from ..types import no_op

# Before a stage has run for so long, its rate says less than the estimate.
MIN_MEASURED_SECONDS = 5.0


# Called with the share that is done, what is going on, and the seconds that are left if known.
OnProgress = Callable[[float, str, float | None], object]


class Stages:
    """Creates the stages of a job, which tell how far the whole is.

    Arguments:
        on_progress: Called with how far the whole is, see :data:`OnProgress`.
        spent: The seconds that the job took before it was interrupted.
        clock: The time in seconds.
    """

    def __init__(
        self,
        on_progress: OnProgress = no_op,
        spent: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.on_progress, self.clock = on_progress, clock
        self.started = clock() - spent
        self.expected: dict[str, float] = {}
        self.stage, self.what, self.share, self.best = "", "", 0.0, 0.0
        # The share and the time from which on the rate of the stage is measured.
        self.measured_from: tuple[float, float] | None = None

    @property
    def spent(self) -> float:
        """The seconds that the job has taken so far."""
        return self.clock() - self.started

    @property
    def left(self) -> float | None:
        """The seconds that are left, or None where nothing is expected."""
        if not self.expected:
            return None
        later = sum(s for stage, s in self.expected.items() if stage != self.stage)
        return self._left_of_stage() + later

    def expect(self, seconds: Mapping[str, float]) -> None:
        """Says which stages are to come, in order, and about how long each takes."""
        self.expected = dict(seconds)

    def begin(self, stage: str) -> None:
        """Begins a stage; those before it are done."""
        self.expected.pop(self.stage, None)
        names = [*self.expected]
        for name in names[: names.index(stage)] if stage in names else ():
            del self.expected[name]
        self.stage = self.what = stage
        self.share, self.measured_from = 0.0, None

    def advance(self, share: float, what: str) -> None:
        """Says that a share of the stage is done, and what is going on.

        The first share of a stage may have been done before an interruption, so that the rate is
        measured from there.
        """
        self.share, self.what = share, what
        if self.measured_from is None and share > 0:
            self.measured_from = share, self.clock()
        left = self.left
        if left is not None:
            self.best = max(self.best, self.spent / max(self.spent + left, 1e-9))
        self.on_progress(min(self.best, 1.0), what, left)

    def pulse(self) -> None:
        """Says again how far the stage is, while what it waits for goes on."""
        self.advance(self.share, self.what)

    def _left_of_stage(self) -> float:
        if self.measured_from is not None:
            first, since = self.measured_from
            seconds = self.clock() - since
            if seconds >= MIN_MEASURED_SECONDS and self.share > first:
                return seconds / (self.share - first) * (1 - self.share)
        return self.expected.get(self.stage, 0.0) * (1 - self.share)


def duration(seconds: float) -> str:
    """Writes a duration as people say it.

    Example:
        >>> [duration(seconds) for seconds in (0.4, 1.2, 89, 100, 3600, 9000)]
        ['0 seconds', '1 second', '89 seconds', '2 minutes', '60 minutes', '2.5 hours']
    """
    if seconds < 90:
        return "1 second" if round(seconds) == 1 else f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
