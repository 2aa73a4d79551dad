"""The baselines keep the same contract and do what the paper says of them."""

import pytest
import torch
from torch import nn

import leapfactual as lf
from leapfactual.baselines import ConditionalGenerator, Optimization
from leapfactual.errors import InputError, NeedsGradient
from leapfactual.generators import VAE, Identity
from leapfactual.testing import GaussianOracle, check_explainer
from leapfactual.training import fit_generator

ORACLE = GaussianOracle(torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 1.5]]), 0.7)


def optimization(**options):
    settings = {"steps": 100, "learning_rate": 0.05, **options}
    return Optimization(Identity(), ORACLE.classifier, 3, **settings)


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
def test_optimization_reaches_the_target_and_keeps_the_contract(loss):
    z, y = ORACLE.sample(5)
    check_explainer(optimization(loss=loss), z, (y + 1) % 3)
    found = optimization(loss=loss).explain(z, (y + 1) % 3)
    assert found.valid.double().mean() > 0.8
    assert (found.queries == 102).all()
    assert (found.nfe == 0).all()


def test_cross_entropy_does_not_vanish_where_squared_error_does():
    """Far on the wrong side the probabilities are flat; their logarithm is not."""
    z = torch.tensor([[-6.0, 0.0]])
    options = {"steps": 200, "distance_weight": 0.0}
    assert not optimization(loss="squared", **options).explain(z, 1).valid.all()
    assert optimization(loss="cross_entropy", **options).explain(z, 1).valid.all()


def test_the_distance_holds_the_counterfactual_back():
    z, y = ORACLE.sample(20)
    target = (y + 1) % 3
    free, held = (optimization(distance_weight=w).explain(z, target) for w in (0.0, 0.2))
    assert (held.z_counterfactual - z).abs().mean() < (free.z_counterfactual - z).abs().mean()


def test_the_anchor_is_the_input_or_the_reconstruction():
    class Shifting(Identity):
        def decode(self, z):
            return z + 0.5

    z = torch.zeros(1, 2)
    flat = lambda x: torch.full((len(x), 3), 1 / 3) + 0 * x.sum(1, keepdim=True)  # noqa: E731
    for anchor, expected in (("input", -0.5), ("reconstruction", 0.0)):
        explainer = Optimization(
            Shifting(), flat, 3, steps=300, learning_rate=0.01, distance_weight=1.0, anchor=anchor
        )
        found = explainer.explain(z, 1).z_counterfactual
        torch.testing.assert_close(found, torch.full((1, 2), expected), rtol=0, atol=0.03)


def test_a_classifier_without_gradient_is_named():
    z, _ = ORACLE.sample(1)
    labels = lf.classifiers.from_labels(lambda x: ORACLE.classifier(x).argmax(1), 3)
    with pytest.raises(NeedsGradient, match="LeapFactual explains such classifiers"):
        Optimization(Identity(), labels, 3).explain(z, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": "hinge"}, "`loss` must be one of"),
        ({"anchor": "nothing"}, "`anchor` must be one of"),
        ({"steps": 0}, "`steps` must be"),
    ],
)
def test_wrong_settings_are_named(change, message):
    with pytest.raises(InputError, match=message):
        optimization(**change)


@pytest.fixture(scope="module")
def bars():
    """Images of an upright or a lying bar: the class; where it stands: the rest."""
    torch.manual_seed(0)
    x = torch.zeros(600, 1, 8, 8)
    y = torch.arange(600) % 2
    for n in range(600):
        at = int(torch.randint(1, 7, ()))
        if y[n]:
            x[n, 0, at] = 1
        else:
            x[n, 0, :, at] = 1
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    return x, y, lf.classifiers.from_logits(network.eval().requires_grad_(False))


def test_a_conditional_generator_swaps_the_class_and_keeps_the_contract(bars):
    x, y, classifier = bars
    torch.manual_seed(0)
    cvae = VAE((1, 8, 8), 4, classes=2, widths=(16, 32))
    losses = fit_generator(cvae, x, classifier(x), epochs=30, batch_size=64)
    assert losses[-1] < 0.5 * losses[0]
    explainer = ConditionalGenerator(cvae, classifier)
    check_explainer(explainer, x[:6], 1 - y[:6])
    found = explainer.explain(x[:100], 1 - y[:100])
    assert found.valid.double().mean() > 0.8
    assert torch.equal(found.z, found.z_counterfactual)
    already = explainer.explain(x[:4], y[:4])
    assert set(already.status) == {"already there"}


def test_optimization_works_through_a_vae(bars):
    x, y, classifier = bars
    torch.manual_seed(0)
    vae = VAE((1, 8, 8), features=4, widths=(16, 32))
    fit_generator(vae, x[:300], epochs=15, batch_size=64)
    explainer = Optimization(vae, classifier, 2, steps=100, loss="cross_entropy")
    found = explainer.explain(x[:20], 1 - y[:20])
    assert found.valid.double().mean() > 0.8
    assert not found.counterfactual.requires_grad


def test_conditions_must_fit_the_images(bars):
    x, _, _ = bars
    cvae = VAE((1, 8, 8), 4, classes=2, widths=(16, 32))
    with pytest.raises(InputError, match=r"`conditions` must have shape \(600, 2\)"):
        fit_generator(cvae, x, torch.eye(2), epochs=1)


def test_a_generator_without_classes_is_no_conditional_one(bars):
    _, _, classifier = bars
    with pytest.raises(InputError, match="must be conditional, got VAE.*classes=K"):
        ConditionalGenerator(VAE((1, 8, 8), 4), classifier)
