"""CSV files whose lines each name one image of a set, such as targets or labels."""

import csv
import difflib
from collections.abc import Iterator
from pathlib import Path

from ..errors import InputError, MissingData
from .images import Images
from .tables import Table


def read_csv_rows(
    path: str | Path, images: Images | Table, column: str, what: str
) -> Iterator[tuple[str, int, dict[str, str]]]:
    """Reads a CSV file with the column ``image`` and another one, line by line.

    An image is named as the set names it, or by its file name alone where that is unique. Yields
    the place of a line, the row of its image, and its cells.

    Arguments:
        path: The file.
        images: The set.
        column: The other column.
        what: What the file lists, for the error if there is none.
    """
    path = Path(path)
    if not path.is_file():
        raise MissingData(f"there is no list of {what} at {path}. Give a CSV file.")
    known: dict[str, list[int]] = {}
    for row, name in enumerate(images.names):
        for key in {name, Path(name).name}:
            known.setdefault(key, []).append(row)
    empty = True
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        if not {"image", column} <= set(reader.fieldnames or []):
            raise InputError(
                f"{path} must have the columns `image` and `{column}`, got "
                f"{', '.join(reader.fieldnames or []) or 'none'}."
            )
        for number, line in enumerate(reader, 2):
            empty = False
            cells = {key: (value or "").strip() for key, value in line.items() if key is not None}
            rows = known.get(cells["image"], [])
            if len(rows) != 1:
                near = difflib.get_close_matches(cells["image"], known, n=1)
                hint = f" Did you mean `{near[0]}`?" if near else ""
                many = "several images have that name" if rows else "there is no such image"
                raise InputError(f"{path}:{number} names `{cells['image']}`: {many}.{hint}")
            yield f"{path}:{number}", rows[0], cells
    if empty:
        raise InputError(f"{path} names no image. Give one line for each.")
