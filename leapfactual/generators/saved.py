"""Trained generators on disk: one safetensors file with weights and configuration."""

import json
from abc import abstractmethod
from pathlib import Path
from typing import Any, Self

from safetensors.torch import save_file
from torch import Tensor

from ..errors import InputError, MissingData
from ..files import atomic, read_safetensors

FORMAT = "leapfactual generator 1"


class Saved:
    """Lets a module write itself to a file and be read back, by name and strictly."""

    @abstractmethod
    def config(self) -> dict[str, object]:
        """Returns the constructor's arguments, as values that JSON can hold."""

    def save(self, path: str | Path) -> None:
        """Writes weights and configuration to one safetensors file."""
        tensors: dict[str, Tensor] = {k: v.contiguous() for k, v in self.state_dict().items()}  # type: ignore[attr-defined]
        metadata = {
            "format": FORMAT,
            "kind": type(self).__name__,
            "config": json.dumps(self.config()),
        }
        with atomic(path) as temporary:
            save_file(tensors, temporary, metadata)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads what :meth:`save` wrote."""
        path = Path(path)
        if not path.is_file():
            raise MissingData(
                f"there is no {cls.__name__} at {path}. Train one and save it there."
            )
        metadata, tensors = read_safetensors(path, FORMAT, "Copy it again, or save it again.")
        if metadata.get("kind") != cls.__name__:
            raise InputError(
                f"{path} must hold a {cls.__name__}, got a {metadata.get('kind')}. "
                "Load it with its own class."
            )
        try:
            module: Any = cls(**json.loads(metadata["config"]))
            module.load_state_dict(tensors)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"{path} does not describe a {cls.__name__} ({error}). Save it again."
            ) from error
        return module  # type: ignore[no-any-return]
