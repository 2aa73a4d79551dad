import itertools
import sys

import pytest
import torch

from leapfactual.couplings import COUPLINGS, independent, optimal_transport
from leapfactual.errors import MissingExtra


def test_independent_changes_nothing():
    z0, z1 = torch.randn(6, 2), torch.randn(6, 2)
    assert torch.equal(independent(z0, z1, torch.eye(2).repeat(3, 1)), z0)


def test_optimal_transport_is_the_best_of_all_pairings_within_each_class():
    z0, z1 = torch.randn(8, 3), torch.randn(8, 3)
    c = torch.eye(2)[[0, 1, 0, 1, 0, 1, 0, 1]]
    paired = optimal_transport(z0, z1, c)
    for label in (0, 1):
        rows = (c.argmax(1) == label).nonzero()[:, 0]
        best = min(
            (z1[rows] - z0[rows[list(order)]]).square().sum().item()
            for order in itertools.permutations(range(len(rows)))
        )
        assert (z1[rows] - paired[rows]).square().sum().item() == pytest.approx(best, rel=1e-6)
        assert torch.equal(paired[rows].sort(0).values, z0[rows].sort(0).values)


def test_optimal_transport_takes_soft_conditions_and_empty_classes():
    z0, z1 = torch.randn(5, 2), torch.randn(5, 2)
    c = torch.tensor([[0.6, 0.4, 0.0]] * 5)
    assert optimal_transport(z0, z1, c).shape == z0.shape


def test_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ot", None)
    with pytest.raises(MissingExtra, match=r"pip install 'leapfactual\[transport\]'"):
        optimal_transport(torch.zeros(2, 2), torch.zeros(2, 2), torch.eye(2))


def test_every_coupling_can_be_named():
    assert set(COUPLINGS) == {"independent", "optimal_transport"}
