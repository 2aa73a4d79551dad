"""The manifest of a bundle: what is in the folder, as JSON.

A bundle may come from a stranger: sizes are bounded, names are listed, files are hashed, and
nothing is executed.
"""

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..classifiers import Preprocessing
from ..errors import InputError, MissingData
from ..files import parse_json
from ..leaps import STAGES, RatedPlan, Stage
from ..solvers import SOLVERS, FixedStep

FORMAT = "leapfactual bundle 2"
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 1 << 20
MAX_FILE_BYTES = 8 << 30
# Images beside their reconstructions, for people to look at.
PICTURE = "reconstructions.png"
FILES = {"flow.safetensors", "probes.safetensors", "generator.safetensors", PICTURE}


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """Returns the manifest of a bundle, without reading anything else."""
    path = Path(folder) / MANIFEST
    if path.is_symlink() or not path.is_file():
        raise MissingData(
            f"there is no bundle at {folder}: it has no {MANIFEST}. Give the folder that "
            "`leapfactual fit` wrote."
        )
    if path.stat().st_size > MAX_MANIFEST_BYTES:
        raise InputError(f"{path} has {path.stat().st_size} bytes, too many for a manifest.")
    try:
        manifest = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is no whole JSON file ({error}). Copy it again.") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        got = manifest.get("format") if isinstance(manifest, dict) else type(manifest).__name__
        raise InputError(f"{path} must describe a `{FORMAT}`, got `{got}`. Make the bundle again.")
    if not isinstance(manifest.get("files"), dict):
        raise InputError(f"{path} must name its `files`, with size and hash. Make it again.")
    return manifest


def refuse_foreign_files(folder: Path) -> None:
    """Refuses to replace a folder that is no bundle, or that holds other files too."""
    try:
        read_manifest(folder)
    except (InputError, MissingData) as error:
        raise InputError(
            f"{folder} is no bundle, so it is not replaced. Give another folder."
        ) from error
    foreign = sorted({path.name for path in folder.iterdir()} - FILES - {MANIFEST})
    if foreign:
        raise InputError(
            f"{folder} also holds {', '.join(foreign[:3])}, so it is not replaced. Move that "
            "away first."
        )


def verify(folder: Path, name: str, record: dict[str, Any]) -> None:
    """Checks a file against its size and hash in the manifest."""
    path = folder / name
    if path.is_symlink() or not path.is_file():
        raise MissingData(f"the bundle {folder} has no file {name}. Copy it again.")
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise InputError(f"{path} has {size} bytes, too many for a bundle.")
    if size != record["bytes"] or sha256(path) != record["sha256"]:
        raise InputError(
            f"{path} is not the file that the manifest names: its size or SHA-256 differs. It was "
            "damaged or exchanged; copy the bundle again."
        )


def read_names(names: object) -> tuple[str, ...]:
    """Reads the names of the classes."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError("`classes` is no list of names")
    return tuple(names)


def read_preprocessing(config: dict[str, Any]) -> Preprocessing:
    """Reads the preprocessing of the classifier."""
    arguments: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in config.items()
    }
    return Preprocessing(**arguments)


def sha256(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def stage_to_json(stage: Stage) -> dict[str, object]:
    """Returns a stage as values that JSON can hold."""
    kind = next(name for name, kind in STAGES.items() if type(stage) is kind)
    return {"kind": kind, **asdict(stage)}


def rated_plan_to_json(rated: RatedPlan) -> dict[str, object]:
    """Returns a rated plan as values that JSON can hold."""
    return {
        "reliability": rated.reliability,
        "plan": [stage_to_json(stage) for stage in rated.plan],
        "numbers": dict(rated.numbers),
        "solver": rated.solver
        and {"kind": type(rated.solver).__name__, "steps": rated.solver.steps},
    }


def read_rated_plan(
    reliability: float,
    plan: list[dict[str, Any]],
    numbers: dict[str, float],
    solver: dict[str, Any] | None,
) -> RatedPlan:
    """Reads what :func:`rated_plan_to_json` returned."""
    stages = tuple(read_stage(**stage) for stage in plan)
    values = {str(k): float(v) for k, v in numbers.items()}
    known = None if solver is None else SOLVERS[solver["kind"]](steps=solver["steps"])  # type: ignore[call-arg]
    if not isinstance(known, FixedStep | None):
        raise ValueError(f"the solver {solver} takes no fixed steps")
    return RatedPlan(stages, float(reliability), values, known)


def read_stage(kind: str, **numbers: float) -> Stage:
    """Reads what :func:`stage_to_json` returned."""
    return STAGES[kind](**numbers)  # type: ignore[arg-type]
