"""The loop that flows and autoencoders share, on a problem with a known answer."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from leapfactual.errors import InputError, TrainingError
from leapfactual.files import fingerprint
from leapfactual.training.loop import Loop, learning_rate_at
from leapfactual.training.state import TrainingState, reseed

X = torch.linspace(-1, 1, 50)[:, None]
Y = 3 * X + 1


def train(loop, data=X, objectives=None, bias=0.0):
    torch.manual_seed(0)
    module, rng = nn.Linear(1, 1), torch.Generator()
    nn.init.constant_(module.bias, bias)
    state = loop.begin({"line": module}, lambda: ({"kind": "line"}, fingerprint(data)))

    def batches():
        for rows in torch.split(torch.randperm(len(data), generator=rng), loop.batch_size):
            yield data[rows], Y[rows]

    def objective(x, y):
        return (module(x) - y).square().mean()

    made = {0: objective} if objectives is None else objectives(module)
    losses = loop.run(state, made, batches, rng, rows=50, capture=False)
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


def counted(seen):
    def objectives(module):
        def objective(name, x, y):
            seen.append(name)
            return (module(x) - y).square().mean()

        return {first: partial(objective, first) for first in (0, 2, 3)}

    return objectives


def test_each_objective_holds_from_its_epoch_on():
    seen = []
    train(Loop(epochs=6, batch_size=25, learning_rate=0.1), objectives=counted(seen))
    assert seen == [0, 0, 0, 0, 2, 2, 3, 3, 3, 3, 3, 3]


@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_a_resumed_training_takes_up_the_objective_of_its_epoch(after, tmp_path, monkeypatch):
    monkeypatch.setattr("leapfactual.training.loop.MIN_COST", float("inf"))

    def stop(epoch):
        if epoch.number == after:
            raise KeyboardInterrupt

    settings = {"epochs": 6, "batch_size": 50, "learning_rate": 0.1}
    path, seen = tmp_path / "c.safetensors", []
    with pytest.raises(KeyboardInterrupt):
        train(Loop(**settings, checkpoint=path, on_epoch=stop), objectives=counted(seen))
    train(Loop(**settings, checkpoint=path), objectives=counted(seen))
    assert seen == [0, 0, 2, 3, 3, 3]


def test_the_average_of_a_short_training_forgets_the_initial_weights():
    settings = {"epochs": 40, "batch_size": 10, "learning_rate": 1.0, "schedule": "cosine"}
    plain, _ = train(Loop(**settings), bias=20.0)
    average, _ = train(Loop(**settings, ema=0.9999), bias=20.0)
    assert plain.bias.item() == pytest.approx(1, abs=0.02)
    assert average.bias.item() == pytest.approx(1, abs=0.02), "200 steps of 10 000"
    assert average.bias.item() != plain.bias.item()


@pytest.mark.parametrize("ema", [0.5, 0.9, 0.9999])
def test_the_averages_decay_rises_to_its_largest(ema):
    module = nn.Linear(1, 1)
    state = TrainingState({}, "", {"line": module}, {}, ema)
    expected = module.bias.item()
    for n in range(1, 200):
        nn.init.constant_(module.bias, n**0.5)
        state.average()
        decay = min(ema, (1 + n) / (10 + n))
        expected = decay * expected + (1 - decay) * n**0.5
        assert state.averages["bias"].item() == pytest.approx(expected, rel=1e-4)
    state.finish()
    assert module.bias.item() == pytest.approx(expected, rel=1e-4)


def test_a_resumed_average_has_not_forgotten_how_old_it_is(tmp_path):
    def stop(epoch):
        if epoch.number == 3:
            raise KeyboardInterrupt

    settings = {"epochs": 6, "batch_size": 10, "learning_rate": 0.1, "ema": 0.999}
    whole, _ = train(Loop(**settings))
    path = tmp_path / "c.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train(Loop(**settings, checkpoint=path, on_epoch=stop))
    resumed, _ = train(Loop(**settings, checkpoint=path))
    assert torch.equal(resumed.weight, whole.weight)
    assert torch.equal(resumed.bias, whole.bias)


@pytest.mark.parametrize(("cost", "written"), [(0.0, 6), (0.05, 6), (0.15, 2), (100.0, 2)])
def test_dear_checkpoints_are_seldom_written_and_the_last_always(cost, written, monkeypatch):
    clock, seen = [0.0], []
    monkeypatch.setattr(
        "leapfactual.training.loop.time", SimpleNamespace(perf_counter=lambda: clock[0])
    )

    def write(state, path):
        seen.append(len(state.losses))
        clock[0] += cost

    monkeypatch.setattr(TrainingState, "write", write)
    settings = {"epochs": 6, "batch_size": 50, "learning_rate": 0.1, "checkpoint": "nowhere"}
    train(Loop(**settings))
    assert len(seen) == written
    assert (seen[0], seen[-1]) == (1, 6)


def diverging(first):
    """Objectives of which every one from an epoch on is not a number."""

    def objectives(module):
        def objective(factor, x, y):
            return factor * (module(x) - y).square().mean()

        return {0: partial(objective, 1.0), first: partial(objective, float("nan"))}

    return objectives


def test_training_that_diverges_keeps_the_last_good_state_and_says_where(tmp_path):
    path = tmp_path / "c.safetensors"
    settings = {"epochs": 5, "batch_size": 25, "learning_rate": 0.1, "checkpoint": path}
    with pytest.raises(TrainingError, match=r"in epoch 3: the loss is nan.*last good state") as e:
        train(Loop(**settings), objectives=diverging(2))
    assert str(path) in str(e.value)
    resumed, losses = train(Loop(**settings))
    whole, same = train(Loop(**{**settings, "checkpoint": None}))
    assert losses == same
    assert torch.equal(resumed.weight, whole.weight)


def test_training_that_diverges_at_once_has_nothing_to_keep(tmp_path):
    loop = Loop(epochs=2, batch_size=50, learning_rate=0.1, checkpoint=tmp_path / "c.safetensors")
    with pytest.raises(TrainingError, match="in epoch 1") as error:
        train(loop, objectives=diverging(0))
    assert "state" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_weights_that_diverge_behind_the_last_loss_are_not_kept(tmp_path):
    """The loss of an epoch's last step is finite, its gradient is not."""
    path = tmp_path / "c.safetensors"

    def objectives(module):
        def objective(root, x, y):
            error = (module(x) - y).square().mean()
            return error + (0 * error).sqrt() if root else error

        return {0: partial(objective, False), 1: partial(objective, True)}

    settings = {"epochs": 3, "batch_size": 50, "learning_rate": 0.1, "checkpoint": path}
    with pytest.raises(TrainingError, match="in epoch 2: weights are not finite"):
        train(Loop(**settings), objectives=objectives)
    assert len(train(Loop(**settings))[1]) == 3
