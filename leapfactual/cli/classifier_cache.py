"""The classifiers of bundles, in a cache of this user.

A bundle names its classifier, but a bundle may come from a stranger, and what it names would be
imported. So only what ``leapfactual fit`` noted on this machine is opened without being asked for.
"""

import json
from pathlib import Path

from ..bundle.manifest import MANIFEST, read_manifest, sha256
from ..data import packages
from ..errors import InputError
from ..files import atomic


def remember(bundle: Path, classifier: str) -> None:
    """Notes the name of a bundle's classifier and the folder that it was named from."""
    known = _read()
    known[sha256(bundle / MANIFEST)] = {"classifier": classifier, "folder": str(Path.cwd())}
    with atomic(_path()) as temporary:
        temporary.write_text(json.dumps(known, indent=1) + "\n")


def recall(bundle: Path) -> tuple[str, Path]:
    """Returns the name of a bundle's classifier and the folder to look for it in."""
    name = read_manifest(bundle).get("classifier_name")
    noted = _read().get(sha256(bundle / MANIFEST))
    if noted is None:
        raise InputError(
            f"this bundle was made for `{name}`, on another machine or by hand. Say which "
            "classifier to query, if you trust it: --classifier my_models.py:predict"
        )
    return noted["classifier"], Path(noted["folder"])


def _path() -> Path:
    return packages.cache() / "classifiers.json"


def _read() -> dict[str, dict[str, str]]:
    try:
        content = json.loads(_path().read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
