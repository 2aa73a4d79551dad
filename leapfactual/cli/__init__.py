"""The command line: parse, call, print."""

import errno
import io
import sys
import traceback
from typing import Annotated

import typer

from .. import __version__
from ..errors import ClassifierError, LeapError
from .data import data, inspect
from .demo import demo
from .jobs import augment, evaluate, explain, fit
from .options import Interrupted, SafeConsole, console
from .people import people
from .studio import studio

# What shells give for an interruption from the keyboard.
INTERRUPTED = 130
DEBUG = "--debug"

app = typer.Typer(
    name="leapfactual",
    help="What would have had to be different for the answer to be different?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (demo, fit, explain, studio, evaluate, augment, inspect):
    app.command()(command)
app.add_typer(data, name="data")
app.add_typer(people, name="people")


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


def main() -> None:
    """Runs the command line."""
    run_app(app)


def run_app(app: typer.Typer) -> None:
    """Runs an application; a known error is one line and exit status 1."""
    for stream in (sys.stdout, sys.stderr):
        # Not every terminal or file has all the characters that are printed, or that names have.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except Interrupted as error:
        _fail(str(error), INTERRUPTED)
    except LeapError as error:
        hint = ""
        if DEBUG in sys.argv:
            traceback.print_exception(error)
        elif isinstance(error, ClassifierError) and error.__cause__ is not None:
            hint = f" To see where, add {DEBUG}."
        _fail(f"{type(error).__name__}: {error}{hint}")
    except Exception as error:
        if _is_full(error):
            _fail(
                f"the disk is full: {error}. What was finished is kept. Make room and run the "
                "same command again."
            )
        if not isinstance(error, OSError) or error.filename is None:
            raise
        _fail(f"{error.filename}: {error.strerror}. Give another place, or mend this one.")


def _is_full(error: object) -> bool:
    """Tells whether an error is that of a full disk, also as databases tell it."""
    error = getattr(error, "orig", error)
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    # The second is of the file of shared memory, which cannot grow on a full disk.
    return getattr(error, "sqlite_errorname", None) in ("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE")


def _fail(text: str, status: int = 1) -> None:
    errors = SafeConsole(stderr=True, soft_wrap=True)
    errors.print(text, style="red", markup=False, highlight=False)
    sys.exit(status)
