import hashlib
import json
import os
import sqlite3
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import sqlalchemy
import typer
from matplotlib.figure import Figure
from typer.testing import CliRunner

import leapfactual as lf
from leapfactual import cli
from leapfactual.cli.options import console, progress_bar
from leapfactual.data import packages
from leapfactual.demos import digits
from leapfactual.errors import InputError, MissingData
from leapfactual.report import figures

run = CliRunner().invoke


def test_version():
    result = run(cli.app, ["--version"])
    assert result.exit_code == 0
    assert result.output == f"leapfactual {lf.__version__}\n"


def test_help_names_every_command():
    result = run(cli.app, ["--help"])
    commands = ("demo", "fit", "explain", "evaluate", "augment", "inspect")
    for name in commands:
        assert f"Example: leapfactual {name}" in run(cli.app, [name, "--help"]).output
    for name in (*commands, "data", "people"):
        assert f"\n  {name} " in result.output


@pytest.mark.parametrize("group", [[], ["data"], ["people"]])
def test_help_of_80_columns_cuts_no_summary_off(group):
    result = run(cli.app, [*group, "--help"], terminal_width=80)
    assert "..." not in result.output.partition("Commands:")[2]


@pytest.mark.parametrize("drawn", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_demo_writes_what_it_says(tmp_path, monkeypatch, drawn):
    if not drawn:
        monkeypatch.setattr(digits, "SHOWN", 20)
        monkeypatch.setattr(Figure, "savefig", lambda _, path, **__: Path(path).touch())
    few = {"counterfactual": (lf.blend(15, 0.1), lf.tighten(4))}
    few["reliable counterfactual"] = (lf.blend(15, 0.1), lf.inject(3, lift=0.0, land=0.1))
    monkeypatch.setattr(digits, "PLANS", few)
    result = run(cli.app, ["demo", "--out", str(tmp_path / "demo")])
    assert result.exit_code == 0, result.output
    names = {p.name for p in (tmp_path / "demo").iterdir()}
    assert names == {"index.html", "changes.png", "grid.png", "demo.json", "demo.md"}
    assert (tmp_path / "demo" / "index.html").read_text().count('"strip"') == digits.SHOWN
    assert "in a browser" in result.output
    written = json.loads((tmp_path / "demo" / "demo.json").read_text())
    assert written["command"].startswith("leapfactual demo")
    found = {(r["method"], r["metric"]): r["mean"] for r in written["rows"]}
    assert found["counterfactual", "validity"] > 0.95
    assert found["reliable counterfactual", "oracle"] > 0.9
    assert found["reliable counterfactual", "oracle"] > found["counterfactual", "oracle"]
    assert found["reliable counterfactual", "L1"] > found["counterfactual", "L1"]


def test_without_matplotlib_the_demo_says_in_a_line_what_it_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "find_spec", lambda _: None)
    monkeypatch.setattr(digits, "SHOWN", 2)
    monkeypatch.setattr(digits, "PLANS", dict.fromkeys(digits.PLANS, (lf.blend(1, 0.5),)))
    result = run(cli.app, ["demo", "--out", str(tmp_path / "demo")])
    assert result.exit_code == 0, result.output
    names = {p.name for p in (tmp_path / "demo").iterdir()}
    assert names == {"index.html", "demo.json", "demo.md"}
    assert "Beside it: demo.md and demo.json to read." in result.output
    line = "Figures left out: pip install 'leapfactual[plot]' adds them."
    assert line in result.output.splitlines()


def test_a_demo_that_is_not_there_is_named():
    result = run(cli.app, ["demo", "cats"])
    assert isinstance(result.exception, InputError)
    assert "digits and of faces, got 'cats'" in str(result.exception)


def test_a_photograph_that_cannot_be_is_said(tmp_path):
    photo = tmp_path / "me.jpg"
    result = run(cli.app, ["demo", "faces", "--photo", str(photo)])
    assert isinstance(result.exception, MissingData)
    assert "there is no photograph" in str(result.exception)
    for arguments in (["demo"], ["demo", "faces", "--engine", "openvino"]):
        result = run(cli.app, [*arguments, "--photo", str(photo)])
        assert isinstance(result.exception, InputError)
        assert "leapfactual demo faces --photo" in str(result.exception)


def test_a_download_that_fails_leaves_nothing_and_says_how_to_go_on(tmp_path, monkeypatch):
    monkeypatch.setenv("LEAPFACTUAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    result = run(cli.app, ["demo", "faces", "--out", str(tmp_path / "out")])
    assert isinstance(result.exception, MissingData)
    assert "leapfactual data get face-gan --archive FILE" in str(result.exception)
    assert "licence: Apache-2.0" in result.output
    assert not list(tmp_path.rglob("*"))


@pytest.mark.parametrize(
    "arguments", [["fit", "--seed", "-1"], ["demo", "--faces", "0"], ["nothing"]]
)
def test_wrong_options_are_refused(arguments):
    assert run(cli.app, arguments).exit_code == 2


def test_a_known_error_is_one_line_and_exit_status_1(tmp_path):
    call = [sys.executable, "-m", "leapfactual", "inspect", tmp_path / "nowhere"]
    known = subprocess.run(call, capture_output=True, text=True, check=False)
    assert known.returncode == 1
    assert known.stderr.splitlines() == [
        f"MissingData: there is no bundle at {tmp_path / 'nowhere'}: it has no manifest.json. "
        "Give the folder that `leapfactual fit` wrote."
    ]


def test_an_error_cannot_steer_the_terminal(tmp_path):
    """It may quote a manifest, and that may come from a stranger."""
    (tmp_path / "manifest.json").write_text(json.dumps({"format": "\x1b[2Jgone\x07"}))
    call = [sys.executable, "-m", "leapfactual", "inspect", tmp_path]
    known = subprocess.run(call, capture_output=True, text=True, check=False)
    assert known.returncode == 1
    assert "gone" in known.stderr
    assert not {"\x1b", "\x07"} & set(known.stderr)


def test_names_cannot_steer_the_terminal(capsys):
    with progress_bar("reading") as reporter:
        reporter.log("left out \x1b[2J\udcff.png\nbeside \x07.txt")
    console.print("cat \x1b]0;title\x07: 3 of 4")
    printed = capsys.readouterr()
    assert "left out �[2J�.png\nbeside �.txt\n" in printed.err
    assert printed.out == "cat �]0;title�: 3 of 4\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_a_terminal_cannot_show_is_no_error(tmp_path, encoding):
    call = [sys.executable, "-m", "leapfactual"]
    options = {"capture_output": True, "check": False, "encoding": encoding}
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    listed = subprocess.run([*call, "data", "list"], env=environment, **options)
    assert listed.returncode == 0, listed.stderr
    table = tmp_path / "wine"
    words = "data", "export", "wine", os.fsencode(table) + b"\xe9.csv"
    made = subprocess.run([*call, *words], env=environment, **options)
    assert made.returncode == 0, made.stderr


def test_an_unknown_error_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(cli, "app", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_data_list_and_get(tmp_path, monkeypatch):
    monkeypatch.setenv("LEAPFACTUAL_CACHE", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    listed = run(cli.app, ["data", "list"])
    assert max(map(len, listed.output.splitlines())) <= 80
    assert "…" not in listed.output
    for card in packages.CARDS.values():
        assert f" {card.name} " in listed.output
        assert f" in {card.package} {card.version}" in listed.output
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as file:
        file.writestr("pkg/a.bin", b"content")
    member = packages.Member("pkg/a.bin", hashlib.sha256(b"content").hexdigest())
    card = packages.Card("little", "a little file", "little", "1.0", "0" * 64, "CC0", (member,))
    monkeypatch.setitem(packages.CARDS, "little", card)
    got = run(cli.app, ["data", "get", "little", "--archive", str(tmp_path / "a.whl")])
    assert got.exit_code == 0, got.output
    assert "Licence: CC0" in got.output
    assert (tmp_path / "little" / "a.bin").read_bytes() == b"content"


def test_inspect_shows_a_bundle_and_refuses_a_damaged_one(tmp_path):
    x, _ = lf.data.squares.sample(20)
    flow = lf.Flow(lf.MLPField(2, 4))
    names = ["[bold]blue", "yellow", "green", "red"]
    bundle = lf.Bundle.make(
        lf.generators.Identity(),
        flow,
        lf.data.squares.quadrant,
        x,
        classes=names,
        plan=[lf.blend(15, 0.1)],
        training={"epochs": 3, "note": "\x1b]0;title\x07\nforged line"},
    )
    bundle.save(tmp_path / "b")
    shown = run(cli.app, ["inspect", str(tmp_path / "b")])
    assert shown.exit_code == 0, shown.output
    for part in (
        "[bold]blue, yellow",
        "blend(15, 0.1)",
        "epochs: 3",
        "flow.safetensors",
    ):
        assert part in shown.output
    assert "\x1b" not in shown.output
    assert "\nforged" not in shown.output
    (tmp_path / "b" / "flow.safetensors").write_bytes(b"broken")
    damaged = run(cli.app, ["inspect", str(tmp_path / "b")])
    assert damaged.exit_code == 1
    assert isinstance(damaged.exception, lf.errors.InputError)


def printed_by(app, monkeypatch, capsys, *words):
    monkeypatch.setattr("sys.argv", ["leapfactual", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        cli.run_app(app)
    assert stop.value.code == 1
    return capsys.readouterr().err


def test_debug_shows_where_a_classifier_failed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def f(x):\n    raise KeyError('in line 2')\n")
    Path("t.csv").write_text("a,b,label\n1,2,cat\n2,1,dog\n")
    words = "fit", "t.csv", "--classifier", "mine.py:f", "--out", "bundle"
    short = printed_by(cli.app, monkeypatch, capsys, *words)
    sentence = "the classifier failed on rows of shape (2, 2): KeyError: 'in line 2'."
    assert short.splitlines()[-1] == f"ClassifierError: {sentence} To see where, add --debug."
    assert "Traceback" not in short
    long = printed_by(cli.app, monkeypatch, capsys, *words, "--debug")
    assert 'mine.py", line 2, in f' in long
    assert long.splitlines()[-1] == f"ClassifierError: {sentence}"


@pytest.mark.parametrize("through", ["sqlite3", "sqlalchemy"])
def test_a_disk_that_is_full_for_a_database_is_one_sentence(
    tmp_path, monkeypatch, capsys, through
):
    app, path = typer.Typer(), tmp_path / "a.db"
    fill = "PRAGMA max_page_count = 1", "CREATE TABLE t (x)"

    @app.command()
    def write():
        if through == "sqlite3":
            execute = sqlite3.connect(path).execute
        else:
            execute = sqlalchemy.create_engine(f"sqlite:///{path}").connect().exec_driver_sql
        for statement in fill:
            execute(statement)

    printed = printed_by(app, monkeypatch, capsys)
    assert printed.startswith("the disk is full: ")
    assert "Make room and run the same command again." in printed
