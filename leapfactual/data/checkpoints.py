"""Checkpoints of torch, read by an unpickler that allows tensors and nothing else.

``torch.save`` writes a pickle that names its tensors and describes each as a strided view of a
storage; the storages' bytes lie beside the pickle. Files of torch 1.6 and later are ZIP archives
of one pickle and a member for each storage. Older ones are five parts in a row: a magic number,
the format's version, facts about the machine, the pickle, and the order of the storages, whose
bytes follow.

Only for files of our own cards, which are known by their hash. What a user hands in is never read
this way.
"""

import io
import math
import pickle
import pickletools
import struct
import zipfile
from collections import OrderedDict
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import InputError

MAGIC = 0x1950A86A20F9469CFC6C
VERSION = 1001
DTYPES = {
    "ByteStorage": torch.uint8,
    "CharStorage": torch.int8,
    "ShortStorage": torch.int16,
    "IntStorage": torch.int32,
    "LongStorage": torch.int64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
}
# What torch.save uses of pickle's second protocol. The others reach further than tensors need, or
# call what `find_class` does not see.
# fmt: off
OPCODES = {
    "PROTO", "STOP", "MARK", "GLOBAL", "REDUCE", "BUILD", "BINPERSID",
    "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET",
    "EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "APPEND", "APPENDS",
    "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
    "BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "NONE", "NEWTRUE", "NEWFALSE",
}
# fmt: on
# Enough for two thousand tensors; too few to nest tuples as deep as crashes the interpreter.
MAX_OPCODES = 80_000


class _Storage(NamedTuple):
    """Numbers in a row, as the pickle announces them."""

    key: str
    dtype: torch.dtype
    numel: int


class _View(NamedTuple):
    """Tensor, as the pickle describes it."""

    storage: _Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


class _Views(pickle.Unpickler):
    """Reads the pickle; tensors are described only, as their bytes may come after it."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            # A new function each time, because a pickle may set attributes of what it names.
            return lambda storage, offset, size, stride, *_: _View(
                storage, offset, tuple(size), tuple(stride)
            )
        if module == "torch" and name in DTYPES:
            return DTYPES[name]
        raise InputError(
            f"the file wants `{module}.{name}`, but only tensors are read. Do not use it."
        )

    def persistent_load(self, pid: Any) -> _Storage:  # noqa: ANN401
        kind, dtype, key, _, numel, *view = pid
        announced = isinstance(dtype, torch.dtype) and isinstance(key, str) and _count(numel)
        if kind != "storage" or not announced or view not in ([], [None]):
            raise InputError(f"the file announces a storage as {pid!r:.200}, which is none.")
        return _Storage(key, dtype, numel)


def read_checkpoint(content: bytes) -> dict[str, Tensor]:
    """Returns the tensors of a state dict, by name.

    As with torch, tensors that shared a storage share memory.

    Arguments:
        content: The bytes of a file that ``torch.save`` wrote of a state dict, old or new.
    """
    try:
        read = _from_zip if content.startswith(b"PK") else _from_parts
        return read(content)
    except InputError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        raise InputError(
            f"the checkpoint is damaged ({type(error).__name__}: {error}). Fetch it again."
        ) from error


def _from_zip(content: bytes) -> dict[str, Tensor]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        (main,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
        folder = main.removesuffix("data.pkl")
        if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
            raise InputError(
                "the checkpoint is compressed, which torch never does. Do not use it."
            )
        if f"{folder}byteorder" in archive.namelist():
            _check_order(archive.read(f"{folder}byteorder") == b"little")
        views = _views(_unpickled(io.BytesIO(archive.read(main))))
        storages = _storages(views, len(content))
        raw = {key: archive.read(f"{folder}data/{key}") for key in storages}
    return _tensors(views, storages, raw)


def _from_parts(content: bytes) -> dict[str, Tensor]:
    stream = io.BytesIO(content)
    if (_unpickled(stream), _unpickled(stream)) != (MAGIC, VERSION):
        raise InputError("the file is no checkpoint of torch: it does not begin as one.")
    _check_order(_unpickled(stream)["little_endian"] is True)
    views = _views(_unpickled(stream))
    storages = _storages(views, len(content))
    raw = {}
    for key in _unpickled(stream):
        (numel,) = struct.unpack("<q", stream.read(8))
        if numel != storages[key].numel:
            raise InputError(
                f"storage {key} has {numel} numbers, {storages[key].numel} were announced. The "
                "checkpoint is damaged."
            )
        raw[key] = stream.read(numel * storages[key].dtype.itemsize)
    return _tensors(views, storages, raw)


def _unpickled(stream: io.BytesIO) -> Any:  # noqa: ANN401
    start = stream.tell()
    for n, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
        if opcode.name not in OPCODES:
            raise InputError(
                f"the pickle uses {opcode.name}, but tensors do not need it. Do not use the file."
            )
        # Slots are numbered in turn, but the unpickler would make room for any number.
        slot = int(argument or 0) if opcode.name in ("BINPUT", "LONG_BINPUT") else 0
        if max(n, slot) > MAX_OPCODES:
            raise InputError(
                f"the pickle has more than {MAX_OPCODES} steps or slots, more than a state dict "
                "needs. Do not use the file."
            )
    stream.seek(start)
    return _Views(stream).load()


def _views(found: object) -> dict[str, _View]:
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(view, _View) for name, view in found.items()
    ):
        raise InputError(
            f"the checkpoint holds {type(found).__name__} with other things than tensors by name. "
            "Only state dicts are read."
        )
    for name, view in found.items():
        _check_bounds(name, view)
    return dict(found)


def _check_bounds(name: str, view: _View) -> None:
    storage, offset, size, stride = view
    counts = len(size) == len(stride) and all(_count(n) for n in (offset, *size, *stride))
    if not counts or not isinstance(storage, _Storage):
        raise InputError(f"tensor `{name}` is described by {view!r:.200}, which is no tensor.")
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    numel = math.prod(size)
    if numel > storage.numel or (numel and last >= storage.numel):
        raise InputError(
            f"tensor `{name}` of shape {size} reaches out of its storage of {storage.numel} "
            "numbers. Do not use the file."
        )


def _storages(views: dict[str, _View], limit: int) -> dict[str, _Storage]:
    storages: dict[str, _Storage] = {}
    for view in views.values():
        if storages.setdefault(view.storage.key, view.storage) != view.storage:
            raise InputError(
                f"storage {view.storage.key} is announced as two different ones. Do not use the "
                "file."
            )
    total = sum(storage.numel * storage.dtype.itemsize for storage in storages.values())
    if total > limit:
        raise InputError(
            f"the checkpoint announces {total} bytes of numbers, but is {limit} bytes long. It "
            "was cut off, or is none."
        )
    return storages


def _tensors(
    views: dict[str, _View], storages: dict[str, _Storage], raw: dict[str, bytes]
) -> dict[str, Tensor]:
    rows = {}
    for key, storage in storages.items():
        expected = storage.numel * storage.dtype.itemsize
        if len(raw[key]) != expected:
            raise InputError(
                f"storage {key} has {len(raw[key])} bytes, expected {expected}. The checkpoint "
                "was cut off."
            )
        rows[key] = torch.empty(0, dtype=storage.dtype)
        if expected:
            rows[key] = torch.frombuffer(bytearray(raw[key]), dtype=storage.dtype)
    return {
        name: rows[view.storage.key].as_strided(view.size, view.stride, view.offset)
        for name, view in views.items()
    }


def _check_order(little: bool) -> None:
    if not little:
        raise InputError("the checkpoint was written on a big-endian machine, and is not read.")


def _count(value: object) -> bool:
    return type(value) is int and value >= 0
