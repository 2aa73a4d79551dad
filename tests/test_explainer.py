"""Explainers: checks, batches, outcomes and cost."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import leapfactual as lf
from leapfactual.errors import InputError
from leapfactual.explanation import Status
from leapfactual.generators import Identity
from leapfactual.testing import GaussianOracle, check_explainer

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
    assert "still class 0 after 2 leaps" in found.reason[0]


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
        (lambda: explainer().explain(Z, "cat"), "`target` must be a class number .* got 'cat'"),
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


def test_a_classifier_that_changes_its_number_of_classes_is_named():
    calls = []

    def fickle(x):
        calls.append(x)
        p = ORACLE.classifier(x)
        return p if len(calls) < 3 else torch.cat([p, torch.zeros_like(p[:, :1])], dim=1)

    with pytest.raises(InputError, match=r"must have shape \(1, 3\).*got \(1, 4\)"):
        explainer(classifier=fickle).explain(MEANS[:1], 1)
