"""Masked walks, which CUDA graphs are captured of, go where walks with branches go."""

import random

import pytest
import torch

import leapfactual as lf
from leapfactual._engine.copies import Copies, Networks
from leapfactual._engine.replay import NAMES, WalkGraphs, bucket, half_precision
from leapfactual.testing import GaussianOracle
from leapfactual.walk import Walker, drive
from tests._engine.plans import PLANS, TARGET, explained, fresh_copies


@pytest.mark.parametrize("name", PLANS)
def test_a_masked_walk_goes_the_same_way(shipped, x, name):
    """What a GPU records, run as it is: masks instead of rows."""
    parts = shipped.bundle.generator, shipped.bundle.flow, PLANS[name]

    def walked(**options):
        walker = Walker(*parts, **options)
        state = drive(walker.run(walker.encode(x), TARGET), shipped.classifier)
        drive(walker.resolve_deferred(state), shipped.classifier)
        return state

    masked, usual = walked(masked=True), walked()
    for key in ("reached", "leaps", "taken", "first", "queries", "nfe"):
        assert torch.equal(getattr(masked, key), getattr(usual, key)), key
    torch.testing.assert_close(masked.z, usual.z, rtol=0, atol=1e-4)
    torch.testing.assert_close(masked.p, usual.p, rtol=0, atol=1e-4)
    assert masked.image is None


@pytest.mark.parametrize("name", PLANS)
def test_a_masked_walk_says_which_images_are_ambiguous(shipped, x, name):
    copies, z = fresh_copies(shipped, x)
    graphs = WalkGraphs(copies, shipped.bundle.flow, PLANS[name])
    wanted = explained(shipped, x, PLANS[name])[1]
    with torch.no_grad():
        *found, ambiguous = graphs.walk(copies.networks, shipped.bundle.flow, False, z, TARGET)
        *exact, none = graphs.walk(copies.networks, shipped.bundle.flow, True, z, TARGET)
    for key, tensor, full in zip(NAMES, found, exact, strict=True):
        expected = getattr(wanted, key)
        torch.testing.assert_close(tensor[~ambiguous], expected[~ambiguous], rtol=0, atol=1e-3)
        torch.testing.assert_close(full, expected, rtol=0, atol=1e-3)
    assert not none.any()
    assert ambiguous.double().mean() < 0.5


def test_half_precision_is_close(shipped, x):
    copies, z = fresh_copies(shipped, x)
    half = copies.networks.fuse(torch.float16)
    with torch.no_grad():
        image = half.generator.decode(z)
        assert image.dtype == torch.half
        torch.testing.assert_close(
            image.float(), copies.originals.generator.decode(z), rtol=0, atol=2e-2
        )
        assert torch.equal(
            half.classifier(image).argmax(1), shipped.classifier(image.float()).argmax(1)
        )


def test_buckets_are_few_and_not_much_larger():
    sizes = {bucket(n) for n in range(1, 5000)}
    assert len(sizes) < 45
    assert all(n <= bucket(n) <= max(16, 1.25 * n) for n in range(1, 5000))


@pytest.mark.parametrize("seed", range(12))
def test_an_image_walks_alone_as_in_company(seed):
    """Whatever the plan: batch-mates, masks and the kept path make no difference."""
    draw = random.Random(seed)
    oracle = GaussianOracle(1.5 * torch.randn(3, 2, dtype=torch.float64), 0.8)
    flow = lf.Flow(oracle.flow().field, lf.Midpoint(2), soft=bool(seed % 2)).double()
    kinds = [
        lambda: lf.blend(draw.randint(1, 4), draw.choice([0.0, 0.1, 0.3])),
        lambda: lf.inject(draw.randint(1, 3), 0.0, 0.3, draw.choice([1.0, 0.55, 0.9])),
        lambda: lf.inject(draw.randint(1, 2), 0.1, 0.3, draw.choice([1.0, 0.9])),
        lambda: lf.tighten(draw.randint(1, 4)),
        lf.restart,
        lambda: lf.blend(draw.randint(1, 4), draw.choice([0.1, 0.3]), 2.0),
        lambda: lf.inject(draw.randint(1, 3), 0.1, 0.1, draw.choice([1.0, 0.0, 0.9]), 2.0),
    ]
    plan = [draw.choice(kinds)() for _ in range(draw.randint(2, 4))]
    z, _ = oracle.sample(5, seed)
    target = torch.arange(len(z)) % 3

    def explain(batch_size):
        parts = lf.generators.Identity(), oracle.classifier, flow, plan
        explainer = lf.LeapFactual(*parts, batch_size=batch_size, keep_path=True)
        return explainer.explain(z, target)

    together, alone = explain(100), explain(1)
    for key in ("label", "first", "leaps", "queries", "nfe", "z_counterfactual"):
        torch.testing.assert_close(getattr(together, key), getattr(alone, key), msg=key)
    rows = torch.arange(len(z))
    torch.testing.assert_close(together.path.z[rows, together.leaps], together.z_counterfactual)
    walker = Walker(lf.generators.Identity(), flow, plan, masked=True)
    state = drive(walker.run(z, target), oracle.classifier)
    drive(walker.resolve_deferred(state), oracle.classifier)
    torch.testing.assert_close(state.queries, together.queries)
    torch.testing.assert_close(state.z, together.z_counterfactual)


def test_graphs_are_of_one_flow_and_plan(shipped):
    flow, plan = shipped.bundle.flow, PLANS["blended"]
    copies = Copies(Networks(shipped.bundle.generator, shipped.classifier))
    graphs = WalkGraphs(copies, flow, plan)
    assert graphs.serves(flow, plan, None)
    assert not graphs.serves(flow, PLANS["confidence"], None)
    assert not graphs.serves(flow.with_solver(lf.Midpoint(7)), plan, None)
    assert not graphs.serves(flow, plan, None, True)
    kept = WalkGraphs(copies, flow, plan, keep_pixels=True)
    assert kept.serves(flow, plan, None, True)
    assert not kept.serves(flow, plan, None, False)


@pytest.mark.parametrize("name", PLANS)
def test_a_masked_walk_keeps_pixels(shipped, x, name):
    copies, z = fresh_copies(shipped, x)
    flow, plan = shipped.bundle.flow, PLANS[name]
    wanted = explained(shipped, x, plan, keep_pixels=True)[1]
    graphs = WalkGraphs(copies, flow, plan, keep_pixels=True)
    with torch.no_grad():
        *found, none = graphs.walk(copies.networks, flow, True, z, TARGET, x)
    assert not none.any()
    made = dict(zip(NAMES, found, strict=True))
    for key, tensor in made.items():
        torch.testing.assert_close(tensor, getattr(wanted, key), rtol=0, atol=1e-3, msg=key)
    still = made["leaps"] == 0
    assert torch.equal(made["reconstruction"], x)
    assert torch.equal(made["counterfactual"][still], x[still])
    assert torch.equal(wanted.counterfactual[still], x[still])


def test_a_drafted_walk_keeps_the_pixels_of_the_input_in_full_precision(shipped, x):
    copies, z = fresh_copies(shipped, x)
    flow, plan = shipped.bundle.flow, PLANS["guided"]
    graphs = WalkGraphs(copies, flow, plan, keep_pixels=True)
    draft = copies.originals.fuse(torch.float16)
    with torch.no_grad():
        *found, ambiguous = graphs.walk(draft, half_precision(flow), False, z, TARGET, x)
        made = dict(zip(NAMES, found, strict=True))
        said = copies.networks.classifier(made["counterfactual"]).argmax(1)
    assert made["counterfactual"].dtype == torch.float32
    assert torch.equal(made["reconstruction"], x)
    assert torch.equal(made["label"], said)
    wanted = explained(shipped, x, plan, keep_pixels=True)[1]
    same = (made["leaps"] == wanted.leaps) & ~ambiguous
    assert same.double().mean() > 0.7
    torch.testing.assert_close(
        made["counterfactual"][same], wanted.counterfactual[same], rtol=0, atol=0.05
    )
