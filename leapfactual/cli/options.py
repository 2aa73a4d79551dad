"""What the commands share: options, progress, output."""

import json
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from ..errors import InputError, MissingData
from ..report import tables

console = Console()


def _configure(context: typer.Context, path: Path | None) -> Path | None:
    """Takes the options of this command from a section of a TOML file, as defaults."""
    if path is None:
        return None
    if not path.is_file():
        raise MissingData(f"there is no configuration file {path}. Give a TOML file.")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
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


Out = Annotated[Path, typer.Option("--out", help="The folder to write to.", file_okay=False)]
Seed = Annotated[
    int, typer.Option("--seed", help="The seed of everything random.", min=0, max=2**31 - 1)
]
Device = Annotated[str, typer.Option("--device", help="Where to compute: cpu, cuda.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for programs.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")]
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
class Talk:
    """Is how a command speaks while it works: sentences and a bar, both to standard error."""

    tell: Callable[[str], None]
    progress: Callable[[float, str], None]


@contextmanager
def talk(what: str, *, quiet: bool = False) -> Iterator[Talk]:
    """Shows a bar with the time left, above it sentences; or nothing."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), disable=quiet, transient=True) as bar:
        task = bar.add_task(what, total=1.0)
        now = what

        def move(done: float, message: str) -> None:
            nonlocal now, task
            if message.split(" ")[0] != now.split(" ")[0]:
                bar.remove_task(task)
                task = bar.add_task(message, total=1.0)
            now = message
            bar.update(task, completed=done, description=message)

        def tell(text: str) -> None:
            if not quiet:
                bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

        yield Talk(tell, move)


def print_json(value: object) -> None:
    """Writes one JSON object to standard output."""
    typer.echo(json.dumps(value, indent=1, default=str))


def check_device(name: str) -> None:
    """Wants a device that torch can compute on."""
    import torch

    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
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


def plain(value: Any) -> str:  # noqa: ANN401 - whatever a stranger wrote
    """Writes a value that a stranger chose without letting it steer the terminal."""
    return "".join(c if c.isprintable() else "�" for c in str(value))
