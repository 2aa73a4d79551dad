"""The built wheel, as somebody has it who ran `pip install leapfactual` and nothing else.

Every command is tried in an empty folder, without any extra: it does what it can, and says in a
line what an extra would add. Not a module of pytest, which is not there: `make wheel` builds the
wheel, installs it into an environment of its own, and runs this file with that Python.
"""

import csv
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import distributions
from pathlib import Path

import leapfactual as lf
from leapfactual.imaging import to_pil

COMMAND = [str(Path(sys.executable).parent / "leapfactual")]
EXTRAS = ("h5py", "matplotlib", "onnxruntime", "pandas", "scipy", "sklearn", "starlette")
MODELS = """
from leapfactual.pretrained import load

digits = load().classifier


def wines(x):
    return (x[:, 0] > 0).long()
"""


def run(*words: object, fails: bool = False) -> str:
    """Runs a command, and returns what it printed."""
    result = subprocess.run([*COMMAND, *map(str, words)], capture_output=True, text=True)
    said = " ".join(f"{result.stdout} {result.stderr}".split())
    print(f"leapfactual {' '.join(map(str, words))}: {result.returncode}", flush=True)
    assert result.returncode == fails, said
    assert "Traceback" not in said, said
    return said


def check_images() -> None:
    """From pictures to a bundle, a page, a table of metrics and new pictures."""
    for n, x in enumerate(lf.pretrained.load().digits.images):
        to_pil(x).save(f"digits/{n}.png")
    few = sorted(Path("digits").iterdir())[:8]
    short = ("--epochs", 2, "--flow-epochs", 2, "--minutes", 0.3, "--force")
    run("fit", "digits", "--classifier", "models.py:digits", "--out", "bundle", *short)
    run("explain", "bundle", *few, "--target", 3, "--reliable", "--out", "report")
    assert "<title>" in Path("report/index.html").read_text(encoding="utf-8")
    said = run("evaluate", "bundle", "digits", "--oracle", "models.py:digits", "--out", "numbers")
    assert "AUC" in said, said
    assert "left out: pip install 'leapfactual[metrics]' adds them." in said, said
    assert "validity" in json.loads(Path("numbers/evaluation.json").read_text())["metrics"]
    run("augment", "bundle", *few, "--to", 3, "--out", "more")
    assert "plan" in run("inspect", "bundle")


def check_table() -> None:
    """A table needs no extra either."""
    with Path("table.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["a", "b"])
        rows.writerows([(-1) ** n * (1 + n % 7), n % 5] for n in range(80))
    short = ("--classes", "less,more", "--flow-epochs", 5, "--minutes", 0.2)
    run("fit", "table.csv", "--classifier", "models.py:wines", "--out", "rows", *short)
    run("explain", "rows", "table.csv", "--all-targets", "--out", "changed")


def check_extras() -> None:
    """What an extra is needed for is said in one line, with the extra."""
    Path("data.h5").touch()
    Path("network.onnx").touch()
    fit = ("fit", "digits", "--out", "none", "--classifier")
    for words, extra in (
        (("demo", "faces"), "faces"),
        (("people", "status", "campaign.db"), "people"),
        (("fit", "data.h5", "--classifier", "models.py:digits", "--out", "none"), "hdf5"),
        ((*fit, "network.onnx"), "onnx"),
        (("data", "export", "wine", "wine"), "sklearn"),
    ):
        said = run(*words, fails=True)
        assert f"pip install 'leapfactual[{extra}]'" in said, said
    shipped = lf.pretrained.load()
    explainer = shipped.bundle.explainer(shipped.classifier)
    try:
        explainer.explain(shipped.digits.images[:2], target=3).plot()
    except lf.errors.MissingExtra as error:
        assert "leapfactual[plot]" in str(error), error
    else:
        raise AssertionError("a figure was drawn without matplotlib")


def main() -> None:
    """Checks that the environment is bare, and tries the commands."""
    found = {name for d in distributions() if (name := d.metadata["Name"].lower()) in EXTRAS}
    assert not found, f"this environment is not bare: {found}"
    assert "leapfactual" in run("--version")
    assert "Figures left out: pip install 'leapfactual[plot]' adds them." in run("demo")
    assert "<title>" in Path("demo/index.html").read_text(encoding="utf-8")
    assert "mnist" in run("data", "list")
    Path("digits").mkdir()
    Path("models.py").write_text(MODELS)
    check_images()
    check_table()
    check_extras()
    print(f"The wheel works without extras on Python {sys.version.split()[0]}.")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        main()
