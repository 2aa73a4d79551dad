"""Which classifier a bundle was made for, as this user's own cache remembers it.

A bundle names its classifier, but a bundle may come from a stranger, and what it names would be
imported. So only what ``leapfactual fit`` noted on this machine is opened without being asked for.
"""

import hashlib
import json
from pathlib import Path

from ..bundle.manifest import MANIFEST
from ..data import packages
from ..errors import InputError
from ..files import atomic


def remember(bundle: Path, spec: str) -> None:
    """Notes the classifier of a bundle and the folder that it was named from."""
    known = _read()
    known[_key(bundle)] = {"classifier": spec, "folder": str(Path.cwd())}
    with atomic(_path()) as temporary:
        temporary.write_text(json.dumps(known, indent=1) + "\n")


def recall(bundle: Path, named: str) -> tuple[str, Path]:
    """Returns the classifier of a bundle and the folder to look for it in."""
    found = _read().get(_key(bundle))
    if found is None:
        raise InputError(
            f"this bundle was made for `{named}`, on another machine or by hand. Say which "
            "classifier to ask, if you trust it: --classifier my_models.py:predict"
        )
    return found["classifier"], Path(found["folder"])


def _path() -> Path:
    return packages.cache() / "classifiers.json"


def _read() -> dict[str, dict[str, str]]:
    try:
        content = json.loads(_path().read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _key(bundle: Path) -> str:
    return hashlib.sha256((bundle / MANIFEST).read_bytes()).hexdigest()
