"""Walks that are cut short are shorter walks."""

import pytest
import torch

import leapfactual as lf
from leapfactual.generators import Identity
from leapfactual.testing import GaussianOracle
from studies.truncated import BlendingWalk

GAMMA = 0.1


@pytest.fixture(scope="module")
def oracle():
    return GaussianOracle(torch.tensor([[-2.0, 0.0], [2.0, 0.0], [0.0, 2.0]]), scale=0.5)


@pytest.fixture(scope="module")
def asked(oracle):
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    return x, (oracle.classifier(x).argmax(1) + 1 + torch.arange(40) % 2) % 3


def blended(oracle, asked, leaps, **options):
    return BlendingWalk(
        Identity(), oracle.classifier, oracle.flow(), *asked, leaps, GAMMA, **options
    )


def explained(oracle, asked, plan):
    return lf.LeapFactual(Identity(), oracle.classifier, oracle.flow(), plan).explain(*asked)


@pytest.mark.parametrize("n", [1, 3, 8, 20])
def test_blending_cut_short_is_blending_with_fewer_leaps(oracle, asked, n):
    cut = blended(oracle, asked, 20).stop_after(n)
    wanted = explained(oracle, asked, [lf.blend(n, GAMMA)])
    torch.testing.assert_close(cut.z_counterfactual, wanted.z_counterfactual)
    assert torch.equal(cut.label, wanted.label)
    assert torch.equal(cut.counterfactual, wanted.counterfactual)


@pytest.mark.parametrize("steps", [(1.0, 1.025), (0.5, 0.6), (0.0, 0.1)])
@pytest.mark.parametrize("n", [0, 2, 5])
def test_injections_cut_short_are_fewer_injections(oracle, asked, n, steps):
    walked = blended(oracle, asked, 12, batch_size=7)
    cut = walked.stop_injections_after(walked.inject(12, 5, *steps), n)
    plan = [lf.blend(12, GAMMA), lf.inject(n, lift=steps[0], land=steps[1])]
    wanted = explained(oracle, asked, plan)
    torch.testing.assert_close(cut.z_counterfactual, wanted.z_counterfactual)
    assert torch.equal(cut.label, wanted.label)


def test_latents_that_are_known_are_where_it_starts(oracle, asked):
    x, target = asked
    moved = blended(oracle, (torch.zeros_like(x), target), 5, z=x).stop_after(5)
    assert torch.equal(
        moved.z_counterfactual, blended(oracle, asked, 5).stop_after(5).z_counterfactual
    )
