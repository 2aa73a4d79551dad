"""State on disk, from which an interrupted study resumes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leapfactual.errors import InputError
from leapfactual.files import atomic


def read_json(path: Path) -> dict[str, Any]:
    """Reads a file that a study wrote."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}). Delete it and run again.") from error
    return content


def write_json(content: Mapping[str, Any], path: Path) -> None:
    """Writes a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n")


def same_study(folder: Path, current: Mapping[str, Any]) -> None:
    """Refuses to resume a study that was begun with other settings, images or device."""
    path = folder / "settings.json"
    settings = json.loads(json.dumps(dict(current)))
    if path.exists():
        before = read_json(path)
        differ = {k: before.get(k) for k in settings if before.get(k) != settings[k]}
        if differ:
            raise InputError(
                f"{folder} holds a study with other settings, or with other images or another "
                f"split of them ({differ}). Write to another folder with --out, or delete this "
                "one."
            )
    write_json(settings, path)
