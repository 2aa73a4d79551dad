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
from ..errors import ClassifierError, InputError, LeapError
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
        keys = [_key(image) for image in x]
        new: dict[str, int] = {}
        for row, key in enumerate(keys):
            if key not in self._answers:
                new.setdefault(key, row)
        fresh: dict[str, Tensor] = {}
        if new:
            answers = self.classifier(x[list(new.values())])
            checks.one_row_each(answers, x[list(new.values())], "the classifier")
            fresh = {key: answer.detach() for key, answer in zip(new, answers, strict=True)}
        self.asked += len(new)
        self.found += len(keys) - len(new)
        out = torch.stack([fresh.get(key, self._answers.get(key)) for key in keys])  # type: ignore[misc]
        self._answers.update({key: answer.clone().cpu() for key, answer in fresh.items()})
        while len(self._answers) > self.limit:
            self._answers.popitem(last=False)
        return out

    def __repr__(self) -> str:
        return f"Cached({len(self._answers)} answers, {self.found} found, {self.asked} asked)"


class Patient:
    """Asks a classifier that fails now and then again, and never for an answer it already has.

    A call that raises or hangs is tried again after a pause that doubles each time. When a whole
    batch keeps failing it is halved, down to single images, so that one bad image spoils neither
    the batch nor the answers already paid for: those stay, and a later call goes on from them.

    Arguments:
        classifier: The classifier.
        tries: How often to ask in all.
        pause: The seconds before the second try.
        timeout: The seconds that one call may take; none for as long as it likes.
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

    def __call__(self, x: Tensor) -> Tensor:
        """Answers, or raises :class:`ClassifierError` naming the images that got no answer."""
        keys = [_key(image) for image in x]
        missing = [row for row, key in enumerate(keys) if key not in self._paid]
        errors: dict[int, Exception] = {}
        if missing:
            self._settle(x, keys, missing, errors)
        if errors:
            row, error = next(iter(errors.items()))
            raise ClassifierError(
                f"the classifier gave no answer for {len(errors)} of {len(x)} images after "
                f"{self.tries} tries (first: row {row}, {type(error).__name__}: {error}). "
                f"The other {len(x) - len(errors)} answers are kept: call again to go on, or "
                "leave those images out.",
                rows=sorted(errors),
            ) from error
        answers = torch.stack([self._paid[key] for key in keys]).to(x.device)
        self._paid.clear()
        return answers

    def _settle(
        self, x: Tensor, keys: list[str], rows: list[int], errors: dict[int, Exception]
    ) -> None:
        try:
            answers = self._asked(x[rows])
        except LeapError:
            raise
        except Exception as error:
            if len(rows) == 1:
                errors[rows[0]] = error
                return
            half = len(rows) // 2
            self._settle(x, keys, rows[:half], errors)
            self._settle(x, keys, rows[half:], errors)
            return
        for row, answer in zip(rows, answers, strict=True):
            self._paid[keys[row]] = answer.detach().cpu()

    def _asked(self, x: Tensor) -> Tensor:
        for attempt in range(1, self.tries + 1):
            try:
                answer = self._timed(x)
                checks.one_row_each(answer, x, "the classifier")
            except (LeapError, KeyboardInterrupt):
                raise
            except Exception:
                if attempt == self.tries:
                    raise
                self.sleep(self.pause * 2 ** (attempt - 1))
            else:
                return answer
        raise AssertionError("unreachable: the last try returns or raises")

    def _timed(self, x: Tensor) -> Tensor:
        if self.timeout is None:
            return self.classifier(x)
        future: Future[Tensor] = Future()

        def work() -> None:
            try:
                future.set_result(self.classifier(x))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        try:
            return future.result(self.timeout)
        except FutureTimeout as error:
            raise TimeoutError(f"no answer within {self.timeout:g} s") from error


def _key(image: Tensor) -> str:
    content = image.detach().cpu().contiguous()
    header = f"{content.dtype} {tuple(content.shape)}".encode()
    return hashlib.sha256(header + content.numpy().tobytes()).hexdigest()
