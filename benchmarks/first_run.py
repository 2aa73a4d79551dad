"""A first run with an ordinary slow classifier: does `fit` take the time that it announces?

Fits 6,000 handwritten digits, 28 × 28, to a support vector machine that takes 5 ms a picture, with
the command line as a newcomer would: with no option, and with a budget of 8 minutes. Prints the
announced time beside the real one. Then every plan is tried on all of the held-out pictures, with
all the time in the world, and the plans that `fit` chose in its time are compared with those on
pictures of the test set.

    python -m benchmarks.first_run [folder to work in]
"""

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
UNITS = {"seconds": 1, "minutes": 60, "hours": 3600}
COMPARED = 1000


def announced(text: str) -> float:
    """Returns the announced seconds."""
    found = re.search(r"This will take about ([\d.]+) (seconds|minutes|hours)", text)
    assert found, f"nothing was announced:\n{text}"
    return float(found[1]) * UNITS[found[2]]


def fit(place: Path, out: str, *options: str) -> None:
    """Fits, and prints what was announced beside what it took."""
    words = [sys.executable, "-m", "leapfactual", "fit", "digits/train"]
    words += ["--classifier", "my_models.py:slow", "--out", out, *options]
    started = time.perf_counter()
    with subprocess.Popen(
        words, cwd=place, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        lines = []
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            print(f"{time.perf_counter() - started:6.0f} s  {line}", end="", flush=True)
    took = time.perf_counter() - started
    assert process.returncode == 0, f"fit ended with status {process.returncode}"
    expected = announced("".join(lines))
    print(f"{out}: announced {expected:.0f} s, took {took:.0f} s, ratio {took / expected:.2f}\n")


def compare(place: Path, out: str) -> None:
    """Compares the chosen plans with those of a search without end, on pictures of the test."""
    bundle = Bundle.load(place / out)
    classifier = open_classifier(
        "my_models.py:fast", bundle.probes[:8], bundle.classes, folder=place
    )
    _, x = split(open_images(place / "digits" / "train"), 0, "cpu")
    held_out.ROUNDS = ()  # no plan is left out on account of few pictures
    parts = bundle.generator, classifier, bundle.flow
    every = search_plans(HeldOut(*parts, x[:MAX_SEARCH_IMAGES]))
    test = open_images(place / "digits" / "test")
    rows = torch.linspace(0, len(test) - 1, COMPARED).long()
    fresh = HeldOut(*parts, test[rows], seed=1)
    print(f"{len(every.tried)} plans without end; on {COMPARED} pictures of the test set:")
    for end, name in ((0, "nearest"), (-1, "reliable")):
        for who, front in (("fit", bundle.front), ("without end", every.front)):
            numbers = fresh.rate(front[end].plan).numbers
            values = ", ".join(f"{key} {value:.4f}" for key, value in numbers.items())
            print(f"{out}, {name}, {who}: {values}", flush=True)


def main() -> None:
    """Draws, fits, and compares."""
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        place.mkdir(exist_ok=True)
        (place / "my_models.py").write_text(MODELS)
        if not (place / "digits").exists():
            packages.get("mnist")
            export("mnist", place / "digits", limit=600)
        for out, options in (("no-option", ()), ("eight-minutes", ("--minutes", "8"))):
            if not (place / out).exists():
                fit(place, out, *options)
            compare(place, out)


if __name__ == "__main__":
    main()
