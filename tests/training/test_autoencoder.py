"""Training of spatial autoencoders, and of the critic that joins on the way."""

import pytest
import torch
from sklearn.datasets import load_digits

from leapfactual.errors import InputError
from leapfactual.generators import SpatialAutoencoder
from leapfactual.metrics import PyramidDistance
from leapfactual.training import fit_generator
from leapfactual.training.augmentation import random_d4

DIGITS = torch.tensor(load_digits().images / 16).float()[:, None]
CRITIC = {"adversarial_weight": 0.1, "adversarial_from": 0.5}


def train(images=DIGITS[:48], epochs=4, batch_size=32, **options):
    torch.manual_seed(0)
    model = SpatialAutoencoder(tuple(images.shape[1:]), 4, widths=(8, 16), blocks=1)
    settings = {"learning_rate": 3e-3, **options}
    return model, fit_generator(model, images, epochs=epochs, batch_size=batch_size, **settings)


def assert_equal_models(a, b):
    for name, value in a.state_dict().items():
        assert torch.equal(value, b.state_dict()[name]), name


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"perceptual": PyramidDistance(), "perceptual_weight": 1.0, "schedule": "cosine"},
        {"ema": 0.999, "weight_decay": 0.01},
    ],
)
def test_training_lowers_the_loss_and_the_error(options):
    images = DIGITS[:256]
    model, losses = train(images, epochs=8, learning_rate=1e-2, **options)
    assert losses[-1] < 0.65 * losses[0]
    with torch.no_grad():
        error = (model.decode(model.encode(images)) - images).abs().mean()
    assert error < 0.95 * (images.mean(0) - images).abs().mean()
    assert not model.training
    assert all(p.is_contiguous() for p in model.parameters())


def test_colour_and_odd_sizes_train():
    images = torch.rand(12, 3, 9, 14)
    _, losses = train(images, batch_size=6, **CRITIC)
    assert losses[1] < losses[0]


def test_mixed_precision_is_close_and_leaves_weights_as_others_have_them():
    plain, losses = train()
    mixed, others = train(precision="bfloat16")
    assert others == pytest.approx(losses, rel=0.05)
    assert others != losses
    assert all(p.dtype == torch.float32 and p.is_contiguous() for p in mixed.parameters())
    with torch.no_grad():
        gap = (mixed.decode(mixed.encode(DIGITS)) - plain.decode(plain.encode(DIGITS))).abs()
    assert gap.mean() < 0.02


def test_the_critic_joins_at_its_epoch_and_changes_nothing_before():
    plain, losses = train()
    late, others = train(**CRITIC)
    assert others[:2] == losses[:2]
    assert others[2] != losses[2]
    with pytest.raises(AssertionError):
        assert_equal_models(late, plain)


def test_a_critic_from_the_start_and_one_that_never_comes():
    plain, losses = train()
    never, same = train(adversarial_weight=0.1, adversarial_from=1.0)
    assert same == losses
    assert_equal_models(never, plain)
    _, early = train(adversarial_weight=0.1)
    _, first = train(adversarial_weight=0.1, adversarial_from=0.0)
    assert early == first
    assert early[0] != losses[0]


@pytest.fixture(autouse=True)
def checkpoint_after_every_epoch(monkeypatch):
    monkeypatch.setattr("leapfactual.training.loop.MIN_COST", float("inf"))


def interrupted(after, path, **options):
    def stop(epoch):
        if epoch.number == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(checkpoint=path, on_epoch=stop, **options)
    seen = []
    model, losses = train(checkpoint=path, on_epoch=seen.append, **options)
    assert [epoch.number for epoch in seen] == list(range(after + 1, 5))
    return model, losses


@pytest.mark.parametrize("after", [1, 2, 3])
@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_training_resumes_exactly_before_the_critic_joins_and_after(after, ema, tmp_path):
    options = {**CRITIC, "ema": ema, "schedule": "cosine"}
    whole, losses = train(**options)
    resumed, again = interrupted(after, tmp_path / "c.safetensors", **options)
    assert again == losses
    assert_equal_models(resumed, whole)


def test_training_resumes_exactly_within_an_epoch_of_turned_images(tmp_path, monkeypatch):
    for name in ("MAX_LOST_SECONDS", "PROGRESS_SECONDS"):
        monkeypatch.setattr(f"leapfactual.training.loop.{name}", 0)

    def stop(share):
        if share > 0.6:
            raise KeyboardInterrupt

    options = {**CRITIC, "schedule": "cosine", "augment": random_d4}
    whole, losses = train(**options)
    path, seen = tmp_path / "c.safetensors", []
    with pytest.raises(KeyboardInterrupt):
        train(checkpoint=path, on_progress=stop, **options)
    resumed, again = train(checkpoint=path, on_progress=seen.append, **options)
    assert seen[0] > 0.6
    assert again == losses
    assert_equal_models(resumed, whole)


def test_training_without_a_critic_resumes_exactly(tmp_path):
    options = {"precision": "bfloat16", "perceptual": PyramidDistance(), "ema": 0.99}
    whole, losses = train(**options)
    resumed, again = interrupted(2, tmp_path / "c.safetensors", **options)
    assert again == losses
    assert_equal_models(resumed, whole)


def test_a_checkpoint_remembers_when_the_critic_joins(tmp_path):
    path = tmp_path / "c.safetensors"
    train(**CRITIC, checkpoint=path)
    with pytest.raises(InputError, match=r"written with \{'adversarial_from': 0.5\}"):
        train(adversarial_weight=0.1, adversarial_from=0.25, checkpoint=path)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1.5, "`adversarial_from` must be a share of the epochs, 0 to 1, got 1.5"),
        (-0.1, "0 to 1, got -0.1"),
        (float("nan"), "0 to 1, got nan"),
        ("late", "`adversarial_from` must be a number, got 'late'"),
    ],
)
def test_a_wrong_share_of_the_epochs_is_named(value, message):
    with pytest.raises(InputError, match=message):
        train(adversarial_weight=0.1, adversarial_from=value)
