"""Explainers: checks, batches, outcomes and cost."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import leapfactual as lf
from leapfactual import imaging
from leapfactual.errors import InputError
from leapfactual.explanation import Status
from leapfactual.generators import Identity
from leapfactual.imaging import keep_pixels, paste
from leapfactual.testing import GaussianOracle, check_explainer
from leapfactual.walk import drive

MEANS = torch.tensor([[-2.0, 0.0], [2.0, 0.0], [0.0, 2.5]]).double()
ORACLE = GaussianOracle(MEANS, 0.6)
RELIABLE = [lf.blend(25, 0.1), lf.inject(4, lift=0.0, land=0.15)]


def explainer(plan=RELIABLE, oracle=ORACLE, classifier=None, flow=None, **options):
    flow = flow or oracle.flow()
    return lf.LeapFactual(Identity(), classifier or oracle.classifier, flow, plan, **options)


def test_contract():
    z, y = ORACLE.sample(5)
    for plan in (RELIABLE[:1], RELIABLE, [lf.blend(25, 0.1), lf.inject(4, 0.8, 0.85)]):
        check_explainer(explainer(plan), z, (y + 1) % 3)


@given(st.integers(1, 9))
def test_results_do_not_depend_on_chunking(batch_size):
    z, y = ORACLE.sample(3)
    whole = explainer().explain(z, (y + 1) % 3)
    parts = explainer(batch_size=batch_size).explain(z, (y + 1) % 3)
    torch.testing.assert_close(parts.z_counterfactual, whole.z_counterfactual, rtol=0, atol=1e-10)
    for name in ("label", "first", "leaps", "queries", "nfe"):
        assert torch.equal(getattr(parts, name), getattr(whole, name))


@pytest.mark.parametrize("accelerate", [True, False])
def test_where_memory_runs_out_smaller_batches_give_the_same(accelerate):
    z, y = ORACLE.sample(7)
    sizes = []

    def classifier(x):
        sizes.append(len(x))
        if len(x) > 4:
            raise torch.OutOfMemoryError
        return ORACLE.classifier(x)

    whole = explainer().explain(z, (y + 1) % 3)
    parts = explainer(classifier=classifier, accelerate=accelerate).explain(z, (y + 1) % 3)
    torch.testing.assert_close(parts.z_counterfactual, whole.z_counterfactual, rtol=0, atol=1e-10)
    assert torch.equal(parts.label, whole.label)
    assert max(sizes) == 21


def test_status_leaps_and_cost():
    z, _ = ORACLE.sample(50)
    found = explainer().explain(z, 1)
    already = found.source == 1
    assert set(found.status) == {Status.REACHED, Status.ALREADY_THERE}
    assert (found.first[already] == 0).all()
    assert (found.first[~already] > 0).all()
    assert (found.leaps == found.first + 4).all(), (
        "blending stops at the boundary, then four injections"
    )
    assert (found.nfe == 80 * found.first + 40 * 4).all()
    assert (found.queries == found.first + 2).all(), (
        "at the start, after each blending leap, at the end"
    )
    assert (found.seconds > 0).all()
    assert (found.margin > 0.9).all(), "injection goes well past the boundary"


def test_not_reached_is_an_outcome():
    z, y = ORACLE.sample(5)
    found = explainer([lf.blend(2, 0.05)]).explain(z[y == 0], 1)
    assert found.status == [Status.NOT_REACHED] * 5
    assert (found.first == -1).all()
    assert (found.leaps == 2).all()
    assert (found.margin < 0).all()
    assert found.reason[0].startswith("still class 0 after 2 leaps, not class 1")


def test_one_target_for_all_or_one_each():
    z, _ = ORACLE.sample(4)
    one = explainer().explain(z, 2)
    each = explainer().explain(z, torch.full((12,), 2))
    assert torch.equal(one.z_counterfactual, each.z_counterfactual)


def test_labels_alone_are_enough():
    labels = lf.classifiers.from_labels(lambda x: ORACLE.classifier(x).argmax(1), classes=3)
    z, _ = ORACLE.sample(10)
    with_labels = explainer(classifier=labels).explain(z, 1)
    with_probabilities = explainer().explain(z, 1)
    assert torch.equal(with_labels.z_counterfactual, with_probabilities.z_counterfactual)


def test_the_counterfactual_is_what_the_classifier_saw():
    seen = []

    def looking(x):
        seen.append(x.clone())
        return ORACLE.classifier(x)

    z, _ = ORACLE.sample(1)
    found = explainer(classifier=looking).explain(z, 1)
    every = torch.cat(seen)
    for image in found.counterfactual:
        assert (every == image).all(1).any()


def test_inputs_are_left_alone_and_no_graph_is_kept():
    z, _ = ORACLE.sample(4)
    z.requires_grad_()
    before = z.detach().clone()
    found = explainer().explain(z, 1)
    assert torch.equal(z, before)
    for name in ("counterfactual", "reconstruction", "z", "z_counterfactual", "probabilities"):
        assert not getattr(found, name).requires_grad, name


class Noted(Identity):
    """Halves, and notes what it is asked to encode."""

    def __init__(self):
        self.encoded = 0

    def encode(self, x):
        self.encoded += len(x)
        return 2 * x

    def decode(self, z):
        return z / 2


@pytest.mark.parametrize(
    "options", [{}, {"accelerate": False}, {"batch_size": 2}, {"keep_path": True}]
)
def test_latents_that_are_known_are_not_encoded(options):
    x, y = ORACLE.sample(3)
    target = (y + 1) % 3
    noted = Noted()
    explainer = lf.LeapFactual(noted, ORACLE.classifier, ORACLE.flow(), RELIABLE, **options)
    wanted = explainer.explain(x, target)
    assert noted.encoded == len(x)
    found = explainer.explain(x, target, z=(2 * x).requires_grad_())
    assert noted.encoded == len(x)
    for name in ("x", "reconstruction", "counterfactual", "z", "z_counterfactual", "queries"):
        assert torch.equal(getattr(found, name), getattr(wanted, name)), name
        assert not getattr(found, name).requires_grad


class Wrong(Identity):
    def __init__(self, encode=lambda x: x, decode=lambda z: z):
        self.encode, self.decode = encode, decode


Z = torch.zeros(3, 2).double()
UNIFORM = torch.full((1, 3), 1 / 3).double()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: explainer().explain(Z, 3), "`target` 3 is not a class: .*0 to 2"),
        (lambda: explainer().explain(Z, -1), "`target` -1 is not a class"),
        (
            lambda: explainer().explain(Z, "cat"),
            "`target` is 'cat', and this explainer knows no",
        ),
        (lambda: explainer().explain(Z, torch.zeros(2).long()), r"here 3, got shape \(2,\)"),
        (
            lambda: explainer().explain(Z, torch.zeros(3)),
            r"whole class numbers, got torch\.float32",
        ),
        (lambda: explainer().explain(Z[0], 1), r"got \(2,\)"),
        (lambda: explainer().explain(Z.long(), 1), r"must be floating point, got torch\.int64"),
        (
            lambda: explainer().explain(["a"], 1),
            "an array or pictures of Pillow, got a list of str",
        ),
        (lambda: explainer().explain(Z * torch.inf, 1), "NaN or infinite"),
        (lambda: explainer().explain(Z[:0], 1), "at least one image, got none"),
        (lambda: explainer().explain(Z[:, :, None, None] - 1, 1), r"\[0, 1\], got values in \[-1"),
        (
            lambda: explainer().explain(Z, 1, z=Z[:2]),
            r"`z` must hold one latent for each of 3 images, on cpu, got \(2, 2\) on cpu",
        ),
        (
            lambda: next(explainer().dialogue(Z, 1, z=Z[:2])),
            r"`z` must hold one latent for each of 3 images",
        ),
        (
            lambda: explainer().explain(Z, 1, z=Z.to("meta")),
            r"on cpu, got \(3, 2\) on meta. Leave `z` out",
        ),
        (lambda: explainer().explain(Z, 1, z=Z[:, :1]), r"`z` must have 2 features.*\(3, 1\)"),
        (lambda: explainer().explain(Z, 1, z=Z.float()), r"`z` must have the type of the flow"),
        (lambda: explainer().explain(Z, 1, z=[0.0]), r"`z` must be .* got list"),
        (lambda: explainer().explain(Z, 1, z=Z * torch.nan), r"`z` must be finite"),
        (lambda: explainer([]), r"`plan` must be a list of stages, got \[\]"),
        (lambda: explainer([15, 0.1]), "`plan` must be a list of stages, got"),
        (
            lambda: explainer([lf.blend(6000, 0.1)] * 2),
            "10,000 leaps and stages at most, got 12,000 leaps in 2 stages",
        ),
        (
            lambda: explainer([lf.blend(0, 0.1)] * 10_001),
            "at most, got 0 leaps in 10,001 stages",
        ),
        (lambda: explainer(lf.blend(3, 0.1)), "`plan` must be a list of stages, got Leaps"),
        (
            lambda: lf.LeapFactual(ORACLE.classifier, Identity(), ORACLE.flow(), RELIABLE),
            "`generator` must have encode and decode, got method.*The order is",
        ),
        (
            lambda: lf.LeapFactual(Identity(), Identity(), ORACLE.flow(), RELIABLE),
            "`classifier` must be a function .* got Identity",
        ),
        (
            lambda: lf.LeapFactual(Identity(), None, ORACLE.flow(), RELIABLE).explain(Z, 1),
            "there is no classifier to query",
        ),
        (
            lambda: lf.LeapFactual(
                Wrong(decode=lambda z: z * torch.nan), ORACLE.classifier, ORACLE.flow(), RELIABLE
            ).explain(Z, 1),
            "`the generator's image` must be finite",
        ),
        (lambda: explainer(batch_size=0), "`batch_size` must be .* got 0"),
        (
            lambda: explainer(classifier=lambda x: torch.ones(len(x), 2) / 2).explain(Z, 1),
            r"the classifier's answer` must have shape \(3, 3\).*got \(3, 2\)",
        ),
        (
            lambda: explainer(classifier=lambda x: 9 * ORACLE.classifier(x)).explain(Z, 1),
            "sums off by up to 8.*from_logits",
        ),
        (
            lambda: explainer(classifier=lambda x: ORACLE.classifier(x) * torch.nan).explain(Z, 1),
            "NaN or infinite",
        ),
        (
            lambda: explainer(classifier=lambda x: ORACLE.classifier(x).argmax(1)).explain(Z, 1),
            r"got torch\.int64.*from_labels",
        ),
        (
            lambda: explainer(classifier=lambda x: [1] * len(x)).explain(Z, 1),
            "got list.*from_labels",
        ),
        (
            lambda: lf.LeapFactual(
                Wrong(encode=lambda x: x[:1]), ORACLE.classifier, ORACLE.flow(), RELIABLE
            ).explain(Z, 1),
            r"encode must give one row for each of 3, got \(1, 2\).*testing",
        ),
        (
            lambda: lf.LeapFactual(
                Wrong(decode=lambda z: z[:1]), ORACLE.classifier, ORACLE.flow(), RELIABLE
            ).explain(Z, 1),
            r"decode must give one row for each of 3",
        ),
        (
            lambda: lf.LeapFactual(
                Wrong(encode=lambda x: x[:, :1]), ORACLE.classifier, ORACLE.flow(), RELIABLE
            ).explain(Z, 1),
            "must have 2 features",
        ),
    ],
)
def test_wrong_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.float(), r"shape \(2,\) in torch.float64, and then of .* in torch.float32"),
        (lambda x: torch.cat([x, x], dim=1), r"shape \(2,\) .*, and then of \(4,\)"),
        (lambda x: x[:, None], r"and then of \(1, 2\)"),
        (lambda x: x.byte(), "the generator's image` must be floating point, got torch.uint8"),
        (lambda x: x * 1j, "must be floating point, got torch.complex128"),
        (lambda x: None, "decode must give one row for each of 1, got NoneType"),
    ],
)
@pytest.mark.parametrize("accelerate", [True, False])
def test_a_generator_that_changes_its_images_is_named(change, message, accelerate):
    calls = []

    def decode(z):
        calls.append(z)
        return z if len(calls) == 1 else change(z)

    generator = Wrong(decode=decode)
    walking = lf.LeapFactual(
        generator, ORACLE.classifier, ORACLE.flow(), RELIABLE, accelerate=accelerate
    )
    with pytest.raises(InputError, match=message):
        walking.explain(MEANS[:1], 1)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (Z.to_sparse(), "must be floating point, got torch.float64, torch.sparse_coo"),
        (Z.to("meta"), "must be floating point, got torch.float64, .* meta"),
        (Z * 1j, "must be floating point, got torch.complex128"),
        (Z > 0, "must be floating point, got torch.bool"),
        (Z.numpy() > 0, "bytes or floating-point numbers in .* got bool"),
        (Z.numpy().astype(int), "bytes or floating-point numbers in .* got int64"),
        (Z.numpy() * 1j, "bytes or floating-point numbers in .* got complex128"),
        (Z.numpy().astype(object), "bytes or floating-point numbers in .* got object"),
        (None, "a tensor, an array or pictures of Pillow, got NoneType"),
        (5, "a tensor, an array or pictures of Pillow, got int"),
        (Image.new("I;16", (2, 2)), "8 bits a channel, got the mode I;16"),
    ],
)
def test_images_of_another_type_are_named(x, message):
    with pytest.raises(InputError, match=message):
        explainer().explain(x, 1)


def test_arrays_of_any_floating_type_are_taken():
    for dtype in (">f4", ">f8", np.longdouble):
        assert torch.equal(imaging.as_images(Z.numpy().astype(dtype)), Z.float())


def test_a_classifier_that_changes_its_number_of_classes_is_named():
    calls = []

    def fickle(x):
        calls.append(x)
        p = ORACLE.classifier(x)
        return p if len(calls) < 3 else torch.cat([p, torch.zeros_like(p[:, :1])], dim=1)

    with pytest.raises(InputError, match=r"must have shape \(1, 3\).*got \(1, 4\)"):
        explainer(classifier=fickle).explain(MEANS[:1], 1)


# -- the input's own pixels --


class Dim(Identity):
    def encode(self, x):
        return 0.9 * x.flatten(1)

    def decode(self, z):
        return z.reshape(-1, 1, 6, 10).clamp(0, 1)


LEFT = torch.zeros(6, 10).double()
LEFT[:, :3] = 1
SIDES = GaussianOracle(torch.stack([0.3 + 0 * LEFT, 0.3 + 0.5 * LEFT]).flatten(1), 0.1)
TARGETS = torch.tensor([1, 1, 1, 0, 0, 0])
PLANS = {
    "blended": [lf.blend(20, 0.2)],
    "open loop": [lf.blend(20, 0.2), lf.inject(3, 0.0, 0.02)],
    "tightened": [lf.blend(20, 0.3), lf.tighten(4)],
    "guided": [lf.blend(20, 0.1, 2), lf.inject(2, 0.1, 0.1, guidance=2)],
}


def sides(x):
    p = torch.sigmoid(30 * (x[..., :3].flatten(1).mean(1) - 0.5))
    return torch.stack([1 - p, p], 1)


def photographs():
    base = torch.tensor([0.2, 0.3, 0.4, 0.6, 0.7, 0.52]).double()[:, None, None, None]
    return base + 0.1 * torch.rand(6, 1, 6, 10).double() - 0.05


def keeping(plan=PLANS["blended"], classifier=sides, **options):
    options = {"keep_pixels": True, **options}
    return lf.LeapFactual(Dim(), classifier, SIDES.flow(), plan, **options)


def test_kept_pixels_contract():
    check_explainer(keeping(), photographs(), TARGETS)


@pytest.mark.parametrize("options", [{}, {"accelerate": False}, {"batch_size": 4}])
def test_an_image_that_does_not_move_comes_back_bit_for_bit(options):
    x = photographs()
    found = keeping(**options).explain(x, sides(x).argmax(1))
    assert torch.equal(found.counterfactual, x)
    assert torch.equal(found.reconstruction, x)
    assert found.status == [Status.ALREADY_THERE] * 6
    assert not torch.equal(keeping(keep_pixels=False).explain(x, 1).reconstruction, x)


def test_source_is_what_the_classifier_says_of_the_image_itself():
    x = photographs()
    found, plain = keeping().explain(x, 1), keeping(keep_pixels=False).explain(x, 1)
    assert torch.equal(found.source, sides(x).argmax(1))
    assert torch.equal(plain.source, sides(0.9 * x).argmax(1))
    assert (found.source[-1], plain.source[-1]) == (1, 0)


@pytest.mark.parametrize("name", ["blended", "guided"])
def test_pixels_far_from_a_change_are_kept_and_changed_ones_are_decoded(name, monkeypatch):
    monkeypatch.setattr(imaging, "MAX_KEPT_CHANGE", 0.05)
    x = photographs()
    found = keeping(PLANS[name]).explain(x, TARGETS)
    decoded = Dim().decode(found.z_counterfactual)
    assert found.status == [Status.REACHED] * 6
    assert torch.equal(found.reconstruction, x)
    assert ((decoded - x)[..., 5:].abs() > 0.01).all()
    torch.testing.assert_close(found.counterfactual[..., 5:], x[..., 5:], rtol=0, atol=1e-4)
    torch.testing.assert_close(found.counterfactual[..., :3], decoded[..., :3], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", PLANS)
def test_the_classifier_was_asked_about_exactly_what_is_returned(name):
    x, seen = photographs(), []

    def looking(image):
        seen.append(image.clone())
        return sides(image)

    found = keeping(PLANS[name], looking).explain(x, TARGETS)
    assert found.valid.all()
    assert torch.equal(found.label, sides(found.counterfactual).argmax(1))
    torch.testing.assert_close(found.probabilities, sides(found.counterfactual))
    shown = torch.cat(seen)
    assert len(shown) == found.queries.sum()
    assert torch.equal(shown[:6], x), "the first question is the image itself"
    for image in found.counterfactual:
        assert (shown == image).flatten(1).all(1).any()
    decoded = Dim().decode(found.z_counterfactual)
    expected = keep_pixels(decoded, Dim().decode(found.z), x)
    torch.testing.assert_close(found.counterfactual, expected, rtol=0, atol=1e-12)


def test_a_picture_whose_decoded_one_would_be_valid_may_not_be():
    x = photographs()[:1]
    x[..., 9] = 0.9

    def bright_edge(image):
        p = sides(image)
        return torch.where(image[:, 0, 0, 9:] > 0.85, torch.eye(2).double()[:1], p)

    found = keeping(classifier=bright_edge).explain(x, 1)
    plain = keeping(classifier=bright_edge, keep_pixels=False).explain(x, 1)
    assert plain.valid.all()
    assert not found.valid.any()
    assert found.leaps.item() == 20


@pytest.mark.parametrize("name", PLANS)
def test_kept_pixels_in_a_mask(name):
    x, mask = photographs(), torch.zeros(6, 10)
    mask[:4, :4] = 1
    mask[:, 6] = 0.5
    found = keeping(PLANS[name], mask=mask).explain(x, TARGETS)
    assert torch.equal(found.reconstruction, x)
    assert torch.equal(found.counterfactual[..., mask == 0], x[..., mask == 0])
    kept = keep_pixels(Dim().decode(found.z_counterfactual), Dim().decode(found.z), x)
    torch.testing.assert_close(found.counterfactual, paste(kept, x, mask), rtol=0, atol=1e-12)
    assert torch.equal(found.label, sides(found.counterfactual).argmax(1))
    assert (found.counterfactual - x)[..., mask == 1].abs().amax((1, 2)).min() > 0.01


@pytest.mark.parametrize("mask", [None, LEFT])
@pytest.mark.parametrize("name", PLANS)
def test_iterates_with_kept_pixels_are_what_the_classifier_saw(name, mask, tmp_path):
    x, seen = photographs(), []

    def looking(image):
        seen.append(image.clone())
        return sides(image)

    options = {"keep_path": True, "mask": mask, "batch_size": 4}
    found = keeping(PLANS[name], looking, **options).explain(x, TARGETS)
    shown = torch.cat(seen)
    found.save(tmp_path / "found.safetensors")
    again = lf.Explanation.load(tmp_path / "found.safetensors")
    assert again.path.keeps_pixels.tolist() == [True] * 6
    for e in (found, again, found[torch.tensor([4, 0, 1])], lf.Explanation.cat([found, found])):
        for row in range(len(e)):
            asked = (~e.path.probabilities[row].isnan().any(1)).nonzero()[:, 0].tolist()
            iterates = e.iterates(row, asked, Dim())
            for image in iterates:
                assert (shown - image).abs().flatten(1).amax(1).min() < 1e-12
            assert torch.equal(iterates[0], e.x[row])
            (last,) = e.iterates(row, [int(e.leaps[row])], Dim())
            torch.testing.assert_close(last, e.counterfactual[row], rtol=0, atol=1e-12)


def test_iterates_without_kept_pixels_are_decoded():
    found = keeping(keep_pixels=False, keep_path=True).explain(photographs(), TARGETS)
    assert found.path.keeps_pixels.tolist() == [False] * 6
    assert torch.equal(found.iterates(2, [0], Dim())[0], found.reconstruction[2])


def test_kept_pixels_are_the_same_in_any_company_and_in_a_dialogue():
    x = photographs()
    one = keeping(accelerate=False)
    wanted = one.explain(x, TARGETS)
    order = torch.tensor([5, 2, 0, 3, 1, 4])
    shuffled = keeping(batch_size=4).explain(x[order], TARGETS[order])
    torch.testing.assert_close(shuffled.counterfactual, wanted.counterfactual[order])
    assert torch.equal(shuffled.queries, wanted.queries[order])
    asked = drive(one.dialogue(x, TARGETS), sides)
    known = one.explain(x, TARGETS, z=wanted.z)
    for found in (asked, known):
        assert torch.equal(found.counterfactual, wanted.counterfactual)


def test_rows_have_no_pixels_to_keep():
    z, y = ORACLE.sample(3)
    wanted = explainer(keep_path=True).explain(z, (y + 1) % 3)
    found = explainer(keep_path=True, keep_pixels=True).explain(z, (y + 1) % 3)
    assert torch.equal(found.counterfactual, wanted.counterfactual)
    assert not found.path.keeps_pixels.any()


def test_pixels_are_kept_at_the_generators_size_only():
    with pytest.raises(InputError, match=r"makes images of shape \(1, 6, 10\).*\(1, 10, 6\)"):
        keeping().explain(photographs().mT, 1)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"classes": 3}, "`classes` must name each of the flow's 2 classes, got 3"),
        ({"plan": 0.5}, "`plan` must be a list of stages, got 0.5"),
        ({"keep_pixels": torch.ones(2)}, "`keep_pixels` must be True or False"),
        ({"mask": torch.ones(2, 2, device="meta")}, "`mask` must be a tensor of shape"),
        ({"mask": torch.ones(2, 2, dtype=torch.float8_e4m3fn)}, "got torch.float8_e4m3fn"),
    ],
)
def test_arguments_of_another_kind_are_named(wrong, match):
    plan = wrong.pop("plan", [lf.blend(2, 0.5)])
    oracle = GaussianOracle(torch.tensor([[-2.0, 0.0], [2.0, 0.0]]), 0.5)
    with pytest.raises(InputError, match=match):
        lf.LeapFactual(Identity(), oracle.classifier, oracle.flow(), plan, **wrong)


class Pictures:
    """Generator of images of 1 × 2 pixels, brighter than images are."""

    gain = 0.5

    def encode(self, x):
        return x.flatten(1)[:, :2]

    def decode(self, z):
        return self.gain * torch.sigmoid(z)[:, None, None]


def test_pictures_of_a_generator_have_the_size_and_the_range_of_images():
    oracle = GaussianOracle(torch.tensor([[-2.0, 0.0], [2.0, 0.0]]), 0.5)

    def classify(x):
        return oracle.classifier(x.flatten(1))

    explainer = lf.LeapFactual(Pictures(), classify, oracle.flow(), [lf.blend(2, 0.5)])
    assert explainer.explain(torch.rand(3, 1, 1, 2), 1).counterfactual.max() < 1
    with pytest.raises(InputError, match=r"makes \(3, 1, 1, 2\) of images of shape \(3, 1, 2, 2"):
        explainer.explain(torch.rand(3, 1, 2, 2), 1)
    explainer.generator.gain = 3.0
    with pytest.raises(InputError, match=r"generator's image must be in \[0, 1\], got values in"):
        explainer.explain(torch.rand(3, 1, 1, 2), 1)
