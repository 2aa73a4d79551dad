"""Each recipe from end to end, at a small size."""

import json
import sys
from dataclasses import replace

import pytest
import torch
from sklearn.datasets import load_digits

import leapfactual as lf
from leapfactual.bases import Uniform
from leapfactual.data import Dataset
from leapfactual.errors import InputError, MissingExtra
from leapfactual.studies import morpho_mnist, results, squares


def quiet(done, message):
    pass


@pytest.fixture(scope="module")
def exact():
    return lf.Flow(squares.SquaresField(), lf.RK4(200), base=Uniform())


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    out = tmp_path_factory.mktemp("squares")
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


def test_an_interrupted_study_goes_on(study, tmp_path):
    class Stop(Exception):
        pass

    def stop(done, message):
        if done > 0.4:
            raise Stop

    settings = squares.Settings(steps=2100, runs=2)
    with pytest.raises(Stop):
        squares.run(tmp_path, settings, "test", stop)
    steps = []
    rows = squares.run(tmp_path, settings, "test", lambda done, message: steps.append(done))
    assert min(steps) > 0.4
    assert [r.mean for r in rows] == [r.mean for r in study[1].values()]


def test_says_what_to_install_before_any_work(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"pip install 'leapfactual\[plot\]'"):
        squares.run(tmp_path / "out", squares.QUICK, "test", quiet)
    assert not (tmp_path / "out").exists()


def test_rows_have_mean_and_standard_error():
    row = results.row("s", "m", "x", [1.0, 2.0, 3.0], paper=1.5)
    assert (row.mean, row.runs, row.paper) == (2.0, 3, 1.5)
    assert row.sem == pytest.approx(1 / 3**0.5)
    assert results.row("s", "m", "x", [1.0]).sem is None
    assert "| 2.0000 ± 0.5774 | 1.5000 |" in results.markdown([row])


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
    judge_epochs=1,
    our_flow_epochs=1,
    opt_steps=3,
    train_digits=600,
    test_digits=12,
    runs=2,
)


@pytest.mark.filterwarnings("ignore:the latents spread")
def test_morpho_mnist_from_end_to_end(small_digits, tmp_path, monkeypatch):
    monkeypatch.setattr("leapfactual.metrics.morphology.TIE_BREAKS", 1)
    steps = []
    options = {"command": "test", "device": "cpu", "workers": 1}

    def show(done, message):
        steps.append(done)

    rows = morpho_mnist.run(tmp_path, *small_digits, TINY, progress=show, **options)
    assert steps == sorted(steps)
    assert steps[-1] == pytest.approx(1)
    written = json.loads((tmp_path / "morpho-mnist.json").read_text())
    assert len(written["rows"]) == len(rows)
    found = {(r.setting, r.method, r.metric): r for r in rows}
    methods = {(s, m) for s, m, _ in found}
    assert methods == {
        ("paper", "Opt-based"),
        ("paper", "CGM-based"),
        ("paper", "LeapFactual"),
        ("paper", "LeapFactual_R"),
        ("ours", "Opt-based, cross-entropy"),
        ("ours", "LeapFactual"),
        ("ours", "LeapFactual_R"),
    }
    for setting, method in methods:
        for metric in (*morpho_mnist.COLUMNS, "validity", "oracle", "L1"):
            assert found[setting, method, metric].runs == 2
    assert found["paper", "LeapFactual", "ACC"].paper == 0.9868
    assert found["paper", "LeapFactual_R", "D(height)"].paper == 0.0303
    assert found["paper", "Opt-based", "validity"].paper is None

    (tmp_path / "seed-1.json").unlink()
    weights = (tmp_path / "seed-1.safetensors").stat().st_mtime_ns
    again = morpho_mnist.run(tmp_path, *small_digits, TINY, progress=show, **options)
    assert [r.mean for r in again] == pytest.approx([r.mean for r in rows], nan_ok=True)
    assert (tmp_path / "seed-1.safetensors").stat().st_mtime_ns == weights, "not trained again"
    with pytest.raises(
        InputError, match=r"holds a study with other settings \({'opt_steps': 3}\)"
    ):
        morpho_mnist.run(
            tmp_path, *small_digits, replace(TINY, opt_steps=4), progress=show, **options
        )


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
        return morpho_mnist.train(3, x, y, settings, tmp_path / name, say)

    with pytest.raises(Stop):
        begin("stopped", stop)
    whole, resumed = begin("whole", lambda what: None), begin("stopped", lambda what: None)
    for name, value in whole.flow.field.state_dict().items():
        assert torch.equal(value, resumed.flow.field.state_dict()[name]), name


def test_the_parts_are_the_papers():
    parts = morpho_mnist.untrained()
    assert parts.flow.soft
    assert parts.flow.field.activation == "selu"
    assert parts.flow.solver == lf.Dopri5(1e-4, 1e-4)
    assert (lf.blend(15, 0.1), lf.inject(5, lift=0.0, land=0.1)) == morpho_mnist.PLAN_R
    assert parts.network(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    moved = morpho_mnist.wobble(torch.rand(3, 1, 28, 28), torch.Generator().manual_seed(0))
    assert moved.shape == (3, 1, 28, 28)
