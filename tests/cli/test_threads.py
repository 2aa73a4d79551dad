"""How many threads compute, on a machine whose other work is known."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from leapfactual.cli import threads
from leapfactual.cli.threads import Threads, busy_seconds


@pytest.fixture
def machine(monkeypatch):
    """Four cores, of which other work takes ``busy``, and a clock that goes when it is told."""
    now = SimpleNamespace(seconds=0.0, used=0.0, busy=0.0, set=[])

    def go(seconds):
        now.seconds += seconds
        now.used += seconds * now.busy

    now.go = go
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "time", SimpleNamespace(perf_counter=lambda: now.seconds))
    monkeypatch.setattr(threads, "busy_seconds", lambda: now.used)
    monkeypatch.setattr(threads, "_quota", lambda: 8)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "times", lambda: (0.0,) * 5)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(torch, "set_num_threads", now.set.append)
    return now


@pytest.mark.parametrize(
    ("busy", "chosen"), [(0.0, 4), (0.4, 4), (0.6, 3), (1.0, 3), (2.0, 2), (4.0, 1), (9.0, 1)]
)
def test_there_are_as_many_threads_as_cores_are_free(machine, busy, chosen):
    machine.busy = busy
    watch = Threads()
    watch.adjust()
    assert machine.set == [], "too early to tell"
    machine.go(2)
    watch.adjust()
    assert machine.set == [chosen]


def test_it_follows_a_change_that_stays_and_no_other(machine):
    watch = Threads()
    for busy in (0, 3, 0, 3, 3, 0, 0):
        machine.busy = busy
        machine.go(11)
        watch.adjust()
        machine.go(1)
        watch.adjust()
    assert machine.set == [4, 1, 4]


def test_what_somebody_chose_stays(machine, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    watch = Threads()
    machine.busy = 4
    machine.go(60)
    watch.adjust()
    assert machine.set == []


def test_a_container_has_no_more_cores_than_it_was_given(machine, monkeypatch):
    monkeypatch.setattr(threads, "_quota", lambda: 2)
    watch = Threads()
    machine.go(5)
    watch.adjust()
    assert machine.set == [2]


@pytest.mark.skipif(sys.platform != "linux", reason="others do not tell")
def test_busy_processes_are_seen():
    code = "import time; end = time.time() + 2\nwhile time.time() < end: pass"
    before = busy_seconds()
    subprocess.run([sys.executable, "-c", code], check=True)
    assert busy_seconds() - before > 1
