"""What the commands share: options, progress, output.

Options are listed in the order in which a command's help shows them: the data, the plan, the
output.
"""

import json
import math
import signal
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from ..errors import InputError, MissingData
from ..jobs.progress import duration
from ..report import tables
from .threads import Threads


def printable(value: Any) -> str:  # noqa: ANN401 - whatever a stranger wrote
    """Returns a value as text whose control characters cannot steer the terminal."""
    return "".join(c if c.isprintable() else "�" for c in str(value))


class SafeConsole(Console):
    """Console whose text may quote a stranger: names of files and classes, a manifest."""

    def print(self, *objects: Any, **options: Any) -> None:  # noqa: ANN401 - as of its parent
        """Prints; in text, characters that would steer the terminal are replaced."""
        safe = (
            "\n".join(map(printable, o.split("\n"))) if isinstance(o, str) else o for o in objects
        )
        super().print(*safe, **options)


console = SafeConsole()
# A rate is told after so many seconds, and where there is no terminal, a line as seldom as that.
MIN_RATED_SECONDS, SECONDS_PER_LINE = 2.0, 30.0
IMAGES_PER_REPORT = 50


def _configure(context: typer.Context, path: Path | None) -> Path | None:
    """Takes the options of this command from a section of a TOML file, as defaults."""
    if path is None:
        return None
    if not path.is_file():
        raise MissingData(f"there is no configuration file {path}. Give a TOML file.")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise InputError(f"{path} is no TOML file ({error}).") from error
    name = str(context.info_name)
    section = content.get(name, {})
    if not isinstance(section, dict):
        raise InputError(f"`{name}` in {path} must be a section: [{name}].")
    known = {option.lstrip("-"): p for p in context.command.params for option in p.opts}
    chosen = {}
    for key, value in section.items():
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f" Did you mean `{near[0]}`?" if near else ""
            raise InputError(f"`{key}` in {path} is no option of `leapfactual {name}`.{hint}")
        chosen[str(known[key].name)] = value
    context.default_map = {**(context.default_map or {}), **chosen}
    return path


# Data: what is explained.
BundleFolder = Annotated[Path, typer.Argument(help="The folder of the bundle.")]
ImagePaths = Annotated[
    list[Path],
    typer.Argument(
        help="A folder of class folders, a flat folder, a zip of either, files, an .npz or HDF5 "
        "file, or a .csv table.",
    ),
]
ClassifierName = Annotated[
    str | None,
    typer.Option(
        "--classifier",
        help="The classifier, where `fit` did not note it: file.py:name, module:name, file.onnx.",
    ),
]
OutputType = Annotated[
    str | None,
    typer.Option(
        help="What the classifier answers with, if its first answer does not show: labels, names, "
        "probabilities, logits."
    ),
]
OracleName = Annotated[
    str | None,
    typer.Option("--oracle", help="A second, independent classifier, named like the first."),
]
Force = Annotated[
    bool, typer.Option("--force", help="Explain a classifier that the bundle does not recognize.")
]
AllTargets = Annotated[
    bool, typer.Option("--all-targets", help="Every class but the image's own.")
]

# The plan: how.
PlanText = Annotated[
    str | None,
    typer.Option(
        "--plan", help="The exact plan instead, such as 'blend(15, 0.1), inject(5, 0, 0.1)'."
    ),
]
Reliability = Annotated[
    float | None,
    typer.Option(
        help="The operating point on the bundle's front, from 0, just across the boundary, to 1, "
        "as typical as the class's own images."
    ),
]
Fast = Annotated[
    bool,
    typer.Option("--fast", help="The cheapest plan that is no worse than the paper's reliable."),
]
KeepPixels = Annotated[
    bool | None,
    typer.Option(
        "--keep-pixels/--no-keep-pixels",
        help="Show the image's own pixels where nothing has changed, instead of the generator's. "
        "Defaults to what was best when the bundle was made.",
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", help="The seed of everything random.", min=0, max=2**31 - 1)
]
Device = Annotated[str, typer.Option("--device", help="Where to compute: cpu, cuda.")]

# The output: where to, and how it is printed.
Out = Annotated[Path, typer.Option("--out", help="The folder to write to.", file_okay=False)]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for programs.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Debug = Annotated[
    bool, typer.Option("--debug", help="Where a classifier fails, show the whole traceback.")
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="A TOML file whose section of this command's name holds options.",
        is_eager=True,
        callback=_configure,
        dir_okay=False,
    ),
]


@dataclass(frozen=True)
class Reporter:
    """What a command calls while it works; sentences and a bar go to standard error.

    Arguments:
        log: Prints a sentence.
        on_progress: Moves the bar, see :class:`Bar`.
    """

    log: Callable[[str], None]
    on_progress: "Bar"

    def on_image(self, number: int, of: int) -> None:
        """Says how many images have been looked at, before there is a share of a job."""
        if number % IMAGES_PER_REPORT == 0 or number == of:
            self.on_progress(0.0, f"looking at the images, {number:,} of {of:,}")


class Bar:
    """Creates a bar with the time that is left; where no terminal shows it, a line now and then.

    Arguments:
        progress: The display.
        what: What is going on at first.
        threads: What sets the number of threads, if it is to follow the machine's load.
    """

    def __init__(self, progress: Progress, what: str, threads: Threads | None = None) -> None:
        self.progress, self.threads = progress, threads
        self.task = progress.add_task(what, total=1.0, due=None)
        self.first: tuple[float, float] | None = None
        self.said = time.perf_counter()

    def __call__(self, share: float, what: str, left: float | None = None) -> None:
        """Moves the bar.

        Arguments:
            share: The share that is done, from 0 to 1.
            what: What is going on.
            left: The seconds that are left. Defaults to what the rate so far says.
        """
        if self.threads is not None:
            self.threads.adjust()
        now = time.perf_counter()
        # A job that is resumed begins with what was done before.
        if self.first is None or share < self.first[0]:
            self.first = share, now
        done, took = share - self.first[0], now - self.first[1]
        if left is None and done > 0 and took >= MIN_RATED_SECONDS:
            left = (1 - share) * took / done
        due = None if left is None else now + left
        self.progress.update(self.task, completed=share, description=what, due=due)
        late = now - self.said >= SECONDS_PER_LINE
        if late and share < 1 and not self.progress.console.is_terminal:
            self.said = now
            rest = f", about {duration(left)} left" if left is not None else ""
            self.print(f"{share:4.0%}  {what}{rest}")

    def print(self, text: str) -> None:
        """Prints a sentence above the bar."""
        if not self.progress.disable:
            self.progress.console.print(text, markup=False, highlight=False, soft_wrap=True)


class TimeLeftColumn(ProgressColumn):
    """The time that is left, counted down between two reports of how far a job is."""

    def render(self, task: Task) -> Text:
        """Returns the text."""
        due = task.fields["due"]
        if due is None or task.completed >= 1:
            return Text()
        left = due - time.perf_counter()
        return Text(f"{_clock(left)} left" if left > 0 else "longer than expected")


def _clock(seconds: float) -> str:
    """Writes seconds as a clock shows them.

    Example:
        >>> _clock(3), _clock(100), _clock(7230)
        ('0:03', '1:40', '2:00:30')
    """
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextmanager
def progress_bar(what: str, *, quiet: bool = False, adapt: bool = False) -> Iterator[Reporter]:
    """Shows a bar with the time left, above it sentences; or nothing.

    Arguments:
        what: What is going on at first.
        quiet: Whether to show nothing.
        adapt: Whether the number of threads is to follow the machine's load.
    """
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TimeLeftColumn(),
    )
    errors = SafeConsole(stderr=True)
    with Progress(*columns, console=errors, disable=quiet, transient=True) as shown:
        bar = Bar(shown, what, Threads() if adapt else None)
        yield Reporter(bar.print, bar)


class Interrupted(Exception):
    """A command was interrupted; the message says what is kept and how to go on."""


@contextmanager
def resumable(what: str, kept: Path, *, quiet: bool) -> Iterator[Reporter]:
    """Shows a bar, and takes an interruption, by keyboard or SIGTERM, as an end with a sentence.

    Arguments:
        what: What is going on at first.
        kept: Where what is done is kept.
        quiet: Whether to show nothing.
    """

    def stop(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    # Only the main thread may set a handler; a test's runner may be in another.
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, stop) if main else None
    try:
        with progress_bar(what, quiet=quiet, adapt=True) as reporter:
            yield reporter
    except KeyboardInterrupt as error:
        raise Interrupted(
            f"Interrupted. What is done is kept in {kept}; the same command goes on from there."
        ) from error
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)


def print_json(value: object) -> None:
    """Writes one JSON object to standard output."""
    typer.echo(json.dumps(value, indent=1, default=str))


def check_device(name: str) -> None:
    """Checks that torch can compute on a device."""
    import torch

    try:
        if torch.zeros(1, device=name).is_meta:
            raise RuntimeError("it computes nothing")
    except Exception as error:  # a backend that is not there can raise anything
        reason = str(error).splitlines()[0].partition(". ")[0]
        if "device type at start" in reason:
            reason = "torch knows no such device"
        raise InputError(
            f"`--device {name}` cannot be used ({reason}). Use cpu, or cuda with a GPU."
        ) from error


def show_rows(title: str, rows: list[tables.Row], *, as_json: bool, quiet: bool) -> None:
    """Prints rows of results as a table, as JSON, or not at all."""
    if as_json:
        print_json({"rows": [vars(row) for row in rows]})
    elif not quiet:
        table = Table(title=title, title_justify="left")
        for name in ("setting", "method", "metric"):
            table.add_column(name)
        table.add_column("value", justify="right")
        for row in rows:
            table.add_row(row.setting, row.method, row.metric, tables.number(row))
        console.print(table)
