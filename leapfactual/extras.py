"""Optional dependencies: imported where they are used, and named by their extra where missing."""

import importlib
from types import ModuleType

from .errors import MissingExtra


def require(module: str, *, extra: str, purpose: str, remedy: str = "") -> ModuleType:
    """Imports an optional dependency, or says what to install.

    Arguments:
        module: The module, such as ``torchdiffeq`` or ``scipy.ndimage``.
        extra: The extra of this package that brings it.
        purpose: What it is needed for.
        remedy: What else can be done, as the end of a sentence, such as ``or use RK4``.

    Example:
        >>> require("json", extra="none", purpose="an example").dumps([1])
        '[1]'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        instead = f", {remedy}" if remedy else ""
        raise MissingExtra(
            f"{package} is needed for {purpose}, and is not installed. "
            f"Run `pip install 'leapfactual[{extra}]'`{instead}."
        ) from error
