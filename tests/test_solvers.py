"""Solvers against ODEs with exact answers, in both directions."""

import math
import sys

import pytest
import torch

import leapfactual as lf
from leapfactual import solvers
from leapfactual.errors import InputError, IntegrationError, MissingExtra
from leapfactual.solvers import SOLVERS, FixedStep, NoisedMidpoint
from leapfactual.testing import GaussianOracle

FIXED = [lf.Euler, lf.Midpoint, solvers.Heun, lf.RK4]


class Growth:
    """dz/dt = cos(t) z, whose answer is z(0) exp(sin t)."""

    @staticmethod
    def v(t, z):
        return torch.cos(t) * z

    @staticmethod
    def exact(z, start, end):
        return z * math.exp(math.sin(end) - math.sin(start))


class Rotation:
    """dz/dt = 2 J z turns by the angle 2 (end - start)."""

    @staticmethod
    def v(t, z):
        return 2 * torch.stack([-z[:, 1], z[:, 0]], dim=1)

    @staticmethod
    def exact(z, start, end):
        a = 2 * (end - start)
        turn = torch.tensor(
            [[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]], dtype=z.dtype
        )
        return z @ turn.T


PROBLEMS = [Growth, Rotation]
Z = torch.tensor([[1.0, -0.5], [0.3, 2.0], [-1.2, 0.1]], dtype=torch.float64)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize(("start", "end"), [(0.0, 1.0), (1.0, 0.0), (0.2, 0.9)])
@pytest.mark.parametrize(
    "solver", [lf.Midpoint(1000), solvers.Heun(1000), lf.RK4(40), lf.Dopri5(1e-8, 1e-8)]
)
def test_agrees_with_the_exact_answer(problem, solver, start, end):
    z = solver.integrate(problem.v, Z, start, end)
    torch.testing.assert_close(z, problem.exact(Z, start, end), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("kind", FIXED)
@pytest.mark.parametrize(("start", "end"), [(0.0, 1.0), (1.0, 0.0)])
def test_observed_order_of_convergence(problem, kind, start, end):
    def error(steps):
        return (
            kind(steps).integrate(problem.v, Z, start, end) - problem.exact(Z, start, end)
        ).norm()

    observed = math.log2(error(20) / error(40))
    assert observed == pytest.approx(kind.order, abs=0.25)


@pytest.mark.parametrize("tolerance", [1e-3, 1e-5, 1e-7])
def test_dopri5_keeps_its_tolerance(tolerance):
    z = lf.Dopri5(tolerance, tolerance).integrate(Rotation.v, Z, 0.0, 1.0)
    assert (z - Rotation.exact(Z, 0, 1)).abs().max() < 20 * tolerance


@pytest.mark.parametrize("kind", FIXED)
def test_rows_do_not_depend_on_batch_mates(kind):
    whole = kind(7).integrate(Growth.v, Z, 1.0, 0.0)
    alone = torch.cat([kind(7).integrate(Growth.v, row[None], 1.0, 0.0) for row in Z])
    assert torch.equal(whole, alone)


@pytest.mark.parametrize("kind", FIXED)
def test_counts_its_evaluations(kind):
    calls = []
    kind(5).integrate(lambda t, z: calls.append(t) or z, Z, 0.0, 1.0)
    assert len(calls) == kind(5).nfe


@pytest.mark.parametrize("steps", [0, -1, 2.5, True, 10**12])
def test_wrong_steps_are_named(steps):
    with pytest.raises(InputError, match=rf"`steps` must be a whole number .* got {steps}"):
        lf.RK4(steps)


def test_wrong_tolerances_are_named():
    with pytest.raises(InputError, match="`atol` must be positive, got 0"):
        lf.Dopri5(1e-4, 0)


def test_dopri5_says_when_it_cannot_go_on():
    with pytest.raises(IntegrationError, match="found no step small enough"):
        lf.Dopri5().integrate(lambda t, z: z / (t - 0.5) ** 3, Z, 0.0, 1.0)


def test_dopri5_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchdiffeq", None)
    with pytest.raises(MissingExtra, match=r"pip install 'leapfactual\[adaptive\]'"):
        lf.Dopri5().integrate(Growth.v, Z, 0.0, 1.0)


def test_every_solver_can_be_named():
    assert set(SOLVERS) == {
        "Euler",
        "Midpoint",
        "NoisedMidpoint",
        "Heun",
        "RK4",
        "Dopri5",
    }
    assert all(issubclass(kind, FixedStep) for kind in FIXED)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_way_through_noise_comes_back_exactly(problem):
    """However few steps there are; plain ones leave an error."""
    v = problem.v
    assert torch.equal(NoisedMidpoint(2).round_trip(v, v, Z), Z)
    assert not torch.allclose(lf.Midpoint(2).round_trip(v, v, Z), Z, rtol=0, atol=1e-3)


def test_one_way_alone_is_integrated_as_the_midpoint_method_does():
    for way in ((0.0, 1.0), (1.0, 0.0)):
        wanted = lf.Midpoint(5).integrate(Growth.v, Z, *way)
        assert torch.equal(NoisedMidpoint(5).integrate(Growth.v, Z, *way), wanted)


@pytest.mark.parametrize(("lift", "land", "guidance"), [(1.0, 1.0, 1.0), (0.6, 0.6, 3.0)])
def test_for_gaussian_classes_noise_leads_where_lifting_does(lift, land, guidance):
    """The velocities are linear, so that what landing adds does not depend on the path."""
    means = torch.tensor([[-1.0, 0.5], [2.0, 0.0]], dtype=torch.float64)
    oracle = GaussianOracle(means, scale=0.7)
    z, a, b = means[:1] + 0.3, torch.tensor([0]), torch.tensor([1])
    wanted = oracle.leap(z, a, b, lift=lift, land=land, guidance=guidance)
    errors = []
    for steps in (50, 200):
        flow = oracle.flow().double().with_solver(NoisedMidpoint(steps))
        c, c_target = flow.one_hot(a), flow.one_hot(b)
        found = lf.leap(flow, z, c, c_target, lift=lift, land=land, guidance=guidance)
        errors.append((found - wanted).abs().max().item())
    assert errors[1] < 0.02
    assert errors[0] / errors[1] > 3


@pytest.mark.parametrize(("gamma", "steps"), [(1.0, 10), (0.7, 7), (0.35, 4), (0.01, 1)])
def test_a_smaller_leap_through_noise_takes_fewer_steps(gamma, steps):
    """0.7 times ten is a little more than seven to a computer."""
    asked = []

    def v(t, z):
        asked.append(t)
        return -gamma * z

    NoisedMidpoint(10).round_trip(v, v, Z, gamma)
    assert len(asked) == 2 * steps


def test_noise_is_the_same_for_all_rows_and_every_time():
    down, up = Growth.v, lambda t, z: torch.sin(3 * z)
    once = NoisedMidpoint(4).round_trip(down, up, Z)
    assert torch.equal(NoisedMidpoint(4).round_trip(down, up, Z), once)
    alone = torch.cat([NoisedMidpoint(4).round_trip(down, up, row) for row in Z.split(1)])
    torch.testing.assert_close(alone, once)
