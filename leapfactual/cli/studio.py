"""The command studio: a page on which one asks "what if"."""

import threading
import webbrowser
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ..errors import InputError, MissingExtra
from .classifier_cache import recall
from .options import (
    ClassifierName,
    Debug,
    Device,
    Force,
    OracleName,
    OutputType,
    check_device,
    console,
    printable,
    progress_bar,
)
from .threads import Threads

REQUIRED_PACKAGES = ("starlette", "uvicorn")


def require() -> None:
    """Checks that the packages of the extra are installed."""
    missing = [name for name in REQUIRED_PACKAGES if find_spec(name) is None]
    if missing:
        raise MissingExtra(
            f"the studio needs {' and '.join(missing)}. Run `pip install 'leapfactual[studio]'`."
        )


def studio(
    bundle: Annotated[
        Path,
        typer.Argument(
            help="The folder of the bundle; digits, which come with the package; or faces of "
            "1024 × 1024, which are fetched."
        ),
    ] = Path("digits"),
    images: Annotated[
        list[Path] | None,
        typer.Argument(help="The pictures: a folder, a zip, or files. With a bundle only."),
    ] = None,
    *,
    classifier: ClassifierName = None,
    output_type: OutputType = None,
    oracle: OracleName = None,
    force: Force = False,
    kept: Annotated[
        Path,
        typer.Option(help="The folder for counterfactuals that are kept.", file_okay=False),
    ] = Path("kept"),
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="The port. Defaults to one that is free.", min=0, max=65535)
    ] = 0,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Another name that the page may be called by.")
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
    device: Device = "cpu",
    debug: Debug = False,
) -> None:
    """Ask "what if" on a page, and see the answer at once.

    Serves a page to this computer alone: pick, drop or draw a picture, click another class, and
    watch it change. Stop it with Ctrl-C.

    Example: leapfactual studio

    On a bundle: leapfactual studio my-bundle photos/ --oracle my_models.py:strong
    """
    check_device(device)
    require()
    from ..studio import opening
    from ..studio.kept import Kept
    from ..studio.web.server import serve

    ready = str(bundle) in (opening.DIGITS, opening.FACES) and not bundle.is_dir()
    if ready and (images or classifier or oracle):
        raise InputError(
            f"`leapfactual studio {bundle}` brings its own pictures and classifiers. With yours: "
            "leapfactual studio my-bundle photos/"
        )
    shelf = Kept(kept)
    with progress_bar("opening", adapt=True) as reporter:
        if not ready:
            if not images:
                raise InputError(f"which pictures? leapfactual studio {printable(bundle)} photos/")
            place = None
            if classifier is None:
                classifier, place = recall(bundle)
            opened, inputs = opening.open_bundle(
                bundle,
                images,
                classifier,
                place=place,
                output_type=output_type,
                oracle=oracle,
                force=force,
                device=device,
                on_image=reporter.on_image,
            )
            if inputs.images.broken:
                reporter.log(f"Left out {len(inputs.images.broken)} that cannot be used.")
        elif str(bundle) == opening.FACES:
            opened = opening.open_faces(device, reporter.on_progress)
        else:
            opened = opening.open_digits(device)
        opened.open(lambda share: reporter.on_progress(share, "looking at the pictures"))

    def started(url: str) -> None:
        console.print(
            f"The studio is open at [bold]{escape(url)}[/]\nStop it with Ctrl-C. What is kept "
            f"goes to {escape(str(kept))}.",
            highlight=False,
            soft_wrap=True,
        )
        if browser:
            threading.Timer(0.5, webbrowser.open, [url]).start()

    serve(
        opened,
        shelf,
        host=host,
        port=port,
        hosts=allow_host or (),
        on_start=started,
        before_each=Threads().adjust,
    )
