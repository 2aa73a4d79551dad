"""Progress of a job of several stages, by a clock that goes when it is told."""

import pytest

from leapfactual.jobs.progress import Stages


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_the_time_left_is_expected_first_and_measured_then(clock):
    heard = []
    stages = Stages(lambda *told: heard.append(told), clock=clock)
    stages.expect({"generator": 60.0, "flow": 30.0, "plan": 10.0})
    stages.begin("generator")
    stages.advance(0.0, "training")
    assert heard[-1] == (0.0, "training", 100.0)
    clock.now += 2
    stages.advance(0.1, "training")
    assert heard[-1][2] == pytest.approx(94), "after two seconds the estimate still counts"
    clock.now += 20
    stages.advance(0.3, "training")
    assert heard[-1][2] == pytest.approx(0.7 * 20 / 0.2 + 40), "100 seconds a share, not 60"
    assert heard[-1][0] == pytest.approx(22 / (22 + 110))


def test_stages_that_are_over_are_not_expected(clock):
    stages = Stages(clock=clock)
    stages.expect({"generator": 60.0, "flow": 30.0, "plan": 10.0})
    stages.begin("flow")
    assert stages.left == 40
    stages.begin("check")
    assert stages.left == 10, "a stage that nobody expected ends the one before, and no other"
    stages.begin("plan")
    assert stages.left == 10


def test_the_share_never_falls(clock):
    heard = []
    stages = Stages(lambda share, *_: heard.append(share), clock=clock)
    stages.expect({"generator": 10.0})
    stages.begin("generator")
    for n in range(1, 8):
        clock.now += 10 * n
        stages.advance(n / 10, "slower and slower")
    assert heard == sorted(heard)


def test_a_pulse_says_the_same_again_a_little_later(clock):
    heard = []
    stages = Stages(lambda *told: heard.append(told), clock=clock)
    stages.expect({"plan": 60.0})
    stages.begin("plan")
    stages.pulse()
    stages.advance(0.5, "choosing a plan")
    clock.now += 10
    stages.pulse()
    assert [told[1] for told in heard] == ["plan", "choosing a plan", "choosing a plan"]
    assert heard[2][0] > heard[1][0], "time went by"


def test_what_was_done_before_an_interruption_is_no_rate(clock):
    stages = Stages(spent=500.0, clock=clock)
    stages.expect({"flow": 100.0})
    stages.begin("flow")
    stages.advance(0.5, "resumed at half")
    clock.now += 10
    stages.advance(0.6, "a tenth in ten seconds")
    assert stages.left == pytest.approx(40)
    assert stages.spent == 510
