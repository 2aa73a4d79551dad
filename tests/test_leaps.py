"""Algorithm 1 against the closed form."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import leapfactual as lf
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


@pytest.mark.parametrize("kind", [lf.Euler, lf.Midpoint, lf.Heun, lf.RK4])
def test_leap_converges_with_the_order_of_its_solver(kind):
    oracle = GaussianOracle(torch.randn(4, 3).double(), 0.5)
    z, y = oracle.sample(3)
    exact = oracle.leap(z, y, y.roll(5), lift=0.3, land=0.6)

    def error(steps):
        flow = oracle.flow(kind(steps))
        c, c_target = flow.one_hot(y), flow.one_hot(y.roll(5))
        return (lf.leap(flow, z, c, c_target, lift=0.3, land=0.6) - exact).norm()

    assert torch.log2(error(40) / error(80)).item() == pytest.approx(kind.order, abs=0.3)


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


def test_numbers_of_other_libraries_are_numbers():
    assert lf.blend(np.int64(5), np.float64(0.1)) == lf.blend(5, 0.1)


def test_only_a_stage_that_lifts_looks_at_the_class():
    assert lf.inject(5, 0.0, 0.1).open_loop
    assert not lf.inject(5, 0.8, 0.83).open_loop
    assert not lf.blend(5, 0.1).open_loop


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lf.inject(5, lift=0.2, land=0.1), r"inject\(lift=0.2, land=0.1\).*lift < land"),
        (lambda: lf.inject(5, lift=0.1, land=0.1), "lift < land"),
        (lambda: Leaps(5, 0.3, 0.1), "removes more than it adds"),
        (lambda: lf.blend(-1, 0.1), "whole number of leaps, at least 0, got -1"),
        (lambda: lf.blend(2.5, 0.1), "got 2.5"),
        (lambda: lf.blend(5, 1.2), r"blend\(gamma=1.2\) overshoots"),
        (lambda: lf.blend(5, -0.1), "`lift` must be a step size of at least 0, got -0.1"),
        (lambda: lf.inject(5, 0.0, float("inf")), "got inf"),
        (lambda: lf.inject(5, None, 0.1), "`lift` must be a number, got None"),
        (lambda: lf.inject(5, "0", 0.1), "`lift` must be a number, got '0'"),
        (lambda: lf.blend(5, True), "`lift` must be a number, got True"),
    ],
)
def test_wrong_plans_are_named(call, message):
    with pytest.raises(InputError, match=message):
        call()
