import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import leapfactual as lf
from leapfactual import cli
from leapfactual.studies import squares

run = CliRunner().invoke


def test_version():
    result = run(cli.app, ["--version"])
    assert result.exit_code == 0
    assert result.output == f"leapfactual {lf.__version__}\n"


def test_help_names_every_command():
    result = run(cli.app, ["--help"])
    assert "demo" in result.output
    assert "study" in result.output
    assert (
        "Example: leapfactual study squares" in run(cli.app, ["study", "squares", "--help"]).output
    )


def test_demo_writes_what_it_says(tmp_path, monkeypatch):
    monkeypatch.setattr(squares, "QUICK", squares.Settings(steps=600, runs=1))
    result = run(cli.app, ["demo", "--out", str(tmp_path / "demo")])
    assert result.exit_code == 0, result.output
    names = {p.name for p in (tmp_path / "demo").iterdir()}
    assert names == {
        "squares.png",
        "alphas.png",
        "squares.json",
        "squares.md",
        "squares.safetensors",
    }
    assert "Look at" in result.output
    assert json.loads((tmp_path / "demo" / "squares.json").read_text())["command"].startswith(
        "leapfactual demo"
    )


def test_study_takes_its_options(tmp_path):
    arguments = [
        "study",
        "squares",
        "--out",
        str(tmp_path),
        "--steps",
        "300",
        "--runs",
        "2",
        "--seed",
        "5",
    ]
    result = run(cli.app, arguments)
    assert result.exit_code == 0, result.output
    written = json.loads((tmp_path / "squares.json").read_text())
    assert written["seed"] == 5
    assert written["command"] == "leapfactual study squares --steps 300 --runs 2 --seed 5"


@pytest.mark.parametrize(
    "arguments",
    [["study", "squares", "--steps", "0"], ["study", "squares", "--seed", "-1"], ["nothing"]],
)
def test_wrong_options_are_refused(arguments):
    assert run(cli.app, arguments).exit_code == 2


def test_a_known_error_is_one_line_and_an_unknown_one_keeps_its_traceback(tmp_path):
    (tmp_path / "squares-300-0.checkpoint.safetensors").write_bytes(b"broken")
    call = [
        sys.executable,
        "-m",
        "leapfactual",
        "study",
        "squares",
        "--steps",
        "300",
        "--runs",
        "1",
    ]
    known = subprocess.run([*call, "--out", tmp_path], capture_output=True, text=True, check=False)
    assert known.returncode == 1
    lines = [line for line in known.stderr.splitlines() if "Error" in line]
    assert len(lines) == 1
    assert lines[0].startswith("InputError: ")
    assert "Delete it to start anew." in lines[0]
    assert "Traceback" not in known.stderr

    code = "import leapfactual.cli as c; c.app = lambda: 1 / 0; c.main()"
    unknown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert unknown.returncode == 1
    assert "Traceback" in unknown.stderr
    assert "ZeroDivisionError" in unknown.stderr
