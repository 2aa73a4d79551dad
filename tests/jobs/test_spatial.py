"""Sizes by what the time allows, batches by what the memory allows, and exact resumption."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from leapfactual.fields import UNet2dField
from leapfactual.jobs import spatial
from leapfactual.jobs.budget import Budget
from leapfactual.jobs.recipe import Recipe, orbits
from leapfactual.jobs.spatial import Trainer, _largest, build_autoencoder, with_memory
from leapfactual.training.augmentation import d4_orbit

from .conftest import Squares, colour, part_of, run_of


@pytest.mark.parametrize(
    ("shape", "latent"),
    [
        ((1, 32, 32), (8, 8, 8)),
        ((1, 32, 48), (8, 8, 12)),
        ((3, 47, 33), (8, 12, 9)),
        ((3, 64, 64), (8, 16, 16)),
        ((3, 128, 96), (16, 16, 12)),
        ((1, 256, 300), (32, 16, 19)),
    ],
)
def test_maps_have_about_sixteen_places_to_the_shorter_side(shape, latent):
    model = build_autoencoder(shape, 4)
    assert model.latent_shape == latent
    assert math.prod(latent) < math.prod(shape)
    x = torch.rand(1, *shape)
    z = model.encode(x)
    assert model.decode(z).shape == x.shape
    field = UNet2dField(latent, 2, channels=8)
    assert field(torch.tensor(0.5), z, torch.eye(2)[:1]).shape == z.shape


@pytest.mark.parametrize(
    ("times", "size", "steps"),
    [
        ([0.5], 0, 20),
        ([0.002, 0.008], 0, 5000),  # the next would take 1250 steps, too few
        ([0.001, 0.004], 1, 2500),
        ([0.0005, 0.001, 0.004], 2, 2500),
        ([0.0001, 0.0002, 0.0004], 2, 25000),
    ],
)
def test_the_largest_networks_of_which_enough_steps_fit(times, size, steps):
    measured = []

    def measure(n):
        measured.append(n)
        return times[n]

    assert _largest(range(3), 10.0, measure) == (size, pytest.approx(steps, rel=0.01))
    assert measured == list(range(len(times)))


def test_measuring_is_taken_off_the_time(monkeypatch):
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(spatial, "time", SimpleNamespace(perf_counter=lambda: now.seconds))

    def measure(_):
        now.seconds += 4
        return 0.1

    assert _largest(range(3), 10.0, measure) == (0, pytest.approx(60))
    assert _largest(range(3), 1.0, measure)[1] < 0


def test_batches_are_halved_until_they_fit():
    said, tried = [], []

    def train(batch):
        tried.append(batch)
        if batch > 10:
            raise torch.OutOfMemoryError
        return "done"

    assert with_memory(64, train, said.append) == "done"
    assert tried == [64, 32, 16, 8]
    assert said[-1] == "The device ran out of memory; going on with 8 images at a time."


def test_a_device_without_room_for_a_small_batch_is_an_error():
    def train(batch):
        raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        with_memory(64, train, lambda _: None)


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    """A trainer of small networks, on a machine whose speed is known."""
    monkeypatch.setattr(spatial, "AUTOENCODER_SIZES", (8,))
    monkeypatch.setattr(spatial, "FLOW_SIZES", (8,))
    monkeypatch.setattr(spatial, "seconds_per_step", lambda _: 100.0)
    shape = (1, 32, 48)
    return Trainer(
        torch.rand(14, *shape),
        shape,
        "cpu",
        Budget(10, tmp_path / "budget.json"),
        0,
        lambda *name: tmp_path / ("-".join(map(str, name)) + ".safetensors"),
        tmp_path / "preview.png",
    )


def ignore(_):
    pass


def test_epochs_follow_from_the_time(trainer, monkeypatch):
    seen = {}
    monkeypatch.setattr(
        spatial, "fit_generator", lambda *_, epochs, **options: seen.update(options, epochs=epochs)
    )
    said = []
    model, epochs = trainer.autoencoder(4000.0, said.append)
    assert seen["batch_size"] == 7, "two steps to an epoch at least"
    assert epochs == seen["epochs"] == 20, "forty steps"
    assert "8 × 8 × 12 numbers for 20 epochs; sharpness is measured by" in said[0]
    assert not any(weight.requires_grad for weight in model.parameters())
    assert trainer.autoencoder(0.01, ignore)[1] == 20, "it was decided"


def test_a_device_that_runs_out_of_memory_gets_smaller_batches(trainer, monkeypatch):
    tried, said = [], []

    def fit_generator(*_, batch_size, **__):
        tried.append(batch_size)
        if batch_size > 8:
            raise torch.OutOfMemoryError

    monkeypatch.setattr(spatial, "fit_generator", fit_generator)
    many = replace(trainer, train=torch.rand(100, *trainer.shape))
    many.autoencoder(4000.0, said.append)
    assert tried == [32, 16, 8]
    assert said[-2] == "The device ran out of memory; going on with 8 images at a time."


def interrupt(epoch):
    if epoch.number == 1:
        raise KeyboardInterrupt


def test_an_autoencoder_resumes_to_the_same_weights(trainer, tmp_path):
    whole, _ = trainer.autoencoder(500.0, ignore)
    assert (tmp_path / "preview.png").exists()
    other = replace(trainer, checkpoint=lambda *_: tmp_path / "other.safetensors")
    with pytest.raises(KeyboardInterrupt):
        other.autoencoder(500.0, ignore, on_epoch=interrupt)
    epochs = []
    resumed, of = other.autoencoder(500.0, ignore, on_epoch=epochs.append)
    assert [epoch.number for epoch in epochs] == list(range(2, of + 1))
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


@pytest.mark.parametrize("balanced", [True, False])
def test_a_flow_resumes_to_the_same_weights(trainer, tmp_path, balanced):
    model = build_autoencoder(trainer.shape, 8)
    z = model.encode(trainer.train).detach()
    p = torch.eye(3)[torch.arange(14) % 2]

    def run(by, on_epoch):
        return by.flow(model, z, p, 300.0, ignore, balanced=balanced, on_epoch=on_epoch)

    whole, epochs = run(trainer, ignore)
    other = replace(trainer, checkpoint=lambda *_: tmp_path / "other.safetensors")
    with pytest.raises(KeyboardInterrupt):
        run(other, interrupt)
    resumed, same = run(other, ignore)
    assert epochs == same == 3
    for name, value in whole.field.state_dict().items():
        assert torch.equal(value, resumed.field.state_dict()[name]), name


@pytest.mark.parametrize(("device", "dropout"), [("cpu", 0.15), ("cuda", 0.3)])
def test_a_flow_does_not_see_latents_so_often_that_it_knows_them_by_heart(
    trainer, monkeypatch, device, dropout
):
    monkeypatch.setattr(spatial, "fit", lambda *_, **__: None)
    model = build_autoencoder(trainer.shape, 8)
    z = model.encode(trainer.train).detach()
    p = torch.eye(3)[torch.arange(14) % 2]
    by = replace(trainer, device=device)
    flow, epochs = by.flow(model, z, p, 1e9, ignore, balanced=False)
    assert epochs == spatial.MAX_PASSES
    assert flow.field.dropout == dropout


def test_the_oracle_learns_from_the_originals_in_their_order():
    """Of every batch and its copies, rotated or mirrored, those are the first."""
    images = Squares(270, 8, 8)
    images.x = torch.rand(270, 3, 8, 8)

    def corner(x):
        return x[:, :2, 0, 0].softmax(1)

    for orbit in (spatial._alone, spatial._mirrored, d4_orbit):
        train = part_of(images)
        turns = len(list(orbit(train[:1])))
        p = torch.cat([corner(x) for x in orbits(train, orbit)])
        first = torch.cat([part[:n] for part, n in spatial._first_of_each(p, turns)])
        assert torch.equal(first, corner(train[:]))


@pytest.mark.parametrize(
    ("classifier", "device", "seconds", "orbit"),
    [
        ("left", "cuda", 1e6, spatial._alone),
        ("top", "cuda", 1e6, spatial._mirrored),
        ("colour", "cuda", 1e6, d4_orbit),
        ("colour", "cuda", 1e-6, spatial._mirrored),
        ("colour", "cpu", 1e6, spatial._mirrored),
    ],
)
def test_orientations_are_trained_on_where_they_hardly_matter(
    classifier, device, seconds, orbit, tmp_path
):
    """Turned ones only where there is time for eight times the queries, and again if resumed."""

    def left(x):
        return torch.stack([x[..., :16].mean((1, 2, 3)), x[..., 16:].mean((1, 2, 3))], 1)

    def top(x):
        return left(x.transpose(2, 3))

    said = []
    images = Squares(40)
    images.x = images.x + torch.linspace(0, 1, 32)[:, None] + torch.linspace(0, 0.9, 32)
    budget = Budget(seconds, tmp_path / "budget.json")
    run = SimpleNamespace(recipe=Recipe(), on_gpu=device == "cuda", log=said.append, budget=budget)
    known = {"left": left, "top": top, "colour": colour}
    assert spatial._orbit(run, part_of(images), known[classifier]) is orbit
    assert len(said) == (orbit is not spatial._alone)
    run.budget = Budget(1e6, tmp_path / "budget.json")
    assert spatial._orbit(run, part_of(images), lambda _: pytest.fail("asked again")) is orbit


def test_votes_are_about_images_as_they_are_and_rotation_is_as_the_user_says():
    train = part_of(Squares(40))
    run = SimpleNamespace(recipe=Recipe(rotate=True), on_gpu=False, log=ignore)
    assert spatial._orbit(run, train, colour) is d4_orbit
    train.p = torch.eye(2)[[0] * 40]
    run.recipe = Recipe()
    assert spatial._orbit(run, train, colour) is spatial._alone


@pytest.mark.parametrize(("spent", "share"), [(0.39, 0.37), (0.2, 0.56), (0.9, 0.2)])
def test_a_flow_gets_what_the_autoencoder_left(tmp_path, spent, share):
    """On a CPU a fifth is for the choice of plans, and an oracle takes its share."""
    run = run_of(tmp_path, minutes=10.0)
    run.budget.started -= spent * run.budget.seconds
    assert spatial._flow_seconds(run) == pytest.approx(share * run.budget.seconds, rel=0.01)


def test_a_resumed_search_tries_plans_on_as_many_images_as_before(tmp_path, monkeypatch):
    """What is kept of the trial takes no time, by which all images would fit."""
    tried = []
    held_out = SimpleNamespace(x=range(200), first=lambda n: SimpleNamespace(x=range(n)))

    def search(few, seconds, on_progress):
        tried.append(len(few.x))
        return SimpleNamespace(why="")

    monkeypatch.setattr(spatial, "search_guided_plans", search)
    for fitting in (70, 200):
        enough = held_out.first(fitting)
        monkeypatch.setattr(spatial, "enough_images", lambda *_, enough=enough: enough)
        spatial.search(run_of(tmp_path, minutes=1.0), held_out)
    assert tried == [70, 70]
