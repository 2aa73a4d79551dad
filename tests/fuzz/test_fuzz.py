"""The fuzzer: a few inputs of each kind, and that it notices what escapes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fuzz import campaign, watch
from fuzz.kinds import KINDS, Kind
from leapfactual.errors import InputError


def test_a_few_inputs_of_each_kind_do_not_escape(tmp_path):
    """In a process of its own, since it forks."""
    given = ["--inputs", "300", "--seed", "7", "--out", str(tmp_path / "escapes")]
    done = subprocess.run(
        [sys.executable, "-m", "fuzz", *given],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line}
    for name in KINDS:
        inputs, accepted, refused, escapes = map(int, rows[name][:4])
        assert inputs == accepted + refused > 0
        assert escapes == 0


def leave(_given, outside):
    (outside / "secret.txt").read_bytes()


def write(given, _outside):
    (given.parent / "beside.txt").write_text("x")


def copy(given, outside):
    os.link(outside / "secret.bin", given / "copy.bin")


def grow(_given, _outside):
    np.ones(watch.MAX_BYTES // 8 + 2**22)


def promise(_given, _outside):
    watch.expect(False, "a wrong result")


def hang(_given, _outside):
    while True:
        time.sleep(0.01)


def die(_given, _outside):
    os._exit(3)


def mumble(_given, _outside):
    raise InputError("no")


ESCAPES = {
    "read /": leave,
    "wrote /": write,
    "holds the secret": copy,
    "of memory": grow,
    "a wrong result": promise,
    "TooSlowError": hang,
    "the process died (3)": die,
    "without a sentence": mumble,
    "ZeroDivisionError": lambda given, outside: 1 / 0,
    "subprocess.Popen": lambda given, outside: subprocess.run(["true"], check=False),
}


@pytest.mark.parametrize("reason", ESCAPES)
def test_escapes_are_noticed(reason, tmp_path, monkeypatch):
    class Bad(Kind):
        name, share = "bad", 1

        def make(self, rng, given, outside):
            (given / "input.txt").write_text("x")
            return lambda: ESCAPES[reason](given, outside)

    monkeypatch.setitem(campaign.KINDS, "bad", Bad)
    monkeypatch.setattr(watch, "MAX_SECONDS", 0.3)
    tally = campaign.run(["bad"], 1, 0, tmp_path / "escapes")["bad"]
    assert (tally.inputs, tally.escapes) == (1, 1)
    folder = tmp_path / "escapes" / "bad-0-0"
    assert (folder / "given" / "input.txt").read_text() == "x"
    why = (folder / "why.txt").read_text()
    assert reason in why
    assert "python -m fuzz --only bad --seed 0 --first 0 --inputs 1" in why


def test_good_inputs_are_counted(tmp_path, monkeypatch):
    class Good(Kind):
        name, share = "good", 1

        def make(self, rng, given, outside):
            number = rng.random()

            def read():
                (given / "result.txt").write_text(str(number))
                if number < 0.5:
                    raise InputError("`number` must be at least 0.5, got less.")

            return read

    monkeypatch.setitem(campaign.KINDS, "good", Good)
    tally = campaign.run(["good"], 40, 0, tmp_path / "escapes", batch=15)["good"]
    assert tally.inputs == tally.accepted + tally.refused == 40
    assert 5 < tally.accepted < 35
    assert not (tmp_path / "escapes").exists()
