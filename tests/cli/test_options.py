"""The bar: what it shows of the time that is left."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.progress import Progress

from leapfactual.cli import options
from leapfactual.cli.options import Bar


@pytest.mark.parametrize(("share", "left"), [(0.0, "0:30 left"), (0.5, "0:10 left")])
def test_what_was_done_before_an_interruption_is_no_rate(monkeypatch, share, left):
    now = SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr(options, "time", SimpleNamespace(perf_counter=lambda: now.seconds))
    progress = Progress(console=Console(file=io.StringIO()))
    bar = Bar(progress, "opening")
    now.seconds += 100
    bar(share, "explained before")
    now.seconds += 10
    bar(share + 0.25, "explained now")
    assert progress.tasks[0].fields["left"] == left


def test_without_a_terminal_a_line_now_and_then_says_how_far_it_is(capsys, monkeypatch):
    monkeypatch.setattr(options, "SECONDS_PER_LINE", 0.0)
    with options.progress_bar("opening") as reporter:
        reporter.on_progress(0.5, "training", 10.0)
        reporter.on_progress(1.0, "done", 0.0)
    shown = capsys.readouterr().err
    assert " 50%  training, about 10 seconds left" in shown
    assert "100%" not in shown, "what is over needs no time"
