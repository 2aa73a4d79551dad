"""Counterfactuals that were kept, on disk: an explanation and a note each.

The note is written last, in one rename. So what has a note is whole, and a kill in between leaves
a file that nobody sees and the next start removes.
"""

import io
import json
import re
import secrets
import tempfile
import threading
import zipfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..errors import InputError, LeapError, MissingData
from ..explanation import Explanation
from ..files import atomic, remove_temporaries
from ..imaging import to_pil
from ..report import cards, write_page
from ..types import Generator

FORMAT = "leapfactual kept 1"
KEY = re.compile(r"\d{8}-\d{6}-[0-9a-f]{8}")
MAX_KEPT, MAX_NOTE = 2000, 2000


class Kept:
    """Creates the counterfactuals that are kept in a folder.

    Arguments:
        folder: The folder, which is made when the first one is kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.lock = folder, threading.Lock()
        if not folder.is_dir():
            if folder.exists():
                raise InputError(f"{folder} is a file. Give another folder: --kept FOLDER.")
            return
        remove_temporaries(folder)
        for path in folder.glob("*.safetensors"):
            if KEY.fullmatch(path.stem) and not path.with_suffix(".json").exists():
                path.unlink()

    def add(self, e: Explanation, name: str, note: str) -> dict[str, Any]:
        """Keeps an explanation of one picture; when this returns, it is on disk.

        Arguments:
            e: The explanation.
            name: The name of the picture.
            note: What somebody wrote about it.
        """
        with self.lock:
            if len(self.items()) >= MAX_KEPT:
                raise InputError(f"{MAX_KEPT} are kept already. Remove some, or export them.")
            now = datetime.now(UTC)
            key = f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
            with atomic(self.folder / f"{key}.safetensors") as temporary:
                e.save(temporary)
            item = {
                "format": FORMAT,
                "key": key,
                "name": name,
                "note": note[:MAX_NOTE],
                "source": e.name(e.source[0]),
                "target": e.name(e.target[0]),
                "status": str(e.status[0]),
                "when": now.isoformat(timespec="seconds"),
            }
            with atomic(self.folder / f"{key}.json") as temporary:
                temporary.write_text(json.dumps(item) + "\n", encoding="utf-8")
        return item

    def items(self) -> list[dict[str, Any]]:
        """Returns what is kept, the oldest first; what is damaged is left out."""
        found = []
        for path in sorted(self.folder.glob("*.json")):
            if not KEY.fullmatch(path.stem):
                continue
            try:
                item = json.loads(path.read_text(encoding="utf-8"))
            except (ValueError, OSError):
                continue
            if isinstance(item, dict) and item.get("format") == FORMAT:
                found.append({**item, "key": path.stem})
        return found

    def remove(self, key: str) -> None:
        """Removes one."""
        path = self._path(key)
        path.with_suffix(".json").unlink()
        path.unlink(missing_ok=True)

    def load(self, key: str) -> Explanation:
        """Reads one."""
        return Explanation.load(self._path(key))

    def file(self, key: str) -> bytes:
        """Returns the file of one, as :meth:`Explanation.load` reads it."""
        return self._path(key).read_bytes()

    def picture(self, key: str) -> bytes:
        """Returns the counterfactual of one, as a PNG."""
        return _png(self.load(key), "counterfactual")

    def page(self, classes: Sequence[str], generator: Generator | None) -> bytes:
        """Returns all of them as one page that needs nothing beside it.

        Arguments:
            classes: The names of the classes.
            generator: Decodes the iterates.
        """
        found: list[dict[str, Any]] = []
        for item in self.items():
            try:
                e = self.load(item["key"])
            except LeapError:
                continue
            name = f"{item['name']}: {item['note']}" if item["note"] else item["name"]
            found += cards(e, names=[name], generator=generator)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kept.html"
            about = f"{len(found)} counterfactuals that were kept in the studio."
            write_page(path, found, title="Kept counterfactuals", about=about, classes=classes)
            return path.read_bytes()

    def archive(self) -> bytes:
        """Returns all of them as pictures in a zip: input, counterfactual, and the notes."""
        buffer, kept = io.BytesIO(), []
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as file:
            for item in self.items():
                try:
                    e = self.load(item["key"])
                except LeapError:
                    continue
                for what in ("x", "counterfactual"):
                    shown = "input" if what == "x" else what
                    file.writestr(f"{item['key']}-{shown}.png", _png(e, what))
                kept.append(item)
            file.writestr("kept.json", json.dumps(kept, indent=1) + "\n")
        return buffer.getvalue()

    def _path(self, key: str) -> Path:
        path = self.folder / f"{key}.safetensors"
        if not KEY.fullmatch(key) or not path.with_suffix(".json").is_file():
            raise MissingData("this one is not kept any more.")
        return path


def _png(e: Explanation, what: str) -> bytes:
    buffer = io.BytesIO()
    to_pil(getattr(e, what)[0]).save(buffer, format="PNG")
    return buffer.getvalue()
