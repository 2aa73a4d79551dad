"""Generators on disk: one safetensors file with weights and configuration."""

import json
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from .. import checks
from ..errors import InputError, MissingData
from ..files import load_weights, parse_json, read_safetensors, write_safetensors
from ..types import Generator
from .identity import Identity, Standardized
from .spatial import SpatialAutoencoder
from .vae import VAE
from .wae import WAE

FORMAT = "leapfactual generator 1"
KINDS: dict[str, Any] = {
    kind.__name__: kind for kind in (Identity, Standardized, VAE, WAE, SpatialAutoencoder)
}


@runtime_checkable
class Configured(Protocol):
    """Protocol of objects that say how they were built."""

    def config(self) -> dict[str, object]:
        """Returns the constructor's arguments, as values that JSON can hold."""
        ...


def kind(generator: object) -> str | None:
    """Returns the name that a generator is saved under; none if it cannot be saved."""
    name = type(generator).__name__
    return name if KINDS.get(name) is type(generator) else None


def save(generator: object, path: str | Path, *, half: bool = False) -> None:
    """Writes the weights and configuration of a generator to one safetensors file.

    Arguments:
        generator: The generator.
        path: The file.
        half: Whether to write the weights in half precision, to make the file small.
    """
    name = kind(generator)
    if name is None or not isinstance(generator, Configured):
        raise InputError(
            f"a {type(generator).__name__} cannot be saved: only {', '.join(KINDS)} can. Keep it "
            "your own way and pass it where it is needed."
        )
    state = generator.state_dict() if isinstance(generator, nn.Module) else {}
    metadata = {"format": FORMAT, "kind": name, "config": json.dumps(generator.config())}
    write_safetensors(state, path, metadata, half)


def load(path: str | Path) -> Generator:
    """Reads what :func:`save` wrote."""
    path = checks.path(path)
    if not path.is_file():
        raise MissingData(f"there is no generator at {path}. Train one and save it there.")
    metadata, tensors = read_safetensors(path, FORMAT, "Copy it again, or save it again.")
    if metadata.get("kind") not in KINDS:
        raise InputError(
            f"{path} must hold one of {', '.join(KINDS)}, got `{metadata.get('kind')}`."
        )
    try:
        with torch.device("meta"):
            generator = KINDS[metadata["kind"]](**parse_json(metadata["config"]))
        if isinstance(generator, nn.Module):
            load_weights(generator, tensors, assign=True)
    except (
        *(LookupError, TypeError, ValueError, ArithmeticError, AttributeError),
        RuntimeError,  # sizes beyond what torch can count
    ) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"{path} does not describe a generator ({reason}). Save it again."
        ) from error
    return generator  # type: ignore[no-any-return]
