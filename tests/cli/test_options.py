"""The bar: what it shows of the time that is left."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.progress import Progress

from leapfactual.cli import options
from leapfactual.cli.options import Bar


@pytest.fixture
def now(monkeypatch):
    """A clock that stands still unless it is moved."""
    clock = SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr(options, "time", SimpleNamespace(perf_counter=lambda: clock.seconds))
    return clock


@pytest.fixture
def bar(now):
    return Bar(Progress(console=Console(file=io.StringIO())), "opening")


def left(bar):
    return options.TimeLeftColumn().render(bar.progress.tasks[0]).plain


@pytest.mark.parametrize(("share", "expected"), [(0.0, "0:30 left"), (0.5, "0:10 left")])
def test_what_was_done_before_an_interruption_is_no_rate(now, bar, share, expected):
    now.seconds += 100
    bar(share, "explained before")
    now.seconds += 10
    bar(share + 0.25, "explained now")
    assert left(bar) == expected


def test_the_time_that_is_left_is_counted_down_between_two_reports(now, bar):
    assert left(bar) == ""
    bar(0.5, "training", 100.0)
    shown = [left(bar)]
    for _ in range(2):
        now.seconds += 60
        shown.append(left(bar))
    assert shown == ["1:40 left", "0:40 left", "longer than expected"]
    bar(1.0, "done", 0.0)
    assert left(bar) == ""


def test_without_a_terminal_a_line_now_and_then_says_how_far_it_is(capsys, monkeypatch):
    monkeypatch.setattr(options, "SECONDS_PER_LINE", 0.0)
    with options.progress_bar("opening") as reporter:
        reporter.on_progress(0.5, "training", 10.0)
        reporter.on_progress(1.0, "done", 0.0)
    shown = capsys.readouterr().err
    assert " 50%  training, about 10 seconds left" in shown
    assert "100%" not in shown, "what is over needs no time"


def test_looking_at_many_images_is_no_silence(monkeypatch):
    """It takes seconds before there is a share of the job to show."""
    seen = []
    monkeypatch.setattr(Bar, "__call__", lambda *told: seen.append(told[1:]))
    with options.progress_bar("opening") as reporter:
        for n in range(1, 121):
            reporter.on_image(n, 120)
    assert [what for _, what in seen] == [
        f"looking at the images, {n} of 120" for n in (50, 100, 120)
    ]
