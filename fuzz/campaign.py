"""Runs inputs in processes that may hang, grow or die, and keeps those that escape."""

import gc
import json
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from .kinds import KINDS, Kind
from .watch import MAX_SECONDS, Watch

# A process is let go after so many inputs, so that what libraries keep does not add up.
BATCH = 500
# Where Python is not reached by the alarm, the process is killed.
GRACE_SECONDS = 10.0
BROKEN = "broken"
# So much address space that nothing legitimate fails, and the machine survives what is not.
MAX_ADDRESS_SPACE = 24 << 30


@dataclass
class Tally:
    """How many inputs of a kind there were, and what came of them."""

    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    escapes: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    reasons: dict[str, int] = field(default_factory=dict)

    def add(self, outcome: str, seconds: float) -> None:
        """Counts an input."""
        self.inputs += 1
        self.accepted += outcome == "accepted"
        self.refused += outcome == "refused"
        self.escapes += outcome == "escape"
        self.seconds += seconds
        self.slowest = max(self.slowest, seconds)


def run(
    kinds: Sequence[str],
    inputs: int,
    seed: int,
    out: Path,
    *,
    first: int = 0,
    minutes: float | None = None,
    batch: int = BATCH,
) -> dict[str, Tally]:
    """Throws inputs at the product, the kinds taking turns, and returns what came of them.

    Arguments:
        kinds: Which kinds.
        inputs: How many inputs of all kinds together.
        seed: The seed of all of them.
        out: Where inputs that escape are kept.
        first: The number of the first input of each kind.
        minutes: When to stop, if earlier.
        batch: How many inputs a process takes.
    """
    shares = {name: KINDS[name].share for name in kinds}
    total = sum(shares.values())
    left = {name: max(1, round(inputs * share / total)) for name, share in shares.items()}
    done = dict.fromkeys(kinds, first)
    tallies = {name: Tally() for name in kinds}
    end = None if minutes is None else time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        base = Path(folder)
        made = {}
        for name in kinds:
            (base / name).mkdir()
            made[name] = KINDS[name](base / name)
        while any(left.values()):
            for name in [name for name, n in left.items() if n]:
                if end is not None and time.monotonic() > end:
                    return tallies
                n = min(batch, left[name])
                ran = _run_batch(made[name], seed, done[name], n, base, tallies[name], out)
                done[name] += ran
                left[name] -= ran
    return tallies


def _run_batch(
    kind: Kind, seed: int, first: int, n: int, base: Path, tally: Tally, out: Path
) -> int:
    """Runs some inputs in a process of their own, and returns how many it got through."""
    place = Path(tempfile.mkdtemp(dir=base)).resolve()
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_work, args=(kind, seed, first, n, place, there))
    process.start()
    there.close()
    number = first
    while number < first + n:
        why = ""
        if not here.poll(MAX_SECONDS + GRACE_SECONDS):
            why = f"took more than {MAX_SECONDS + GRACE_SECONDS:g} s, deaf to signals"
            process.kill()
        else:
            try:
                outcome, why, seconds = here.recv()
            except EOFError:
                process.join()
                said = (place / "tmp" / "said").read_text(errors="replace")[-4000:]
                why = f"the process died ({process.exitcode})\n{said}"
            else:
                if outcome == BROKEN:
                    raise RuntimeError(f"the fuzzer itself failed on {kind.name}, {why}")
                tally.add(outcome, seconds)
                if outcome == "escape":
                    _keep(kind, seed, number, why, place, out)
                here.send(None)
                number += 1
                continue
        tally.add("escape", MAX_SECONDS)
        _keep(kind, seed, number, why, place, out)
        number += 1
        break
    process.join()
    shutil.rmtree(place, ignore_errors=True)
    return number - first


def _keep(kind: Kind, seed: int, number: int, why: str, place: Path, out: Path) -> None:
    """Keeps an input that escaped, with what is needed to repeat it."""
    folder = out / f"{kind.name}-{seed}-{number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if (place / "given").is_dir():
        shutil.copytree(place / "given", folder / "given", symlinks=True)
    command = f"python -m fuzz --only {kind.name} --seed {seed} --first {number} --inputs 1"
    (folder / "why.txt").write_text(f"{command}\n\n{why}\n", errors="backslashreplace")
    print(f"{folder}: {why.strip().splitlines()[-1]:.160}".encode("ascii", "replace").decode())


def _work(kind: Kind, seed: int, first: int, n: int, place: Path, parent: Connection) -> None:
    """Runs some inputs; what libraries print goes to a file."""
    for name in ("cache", "tmp"):
        (place / name).mkdir()
    log = os.open(place / "tmp" / "said", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_SPACE, MAX_ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ |= {
        "LEAPFACTUAL_CACHE": str(place / "cache"),
        "HOME": str(place / "cache"),
        "TMPDIR": str(place / "tmp"),
    }
    tempfile.tempdir = None
    sys.path_importer_cache.clear()
    watch = Watch(place)
    for number in range(first, first + n):
        rng = random.Random(json.dumps([seed, kind.name, number]))
        shutil.rmtree(watch.given, ignore_errors=True)
        watch.given.mkdir()
        os.chdir(watch.given)
        try:
            read = kind.make(rng, watch.given, watch.outside)
        except Exception:
            parent.send((BROKEN, f"input {number}\n{traceback.format_exc()}", 0.0))
            return
        outcome = watch.run(read)
        del read
        if number % 50 == 0:
            gc.collect()
        parent.send((outcome.kind, outcome.reason, outcome.seconds))
        # The input stays where it is until it is kept.
        parent.recv()
    parent.close()
