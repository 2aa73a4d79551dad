"""A first run with an ordinary slow classifier: does `fit` take the time that it announces?

Fits 6,000 handwritten digits, 28 × 28, to a support vector machine that takes 5 ms a picture, with
the command line as a newcomer would: with no option, and with a budget of 8 minutes. Prints the
announced time beside the real one, and the longest time in which nothing was heard of the fit.
Then every plan is tried on all of the held-out pictures, with all the time in the world, and the
plans that `fit` chose in its time are compared with those on pictures of the test set. A fast
classifier of the same digits, and photographs in a folder with `train`, take their turns too.

    python -m benchmarks.first_run [folder to work in] [folder of photographs]
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from leapfactual.bundle import Bundle
from leapfactual.classifiers import open_classifier
from leapfactual.data import open_images, packages
from leapfactual.data.export import export
from leapfactual.jobs import held_out
from leapfactual.jobs.held_out import HeldOut
from leapfactual.jobs.plans import search_plans
from leapfactual.jobs.recipe import MAX_SEARCH_IMAGES, split

MODELS = '''
"""A black box that gives labels, and takes 5 ms a picture."""

import time
from functools import cache

from sklearn.svm import SVC

import leapfactual as lf


@cache
def svm():
    train = lf.data.open_images("digits/train")
    rows = list(range(0, len(train), 3))
    return SVC(C=5).fit(train[rows].flatten(1), train.labels[rows])


def fast(x):
    return svm().predict(x.flatten(1).cpu().numpy())


def slow(x):
    svm()
    started = time.perf_counter()
    answer = fast(x)
    while time.perf_counter() - started < 0.005 * len(x):
        pass
    return answer
'''
PHOTOGRAPHS = '''
"""A small convolutional network, trained on the labels when it is first asked."""

from functools import cache

import torch
from torch import nn

import leapfactual as lf

SIZE, STEPS, BATCH = 64, 400, 64


@cache
@torch.enable_grad()
def network():
    train = lf.data.open_images("photographs/train", size=(SIZE, SIZE))
    x, y = train[:], train.labels
    torch.manual_seed(0)
    widths = (3, 32, 64, 128, 128)
    layers = [
        nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU())
        for a, b in zip(widths, widths[1:])
    ]
    made = nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(128, 4))
    optimizer = torch.optim.AdamW(made.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, STEPS)
    for _ in range(STEPS):
        rows = torch.randint(len(x), (BATCH,))
        flipped = x[rows].flip(3) if torch.rand(()) < 0.5 else x[rows]
        optimizer.zero_grad()
        nn.functional.cross_entropy(made(flipped), y[rows]).backward()
        optimizer.step()
        schedule.step()
    return made.eval()


def predict(x):
    return network()(x)
'''
# Runs the command line, and measures for how long its bar stood still.
WATCHED = """
import time
from itertools import pairwise

from leapfactual.cli import main, options

told, move, tell = [], options.Bar.__call__, options.Bar.print


def note(what):
    told.append((time.perf_counter(), what))


def moved(bar, share, what, *rest):
    note(what)
    return move(bar, share, what, *rest)


def printed(bar, text):
    note(text)
    return tell(bar, text)


options.Bar.__call__, options.Bar.print = moved, printed
try:
    main()
finally:
    gaps = [(b - a, what) for (a, what), (b, _) in pairwise(told)]
    longest = [f"{seconds:.1f} s after {what!r:.60}" for seconds, what in sorted(gaps)[:-4:-1]]
    print(f"longest silences: {', '.join(longest)}")
"""
UNITS = {"seconds": 1, "minutes": 60, "hours": 3600}
COMPARED = 1000


def announced(text: str) -> float:
    """Returns the announced seconds."""
    found = re.search(r"This will take about ([\d.]+) (seconds|minutes|hours)", text)
    assert found, f"nothing was announced:\n{text}"
    return float(found[1]) * UNITS[found[2]]


def fit(folder: str, classifier: str, out: str, *options: str) -> None:
    """Fits, and prints what was announced beside what it took."""
    words = ["fit", folder, "--classifier", classifier, "--out", out, *options]
    print(f"$ leapfactual {' '.join(words)}")
    started = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", WATCHED, *words],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        lines = []
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            print(line, end="", flush=True)
    took = time.perf_counter() - started
    assert process.returncode == 0, f"fit ended with status {process.returncode}"
    expected = announced("".join(lines))
    print(f"{out}: announced {expected:.0f} s, took {took:.0f} s, ratio {took / expected:.2f}\n")


def compare(out: str) -> None:
    """Compares the chosen plans with those of a search without end, on pictures of the test."""
    bundle = Bundle.load(out)
    classifier = open_classifier("my_models.py:fast", bundle.probes[:8], bundle.classes)
    _, x = split(open_images("digits/train"), 0, "cpu")
    parts = bundle.generator, classifier, bundle.flow
    rounds, held_out.ROUNDS = held_out.ROUNDS, ()  # no plan is left out for a few pictures
    every = search_plans(HeldOut(*parts, x[:MAX_SEARCH_IMAGES]))
    held_out.ROUNDS = rounds
    test = open_images("digits/test")
    rows = torch.linspace(0, len(test) - 1, COMPARED).long()
    fresh = HeldOut(*parts, test[rows], seed=1)
    print(f"{len(every.tried)} plans without end; on {COMPARED} pictures of the test set:")
    for end, name in ((0, "nearest"), (-1, "reliable")):
        for who, front in (("fit", bundle.front), ("without end", every.front)):
            numbers = fresh.rate(front[end].plan).numbers
            values = ", ".join(f"{key} {value:.4f}" for key, value in numbers.items())
            print(f"{out}, {name}, {who}: {values}", flush=True)
    print()


def main() -> None:
    """Draws, fits, and compares."""
    with tempfile.TemporaryDirectory() as temporary:
        photographs = Path(sys.argv[2]).resolve() if len(sys.argv) > 2 else None
        place = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        place.mkdir(exist_ok=True)
        os.chdir(place)  # where classifiers look for their pictures
        Path("my_models.py").write_text(MODELS)
        Path("my_photographs.py").write_text(PHOTOGRAPHS)
        if not Path("digits").exists():
            packages.get("mnist")
            export("mnist", Path("digits"), limit=600)
        slow = "digits/train", "my_models.py:slow"
        for out, options in (("no-option", ()), ("eight-minutes", ("--minutes", "8"))):
            fit(*slow, out, *options, "--overwrite")
            compare(out)
        fit("digits/train", "my_models.py:fast", "fast", "--overwrite")
        if photographs is not None:
            link = Path("photographs")
            link.unlink(missing_ok=True)
            link.symlink_to(photographs)
            options = ("--size", "64", "64", "--minutes", "15", "--overwrite")
            fit("photographs/train", "my_photographs.py:predict", "photographs-bundle", *options)


if __name__ == "__main__":
    main()
