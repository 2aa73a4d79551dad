"""Who computes: in turn, what is waited for first, and nothing for those who have gone."""

import asyncio
import threading

import pytest

from leapfactual.errors import InputError
from leapfactual.studio.worker import Busy, Failed, Worker, answer


class Gate:
    """Events that wait until they are let through."""

    def __init__(self, name, count=2):
        self.name, self.count = name, count
        self.begun, self.open, self.closed = (threading.Event() for _ in range(3))

    def events(self):
        try:
            for n in range(self.count):
                self.begun.set()
                assert self.open.wait(10)
                yield f"{self.name} {n}"
        finally:
            self.closed.set()


def events(*items):
    yield from items


def collected():
    done, got = threading.Event(), []

    def put(item):
        got.append(item)
        if item is None:
            done.set()

    return got, put, done


def test_questions_are_answered_in_turn_and_what_is_waited_for_comes_first():
    worker, first = Worker(), Gate("first", 1)
    order, done = [], threading.Event()

    def put(item):
        order.append(item)
        if len([i for i in order if i is None]) == 4:
            done.set()

    worker.submit(first.events(), put, owner="a")
    first.begun.wait(10)
    for name, owner, urgent in (("later", "b", False), ("soon", "c", True), ("next", "d", True)):
        worker.submit(events(name), put, owner=owner, urgent=urgent)
    first.open.set()
    assert done.wait(10)
    assert [item for item in order if item] == ["first 0", "soon", "next", "later"]


def test_a_new_question_cancels_the_old_ones_of_its_owner():
    worker, old, waiting, other = Worker(), Gate("old", 9), Gate("waiting"), Gate("other", 1)
    got, put, done = collected()
    worker.submit(old.events(), put, owner="a")
    old.begun.wait(10)
    _, quiet, dropped = collected()
    worker.submit(waiting.events(), quiet, owner="a", urgent=False)
    fresh, put_fresh, done_fresh = collected()
    worker.submit(events("fresh"), put_fresh, owner="a")
    theirs, put_theirs, done_theirs = collected()
    worker.submit(other.events(), put_theirs, owner="b")
    other.open.set()
    old.open.set()
    for event in (done, dropped, done_fresh, done_theirs):
        assert event.wait(10)
    assert got == [None], "nobody hears of it any more"
    assert old.closed.is_set()
    assert not waiting.begun.is_set()
    assert (fresh, theirs) == (["fresh", None], ["other 0", None])


def test_where_too_many_wait_the_next_is_told_so():
    worker, first = Worker(max_waiting=2), Gate("first")
    worker.submit(first.events(), lambda _: None, owner="a")
    first.begun.wait(10)
    for owner in "bc":
        worker.submit(events(), lambda _: None, owner=owner)
    with pytest.raises(Busy):
        worker.submit(events(), lambda _: None, owner="d")
    worker.submit(events(), lambda _: None, owner="c")  # takes the place of its own
    first.open.set()


def test_errors_of_ours_are_passed_on_and_others_are_not_shown(caplog):
    worker = Worker()

    def ours():
        yield "before"
        raise InputError("there is no class 12.")

    def theirs():
        raise RuntimeError("/home/me/secret.py is broken")
        yield

    for question in (ours, theirs):
        got, put, done = collected()
        worker.submit(question(), put, owner=question.__name__)
        assert done.wait(10)
        error = got[-2]
        if question is ours:
            assert got[0] == "before"
            assert str(error) == "there is no class 12."
        else:
            assert isinstance(error, Failed)
            assert "secret" not in str(error)
    assert "secret.py is broken" in caplog.text, "but the terminal has it"


def test_the_thread_lives_on_after_an_error():
    worker = Worker()
    for n in range(3):
        got, put, done = collected()
        worker.submit((1 // 0 for _ in [0]), put, owner=str(n))
        assert done.wait(10)
        assert isinstance(got[0], Failed)


def test_answers_are_heard_as_they_come_and_stop_with_their_listener():
    worker, gate = Worker(), Gate("gate", 9)

    async def listen():
        gate.open.set()
        heard = answer(worker, gate.events(), "a")
        event = await anext(heard)
        await heard.aclose()
        return event

    assert asyncio.run(listen()) == "gate 0"
    assert gate.closed.wait(10)


def test_what_is_to_be_done_before_each_question_is_done():
    count = []
    worker = Worker(before_each=lambda: count.append(1))
    for n in range(3):
        _, put, done = collected()
        worker.submit(events(), put, owner=str(n))
        assert done.wait(10)
    assert len(count) == 3
