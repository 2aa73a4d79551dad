"""A budget of time: what is decided once, what is left, and how long a step takes."""

import json
from types import SimpleNamespace

import pytest

from leapfactual.jobs import budget
from leapfactual.jobs.budget import TIMED_STEPS, Budget, seconds_per_step


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes only when it is told to."""
    now = SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr(budget, "time", SimpleNamespace(perf_counter=lambda: now.seconds))
    return now


def test_it_decides_once_and_a_resumed_job_decides_the_same(clock, tmp_path):
    first = Budget(100, tmp_path / "budget.json")
    assert first.decide("size", lambda: [2, 30]) == [2, 30]
    assert first.decide("size", lambda: pytest.fail("decided twice")) == [2, 30]
    again = Budget(100, tmp_path / "budget.json")
    assert again.decide("size", lambda: pytest.fail("decided twice")) == [2, 30]
    assert again.decide("other", lambda: 7) == 7


def test_what_is_left_falls_to_a_twentieth_and_no_further(clock, tmp_path):
    own = Budget(100, tmp_path / "budget.json")
    left = []
    for _ in range(5):
        left.append(own.left)
        clock.seconds += 30
    assert left == pytest.approx([100, 70, 40, 10, 5])


def test_what_was_spent_before_an_interruption_is_not_there_again(clock, tmp_path):
    first = Budget(100, tmp_path / "budget.json")
    clock.seconds += 10
    first.decide("size", lambda: 1)
    clock.seconds += 30
    first.save()
    clock.seconds += 3600
    again = Budget(100, tmp_path / "budget.json")
    assert again.left == pytest.approx(60)
    clock.seconds += 20
    assert again.left == pytest.approx(40)
    assert json.loads((tmp_path / "budget.json").read_text()) == {"size": 1, "spent": 40}


def test_a_choice_that_fails_decides_nothing(clock, tmp_path):
    own = Budget(100, tmp_path / "budget.json")
    with pytest.raises(ZeroDivisionError):
        own.decide("size", lambda: 1 / 0)
    assert own.decide("size", lambda: 3) == 3


def test_a_step_is_timed_when_the_training_is_warm(clock):
    def train(epochs, on_epoch):
        for n in range(epochs):
            clock.seconds += 50 if n == 0 else 3
            on_epoch(None)

    assert seconds_per_step(train) == pytest.approx(3 / TIMED_STEPS)


def test_what_is_left_is_kept_however_often_it_is_saved(clock, tmp_path):
    """Epochs shorter than the pause between two notes save each time."""
    own = Budget(100, tmp_path / "budget.json")
    for left in (60.0, 59.0, 58.0):
        clock.seconds += 1
        own.note(left)
        own.note(None)
        own.save()
    assert Budget(100, tmp_path / "budget.json").expected_left == 58
