"""Tables of results, as Markdown and JSON, with what it takes to reproduce them."""

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import fmean, stdev

import torch

from .. import __version__
from ..files import atomic


@dataclass(frozen=True)
class Row:
    """One number of a table: a metric of a method in a setting, over several runs.

    Arguments:
        setting: What was done.
        method: By which method.
        metric: What was measured.
        mean: The mean over the runs.
        sem: The standard error of that mean; None for a single run.
        runs: How many runs there were.
        paper: The paper's number, where it has one.
    """

    setting: str
    method: str
    metric: str
    mean: float
    sem: float | None
    runs: int
    paper: float | None = None


def row(
    setting: str, method: str, metric: str, values: Sequence[float], paper: float | None = None
) -> Row:
    """Returns the row of the values of several runs; runs without a value are left out.

    Example:
        >>> row("toy", "ours", "alpha", [1.0, 2.0, 3.0]).mean
        2.0
    """
    finite = [value for value in values if math.isfinite(value)]
    sem = stdev(finite) / len(finite) ** 0.5 if len(finite) > 1 else None
    mean = fmean(finite) if finite else math.nan
    return Row(setting, method, metric, mean, sem, len(finite), paper)


def hardware(device: str = "cpu") -> str:
    """Returns a description of the machine."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {os.cpu_count()} cores"


def versions() -> dict[str, str]:
    """Returns the versions of what the numbers depend on."""
    found = {"python": platform.python_version(), "leapfactual": __version__}
    for package in ("torch", "numpy", "torchdiffeq"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def record(command: str, device: str) -> dict[str, object]:
    """Returns what to keep beside the numbers of a run: command, hardware and versions."""
    return {"command": command, "hardware": hardware(device), "versions": versions()}


def write(
    path: Path,
    rows: Sequence[Row],
    *,
    seed: int,
    command: str,
    device: str = "cpu",
    machine: str | None = None,
    made_with: Mapping[str, str] | None = None,
) -> None:
    """Writes the rows as JSON, with seed, command, hardware and versions.

    Arguments:
        path: The file.
        rows: The rows.
        seed: The seed of everything random.
        command: The command that reproduces them.
        device: Where they come from.
        machine: What that is called, where the device's own name does not say it all.
        made_with: The versions that they come from, where those are not the present ones.
    """
    content = {
        "rows": [{k: _or_none(v) for k, v in asdict(r).items()} for r in rows],
        "seed": seed,
        "command": command,
        "hardware": machine or hardware(device),
        "versions": made_with or versions(),
    }
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n")


def read(path: Path) -> tuple[list[Row], str, str]:
    """Reads what :func:`write` wrote: the rows, the machine and the command."""
    content = json.loads(path.read_text())
    rows = [
        Row(**{**r, "mean": math.nan if r["mean"] is None else r["mean"]}) for r in content["rows"]
    ]
    return rows, str(content["hardware"]), str(content["command"])


def _or_none(value: object) -> object:
    """Returns None for NaN and infinity, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def markdown(rows: Sequence[Row]) -> str:
    """Returns the rows as a Markdown table.

    Example:
        >>> print(markdown([Row("toy", "ours", "alpha", 0.7, 0.01, 5)]))
        | setting | method | metric | ours | paper |
        |---|---|---|---|---|
        | toy | ours | alpha | 0.7000 ± 0.0100 | |
    """
    lines = ["| setting | method | metric | ours | paper |", "|---|---|---|---|---|"]
    for r in rows:
        paper = "" if r.paper is None else f"{r.paper:.4f} "
        lines.append(f"| {r.setting} | {r.method} | {r.metric} | {number(r)} | {paper}|")
    return "\n".join(lines)


def number(r: Row) -> str:
    """Returns mean and standard error as text."""
    return f"{r.mean:.4f}" + (f" ± {r.sem:.4f}" if r.sem is not None else "")


def pivot(rows: Sequence[Row]) -> str:
    """Returns one Markdown table for each setting: metrics down, methods across.

    The paper's number stands behind ours, in brackets.

    Example:
        >>> a, b = Row("toy", "a", "L1", 0.7, 0.01, 5, 0.8), Row("toy", "b", "L1", 0.5, None, 1)
        >>> print(pivot([a, b]))
        **toy**
        <BLANKLINE>
        | | a | b |
        |---|---|---|
        | L1 | 0.7000 ± 0.0100 (0.8000) | 0.5000 |
    """
    tables = []
    for setting in dict.fromkeys(r.setting for r in rows):
        own = [r for r in rows if r.setting == setting]
        methods = list(dict.fromkeys(r.method for r in own))
        cells = {(r.metric, r.method): r for r in own}
        lines = [
            f"**{setting}**",
            "",
            f"| | {' | '.join(methods)} |",
            "|---" * (len(methods) + 1) + "|",
        ]
        for metric in dict.fromkeys(r.metric for r in own):
            found = [cells.get((metric, method)) for method in methods]
            lines.append(
                f"| {metric} | {' | '.join('' if r is None else _cell(r) for r in found)} |"
            )
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def _cell(r: Row) -> str:
    return number(r) + ("" if r.paper is None else f" ({r.paper:.4f})")
