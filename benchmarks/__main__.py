"""Runs the suite of timings: ``python -m benchmarks``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from leapfactual.cli import run_app
from leapfactual.cli.options import (
    Json,
    Out,
    Quiet,
    Seed,
    check_device,
    console,
    progress_bar,
    show_rows,
)

app = typer.Typer(
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def bench(
    out: Out = Path("runs/bench"),
    digits: Annotated[
        int | None,
        typer.Option(help="How many digits; 1,000 on the CPU, 10,000 on a GPU.", min=1),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="cpu, or cuda to measure that too. Defaults to what there is."),
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the speed: against the published procedure, the hardware, and as things grow.

    Takes the bundle and the digits that the package ships; all of MNIST's test digits, where
    `leapfactual data get mnist` has fetched them. Writes bench.md and bench.json.

    Example: python -m benchmarks --out runs/bench
    """
    import torch

    from . import suite

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    check_device(device)
    many = "" if digits is None else f" --digits {digits}"
    command = f"python -m benchmarks{many} --device {device} --seed {seed}"
    with progress_bar("measuring", quiet=quiet or as_json) as say:
        rows = suite.run(out, command, say.on_progress, device=device, count=digits, seed=seed)
    show_rows("Speed", rows, as_json=as_json, quiet=quiet)
    if not as_json and not quiet:
        console.print(f"\nWrote bench.md and bench.json to [bold]{escape(str(out))}[/].")


if __name__ == "__main__":
    run_app(app)
