import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

import leapfactual as lf
from leapfactual.errors import InputError
from leapfactual.generators import Identity
from leapfactual.metrics import (
    METRICS,
    cout,
    diversity,
    evaluate,
    morphology_errors,
    oracle_validity,
    perceptual,
    realism,
    stability,
)
from leapfactual.testing import GaussianOracle

REFERENCE = dict(np.load(Path(__file__).parent / "morphometrics.npz"))
DIGITS = torch.tensor(REFERENCE["images"] / 255).float()[:, None]
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
    found = dataclasses.replace(found, x=b, counterfactual=a, reconstruction=b)
    options = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
    expected = np.mean(
        [
            skimage.structural_similarity(x[0].numpy(), y[0].numpy(), data_range=1.0, **options)
            for x, y in zip(a, b, strict=True)
        ]
    )
    assert evaluate(found, ["SSIM"])["SSIM"].mean == pytest.approx(expected, abs=0.02)


def test_an_oracle_is_asked_about_the_counterfactuals():
    found = explained()
    strict = oracle_validity(lambda x: torch.eye(2)[(x[:, 0] > 2.0).long()])
    share = (found.counterfactual[found.source != 1][:, 0] > 2.0).double().mean().item()
    assert evaluate(found, [strict])["oracle"].mean == pytest.approx(share)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda x: None, "must be floating-point probabilities of shape .* got NoneType"),
        (lambda x: torch.ones(len(x)), "must have shape"),
        (lambda x: torch.eye(3)[[0] * len(x)], "must have shape .* 2"),
        (lambda x: torch.full((len(x), 2), torch.nan), "must be finite"),
        (lambda x: torch.full((len(x), 2), 4.0), "must be probabilities"),
    ],
)
def test_what_an_oracle_answers_is_checked(answer, message):
    with pytest.raises(InputError, match=f"`what the second answers` {message}"):
        evaluate(explained(), [oracle_validity(answer, "the second")])


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


def test_realism_counts_valid_counterfactuals_and_resamples():
    found = explained()
    real = found.counterfactual[found.valid]
    score = evaluate(found, [realism(lambda x: x, real)])["Fréchet"]
    assert score.mean == pytest.approx(0, abs=1e-9)
    assert 0 < score.sem < 1
    assert evaluate(found, [realism(lambda x: x, real + 3)])["Fréchet"].mean > 9
    nowhere = dataclasses.replace(found, label=1 - found.target)
    assert np.isnan(evaluate(nowhere, [realism(lambda x: x, real)])["Fréchet"].mean)


def test_realism_gives_images_in_range_to_the_network():
    found = digits_explained()
    over = dataclasses.replace(found, counterfactual=3 * found.counterfactual - 1)

    def features(x):
        assert x.min() >= 0
        assert x.max() <= 1
        return x.flatten(2).mean(2)

    assert over.valid.any()
    assert evaluate(over, [realism(features, found.x)])["Fréchet"].mean > 0


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
    x = DIGITS[:4]
    found = dataclasses.replace(explained(2), x=x, counterfactual=x, reconstruction=x)
    assert all(not values.any() for values in morphology_errors(found).values())
