import dataclasses
import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import leapfactual as lf
from leapfactual.data import packages
from leapfactual.errors import InputError, MissingData
from leapfactual.generators import GAN, Identity, Inversion
from leapfactual.metrics import (
    LPIPS,
    METRICS,
    cout,
    diversity,
    evaluate,
    frechet,
    judged,
    morphology,
    morphology_errors,
    morphometrics,
    perceptual,
    realism,
    relative_error,
    stability,
)
from leapfactual.metrics.lpips import BACKBONES
from leapfactual.testing import GaussianOracle


def arrays(backbone, seed=0):
    """Random weights in the layout of the published file."""
    rng = np.random.default_rng(seed)
    body, heads, before, n = {}, {}, 3, 0
    for layer in BACKBONES[backbone]:
        if layer == "*":
            kernel = rng.random((1, 1, before, 1), dtype=np.float32)
            heads[f"NetLinLayer_{len(heads)}"] = {"Conv_0": {"kernel": kernel}}
        elif len(layer) == 4:
            after, size = layer[:2]
            kernel = rng.standard_normal((size, size, before, after), dtype=np.float32) / size
            body[f"Conv_{n}"] = {"kernel": kernel, "bias": np.zeros(after, dtype=np.float32)}
            before, n = after, n + 1
    return {"Body_0": body, **heads}


def by_hand(weights, x, other):
    """AlexNet's LPIPS, written out."""
    mean, std = torch.tensor([-0.030, -0.088, -0.188]), torch.tensor([0.458, 0.448, 0.450])
    total = 0
    a, b = ((2 * v - 1 - mean[:, None, None]) / std[:, None, None] for v in (x, other))
    for n, (stride, padding, pool) in enumerate(
        [(4, 2, 0), (1, 2, 1), (1, 1, 1), (1, 1, 0), (1, 1, 0)]
    ):
        kernel = torch.tensor(weights["Body_0"][f"Conv_{n}"]["kernel"]).permute(3, 2, 0, 1)
        if pool:
            a, b = F.max_pool2d(a, 3, 2), F.max_pool2d(b, 3, 2)
        a, b = (F.conv2d(v, kernel, stride=stride, padding=padding).relu() for v in (a, b))
        head = torch.tensor(weights[f"NetLinLayer_{n}"]["Conv_0"]["kernel"]).flatten()
        gap = a / (a.norm(dim=1, keepdim=True) + 1e-10) - b / (b.norm(dim=1, keepdim=True) + 1e-10)
        total = total + (gap.square() * head[:, None, None]).sum(1).mean((1, 2))
    return total


def test_lpips_against_a_second_implementation():
    weights = arrays("alexnet")
    metric = LPIPS("alexnet")
    metric.read(weights)
    x, other = torch.rand(3, 3, 64, 64), torch.rand(3, 3, 64, 64)
    torch.testing.assert_close(metric(x, other), by_hand(weights, x, other), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backbone", ["alexnet", "vgg16"])
def test_lpips_is_a_symmetric_distance_of_single_pairs(backbone):
    metric = LPIPS(backbone)
    x, other = torch.rand(2, 1, 64, 64), torch.rand(2, 1, 64, 64)
    assert torch.equal(metric(x, x), torch.zeros(2))
    torch.testing.assert_close(metric(x, other), metric(other, x))
    torch.testing.assert_close(
        metric(x[:1], other[:1]), metric(x, other)[:1], rtol=1e-3, atol=1e-5
    )
    assert (metric(x, other) > 0).all()


class Fire(torch.nn.Module):
    """As in torchvision, with its names."""

    def __init__(self, before, squeezed, expanded):
        super().__init__()
        self.squeeze = torch.nn.Conv2d(before, squeezed, 1)
        self.expand1x1 = torch.nn.Conv2d(squeezed, expanded, 1)
        self.expand3x3 = torch.nn.Conv2d(squeezed, expanded, 3, padding=1)

    def forward(self, x):
        x = self.squeeze(x).relu()
        return torch.cat([self.expand1x1(x).relu(), self.expand3x3(x).relu()], 1)


def test_lpips_with_squeezenet_against_a_second_implementation():
    torch.manual_seed(0)
    pool = torch.nn.MaxPool2d(3, 2, ceil_mode=True)
    layers = [torch.nn.Conv2d(3, 64, 3, 2), torch.nn.ReLU(), pool]
    layers += [Fire(64, 16, 64), Fire(128, 16, 64), pool, Fire(128, 32, 128), Fire(256, 32, 128)]
    layers += [
        pool,
        Fire(256, 48, 192),
        Fire(384, 48, 192),
        Fire(384, 64, 256),
        Fire(512, 64, 256),
    ]
    features = torch.nn.Sequential(*layers)
    ends, sizes = (1, 4, 7, 9, 10, 11, 12), (64, 128, 256, 384, 384, 512, 512)
    heads = {f"lin{n}.model.1.weight": torch.rand(1, c, 1, 1) for n, c in enumerate(sizes)}
    metric = LPIPS("squeezenet")
    state = {f"features.{k}": v for k, v in features.state_dict().items()}
    metric.read_torch(dict(sorted(state.items())), heads)
    x, other = torch.rand(2, 3, 64, 64), torch.rand(2, 3, 64, 64)
    shift = torch.tensor([-0.030, -0.088, -0.188])[:, None, None]
    scale = torch.tensor([0.458, 0.448, 0.450])[:, None, None]
    total, pair = torch.zeros(2), [(2 * v - 1 - shift) / scale for v in (x, other)]
    with torch.no_grad():
        for n, layer in enumerate(features):
            pair = [layer(v) for v in pair]
            if n in ends:
                a, b = (v / (v.square().sum(1, keepdim=True).sqrt() + 1e-10) for v in pair)
                w = heads[f"lin{ends.index(n)}.model.1.weight"]
                total += (w * (a - b).square()).sum(1).mean((1, 2))
    torch.testing.assert_close(metric(x, other), total)
    with pytest.raises(MissingData, match="read_torch"):
        LPIPS.load("squeezenet")
    with pytest.raises(InputError, match="do not fit a squeezenet"):
        metric.read_torch({}, heads)


def test_lpips_reads_its_weights_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LEAPFACTUAL_CACHE", str(tmp_path))
    with pytest.raises(MissingData, match="leapfactual data get lpips-alexnet"):
        LPIPS.load()
    content = pickle.dumps(arrays("alexnet"), protocol=4)
    (tmp_path / "lpips-alexnet").mkdir()
    (tmp_path / "lpips-alexnet" / "alexnet.ckpt").write_bytes(content)
    member = packages.Member("w/alexnet.ckpt", hashlib.sha256(content).hexdigest())
    card = dataclasses.replace(packages.CARDS["lpips-alexnet"], members=(member,))
    monkeypatch.setitem(packages.CARDS, "lpips-alexnet", card)
    expected = LPIPS("alexnet")
    expected.read(arrays("alexnet"))
    x, other = torch.rand(2, 3, 64, 64), torch.rand(2, 3, 64, 64)
    assert torch.equal(LPIPS.load("alexnet")(x, other), expected(x, other))
    with pytest.raises(InputError, match="do not fit a vgg16"):
        LPIPS("vgg16").read(arrays("alexnet"))


def test_lpips_guides_an_inversion():
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(4, 3 * 8 * 8),
        torch.nn.Tanh(),
        torch.nn.Unflatten(1, (3, 8, 8)),
        torch.nn.Upsample(64),
    )
    metric = LPIPS("alexnet")
    how = Inversion(steps=150, perceptual=metric, perceptual_weight=0.1)
    gan = GAN(network, 4, (3, 64, 64), inversion=how)
    z = gan.sample(3, seed=5)
    found = gan.invert(gan.decode(z).detach())
    assert found.error.max() < 0.02
    assert found.perceptual.max() < 0.01
    torch.testing.assert_close(found.z, z, rtol=0, atol=0.1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LPIPS("resnet"), "`backbone` must be one of"),
        (lambda: LPIPS()(torch.rand(1, 3, 64, 64), torch.rand(1, 3, 32, 32)), "of one shape"),
        (lambda: LPIPS()(torch.rand(1, 3, 8, 8), torch.rand(1, 3, 8, 8)), "too small for alexnet"),
    ],
)
def test_wrong_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


# -- morphometrics --

REFERENCE = dict(np.load(Path(__file__).parent / "data" / "morphometrics.npz"))
DIGITS = torch.tensor(REFERENCE["images"] / 255).float()[:, None]


@pytest.fixture(scope="module")
def measured():
    return morphometrics(DIGITS)


@pytest.mark.parametrize("name", morphology.NAMES)
def test_morphometrics_agree_with_the_authors_implementation(measured, name):
    """The reference breaks ties of the medial axis by chance: hence 2 % for the length."""
    error = (measured[name].numpy() - REFERENCE[name]) / REFERENCE[name]
    tolerance = 0.02 if name == "length" else 0.01
    assert (abs(error) < tolerance).mean() >= 0.95
    assert abs(np.median(error)) < 0.005


def test_a_bar_has_the_measures_of_a_bar():
    x = torch.zeros(1, 1, 28, 28)
    x[..., 4:24, 12:16] = 1
    found = {name: value.item() for name, value in morphometrics(x).items()}
    assert found["area"] == pytest.approx(80, rel=0.03)
    assert found["thickness"] == pytest.approx(4, rel=0.15)
    forks = 16 + 4 * 2 * 2**0.5
    assert found["length"] == pytest.approx(forks, rel=0.15), "the axis forks to the four corners"
    assert found["slant"] == pytest.approx(0, abs=1e-9)
    assert found["height"] == pytest.approx(20, rel=0.05)
    assert 3.9 < found["width"] < 5.5, "with the soft edges of enlarging"


def test_shearing_changes_the_slant_and_keeps_the_height(measured):
    x = torch.zeros(2, 1, 28, 28)
    for y in range(4, 24):
        shift = (y - 14) // 4
        x[0, 0, y, 12 - shift : 16 - shift] = 1
        x[1, 0, y, 12 + shift : 16 + shift] = 1
    found = morphometrics(x)
    assert found["slant"][0].item() == pytest.approx(np.arctan(0.25), abs=0.03)
    assert found["slant"][1].item() == pytest.approx(-np.arctan(0.25), abs=0.03)
    assert found["width"][0].item() < 6, "along the shear; across it would be 9"


def test_medial_axes_agree_with_scikit_image_up_to_ties():
    skimage = pytest.importorskip("skimage.morphology")
    ndimage = pytest.importorskip("scipy.ndimage")
    shapes = morphology.enlarge(DIGITS[:10, 0].double()) >= 0.5
    distance = morphology.border_distance(shapes)
    mask, ours = shapes.numpy(), morphology.thinning(shapes, distance)(0).numpy()
    for n in range(10):
        expected = ndimage.distance_transform_edt(mask[n])
        np.testing.assert_allclose(distance[n], expected, rtol=1e-12)
    for n in range(10):
        theirs = skimage.medial_axis(mask[n], rng=0)
        assert abs(int(ours[n].sum()) - int(theirs.sum())) <= 0.1 * theirs.sum()
        near = ndimage.binary_dilation(theirs, iterations=2)
        assert (ours[n] & ~near).sum() <= 0.05 * ours[n].sum()
        assert (
            ndimage.label(ours[n], np.ones((3, 3)))[1]
            == ndimage.label(mask[n], np.ones((3, 3)))[1]
        )


def test_morphometrics_of_a_batch_are_those_of_its_images_and_of_many_workers(
    measured, monkeypatch
):
    monkeypatch.setattr(morphology, "PIXELS", {"cpu": 7 * 28**2})
    for found in (morphometrics(DIGITS[:20]), morphometrics(DIGITS[:20], workers=2)):
        for name in morphology.NAMES:
            torch.testing.assert_close(found[name], measured[name][:20])


def test_images_without_contrast_have_no_measures():
    found = morphometrics(torch.full((2, 1, 28, 28), 0.5))
    assert all(value.isnan().all() for value in found.values())
    assert morphometrics(torch.zeros(0, 1, 28, 28))["area"].shape == (0,)


def test_relative_error_is_absolute():
    true = {name: torch.tensor([-2.0]) for name in morphology.NAMES}
    found = relative_error({name: torch.tensor([-1.0]) for name in morphology.NAMES}, true)
    assert found["slant"].item() == 0.5


def test_colour_has_no_morphometrics():
    with pytest.raises(InputError, match="grey images"):
        morphometrics(torch.rand(1, 3, 28, 28))


# -- the table --


PLAIN = (lf.blend(25, 0.1),)


def explained(n=30, plan=PLAIN, target=1):
    oracle = GaussianOracle(torch.tensor([[-2.0, 0.0], [2.0, 0.0]]), 0.5)
    z, _ = oracle.sample(n)
    return lf.LeapFactual(Identity(), oracle.classifier, oracle.flow(), plan).explain(z, target)


def test_validity_counts_only_what_had_to_change():
    found = explained(plan=[lf.blend(1, 0.01)])
    scores = evaluate(found, ["ACC", "validity"])
    assert scores["ACC"].mean == 0.5
    assert scores["validity"].mean == 0
    assert scores["validity"].values.isnan().sum() == 30


def test_distances_by_hand():
    found = explained()
    gap = found.counterfactual - found.reconstruction
    scores = evaluate(found, ["L1", "L2", "PSNR", "sparsity"])
    assert scores["L1"].mean == pytest.approx(gap.abs().mean().item())
    assert scores["L2"].mean == pytest.approx(gap.square().mean(1).sqrt().mean().item())
    assert scores["sparsity"].mean == pytest.approx((gap.abs() > 0.1).double().mean().item())
    values = scores["L1"].values
    assert scores["L1"].sem == pytest.approx(values.std().item() / len(values) ** 0.5)


def test_auc_agrees_with_scikit_learn_and_its_error_comes_from_resampling():
    sklearn = pytest.importorskip("sklearn.metrics")
    found = explained(plan=[lf.blend(5, 0.1)], target=torch.arange(60) % 2)
    score = evaluate(found, ["AUC"])["AUC"]
    expected = sklearn.roc_auc_score(found.target, found.probabilities[:, 1])
    assert score.mean == pytest.approx(expected, abs=1e-6)
    assert 0 < score.sem < 0.2
    assert score.values is None


def test_auc_leaves_out_classes_that_no_image_has_as_target():
    found = explained(plan=[lf.blend(5, 0.1)], target=torch.arange(60) % 2)
    wider = torch.nn.functional.pad(found.probabilities, (0, 3))
    padded = dataclasses.replace(found, probabilities=wider)
    expected = evaluate(found, ["AUC"])["AUC"].mean
    assert evaluate(padded, ["AUC"])["AUC"].mean == pytest.approx(expected, abs=1e-6)
    assert np.isnan(evaluate(explained(), ["AUC"])["AUC"].mean)


def test_ssim_agrees_with_scikit_image():
    skimage = pytest.importorskip("skimage.metrics")
    found = explained(2)
    a = torch.rand(4, 1, 32, 32)
    b = (a + 0.2 * torch.randn(4, 1, 32, 32)).clamp(0, 1)
    found = dataclasses.replace(found, counterfactual=a, reconstruction=b)
    options = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
    expected = np.mean(
        [
            skimage.structural_similarity(x[0].numpy(), y[0].numpy(), data_range=1.0, **options)
            for x, y in zip(a, b, strict=True)
        ]
    )
    assert evaluate(found, ["SSIM"])["SSIM"].mean == pytest.approx(expected, abs=0.02)


def test_a_judge_is_asked_about_the_counterfactuals():
    found = explained()
    strict = judged(lambda x: torch.eye(2)[(x[:, 0] > 2.0).long()])
    share = (found.counterfactual[found.source != 1][:, 0] > 2.0).double().mean().item()
    assert evaluate(found, [strict])["oracle"].mean == pytest.approx(share)


def digits_explained(n=12):
    """Digits whose left half was exchanged for the next digit's."""
    found = explained(n // 2)
    x, y = DIGITS[:n], DIGITS[1 : n + 1].clone()
    y[..., 14:] = x[..., 14:]
    return dataclasses.replace(found[torch.arange(n)], x=x, reconstruction=x, counterfactual=y)


def test_cout_rewards_pixels_that_turn_the_answer_early():
    """The answer depends on one pixel: that it changes most, or hardly, makes the difference."""

    def classifier(x):
        p = x[:, 0, 3, 3]
        return torch.stack([1 - p, p], 1)

    x, y = torch.zeros(2, 1, 10, 10), torch.zeros(2, 1, 10, 10)
    y[:, 0] = 0.5
    y[0, 0, 3, 3], y[1, 0, 3, 3] = 1.0, 0.4
    found = explained(1)[torch.tensor([0, 0])]
    found = dataclasses.replace(found, x=x, reconstruction=x, counterfactual=y)
    early, late = cout(classifier).function(found).tolist()
    assert early == pytest.approx(1 - 2 * 0.5 / 50, abs=1e-6), "1 from the first step on"
    assert late == pytest.approx(-1 + 2 * 0.5 * 0.4 / 50, abs=1e-6), "turned at the last step"
    nothing = dataclasses.replace(found, source=found.target)
    assert cout(classifier).function(nothing).isnan().all()
    with pytest.raises(InputError, match="pastes pixels"):
        cout(classifier).function(explained())


def test_perceptual_distances_are_to_the_reconstruction_or_the_input():
    found = digits_explained()
    seen = []

    def distance(a, b):
        seen.append(a.shape)
        return (a - b).abs().mean((1, 2, 3))

    near = evaluate(found, [perceptual(distance)])["LPIPS"]
    assert set(seen) == {(12, 1, 64, 64)}
    assert near.mean > 0
    same = dataclasses.replace(found, x=found.counterfactual)
    both = evaluate(same, [perceptual(distance), perceptual(distance, "x")])
    assert both["LPIPS to input"].mean == 0
    assert both["LPIPS"].mean == near.mean
    with pytest.raises(InputError, match="two metrics called `LPIPS`"):
        evaluate(found, [perceptual(distance), perceptual(distance)])
    with pytest.raises(InputError, match="`against` must be"):
        perceptual(distance, "input")
    with pytest.raises(InputError, match="not for rows"):
        evaluate(explained(), [perceptual(distance)])


def test_the_frechet_distance_is_that_of_gaussians():
    g = torch.Generator().manual_seed(0)
    a, b = (torch.randn(4000, 3, generator=g, dtype=torch.float64) for _ in range(2))
    assert frechet(a, 2 * b + 1).item() == pytest.approx(3 * (1 + 1), rel=0.1)
    linalg = pytest.importorskip("scipy.linalg")
    mix = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 0.5], [0.0, 0.0, 3.0]], dtype=torch.float64)
    c = b @ mix
    one, two = np.cov(a.T), np.cov(c.T)
    root = linalg.sqrtm(one @ two).real
    expected = np.trace(one + two - 2 * root) + ((a.mean(0) - c.mean(0)) ** 2).sum().item()
    assert frechet(a, c).item() == pytest.approx(expected, rel=1e-6)
    assert frechet(a[:1], b).isnan()


def test_realism_counts_valid_counterfactuals_and_resamples():
    found = explained()
    real = found.counterfactual[found.valid]
    score = evaluate(found, [realism(lambda x: x, real)])["Fréchet"]
    assert score.mean == pytest.approx(0, abs=1e-9)
    assert 0 < score.sem < 1
    assert evaluate(found, [realism(lambda x: x, real + 3)])["Fréchet"].mean > 9
    nowhere = dataclasses.replace(found, label=1 - found.target)
    assert np.isnan(evaluate(nowhere, [realism(lambda x: x, real)])["Fréchet"].mean)


def l1(a, b):
    return (a - b).abs().mean(1)


def test_diversity_is_the_mean_distance_of_pairs():
    one, two = explained(plan=[lf.blend(20, 0.05)]), explained(plan=[lf.blend(5, 0.5)])
    apart = l1(one.counterfactual, two.counterfactual)
    torch.testing.assert_close(diversity([one, two], l1), apart)
    torch.testing.assert_close(diversity([one, two, two], l1), 2 / 3 * apart)
    with pytest.raises(InputError, match="at least two explanations, got 1"):
        diversity([one], l1)


def test_stability_is_the_way_that_counterfactuals_move():
    oracle = GaussianOracle(torch.tensor([[-2.0, 0.0], [2.0, 0.0]]), scale=0.5)
    x, _ = oracle.sample(10)
    explainer = lf.LeapFactual(Identity(), oracle.classifier, oracle.flow(), [lf.blend(20, 0.1)])
    found = explainer.explain(x, 1)
    still, moved = (stability(explainer, found, l1, noise=n) for n in (0.0, 0.05))
    assert not still.any()
    assert 0 < moved.mean() < 0.5


def test_every_metric_says_which_way_is_better_and_unknown_ones_are_named():
    assert {m.name for m in METRICS.values() if m.higher_is_better} >= {"ACC", "AUC", "SSIM"}
    assert not METRICS["L1"].higher_is_better
    with pytest.raises(InputError, match="`beauty` is not a metric: there are ACC"):
        evaluate(explained(), ["beauty"])


def test_morphology_errors_of_an_unchanged_digit_are_zero():
    found = dataclasses.replace(explained(2), counterfactual=DIGITS[:4], reconstruction=DIGITS[:4])
    assert all(not values.any() for values in morphology_errors(found).values())
