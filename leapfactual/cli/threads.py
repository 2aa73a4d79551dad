"""How many threads compute: as many as other work leaves cores free.

A step of training is over when its slowest thread is. On a core that it shares, a thread is late,
and all others wait for it, spinning. On two cores, a step of a VAE took 29 ms with two threads and
55 ms with one; beside one other busy process, 92 and 44; beside five, 597 and 182. So a thread
should have a core for itself, and the number of threads follows what is free. Work of low priority
counts too: on Linux, a nice level means little between sessions, and five such processes slowed
two threads down as much.

Sums of floating-point numbers depend on it in their last digits. ``OMP_NUM_THREADS`` fixes it, for
results that are to be the same bit for bit.
"""

import os
import time
from pathlib import Path

import torch

# Other work that takes less than half a core leaves it to us.
MIN_BUSY = 0.5
# How often the machine is looked at, and how long at first. Twice the same is no coincidence.
SECONDS_BETWEEN, MIN_SECONDS = 10.0, 1.0


class Threads:
    """Creates a watch over the machine, which sets the number of torch's threads.

    It does nothing where ``OMP_NUM_THREADS`` is set, or where the machine does not tell what it
    does, as outside of Linux.
    """

    def __init__(self) -> None:
        self.most = min(torch.get_num_threads(), _quota())
        self.cores = os.cpu_count() or 1
        self.fixed = "OMP_NUM_THREADS" in os.environ or busy_seconds() is None
        self.wanted: int | None = None
        self.last, self.before = time.perf_counter(), self._others()
        self.decided = False

    def adjust(self) -> None:
        """Looks at the machine now and then, and sets the number of threads."""
        elapsed = time.perf_counter() - self.last
        if self.fixed or elapsed < (SECONDS_BETWEEN if self.decided else MIN_SECONDS):
            return
        others = self._others()
        free = self.cores - (others - self.before) / elapsed
        self.last, self.before = time.perf_counter(), others
        wanted = max(1, min(self.most, int(free + MIN_BUSY)))
        if not self.decided or wanted == self.wanted:
            torch.set_num_threads(wanted)
        self.wanted, self.decided = wanted, True

    def _others(self) -> float:
        """Returns for how many seconds cores were busy with other work."""
        return (busy_seconds() or 0.0) - sum(os.times()[:4])


def busy_seconds() -> float | None:
    """Returns for how many seconds, summed over cores, this machine was busy; None if unknown."""
    try:
        name, user, nice, system, _, _, irq, soft, steal, *_ = (
            Path("/proc/stat").read_text().split("\n", 1)[0].split()
        )
        ticks = sum(map(int, (user, nice, system, irq, soft, steal)))
        return ticks / os.sysconf("SC_CLK_TCK") if name == "cpu" else None
    except (OSError, ValueError):
        return None


def _quota() -> int:
    """Returns how many cores a container may use."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, round(int(quota) / int(period)))
    except (OSError, ValueError):
        return os.cpu_count() or 1
