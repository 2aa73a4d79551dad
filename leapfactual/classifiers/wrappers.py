"""Wrappers around a classifier: counting, caching, and retrying."""

import hashlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from .. import checks
from ..errors import ClassifierError, InputError
from ..types import Classifier

# SQLite took no more than 999 variables in a statement for long.
MAX_VARIABLES = 900


class Counted:
    """Creates a classifier that counts its calls and images.

    Example:
        >>> counted = Counted(lambda x: torch.eye(2)[[0] * len(x)])
        >>> _ = counted(torch.zeros(3, 2))
        >>> counted
        Counted(1 calls, 3 images)
    """

    def __init__(self, classifier: Classifier) -> None:
        self.classifier, self.calls, self.images = classifier, 0, 0

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the probabilities, and counts."""
        self.calls += 1
        self.images += len(x)
        return self.classifier(x)

    def __repr__(self) -> str:
        return f"Counted({self.calls} calls, {self.images} images)"


class Cached:
    """Creates a classifier that caches its answers by the content of the image.

    With a path they are kept in a file: as soon as the classifier has answered, so that a process
    that is killed loses nothing, and for whoever opens the same file next. It holds hashes and
    answers, no images. Several processes may use it at the same time.

    Arguments:
        classifier: The classifier.
        path: The file to keep the answers in, a database of SQLite. Defaults to memory.
        limit: How many answers to keep; the oldest are dropped first.

    Example:
        >>> cached = Cached(lambda x: torch.eye(2)[[0] * len(x)])
        >>> _ = cached(torch.zeros(3, 2)), cached(torch.zeros(5, 2))
        >>> cached
        Cached(1 answers, 7 hits, 1 misses)
    """

    def __init__(
        self, classifier: Classifier, path: str | Path | None = None, *, limit: int = 1_000_000
    ) -> None:
        checks.positive(limit, "limit")
        self.classifier, self.limit, self.hits, self.misses = classifier, limit, 0, 0
        self._answers = _open_answers(path)
        # Threads share the connection, which takes one of them at a time.
        self._turn = threading.RLock()

    def __call__(self, x: Tensor) -> Tensor:
        """Returns cached answers, and queries the classifier on new images, once each."""
        if not len(x):
            return self.classifier(x)
        keys = [_key(image) for image in x]
        known = self._find(dict.fromkeys(keys))
        new = {key: row for row, key in reversed([*enumerate(keys)]) if key not in known}
        if new:
            answers = self._query(x, sorted(new.values())).detach()
            fresh = {keys[row]: p for row, p in zip(sorted(new.values()), answers, strict=True)}
            self._keep(fresh)
            known |= fresh
        self.misses += len(new)
        self.hits += len(keys) - len(new)
        return torch.stack([known[key].to(x.device) for key in keys])

    def recall(self, x: Tensor) -> dict[int, Tensor]:
        """Returns the answers that are known, by the row of the image."""
        keys = [_key(image) for image in x]
        known = self._find(dict.fromkeys(keys))
        return {row: known[key] for row, key in enumerate(keys) if key in known}

    def learn(self, x: Tensor, p: Tensor) -> None:
        """Keeps answers that were given elsewhere."""
        self._keep({_key(image): answer for image, answer in zip(x, p, strict=True)})

    def forget(self) -> None:
        """Forgets all answers, since the classifier is another one now."""
        with self._turn:
            self._answers.execute("DELETE FROM answers")

    def close(self) -> None:
        """Closes the file, so that it can be moved."""
        self._answers.close()

    def __len__(self) -> int:
        with self._turn:
            (count,) = self._answers.execute("SELECT count(*) FROM answers").fetchone()
        return int(count)

    def _find(self, keys: Iterable[bytes]) -> dict[bytes, Tensor]:
        """Returns the answers that are known, by key."""
        found = {}
        for some in _batched(keys, MAX_VARIABLES):
            query = (
                f"SELECT key, dtype, p FROM answers WHERE key IN ({', '.join('?' * len(some))})"
            )
            with self._turn:
                rows = self._answers.execute(query, some).fetchall()
            for key, dtype, p in rows:
                found[key] = torch.frombuffer(bytearray(p), dtype=getattr(torch, dtype))
        return found

    def _keep(self, fresh: Mapping[bytes, Tensor]) -> None:
        rows = [
            (key, str(p.dtype).removeprefix("torch."), _bytes(p.detach()))
            for key, p in fresh.items()
        ]
        with self._turn, self._answers:
            self._answers.execute("BEGIN IMMEDIATE")
            self._answers.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", rows)
            excess = len(self) - self.limit
            if excess > 0:
                self._answers.execute(
                    "DELETE FROM answers WHERE rowid IN "
                    "(SELECT rowid FROM answers ORDER BY rowid LIMIT ?)",
                    (excess,),
                )

    def _query(self, x: Tensor, rows: list[int]) -> Tensor:
        try:
            answers = self.classifier(x[rows])
        except ClassifierError as error:
            raise ClassifierError(str(error), [rows[row] for row in error.rows]) from error
        _check_answers(answers, x[rows])
        return answers

    def __repr__(self) -> str:
        return f"Cached({len(self)} answers, {self.hits} hits, {self.misses} misses)"


def _open_answers(path: str | Path | None) -> sqlite3.Connection:
    """Opens the database of answers; one that is damaged is begun anew, as a cache can be."""
    # Whoever retries in a thread of its own may ask from there.
    database = sqlite3.connect(
        path or ":memory:", isolation_level=None, timeout=60, check_same_thread=False
    )
    try:
        # In this mode a commit is on disk for all but a failure of power.
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute(
            "CREATE TABLE IF NOT EXISTS answers "
            "(key BLOB UNIQUE, dtype TEXT NOT NULL, p BLOB NOT NULL)"
        )
        (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(found)
        return database
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError:
        assert path is not None, "memory holds no damaged file"
        # Closed first, since at its end a connection removes files beside the database by name.
        database.close()
        Path(path).unlink(missing_ok=True)
    return _open_answers(path)


class Retrying:
    """Creates a classifier that tries failed calls again, with exponential backoff.

    A call that raises, takes longer than ``timeout`` or returns NaN is repeated after a pause that
    doubles each time. Around it, :class:`Cached` keeps the answers of the batches that succeeded.

    Arguments:
        classifier: The classifier.
        tries: How often to call it in all.
        pause: The seconds before the second try.
        timeout: The seconds that one call may take; none for no limit. A call that hangs is left
            behind in its thread.
        sleep: How to wait.

    Example:
        >>> answers = iter([torch.full((1, 2), torch.nan), torch.eye(2)[:1]])
        >>> Retrying(lambda x: next(answers), pause=0)(torch.zeros(1, 2))
        tensor([[1., 0.]])
    """

    def __init__(
        self,
        classifier: Classifier,
        *,
        tries: int = 3,
        pause: float = 0.5,
        timeout: float | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        checks.positive(tries, "tries")
        if pause < 0:
            raise InputError(f"`pause` must be at least 0 seconds, got {pause!r}.")
        if timeout is not None and timeout <= 0:
            raise InputError(f"`timeout` must be positive, or None, got {timeout!r}.")
        self.classifier, self.tries, self.pause = classifier, tries, pause
        self.timeout, self.sleep = timeout, sleep

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the probabilities, or raises :class:`ClassifierError` after the last try."""
        for attempt in range(1, self.tries + 1):
            try:
                p = self._call(x)
                _check_answers(p, x)
            except Exception as error:
                if attempt == self.tries:
                    raise ClassifierError(
                        f"the classifier gave no answer for {len(x)} images after {self.tries} "
                        f"tries ({type(error).__name__}: {error}). Call again when it is back, or "
                        "find the image that it fails on with smaller batches.",
                        list(range(len(x))),
                    ) from error
                self.sleep(self.pause * 2 ** (attempt - 1))
            else:
                break
        return p

    def _call(self, x: Tensor) -> Tensor:
        if self.timeout is None:
            return self.classifier(x)
        future: Future[Tensor] = Future()
        gradients = torch.is_grad_enabled()

        def work() -> None:
            try:
                with torch.set_grad_enabled(gradients):
                    future.set_result(self.classifier(x))
            except BaseException as error:
                future.set_exception(error)

        # A pool would wait for a hanging call at exit; a daemon thread does not.
        threading.Thread(target=work, daemon=True).start()
        try:
            return future.result(self.timeout)
        except FutureTimeout as error:
            if future.done():
                raise
            raise TimeoutError(f"no answer within {self.timeout:g} s") from error


def _check_answers(answers: Tensor, x: Tensor) -> None:
    """Checks that there is one finite row for each image."""
    checks.one_row_each(answers, x, "the classifier")
    checks.finite(answers, "the classifier's answer")


def _key(image: Tensor) -> bytes:
    header = f"{image.dtype} {tuple(image.shape)}".encode()
    return hashlib.blake2b(header + _bytes(image.detach()), digest_size=16).digest()


def _bytes(tensor: Tensor) -> bytes:
    return tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes()


def _batched(keys: Iterable[bytes], n: int) -> Iterator[tuple[bytes, ...]]:
    rest = iter(keys)
    while some := tuple(islice(rest, n)):
        yield some
