"""The command of the studies, and that of the benchmarks."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app as benchmarks
from leapfactual.errors import InputError, MissingData
from studies import cli, squares

run = CliRunner().invoke


@pytest.fixture
def few_points(monkeypatch):
    """Measures a few points and draws no panels: what is tested is the command, not the flow."""
    monkeypatch.setattr(squares, "POINTS", 40)
    monkeypatch.setattr(squares, "EXACT_STEPS", 10)
    monkeypatch.setattr(squares, "draw_panels", lambda flow, path: None)


def test_help_names_every_study():
    shown = run(cli.study, ["--help"]).output
    for name in ("squares", "morpho-mnist", "galaxies", "people", "faces"):
        assert name in shown
    shown = run(cli.study, ["squares", "--help"]).output
    assert "Example: python -m studies squares" in shown
    assert "Example: python -m benchmarks --out" in run(benchmarks, ["--help"]).output


@pytest.mark.parametrize("study", ["morpho-mnist", "galaxies", "faces"])
def test_a_device_that_is_not_there_is_named(tmp_path, study):
    arguments = [study, "--device", "gpu", "--out", str(tmp_path / "out")]
    result = run(cli.study, arguments)
    assert isinstance(result.exception, InputError)
    assert "`--device gpu` cannot be used" in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_galaxies_that_are_not_there_are_named(tmp_path):
    arguments = ["galaxies", "--data", str(tmp_path / "no.zip")]
    result = run(cli.study, [*arguments, "--out", str(tmp_path / "out")])
    assert isinstance(result.exception, MissingData)
    assert "there is nothing at" in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_study_takes_its_options(tmp_path, few_points):
    options = ["--steps", "300", "--runs", "2", "--seed", "5"]
    result = run(cli.study, ["squares", "--out", str(tmp_path), *options])
    assert result.exit_code == 0, result.output
    written = json.loads((tmp_path / "squares.json").read_text())
    assert written["seed"] == 5
    assert written["command"] == "python -m studies squares --steps 300 --runs 2 --seed 5"


@pytest.mark.parametrize("arguments", [["--steps", "0"], ["--seed", "-1"]])
def test_wrong_options_are_refused(arguments):
    assert run(cli.study, ["squares", *arguments]).exit_code == 2


@pytest.mark.slow
def test_the_commands_run_as_modules_and_a_known_error_is_one_line(tmp_path):
    (tmp_path / "squares-300-0.checkpoint.safetensors").write_bytes(b"broken")
    call = [sys.executable, "-m", "studies", "squares", "--steps", "300", "--runs", "1"]
    known = subprocess.run([*call, "--out", tmp_path], capture_output=True, text=True, check=False)
    assert known.returncode == 1
    lines = [line for line in known.stderr.splitlines() if "Error" in line]
    assert len(lines) == 1
    assert lines[0].startswith("InputError: ")
    assert "Delete it to start anew." in lines[0]
    assert "Traceback" not in known.stderr
    call = [sys.executable, "-m", "benchmarks", "--help"]
    shown = subprocess.run(call, capture_output=True, text=True, check=True).stdout
    assert "--digits" in shown
