"""The loop that flows and autoencoders share, on a problem with a known answer."""

import pytest
import torch
from torch import nn

from leapfactual.errors import InputError
from leapfactual.files import fingerprint
from leapfactual.training.loop import Loop, learning_rate_at
from leapfactual.training.state import reseed

X = torch.linspace(-1, 1, 50)[:, None]
Y = 3 * X + 1


def train(loop, data=X):
    torch.manual_seed(0)
    module, rng = nn.Linear(1, 1), torch.Generator()
    state = loop.begin({"line": module}, lambda: ({"kind": "line"}, fingerprint(data)))

    def batches():
        for rows in torch.split(torch.randperm(len(data), generator=rng), loop.batch_size):
            yield data[rows], Y[rows]

    losses = loop.run(
        state, lambda x, y: (module(x) - y).square().mean(), batches, rng, rows=50, capture=False
    )
    return module, losses


def test_it_learns_a_line():
    module, losses = train(Loop(epochs=40, batch_size=10, learning_rate=0.1, schedule="cosine"))
    assert losses[-1] < 1e-3 * losses[0]
    assert (module.weight.item(), module.bias.item()) == pytest.approx((3, 1), abs=0.02)


def test_the_objective_is_averaged_over_rows_not_over_batches():
    _, uneven = train(Loop(epochs=1, batch_size=49, learning_rate=1e-9))
    _, whole = train(Loop(epochs=1, batch_size=50, learning_rate=1e-9))
    assert uneven == pytest.approx(whole, rel=1e-5)


def test_a_checkpoint_remembers_what_it_was_made_for(tmp_path):
    def loop(**options):
        settings = {"epochs": 3, "batch_size": 10, "learning_rate": 0.1, **options}
        return Loop(**settings, checkpoint=tmp_path / "c.safetensors")

    module, losses = train(loop())
    again, same = train(loop())
    assert same == losses
    assert torch.equal(module.weight, again.weight)
    with pytest.raises(InputError, match=r"written with \{'epochs': 3\}"):
        train(loop(epochs=4))
    with pytest.raises(InputError, match="written for other data"):
        train(loop(), X + 1)


def test_an_epoch_draws_from_its_number_alone():
    first, later = torch.Generator(), torch.Generator().manual_seed(99)
    torch.rand(7, generator=later)
    for rng in (first, later):
        reseed(rng, seed=1, epoch=5)
    assert torch.equal(torch.rand(3, generator=first), torch.rand(3, generator=later))
    reseed(first, seed=1, epoch=6)
    assert not torch.equal(torch.rand(3, generator=first), torch.rand(3, generator=later))


def test_a_constant_learning_rate_does_not_fall():
    assert {learning_rate_at("constant", 0.5, step, 9) for step in range(9)} == {0.5}


def test_fingerprints_tell_values_shapes_types_and_texts_apart():
    parts = [X, X + 1, X[:, 0], X.double(), "text"]
    assert len({fingerprint(part) for part in parts}) == len(parts)
    assert fingerprint(X, "a") == fingerprint(X.clone(), "a") != fingerprint(X, "b")
