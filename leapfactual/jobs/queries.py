"""Queries of the classifier: counted and timed, kept on disk where they are slow.

An ordinary black box takes milliseconds to answer about a picture, a hundred times as long as a
generator takes to make one. So what a job costs is told in queries, and none is made twice: the
answers of a slow classifier are kept by the content of the picture, for a job that is resumed and
for the next one. Such a file is only as good as the classifier is the same. That is tried on a few
pictures, about which it is always asked.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from .. import checks
from .._engine.memory import in_halves
from ..bundle.manifest import MANIFEST, sha256
from ..classifiers import Cached
from ..classifiers.wrap import naming_errors
from ..data import packages
from ..errors import ClassifierError
from ..types import Classifier, no_op

# Hashing a picture and writing an answer takes a tenth of that.
MIN_CACHED_SECONDS = 1e-3
# A call should be over before anybody wonders whether it hangs, and a small loss in a kill.
MAX_SECONDS_PER_CALL, MAX_BATCH = 1.0, 1024
# Pictures that tell whether a classifier is the same, and of them those asked about one by one.
PROBES, ALONE = 64, 4
# One classifier's probabilities differ by less from call to call, another's by more.
PROBE_ATOL = 0.01


class Queries:
    """Creates a classifier that counts and times queries, and keeps the answers of a slow one.

    Arguments:
        classifier: The classifier.
        path: The file to keep answers in. Defaults to memory.
        watched: Whether to keep a few answers of a fast classifier too, so that it is noticed when
            it has changed.

    Attributes:
        stage: What queries are counted for.
        asked: How many pictures the classifier was asked about, for each stage.
        seconds: How long that took, for each stage.
        on_call: Called after every call, of which a batch may take many.
        kept: Whether it is slow, so that its answers are kept.
    """

    def __init__(
        self, classifier: Classifier, path: Path | None = None, *, watched: bool = False
    ) -> None:
        self.classifier, self.path, self.watched = classifier, path, watched
        self.stage = ""
        self.asked: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self.on_call: Callable[[], object] = no_op
        self.kept = False
        self._timed = (0, 0.0)
        self._cached: Cached | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the probabilities ``(B, K)``."""
        answer = self._cached if self._cached is not None and self.kept else self._ask
        size = max(1, min(MAX_BATCH, int(MAX_SECONDS_PER_CALL / max(self.seconds_each, 1e-9))))
        return torch.cat([answer(part) for part in torch.split(x, size)])

    @property
    def seconds_each(self) -> float:
        """How long a query takes in a batch, as far as is known."""
        images, seconds = self._timed
        return seconds / images if images else 0.0

    @torch.no_grad()
    def begin(self, x: Tensor) -> int:
        """Asks about some pictures, and returns about how many it had been said otherwise before.

        Where that is any, the classifier has changed, and what was kept of it is forgotten.

        Arguments:
            x: The pictures; the first are taken.
        """
        x = x[:PROBES]
        alone = torch.cat([self._ask(part) for part in torch.split(x[:ALONE], 1)])
        self._timed = (0, 0.0)
        p = in_halves(self._ask, x)
        checks.probabilities(p, len(x), p.shape[1], "the classifier's answer")
        if not torch.equal(alone.argmax(1), p[: len(alone)].argmax(1)):
            raise ClassifierError(
                "the classifier gives a picture one class by itself and another among others. Put "
                "it in evaluation mode, with nothing random, and let it look at each picture "
                "alone.",
                list(range(len(alone))),
            )
        self.kept = self.seconds_each >= MIN_CACHED_SECONDS
        if not (self.kept or self.watched):
            return 0
        self._cached = Cached(self._ask, self.path if self._can_keep() else None)
        before = self._cached.recall(x)
        changed = sum(not _same(known, p[row]) for row, known in before.items())
        if changed:
            self._cached.forget()
        self._cached.learn(x, p)
        return changed

    def close(self) -> None:
        """Closes the file of answers, so that it can be moved; from here on none is kept."""
        if self._cached is not None:
            self._cached.close()
            self._cached, self.kept = None, False

    def _can_keep(self) -> bool:
        """Makes the folder of the file, where that is allowed: a job works without it, too."""
        if self.path is None:
            return False
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        return self.path.parent.is_dir() and os.access(self.path.parent, os.W_OK)

    def _ask(self, x: Tensor) -> Tensor:
        started = time.perf_counter()
        with naming_errors(x):
            p = self.classifier(x)
        seconds = time.perf_counter() - started
        self.asked[self.stage] = self.asked.get(self.stage, 0) + len(x)
        self.seconds[self.stage] = self.seconds.get(self.stage, 0.0) + seconds
        self._timed = self._timed[0] + len(x), self._timed[1] + seconds
        self.on_call()
        return p


def answers_file(folder: Path) -> Path:
    """Returns where the answers of a bundle's classifier are kept, in the cache of this user."""
    return packages.cache() / "answers" / f"{sha256(folder / MANIFEST)}.db"


def _same(known: Tensor, p: Tensor) -> bool:
    p = p.to(known)
    if known.max() == 1 or p.max() == 1:
        return bool(known.argmax() == p.argmax())
    return known.shape == p.shape and torch.allclose(known, p, rtol=0, atol=PROBE_ATOL)
