"""HDF5 files, which need the extra ``hdf5``."""

from pathlib import Path
from typing import IO, Any

from ..errors import MissingExtra


def open_hdf5(file: str | Path | IO[bytes]) -> Any:  # noqa: ANN401 - h5py has no types
    """Opens an HDF5 file for reading, or raises an error that says what to install."""
    try:
        import h5py
    except ImportError as error:
        raise MissingExtra(
            "HDF5 files need h5py, which is not installed. Run `pip install 'leapfactual[hdf5]'`."
        ) from error
    return h5py.File(file, "r")
