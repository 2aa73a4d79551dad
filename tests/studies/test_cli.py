"""The command of the studies: ``python -m studies``."""

import json
import sys

import pytest
from typer.testing import CliRunner

from leapfactual.cli import run_app
from leapfactual.errors import InputError, MissingData
from studies import cli

run = CliRunner().invoke


def test_help_has_an_example():
    assert "Example: python -m studies squares" in run(cli.study, ["squares", "--help"]).output


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


def test_study_takes_its_options(tmp_path):
    arguments = [
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
    result = run(cli.study, arguments)
    assert result.exit_code == 0, result.output
    written = json.loads((tmp_path / "squares.json").read_text())
    assert written["seed"] == 5
    assert written["command"] == "python -m studies squares --steps 300 --runs 2 --seed 5"


@pytest.mark.parametrize("arguments", [["squares", "--steps", "0"], ["squares", "--seed", "-1"]])
def test_wrong_options_are_refused(arguments):
    assert run(cli.study, arguments).exit_code == 2


def test_a_damaged_checkpoint_is_one_line_and_exit_status_1(tmp_path, monkeypatch, capsys):
    (tmp_path / "squares-300-0.checkpoint.safetensors").write_bytes(b"broken")
    call = ["studies", "squares", "--steps", "300", "--runs", "1", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", call)
    with pytest.raises(SystemExit) as stop:
        run_app(cli.study)
    assert stop.value.code == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if "Error" in line]
    assert len(lines) == 1
    assert lines[0].startswith("InputError: ")
    assert "Delete it to start anew." in lines[0]
