"""Several different counterfactuals of one image."""

import csv
import json
from pathlib import Path

import pytest
import torch
from PIL import Image

import leapfactual as lf
from leapfactual.alternatives import _select, _variants, diverse
from leapfactual.errors import InputError
from leapfactual.generators import Identity
from leapfactual.jobs.explain import explain_all
from leapfactual.jobs.job import Job
from leapfactual.metrics import diversity
from leapfactual.pretrained import load
from leapfactual.testing import GaussianOracle

ORACLE = GaussianOracle(torch.tensor([[-2.0, 0.0], [2.0, 0.0], [0.0, 2.5]]).double(), 0.6)


POINTS, DIGITS = [lf.blend(25, 0.1)], [lf.blend(15, 0.2)]


def explainer(plan=POINTS, **options):
    return lf.LeapFactual(Identity(), ORACLE.classifier, ORACLE.flow(), plan, **options)


@pytest.fixture(scope="module")
def shipped():
    return load()


def of_digits(shipped, **options):
    return shipped.bundle.explainer(shipped.classifier, plan=DIGITS, **options)


def test_all_are_valid_different_and_of_their_image(shipped):
    x = shipped.digits.images[:12]
    target = (shipped.digits.labels[:12] + 3) % 10
    one = of_digits(shipped)
    usual, found = one.explain(x, target), diverse(one, x, target, n=3)
    e = found.explanation
    assert (found.found == 3).all()
    assert e.valid.all()
    assert torch.equal(e.x, x.repeat_interleave(3, 0))
    assert torch.equal(e.target, target.repeat_interleave(3))
    for name in ("reconstruction", "z", "source"):
        assert torch.equal(getattr(e, name), getattr(usual, name).repeat_interleave(3, 0)), name
    assert torch.equal(e.counterfactual[::3], usual.counterfactual), "the usual one is the first"
    rows = e.counterfactual.flatten(1).view(12, 3, -1)
    apart = [(rows[:, a] - rows[:, b]).abs().mean(1) for a, b in ((0, 1), (0, 2), (1, 2))]
    assert torch.stack(apart).min() > 0.01
    torch.testing.assert_close(found.apart, torch.stack(apart).mean(0))
    with torch.no_grad():
        said = shipped.classifier(e.counterfactual).argmax(1)
    assert torch.equal(said, e.target)
    assert "12 images: all found for 12" in repr(found)
    assert torch.equal(found[-1].counterfactual, e.counterfactual[-3:])
    assert torch.equal(found[2].counterfactual, e.counterfactual[6:9])


def test_the_same_seed_gives_the_same_and_another_one_others():
    x, y = ORACLE.sample(4)
    target = (y + 1) % 3
    first, again = (diverse(explainer(), x, target, seed=3) for _ in range(2))
    assert torch.equal(first.explanation.counterfactual, again.explanation.counterfactual)
    assert torch.equal(first.apart, again.apart)
    other = diverse(explainer(), x, target, seed=4)
    assert not torch.equal(first.explanation.counterfactual, other.explanation.counterfactual)
    assert torch.equal(
        first.explanation.counterfactual[::4], other.explanation.counterfactual[::4]
    )


def test_neither_company_nor_order_nor_batches_matter(monkeypatch):
    x, y = ORACLE.sample(4)
    target = (y + 1) % 3
    wanted = diverse(explainer(), x, target, n=3).explanation
    order = torch.randperm(len(x))
    shuffled = diverse(explainer(), x[order], target[order], n=3)
    alone = diverse(explainer(), x[5:6], target[5:6], n=3).explanation
    monkeypatch.setattr("leapfactual.alternatives.default_batch_size", lambda _: 30)
    cut = diverse(explainer(batch_size=7), x, target, n=3).explanation
    for name in ("z_counterfactual", "leaps", "queries"):
        value = getattr(wanted, name)
        torch.testing.assert_close(getattr(cut, name), value)
        torch.testing.assert_close(getattr(alone, name), value[15:18])
        rows = (3 * order[:, None] + torch.arange(3)).flatten()
        torch.testing.assert_close(getattr(shuffled.explanation, name), value[rows])


def test_more_noise_goes_further():
    x, y = ORACLE.sample(20)
    apart = [
        diverse(explainer(), x, (y + 1) % 3, noise=s).apart.mean() for s in (0.01, 0.2, 0.6, 1.0)
    ]
    assert apart == sorted(apart)
    assert apart[0] < 0.05 < apart[-1]


def test_being_near_costs_diversity_and_more_candidates_give_it_back():
    x, y = ORACLE.sample(20)

    def found(**options):
        alternatives = diverse(explainer(), x, (y + 1) % 3, **options)
        e = alternatives.explanation
        return (e.z_counterfactual - e.z).abs().mean(), alternatives.apart.mean()

    free, near, few = found(near=0.0), found(near=2.0), found(candidates=4)
    assert near[0] < free[0]
    assert near[1] < free[1]
    assert few[1] < free[1]


def test_variants_have_the_class_of_their_image_and_its_distribution():
    """Gaussian classes: residuals stay standard normal, so variants are samples of the class."""
    z, _ = ORACLE.sample(200)
    usual = explainer().explain(z, 1)
    noise = torch.randn(10, 2).double()
    for level in (0.3, 1.0):
        variants = _variants(ORACLE.flow(), usual, noise, level)
        assert variants.shape == (600, 10, 2)
        rest = (variants - ORACLE.means[usual.source][:, None]) / 0.6
        expected = (1 - level**2) ** 0.5 * (z - ORACLE.means[usual.source]) / 0.6
        torch.testing.assert_close(rest, expected[:, None] + level * noise, rtol=0, atol=1e-3)


def test_it_says_when_there_are_not_enough():
    """Nothing is reached in two small leaps but by points that are almost there."""
    x = torch.tensor([[-2.0, 0.0], [-0.15, 0.0], [-0.01, 0.0]]).double()
    found = diverse(explainer([lf.blend(1, 0.03)]), x, 1, n=4, noise=0.3)
    assert found.found.tolist() == found.explanation.valid.view(3, 4).sum(1).tolist()
    assert found.found[0] == 0
    assert 0 < found.found[1] < 4
    assert f"all found for {int((found.found == 4).sum())}" in repr(found)


def test_what_repeats_is_not_counted(shipped):
    """In a mask of nothing every candidate is the image itself."""
    x = shipped.digits.images[:2]
    one = of_digits(shipped, mask=torch.zeros(28, 28))
    with torch.no_grad():
        own = shipped.classifier(x).argmax(1)
    found = diverse(one, x, own, n=3)
    assert found.explanation.valid.all()
    assert found.found.tolist() == [1, 1]
    assert not found.apart.any()


def test_alternatives_keep_to_a_region(shipped):
    x = shipped.digits.images[:5]
    mask = torch.zeros(28, 28)
    mask[4:24, 6:22] = 1
    found = diverse(of_digits(shipped, mask=mask), x, 3, n=2).explanation
    outside = (mask == 0).expand(found.x.shape)
    assert torch.equal(found.counterfactual[outside], x.repeat_interleave(2, 0)[outside])


def test_known_latents_are_not_encoded():
    class NoEncoder(Identity):
        def encode(self, x):
            raise AssertionError

    x, _ = ORACLE.sample(3)
    parts = ORACLE.classifier, ORACLE.flow(), POINTS
    found = diverse(lf.LeapFactual(NoEncoder(), *parts), x, 1, z=x)
    wanted = diverse(lf.LeapFactual(Identity(), *parts), x, 1)
    assert torch.equal(found.explanation.counterfactual, wanted.explanation.counterfactual)


def test_picking_by_hand():
    """One image at 0, candidates on a line: 1 is the usual one, then far from all, but near."""
    before = torch.zeros(1, 1, 1)
    after = torch.tensor([[[1.0], [1.1], [9.0], [-4.0], [2.0]]])
    valid = torch.tensor([[True, True, False, True, True]])
    assert _select(before, after, valid, 3, 0.0)[0].tolist() == [[0, 3, 4]]
    assert _select(before, after, valid, 3, 2.0)[0].tolist() == [[0, 1, 3]]
    kept, count = _select(before, after, valid, 5, 0.5)
    assert kept[0].tolist()[-1] == 2, "what is not valid comes last"
    assert count.tolist() == [4]
    unusual = torch.tensor([[False, True, True, True, True]])
    assert _select(before, after, unusual, 2, 0.0)[0].tolist() == [[1, 2]], "the nearest, then far"
    none = torch.zeros(1, 5, dtype=torch.bool)
    kept, count = _select(before, after, none, 3, 0.5)
    assert kept[0, 0] == 0
    assert len(set(kept[0].tolist())) == 3
    assert count.tolist() == [0]
    twins = after.clone()
    twins[0, 1:] = 1.0
    assert _select(before, twins, ~none, 3, 0.5)[1].tolist() == [1]
    twins[0, 4] = 3.0
    kept, count = _select(before, twins, ~none, 2, 5.0)
    assert kept.tolist() == [[0, 4]], "however far, it does not repeat"
    assert count.tolist() == [2]


def test_diversity_is_l1_unless_a_distance_is_given(shipped):
    x = shipped.digits.images[:4]
    found = diverse(of_digits(shipped), x, 3, n=3)
    assert torch.equal(diversity(found.each()), found.apart)
    twice = diversity(found.each(), lambda a, b: 2 * (a - b).abs().flatten(1).mean(1))
    torch.testing.assert_close(twice, 2 * found.apart)
    points = diverse(explainer(), ORACLE.sample(2)[0], 1, n=2)
    a, b = (e.z_counterfactual for e in points.each())
    torch.testing.assert_close(points.apart, (a - b).abs().mean(1))


def test_a_job_of_alternatives_has_a_row_for_each(shipped, tmp_path):
    for n in range(3):
        pixels = (shipped.digits.images[n, 0] * 255).round().byte().numpy()
        Image.fromarray(pixels).save(tmp_path / f"{n}.png")
    digits = lf.data.open_images(sorted(tmp_path.glob("*.png")))
    parts = {
        "bundle": shipped.bundle,
        "classifier": shipped.classifier,
        "images": digits,
        "pairs": [(n, 3) for n in range(3)],
        "plan": DIGITS,
    }
    out = tmp_path / "out"
    summary = explain_all(Job(**parts, shown=4, alternatives=3), out)
    assert summary["count"] == 9
    rows = json.loads((out / "results.json").read_text())["rows"]
    assert [row["alternative"] for row in rows] == [1, 2, 3] * 3
    assert [Path(row["name"]).name for row in rows[::3]] == ["0.png", "1.png", "2.png"]
    assert len({row["file"] for row in rows}) == 9
    x = digits[[0, 1, 2]]
    wanted = diverse(of_digits(shipped), x, 3, n=3).explanation
    for row, image in zip(rows, wanted.counterfactual, strict=True):
        written = lf.data.read_image(out / "counterfactuals" / f"{row['file']}.png")
        torch.testing.assert_close(written, image, rtol=0, atol=3e-3)
    with (out / "results.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 9
    assert len(list((out / "animations").glob("*.webp"))) == 4
    for changes in ({}, {"alternatives": 2}, {"alternatives": 3, "seed": 1}):
        with pytest.raises(InputError, match="another job, which differs in its alternatives"):
            explain_all(Job(**parts, shown=4, **changes), out)
    with pytest.raises(InputError, match="3 alternatives or reliable counterfactuals, not both"):
        Job(**parts, reliable=DIGITS, alternatives=3)


X = torch.zeros(2, 2).double()


def uniform():
    flow = lf.Flow(lf.MLPField(2, 2), base=lf.bases.Uniform())
    return lf.LeapFactual(Identity(), lambda x: x.softmax(1), flow, [lf.blend(1, 0.1)])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: diverse(explainer(), X, 1, n=1), "`n` must be at least 2, got 1"),
        (
            lambda: diverse(explainer(), X, 1, n=10**9),
            "`n` must be .* from 1 to 100, got 1000000000",
        ),
        (lambda: diverse(explainer(), X, 1, candidates=10**9), "`candidates` must be .* to 1,000"),
        (lambda: diverse(explainer(), X, 1, n=2.5), "`n` must be a whole number .* got 2.5"),
        (lambda: diverse(explainer(), X, 1, candidates=3), "at least n = 4, got 3"),
        (lambda: diverse(explainer(), X, 1, noise=0.0), "`noise` must be above 0 .* got 0.0"),
        (lambda: diverse(explainer(), X, 1, noise=1.5), "`noise` must be above 0 .* got 1.5"),
        (lambda: diverse(explainer(), X, 1, near=-1), "`near` must be .* got -1"),
        (lambda: diverse(explainer(), X[:0], 1), "at least one image, got none"),
        (lambda: diverse(explainer(), X, 7), "`target` 7 is not a class"),
        (lambda: diverse(uniform(), X.float(), 1), "base of this flow is Uniform"),
    ],
)
def test_wrong_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_an_image_that_is_not_there_is_named():
    found = diverse(explainer(), X, 1)
    assert len(found) == 2
    with pytest.raises(IndexError, match="there is no image 2: there are 2"):
        found[2]
