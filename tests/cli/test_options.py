"""What is shown while a command works."""

from leapfactual.cli import options


def test_without_a_terminal_a_line_now_and_then_says_how_far_it_is(capsys, monkeypatch):
    monkeypatch.setattr(options, "SECONDS_PER_LINE", 0.0)
    with options.progress_bar("opening") as reporter:
        reporter.on_progress(0.5, "training", 10.0)
        reporter.on_progress(1.0, "done", 0.0)
    shown = capsys.readouterr().err
    assert " 50%  training, about 10 seconds left" in shown
    assert "100%" not in shown, "what is over needs no time"
