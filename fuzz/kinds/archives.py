"""Zip files of pictures: bombs, names that lead out, links, duplicates, damage."""

import io
import random
import warnings
import zipfile
from pathlib import Path

from leapfactual.data import open_images

from ..mutations import TEXTS, mutate_bytes
from .kind import Kind, Read, check_images
from .pictures import picture, seeds

NAMES = (
    *("a.png", "b.png", "cat/a.png", "cat/b.png", "dog/c.png", "cat/deep/a.png", "x/cat/a.png"),
    *("../../outside/secret.png", "/etc/passwd.png", "C:\\a.png", "..\\a.png", "a.png/", "/.png"),
    *(".png", "__MACOSX/a.png", ".hidden/a.png", "cat/notes.txt", "cat//a.png", "./cat/a.png"),
    *("\u202egnp.png", "é/ü.png", "a\0b.png", "a" * 300 + ".png", "//", " ", "con.png", "cat"),
)
LINK = 0o120777 << 16


class Archives(Kind):
    """Zip files."""

    name, share = "archives", 10

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.whole = [seed for seed in seeds() if seed[0] in (".png", ".jpg", ".tif")]
        self.bomb = _zeros(64 << 20)

    def make(self, rng: random.Random, given: Path, outside: Path) -> Read:
        """See :meth:`Kind.make`."""
        path = given / "a.zip"
        if rng.random() < 0.01:
            path.write_bytes(self.bomb)
        else:
            content = self._archive(rng)
            path.write_bytes(mutate_bytes(rng, content) if rng.random() < 0.5 else content)
        size = rng.choice((None, None, (4, 5)))
        return lambda: check_images(open_images(path, size=size))

    def _archive(self, rng: random.Random) -> bytes:
        file = io.BytesIO()
        with warnings.catch_warnings(), zipfile.ZipFile(file, "w") as archive:
            warnings.simplefilter("ignore")  # duplicates
            archive.comment = rng.randbytes(rng.choice((0, 0, 20)))
            for _ in range(rng.choice((0, 1, 2, 3, 6))):
                name = rng.choice(NAMES)
                if rng.random() < 0.1:
                    name = rng.choice(TEXTS).encode(errors="replace").decode() + ".png"
                info = zipfile.ZipInfo("x")
                info.filename = name[:60_000]
                info.compress_type = rng.choice((0, 8, 8, 8, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
                _, content = picture(rng, self.whole)
                if rng.random() < 0.5:
                    content = self.whole[rng.randrange(4)][1]
                if rng.random() < 0.1:
                    info.external_attr = LINK
                    content = b"../outside/secret.png"
                archive.writestr(info, content)
        data = bytearray(file.getvalue())
        if rng.random() < 0.2 and b"PK\1\2" in data:
            # Facts of the directory at the end, which may differ from those beside the content.
            at = data.index(b"PK\1\2") + rng.choice((8, 10, 20, 24, 28, 38, 42))
            data[at : at + 4] = rng.choice((b"\0\0\0\0", b"\xff\xff\xff\xff", rng.randbytes(4)))
        return bytes(data)


def _zeros(size: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.png", bytes(size))
    return file.getvalue()
