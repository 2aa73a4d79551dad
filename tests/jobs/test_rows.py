"""Generators and flows of rows, and how long they train."""

import pytest
import torch

from leapfactual.data import Table
from leapfactual.errors import InputError
from leapfactual.generators import Identity
from leapfactual.jobs import rows
from leapfactual.jobs.recipe import Recipe

from .conftest import part_of, run_of


def test_only_square_images_can_be_rotated():
    with pytest.raises(InputError, match="images of 8 × 9 cannot be rotated"):
        rows.build_generator(Recipe(rotate=True), (1, 8, 9), 0.1)


@pytest.mark.parametrize(("seconds", "epochs"), [(6.0, 1), (4.0, 2), (0.001, 3)])
def test_a_flow_of_rows_keeps_to_the_minutes(seconds, epochs, tmp_path, monkeypatch):
    """Two steps to an epoch; a third of a minute, or the three epochs that were wanted."""
    monkeypatch.setattr(rows, "seconds_per_step", lambda _: seconds)
    x = torch.randn(100, 2)
    train = part_of(Table(x, ["a", "b"], [str(n) for n in range(100)]))

    def sign(x):
        return torch.eye(2)[(x[:, 0] > 0).long()]

    run = run_of(tmp_path, minutes=1.0, flow_epochs=3)
    _, record, _ = rows.train_flow(run, train, Identity(), sign, ("minus", "plus"))
    assert record["flow epochs"] == epochs


def test_a_flow_of_few_votes_trains_as_long_as_they_need(tmp_path):
    """Of 100,000 images people voted on 500: the epochs that were announced are for all."""
    run, flow = run_of(tmp_path, minutes=1e6), rows._build_flow(2, 2, "cpu")
    announced, _ = rows._flow_epochs(run, flow, 100_000)
    assert rows._flow_epochs(run, flow, 500) == (rows.MAX_FLOW_EPOCHS, 64)
    assert announced < rows.MAX_FLOW_EPOCHS
