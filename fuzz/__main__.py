"""The command line of the fuzzer."""

import argparse
import os
import sys
import time
from pathlib import Path

# Processes are forked, which threads of torch would not survive. To be set before it is imported.
os.environ["OMP_NUM_THREADS"] = "1"

from .campaign import Tally, run
from .kinds import KINDS


def main() -> int:
    """Runs the fuzzer and returns 1 if anything escaped."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="how many, of all kinds")
    parser.add_argument("--minutes", type=float, help="when to stop, if earlier")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of each kind's first input")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--out", type=Path, default=Path("runs/fuzz"), help="for what escapes")
    given = parser.parse_args()
    started = time.perf_counter()
    tallies = run(
        given.only,
        given.inputs,
        given.seed,
        given.out,
        first=given.first,
        minutes=given.minutes,
    )
    show(tallies)
    print(f"\n{time.perf_counter() - started:.0f} s in all, seed {given.seed}")
    escapes = sum(tally.escapes for tally in tallies.values())
    if escapes:
        print(f"{escapes} escaped: see {given.out}")
    return int(escapes > 0)


def show(tallies: dict[str, Tally]) -> None:
    """Prints a table of what came of the inputs."""
    names = ("inputs", "accepted", "refused", "escapes", "seconds", "slowest")
    print(f"\n{'kind':<14}" + "".join(f"{name:>10}" for name in names))
    whole = Tally()
    for kind, tally in tallies.items():
        _line(kind, tally)
        for name in names[:5]:
            setattr(whole, name, getattr(whole, name) + getattr(tally, name))
        whole.slowest = max(whole.slowest, tally.slowest)
    _line("all", whole)


def _line(kind: str, tally: Tally) -> None:
    counts = (tally.inputs, tally.accepted, tally.refused, tally.escapes)
    cells = "".join(f"{n:>10,}" for n in counts)
    print(f"{kind:<14}{cells}{tally.seconds:>10.0f}{tally.slowest:>10.2f}")


if __name__ == "__main__":
    sys.exit(main())
