"""Nothing that was acknowledged is ever lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def killed(place, *options):
    words = [sys.executable, "-m", "tests.people.killing", "--place", str(place), *options]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        words, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=3000
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    print(done.stdout)
    assert found["lost"] == found["doubled"] == found["rounds opened twice"] == 0, found
    assert found["replay differs"] == []
    assert found["acknowledged"] > 50, "a slow machine is waited for"
    return found


@pytest.mark.parametrize(
    "place", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True
)
def test_a_few_kills_lose_nothing(place):
    killed(place, "--kills", "12", "--people", "12", "--pictures", "12", "--pause", "0.2")


@pytest.mark.slow
def test_hundreds_of_kills_lose_nothing(place):
    found = killed(place)
    assert sum(found["kills"].values()) >= 300
    assert min(found["kills"].values()) > 100
