"""The weights in a TensorFlow Lite model, in the order in which it uses them.

Such a file is a flatbuffer: tables whose fields are found by number, through a list of offsets,
and may point to further tables. Weights in half precision go through an operation that widens
them; here they are widened at once.
"""

import struct
from typing import Any

import numpy as np

from ...errors import InputError

TYPES: dict[int, np.dtype[Any]] = {0: np.dtype("<f4"), 1: np.dtype("<f2")}
DEQUANTIZE = 6

Array = np.ndarray[Any, np.dtype[np.float32]]


class Table:
    """Table of a flatbuffer.

    Arguments:
        content: The whole file.
        place: Where the table begins.
    """

    def __init__(self, content: bytes, place: int) -> None:
        self.content, self.place = content, place
        self.offsets = place - self._unpack("<i", place)

    def _unpack(self, form: str, place: int) -> int:
        return int(struct.unpack_from(form, self.content, place)[0])

    def _find(self, field: int) -> int | None:
        offset = 4 + 2 * field
        if offset >= self._unpack("<H", self.offsets):
            return None
        found = self._unpack("<H", self.offsets + offset)
        return self.place + found if found else None

    def _follow(self, place: int) -> int:
        return place + self._unpack("<I", place)

    def number(self, field: int, form: str) -> int:
        """Returns a number, which is 0 where it is left out."""
        place = self._find(field)
        return 0 if place is None else self._unpack(form, place)

    def vector(self, field: int) -> tuple[int, int]:
        """Returns where the elements of a vector begin, and how many they are."""
        place = self._find(field)
        if place is None:
            return 0, 0
        start = self._follow(place)
        return start + 4, self._unpack("<I", start)

    def numbers(self, field: int) -> tuple[int, ...]:
        """Returns a vector of whole numbers."""
        start, length = self.vector(field)
        return struct.unpack_from(f"<{length}i", self.content, start)

    def tables(self, field: int) -> list["Table"]:
        """Returns a vector of tables."""
        start, length = self.vector(field)
        return [
            Table(self.content, self._follow(start + 4 * n))
            for n in range(min(length, len(self.content)))
        ]

    def array(self, field: int, kind: np.dtype[Any]) -> Array:
        """Returns a vector of bytes as the numbers that they stand for."""
        start, length = self.vector(field)
        return np.frombuffer(self.content[start : start + length], kind).astype(np.float32)


def read_weights(content: bytes) -> list[Array]:
    """Returns the arrays of weights that the operations of a model take, first to last.

    Lone numbers and whole numbers are left out; what several operations share comes several times.
    """
    try:
        return _weights(Table(content, struct.unpack_from("<I", content)[0]))
    except (struct.error, IndexError, ValueError) as error:
        raise InputError(
            f"the model of TensorFlow Lite is damaged ({type(error).__name__}: {error})."
        ) from error


def _weights(model: Table) -> list[Array]:
    codes = [max(code.number(0, "<b"), code.number(3, "<i")) for code in model.tables(1)]
    (graph,), buffers = model.tables(2), model.tables(4)
    values, found = {}, []
    for n, tensor in enumerate(graph.tables(0)):
        kind, buffer = tensor.number(1, "<b"), buffers[tensor.number(2, "<I")]
        if kind in TYPES and buffer.vector(0)[1]:
            values[n] = buffer.array(0, TYPES[kind]).reshape(tensor.numbers(0))
    for operation in graph.tables(3):
        given = [values[n] for n in operation.numbers(1) if n in values]
        if codes[operation.number(0, "<I")] == DEQUANTIZE:
            values.update(zip(operation.numbers(2), given, strict=True))
        else:
            found += [array for array in given if array.ndim]
    return found
