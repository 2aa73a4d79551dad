"""Optional dependencies: imported where they are used, and named by their extra where missing."""

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
