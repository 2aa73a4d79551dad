"""The choice of guided plans, on numbers that are known."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from leapfactual.generators import Identity
from leapfactual.jobs import guided_plans
from leapfactual.jobs.guided_plans import (
    FIRST_LEAPS,
    INJECTIONS,
    LARGER_LEAPS,
    REPLACEMENTS,
    _front,
    enough_images,
    search_guided_plans,
)
from leapfactual.jobs.held_out import HeldOut
from leapfactual.leaps import (
    Focus,
    Leaps,
    RatedPlan,
    Tightening,
    blend,
    describe,
    focus,
    restart,
    tighten,
)
from leapfactual.testing import GaussianOracle


def rated(n, validity, distance, oracle):
    numbers = {"validity": validity, "distance": distance, "oracle": oracle}
    return RatedPlan((blend(n, 0.1),), 0.0, numbers)


NEAR = rated(1, 0.996, 0.05, 0.50)
BETWEEN = rated(2, 1.0, 0.10, 0.70)
RELIABLE = rated(3, 1.0, 0.20, 0.95)
OTHERS = [
    rated(4, 0.90, 0.01, 0.99),  # nearer, but reaches the target less often
    rated(5, 1.0, 0.12, 0.65),  # farther than another, and less agreed with
    rated(6, 1.0, 0.13, 0.72),  # hardly more reliable than another
    rated(7, 1.0, 0.15, 0.93),  # hardly less reliable than the last
    rated(8, 1.0, 0.25, 0.952),  # farther than another, and agreed with as often but for chance
    rated(9, 1.0, 0.31, 0.99),  # more agreed with, but of another picture
]


def test_the_front_goes_from_the_nearest_valid_to_the_most_agreed_with_of_the_same_picture():
    front = _front([*OTHERS, RELIABLE, NEAR, BETWEEN], own=1.0)
    assert [each.plan for each in front] == [NEAR.plan, BETWEEN.plan, RELIABLE.plan]
    assert [each.reliability for each in front] == pytest.approx([0, 0.2 / 0.45, 1])


def test_where_the_oracle_agrees_nearly_always_the_nearest_plan_is_reliable():
    enough, more = rated(8, 1.0, 0.12, 0.985), rated(9, 1.0, 0.2, 1.0)
    front = _front([NEAR, BETWEEN, enough, more], own=1.0)
    assert front[-1].plan == enough.plan
    assert _front([NEAR, BETWEEN, more], own=1.0)[-1].plan == more.plan


def test_an_oracle_that_disputes_images_need_not_agree_with_all_counterfactuals():
    """With one in five disputed, nine in ten are enough, and what is nearer is taken."""
    enough, more = rated(8, 1.0, 0.12, 0.9), rated(9, 1.0, 0.2, 1.0)
    assert _front([NEAR, BETWEEN, enough, more], own=0.8)[-1].plan == enough.plan
    assert _front([NEAR, BETWEEN, enough, more], own=0.82)[-1].plan == more.plan


def test_where_the_nearest_is_far_the_reliable_one_may_be_half_as_far_again():
    far = [rated(1, 1.0, 0.4, 0.5), rated(2, 1.0, 0.59, 0.9), rated(3, 1.0, 0.61, 0.97)]
    front = _front(far, own=1.0)
    assert [each.plan for each in front] == [far[0].plan, far[1].plan]
    assert [each.plan for each in _front([far[0], far[2]], own=1.0)] == [far[0].plan] * 2
    assert [each.reliability for each in front] == [0.0, 1.0]


class Numbers:
    """Held-out images with a formula for what a plan gives, and a clock that it moves."""

    def __init__(self, clock, images=400, each=0.01, kept=(0.0, 0.0), focused=-0.01, fixed=0.0):
        self.x, self.clock, self.each, self.kept = torch.zeros(images), clock, each, kept
        self.walked, self.focused, self.fixed = [], focused, fixed

    def first(self, n):
        n = min(n, len(self.x))
        return Numbers(self.clock, n, self.each, self.kept, self.focused, self.fixed)

    def own_agreement(self):
        return 1.0

    def rate(self, plan, *, typical=True, keep_pixels=False):
        self.clock.seconds += self.fixed + self.each * len(self.x)
        self.walked.append((plan, keep_pixels))
        injected = sum(_strength(stage) for stage in plan[1:] if not _arrives(stage))
        tight = any(isinstance(stage, Tightening) for stage in plan)
        focused = self.focused * any(isinstance(stage, Focus) for stage in plan)
        validity, oracle = self.kept if keep_pixels else (0.0, 0.0)
        numbers = {
            "validity": 1.0 - validity,
            "distance": (plan[0].n * plan[0].land + plan[0].guidance + injected - 0.5 * tight) / 20
            - focused,
            "oracle": min(1.0, 0.4 + injected / 2) - oracle,
        }
        return RatedPlan(plan, 0.0, numbers | ({"typicality": 50.0} if typical else {}))


def _strength(stage):
    return stage.n * stage.land * (stage.guidance - 1)


def _arrives(stage):
    return not isinstance(stage, Leaps) or stage.blends


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(guided_plans, "time", SimpleNamespace(perf_counter=lambda: now.seconds))
    return now


def test_with_time_enough_the_best_of_every_grid_is_found(clock):
    held_out, shares = Numbers(clock), []
    search = search_guided_plans(held_out, 1e6, shares.append)
    grid = 1 + len(FIRST_LEAPS) + guided_plans.TIGHTENED + 1 + len(INJECTIONS)
    tried = len({each.plan for each in search.tried})
    assert len(search.tried) == tried == grid + guided_plans.REFINEMENTS
    low, high = search.front[0], search.front[-1]
    # By the formula, the nearest of these is the one of the smallest guidance.
    assert low.plan[0] == blend(1, 0.6, 2.0)
    assert isinstance(low.plan[-1], Tightening)
    assert isinstance(high.plan[-2], Tightening), "injection goes on from the boundary"
    assert high.plan[:-1] == low.plan
    # The formula has 0.98 agreement from a strength of 1.16 on. That is a guidance of 3.32 for
    # leaps of 0.5, of which the grid has 4, and three bisections between 1 and 4 have 3.625.
    assert _strength(high.plan[-1]) == 0.5 * 2.625
    assert not any(isinstance(stage, Focus) for stage in (*low.plan, *high.plan))
    assert low.numbers["typicality"] == high.numbers["typicality"] == 50
    assert describe(low.plan) in search.why
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_without_enough_agreement_guidance_goes_as_far_as_it_is_the_same_picture(clock):
    class Doubted(Numbers):
        def rate(self, plan, *, typical=True, keep_pixels=False):
            rated = super().rate(plan, typical=typical, keep_pixels=keep_pixels)
            distance, oracle = rated.numbers["distance"], rated.numbers["oracle"]
            return replace(rated, numbers={**rated.numbers, "oracle": 0.5 * oracle + distance})

    search = search_guided_plans(Doubted(clock), 1e6)
    injected = [each for each in search.tried if not _arrives(each.plan[-1])]
    near = [each for each in injected[: len(INJECTIONS)] if each.numbers["distance"] <= 0.25]
    coarse = max(each.numbers["distance"] for each in near)
    assert coarse < search.front[-1].numbers["distance"] <= 0.25


def test_a_focus_is_taken_where_it_comes_nearer(clock):
    search = search_guided_plans(Numbers(clock, focused=0.01), 1e6)
    assert search.front[0].plan[-2:] == (focus(0.6), tighten(5))
    assert isinstance(search.front[-1].plan[-1], Focus)


def test_larger_leaps_follow_for_those_that_have_not_arrived(clock):
    search = search_guided_plans(Numbers(clock), 1e6)
    first = search.tried[1].plan
    larger = [stage for stage in LARGER_LEAPS if stage[1] > FIRST_LEAPS[0][1]]
    last = restart(), *(blend(*stage) for stage in REPLACEMENTS)
    assert first == (blend(*FIRST_LEAPS[0]), *(blend(*stage) for stage in larger), *last)


@pytest.mark.parametrize("seconds", [1e-6, 30.0, 60.0])
def test_there_is_a_front_however_little_time_there_is(clock, seconds):
    held_out = Numbers(clock)
    search = search_guided_plans(held_out, seconds)
    assert [search.front[0].reliability, search.front[-1].reliability] == [0, 1]
    assert len(search.tried) == pytest.approx(max(2, 0.9 * seconds / 4), abs=2)
    front = {each.plan for each in search.front}
    assert len(held_out.walked) == 1 + len(search.tried) + len(front), "none is measured twice"


@pytest.mark.parametrize(
    ("lost", "keep"),
    [((0.0, 0.0), True), ((0.009, 0.009), True), ((0.02, 0.0), False), ((0.0, 0.02), False)],
)
def test_own_pixels_are_kept_unless_that_costs_validity_or_agreement(clock, lost, keep):
    held_out = Numbers(clock, kept=lost)
    search = search_guided_plans(held_out, 1e6)
    assert search.keep_pixels is keep
    assert {kept for _, kept in held_out.walked[2:]} == {keep}
    assert ("without keeping" in search.why) is not keep


def test_one_image_is_chance_however_few_there_are(clock):
    """Of 64 images one is 1.6 %, more than is lost by chance of many."""
    assert search_guided_plans(Numbers(clock, 64, kept=(1 / 64, 1 / 64)), 1e6).keep_pixels
    assert not search_guided_plans(Numbers(clock, 64, kept=(2 / 64, 0)), 1e6).keep_pixels


@pytest.mark.parametrize(("seconds", "images"), [(1.0, 64), (2200.0, 100), (1e9, 400)])
def test_as_many_images_as_there_is_time_for(clock, seconds, images):
    """A trial tells what an image takes: a second for each of 22 plans."""
    assert len(enough_images(Numbers(clock, each=1.0), seconds).x) == images


def test_what_a_plan_costs_by_itself_is_not_taken_for_what_images_cost(clock):
    """A second for each plan and a hundredth for an image: in two seconds there are 100."""
    held_out = Numbers(clock, each=0.01, fixed=1.0)
    assert len(enough_images(held_out, 44.0).x) == pytest.approx(100, abs=1)
    assert len(enough_images(Numbers(clock, each=0.0, fixed=1.0), 44.0).x) == 400
    assert len(enough_images(Numbers(clock, 20), 1e-3).x) == 20


def test_walks_that_are_kept_are_not_taken_for_fast_ones(clock):
    """A second for each image of a query, and time for the smallest number of images alone."""
    oracle = GaussianOracle(torch.tensor([[-2.0, 0.0], [2.0, 0.0]]), scale=0.6)

    def classify(x):
        clock.seconds += len(x)
        return oracle.classifier(x)

    held_out = HeldOut(Identity(), classify, oracle.flow(), oracle.sample(100)[0])
    for _ in range(2):
        assert len(enough_images(held_out, 1.0).x) == guided_plans.MIN_IMAGES
