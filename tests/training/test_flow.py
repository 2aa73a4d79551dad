"""Embedding and fitting: the trained flow against the oracle, resuming, and what can go wrong."""

import math

import pytest
import torch
from safetensors.torch import save_file

import leapfactual as lf
from leapfactual.errors import InputError, TrainingError
from leapfactual.generators import Identity
from leapfactual.testing import GaussianOracle

ORACLE = GaussianOracle(torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 1.5]]), 0.7)


def train(coupling="independent", epochs=30, n=500, **options):
    z, y = ORACLE.sample(n, seed=1)
    torch.manual_seed(0)
    flow = lf.Flow(lf.MLPField(2, 3, width=64), lf.RK4(20))
    settings = {"learning_rate": 3e-3, "schedule": "cosine", "ema": 0.99, **options}
    losses = lf.fit(flow, z, flow.one_hot(y), epochs=epochs, coupling=coupling, **settings)
    return flow, losses


@pytest.fixture(scope="module")
def trained():
    return {
        "independent": train(epochs=40, n=4000, batch_size=1024, learning_rate=1e-2)[0],
        "optimal_transport": train("optimal_transport", epochs=20, n=2000)[0],
    }


def path_over_distance(flow, z, c):
    times = [1 - n / 20 for n in range(21)]
    points = flow.with_solver(lf.RK4(1)).trace(z, c, 1.0, times)
    length = (points[1:] - points[:-1]).norm(dim=2).sum(0)
    return (length.sum() / (points[-1] - points[0]).norm(dim=1).sum()).item()


@pytest.mark.parametrize("coupling", ["independent", "optimal_transport"])
def test_replacement_by_a_trained_flow_is_near_the_oracles(trained, coupling):
    flow = trained[coupling]
    z, y = ORACLE.sample(300, seed=2)
    target = (y + 1) % 3
    moved = lf.leap(flow, z, flow.one_hot(y), flow.one_hot(target), lift=1, land=1)
    exact = ORACLE.leap(z, y, target, lift=1, land=1)
    error = (moved - exact).norm(dim=1).mean() / (exact - z).norm(dim=1).mean()
    assert error < 0.04


@pytest.mark.parametrize(("lift", "land"), [(0.1, 0.1), (0, 0.1), (0.8, 0.83), (1, 1.025)])
def test_every_leap_of_a_trained_flow_is_near_the_oracles(trained, lift, land):
    """The independent coupling has the oracle's velocity at every time, so partial leaps agree."""
    flow = trained["independent"]
    z, y = ORACLE.sample(300, seed=2)
    target = (y + 1) % 3
    moved = lf.leap(flow, z, flow.one_hot(y), flow.one_hot(target), lift=lift, land=land)
    exact = ORACLE.leap(z, y, target, lift=lift, land=land)
    error = (moved - exact).norm(dim=1).mean() / (exact - z).norm(dim=1).mean()
    assert error < 0.06


def test_optimal_transport_makes_paths_straighter(trained):
    z, y = ORACLE.sample(300, seed=2)
    ratios = {k: path_over_distance(f, z, f.one_hot(y)) for k, f in trained.items()}
    assert 1 <= ratios["optimal_transport"] < ratios["independent"]
    assert ratios["optimal_transport"] - 1 < 0.5 * (ratios["independent"] - 1)


def test_the_unet_learns_too():
    z, y = ORACLE.sample(100, seed=1)
    flow = lf.Flow(lf.fields.UNet1dField(2, 3, channels=16, multipliers=(1,), blocks=1))
    losses = lf.fit(flow, z, flow.one_hot(y), epochs=15, batch_size=64, learning_rate=1e-2)
    assert losses[-1] < 0.75 * losses[0]


def maps(n=64):
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 2
    z = torch.randn(2, 24, generator=rng)[y] + 0.1 * torch.randn(n, 24, generator=rng)
    return (z.reshape(n, 12, 2) * torch.tensor([0.2, 5.0])).flatten(1), torch.eye(2)[y]


def train_maps(dropout=0.0, **options):
    torch.manual_seed(0)
    field = lf.fields.UNet2dField(
        (2, 4, 3), 2, channels=8, multipliers=(1, 2), blocks=1, dropout=dropout
    )
    flow = lf.Flow(field, lf.Midpoint(2))
    settings = {"epochs": 6, "batch_size": 16, "learning_rate": 1e-2, **options}
    return flow, lf.fit(flow, *maps(), standardize=True, **settings)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_unet_of_maps_learns_too(precision):
    flow, losses = train_maps(precision=precision, ema=0.99)
    assert losses[-1] < 0.75 * losses[0]
    assert all(p.is_contiguous() and p.dtype == torch.float32 for p in flow.parameters())
    assert not flow.training
    z, _ = maps()
    channels = z.reshape(-1, 2)
    torch.testing.assert_close(flow.scale[:2], channels.std(0, correction=0))
    assert torch.equal(flow.scale, flow.scale[:2].repeat(12))


@pytest.mark.parametrize(("precision", "dropout"), [("float32", 0.5), ("bfloat16", 0.0)])
def test_maps_resume_exactly(precision, dropout, tmp_path):
    options = {"precision": precision, "dropout": dropout, "ema": 0.99, "epochs": 3}

    def stop(epoch):
        if epoch.number == 1:
            raise KeyboardInterrupt

    whole, losses = train_maps(**options)
    path = tmp_path / "c.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train_maps(**options, checkpoint=path, on_epoch=stop)
    resumed, again = train_maps(**options, checkpoint=path)
    assert again == losses
    assert_equal_flows(whole, resumed)


@pytest.mark.parametrize("stop_at", [0.2, 0.5, 0.55, 0.95])
def test_maps_resume_exactly_within_an_epoch(stop_at, tmp_path, monkeypatch):
    """Three epochs of four steps, a checkpoint after each; what is dropped out is drawn."""
    for name, value in (("MAX_LOST_SECONDS", 0), ("PROGRESS_SECONDS", 0), ("MIN_COST", math.inf)):
        monkeypatch.setattr(f"leapfactual.training.loop.{name}", value)
    options, seen = {"dropout": 0.5, "ema": 0.99, "epochs": 3}, []

    def stop(share):
        if share > stop_at:
            raise KeyboardInterrupt

    whole, losses = train_maps(**options)
    path = tmp_path / "c.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train_maps(**options, checkpoint=path, on_progress=stop)
    resumed, again = train_maps(**options, checkpoint=path, on_progress=seen.append)
    assert seen == [(n + 1) / 12 for n in range(round(12 - len(seen)), 12)]
    assert len(seen) <= 12 - int(12 * stop_at), "nothing was done again"
    assert again == losses
    assert_equal_flows(whole, resumed)


def test_dropout_leaves_other_random_numbers_alone():
    torch.manual_seed(7)
    wanted = torch.rand(3)
    field = lf.fields.UNet2dField((2, 4, 3), 2, channels=8, blocks=1, dropout=0.5)
    torch.manual_seed(7)
    lf.fit(lf.Flow(field, lf.Midpoint(2)), *maps(), epochs=1, standardize=True)
    assert torch.equal(torch.rand(3), wanted)


def test_mixed_precision_is_close_and_is_remembered(tmp_path):
    path = tmp_path / "c.safetensors"
    _, losses = train(epochs=3)
    mixed, others = train(epochs=3, precision="bfloat16", checkpoint=path)
    assert others == pytest.approx(losses, rel=0.02)
    assert others != losses
    assert all(p.dtype == torch.float32 for p in mixed.parameters())
    with pytest.raises(InputError, match=r"written with \{'precision': 'bfloat16'\}"):
        train(epochs=3, checkpoint=path)


def state(flow):
    return {k: v.clone() for k, v in flow.state_dict().items()}


def assert_equal_flows(a, b):
    for name, value in state(a).items():
        assert torch.equal(value.nan_to_num(), state(b)[name].nan_to_num()), name


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ema": 0.0, "optimizer": "adamw", "weight_decay": 0.01, "schedule": "constant"},
        {"balanced": True, "standardize": True},
    ],
)
def test_interrupted_and_resumed_training_gives_equal_weights(tmp_path, options):
    whole, losses = train(epochs=4, **options)

    class Stop(Exception):
        pass

    def stop(epoch):
        if epoch.number == 2:
            raise Stop

    with pytest.raises(Stop):
        train(epochs=4, checkpoint=tmp_path / "c.safetensors", on_epoch=stop, **options)
    seen = []
    resumed, again = train(
        epochs=4, checkpoint=tmp_path / "c.safetensors", on_epoch=seen.append, **options
    )
    assert [e.number for e in seen] == [3, 4]
    assert again == losses
    assert_equal_flows(whole, resumed)
    finished, _ = train(epochs=4, checkpoint=tmp_path / "c.safetensors", **options)
    assert_equal_flows(whole, finished)
    assert [p.name for p in tmp_path.iterdir()] == ["c.safetensors"]


def test_a_checkpoint_of_another_flow_is_refused(tmp_path):
    path = tmp_path / "c.safetensors"
    lf.fit(lf.Flow(lf.MLPField(2, 3)), Z, P, epochs=1, checkpoint=path)
    for other in (
        lf.Flow(lf.MLPField(2, 3, activation="tanh")),
        lf.Flow(lf.MLPField(2, 3), soft=True),
        lf.Flow(lf.MLPField(2, 3), sigma=0.1),
    ):
        with pytest.raises(InputError, match="was written with .*'flow'"):
            lf.fit(other, Z, P, epochs=1, checkpoint=path)


def test_latents_and_answers_may_come_with_a_graph():
    z = Z.clone().requires_grad_() * 1.0
    flow = lf.Flow(lf.MLPField(2, 3), soft=True)
    assert (
        len(lf.fit(flow, z, (P.clone().requires_grad_() * 1.0), epochs=2, standardize=True)) == 2
    )


def test_same_seed_same_weights_other_seed_other_weights():
    assert_equal_flows(train(epochs=2)[0], train(epochs=2)[0])
    a, b = train(epochs=2)[0], train(epochs=2, seed=1)[0]
    assert not torch.equal(a.field.layers[0].weight, b.field.layers[0].weight)


def test_a_field_of_ones_own_is_asked_how_it_was_built_only_for_a_checkpoint(tmp_path):
    class Linear(lf.MLPField):
        def config(self):
            raise InputError("nobody knows")

    assert len(lf.fit(lf.Flow(Linear(2, 3)), Z, P, epochs=1)) == 1
    with pytest.raises(InputError, match="nobody knows"):
        lf.fit(lf.Flow(Linear(2, 3)), Z, P, epochs=1, checkpoint=tmp_path / "c.safetensors")


def test_a_training_of_tied_weights_resumes(tmp_path):
    class Tied(lf.MLPField):
        def __init__(self):
            super().__init__(2, 3, width=8, depth=2)
            self.again = torch.nn.Linear(2, 2)
            self.also = torch.nn.Linear(2, 2)
            self.also.weight = self.again.weight

        def config(self):
            return {}

        def forward(self, t, z, c):
            return super().forward(t, z, c) + self.also(self.again(z))

    def train_tied(on_epoch=None):
        torch.manual_seed(0)
        flow = lf.Flow(Tied())
        path = tmp_path / "c.safetensors"
        lf.fit(flow, Z, P, epochs=2, ema=0.9, checkpoint=path, on_epoch=on_epoch)
        return flow

    def stop(_):
        raise KeyboardInterrupt

    expected = train_tied()
    (tmp_path / "c.safetensors").unlink()
    with pytest.raises(KeyboardInterrupt):
        train_tied(stop)
    assert_equal_flows(train_tied(), expected)


def test_ema_averages_the_weights():
    plain, smooth = train(epochs=3, ema=0.0)[0], train(epochs=3, ema=0.999)[0]
    assert not torch.equal(plain.field.layers[0].weight, smooth.field.layers[0].weight)


def test_balanced_training_sees_every_class_equally_often():
    z, y = ORACLE.sample(1000)
    rows = torch.cat([torch.arange(1000), torch.arange(1000, 1020), torch.arange(2000, 2020)])
    seen = torch.zeros(3)
    flow = lf.Flow(lf.MLPField(2, 3))
    loss = flow.loss

    def spy(z, c, *rest):
        seen.add_(c.sum(0))
        return loss(z, c, *rest)

    flow.loss = spy
    lf.fit(flow, z[rows], flow.one_hot(y[rows]), epochs=3, balanced=True)
    assert (seen / seen.sum() - 1 / 3).abs().max() < 0.05


def test_standardized_latents_train_alike_at_any_size():
    z, y = ORACLE.sample(1000, seed=1)

    def losses(z):
        torch.manual_seed(0)
        flow = lf.Flow(lf.MLPField(2, 3))
        return lf.fit(flow, z, flow.one_hot(y), epochs=5, standardize=True)

    assert losses(1000 * z + 500) == pytest.approx(losses(z), rel=1e-3)


def test_latents_of_another_scale_than_the_base_are_warned_about():
    z, y = ORACLE.sample(50)
    flow = lf.Flow(lf.MLPField(2, 3))
    with pytest.warns(UserWarning, match="times as wide as the flow's base.*standardize=True"):
        lf.fit(flow, 1000 * z, flow.one_hot(y), epochs=1)


def test_soft_flows_train_on_probabilities():
    z, _y = ORACLE.sample(50)
    flow = lf.Flow(lf.MLPField(2, 3), soft=True)
    seen = []
    loss = flow.loss
    flow.loss = lambda z, c, *rest: seen.append(c) or loss(z, c, *rest)
    lf.fit(flow, z, ORACLE.classifier(z), epochs=1)
    assert not torch.isin(torch.cat(seen), torch.tensor([0.0, 1.0])).all()


def test_embed_streams_and_keeps_order():
    z, _ = ORACLE.sample(10)
    whole = lf.embed(z, Identity(), ORACLE.classifier, batch_size=4)
    streamed = lf.embed((part for part in z.split(7)), Identity(), ORACLE.classifier)
    for a, b in zip(whole, streamed, strict=True):
        torch.testing.assert_close(a, b)
    assert torch.equal(whole[0], z)


def test_embed_asks_about_the_original_images():
    class Blurring(Identity):
        def encode(self, x):
            return x.mean(1, keepdim=True)

    seen = []
    z, _ = ORACLE.sample(4)
    lf.embed(z, Blurring(), lambda x: seen.append(x) or ORACLE.classifier(x))
    assert torch.equal(torch.cat(seen), z)


Z, Y = ORACLE.sample(4)
P = torch.eye(3)[Y]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"z": Z[:5]}, r"must have shape \(5, 3\).*got \(12, 3\)"),
        ({"z": Z[:0], "p": P[:0]}, "at least one latent, got none"),
        ({"z": Z.double()}, r"type of the flow, torch\.float32, got torch\.float64"),
        ({"z": Z * torch.nan}, "NaN or infinite"),
        ({"p": P[:, :2]}, r"got \(12, 2\)"),
        ({"p": P * 3}, "sums off"),
        ({"p": -P}, "values down to -1"),
        ({"epochs": 0}, "`epochs` must be .* got 0"),
        ({"batch_size": 0}, "`batch_size` must be .* got 0"),
        ({"learning_rate": 0}, "`learning_rate` must be positive, got 0"),
        ({"weight_decay": -1}, "`weight_decay` must be at least 0, got -1"),
        ({"optimizer": "sgd"}, r"`optimizer` must be one of \['adam', 'adamw'\], got 'sgd'"),
        ({"schedule": "step"}, "`schedule` must be one of"),
        ({"coupling": "random"}, "`coupling` must be one of"),
        ({"ema": 1.0}, r"`ema` must be in \[0, 1\), got 1.0"),
        ({"precision": "float16"}, r"one of \['float32', 'bfloat16'\], got 'float16'"),
    ],
)
def test_wrong_input_is_named(change, message):
    arguments = {"z": Z, "p": P, **change}
    with pytest.raises(InputError, match=message):
        lf.fit(lf.Flow(lf.MLPField(2, 3)), **arguments)


def test_training_that_diverges_is_named():
    with pytest.raises(TrainingError, match="training diverged in epoch 1.*Lower learning_rate"):
        lf.fit(lf.Flow(lf.MLPField(2, 3)), Z, P, epochs=1, batch_size=2, learning_rate=1e25)


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    path = tmp_path / "c.safetensors"
    flow = lf.Flow(lf.MLPField(2, 3))
    lf.fit(flow, Z, P, epochs=2, checkpoint=path)
    with pytest.raises(
        InputError, match=r"written with \{'seed': 0\}, but this call has \{'seed': 1\}"
    ):
        lf.fit(flow, Z, P, epochs=2, seed=1, checkpoint=path)
    with pytest.raises(InputError, match="written for other data"):
        lf.fit(flow, Z + 1, P, epochs=2, checkpoint=path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="no whole safetensors file.*Delete it"):
        lf.fit(flow, Z, P, epochs=2, checkpoint=path)
    save_file({"z": Z}, path)
    with pytest.raises(InputError, match="must be a `leapfactual checkpoint 3`, got `None`"):
        lf.fit(flow, Z, P, epochs=2, checkpoint=path)
    for settings in ("{", "[]", "null"):
        metadata = {"format": "leapfactual checkpoint 1", "settings": settings, "data": ""}
        save_file({"z": Z}, path, metadata)
        with pytest.raises(InputError, match="Delete it to start anew|delete the checkpoint"):
            lf.fit(flow, Z, P, epochs=2, checkpoint=path)


@pytest.mark.parametrize(
    ("images", "generator", "classifier", "message"),
    [
        (Z[:0], Identity(), ORACLE.classifier, "at least one image, got none"),
        ([], Identity(), ORACLE.classifier, "at least one image, got none"),
        ([Z, Z.numpy()], Identity(), ORACLE.classifier, "must be a torch tensor .* got ndarray"),
        ([Z, Z * torch.inf], Identity(), ORACLE.classifier, "NaN or infinite"),
        (Z, Identity(), lambda x: ORACLE.classifier(x)[:1], r"must have shape \(12, 3\)"),
        (Z, Identity(), lambda x: ORACLE.classifier(x) + 1, "sums off"),
        (
            Z,
            Identity(),
            lambda x: ORACLE.classifier(x).argmax(1),
            r"rows .* \(12, K\), got \(12,\)",
        ),
        (Z, Identity(), lambda x: [0] * len(x), "got list"),
        ([(Z, Y)], Identity(), ORACLE.classifier, "got tuple.*x for x, _ in loader"),
    ],
)
def test_wrong_images_and_answers_are_named(images, generator, classifier, message):
    with pytest.raises(InputError, match=message):
        lf.embed(images, generator, classifier)


def test_a_classifier_that_changes_its_number_of_classes_is_named():
    sizes = iter([3, 2])
    with pytest.raises(InputError, match=r"must have shape \(6, 3\).*got \(6, 2\)"):
        lf.embed(Z, Identity(), lambda x: torch.eye(next(sizes))[[0] * len(x)], batch_size=6)


def test_a_generator_that_changes_the_type_of_latents_is_named():
    class Fickle(lf.generators.Identity):
        calls = 0

        def encode(self, x):
            self.calls += 1
            return x if self.calls == 1 else x.double()

    with pytest.raises(InputError, match="latents were torch.float32 at first and are torch.floa"):
        lf.embed(torch.zeros(4, 2), Fickle(), lambda x: torch.eye(2)[[0] * len(x)], 2)
