"""Wrappers around a classifier: counting, caching, and retrying."""

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

    Arguments:
        classifier: The classifier.
        limit: How many answers to keep; the oldest are dropped first.

    Example:
        >>> cached = Cached(lambda x: torch.eye(2)[[0] * len(x)])
        >>> _ = cached(torch.zeros(3, 2)), cached(torch.zeros(5, 2))
        >>> cached
        Cached(1 answers, 7 hits, 1 misses)
    """

    def __init__(self, classifier: Classifier, limit: int = 100_000) -> None:
        checks.positive(limit, "limit")
        self.classifier, self.limit, self.hits, self.misses = classifier, limit, 0, 0
        self._answers: OrderedDict[str, Tensor] = OrderedDict()

    def __call__(self, x: Tensor) -> Tensor:
        """Returns cached answers, and queries the classifier on new images, once each."""
        if not len(x):
            return self.classifier(x)
        keys = [_key(image) for image in x]
        new: dict[str, int] = {}
        for row, key in enumerate(keys):
            if key not in self._answers:
                new.setdefault(key, row)
        fresh: dict[str, Tensor] = {}
        if new:
            answers = self._query(x, list(new.values()))
            fresh = {key: answer.detach() for key, answer in zip(new, answers, strict=True)}
        self.misses += len(new)
        self.hits += len(keys) - len(new)
        known = {**self._answers, **fresh} if fresh else self._answers
        out = torch.stack([known[key].to(x.device) for key in keys])
        self._answers.update({key: answer.clone().cpu() for key, answer in fresh.items()})
        while len(self._answers) > self.limit:
            self._answers.popitem(last=False)
        return out

    def _query(self, x: Tensor, rows: list[int]) -> Tensor:
        try:
            answers = self.classifier(x[rows])
        except ClassifierError as error:
            raise ClassifierError(str(error), [rows[row] for row in error.rows]) from error
        _check_answers(answers, x[rows])
        return answers

    def __repr__(self) -> str:
        return f"Cached({len(self._answers)} answers, {self.hits} hits, {self.misses} misses)"


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


def _key(image: Tensor) -> str:
    content = image.detach().cpu().contiguous()
    header = f"{content.dtype} {tuple(content.shape)}".encode()
    return hashlib.sha256(header + content.view(torch.uint8).numpy().tobytes()).hexdigest()
