"""The study of galaxies: its parts against exact answers, and the whole at a small size."""

import json
import shutil
import sys
from dataclasses import replace

import pytest
import torch

from leapfactual.data import Dataset
from leapfactual.errors import InputError, MissingExtra
from leapfactual.metrics import LPIPS
from studies import galaxies
from studies.galaxies import improvement, tables, training, vgg

SMALL = galaxies.Settings(
    generator_steps=6,
    weak_epochs=10,
    strong_epochs=4,
    least_steps=2,
    flow_steps=20,
    widths=(4, 8),
    width=4,
    tested=6,
    n_b=(2, 4),
    blending=4,
    n_i=(0, 2),
    injections=2,
    gentle=1,
    swept=(1, 2),
    runs=2,
    retrained=1,
)


def quiet(done, message):
    pass


def bars(n):
    """Bright bars in three places."""
    y = torch.arange(n) % 3
    x = 0.1 * torch.rand(n, 1, 32, 32, generator=torch.Generator().manual_seed(n))
    for image, place in zip(x, (8 + 6 * y).tolist(), strict=True):
        image[:, 8:24, place : place + 6] += 0.8
    return Dataset(x, y, ("left", "middle", "right"))


def study(out, settings=SMALL, progress=quiet, name="bars", sets=None):
    return galaxies.run(
        out,
        name,
        *(sets or (bars(30), bars(12))),
        settings,
        lpips=LPIPS(),
        command="test",
        device="cpu",
        progress=progress,
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out, shares = tmp_path_factory.mktemp("galaxies"), []
    rows = study(out, progress=lambda share, what: shares.append(share))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    return out, rows


@pytest.fixture
def undrawn(monkeypatch):
    """Leaves out the figures, which take as long as the rest."""
    monkeypatch.setattr(galaxies, "draw", lambda *_: None)


# -- the classifier --


def test_the_network_is_vgg16():
    network = vgg.vgg16(3, 10)
    kinds = [type(layer) for layer in network.get_submodule("features")]
    assert kinds.count(torch.nn.Conv2d) == kinds.count(torch.nn.BatchNorm2d) == 13
    assert kinds.count(torch.nn.MaxPool2d) == 5
    convolutions = 14_714_688
    norms = 2 * (2 * 64 + 2 * 128 + 3 * 256 + 6 * 512)
    head = 512 * 10 + 10
    assert sum(p.numel() for p in network.parameters()) == convolutions + norms + head


def test_imagenet_needs_torchvision_before_any_work(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    with pytest.raises(MissingExtra, match="do without --imagenet"):
        study(tmp_path / "out", replace(SMALL, imagenet=True))
    assert not (tmp_path / "out").exists()


def test_imagenet_weights_fit_colour_and_grey(monkeypatch):
    colour, grey = vgg.vgg16(3, 2), vgg.vgg16(1, 2)
    torch.manual_seed(1)
    weights = vgg.vgg16(3, 1000).get_submodule("features").state_dict()
    monkeypatch.setattr(vgg, "imagenet", lambda: {k: v.clone() for k, v in weights.items()})
    vgg.from_imagenet(colour)
    vgg.from_imagenet(grey)
    x = torch.rand(2, 1, 32, 32)
    features = [network.get_submodule("features") for network in (colour, grey)]
    torch.testing.assert_close(features[0](x.expand(-1, 3, -1, -1)), features[1](x))


def test_a_classifier_learns_and_does_the_same_again():
    data = bars(60)
    y = (data.labels == 1).long()
    x = data.images.expand(-1, 3, -1, -1) * (1 - 0.8 * y[:, None, None, None])

    def learnt(steps):
        torch.manual_seed(0)
        network = vgg.vgg16(3, 2, width=4)
        vgg.train_classifier(network, x, y, steps=steps, batch_size=20, learning_rate=3e-3)
        return vgg.BatchedClassifier(network, batch_size=7)

    assert torch.equal(learnt(3)(x), learnt(3)(x))
    found = learnt(60)
    assert not any(p.requires_grad for p in found.network.parameters())
    torch.testing.assert_close(found(x), vgg.BatchedClassifier(found.network)(x))
    assert (found(x).argmax(1) == y).double().mean() > 0.9


# -- the whole --


@pytest.mark.slow
def test_the_study_writes_its_numbers(done):
    out, rows = done
    written = json.loads((out / "galaxies.json").read_text())
    assert len(written["rows"]) == len(rows)
    assert written["command"] == "test"
    assert "cores" in written["hardware"]
    found = {(r.setting, r.method, r.metric): r for r in rows}
    assert found["bars: N_i, 1 / 1.025", "0", "ACC_r"].paper == 0.4738
    assert found["bars: N_i, 1 / 1.025", "0", "ACC_r"].runs == 2
    assert found["bars: N_i, 0.5 / 0.6", "0", "ACC_r"].paper is None
    assert found["bars: retraining", "reliable CE, 100%", "AUC"].paper == 0.9793
    assert found["bars: retraining", "20 %", "ACC"].runs == 1
    led = [found["bars: retraining", method, "ACC"].mean for method in ("CE, 50%", "20 %, longer")]
    lead = found["bars: retraining", "CE, 50%", "lead in ACC"]
    assert lead.mean == pytest.approx(led[0] - led[1])
    assert found["bars: γ_i,land, γ_i,lift 1", "1.025, N_i = 2", "ACC"].runs == 1
    for metric in tables.SHOWN:
        assert 0 <= found["bars: N_b", "4", metric].mean < 200, metric
    pictures = {path.name for path in (out / "bars").glob("*.*g")}
    assert pictures == {
        "reconstructions.jpg",
        "targets.jpg",
        "failures.jpg",
        "curves.png",
        "retraining.png",
    }


@pytest.mark.slow
def test_no_injection_is_the_blended_one(done):
    found = {(r.setting, r.method, r.metric): r.mean for r in done[1]}
    for metric in (*tables.SHOWN, "typical"):
        blended = found["bars: N_b", "4", metric]
        assert found["bars: N_i, 1 / 1.025", "0", metric] == pytest.approx(blended, rel=1e-6)


@pytest.mark.slow
def test_gains_are_against_the_same_runs_baseline(done):
    found = {(r.method, r.metric): r.mean for r in done[1] if r.setting == "bars: retraining"}
    for method, metric in found:
        if not metric.startswith(("gain", "lead")) and method != "20 %":
            gain = found[method, f"gain in {metric}"]
            assert gain == pytest.approx(found[method, metric] - found["20 %", metric], abs=1e-9)


@pytest.mark.slow
def test_an_interrupted_study_goes_on(done, tmp_path):
    class Stop(Exception):
        pass

    said = []

    def stop(share, what):
        said.append(what)
        if "run 2 of 2: flow" in what:
            raise Stop

    out = tmp_path / "out"
    shutil.copytree(done[0], out)
    (out / "bars" / "seed-1.json").unlink()
    with pytest.raises(Stop):
        study(out, progress=stop)
    assert not (out / "bars" / "seed-1.json").exists()
    rows = study(out, progress=lambda share, what: said.append(what))
    assert (out / "bars" / "seed-1.json").exists()
    assert not any("run 1 of 2" in what or "generator" in what for what in said)
    assert [r.mean for r in rows] == pytest.approx(
        [r.mean for r in done[1]], abs=1e-6, nan_ok=True
    )


@pytest.mark.slow
def test_several_data_sets_share_a_folder(done, tmp_path, undrawn):
    shutil.copytree(done[0], tmp_path / "out")
    rows = study(tmp_path / "out", replace(SMALL, runs=1, retrained=0), name="other")
    assert {r.setting.split(":")[0] for r in rows} == {"bars", "other"}
    assert [r for r in rows if r.setting.startswith("bars")] == done[1]


@pytest.mark.slow
def test_other_settings_need_another_folder(done):
    with pytest.raises(InputError, match="other settings.*flow_steps.*--out"):
        study(done[0], replace(SMALL, flow_steps=30))


@pytest.mark.slow
def test_more_retraining_is_done_when_it_is_asked_for(tmp_path, undrawn):
    def retrained(rows):
        return {r.runs for r in rows if r.setting == "bars: retraining"}

    once = replace(SMALL, runs=1)
    assert retrained(study(tmp_path, replace(once, retrained=0))) == set()
    assert retrained(study(tmp_path, once)) == {1}


def test_what_cannot_be_split_is_said_before_any_work(tmp_path):
    data = bars(10)
    few = Dataset(data.images, torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 1, 2]), data.classes)
    with pytest.raises(InputError, match="the class right has 1 image"):
        study(tmp_path / "out", sets=(few, data))
    wide = Dataset(data.images[:, :, :, :20], data.labels, data.classes)
    with pytest.raises(InputError, match="square, at least 32 pixels a side, got 32 × 20"):
        study(tmp_path / "out", sets=(wide, data))
    assert not (tmp_path / "out").exists()


# -- what is trained on --


def made(n, classes=3):
    """Counterfactuals whose filters follow from their number."""
    rows = torch.arange(n)
    return improvement.Counterfactuals(
        torch.rand(n, 1, 32, 32), rows % classes, rows > 0, rows > 1, rows > 2, rows > 3
    )


def test_arms_differ_in_what_is_added_alone():
    data = bars(12)
    train_set = training.Galaxies(data.images, data.images, data.labels, data.classes)
    few = torch.tensor([0, 1, 2, 3])
    ways = {name: made(12) for name in ("CE", "reliable CE", "gentle CE")}
    found = improvement.arms(ways, few, train_set, rare=2, seed=0)
    for share, count in (("10%", 1), ("50%", 6), ("100%", 12)):
        standard, reliable = found[f"CE, {share}"], found[f"reliable CE, {share}"]
        assert len(standard.keep) == count
        assert torch.equal(standard.keep, reliable.keep), "the same galaxies to the same classes"
        assert standard.longer == 1
    sizes = {name: len(arm.more[1]) for name, arm in found.items() if arm.more is not None}
    assert sizes["reliable CE, agreed"] == 9
    assert sizes["reliable CE, right"] == 8
    assert sizes["gentle CE, typical"] == 10
    assert sizes["gentle CE, 100%"] == 12
    _, rare = found["gentle CE of the rarest class, agreed"].more
    assert rare.tolist() == [2, 2, 2, 2][: len(rare)]
    assert found["20 %, longer"].more is None
    assert found["20 %, longer"].longer == 1 + 12 / 8
    assert data.labels[found["repeated"].rows].bincount().tolist() == [2, 2, 2]


def test_galaxies_are_seen_as_often_whatever_is_added(monkeypatch):
    data, seen = bars(12), []
    train_set = training.Galaxies(data.images, data.images, data.labels, data.classes)
    monkeypatch.setattr(
        training, "train_classifier", lambda net, x, y, steps, seed: seen.append((len(x), steps))
    )
    rows = torch.arange(6)
    pace = train_set.pace(rows, epochs=256, least=2)
    train_set.learn(rows, None, SMALL, steps=pace, seed=0)
    more = data.images, data.labels
    train_set.learn(rows, more, SMALL, steps=pace, seed=0)
    assert seen == [(12, 24), (24, 48)]
    assert train_set.pace(rows, epochs=1, least=30) == 30 / 12


def test_a_class_without_test_galaxies_does_not_count():
    data = bars(9)
    y = data.labels % 2
    right = torch.eye(3)[y]
    found = improvement.evaluate(lambda x: right, data.images, y, rare=2)
    assert found["ACC"] == found["balanced ACC"] == 1
    assert found["ACC on the rarest class"] != found["ACC on the rarest class"]


def test_rare_classes_are_repeated_until_all_are_equal():
    y = torch.tensor([0, 0, 0, 0, 0, 1, 1, 2])
    rows = improvement.oversample(torch.arange(8), y)
    assert y[rows].bincount().tolist() == [5, 5, 5]
