"""Algorithm 2 as a dialogue."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import leapfactual as lf
from leapfactual import reference
from leapfactual.errors import InputError
from leapfactual.explanation import Status
from leapfactual.generators import Identity
from leapfactual.testing import GaussianOracle, check_explainer
from leapfactual.walk import drive

MEANS = torch.tensor([[-2.0, 0.0], [2.0, 0.0], [0.0, 2.5]]).double()
ORACLE = GaussianOracle(MEANS, 0.6)
RELIABLE = [lf.blend(25, 0.1), lf.inject(4, lift=0.0, land=0.15)]


def explainer(plan=RELIABLE, oracle=ORACLE, classifier=None, flow=None, **options):
    flow = flow or oracle.flow()
    return lf.LeapFactual(Identity(), classifier or oracle.classifier, flow, plan, **options)


def papers_iterates(flow, classifier, z, target, plan):
    """What the algorithm as printed shows the classifier, leap by leap, and the labels it gets."""
    iterates, labels = [], []

    def watched(x):
        p = classifier(x)
        iterates.append(x)
        labels.append(p.argmax(1))
        return p

    last = reference.explain(Identity(), watched, flow, z, target, plan)
    assert torch.equal(last, iterates[-1])
    return torch.stack(iterates), torch.stack(labels)


@given(
    st.integers(1, 5),
    st.integers(2, 5),
    st.floats(0.05, 0.6),
    st.integers(0, 1000),
    st.sampled_from([(0.0, 0.1), (0.3, 0.4), (1.0, 1.025)]),
)
def test_gives_what_the_papers_loop_gives(features, classes, gamma, seed, injection):
    """Neither skipping settled images nor asking less changes a result."""
    rng = torch.Generator().manual_seed(seed)
    means = 1.5 * torch.randn(classes, features, generator=rng).double()
    oracle = GaussianOracle(means, 0.6)
    z, y = oracle.sample(3, seed)
    target = (y + 1) % classes
    plan = [lf.blend(8, gamma), lf.inject(3, *injection)]
    flow = oracle.flow(lf.RK4(20))
    found = explainer(plan, oracle, flow=flow, keep_path=True).explain(z, target)
    iterates, labels = papers_iterates(flow, oracle.classifier, z, target, plan)
    inside = labels == target
    last = torch.where(
        inside.any(0), inside.shape[0] - 1 - inside.flip(0).int().argmax(0), len(inside) - 1
    )
    expected = iterates.gather(0, last[None, :, None].expand(1, -1, features))[0]
    torch.testing.assert_close(found.z_counterfactual, expected, rtol=0, atol=1e-4)
    assert torch.equal(found.valid, inside.any(0))
    torch.testing.assert_close(found.path.z[:, -1], iterates[-1], rtol=0, atol=1e-4)


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


def test_returns_the_last_iterate_inside_the_class():
    """A classifier whose class 1 is a strip: injection walks in, and out on the other side."""

    def strip(x):
        return torch.eye(2, dtype=x.dtype)[((x[:, 0] > 0.0) & (x[:, 0] < 1.2)).long()]

    oracle = GaussianOracle(torch.tensor([[-2.0], [2.0]]).double(), 0.5)
    start = torch.tensor([[-1.5]]).double()
    found = explainer(
        [lf.blend(30, 0.1), lf.inject(12, 0.0, 0.2)], oracle, strip, keep_path=True
    ).explain(start, 1)
    path = found.path.z[0, : int(found.path.taken[0]) + 1]
    labels = strip(path).argmax(1)
    assert labels[-1] == 0, "the walk has left the strip"
    assert found.status == [Status.REACHED]
    assert int(found.leaps) == int(labels.nonzero().max())
    torch.testing.assert_close(found.z_counterfactual[0], path[int(found.leaps)])
    asked = (~found.path.probabilities[0].isnan()).any(1)[: len(path)]
    assert asked[int(found.leaps) :].all(), "from the end back to the one that is returned"
    assert not asked[int(found.first) + 1 : int(found.leaps)].any(), "and no further"


def test_blind_injection_that_stays_inside_is_asked_about_once():
    queries = []

    def counting(x):
        queries.append(len(x))
        return ORACLE.classifier(x)

    z, y = ORACLE.sample(5)
    explainer([lf.inject(10, 0.0, 0.1)], classifier=counting).explain(z[y == 1], 1)
    assert queries == [5, 5]


def test_blind_stages_in_a_row_are_asked_about_once_and_before_a_stage_that_lifts():
    queries = []

    def counting(x):
        queries.append(len(x))
        return ORACLE.classifier(x)

    z, y = ORACLE.sample(5)
    open_loop = [lf.inject(3, 0.0, 0.1), lf.inject(3, 0.0, 0.05), lf.blend(0, 0.5)]
    explainer(open_loop, classifier=counting).explain(z[y == 1], 1)
    assert queries == [5, 5]
    queries.clear()
    explainer([*open_loop, lf.inject(2, 0.1, 0.2)], classifier=counting).explain(z[y == 1], 1)
    assert queries == [5, 5, 5, 5], (
        "start, before the stage that lifts, and after each of its leaps"
    )


@given(
    st.lists(
        st.one_of(
            st.builds(lf.blend, st.integers(0, 3), st.sampled_from([0.0, 0.1, 0.4])),
            st.builds(
                lambda n, d: lf.inject(n, 0.0, d),
                st.integers(0, 3),
                st.floats(0.01, 0.4),
            ),
            st.builds(
                lambda n, d: lf.inject(n, d, d + 0.1),
                st.integers(0, 3),
                st.floats(0.01, 1),
            ),
        ),
        min_size=1,
        max_size=5,
    ),
    st.booleans(),
    st.integers(0, 1000),
)
def test_any_plan_gives_what_the_papers_loop_gives(plan, soft, seed):
    flow = lf.Flow(ORACLE.flow().field, lf.RK4(20), soft=soft).double()
    z, y = ORACLE.sample(2, seed)
    found = explainer(plan, flow=flow, keep_path=True).explain(z, (y + 1) % 3)
    iterates, labels = papers_iterates(flow, ORACLE.classifier, z, (y + 1) % 3, plan)
    inside = labels == (y + 1) % 3
    last = inside.shape[0] - 1 - inside.flip(0).int().argmax(0)
    last = torch.where(inside.any(0), last, len(inside) - 1)
    expected = iterates.gather(0, last[None, :, None].expand(1, -1, 2))[0]
    torch.testing.assert_close(found.z_counterfactual, expected, rtol=0, atol=1e-4)


def test_answers_are_read_before_they_are_rounded():
    """In float32 the two are equal; the classifier has said 1."""
    p = torch.tensor([[0.5 - 1e-9, 0.5 + 1e-9]], dtype=torch.float64)
    oracle = GaussianOracle(torch.tensor([[-1.0], [1.0]]), 0.5)
    found = explainer([lf.blend(1, 0.1)], oracle, lambda x: p.expand(len(x), -1)).explain(
        torch.zeros(1, 1), 1
    )
    assert found.label.tolist() == [1]
    assert found.status == [Status.ALREADY_THERE]


def test_only_moving_images_are_asked_about():
    queries = []

    def counting(x):
        queries.append(len(x))
        return ORACLE.classifier(x)

    z, _ = ORACLE.sample(20)
    found = explainer(RELIABLE[:1], classifier=counting).explain(z, 1)
    assert sum(queries) == found.queries.sum()
    assert queries == sorted(queries, reverse=True)
    assert sum(queries) < 0.5 * 26 * 60, "far fewer than the loop that asks about everyone"


def test_soft_conditions_take_every_leap():
    flow = lf.Flow(ORACLE.flow().field, soft=True).double()
    z, y = ORACLE.sample(3)
    found = explainer([lf.blend(6, 0.1)], flow=flow, keep_path=True).explain(z, (y + 1) % 3)
    iterates, _ = papers_iterates(flow, ORACLE.classifier, z, (y + 1) % 3, [lf.blend(6, 0.1)])
    torch.testing.assert_close(found.path.z[:, -1], iterates[-1], rtol=0, atol=1e-10)
    assert (found.path.taken == 6).all()


def test_a_replayed_dialogue_is_bit_identical():
    z, _ = ORACLE.sample(6)
    kept = []

    def keeping(x):
        kept.append(ORACLE.classifier(x))
        return kept[-1]

    first = drive(explainer(keep_path=True).dialogue(z, 1), keeping)
    answers = iter(kept)
    again = drive(explainer(keep_path=True).dialogue(z, 1), lambda _: next(answers))
    for name in ("z_counterfactual", "counterfactual", "label", "leaps", "first", "queries"):
        assert torch.equal(getattr(first, name), getattr(again, name)), name
    assert torch.equal(first.path.z, again.path.z)
    assert next(answers, None) is None


def test_a_dialogue_can_wait_between_queries():
    z, _ = ORACLE.sample(2)
    dialogue = explainer().dialogue(z, 1)
    question = next(dialogue)
    with pytest.raises(StopIteration) as end:
        while True:
            question = dialogue.send(ORACLE.classifier(question))
    assert end.value.value.valid.all()


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


def test_queries_and_reconstructions_do_not_change_under_the_walk():
    """The identity hands latents out as images: the walk must not write into what it has shown."""
    z, _ = ORACLE.sample(4)
    shown = []

    def looking(x):
        shown.append((x, x.clone()))
        return ORACLE.classifier(x)

    found = explainer(classifier=looking).explain(z, 1)
    assert torch.equal(found.reconstruction, z)
    assert torch.equal(found.z, z)
    assert all(torch.equal(now, then) for now, then in shown)
    assert not torch.equal(found.counterfactual, z)


def test_inputs_are_left_alone_and_no_graph_is_kept():
    z, _ = ORACLE.sample(4)
    z.requires_grad_()
    before = z.detach().clone()
    found = explainer().explain(z, 1)
    assert torch.equal(z, before)
    for name in ("counterfactual", "reconstruction", "z", "z_counterfactual", "probabilities"):
        assert not getattr(found, name).requires_grad, name


def test_path_repeats_where_an_image_has_stopped_and_knows_who_was_asked():
    z, _ = ORACLE.sample(3)
    found = explainer(keep_path=True).explain(z, 1)
    assert found.path.z.shape == (9, 30, 2)
    for n in range(9):
        taken = int(found.path.taken[n])
        assert (found.path.z[n, taken:] == found.path.z[n, taken]).all()
        torch.testing.assert_close(found.path.z[n, 0], z[n])
        assert not found.path.probabilities[n, 0].isnan().any()


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


def test_a_walk_starts_where_it_is_told_to():
    """Another latent is another start, in a dialogue as well."""
    x, _ = ORACLE.sample(2)
    elsewhere = x.flip(0)
    wanted = explainer().explain(elsewhere, 1)
    found = explainer().explain(x, 1, z=elsewhere)
    said = drive(explainer().dialogue(x, 1, z=elsewhere), ORACLE.classifier)
    for e in (found, said):
        assert torch.equal(e.x, x)
        assert torch.equal(e.z, elsewhere)
        assert torch.equal(e.reconstruction, wanted.reconstruction)
        assert torch.equal(e.z_counterfactual, wanted.z_counterfactual)


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


# -- tightening --


def test_tightening_finds_the_boundary_on_the_way_back():
    """Two classes, split at 0: the nearest point of the other class lies just across."""
    z = torch.tensor([[-2.0, 0.5], [-1.0, -0.3], [1.5, 0.0]])
    asked = []

    def classifier(x):
        asked.append(len(x))
        return torch.nn.functional.one_hot((x[:, 0] > 0).long(), 2).to(x)

    plan = [lf.blend(3, 0.6), lf.tighten(12)]
    oracle = GaussianOracle(torch.tensor([[-2.0, 0.0], [2.0, 0.0]]), scale=0.7)
    found = lf.LeapFactual(Identity(), classifier, oracle.flow(), plan, keep_path=True).explain(
        z, 1
    )
    loose = lf.LeapFactual(Identity(), classifier, oracle.flow(), plan[:1]).explain(z, 1)
    assert found.valid.all()
    assert (loose.z_counterfactual[:2, 0] > 0.1).all()
    assert ((found.z_counterfactual[:2, 0] > 0) & (found.z_counterfactual[:2, 0] < 0.01)).all()
    assert torch.equal(found.z_counterfactual[2], z[2]), "already there, so nothing to go back to"
    way, whole = found.z_counterfactual - found.z, loose.z_counterfactual - loose.z
    share = (way[:2] * whole[:2]).sum(1) / whole[:2].square().sum(1)
    torch.testing.assert_close(way[:2], share[:, None] * whole[:2], rtol=0, atol=1e-6)
    assert (found.queries[:2] == loose.queries[:2] + 12).all()
    assert torch.equal(found.nfe, loose.nfe)
    assert found.path.z.shape[1] == 16


def test_tightening_never_gives_up_what_was_reached():
    """Inside only far away: every point on the way back is refused, the first find stays."""
    z = torch.zeros(1, 2)
    oracle = GaussianOracle(torch.tensor([[-2.0, 0.0], [2.0, 0.0]]), scale=0.7)
    answers = iter([0, 1, 0, 0, 0, 0])
    plan = [lf.blend(1, 0.5), lf.tighten(4)]
    explainer = lf.LeapFactual(Identity(), None, oracle.flow(), plan)
    found = drive(explainer.dialogue(z, 1), lambda x: torch.eye(2)[[next(answers)]])
    assert found.valid.all()
    assert found.leaps.tolist() == [1]
    assert found.queries.tolist() == [6]


def test_images_that_were_there_from_the_start_wait_for_tightening():
    """Injection would move them, and tightening bring them back: neither is done, nor asked."""
    oracle = GaussianOracle(torch.tensor([[-2.0, 0.0], [2.0, 0.0]]), scale=0.7)
    z = torch.tensor([[1.0, 0.4], [-2.0, 0.5]])
    plan = [lf.blend(9, 0.3), lf.inject(3, lift=0.0, land=0.1), lf.tighten(3)]
    found = lf.LeapFactual(Identity(), oracle.classifier, oracle.flow(), plan).explain(z, 1)
    loose = lf.LeapFactual(Identity(), oracle.classifier, oracle.flow(), plan[:2]).explain(z, 1)
    assert not torch.equal(loose.z_counterfactual[0], z[0])
    assert torch.equal(found.z_counterfactual[0], z[0])
    assert torch.equal(found.counterfactual[0], found.reconstruction[0])
    assert (found.leaps[0], found.queries[0], found.nfe[0]) == (0, 1, 0)
    assert found.valid.all()
    after = [lf.blend(9, 0.3), lf.tighten(3), lf.inject(1, lift=0.0, land=0.1)]
    moved = lf.LeapFactual(Identity(), oracle.classifier, oracle.flow(), after).explain(z, 1)
    assert moved.leaps[0] == 1, "nothing brings it back any more"


def test_injection_goes_on_from_the_tightened_point():
    z = torch.tensor([[-2.0, 0.5]])
    oracle = GaussianOracle(torch.tensor([[-2.0, 0.0], [2.0, 0.0]]), scale=0.7)
    flow = oracle.flow()
    plan = [lf.blend(9, 0.3), lf.tighten(8), lf.inject(1, lift=0.0, land=0.1)]
    tight = lf.LeapFactual(Identity(), oracle.classifier, flow, plan[:2]).explain(z, 1)
    found = lf.LeapFactual(Identity(), oracle.classifier, flow, plan).explain(z, 1)
    expected = flow.land(tight.z_counterfactual, torch.eye(2)[1:], 0.1)
    torch.testing.assert_close(found.z_counterfactual, expected)
    nobody = lf.LeapFactual(Identity(), oracle.classifier, flow, [lf.tighten(3)]).explain(z, 1)
    assert torch.equal(nobody.z_counterfactual, z)
    assert nobody.queries.tolist() == [1]
