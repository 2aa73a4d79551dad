"""Tables of runs that were kept one by one."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from leapfactual.files import atomic
from leapfactual.report import tables as results


def no_number(_setting: str, _method: str, _metric: str) -> float | None:
    """Returns what the paper says where it says nothing."""
    return None


def collect(
    runs: Sequence[Mapping[str, float | None]],
    paper: Callable[[str, str, str], float | None] = no_number,
) -> list[results.Row]:
    """Makes the rows of the numbers of several runs, of which not all have all numbers.

    Arguments:
        runs: The numbers of each run, by ``setting | method | metric``.
        paper: Returns the paper's number for the three.

    Example:
        >>> (row,) = collect([{"digits | ours | ACC": 0.9}, {"digits | ours | ACC": 1.0}])
        >>> row.metric, round(row.mean, 2), row.runs
        ('ACC', 0.95, 2)
    """
    keys = dict.fromkeys(key for numbers in runs for key in numbers)
    rows = []
    for key in keys:
        setting, method, metric = key.split(" | ")
        found = [numbers[key] for numbers in runs if key in numbers]
        values = [math.nan if value is None else value for value in found]
        rows.append(results.row(setting, method, metric, values, paper(setting, method, metric)))
    return rows


def write(
    out: Path, name: str, rows: Sequence[results.Row], runs: Sequence[Mapping[str, Any]], seed: int
) -> None:
    """Writes ``NAME.json`` and ``NAME.md``: the rows, and how all of the runs were made."""
    results.write(
        out / f"{name}.json",
        rows,
        seed=seed,
        command=" && ".join(dict.fromkeys(run["command"] for run in runs)),
        machine=", ".join(dict.fromkeys(run["hardware"] for run in runs)),
        made_with=runs[-1]["versions"] if runs else None,
    )
    with atomic(out / f"{name}.md") as temporary:
        temporary.write_text(results.pivot(rows) + "\n")
