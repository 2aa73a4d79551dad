"""HDF5 files, which need the extra ``hdf5``."""

from pathlib import Path
from typing import IO, Any

from ..extras import require


def open_hdf5(file: str | Path | IO[bytes]) -> Any:  # noqa: ANN401 - h5py has no types
    """Opens an HDF5 file for reading, or raises an error that says what to install."""
    h5py = require("h5py", extra="hdf5", subject="HDF5 files need")
    return h5py.File(file, "r")
