"""How fast is it, against the published procedure, against the hardware, and as things grow?

One run, on the same networks and digits: timings are compared as ratios, with the quality beside
them. The CPU is measured always, on two threads; a GPU where there is one.

===================  ==========================================================================
setting              what is measured
===================  ==========================================================================
``cpu-2``            the published procedure against ours, on two threads
``h200-10000``       the same on a GPU, called by its name, all digits in one batch
``h200-512``         the same in batches of 512, which is what the published procedure takes
``… one digit``      the latency of a single image, and of the first one in a fresh process
``… batches``        counterfactuals per second for batches of 1 to 10,000
``… profile``        what the parts of a counterfactual cost
``… roofline``       the least work, the machine's ceilings, and our share of them
``… growth``         time and memory against images, classes, leaps, latent and image size
``… training``       the paper's flow, and an epoch of its generator
===================  ==========================================================================
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from leapfactual.data import digits, packages
from leapfactual.errors import InputError
from leapfactual.files import atomic
from leapfactual.pretrained import Pretrained, load
from leapfactual.report import tables

from . import growth, published, roofline
from .clock import name

THREADS = 2
CPU_DIGITS, GPU_DIGITS = 1000, 10_000


def run(
    out: Path,
    command: str,
    progress: Callable[[float, str], None],
    *,
    device: str = "cpu",
    count: int | None = None,
    seed: int = 0,
) -> list[tables.Row]:
    """Measures everything; writes ``bench.json`` and ``bench.md``, returns the rows.

    What another machine has measured in the same folder, in other settings, is kept.

    Arguments:
        out: The folder to write to.
        command: How it was called, for the record.
        progress: Called with the share that is done and what is being measured.
        device: ``cpu``, or ``cuda`` to measure a GPU as well.
        count: How many digits. Defaults to 1,000 on the CPU and 10,000 on a GPU.
        seed: The seed of the targets.
    """
    rows: list[tables.Row] = []
    kept: list[tables.Row] = []
    torch_here = f"torch {torch.__version__}"
    places_here = dict.fromkeys((device, "cpu"))
    machines = [f"{tables.hardware(where)}, {torch_here}" for where in places_here]
    commands = [command]
    if (out / "bench.json").exists():
        kept, elsewhere, otherwise = tables.read(out / "bench.json")
        machines += elsewhere.split("; ")
        commands += otherwise.split("; ")
    record: dict[str, Any] = {
        "seed": seed,
        "command": "; ".join(dict.fromkeys(commands)),
        "machine": "; ".join(dict.fromkeys(machines)),
    }
    places = [
        _parts(where, count or (CPU_DIGITS if where == "cpu" else GPU_DIGITS), seed)
        for where in dict.fromkeys((device, "cpu"))
    ]
    parts = [part for together in zip(*places, strict=True) for part in together]
    for n, (where, what, measure) in enumerate(parts):
        progress(n / len(parts), f"{where}: {what}")
        with _threads(where):
            rows += measure()
        all_rows = [*rows, *(r for r in kept if r.setting not in {new.setting for new in rows})]
        tables.write(out / "bench.json", all_rows, **record)
        with atomic(out / "bench.md") as temporary:
            temporary.write_text(tables.pivot(all_rows) + "\n")
    progress(1.0, "done")
    return rows


def _parts(
    device: str, n: int, seed: int
) -> list[tuple[str, str, Callable[[], list[tables.Row]]]]:
    shipped = load()
    shipped.bundle.to(device)
    for classifier in (shipped.classifier, shipped.oracle):
        classifier.to(device)
    images = _digits(shipped, n).to(device)
    work = published.Work.make(shipped, images, seed)
    here = name(device)
    sizes = {f"{here}-{n}": n, f"{here}-512": 512} if device != "cpu" else {f"cpu-{THREADS}": 256}
    measures: dict[str, Callable[[], list[tables.Row]]] = {
        "the published procedure and ours": lambda: published.compare(work, sizes),
        "one digit": lambda: published.one_digit(work, f"{here} one digit"),
        "batches": lambda: published.batches(work, f"{here} batches"),
        "profile": lambda: roofline.profile(work, f"{here} profile"),
        "roofline": lambda: roofline.measure(work, f"{here} roofline"),
        "training": lambda: growth.training(work, f"{here} training"),
        "growth": lambda: growth.measure(work, f"{here} growth"),
    }
    return [(device, what, measure) for what, measure in measures.items()]


def _digits(shipped: Pretrained, n: int) -> torch.Tensor:
    """Returns n test digits: the real ones where they were fetched, else the shipped, repeated."""
    if n < 1:
        raise InputError(f"`digits` must be at least 1, got {n}.")
    if n > len(shipped.digits.images) and packages.present("mnist"):
        found = digits("test").images
    else:
        found = shipped.digits.images
    return found.repeat(-(-n // len(found)), 1, 1, 1)[:n]


@contextmanager
def _threads(device: str) -> Iterator[None]:
    """Measures the CPU on two threads, whatever the machine has."""
    before = torch.get_num_threads()
    if device == "cpu":
        torch.set_num_threads(min(THREADS, before))
    try:
        yield
    finally:
        torch.set_num_threads(before)
