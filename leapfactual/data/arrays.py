"""Pickles of NumPy arrays, read by an unpickler that allows arrays and nothing else.

Only for files of our own cards, which are known by their hash. What a user hands in is never read
this way.
"""

import io
import pickle
from typing import Any

import numpy as np

from ..errors import InputError

_reconstruct = np.empty(0).__reduce__()[0]
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _Arrays(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401
        if (module, name) not in _ALLOWED:
            raise InputError(
                f"the file wants `{module}.{name}`, but only arrays are read. Do not use it."
            )
        return _ALLOWED[module, name]


def read_arrays(content: bytes) -> Any:  # noqa: ANN401 - nested tuples and dictionaries of arrays
    """Returns the arrays in a pickle, in the tuples and dictionaries that they are in."""
    try:
        return _Arrays(io.BytesIO(content), encoding="latin-1").load()
    except InputError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        raise InputError(f"the file is damaged ({type(error).__name__}: {error}).") from error
