"""HDF5 files, which need the extra ``hdf5``."""

import math
from pathlib import Path
from typing import IO, Any

from ..errors import InputError
from ..extras import require

# A chunk is always unpacked whole, however little of it is read.
MAX_CHUNK_BYTES = 256 * 2**20
# What deflate packs zeros by is 1032. More was never written, and would be read for days.
MAX_UNPACKED_RATIO = 1100


def open_hdf5(file: str | Path | IO[bytes]) -> Any:  # noqa: ANN401 - h5py has no types
    """Opens an HDF5 file for reading, or raises an error that says what to install."""
    return _h5py().File(file, "r")


def plain_dataset(file: Any, name: str) -> Any:  # noqa: ANN401 - h5py has no types
    """Returns an array that is stored in the file itself; it stays on disk.

    HDF5 can refer to other files: by a link, by external storage, or by a virtual dataset. To
    follow it would take any file of this machine for pixels, and show it.
    """
    h5py = _h5py()
    path = file.filename
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        raise InputError(f"`{name}` in {path} is a link. Save the array itself under that name.")
    array = file[name]
    if not isinstance(array, h5py.Dataset) or array.shape is None:
        raise InputError(f"`{name}` in {path} is no array. Save one under that name.")
    if array.is_virtual or array.external:
        raise InputError(
            f"`{name}` in {path} is stored in other files. Save it as one plain array, as "
            "file.create_dataset(name, data=array) does."
        )
    size = math.prod(array.chunks or (0,)) * array.dtype.itemsize
    if size > MAX_CHUNK_BYTES:
        raise InputError(
            f"`{name}` in {path} is packed in chunks of {size / 2**20:.0f} MiB, more than "
            f"{MAX_CHUNK_BYTES // 2**20}. Save it with smaller ones, such as an image each."
        )
    return array


def check_written(array: Any) -> None:  # noqa: ANN401 - h5py has no types
    """Refuses an array that declares far more than its file can hold, packed."""
    declared, stored = math.prod(array.shape) * array.dtype.itemsize, array.id.get_storage_size()
    if declared > MAX_UNPACKED_RATIO * stored:
        raise InputError(
            f"`{array.name}` in {array.file.filename} declares {declared:,} bytes, of which "
            f"{stored:,} are stored, while packing saves a factor of {MAX_UNPACKED_RATIO:,} at "
            "most. It was not written to its end: write it again."
        )


def _h5py() -> Any:  # noqa: ANN401 - h5py has no types
    return require("h5py", extra="hdf5", subject="HDF5 files need")
