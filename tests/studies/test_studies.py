"""Each recipe from end to end, at a small size."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits

import leapfactual as lf
from leapfactual.bases import Uniform
from leapfactual.data import Dataset
from leapfactual.errors import InputError, MissingExtra
from leapfactual.jobs import plans
from leapfactual.metrics import LPIPS
from leapfactual.pretrained import load
from leapfactual.report import tables
from studies import morpho_mnist, squares
from studies.morpho_mnist import comparison, effects, figures, shipping, training
from studies.morpho_mnist.shipping import ship


def quiet(done, message):
    pass


@pytest.fixture(scope="module")
def exact():
    return lf.Flow(squares.SquaresField(), lf.RK4(200), base=Uniform())


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    out = tmp_path_factory.mktemp("squares")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(squares, "POINTS", 1000)
        rows = squares.run(out, squares.Settings(steps=2100, runs=2), "test", quiet)
    return out, {(r.setting, r.method, r.metric): r for r in rows}


def test_the_exact_velocity_keeps_the_relative_position(exact):
    shift, reached = squares.replacement(exact)
    assert shift < 1e-3
    assert reached > 0.999


def test_the_exact_velocity_has_the_papers_coefficients(exact):
    assert squares.blending(exact, 1.0) == pytest.approx((0, 0), abs=1e-3)
    assert squares.injection(exact, 1.0) == pytest.approx((0.5, 0), abs=1e-3)


def test_the_exact_velocity_is_the_mean_over_pairs():
    """Monte Carlo: among pairs that pass near z at time t, the mean of z1 - z0 is the velocity."""
    t, z = 0.7, torch.tensor([[0.1, -0.05]])
    z0 = Uniform().sample_like(torch.empty(400_000, 2))
    z1 = 0.25 + 0.5 * Uniform().sample_like(z0)
    near = ((1 - t) * z0 + t * z1 - z).abs().max(1).values < 0.02
    v = squares.SquaresField()(torch.tensor(t), z, torch.eye(4)[3:])
    torch.testing.assert_close((z1 - z0)[near].mean(0), v[0], rtol=0, atol=0.02)


@pytest.mark.slow
def test_the_trained_flow_is_near_the_exact_one(study):
    _, rows = study
    assert rows["replacement, 1 / 1", "trained flow", "shift of r, in sides"].mean < 0.1
    assert rows["replacement, 1 / 1", "trained flow", "target reached"].mean > 0.8
    assert rows["blending, 1 / 1", "trained flow", "alpha"].mean == pytest.approx(0, abs=0.1)
    assert rows["injection, 0 / 1", "trained flow", "alpha"].mean == pytest.approx(0.5, abs=0.1)
    assert rows["path, 8 × 0.1 / 0.1, 3 × 0 / 0.1", "trained flow", "target reached"].mean > 0.95
    alphas = [
        rows[f"blending, {g:g} / {g:g}", "trained flow", "alpha"].mean for g in squares.GAMMAS
    ]
    assert alphas == sorted(alphas, reverse=True), "a larger step leaves less of the source"


@pytest.mark.slow
def test_the_study_writes_its_numbers(study):
    out, rows = study
    written = json.loads((out / "squares.json").read_text())
    assert set(written) == {"rows", "seed", "command", "hardware", "versions"}
    assert set(written["rows"][0]) == {
        "setting",
        "method",
        "metric",
        "mean",
        "sem",
        "runs",
        "paper",
    }
    assert len(written["rows"]) == len(rows)
    assert {p.name for p in out.iterdir()} == {
        "squares.json",
        "squares.md",
        "squares.png",
        "alphas.png",
        "squares.safetensors",
    }
    assert lf.Flow.load(out / "squares.safetensors").base == Uniform()


@pytest.mark.slow
def test_an_interrupted_study_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(squares, "POINTS", 400)
    monkeypatch.setattr(squares, "EXACT_STEPS", 10)
    monkeypatch.setattr(squares, "draw_panels", lambda flow, path: None)

    class Stop(Exception):
        pass

    def stop(done, message):
        if done > 0.6:
            raise Stop

    settings = squares.Settings(steps=600, runs=2)
    whole = squares.run(tmp_path / "whole", settings, "test", quiet)
    with pytest.raises(Stop):
        squares.run(tmp_path / "stopped", settings, "test", stop)
    steps = []
    rows = squares.run(
        tmp_path / "stopped", settings, "test", lambda done, message: steps.append(done)
    )
    assert min(steps) > 0.6
    assert [r.mean for r in rows] == [r.mean for r in whole]


def test_says_what_to_install_before_any_work(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"pip install 'leapfactual\[plot\]'"):
        squares.run(tmp_path / "out", squares.SMOKE, "test", quiet)
    assert not (tmp_path / "out").exists()


def test_rows_have_mean_and_standard_error():
    row = tables.row("s", "m", "x", [1.0, 2.0, 3.0], paper=1.5)
    assert (row.mean, row.runs, row.paper) == (2.0, 3, 1.5)
    assert row.sem == pytest.approx(1 / 3**0.5)
    assert tables.row("s", "m", "x", [1.0]).sem is None
    assert "| 2.0000 ± 0.5774 | 1.5000 |" in tables.markdown([row])


# -- Morpho-MNIST --


@pytest.fixture(scope="module")
def small_digits():
    """The 8 × 8 digits of scikit-learn, enlarged to MNIST's size."""
    data = load_digits()
    images = torch.tensor(data.images / 16).float()[:, None]
    images = torch.nn.functional.interpolate(images, (28, 28), mode="bilinear").clamp(0, 1)
    names = tuple("0123456789")
    labels = torch.tensor(data.target)
    return Dataset(images[:600], labels[:600], names), Dataset(images[600:], labels[600:], names)


TINY = morpho_mnist.Settings(
    classifier_epochs=2,
    vae_epochs=2,
    flow_epochs=1,
    oracle_epochs=1,
    our_flow_epochs=1,
    opt_steps=3,
    train_digits=600,
    test_digits=12,
    effect_digits=6,
    runs=1,
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the latents spread")
def test_morpho_mnist_from_end_to_end(small_digits, tmp_path, monkeypatch, quick_shipping):
    monkeypatch.setattr("leapfactual.metrics.morphology.TIE_BREAKS", 1)
    steps = []
    options = {"lpips": LPIPS(), "command": "test", "device": "cpu", "workers": 1}

    def show(done, message):
        steps.append(done)

    rows = morpho_mnist.run(tmp_path, *small_digits, TINY, progress=show, **options)
    assert steps == sorted(steps)
    assert steps[-1] == pytest.approx(1)
    drawn = {path.name for path in tmp_path.glob("*.png")}
    assert drawn == {"methods.png", "targets.png", "failures.png", "effects.png"}
    written = json.loads((tmp_path / "morpho-mnist.json").read_text())
    assert len(written["rows"]) == len(rows)
    found = {(r.setting, r.method, r.metric): r for r in rows}
    methods = {(s, m) for s, m, _ in found}
    expected = comparison.explainers(training.untrained(), TINY)
    assert methods >= set(expected)
    for setting, method in expected:
        for metric in (
            *comparison.COLUMNS,
            "validity",
            "oracle",
            "L1",
            "LPIPS",
            "COUT",
            "stability",
        ):
            assert (setting, method, metric) in found
        for metric in ("ACC", "L1", "oracle", "D(area)", "LPIPS"):
            assert found[setting, method, metric].runs == 1
    assert found["paper", "LeapFactual", "ACC"].paper == 0.9868
    assert found["paper", "LeapFactual_R", "D(height)"].paper == 0.0303
    assert found["paper", "Opt-based", "validity"].paper is None

    numbers = json.loads((tmp_path / "seed-0.json").read_text())
    for name in ("CGM-based, paper", "probes"):
        del numbers[name]
    (tmp_path / "seed-0.json").write_text(json.dumps(numbers))
    weights = (tmp_path / "seed-0.safetensors").stat().st_mtime_ns
    for name in ("draw", "ship"):
        monkeypatch.setattr(morpho_mnist, name, lambda *_: None)
    again = morpho_mnist.run(tmp_path, *small_digits, TINY, progress=show, **options)
    before, after = (
        [r.mean for r in part if r.metric != "milliseconds"] for part in (rows, again)
    )
    assert after == pytest.approx(before, nan_ok=True)
    assert (tmp_path / "seed-0.safetensors").stat().st_mtime_ns == weights, "not trained again"
    with pytest.raises(
        InputError, match=r"holds a study with other settings, or .*\({'opt_steps': 3}\)"
    ):
        morpho_mnist.run(
            tmp_path, *small_digits, replace(TINY, opt_steps=4), progress=show, **options
        )


def test_one_method_is_measured_and_drawn(small_digits, tmp_path, monkeypatch):
    monkeypatch.setattr("leapfactual.metrics.morphology.TIE_BREAKS", 1)
    parts = training.untrained()
    for module in parts.modules().values():
        module.eval().requires_grad_(False)
    x, target = small_digits[1].images[:4], torch.arange(4)
    compared = comparison.Comparison(parts, x, target, replace(TINY, effect_digits=2), LPIPS(), 1)
    numbers = compared.measure("ours", "LeapFactual_R")
    assert {key.rsplit(" | ", 1)[0] for key in numbers} == {"ours | LeapFactual_R"}
    metrics = {key.rsplit(" | ", 1)[1] for key in numbers}
    assert metrics >= {*comparison.COLUMNS, "oracle", "L1", "LPIPS", "COUT", "stability"}
    one = {("paper", "CGM-based"): compared.explainers["paper", "CGM-based"]}
    figures.draw_methods(parts, one, x[:1], tmp_path / "methods.png")
    assert (tmp_path / "methods.png").stat().st_size > 1000


@pytest.mark.filterwarnings("ignore:the latents spread")
def test_an_interrupted_training_goes_on_with_the_same_weights(small_digits, tmp_path):
    train, _ = small_digits
    settings = replace(TINY, train_digits=100)

    class Stop(Exception):
        pass

    def stop(what):
        if what == "vae":
            raise Stop

    def begin(name, say):
        x, y = train.images[:100], train.labels[:100]
        return training.train(3, x, y, settings, tmp_path / name, say)

    with pytest.raises(Stop):
        begin("stopped", stop)
    whole, resumed = begin("whole", lambda what: None), begin("stopped", lambda what: None)
    for part in ("oracle", "cvae", "flow", "ot_flow"):
        one, two = (getattr(p, part).state_dict() for p in (whole, resumed))
        for name, value in one.items():
            torch.testing.assert_close(value, two[name], rtol=0, atol=0, equal_nan=True)
    (tmp_path / "stopped").write_bytes(b"cut off")
    with pytest.raises(InputError, match="stopped is no whole safetensors file"):
        begin("stopped", lambda what: None)


def test_the_parts_are_the_papers():
    made = training.untrained()
    assert made.flow.soft
    assert made.flow.field.activation == "selu"
    assert made.flow.solver == lf.Dopri5(1e-4, 1e-4)
    assert (lf.blend(15, 0.1), lf.inject(5, lift=0.0, land=0.1)) == comparison.PAPER_RELIABLE_PLAN
    assert made.network(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    moved = training.random_affine(torch.rand(3, 1, 28, 28), torch.Generator().manual_seed(0))
    assert moved.shape == (3, 1, 28, 28)


@pytest.mark.slow
def test_probes_read_what_is_there_and_nothing_else():
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (2000,), generator=g)
    classes = torch.nn.functional.one_hot(labels, 10).float()
    style = torch.randn(2000, 2, generator=g)
    with_class, without = torch.cat([style, classes], 1), style
    assert effects.class_accuracy(with_class, labels) > 0.95
    assert effects.class_accuracy(without, labels) < 0.45
    shapes = torch.stack([style[:, 0] + 5 * labels, 3.0 * labels], 1)
    shapes[:, 1] += torch.randn(2000, generator=g)
    read = effects.explained_variance(without, classes, shapes)
    assert read[0] > 0.9
    assert read[1] < 0.1, "noise within classes; the class itself does not count"


def test_what_the_package_ships_is_small_and_fits_together():
    folder = Path(lf.__file__).parent / "shipped"
    sizes = {p.name: p.stat().st_size for p in folder.rglob("*") if p.is_file()}
    assert sizes.pop("faces.safetensors") < 7e6
    assert sum(sizes.values()) < 1.6e6
    shipped = load()
    assert shipped.bundle.recognizes(shipped.classifier)
    assert not shipped.bundle.recognizes(shipped.oracle)
    digits = shipped.digits
    assert digits.labels.bincount().tolist() == [20] * 10
    for classifier, least in ((shipped.classifier, 0.95), (shipped.oracle, 0.98)):
        right = classifier(digits.images).argmax(1) == digits.labels
        assert right.double().mean() > least
    assert lf.agreement(digits.images, shipped.bundle.generator, shipped.classifier).overall > 0.9


@pytest.fixture
def quick_shipping(monkeypatch):
    """Chooses the front on a few digits, with a few plans."""
    monkeypatch.setattr(shipping, "FRONT_DIGITS", 4)
    monkeypatch.setattr(shipping, "FAST_PLAN_DIGITS", 4)
    monkeypatch.setattr(shipping, "TYPICALITY_DIGITS", 40)
    monkeypatch.setattr(plans, "INJECTION_COUNTS", (1,))


@pytest.mark.slow
def test_what_a_study_ships_can_be_loaded(small_digits, tmp_path, quick_shipping):
    made = training.untrained()
    for module in made.modules().values():
        module.eval()
    ship(made, *small_digits, tmp_path)
    found = load(tmp_path)
    assert len(found.digits) == 200
    z = torch.randn(3, 32)
    torch.testing.assert_close(
        found.bundle.generator.decode(z), made.vae.decode(z), atol=1e-2, rtol=0
    )
    assert found.bundle.recognizes(found.classifier)


def test_a_study_says_which_extras_it_lacks(monkeypatch):
    monkeypatch.setitem(sys.modules, "ot", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"leapfactual\[plot,transport\]"):
        morpho_mnist.require()
