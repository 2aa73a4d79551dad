"""Files: written to a temporary name first and then renamed, read without unpickling."""

import errno
import hashlib
import json
import math
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from . import checks
from .errors import InputError

HALVED = "halved"
MODULES_FORMAT = "leapfactual parts 1"
# Deeper than anything that is written here, and far from where Python's own functions give up.
MAX_NESTING = 32
# The name of a temporary file: a dot, the name to be, 32 random digits, and the ending again.
TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}(\..*)?")


@contextmanager
def atomic(path: str | Path) -> Iterator[Path]:
    """Gives a temporary path beside ``path`` that takes its name when the block ends well.

    When the block raises, the temporary file is removed and ``path`` stays as it was. A full disk
    is an OSError, whoever was writing.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "note.txt"
        >>> with atomic(target) as temporary:
        ...     _ = temporary.write_text("whole")
        >>> target.read_text()
        'whole'
    """
    path = checks.path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{path.suffix}")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        yield temporary
        # Some writers make files that only their owner can read; ours are as the user's others.
        temporary.chmod(mode)
        temporary.replace(path)
    except SafetensorError as error:
        if "No space left" in str(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def remove_temporaries(folder: Path) -> None:
    """Removes what :func:`atomic` left behind in a folder because its process was killed."""
    for path in folder.glob(".*"):
        if TEMPORARY.fullmatch(path.name):
            path.unlink()


def write_safetensors(
    tensors: Mapping[str, Tensor],
    path: str | Path,
    metadata: dict[str, str],
    half: bool = False,
) -> None:
    """Writes tensors to a safetensors file, the same bytes for the same tensors.

    Arguments:
        tensors: The tensors, by name. Where two share their memory, as tied weights do, each is
            written.
        path: The file.
        metadata: What else to say, ``format`` among it.
        half: Whether to write kernels and matrices in half precision. Rows, which are biases and
            statistics and weigh little, are written in full.
    """
    kept: dict[str, Tensor] = {}
    places: set[int] = set()
    for name, value in tensors.items():
        place = value.untyped_storage().data_ptr()
        kept[name] = (value.clone() if place in places else value).contiguous()
        places.add(place)
    if half:
        small = {name: value.half() for name, value in kept.items() if _bears_half(value)}
        kept |= small
        metadata = {**metadata, HALVED: json.dumps(sorted(small))}
    with atomic(path) as temporary:
        save_file(kept, temporary, metadata)
        _sort_metadata(temporary)


def _sort_metadata(path: Path) -> None:
    """Puts the metadata of a safetensors file in order; it is written in a random one.

    The file begins with the length of its header, eight bytes, and the header, which is JSON and
    may end in spaces.
    """
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) <= length:
            file.seek(8)
            file.write(text.ljust(length))


def _bears_half(value: Tensor) -> bool:
    if value.dtype != torch.float32 or value.ndim < 2:
        return False
    error = (value.half().float() - value).abs()
    return bool((error <= 1e-3 * value.abs() + 1e-6).all())


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
            for name in parse_json(metadata.get(HALVED, "[]")):
                tensors[name] = tensors[name].float()
            return metadata, tensors
    except InputError:
        raise
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is no whole safetensors file ({error}). {remedy}") from error


def is_whole(path: Path) -> bool:
    """Returns whether a file of JSON or safetensors can be read; others are not looked into."""
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt"):
                return True
        elif path.suffix in (".json", ".jsonl"):
            text = path.read_text(encoding="utf-8")
            return path.suffix == ".jsonl" or parse_json(text) is not None
        return True
    except (SafetensorError, OSError, ValueError):
        return False


def parse_json(text: str) -> Any:  # noqa: ANN401 - whatever it holds
    """Reads JSON, and raises ValueError where it is none or nested too deep.

    Example:
        >>> parse_json('{"a": [1, 2]}')
        {'a': [1, 2]}
    """
    too_deep = f"it is nested more than {MAX_NESTING} deep"
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise ValueError(too_deep) from error
    level = [content]
    for _ in range(MAX_NESTING + 1):
        groups = [v for v in level if isinstance(v, dict | list)]
        if not groups:
            return content
        level = [
            v for group in groups for v in (group.values() if isinstance(group, dict) else group)
        ]
    raise ValueError(too_deep)


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Returns the tensors whose names begin with ``prefix``, without it."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def load_weights(module: nn.Module, tensors: Mapping[str, Tensor], assign: bool = False) -> None:
    """Puts tensors into a network, or raises ValueError where it declares others.

    Names, shapes and types are compared first. So a network that was built on the device ``meta``,
    where it takes no memory, may declare any size.

    Arguments:
        module: The network.
        tensors: Its parameters and buffers, by name.
        assign: Whether the tensors take the place of the network's own, in their own precision.
    """
    declared = module.state_dict()
    missing, foreign = declared.keys() - tensors.keys(), tensors.keys() - declared.keys()
    for names, what in ((missing, "are missing"), (foreign, "are of another network")):
        if names:
            raise ValueError(f"{len(names)} tensors {what}, `{min(names)}` among them")
    precision = None
    for name, wanted in declared.items():
        found = tensors[name]
        if found.shape != wanted.shape:
            raise ValueError(
                f"`{name}` has the shape {tuple(found.shape)}, but the network that is described "
                f"has {tuple(wanted.shape)} there"
            )
        if wanted.dtype in checks.FLOATS:
            precision = precision or found.dtype
            allowed = [precision] if precision in checks.FLOATS else list(checks.FLOATS)
        else:
            allowed = [wanted.dtype]
        if found.dtype not in allowed:
            kinds = " or ".join(map(str, allowed))
            raise ValueError(f"`{name}` holds {found.dtype}, expected {kinds}")
    module.load_state_dict(tensors, assign=assign)


def write_modules(modules: Mapping[str, nn.Module], path: Path, half: bool = False) -> None:
    """Writes the weights of several networks to one file, in half precision if asked."""
    tensors = {
        f"{name}/{key}": value
        for name, module in modules.items()
        for key, value in module.state_dict().items()
    }
    write_safetensors(tensors, path, {"format": MODULES_FORMAT}, half)


def read_modules(modules: Mapping[str, nn.Module], path: Path) -> list[str]:
    """Reads what :func:`write_modules` wrote, and returns the names of the networks found."""
    _, tensors = read_safetensors(path, MODULES_FORMAT, "Delete it to train anew.")
    done = []
    for name, module in modules.items():
        own = below(tensors, f"{name}/")
        if own:
            try:
                load_weights(module, own)
            except ValueError as error:
                raise InputError(
                    f"{path} does not fit ({error}). Delete it to train anew."
                ) from error
            module.eval().requires_grad_(False)
            done.append(name)
    return done


def fingerprint(*values: Tensor | str) -> str:
    """Returns the SHA-256 of tensors and texts, by which they are recognized.

    Example:
        >>> fingerprint("a cat", torch.zeros(2))[:12]
        '22d04f77ebf5'
    """
    digest = hashlib.sha256()
    for value in values:
        if isinstance(value, str):
            digest.update(value.encode())
        else:
            digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
            row = value.detach().cpu().contiguous().flatten()
            digest.update(row.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def json_number(value: float) -> float | None:
    """Returns a number, or None for one that JSON cannot hold.

    Example:
        >>> [json_number(value) for value in (0.5, math.nan, math.inf)]
        [0.5, None, None]
    """
    return value if math.isfinite(value) else None
