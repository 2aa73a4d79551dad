import math

import pytest
import torch

import leapfactual as lf
from leapfactual.bases import Gaussian
from leapfactual.typicality import LEVELS, levels, log_density, percentile


@pytest.mark.parametrize("probes", [0, 3])
def test_a_linear_velocity_has_a_closed_form(probes):
    """dz/dt = a z stretches space by e^a in each of D dimensions; signs see its trace exactly."""
    z = torch.randn(6, 4).double()
    found = log_density(lambda t, u: 0.7 * u, z, lf.RK4(20), Gaussian(), probes, seed=0)
    expected = Gaussian().log_prob(z * math.exp(-0.7)) - 4 * 0.7
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_a_rotation_keeps_the_density():
    z = torch.randn(6, 2).double()
    found = log_density(
        lambda t, u: torch.stack([-u[:, 1], u[:, 0]], 1), z, lf.RK4(50), Gaussian(), 0, seed=0
    )
    torch.testing.assert_close(found, Gaussian().log_prob(z), rtol=1e-6, atol=1e-6)


def test_percentiles_of_the_scores_themselves_are_even():
    scores = torch.randn(5000).double()
    marks = levels(scores)
    assert marks.shape == (LEVELS,)
    found = percentile(scores.sort().values, marks.expand(5000, -1))
    torch.testing.assert_close(found, torch.linspace(0, 100, 5000).double(), rtol=0, atol=1)


def test_percentiles_at_the_ends_among_ties_and_without_density():
    marks = torch.tensor([[-math.inf] * 20 + [1.0] * 61 + [5.0] * 20])
    score = torch.tensor([-math.inf, -3.0, 1.0, 3.0, 5.0, 9.0])
    found = percentile(score, marks.expand(6, -1)).tolist()
    assert found[0] == 0
    assert found[1] == 19
    assert found[2] == 50
    assert found[3] == pytest.approx(80.5)
    assert found[4] == pytest.approx(90.5)
    assert found[5] == 100
    assert percentile(score[:1], torch.full((1, LEVELS), math.nan)).isnan().all()


def test_the_scale_is_the_same_in_batches_and_tells_how_far_it_is():
    flow = lf.Flow(lf.MLPField(2, 3, width=8, depth=2))
    z, p = torch.randn(30, 2), torch.eye(3)[torch.arange(30) % 2]
    flow.fit_typicality(z, p)
    whole, told = flow.quantiles.clone(), []
    flow.fit_typicality(z, p, batch_size=4, on_batch=told.append)
    torch.testing.assert_close(flow.quantiles, whole, equal_nan=True)
    assert told == [4, 8, 12, 15, 19, 23, 27, 30]
