"""The page: one HTML file with pictures, data and program in it, which opens from disk."""

import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..files import atomic
from .colors import CHANGE_COLORS, DARK_CHANGE_COLORS, PHOTO_CHANGE, PHOTO_SIDE


@dataclass(frozen=True)
class Frame:
    """A page in a frame, for notebooks: its script runs, and reaches nothing outside of it.

    Arguments:
        page: The page.
        height: How many pixels high the frame is.
    """

    page: str
    height: int

    def __repr__(self) -> str:
        return f"Frame(a page of {len(self.page):,} characters, shown in notebooks)"

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{html.escape(self.page)}" sandbox="allow-scripts" '
            f'width="100%" height="{self.height}" title="counterfactuals" '
            'style="border: 0"></iframe>'
        )


def write_page(
    path: str | Path,
    cards: Iterable[dict[str, Any]],
    *,
    title: str,
    about: str,
    classes: Sequence[str],
    columns: Sequence[str] = (),
    std: Sequence[float] = (),
    table: Sequence[Sequence[str]] | None = None,
    plans: Sequence[tuple[str, str]] = (),
    asked: str = "",
) -> None:
    """Writes the page, card by card, so that memory does not grow with their number.

    Arguments:
        path: The file.
        cards: What :func:`cards` gives.
        title: The heading.
        about: A sentence or two below it.
        classes: What the classes are called.
        columns: What the columns are called, for rows of numbers.
        std: The standard deviation of each column, the unit of the bars.
        table: A table to show at the top, its header first.
        plans: What the counterfactuals of each plan are called, and the exact plan: one, or two
            where there are reliable ones. Defaults to names alone.
        asked: Who answered, such as ``people``, where it was no classifier: labels without
            probabilities.
    """
    template = read_part("page.html")
    for name, text in (
        ("__STYLE__", style_sheet()),
        ("__DIALOGS__", read_part("dialogs.html")),
        ("__SCRIPT__", read_part("cards.js") + read_part("page.js")),
    ):
        template = template.replace(name, text)
    # The title comes last, as it may read like a placeholder itself.
    before, after = (
        part.replace("__TITLE__", html.escape(title)) for part in template.split("__DATA__")
    )
    head = {
        "title": title,
        "about": about,
        "kind": "rows" if columns else "images",
        "classes": list(classes),
        "columns": list(columns),
        "std": list(std),
        "table": table,
        "plans": [list(plan) for plan in plans],
        "asked": asked,
        "photo": {"side": PHOTO_SIDE, "change": PHOTO_CHANGE},
    }
    with (
        atomic(path) as temporary,
        # A title from the command line need not be UTF-8.
        temporary.open("w", encoding="utf-8", errors="backslashreplace") as file,
    ):
        file.write(before)
        file.write(script_json(head)[:-1] + ',"cards":[')
        for n, card in enumerate(cards):
            file.write(("," if n else "") + script_json(card))
        file.write("]}" + after)


def read_part(name: str) -> str:
    """Returns a part of the page: its skeleton, style, dialogs, or scripts."""
    return (files("leapfactual") / "report" / name).read_text(encoding="utf-8")


def style_sheet() -> str:
    """Returns the style of cards and of what is around them, with the change map's colours."""
    style = read_part("page.css")
    for name, light in CHANGE_COLORS._asdict().items():
        dark = getattr(DARK_CHANGE_COLORS, name)
        style = style.replace(f"__{name.upper()}__", f"light-dark({light}, {dark})")
    return style


def script_json(value: object) -> str:
    """Writes JSON that may stand inside a script element."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
