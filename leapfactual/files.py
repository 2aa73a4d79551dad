"""Files: written to a temporary name first and then renamed, read without unpickling."""

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .errors import InputError

HALF = (torch.float16, torch.bfloat16)


@contextmanager
def atomic(path: str | Path) -> Iterator[Path]:
    """Gives a temporary path beside ``path`` that takes its name when the block ends well.

    When the block raises, the temporary file is removed and ``path`` stays as it was.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "note.txt"
        >>> with atomic(target) as temporary:
        ...     _ = temporary.write_text("whole")
        >>> target.read_text()
        'whole'
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{path.suffix}")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        yield temporary
        # Some writers make files that only their owner can read; ours are as the user's others.
        temporary.chmod(mode)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_safetensors(
    tensors: Mapping[str, Tensor],
    path: str | Path,
    metadata: dict[str, str],
    half: bool = False,
) -> None:
    """Writes tensors to a safetensors file.

    Arguments:
        tensors: The tensors, by name.
        path: The file.
        metadata: What else to say, ``format`` among it.
        half: Whether to write floating-point numbers in half precision.
    """
    with atomic(path) as temporary:
        save_file(
            {
                name: (value.half() if half and value.is_floating_point() else value).contiguous()
                for name, value in tensors.items()
            },
            temporary,
            metadata,
        )


def read_safetensors(
    path: str | Path, wanted: str, remedy: str
) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Returns the metadata and the tensors of a safetensors file.

    What was written in half precision, to make the file small, comes back in full.

    Arguments:
        path: The file.
        wanted: The format that its metadata must name.
        remedy: What to do when it is not whole or not of that format.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != wanted:
                raise InputError(
                    f"{path} must be a `{wanted}`, got `{metadata.get('format')}`. {remedy}"
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return metadata, {
                name: value.float() if value.dtype in HALF else value
                for name, value in tensors.items()
            }
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is no whole safetensors file ({error}). {remedy}") from error
