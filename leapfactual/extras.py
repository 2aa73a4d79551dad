"""Optional dependencies: imported where they are used, and named by their extra where missing.

What is asked for by name and cannot be had is an error. What is one part of a command's output
among others is left out, and :func:`left_out` is the line that says so.
"""

import importlib
from typing import Any

from .errors import MissingExtra


def require(module: str, *, extra: str, subject: str, package: str = "", remedy: str = "") -> Any:  # noqa: ANN401 - a module
    """Imports an optional dependency, or says what to install.

    Arguments:
        module: The module, such as ``torchdiffeq`` or ``scipy.ndimage``.
        extra: The extra of this package that brings it.
        subject: Subject and verb of the error's first sentence, such as ``Dopri5 needs``.
        package: What the dependency is called. Defaults to the module's first name.
        remedy: What else can be done, as the end of a sentence, such as ``or use RK4``.

    Example:
        >>> require("json", extra="none", subject="an example needs").dumps([1])
        '[1]'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = package or module.split(".")[0]
        instead = f", {remedy}" if remedy else ""
        raise MissingExtra(
            f"{subject} {name}, which is not installed. "
            f"Run `pip install 'leapfactual[{extra}]'`{instead}."
        ) from error


def left_out(what: str, extra: str) -> str:
    """Returns the line that says what a command left out, and what adds it.

    Arguments:
        what: What was left out, in the plural.
        extra: The extra of this package that brings what it takes.

    Example:
        >>> left_out("Figures", "plot")
        "Figures left out: pip install 'leapfactual[plot]' adds them."
    """
    return f"{what} left out: pip install 'leapfactual[{extra}]' adds them."
