"""CSV files whose lines each name one image of a set, such as targets or labels."""

import difflib
import itertools
from collections.abc import Iterator
from pathlib import Path

from .. import checks
from ..errors import InputError, MissingData
from .images import Images
from .tables import Table, read_lines


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
    path = checks.path(path)
    if not path.is_file():
        raise MissingData(f"there is no list of {what} at {path}. Give a CSV file.")
    known: dict[str, list[int]] = {}
    for row, name in enumerate(images.names):
        for key in {name, Path(name).name}:
            known.setdefault(key, []).append(row)
    header, *lines = read_lines(path)
    if not {"image", column} <= set(header):
        raise InputError(
            f"{path} must have the columns `image` and `{column}`, got "
            f"{', '.join(header) or 'none'}. Name them in its first line."
        )
    for number, line in enumerate(lines, 2):
        if not line:
            continue
        values = itertools.chain((value.strip() for value in line), itertools.repeat(""))
        cells = dict(zip(header, values, strict=False))
        rows = known.get(cells["image"], [])
        if len(rows) != 1:
            wrong = f"{path}:{number} names `{cells['image']}`"
            if rows:
                raise InputError(
                    f"{wrong}: {len(rows)} images have that name. Give the whole path, such as "
                    f"`{images.names[rows[0]]}`."
                )
            near = difflib.get_close_matches(cells["image"], known, n=1)
            hint = f"Did you mean `{near[0]}`?" if near else f"One is `{images.names[0]}`."
            raise InputError(f"{wrong}: there is no such image. {hint}")
        yield f"{path}:{number}", rows[0], cells
    if not any(lines):
        raise InputError(f"{path} names no image. Give one line for each.")
