import copy

import pytest
import torch

import leapfactual as lf
from leapfactual.errors import InputError
from leapfactual.generators import Identity
from leapfactual.jobs.held_out import HeldOut, Walks
from leapfactual.jobs.job import typicality
from leapfactual.jobs.plans import PAPER, search_fast_plan, search_plans
from leapfactual.leaps import describe, parse
from leapfactual.testing import GaussianOracle

ORACLE = GaussianOracle(torch.tensor([[-2.0, 0.0], [2.0, 0.0], [0.0, 3.0]]), scale=0.6)


@pytest.fixture(scope="module")
def flow():
    flow = ORACLE.flow()
    z, y = ORACLE.sample(600)
    flow.fit_typicality(z, flow.one_hot(y))
    return flow


@pytest.fixture(scope="module")
def held_out(flow):
    x, _ = ORACLE.sample(60, seed=1)
    return HeldOut(Identity(), ORACLE.classifier, flow, x, oracle=ORACLE.classifier)


@pytest.fixture(scope="module")
def chosen(held_out):
    return search_plans(held_out)


def test_the_front_rises_in_reliability_typicality_and_distance(chosen):
    heights = [rated.reliability for rated in chosen.front]
    assert heights[0] == 0
    assert heights[-1] == 1
    assert heights == sorted(set(heights))
    for name in ("typicality", "L1"):
        values = [rated.numbers[name] for rated in chosen.front]
        assert values == sorted(values), name


def test_the_lowest_is_just_across_and_the_top_is_typical(chosen):
    low, high = chosen.front[0], chosen.front[-1]
    assert isinstance(low.plan[-1], type(lf.tighten(1)))
    nearest = min(rated.numbers["L1"] for rated in chosen.tried)
    assert low.numbers["L1"] <= 1.02 * nearest
    assert chosen.own == pytest.approx(50, abs=15)
    assert high.numbers["typicality"] >= chosen.own
    assert high.numbers["validity"] == high.numbers["oracle"] == 1


def test_the_top_is_at_least_as_good_as_the_papers_plan(chosen):
    high, paper = chosen.front[-1].numbers, chosen.paper[1].numbers
    assert [rated.plan for rated in chosen.paper] == list(PAPER)
    assert high["validity"] >= paper["validity"]
    assert high["L1"] <= paper["L1"] or high["typicality"] > paper["typicality"]


def test_it_says_why(chosen):
    assert describe(chosen.front[0].plan) in chosen.why
    assert "as typical as the class's own images" in chosen.why
    assert "the oracle agrees with 100.0%" in chosen.why


def test_own_images_are_typical_and_others_are_not(flow):
    x, y = ORACLE.sample(400, seed=2)
    assert typicality(Identity(), flow, x, y).median().item() == pytest.approx(50, abs=8)
    assert typicality(Identity(), flow, x, (y + 1) % 3, batch_size=64).median() < 1


def test_the_fast_plan_is_cheaper_than_the_papers_and_no_worse(held_out):
    fast, paper = search_fast_plan(held_out), held_out.rate(PAPER[1]).numbers
    assert fast.reliability == 1
    assert fast.numbers["queries"] < paper["queries"]
    assert fast.numbers["L1"] < paper["L1"]
    for name in ("validity", "oracle"):
        assert fast.numbers[name] >= paper[name], name


def test_a_class_that_the_flow_never_saw_is_no_target(flow):
    seen, x = copy.deepcopy(flow), ORACLE.sample(60, seed=1)[0]
    seen.quantiles[1] = float("nan")
    held_out = HeldOut(Identity(), ORACLE.classifier, seen, x)
    assert set(held_out.target.tolist()) == {0, 2}
    assert (held_out.target != held_out.source).all()
    assert held_out.rate(PAPER[0]).numbers["validity"] == 1


def test_plans_are_tried_with_little_memory(flow, held_out):
    class Small(Identity):
        def decode(self, z):
            if len(z) > 20:
                raise torch.OutOfMemoryError
            return z

    small = HeldOut(Small(), ORACLE.classifier, flow, held_out.x, oracle=ORACLE.classifier)
    assert torch.equal(small.target, held_out.target)
    plan = (lf.blend(10, 0.2),)
    expected = held_out.rate(plan).numbers
    assert small.rate(plan).numbers == pytest.approx(expected, rel=1e-4)


def test_walks_are_kept_but_for_one_that_was_cut_off(tmp_path):
    path = tmp_path / "walks.jsonl"
    values = {"L1": torch.tensor([0.5, 0.25]), "distance": torch.tensor([1.0, float("nan")])}
    for key in ("first", "second"):
        Walks(path, "these").put(key, values)
    path.write_text(path.read_text()[:-9])
    kept = Walks(path, "these")
    assert [*kept.known] == ["first"]
    for name, value in values.items():
        torch.testing.assert_close(kept.get("first")[name], value.double(), equal_nan=True)
    assert not Walks(path, "others").known


def test_too_few_images_are_refused(flow):
    with pytest.raises(InputError, match="at least two images to try plans on, got 1"):
        HeldOut(Identity(), ORACLE.classifier, flow, ORACLE.sample(1)[0][:1])


@pytest.mark.parametrize(
    "plan", [*PAPER, (lf.blend(60, 0.05), lf.restart(), lf.focus(0.6), lf.tighten(8))]
)
def test_plans_are_read_as_they_are_written(plan):
    assert parse(describe(plan)) == plan


@pytest.mark.parametrize(
    "text",
    [
        "",
        "blend(15)",
        "leap(1, 2)",
        "blend(1.5, 0.1)",
        "blend(15, 0.1) and tighten(8)",
        "tighten(inf)",
        "restart(1)",
        "focus()",
    ],
)
def test_what_is_no_plan_is_named(text):
    with pytest.raises(InputError, match="no plan|plan is empty"):
        parse(text)
