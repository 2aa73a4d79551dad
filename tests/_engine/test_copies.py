"""Fused copies and masked walks come to the same as the networks step by step."""

import time

import pytest
import torch
from torch import nn

import leapfactual as lf
from leapfactual._engine.replay import NAMES
from leapfactual.classifiers import Counted, Network, from_logits
from leapfactual.errors import InputError
from leapfactual.explainer import default_batch_size
from leapfactual.pretrained import load
from leapfactual.testing import GaussianOracle
from tests._engine.plans import PLANS, TARGET, explained


@pytest.mark.parametrize("name", PLANS)
def test_fused_copies_change_nothing_but_rounding(shipped, x, name):
    explainer, found = explained(shipped, x, PLANS[name])
    _, wanted = explained(shipped, x, PLANS[name], accelerate=False)
    assert explainer.engine.copies.networks is not explainer.engine.copies.originals
    for key in ("label", "leaps", "first", "queries", "nfe", "source"):
        assert torch.equal(getattr(found, key), getattr(wanted, key)), key
    torch.testing.assert_close(found.counterfactual, wanted.counterfactual, rtol=0, atol=1e-3)
    torch.testing.assert_close(found.probabilities, wanted.probabilities, rtol=0, atol=1e-3)


def test_new_weights_are_seen(x):
    shipped = load()
    explainer, before = explained(shipped, x, PLANS["blended"])
    with torch.no_grad():
        shipped.classifier.network[-1].weight.mul_(-1)
    after = explainer.explain(x, TARGET)
    assert not torch.equal(before.source, after.source)
    assert torch.equal(
        after.source, explained(shipped, x, PLANS["blended"], accelerate=False)[1].source
    )


def test_a_copy_that_says_something_else_is_not_used(shipped, x):
    class Fickle(nn.Module):
        """Looks at its own layers, which folding takes away."""

        def __init__(self, network):
            super().__init__()
            self.network = network

        def forward(self, x):
            logits = self.network(x)
            return logits if len(self.network) == 14 else -logits

    fickle = from_logits(Fickle(shipped.classifier.network).eval())
    assert len(shipped.classifier.network) == 14
    explainer = lf.LeapFactual(
        shipped.bundle.generator, fickle, shipped.bundle.flow, PLANS["blended"]
    )
    found = explainer.explain(x, TARGET)
    assert explainer.engine.copies.networks is explainer.engine.copies.originals
    assert torch.equal(
        found.label, explained(shipped, x, PLANS["blended"], accelerate=False)[1].label
    )


def test_a_network_that_cannot_be_copied_is_asked_as_it_is(shipped, x):
    class Lonely(nn.Module):
        def __init__(self, network):
            super().__init__()
            self.network = network

        def __deepcopy__(self, memo):
            raise TypeError("there is only one of me")

        def forward(self, x):
            return self.network(x)

    lonely = from_logits(Lonely(shipped.classifier.network).eval())
    explainer = lf.LeapFactual(
        shipped.bundle.generator, lonely, shipped.bundle.flow, PLANS["blended"]
    )
    explainer.explain(x, TARGET)
    assert explainer.engine.copies.networks.classifier is lonely
    assert "only one of me" in str(explainer.engine.copies.error)


def test_a_black_box_is_asked_no_more_than_before(shipped, x):
    asked = Counted(lambda images: shipped.classifier(images))
    explainer = lf.LeapFactual(
        shipped.bundle.generator, asked, shipped.bundle.flow, PLANS["injected"]
    )
    found = explainer.explain(x, TARGET)
    assert asked.images == int(found.queries.sum())


def test_batches_suit_the_images():
    assert default_batch_size(torch.zeros(1, 3, 1024, 1024)) == 1
    assert default_batch_size(torch.zeros(1, 12)) == 4096
    assert default_batch_size(torch.zeros(1, 1, 28, 28)) < 1000


def test_images_are_encoded_once(shipped, x):
    """Encoding may be an inversion of many steps."""

    class Slow:
        def __init__(self):
            self.encoded = 0

        def encode(self, x):
            self.encoded += len(x)
            return shipped.bundle.generator.encode(x)

        def decode(self, z):
            return shipped.bundle.generator.decode(z)

    slow = Slow()
    explainer = lf.LeapFactual(slow, shipped.classifier, shipped.bundle.flow, PLANS["confidence"])
    for n in (1, 2):
        explainer.explain(x, TARGET)
        assert slow.encoded == n * len(x)


def test_latents_that_are_known_give_the_same(shipped, x):
    explainer, wanted = explained(shipped, x, PLANS["confidence"])
    found = explainer.explain(x, TARGET, z=wanted.z)
    assert explainer.engine.copies.networks is not explainer.engine.copies.originals
    for key in set(NAMES):
        assert torch.equal(getattr(found, key), getattr(wanted, key)), key


def test_nothing_is_differentiated(x):
    vae = lf.generators.VAE((1, 28, 28), 4)
    assert any(weight.requires_grad for weight in vae.parameters())
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).eval()
    flow = lf.Flow(lf.MLPField(4, 10), lf.Midpoint(1))
    for accelerate in (False, True):
        explainer = lf.LeapFactual(
            vae, from_logits(network), flow, [lf.blend(2, 0.5)], accelerate=accelerate
        )
        found = explainer.explain(x[:3], 1)
        assert not found.z.requires_grad
        assert not found.counterfactual.requires_grad


def test_confidence_is_looked_at_after_every_leap():
    oracle = GaussianOracle(torch.tensor([[-1.0], [1.0]], dtype=torch.float64), 0.8)
    z = torch.full((1, 1), -0.9, dtype=torch.float64)

    def end(*more):
        plan = [lf.blend(9, 0.1), *more]
        parts = lf.generators.Identity(), oracle.classifier, oracle.flow(), plan
        return lf.LeapFactual(*parts).explain(z, 1).z_counterfactual

    at_once = end(lf.inject(3, 0.0, 0.4, confidence=0.8))
    torch.testing.assert_close(
        at_once, end(*(lf.inject(1, 0.0, 0.4, confidence=0.8) for _ in range(3)))
    )


class Thrice(lf.MLPField):
    """Has a velocity of its own."""

    def forward(self, t, z, c):
        return 3 * super().forward(t, z, c)


def test_a_field_made_of_ours_has_its_own_velocity():
    field = Thrice(2, 2)
    t, z, c = torch.tensor(0.5), torch.randn(4, 2), torch.eye(2)[[0, 1, 0, 1]]
    torch.testing.assert_close(field.bind(c)(t, z), field(t, z, c))
    torch.testing.assert_close(field(t, z, c), 3 * lf.MLPField.forward(field, t, z, c))
    plain = lf.MLPField(2, 2)
    for times in (t, torch.rand(4)):
        torch.testing.assert_close(plain.bind(c)(times, z), plain(times, z, c))


def changed(shipped, how):
    """Explains, changes something, explains again; returns that and what the plain way says."""
    x = shipped.digits.images[:6]
    explainer, _ = explained(shipped, x[:6], PLANS["blended"], target=3)
    how(explainer)
    found = explainer.explain(x, 3)
    plain = lf.LeapFactual(
        explainer.generator,
        explainer.classifier,
        explainer.flow,
        PLANS["blended"],
        accelerate=False,
    )
    return found, plain.explain(x, 3)


def by_data(explainer):
    explainer.classifier.network[-1].weight.data.mul_(-1)


def after_a_failure(explainer):
    with torch.no_grad():
        explainer.classifier.network[-1].weight.mul_(-1)
    with pytest.raises(InputError):
        explainer.explain(torch.rand(1, 1, 9, 9), 3)


def replaced(explainer):
    network = explainer.classifier.network
    explainer.classifier = from_logits(lambda x: -network(x))


def another_flow(explainer):
    with torch.no_grad():
        for weight in explainer.flow.field.parameters():
            weight.mul_(0.5)


@pytest.mark.parametrize("how", [by_data, after_a_failure, replaced, another_flow])
def test_what_has_changed_is_seen(how):
    found, wanted = changed(load(), how)
    torch.testing.assert_close(found.probabilities, wanted.probabilities, rtol=0, atol=1e-3)
    assert torch.equal(found.leaps, wanted.leaps)


def test_networks_that_are_watched_or_special_are_asked_themselves(x):
    class Special(Network):
        asked = 0

        def __call__(self, x):
            Special.asked += len(x)
            return super().__call__(x)

    shipped = load()
    special = Special(shipped.classifier.network, shipped.classifier.preprocessing)
    parts = shipped.bundle.generator, special, shipped.bundle.flow, PLANS["blended"]
    found = lf.LeapFactual(*parts).explain(x, TARGET)
    assert Special.asked == int(found.queries.sum())
    calls = []
    shipped.classifier.network.register_forward_hook(lambda *_: calls.append(1))
    explainer, _ = explained(shipped, x, PLANS["blended"])
    before = len(calls)
    explainer.explain(x, TARGET)
    assert len(calls) > before
    assert not explainer.engine.graphs.usable


def test_black_boxes_get_images_as_they_expect_them():
    torch.manual_seed(0)
    vae = lf.generators.VAE((3, 16, 16), 4)
    x = torch.rand(5, 3, 16, 16)

    def black_box(x):
        return torch.stack([x.view(len(x), -1).mean(1), 1 - x.view(len(x), -1).mean(1)], 1)

    flow = lf.Flow(lf.MLPField(4, 2), lf.Midpoint(1))
    explainer = lf.LeapFactual(vae, black_box, flow, [lf.blend(2, 0.5)])
    found = explainer.explain(x, 1)
    assert explainer.engine.copies.networks is not explainer.engine.copies.originals
    assert found.counterfactual.view(5, -1).shape == (5, 768)


def test_time_includes_encoding(shipped, x):
    class Slow:
        def encode(self, x):
            time.sleep(0.2)
            return shipped.bundle.generator.encode(x)

        def decode(self, z):
            return shipped.bundle.generator.decode(z)

    explainer = lf.LeapFactual(
        Slow(), shipped.classifier, shipped.bundle.flow, PLANS["confidence"]
    )
    assert explainer.explain(x, TARGET).seconds.sum() > 0.2
