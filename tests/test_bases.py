import math

import pytest
import torch

import leapfactual as lf
from leapfactual.bases import BASES, Base, Gaussian, Uniform
from leapfactual.errors import InputError


@pytest.mark.parametrize("base", [Gaussian(), Uniform(), Uniform(3.0)])
def test_samples_have_the_stated_std(base):
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
    for side in (math.nan, math.inf, "a"):
        with pytest.raises(InputError, match=f"`side` must be .* got {side!r}"):
            Uniform(side)


def test_every_base_can_be_named():
    assert set(BASES) == {"Gaussian", "Uniform"}


class Signs(Base):
    """A base of one's own, with what is required and nothing else."""

    def sample_like(self, z, rng=None):
        return torch.randint(0, 2, z.shape, generator=rng).to(z) * 2 - 1


def test_a_base_needs_samples_and_nothing_else(tmp_path):
    z, c = torch.randn(20, 2), torch.eye(2).repeat(10, 1)
    flow = lf.Flow(lf.MLPField(2, 2, width=8), base=Signs())
    assert flow.base.std == 1
    assert len(lf.fit(flow, z, c, epochs=2)) == 2
    assert torch.isfinite(lf.leap(flow, z, c, c.flip(1), lift=1, land=1)).all()
    with pytest.raises(InputError, match=r"Signs has no density. Define log_prob"):
        flow.log_prob(z, c)
    with pytest.raises(
        InputError, match=r"base Signs cannot be saved.*dataclass, or define config"
    ):
        flow.save(tmp_path / "flow.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_flow_with_a_base_of_ones_own_is_saved_and_loaded(tmp_path):
    class Kept(Signs):
        def config(self):
            return {}

    path, z, c = tmp_path / "flow.safetensors", torch.randn(4, 2), torch.eye(2).repeat(2, 1)
    flow = lf.Flow(lf.MLPField(2, 2, width=8), base=Kept())
    flow.save(path)
    again = lf.Flow.load(path, base=Kept())
    assert isinstance(again.base, Kept)
    assert torch.equal(again.lift(z, c), flow.lift(z, c))
    with pytest.raises(InputError, match=r"`Kept` is not one of.*base=… to Flow\.load"):
        lf.Flow.load(path)


def test_a_base_without_samples_is_none():
    class Nothing(Base):
        pass

    with pytest.raises(TypeError, match="sample_like"):
        Nothing()


def test_what_only_saving_needs_is_asked_for_when_saving(tmp_path):
    class Described(Signs):
        def config(self):
            return {}

    lf.Flow(lf.MLPField(2, 2), base=Described()).save(tmp_path / "flow.safetensors")
    assert (tmp_path / "flow.safetensors").is_file()
