"""The pictures of a studio: those that it was opened with, and those that are brought to it.

Pictures from disk are read when they are looked at. What somebody brings, by a click, a drop, from
the clipboard or with a pen, stays in memory, the last few of it, and is written nowhere.
"""

import io
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from .._engine.memory import in_halves
from ..data import Images, Table
from ..data.images import convert
from ..data.reading import decode
from ..errors import InputError, MissingData
from ..imaging import stretch
from ..types import Classifier, no_op

# More than that nobody looks through, and each is classified when the studio opens.
MAX_PICTURES, MAX_BROUGHT = 500, 64
BATCH_SIZE = 64
# Pictures are compared by so many pixels a side.
COMPARED_SIDE = 16
MAX_NAME = 120


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture to explain.

    Arguments:
        key: What the page calls it.
        name: What people call it.
        x: The picture, ``(1, C, H, W)``.
        z: Its latent, ``(1, D)``, where it is known.
    """

    key: str
    name: str
    x: Tensor
    z: Tensor | None = None


class Gallery:
    """Creates the pictures of a studio.

    Arguments:
        images: The pictures, on disk or as a tensor ``(N, C, H, W)``. Of more than
            :data:`MAX_PICTURES`, that many are taken, evenly spaced.
        names: What each is called. Defaults to their files.
        z: Their latents, ``(N, D)``, where they are known.
        stretch: The stretch of the images that the generator sees, for those that are brought.
        device: Where to compute.
    """

    def __init__(
        self,
        images: Images | Table | Tensor,
        names: Sequence[str] | None = None,
        z: Tensor | None = None,
        *,
        stretch: str = "none",
        device: torch.device | str = "cpu",
    ) -> None:
        self.images, self.z, self.stretch, self.device = images, z, stretch, device
        count = len(images)
        self.rows = torch.linspace(0, count - 1, min(count, MAX_PICTURES)).long().tolist()
        known = names or (None if isinstance(images, Tensor) else images.names)
        self.names = [known[row] if known else f"picture {row}" for row in self.rows]
        self.shape = tuple(images.shape[1:] if isinstance(images, Tensor) else images.shape)
        if len(self.shape) != 3:
            raise InputError(
                "the studio shows pictures, but this bundle explains a table. Use `leapfactual "
                "explain`, whose page shows columns."
            )
        self.brought: OrderedDict[str, Picture] = OrderedDict()
        self.labels: list[int] = []
        # Pages ask for pictures while questions are answered.
        self._lock = threading.RLock()
        self._small = torch.zeros(0)

    def __len__(self) -> int:
        return len(self.rows)

    @torch.no_grad()
    def look(self, classifier: Classifier, on_progress: Callable[[float], object] = no_op) -> None:
        """Classifies all pictures, and keeps a small copy of each to compare with.

        Arguments:
            classifier: The classifier.
            on_progress: Called with the share that is done.
        """
        labels, small = [], []
        for start in range(0, len(self.rows), BATCH_SIZE):
            x = self._read(self.rows[start : start + BATCH_SIZE])
            labels += in_halves(classifier, x).argmax(1).tolist()
            small.append(_shrink(x))
            on_progress(min(1.0, (start + BATCH_SIZE) / len(self.rows)))
        self.labels, self._small = labels, torch.cat(small)

    def __getitem__(self, key: str) -> Picture:
        """Returns a picture by its key."""
        with self._lock:
            if key in self.brought:
                self.brought.move_to_end(key)
                return self.brought[key]
        number = int(key) if key.isascii() and key.isdecimal() and len(key) < 9 else -1
        if not 0 <= number < len(self.rows):
            raise MissingData("this picture is no longer here. Bring it again, or take another.")
        row = self.rows[number]
        z = None if self.z is None else self.z[row : row + 1].to(self.device)
        return Picture(key, self.names[number], self._read([row]), z)

    def bring(self, content: bytes, name: str) -> Picture:
        """Takes in a picture that somebody brings, in the size and colours of the others.

        Arguments:
            content: The file, a PNG, JPEG, WEBP or TIFF, whatever it is called.
            name: What it is called.
        """
        shown = " ".join("".join(c if c.isprintable() else " " for c in name).split())[:MAX_NAME]
        x = decode(io.BytesIO(content), "the picture")
        x = stretch(convert(x, self.shape)[None], self.stretch).to(self.device)
        picture = Picture(f"b{secrets.token_hex(8)}", shown or "a picture", x)
        with self._lock:
            self.brought[picture.key] = picture
            while len(self.brought) > MAX_BROUGHT:
                self.brought.popitem(last=False)
        return picture

    def nearest(self, x: Tensor, label: int, but: str = "") -> Picture | None:
        """Returns the picture of a class that is nearest to another one, if there is any.

        Arguments:
            x: The other one, ``(1, C, H, W)``.
            label: The class that the classifier gives it.
            but: The key of one that does not count.
        """
        rows = [n for n, found in enumerate(self.labels) if found == label and str(n) != but]
        if not rows:
            return None
        distance = (self._small[rows] - _shrink(x)).abs().mean(1)
        return self[str(rows[int(distance.argmin())])]

    def _read(self, rows: list[int]) -> Tensor:
        with self._lock:
            return self.images[rows].to(self.device)


def _shrink(x: Tensor) -> Tensor:
    side = min(COMPARED_SIDE, *x.shape[2:])
    return F.adaptive_avg_pool2d(x, side).flatten(1).cpu()
