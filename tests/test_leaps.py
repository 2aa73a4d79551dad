"""Algorithm 1 against the closed form."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import leapfactual as lf
from leapfactual import solvers
from leapfactual.errors import InputError
from leapfactual.leaps import Leaps, describe, parse
from leapfactual.testing import GaussianOracle

STEP_SIZES = [(1, 1), (0.1, 0.1), (0, 0.1), (0.8, 0.83), (1, 1.025)]


@pytest.mark.parametrize(("lift", "land"), STEP_SIZES)
@pytest.mark.parametrize("features", [1, 2, 8, 64])
@pytest.mark.parametrize("scale", [0.3, 0.7, 1.0, 2.0])
def test_leap_agrees_with_the_oracle(lift, land, features, scale):
    oracle = GaussianOracle(torch.randn(4, features).double(), scale)
    z, y = oracle.sample(3)
    target = y.roll(5)
    flow = oracle.flow(lf.RK4(40))
    moved = lf.leap(flow, z, flow.one_hot(y), flow.one_hot(target), lift=lift, land=land)
    exact = oracle.leap(z, y, target, lift=lift, land=land)
    torch.testing.assert_close(moved, exact, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("lift", "land"), STEP_SIZES)
def test_dopri5_agrees_within_its_tolerance(lift, land):
    oracle = GaussianOracle(torch.randn(4, 3).double(), 0.5)
    z, y = oracle.sample(3)
    flow = oracle.flow(lf.Dopri5(1e-6, 1e-6))
    moved = lf.leap(flow, z, flow.one_hot(y), flow.one_hot(y.roll(5)), lift=lift, land=land)
    exact = oracle.leap(z, y, y.roll(5), lift=lift, land=land)
    torch.testing.assert_close(moved, exact, rtol=0, atol=5e-5)


@pytest.mark.parametrize("kind", [lf.Euler, lf.Midpoint, solvers.Heun, lf.RK4])
def test_leap_converges_with_the_order_of_its_solver(kind):
    oracle = GaussianOracle(torch.randn(4, 3).double(), 0.5)
    z, y = oracle.sample(3)
    exact = oracle.leap(z, y, y.roll(5), lift=0.3, land=0.6)

    def error(steps):
        flow = oracle.flow(kind(steps))
        c, c_target = flow.one_hot(y), flow.one_hot(y.roll(5))
        return (lf.leap(flow, z, c, c_target, lift=0.3, land=0.6) - exact).norm()

    assert torch.log2(error(40) / error(80)).item() == pytest.approx(kind.order, abs=0.3)


def assert_guided_leap_is_exact(oracle, **sizes):
    z, y = oracle.sample(2)
    target, flow = y.roll(3), oracle.flow(lf.RK4(40))
    moved = lf.leap(flow, z, flow.one_hot(y), flow.one_hot(target), **sizes)
    exact = oracle.leap(z, y, target, **sizes)
    torch.testing.assert_close(moved, exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("lift", "land"), STEP_SIZES)
@pytest.mark.parametrize("guidance", [1.5, 3.0])
def test_a_guided_leap_agrees_with_the_oracle(lift, land, guidance):
    oracle = GaussianOracle(torch.randn(4, 3).double(), 0.7)
    assert_guided_leap_is_exact(oracle, lift=lift, land=land, guidance=guidance)


@given(
    st.floats(0, 1),
    st.floats(0, 0.5),
    st.floats(1, 5),
    st.floats(0.4, 2),
    st.integers(1, 5),
)
def test_any_guided_leap_agrees_with_the_oracle(lift, more, guidance, scale, features):
    oracle = GaussianOracle(torch.randn(4, features).double(), scale)
    assert_guided_leap_is_exact(oracle, lift=lift, land=lift + more, guidance=guidance)


def test_guidance_leads_past_the_target_and_away_from_the_source():
    oracle = GaussianOracle(torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 3.0]]).double(), 0.5)
    z, flow = oracle.means[:1], oracle.flow(lf.RK4(30))
    c = flow.one_hot(torch.arange(3))
    sizes = {"lift": 1, "land": 1, "guidance": 2}
    past = lf.leap(flow, z, c[:1], c[1:2], **sizes)
    torch.testing.assert_close(past, torch.tensor([[3.0, 0.0]]).double(), rtol=0, atol=1e-5)
    aside = lf.leap(flow, z, c[:1], c[1:2], **sizes, c_source=c[2:])
    torch.testing.assert_close(aside, torch.tensor([[2.0, -3.0]]).double(), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("lift", "land"), STEP_SIZES)
def test_a_guidance_of_one_is_none_bit_for_bit(lift, land):
    flow = GaussianOracle(5 * torch.randn(4, 3), 0.7).flow(lf.RK4(5))
    z, c, c_target, other = torch.randn(60, 3), *(5 * torch.rand(3, 60, 4)).softmax(2)
    plain = lf.leap(flow, z, c, c_target, lift=lift, land=land)
    options = {"lift": lift, "land": land, "guidance": 1.0}
    for source in (None, c, other):
        guided = lf.leap(flow, z, c, c_target, **options, c_source=source)
        assert torch.equal(guided, plain)
    assert not torch.equal(
        lf.leap(flow, z, c, c_target, **{**options, "guidance": 1.5}, c_source=other), plain
    )


@given(st.floats(0, 1), st.integers(1, 6), st.integers(1, 6))
def test_a_blending_leap_to_ones_own_class_is_the_identity(gamma, features, classes):
    flow = lf.Flow(lf.MLPField(features, classes, width=16), lf.RK4(40)).double()
    z, c = torch.randn(4, features).double(), flow.one_hot(torch.arange(4) % classes)
    torch.testing.assert_close(
        lf.leap(flow, z, c, c, lift=gamma, land=gamma), z, rtol=1e-6, atol=1e-6
    )


def test_moves_knows_the_identity():
    c, target = torch.eye(3)[[0, 1, 2]], torch.eye(3)[[1, 1, 1]]
    assert lf.blend(5, 0.1).moves(c, target, c).tolist() == [True, False, True]
    assert lf.blend(5, 0.0).moves(c, target, c).tolist() == [False] * 3
    assert lf.inject(5, 0.0, 0.1).moves(c, target, c).tolist() == [True] * 3
    soft = torch.tensor([[0.01, 0.98, 0.01]])
    assert lf.blend(5, 0.1).moves(soft, target[:1], soft).tolist() == [True]


def test_images_that_the_classifier_is_sure_of_stay():
    target = torch.eye(2)[[1, 1, 1]]
    p = torch.tensor([[0.5, 0.5], [0.05, 0.95], [0.95, 0.05]])
    hard = torch.eye(2)[[1, 1, 0]]
    stage = lf.inject(1, 0.0, 0.4, confidence=0.9)
    assert stage.moves(hard, target, p).tolist() == [True, False, True]
    assert parse(describe([stage])) == (stage,)
    for confidence in (0.0, 1.5, float("nan")):
        with pytest.raises(InputError, match="confidence"):
            lf.inject(1, 0.0, 0.4, confidence=confidence)


def test_a_guided_blend_stops_in_the_class_and_a_guided_injection_goes_on():
    target = torch.eye(2)[[1, 1, 1]]
    p = torch.tensor([[0.9, 0.1], [0.45, 0.55], [0.01, 0.99]])
    hard = torch.eye(2)[[0, 1, 1]]
    for c in (hard, p):
        assert lf.blend(5, 0.1, 2).moves(c, target, p).tolist() == [True, False, False]
        assert lf.inject(5, 0.1, 0.1, guidance=2).moves(c, target, p).tolist() == [True] * 3
        assert lf.inject(5, 0.0, 0.1, guidance=2).moves(c, target, p).tolist() == [True] * 3
        sure = lf.inject(5, 0.1, 0.1, confidence=0.9, guidance=2)
        assert sure.moves(c, target, p).tolist() == [True, True, False]
    labels_only = lf.inject(5, 0.1, 0.1, guidance=2).moves(hard, target, hard)
    assert labels_only.tolist() == [True] * 3, "as sure as can be, and on"


def test_sure_is_not_enough_outside_of_the_class():
    p = torch.tensor([[0.6, 0.4]])
    c, target = torch.eye(2)[:1], torch.eye(2)[1:]
    assert lf.inject(5, 0.1, 0.2, confidence=0.3, guidance=2).moves(c, target, p).item()
    assert lf.blend(5, 0.1, 2).moves(c, target, p).item()


def test_a_stage_knows_whether_it_blends():
    assert lf.blend(5, 0.1).blends
    assert lf.blend(5, 0.1, 3).blends
    assert not lf.inject(5, 0.1, 0.1, guidance=3).blends
    assert not lf.inject(5, 0.1, 0.1, 0.9, guidance=3).blends
    assert not lf.inject(5, 0.0, 0.1).blends
    assert not lf.inject(5, 0.0, 0.1, guidance=3).blends


@pytest.mark.parametrize(
    ("stage", "text"),
    [
        (lf.blend(5, 0.1, 2.5), "blend(5, 0.1, 2.5)"),
        (lf.blend(5, 0.1, 1), "blend(5, 0.1)"),
        (lf.inject(3, 0.0, 0.1, guidance=3), "inject(3, 0, 0.1, 1.0, 3)"),
        (lf.inject(3, 0.2, 0.2, guidance=3), "inject(3, 0.2, 0.2, 1.0, 3)"),
        (lf.inject(3, 0.2, 0.2, 0.85, 3), "inject(3, 0.2, 0.2, 0.85, 3)"),
        (lf.inject(3, 0.0, 0.1, 0.0, 3), "inject(3, 0, 0.1, 0.0, 3)"),
    ],
)
def test_guidance_is_written_and_read_again(stage, text):
    plan = (lf.blend(2, 0.3), stage, lf.tighten(4))
    assert describe([stage]) == text
    assert parse(describe(plan)) == plan


STEPS = st.one_of(st.integers(0, 10).map(lambda n: n / 10), st.floats(0, 1))
GUIDANCE = st.one_of(st.integers(0, 40).map(lambda n: 1 + n / 8), st.floats(1, 1e6))


@given(
    st.lists(
        st.one_of(
            st.builds(lf.blend, st.integers(0, 30), STEPS, GUIDANCE),
            st.builds(
                lambda n, lift, confidence, guidance: lf.inject(
                    n, lift, lift + 0.25, confidence, guidance
                ),
                st.integers(0, 30),
                STEPS,
                st.floats(0.01, 1),
                GUIDANCE,
            ),
            st.builds(lf.tighten, st.integers(1, 9)),
            st.builds(lf.focus, st.floats(1e-3, 1e3)),
            st.just(lf.restart()),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_plan_is_read_as_it_was_written(plan):
    assert parse(describe(plan)) == tuple(plan)


def test_step_sizes_that_differ_little_are_told_apart():
    """Campaigns keep plans as text, jobs and answers are known by it."""
    near = lf.inject(1, 0.1, 0.1000000001)
    assert describe([near]) == "inject(1, 0.1, 0.1000000001)"
    assert describe([lf.blend(2, 1 / 3)]) != describe([lf.blend(2, 0.333333)])


def test_numbers_of_other_libraries_are_numbers():
    assert lf.blend(np.int64(5), np.float64(0.1)) == lf.blend(5, 0.1)


def test_only_a_stage_that_lifts_looks_at_the_class():
    assert lf.inject(5, 0.0, 0.1).open_loop
    assert not lf.inject(5, 0.8, 0.83).open_loop
    assert not lf.blend(5, 0.1).open_loop
    assert lf.inject(5, 0.0, 0.1, guidance=2).open_loop
    assert not lf.inject(5, 0.0, 0.1, 0.9, guidance=2).open_loop
    assert not lf.blend(5, 0.1, guidance=2).open_loop


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lf.inject(5, lift=0.2, land=0.1), r"inject\(lift=0.2, land=0.1\).*lift < land"),
        (lambda: lf.inject(5, lift=0.1, land=0.1), "lift < land"),
        (lambda: Leaps(5, 0.3, 0.1), "removes more than it adds"),
        (lambda: lf.blend(-1, 0.1), "number of leaps from 0 to 10,000, got -1"),
        (lambda: lf.blend(10**9, 0.1), "number of leaps from 0 to 10,000, got 1000000000"),
        (lambda: lf.tighten(10**9), "`n` must be a whole number from 1 to 52, got 1000000000"),
        (lambda: lf.blend(2.5, 0.1), "got 2.5"),
        (lambda: lf.blend(5, 1.2), r"blend\(gamma=1.2\) overshoots"),
        (lambda: lf.blend(5, -0.1), "`lift` must be a step size of at least 0, got -0.1"),
        (lambda: lf.inject(5, 0.0, float("inf")), "got inf"),
        (lambda: lf.inject(5, None, 0.1), "`lift` must be a number, got None"),
        (lambda: lf.inject(5, "0", 0.1), "`lift` must be a number, got '0'"),
        (lambda: lf.blend(5, True), "`lift` must be a number, got True"),
        (lambda: lf.blend(5, 0.1, 0.5), "`guidance` must be a number of at least 1, got 0.5"),
        (lambda: lf.blend(5, 0.1, float("nan")), "`guidance` must be .* at least 1, got nan"),
        (lambda: lf.blend(5, 0.1, float("inf")), "`guidance` must be .* at least 1, got inf"),
        (lambda: lf.blend(5, 0.1, "2"), "`guidance` must be a number, got '2'"),
        (lambda: lf.blend(5, 1.2, 2), r"blend\(gamma=1.2\) overshoots"),
        (lambda: lf.inject(5, 0.0, 0.1, guidance=-2), "1 is the paper's; photographs take 2 to 4"),
        (lambda: lf.inject(5, 0.1, 0.1, guidance=None), "`guidance` must be a number, got None"),
        (lambda: lf.inject(5, 0.1, 0.1, guidance=1), "lift < land, or guidance above 1"),
        (lambda: lf.inject(5, 0.2, 0.1, guidance=2), "does not add more than it removes"),
        (lambda: lf.inject(5, 0.0, 0.1, 0.0), "above 0 and up to 1, got 0.0"),
        (lambda: lf.inject(5, 0.0, 0.1, 1.5, 2), "above 0 and up to 1, got 1.5"),
        (lambda: Leaps(5, 0.1, 0.1, 0.5), "a blend stops by itself, got confidence=0.5"),
        (lambda: lf.blend(3, torch.zeros(3)), r"`lift` must be a number, got tensor"),
        (lambda: lf.blend(3, 0.1, np.zeros(3)), r"`guidance` must be a number, got array"),
        (lambda: lf.blend(3, 10**400), "`lift` must be a number, got 1000"),
        (lambda: lf.blend(3, float("nan")), "`lift` must be a step size .* got nan"),
        (lambda: lf.tighten(float("inf")), "`n` must be a whole number from 1 to 52, got inf"),
        (lambda: parse(None), "a plan is read from text, got None"),
        (
            lambda: parse("blend(9999, 0.1), blend(2, 0.1)"),
            "10,000 leaps .* got 10,001 leaps in 2",
        ),
        (lambda: parse("tighten(inf)"), r"`tighten\(inf\)` is no plan"),
        (lambda: parse("blend(3, nan)"), "`lift` must be a step size .* got nan"),
        (lambda: parse("blend(5, 0.1, 0.5)"), "`guidance` must be a number of at least 1"),
        (lambda: parse("blend(5, 0.1, 2, 3)"), r"or blend\(leaps, step, guidance\)"),
        (lambda: parse("inject(5, 0, 0.1, 1, 2, 3)"), "threshold and then a guidance"),
    ],
)
def test_wrong_plans_are_named(call, message):
    with pytest.raises(InputError, match=message):
        call()
