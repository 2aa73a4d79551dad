"""Kills the commands that take long, again and again: is anything lost, or asked twice?

Each command runs once undisturbed. Then it runs anew, is killed at random moments, with SIGKILL,
SIGINT and SIGTERM in turn, and is given again after each. What it leaves in the end must equal
what the undisturbed run left, file by file and byte by byte, apart from times that were measured.
The classifier takes 2 ms a picture and writes down what it was asked: only the pictures that tell
whether it is still the same may come again, and those of one call, which was answered right before
the kill. `fit` gets time for the whole search of plans, since how far a search gets that runs out
of time depends on the load of the machine, killed or not.

    python -m benchmarks.kills --kills 60 --seed 0
"""

import argparse
import csv
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from leapfactual.jobs.fit import work_folder
from leapfactual.jobs.queries import PROBES

CLASSIFIER = '''
"""A black box that takes 2 ms a picture, and writes down what it was asked."""

import hashlib
import os
import time
from functools import cache
from pathlib import Path

import numpy as np
from sklearn.svm import SVC


@cache
def svm():
    data = np.load("digits.npz")
    return SVC(C=5).fit(data["images"].reshape(len(data["images"]), -1) / 255, data["labels"])


def predict(x):
    time.sleep(0.002 * len(x))
    x = x.flatten(1).cpu().numpy()
    answer = svm().predict(x)
    with Path(os.environ["ASKED"]).open("a") as file:
        file.write(" ".join(hashlib.sha256(row.tobytes()).hexdigest()[:16] for row in x) + "\\n")
    return answer
'''
# Runs the command line, and writes down how far it is and at which stage.
WATCHED = """
import os
from pathlib import Path

from leapfactual.cli import main, options

told, move = Path(os.environ["TOLD"]), options.Bar.__call__


def tell(bar, share, what, left):
    new = told.with_suffix(".new")
    new.write_text(f"{share} {what}")
    new.replace(told)
    return move(bar, share, what, left)


options.Bar.__call__ = tell
main()
"""
FIT = (
    "fit digits.npz --classifier my_models.py:predict --out {out} --epochs 60 --flow-epochs 60 "
    "--minutes 5 --force"
)
USING = "{bundle} few.npz --classifier my_models.py:predict"
COMMANDS = {
    "fit": FIT,
    "explain": f"explain {USING} --all-targets --reliable --out {{out}}",
    "evaluate": f"evaluate {USING} --all-targets --reliable --out {{out}}",
    "augment": f"augment {USING} --out {{out}}",
}
SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
# Half of all kills hit `fit`, which has the most stages.
SHARES = {"fit": 3, "explain": 1, "evaluate": 1, "augment": 1}
# A kill comes so long after the share that it waits for.
MAX_DELAY = 0.5
# So often is one run killed, before another is begun: who resumes is soon near the end.
KILLS_PER_RUN = 5
# What a clock measured, and how often the classifier was asked, which is counted apart: in a page,
# in a line or a column of a table, in JSON.
CLOCK = re.compile(r".*\b(seconds|milliseconds)")
IN_PAGE = re.compile(rb'"milliseconds":[^,}]+|"mean milliseconds",[^]]+')


class Command:
    """Creates a command that can be killed.

    Arguments:
        name: Which.
        place: The folder to work in.
        out: The folder that it writes to.
    """

    def __init__(self, name: str, place: Path, out: str) -> None:
        self.name, self.place, self.out = name, place, place / out
        words = COMMANDS[name].format(out=out, bundle="undisturbed-fit")
        self.words = [sys.executable, "-c", WATCHED, *words.split()]
        self.seen: dict[str, list[float]] = {}
        self.told, self.asked = place / f"{out}.told", place / f"{out}.asked"
        self.environment = {
            **os.environ,
            "TOLD": str(self.told),
            "ASKED": str(self.asked),
            # A cache of its own, so that no answer comes from another run. The number of threads
            # is fixed: the last bit of a sum depends on it.
            "LEAPFACTUAL_CACHE": str(place / f"{out}.cache"),
            "OMP_NUM_THREADS": "1",
        }

    def run(
        self, share: float = 2.0, stage: str = "", delay: float = 0.0, number: int = 0
    ) -> str | None:
        """Runs it, and kills it when it has got so far; returns at what, or None if it ended.

        Arguments:
            share: The share of the job at which to kill it.
            stage: What goes on then; several stages may begin at one share.
            delay: How many seconds after that.
            number: The signal.
        """
        self.told.unlink(missing_ok=True)
        with (self.place / "output.txt").open("w") as output:
            process = subprocess.Popen(
                self.words, cwd=self.place, env=self.environment, stdout=output, stderr=output
            )
        while process.poll() is None:
            done, what = self._told()
            self.seen.setdefault(what, []).append(done)
            if done > share or (done == share and what == stage):
                time.sleep(delay)
                reached = self._told()[1]
                process.send_signal(number)
                if process.wait() != 0:
                    return reached
            time.sleep(0.01)
        said = (self.place / "output.txt").read_text()
        assert process.returncode == 0, f"{self.name} failed:\n{said}"
        return None

    @property
    def is_over(self) -> bool:
        """Whether a `fit` was killed behind its end: given again, it would be refused."""
        return self.name == "fit" and self.out.exists() and not work_folder(self.out).exists()

    def calls(self) -> list[list[str]]:
        """Returns which pictures the classifier was asked about since the last time, by call."""
        lines = self.asked.read_text().splitlines() if self.asked.exists() else []
        self.asked.unlink(missing_ok=True)
        return [line.split() for line in lines]

    def _told(self) -> tuple[float, str]:
        if not self.told.exists():
            return 0.0, "starting"
        share, _, what = self.told.read_text().partition(" ")
        return float(share), re.sub(r"[\d,.]+", "…", what)


@dataclass
class Tally:
    """What came of killing a command.

    Attributes:
        kills: How often, of each signal.
        stages: At what it was killed.
        runs: How often it ran to its end.
        undisturbed: About how many pictures the classifier is asked by the undisturbed command.
        asked: And by all killed ones.
        probes: How many of these were to see whether the classifier is the same.
        in_flight: How many were answered by the last call before a kill, and asked again.
        lost: How many were asked again for no such reason.
        different: The files that differ from those of the undisturbed command.
    """

    kills: Counter[str] = field(default_factory=Counter)
    stages: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    undisturbed: int = 0
    asked: int = 0
    probes: int = 0
    in_flight: int = 0
    lost: int = 0
    different: list[str] = field(default_factory=list)


def kill(name: str, place: Path, kills: int, generator: random.Random) -> Tally:
    """Kills a command so often, and returns what came of it.

    A stage to kill it at is drawn, and a share of the job at which it was in that stage. Where it
    ends before it has been killed often enough, it is begun anew in another folder.
    """
    tally = Tally()
    undisturbed = Command(name, place, f"undisturbed-{name}")
    undisturbed.run()
    tally.undisturbed = sum(map(len, undisturbed.calls()))
    left = kills
    while left:
        command = Command(name, place, f"killed-{name}-{tally.runs}")
        stages = generator.choices(sorted(undisturbed.seen), k=min(left, KILLS_PER_RUN))
        order = [*undisturbed.seen]
        shares = sorted(
            (generator.choice(undisturbed.seen[stage]), order.index(stage)) for stage in stages
        )
        known: set[str] = set()
        pending: set[str] = set()
        for share, turn in [*shares, (2.0, 0)]:
            number = SIGNALS[(kills - left) % len(SIGNALS)]
            delay = generator.uniform(0, MAX_DELAY)
            stage = command.run(share, order[turn], delay, number)
            calls = command.calls()
            work = _count(tally, calls, known, pending)
            known.update(*work)
            # Answered right before the kill, and maybe not kept.
            pending.update(work[-1] if work else ())
            if stage is None:
                break
            left -= 1
            tally.kills[number.name] += 1
            tally.stages[stage] += 1
            if command.is_over:
                break
        tally.different += different(undisturbed.out, command.out)
        tally.runs += 1
    return tally


def _count(
    tally: Tally, calls: list[list[str]], known: set[str], pending: set[str]
) -> list[list[str]]:
    """Counts the queries of one process, of which others knew some answers; returns its work.

    Up to the first call about so many pictures, a classifier is opened and recognized, undisturbed
    or not. Work is what comes then.
    """
    opened = next((n for n, call in enumerate(calls, 1) if len(call) == PROBES), len(calls))
    tally.asked += sum(map(len, calls))
    tally.probes += sum(map(len, calls[:opened]))
    for call in calls[opened:]:
        tally.in_flight += sum(picture in pending for picture in call)
        tally.lost += sum(picture in known - pending for picture in call)
        pending.difference_update(call)
    return calls[opened:]


def different(expected: Path, found: Path) -> list[str]:
    """Returns the names of files that differ by more than what was measured."""

    def contents(folder: Path) -> dict[str, object]:
        paths = (path for path in folder.rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): _unmeasured(path) for path in paths}

    a, b = contents(expected), contents(found)
    return [f"{found.name}/{name}" for name in sorted({*a, *b}) if a.get(name) != b.get(name)]


def _unmeasured(path: Path) -> object:
    """Returns the content of a file without what was measured."""
    if path.suffix == ".json":
        return _prune(json.loads(path.read_text()))
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return [_prune(row) for row in csv.DictReader(file)]
    if path.suffix == ".md":
        return [line for line in path.read_text().splitlines() if not CLOCK.match(line)]
    return IN_PAGE.sub(b"", path.read_bytes())


def _prune(value: object) -> object:
    if isinstance(value, list):
        rows = (row for row in value if not isinstance(row, dict) or not _is_time(row))
        return [_prune(row) for row in rows]
    if not isinstance(value, dict):
        return value
    kept = {key: each for key, each in value.items() if not CLOCK.match(key)}
    # Of a bundle.
    if "recipe" in kept:
        del kept["queries"]
    return {key: _prune(each) for key, each in kept.items()}


def _is_time(row: dict[str, object]) -> bool:
    return bool(CLOCK.match(str(row.get("metric"))))


def prepare(place: Path) -> None:
    """Writes small digits of four classes, and a classifier of them."""
    x, y = load_digits(return_X_y=True)
    few = y < 4
    images = np.pad((x[few].reshape(-1, 8, 8) * 15.9).astype(np.uint8), ((0, 0), (4, 4), (4, 4)))
    for name, rows in (("digits", slice(0, 500)), ("few", slice(500, 560))):
        np.savez(place / f"{name}.npz", images=images[rows], labels=y[few][rows])
    (place / "my_models.py").write_text(CLASSIFIER)


def main() -> None:
    """Kills every command, and prints a table of what came of it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    generator = random.Random(given.seed)
    # A shell lets what it runs in the background ignore SIGINT, and so would the commands.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        prepare(place)
        for name, share in SHARES.items():
            kills = max(1, round(given.kills * share / sum(SHARES.values())))
            show(name, kill(name, place, kills, generator))


def show(name: str, tally: Tally) -> None:
    """Prints what came of killing a command."""
    print(f"{name}: {dict(tally.kills)} at {dict(tally.stages)}")
    print(
        f"  {tally.runs} runs asked about {tally.asked} pictures (undisturbed: "
        f"{tally.undisturbed} each): "
        f"{tally.probes} to see that the classifier is the same, {tally.in_flight} again that "
        f"were answered right before a kill, {tally.lost} again for no reason"
    )
    print(f"  files that differ: {', '.join(tally.different) or 'none'}", flush=True)


if __name__ == "__main__":
    main()
