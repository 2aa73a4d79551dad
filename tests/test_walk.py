"""The walk: what the paper's loop gives, with fewer queries, as a dialogue."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import leapfactual as lf
from leapfactual import reference
from leapfactual.errors import InputError
from leapfactual.explanation import Status
from leapfactual.fields import VelocityField
from leapfactual.generators import Identity
from leapfactual.testing import GaussianOracle
from leapfactual.walk import Walker, drive

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


def test_open_loop_injection_that_stays_inside_is_asked_about_once():
    queries = []

    def counting(x):
        queries.append(len(x))
        return ORACLE.classifier(x)

    z, y = ORACLE.sample(5)
    explainer([lf.inject(10, 0.0, 0.1)], classifier=counting).explain(z[y == 1], 1)
    assert queries == [5, 5]


def test_open_loop_stages_in_a_row_are_asked_about_once_and_before_a_stage_that_lifts():
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


GUIDANCE = st.sampled_from([1.0, 1.5, 2.5])


@given(
    st.lists(
        st.one_of(
            st.builds(lf.blend, st.integers(0, 3), st.sampled_from([0.1, 0.4])),
            st.builds(
                lambda n, d, w: lf.inject(n, 0.0, d, guidance=w),
                st.integers(0, 3),
                st.floats(0.01, 0.3),
                GUIDANCE,
            ),
            st.builds(
                lambda n, d, w: lf.inject(n, d, d + 0.05, guidance=w),
                st.integers(0, 3),
                st.floats(0.01, 0.5),
                GUIDANCE,
            ),
        ),
        min_size=1,
        max_size=3,
    ),
    st.booleans(),
    st.integers(0, 1000),
)
def test_any_guided_injection_gives_what_the_papers_loop_gives(plan, soft, seed):
    flow = lf.Flow(ORACLE.flow().field, lf.RK4(20), soft=soft).double()
    z, y = ORACLE.sample(2, seed)
    found = explainer(plan, flow=flow, keep_path=True).explain(z, (y + 1) % 3)
    iterates, labels = papers_iterates(flow, ORACLE.classifier, z, (y + 1) % 3, plan)
    inside = labels == (y + 1) % 3
    last = inside.shape[0] - 1 - inside.flip(0).int().argmax(0)
    last = torch.where(inside.any(0), last, len(inside) - 1)
    expected = iterates.gather(0, last[None, :, None].expand(1, -1, 2))[0]
    torch.testing.assert_close(found.z_counterfactual, expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(found.path.z[:, -1], iterates[-1], rtol=0, atol=1e-4)


@given(
    st.floats(0.05, 0.5), st.sampled_from([1.25, 2.0, 4.0]), st.booleans(), st.integers(0, 1000)
)
def test_a_guided_blend_is_the_papers_loop_up_to_the_target_class(gamma, guidance, soft, seed):
    flow = lf.Flow(ORACLE.flow().field, lf.Midpoint(4), soft=soft).double()
    z, y = ORACLE.sample(3, seed)
    target, plan = (y + 1) % 3, [lf.blend(6, gamma, guidance)]
    found = explainer(plan, flow=flow, keep_path=True).explain(z, target)
    iterates, labels = papers_iterates(flow, ORACLE.classifier, z, target, plan)
    inside = labels == target
    first = torch.where(inside.any(0), inside.int().argmax(0), len(inside) - 1)
    rows = torch.arange(len(z))
    torch.testing.assert_close(found.z_counterfactual, iterates[first, rows], rtol=0, atol=1e-6)
    assert torch.equal(found.path.taken, first)
    assert torch.equal(found.leaps, first)
    assert torch.equal(found.queries, first + 1)
    assert torch.equal(found.valid, inside.any(0))


def test_guidance_reaches_the_class_in_fewer_leaps_and_counts_both_evaluations():
    z, y = ORACLE.sample(20)
    target = (y + 1) % 3
    plain = explainer([lf.blend(40, 0.05)]).explain(z, target)
    guided = explainer([lf.blend(40, 0.05, 3)]).explain(z, target)
    assert guided.valid.all()
    assert (guided.leaps <= plain.leaps).all()
    assert guided.leaps.sum() < 0.5 * plain.leaps.sum()
    assert torch.equal(plain.nfe, 80 * plain.leaps)
    assert torch.equal(guided.nfe, 120 * guided.leaps), "lifting once, landing twice"


def test_a_guided_injection_goes_on_in_the_class_and_a_guided_blend_does_not():
    z, y = ORACLE.sample(5)
    z, source = z[y == 0], torch.zeros(5).long()
    target = source + 1
    reach = lf.blend(20, 0.1, 2)
    stopped = explainer([reach]).explain(z, 1)
    assert stopped.valid.all()
    still = explainer([reach, lf.blend(9, 0.3, 4)]).explain(z, 1)
    assert torch.equal(still.z_counterfactual, stopped.z_counterfactual)
    found = explainer([reach, lf.inject(3, 0.0, 0.1, guidance=2)]).explain(z, 1)
    expected = stopped.z_counterfactual
    for _ in range(3):
        expected = ORACLE.leap(expected, source, target, lift=0, land=0.1, guidance=2)
    torch.testing.assert_close(found.z_counterfactual, expected, rtol=0, atol=1e-4)
    assert torch.equal(found.leaps, stopped.leaps + 3)
    assert torch.equal(found.nfe, stopped.nfe + 3 * 80)
    assert torch.equal(found.queries, stopped.queries + 1), "open loop: asked at the end"
    assert (found.margin > stopped.margin).all()


def test_guidance_leads_away_from_the_class_at_the_start_whatever_comes_between():
    answers = iter([0, 2, 1])
    z, flow = torch.tensor([[-1.0, 0.5]]).double(), ORACLE.flow(lf.RK4(40))
    plan = [lf.inject(2, 0.3, 0.3, guidance=2)]
    dialogue = lf.LeapFactual(Identity(), None, flow, plan).dialogue(z, 1)
    found = drive(dialogue, lambda x: torch.eye(3)[[next(answers)]].double())
    c = torch.eye(3).double()
    sizes = {"lift": 0.3, "land": 0.3, "guidance": 2, "c_source": c[:1]}
    expected = lf.leap(flow, z, c[:1], c[1:2], **sizes)
    expected = lf.leap(flow, expected, c[2:], c[1:2], **sizes)
    torch.testing.assert_close(found.z_counterfactual, expected)


def test_a_guided_injection_stops_where_the_classifier_is_sure():
    z, y = ORACLE.sample(10)
    plan = [lf.blend(20, 0.1, 2), lf.inject(30, 0.05, 0.05, 0.97, 1.5)]
    found = explainer(plan, keep_path=True).explain(z[y == 0], 1)
    p = found.path.probabilities[..., 1]
    for row, taken in enumerate(found.path.taken.tolist()):
        assert p[row, taken] >= 0.97
        assert (p[row, :taken] < 0.97).all()


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


def test_path_repeats_where_an_image_has_stopped_and_knows_who_was_asked():
    z, _ = ORACLE.sample(3)
    found = explainer(keep_path=True).explain(z, 1)
    assert found.path.z.shape == (9, 30, 2)
    for n in range(9):
        taken = int(found.path.taken[n])
        assert (found.path.z[n, taken:] == found.path.z[n, taken]).all()
        torch.testing.assert_close(found.path.z[n, 0], z[n])
        assert not found.path.probabilities[n, 0].isnan().any()


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


class _Places(VelocityField):
    """Field whose features count as the places of a map with one channel."""

    latent_channels = 1

    def __init__(self, field):
        super().__init__(field.features, field.classes)
        self.field = field

    def forward(self, t, z, c):
        return self.field(t, z, c)

    def config(self):
        return {}


def test_a_focus_takes_small_changes_back_and_stays_in_the_class():
    """Classes differ by 4 in one place and by 0.2 in the other, and are split at 0."""
    oracle = GaussianOracle(torch.tensor([[-2.0, 0.0], [2.0, 0.2]]), scale=0.7)
    flow = lf.Flow(_Places(oracle.flow().field))

    def classifier(x):
        return torch.nn.functional.one_hot((x[:, 0] > 0).long(), 2).to(x)

    def explain(*plan):
        return lf.LeapFactual(Identity(), classifier, flow, plan, keep_path=True).explain(z, 1)

    z = torch.tensor([[-2.0, 0.5], [-3.0, 0.5], [1.0, 0.0]])
    wide, found = explain(lf.blend(1, 1.0)), explain(lf.blend(1, 1.0), lf.focus(1.0))
    size = torch.tensor([4.0, 0.2]).square()
    weight = size / (size + size.mean())
    expected = z[0] + weight * torch.tensor([4.0, 0.2])
    torch.testing.assert_close(found.z_counterfactual[0], expected, rtol=0, atol=1e-3)
    assert torch.equal(found.z_counterfactual[1:], wide.z_counterfactual[1:]), "out of the class"
    assert found.valid.all()
    assert (found.queries - wide.queries).tolist() == [1, 1, 0]
    assert torch.equal(found.nfe, wide.nfe)
    on = explain(lf.blend(1, 1.0), lf.focus(1.0), lf.inject(1, 0.0, 0.1))
    step = flow.land(found.z_counterfactual[:1], torch.eye(2)[1:], 0.1)
    torch.testing.assert_close(on.z_counterfactual[:1], step)


def test_a_focus_is_for_maps():
    z = torch.tensor([[-2.0, 0.5]])
    oracle = GaussianOracle(torch.tensor([[-2.0, 0.0], [2.0, 0.0]]), scale=0.7)
    plan = [lf.blend(1, 1.0), lf.focus(0.6)]
    explainer = lf.LeapFactual(Identity(), oracle.classifier, oracle.flow(), plan)
    with pytest.raises(InputError, match="rows of numbers. Leave it out"):
        explainer.explain(z, 1)
    with pytest.raises(InputError, match="above 0, got 0"):
        lf.focus(0)


def test_what_has_not_arrived_may_begin_again_from_its_start():
    """The first image arrives by leaps of 0.3, the second does not and takes its second chance."""
    oracle = GaussianOracle(torch.tensor([[-2.0, 0.0], [2.0, 0.0]]), scale=0.7)
    flow, z = oracle.flow(), torch.tensor([[-0.5, 0.3], [-3.0, 0.5]])
    plan = [lf.blend(2, 0.3), lf.restart(), lf.blend(1, 1.0)]
    without = [lf.blend(2, 0.3), lf.blend(1, 1.0)]
    found, on = (
        lf.LeapFactual(Identity(), oracle.classifier, flow, p, keep_path=True).explain(z, 1)
        for p in (plan, without)
    )
    assert found.valid.all()
    assert torch.equal(found.z_counterfactual[0], on.z_counterfactual[0]), "it had arrived"
    replaced = lf.leap(flow, z[1:], torch.eye(2)[:1], torch.eye(2)[1:], lift=1.0, land=1.0)
    torch.testing.assert_close(found.z_counterfactual[1:], replaced)
    assert not torch.allclose(on.z_counterfactual[1:], replaced)
    assert found.leaps.tolist() == on.leaps.tolist() == [1, 3]
    assert torch.equal(found.queries, on.queries), "going back asks nothing"


def test_a_restart_takes_back_nobody_who_was_in_the_class_once():
    """Seen inside at the first leap, outside at the second: the third goes on from there."""
    flow = GaussianOracle(torch.tensor([[-2.0, 0.0], [2.0, 0.0]]), scale=0.7).flow()
    answers = iter([0, 1, 0, 0])
    plan = [lf.inject(2, 0.1, 0.3), lf.restart(), lf.inject(1, 0.1, 0.3)]
    explainer = lf.LeapFactual(Identity(), None, flow, plan, keep_path=True)
    found = drive(
        explainer.dialogue(torch.zeros(1, 2), 1), lambda x: torch.eye(2)[[next(answers)]]
    )
    c, c_target = torch.eye(2)[:1], torch.eye(2)[1:]
    expected = lf.leap(flow, found.path.z[:, 2], c, c_target, lift=0.1, land=0.3)
    torch.testing.assert_close(found.path.z[:, 3], expected)
    assert found.leaps.tolist() == [1]


class _Counting(Identity):
    """Counts how many batches it decodes."""

    decoded = 0

    def decode(self, z):
        self.decoded += 1
        return super().decode(z)


def test_tightening_decodes_with_the_generator_itself_and_leaps_with_the_draft():
    """A draft may have another class at the boundary, which is where tightening ends."""
    generator, draft = _Counting(), _Counting()
    walker = Walker(generator, ORACLE.flow(), [lf.blend(20, 0.1), lf.tighten(4)], draft=draft)
    z, y = ORACLE.sample(2, 0)
    target = (y + 1) % 3
    state = drive(walker.run(z, target), ORACLE.classifier)
    assert state.reached.all()
    assert generator.decoded == 1 + 4, "the images at the start, and each bisection"
    assert draft.decoded > 1
