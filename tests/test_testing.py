"""The oracle checked by other means, and the contracts on parts that break them."""

import pytest
import torch

import leapfactual as lf
from leapfactual.errors import ContractError, InputError
from leapfactual.generators import Identity
from leapfactual.testing import GaussianOracle, check_classifier, check_explainer, check_generator

ORACLE = GaussianOracle(torch.tensor([[-1.0, 0.0], [1.0, 0.5]]).double(), 0.6)


def test_the_velocity_is_the_mean_of_z1_minus_z0():
    """Monte Carlo: among pairs that pass near z at time t, the mean of z1 - z0 is the velocity."""
    n, t = 400_000, 0.6
    z0 = torch.randn(n, 2).double()
    z1 = ORACLE.means[1] + 0.6 * torch.randn(n, 2).double()
    zt = (1 - t) * z0 + t * z1
    z = torch.tensor([[0.7, 0.2]]).double()
    near = (zt - z).norm(dim=1) < 0.05
    v = ORACLE.flow().field(torch.tensor(t), z, torch.eye(2).double()[1:])
    torch.testing.assert_close((z1 - z0)[near].mean(0), v[0], rtol=0, atol=0.08)


@pytest.mark.parametrize("scale", [0.3, 1.0, 2.0])
def test_special_cases_of_the_closed_form(scale):
    oracle = GaussianOracle(ORACLE.means, scale)
    z, y = torch.randn(4, 2).double(), torch.tensor([0, 0, 1, 1])
    target = 1 - y
    assert oracle.shift(1.0) == pytest.approx(1)
    step = oracle.means[target] - oracle.means[y]
    torch.testing.assert_close(oracle.leap(z, y, target, lift=1, land=1), z + step)
    blended = oracle.leap(z, y, target, lift=0.2, land=0.2)
    torch.testing.assert_close(blended, z + 0.2 * oracle.shift(0.2) * step)
    injected = oracle.leap(z, y, target, lift=0, land=0.2)
    torch.testing.assert_close(
        injected, scale**0.2 * z + 0.2 * oracle.shift(0.2) * oracle.means[target]
    )
    guided = oracle.leap(z, y, target, lift=1, land=1, guidance=2.5)
    torch.testing.assert_close(guided, z + 2.5 * step)
    guided = oracle.leap(z, y, target, lift=0.2, land=0.2, guidance=2.5)
    torch.testing.assert_close(guided, z + 2.5 * 0.2 * oracle.shift(0.2) * step)


def test_density_and_posterior_agree_with_torch():
    z, y = ORACLE.sample(5)
    normal = torch.distributions.Normal(ORACLE.means[y], 0.6)
    torch.testing.assert_close(ORACLE.log_prob(z, y), normal.log_prob(z).sum(1))
    joint = torch.stack([ORACLE.log_prob(z, torch.full_like(y, k)) for k in (0, 1)], dim=1)
    torch.testing.assert_close(ORACLE.classifier(z), joint.softmax(1))


def test_wrong_oracles_are_named():
    with pytest.raises(InputError, match=r"`means` must have shape \(K, D\), got \(2,\)"):
        GaussianOracle(torch.zeros(2), 0.5)
    with pytest.raises(InputError, match="`scale` must be positive, got 0"):
        GaussianOracle(torch.zeros(2, 2), 0)


class Part(Identity):
    def __init__(self, encode=lambda x: x.flatten(1), decode=lambda z: z.reshape(-1, 1, 2, 2)):
        self.encode, self.decode = encode, decode


IMAGES = torch.rand(3, 1, 2, 2)


def test_good_parts_pass():
    check_generator(Part(), IMAGES)
    check_generator(Identity(), torch.randn(3, 2))
    check_classifier(ORACLE.classifier, torch.randn(3, 2).double(), classes=2)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (Part(encode=lambda x: x), "one row per image"),
        (Part(encode=lambda x: (x, x)), "encode must give a tensor; got tuple"),
        (Part(encode=lambda x: x.flatten(1) * torch.nan), "NaN or infinite latents"),
        (Part(decode=lambda z: z), r"decode must give \(3, 1, 2, 2\) back; got \(3, 4\)"),
        (Part(decode=lambda z: 3 * z.reshape(-1, 1, 2, 2)), r"images in \[0, 1\]"),
        (Part(decode=lambda z: z.reshape(-1, 1, 2, 2) * torch.nan), "decode gave NaN"),
        (Part(encode=lambda x: x.flatten(1) * x.max()), "encode lets batch-mates change a row"),
        (Part(encode=lambda x: x.flatten(1) * torch.rand(1)), "another answer when queried again"),
        (Part(encode=lambda x: x.mul_(0.5).flatten(1)), "changed its input"),
    ],
)
def test_broken_generators_are_found(part, message):
    with pytest.raises(ContractError, match=message):
        check_generator(part, IMAGES.clone())


@pytest.mark.parametrize(
    ("classifier", "message"),
    [
        (lambda x: x, r"must have shape \(3, 3\)"),
        (lambda x: torch.ones(len(x), 3), "sums off"),
        (
            lambda x: x.new_tensor([[1.0, 0, 0]]).repeat(len(x), 1).roll(int(len(x) > 1), 1),
            "batch-mates",
        ),
        (lambda x: torch.rand(len(x), 3).softmax(1), "another answer"),
    ],
)
def test_broken_classifiers_are_found(classifier, message):
    with pytest.raises(ContractError, match=message):
        check_classifier(classifier, torch.randn(3, 2), classes=3)


class Broken(lf.Explainer):
    def __init__(self, change):
        self.inner = lf.LeapFactual(
            Identity(), ORACLE.classifier, ORACLE.flow(), [lf.blend(9, 0.2)]
        )
        self.change = change

    def explain(self, x, target):
        found = self.inner.explain(x, target)
        self.change(found)
        return found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: e.x.add_(1), "changed its input"),
        (lambda e: e.z_counterfactual.sub_(e.z_counterfactual.mean(0)), "results depend on"),
        (lambda e: e.label.fill_(0), "label is not where"),
        (lambda e: e.queries.fill_(0), "must have been queried"),
        (lambda e: e.leaps.fill_(-1), "must not be negative"),
    ],
)
def test_broken_explainers_are_found(change, message):
    z, y = ORACLE.sample(3)
    with pytest.raises(ContractError, match=message):
        check_explainer(Broken(change), z, 1 - y)


def test_too_few_images_to_check_with():
    with pytest.raises(InputError, match="at least two images"):
        check_generator(Part(), IMAGES[:1])
    with pytest.raises(InputError, match="at least two images"):
        check_classifier(ORACLE.classifier, torch.zeros(1, 2), 2)
