"""Layers around a classifier: counting, remembering, and patience with one that fails."""

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout

import torch
from torch import Tensor

from .. import checks
from ..errors import ClassifierError, InputError
from ..types import Classifier


class Counted:
    """Counts what a classifier is asked.

    Example:
        >>> counted = Counted(lambda x: torch.eye(2)[[0] * len(x)])
        >>> _ = counted(torch.zeros(3, 2))
        >>> counted
        Counted(1 calls, 3 images)
    """

    def __init__(self, classifier: Classifier) -> None:
        self.classifier, self.calls, self.images = classifier, 0, 0

    def __call__(self, x: Tensor) -> Tensor:
        """Answers, and counts."""
        self.calls += 1
        self.images += len(x)
        return self.classifier(x)

    def __repr__(self) -> str:
        return f"Counted({self.calls} calls, {self.images} images)"


class Cached:
    """Remembers answers by the content of the image, so that none is asked for twice.

    Arguments:
        classifier: The classifier.
        limit: How many answers to keep; the oldest go first.

    Example:
        >>> cached = Cached(lambda x: torch.eye(2)[[0] * len(x)])
        >>> _ = cached(torch.zeros(3, 2)), cached(torch.zeros(5, 2))
        >>> cached
        Cached(1 answers, 7 found, 1 asked)
    """

    def __init__(self, classifier: Classifier, limit: int = 100_000) -> None:
        checks.positive(limit, "limit")
        self.classifier, self.limit, self.found, self.asked = classifier, limit, 0, 0
        self._answers: OrderedDict[str, Tensor] = OrderedDict()

    def __call__(self, x: Tensor) -> Tensor:
        """Answers from memory, and asks about what is new, each image once."""
        if not len(x):
            return self.classifier(x)
        keys = [_key(image) for image in x]
        new: dict[str, int] = {}
        for row, key in enumerate(keys):
            if key not in self._answers:
                new.setdefault(key, row)
        fresh: dict[str, Tensor] = {}
        if new:
            answers = self._asked(x, list(new.values()))
            fresh = {key: answer.detach() for key, answer in zip(new, answers, strict=True)}
        self.asked += len(new)
        self.found += len(keys) - len(new)
        known = {**self._answers, **fresh} if fresh else self._answers
        out = torch.stack([known[key].to(x.device) for key in keys])
        self._answers.update({key: answer.clone().cpu() for key, answer in fresh.items()})
        while len(self._answers) > self.limit:
            self._answers.popitem(last=False)
        return out

    def _asked(self, x: Tensor, rows: list[int]) -> Tensor:
        try:
            answers = self.classifier(x[rows])
        except ClassifierError as error:
            raise ClassifierError(str(error), [rows[row] for row in error.rows]) from error
        _whole(answers, x[rows])
        return answers

    def __repr__(self) -> str:
        return f"Cached({len(self._answers)} answers, {self.found} found, {self.asked} asked)"


class Retrying:
    """Asks a classifier that fails now and then again, and never for an answer it already has.

    A call that raises, hangs or answers with NaN is tried again after a pause that doubles each
    time. When a whole batch keeps failing it is halved, down to single images, so that one bad
    image spoils neither the batch nor the answers already paid for: those stay, and a later call
    goes on from them. When neither the first nor the last image of a batch gets an answer alone,
    the classifier is taken to be gone, and no more is asked.

    Arguments:
        classifier: The classifier.
        tries: How often to ask in all.
        pause: The seconds before the second try.
        timeout: The seconds that one call may take; none for as long as it likes. A call that
            hangs is left behind in its thread.
        sleep: How to wait.
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
        self._paid: dict[str, Tensor] = {}
        self._lock = threading.Lock()

    def __call__(self, x: Tensor) -> Tensor:
        """Answers, or raises :class:`ClassifierError` naming the images that got no answer."""
        if not len(x):
            return self.classifier(x)
        keys = [_key(image) for image in x]
        with self._lock:
            missing = [row for row, key in enumerate(keys) if key not in self._paid]
            errors: dict[int, Exception] = {}
            if missing:
                self._settle(x, keys, missing, self.tries, errors)
            if errors:
                raise self._sorry(errors, len(x))
            answers = torch.stack([self._paid[key] for key in keys]).to(x.device)
            for key in set(keys):
                del self._paid[key]
            return answers

    def _settle(
        self,
        x: Tensor,
        keys: list[str],
        rows: list[int],
        tries: int,
        errors: dict[int, Exception],
    ) -> None:
        """Gets the answers of some rows, keeping what comes; notes the rows that get none."""
        failure = self._try(x, keys, rows, tries)
        if failure is None:
            return
        if len(rows) == 1:
            errors[rows[0]] = failure
            return
        ends = [self._try(x, keys, [row], 1) for row in (rows[0], rows[-1])]
        if all(ends):
            errors.update(dict.fromkeys(rows, failure))
            return
        left = [row for row in rows if keys[row] not in self._paid]
        for part in (left[: len(left) // 2], left[len(left) // 2 :]):
            if part:
                self._settle(x, keys, part, 1, errors)

    def _try(self, x: Tensor, keys: list[str], rows: list[int], tries: int) -> Exception | None:
        """Asks about rows, several times if need be; returns the last error, or nothing."""
        for attempt in range(1, tries + 1):
            try:
                answers = self._timed(x[rows])
                _whole(answers, x[rows])
            except Exception as error:
                if attempt == tries:
                    return error
                self.sleep(self.pause * 2 ** (attempt - 1))
            else:
                for row, answer in zip(rows, answers, strict=True):
                    self._paid[keys[row]] = answer.detach().cpu()
                return None
        return None

    def _sorry(self, errors: dict[int, Exception], n: int) -> ClassifierError:
        rows = sorted(errors)
        error = errors[rows[0]]
        sorry = ClassifierError(
            f"the classifier gave no answer for {len(rows)} of {n} images after {self.tries} "
            f"tries (first: row {rows[0]}, {type(error).__name__}: {error}). The other "
            f"{n - len(rows)} answers are kept: call again to go on, or leave those images out.",
            rows,
        )
        sorry.__cause__ = error
        return sorry

    def _timed(self, x: Tensor) -> Tensor:
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

        threading.Thread(target=work, daemon=True).start()
        try:
            return future.result(self.timeout)
        except FutureTimeout as error:
            if future.done():
                raise
            raise TimeoutError(f"no answer within {self.timeout:g} s") from error


def _whole(answers: Tensor, x: Tensor) -> None:
    """Refuses answers that are not one finite row for each image."""
    checks.one_row_each(answers, x, "the classifier")
    checks.finite(answers, "the classifier's answer")


def _key(image: Tensor) -> str:
    content = image.detach().cpu().contiguous()
    header = f"{content.dtype} {tuple(content.shape)}".encode()
    return hashlib.sha256(header + content.view(torch.uint8).numpy().tobytes()).hexdigest()
