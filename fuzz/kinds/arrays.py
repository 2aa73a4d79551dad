"""Arrays of images: .npz and HDF5 files of any type and shape, links, external storage."""

import io
import random
import struct
import warnings
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from leapfactual.data import galaxies, open_images

from ..mutations import mutate_bytes, text
from .kind import Kind, Read, check_images, check_pixels

KEYS = ("images", "x", "image", "data", "arr_0", "labels", "y", "ans", "other")
TYPES = (
    "u1",
    "u1",
    "u1",
    "u2",
    "f4",
    "f2",
    "f8",
    "i1",
    "i8",
    "?",
    "c8",
    "S3",
    "U2",
    "O",
    ">u2",
    "M8[s]",
)
SHAPES = (
    *((3, 4, 5), (3, 4, 5, 1), (3, 1, 4, 5), (3, 4, 5, 3), (3, 3, 4, 5), (0, 4, 5), (3, 0, 5)),
    *((3,), (), (3, 4), (3, 4, 5, 2), (1, 2, 3, 4, 5), (3, 1), (2,), (4,), (3, 3, 3, 3)),
)


def array(rng: random.Random, shape: tuple[int, ...] | None = None) -> Any:
    """Returns an array of some type and shape."""
    chosen = rng.choice(SHAPES) if shape is None else shape
    values = np.random.default_rng(rng.randrange(1000)).random(chosen)
    kind = rng.choice(TYPES)
    if np.dtype(kind).kind in "iu":
        values = values * 255
    elif kind == "f4" and rng.random() < 0.2:
        values = values * rng.choice((np.nan, np.inf, 300, -1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(values).astype(kind)


class Arrays(Kind):
    """Files of arrays."""

    name, share = "arrays", 10

    def make(self, rng: random.Random, given: Path, outside: Path) -> Read:
        """See :meth:`Kind.make`."""
        shape = (3, 4, 5) if rng.random() < 0.5 else None
        found = {"images": array(rng, shape)}
        if rng.random() < 0.5:
            found["labels"] = array(rng, (3,) if shape else None)
        if rng.random() < 0.3:
            found[rng.choice(KEYS)] = array(rng)
        if rng.random() < 0.5:
            path = given / "a.npz"
            path.write_bytes(_npz(rng, found))
        else:
            path = given / rng.choice(("a.h5", "a.hdf5"))
            _hdf5(rng, found, path, outside)
            if rng.random() < 0.4:
                path.write_bytes(mutate_bytes(rng, path.read_bytes()))
            if rng.random() < 0.1:
                return lambda: _galaxies(path)
        size = rng.choice((None, None, (4, 5)))
        return lambda: check_images(open_images(path, size=size))


def _galaxies(path: Path) -> None:
    for part in galaxies(path, size=8):
        check_pixels(part.images)


def _npz(rng: random.Random, found: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")  # duplicates
        for key, values in found.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.asarray(values), allow_pickle=True)
            content = member.getvalue()
            if rng.random() < 0.3:
                content = _declare(rng, content)
            if rng.random() < 0.2:
                content = mutate_bytes(rng, content)
            archive.writestr(f"{key}.npy", content)
            if rng.random() < 0.05:
                archive.writestr(f"{key}.npy", content)
    content = file.getvalue()
    return mutate_bytes(rng, content) if rng.random() < 0.2 else content


def _declare(rng: random.Random, content: bytes) -> bytes:
    """Puts another description before the numbers."""
    shape = rng.choice(
        (
            *("(10**9,4,5)", "(1000000000,4,5)", "(3,-4,5)", "(3,4,5.0)", "(True,4,5)", "3"),
            *(
                "(2**63,1,1)",
                "(99999999999999999999,1,1)",
                "()",
                "((3,),4,5)",
                "(0,4,5)",
                "(3,4,)",
            ),
        )
    )
    kind = rng.choice(("'|u1'", "'<f8'", "'|O'", "[('a','|u1')]", "'<U9999999'", "1", text(rng)))
    order = rng.choice(("False", "True", "2"))
    header = f"{{'descr': {kind}, 'fortran_order': {order}, 'shape': {shape}, }}\n"
    if rng.random() < 0.05:
        header = "(" * rng.choice((50, 5000)) + header
    body = header.encode("latin-1", errors="replace")[:65_000]
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(body)) + body + content[-60:]


def _hdf5(rng: random.Random, found: dict[str, Any], path: Path, outside: Path) -> None:
    secret = str(outside / "secret.bin")
    with h5py.File(path, "w") as file:
        for key, values in found.items():
            kind = rng.randrange(14)
            if kind == 0:
                file.create_dataset(key, (3, 4, 5), "u1", external=[(secret, 0, 60)])
            elif kind == 1:
                file[key] = h5py.ExternalLink(secret, "/images")
            elif kind == 2:
                file[key] = h5py.SoftLink("/elsewhere")
            elif kind == 3:
                layout = h5py.VirtualLayout((3, 4, 5), "u1")
                layout[:] = h5py.VirtualSource(secret, "images", (3, 4, 5))
                file.create_virtual_dataset(key, layout)
            elif kind == 4:
                file.create_group(key)
            elif kind == 5:
                file.create_dataset(key, (10**9, 4, 5), "u1", chunks=(10**4, 4, 5))
            elif kind == 6:
                file.create_dataset(key, (3, 20_000, 20_000), "u1", chunks=(1, 64, 64))
            elif kind == 7:
                file.create_dataset(key, dtype=h5py.Empty("f4").dtype, shape=None)
            elif np.asarray(values).dtype.kind in "OUM":
                file.create_dataset(key, data=["a", "b", "c"])
            else:
                packed = "gzip" if np.ndim(values) and rng.random() < 0.3 else None
                file.create_dataset(key, data=values, compression=packed)
