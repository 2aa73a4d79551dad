import math

import pytest
import torch

from leapfactual.bases import BASES, Gaussian, Uniform
from leapfactual.errors import InputError


@pytest.mark.parametrize("base", [Gaussian(), Uniform(), Uniform(3.0)])
def test_samples_have_the_stated_spread(base):
    z = base.sample_like(torch.empty(20_000, 3), torch.Generator().manual_seed(0))
    torch.testing.assert_close(z.std(0), torch.full((3,), base.std), rtol=0.02, atol=0)
    torch.testing.assert_close(z.mean(0), torch.zeros(3), rtol=0, atol=0.04)


@pytest.mark.parametrize("base", [Gaussian(), Uniform(3.0)])
def test_density_integrates_to_one(base):
    grid = torch.linspace(-6, 6, 601, dtype=torch.float64)
    z = torch.cartesian_prod(grid, grid)
    assert base.log_prob(z).exp().sum().item() * 0.02**2 == pytest.approx(1, abs=0.02)


def test_gaussian_density_is_the_normal_one():
    z = torch.randn(5, 4, dtype=torch.float64)
    normal = torch.distributions.Normal(0.0, 1.0)
    torch.testing.assert_close(Gaussian().log_prob(z), normal.log_prob(z).sum(1))


def test_uniform_density_ends_at_the_edge():
    log_prob = Uniform(2.0).log_prob(torch.tensor([[0.9, 0.0], [1.1, 0.0]]))
    assert log_prob.tolist() == pytest.approx([-math.log(4), -math.inf])


def test_samples_repeat_with_their_seed():
    draws = [
        Gaussian().sample_like(torch.empty(4, 2), torch.Generator().manual_seed(1)) for _ in "ab"
    ]
    assert torch.equal(*draws)


def test_wrong_side_is_named():
    with pytest.raises(InputError, match="`side` must be positive, got 0"):
        Uniform(0)


def test_every_base_can_be_named():
    assert set(BASES) == {"Gaussian", "Uniform"}
