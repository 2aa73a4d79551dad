"""Time and memory of a piece of work."""

import ctypes
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import torch

T = TypeVar("T")


def name(device: str) -> str:
    """Returns what a device is called in the rows: ``cpu``, ``h200``.

    Example:
        >>> name("cpu")
        'cpu'
    """
    if device == "cpu":
        return "cpu"
    words = torch.cuda.get_device_name(device).lower().replace("nvidia", "").split()
    return words[0] if words else "gpu"


def seconds(work: Callable[[], T], device: str, *, warm: int = 3, times: int = 5) -> list[float]:
    """Returns how long a piece of work takes, several times, after it was done for warmth."""
    for _ in range(warm):
        work()
    found = []
    for _ in range(times):
        wait(device)
        started = time.perf_counter()
        work()
        wait(device)
        found.append(time.perf_counter() - started)
    return found


def wait(device: str) -> None:
    """Waits until a GPU has done what it was given."""
    if device != "cpu":
        torch.cuda.synchronize(device)


def peak(work: Callable[[], object], device: str) -> float:
    """Returns the most memory that a piece of work took, in MiB beyond what was there."""
    if device != "cpu":
        wait(device)
        torch.cuda.reset_peak_memory_stats(device)
        held = torch.cuda.memory_allocated(device)
        work()
        wait(device)
        return (torch.cuda.max_memory_allocated(device) - held) / 2**20
    marks = Path("/proc/self/clear_refs")
    if not os.access(marks, os.W_OK):
        work()
        return float("nan")
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    marks.write_text("5")
    before = _status("VmRSS")
    work()
    return max(0.0, _status("VmHWM") - before)


def resident(device: str) -> float:
    """Returns the memory that is held now, in MiB."""
    if device != "cpu":
        return torch.cuda.memory_reserved(device) / 2**20
    return _status("VmRSS")


def _status(key: str) -> float:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return float("nan")
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(key))
