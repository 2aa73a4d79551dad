"""The thread that computes: one question after the other, what somebody waits for first.

A question is a generator of events. Between two of them it can be cancelled, which happens when
whoever asked has asked something else or has gone. So a long walk holds up neither the server nor,
for more than a step, the next question of the same browser.
"""

import asyncio
import heapq
import itertools
import logging
import threading
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import closing
from typing import Any

from ..errors import LeapError
from ..types import no_op

Events = Generator[Any, None, None]

log = logging.getLogger("leapfactual.studio")
# Of everybody together. Whoever comes then is told to try again.
MAX_WAITING = 64


class Busy(Exception):
    """Too many questions wait already."""


class Failed(LeapError):
    """Something went wrong that nobody foresaw, such as an error in the classifier."""


class Task:
    """A question that waits for its turn, or is being answered."""

    def __init__(self, events: Events, put: Callable[[object], object], owner: str) -> None:
        self.events, self.put, self.owner = events, put, owner
        self.cancelled = False

    def run(self) -> None:
        """Answers the question, event by event, until it is answered or cancelled."""
        try:
            with closing(self.events) as events:
                for event in events:
                    if self.cancelled:
                        return
                    if event is not None:
                        self.put(event)
        except LeapError as error:
            self.put(error)
        except Exception:
            log.exception("a question could not be answered")
            self.put(
                Failed(
                    "this question could not be answered. The terminal that the studio was "
                    "started in says why."
                )
            )
        finally:
            self.put(None)


class Worker:
    """Creates the thread, which starts at once.

    Arguments:
        max_waiting: How many questions may wait.
        before_each: Called before each question.
    """

    def __init__(
        self, max_waiting: int = MAX_WAITING, before_each: Callable[[], object] = no_op
    ) -> None:
        self.max_waiting, self.before_each = max_waiting, before_each
        self.waiting: list[tuple[bool, int, Task]] = []
        self.running: Task | None = None
        self.order = itertools.count()
        self.changed = threading.Condition()
        threading.Thread(target=self._work, name="studio", daemon=True).start()

    def submit(
        self,
        events: Events,
        put: Callable[[object], object],
        *,
        owner: str,
        urgent: bool = True,
    ) -> Task:
        """Takes in a question.

        Arguments:
            events: Its answer, which is computed when its turn has come.
            put: Called with each event, with an error if there is one, and with None at the end.
            owner: Who asks. An urgent question cancels all earlier ones of the same owner.
            urgent: Whether somebody waits for the answer. Others come after all of these.
        """
        task = Task(events, put, owner)
        with self.changed:
            if urgent:
                self._cancel(owner)
            if sum(not other.cancelled for _, _, other in self.waiting) >= self.max_waiting:
                raise Busy
            heapq.heappush(self.waiting, (not urgent, next(self.order), task))
            self.changed.notify()
        return task

    def _cancel(self, owner: str) -> None:
        for task in (*(task for _, _, task in self.waiting), self.running):
            if task is not None and task.owner == owner:
                task.cancelled = True

    def _work(self) -> None:
        while True:
            with self.changed:
                self.running = None
                while not self.waiting:
                    self.changed.wait()
                _, _, self.running = heapq.heappop(self.waiting)
            if self.running.cancelled:
                self.running.put(None)
            else:
                self.before_each()
                self.running.run()


async def answer(
    worker: Worker, events: Events, owner: str, *, urgent: bool = True
) -> AsyncIterator[Any]:
    """Yields the events of a question as they come; stops it when nobody listens any more.

    Arguments:
        worker: The worker.
        events: The answer.
        owner: Who asks.
        urgent: Whether somebody waits for it.
    """
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[Any]()

    def put(item: object) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(queue.put_nowait, item)

    task = worker.submit(events, put, owner=owner, urgent=urgent)
    try:
        while (item := await queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        task.cancelled = True
