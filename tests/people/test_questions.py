"""What to ask next: batch is step, and bisect says what it guessed."""

import pytest
import torch

from leapfactual import Euler, LeapFactual, blend, inject, restart, tighten
from leapfactual.errors import InputError
from leapfactual.generators import Identity
from leapfactual.people.questions import BATCH, BISECT, STEP, next_questions
from leapfactual.people.worker import lookahead
from leapfactual.testing import GaussianOracle

MEANS = torch.tensor([[-2.0, 0.0], [2.0, 0.0], [0.0, 3.0]])
ORACLE = GaussianOracle(MEANS, scale=0.7)
FLOW = ORACLE.flow().with_solver(Euler(1))


def interview(explainer, x, target, mode, label, most=32):
    """Leads a campaign of one picture; returns what came of it and what was asked."""
    answers, asked, guessed, rounds = [], 0, 0, 0
    while True:
        found = lookahead(explainer, x, target, answers, 1 if mode == STEP else most)
        if found.explanation is not None:
            return found.explanation, answers, asked, guessed, rounds
        outcomes = {}
        while True:
            got = next_questions(
                mode, len(found.frames), answers[-1] if answers else None, outcomes
            )
            if not got.ask:
                break
            rounds += 1
            for k in got.ask:
                outcomes[k] = label(found.frames[k : k + 1])
                asked += 1
        answers += got.answers
        guessed += got.guessed


def voter(seed):
    """Labels by nearest mean, with a boundary of its own: any function of the picture will do."""
    rng = torch.Generator().manual_seed(seed)
    shifted = MEANS + 0.7 * torch.randn(MEANS.shape, generator=rng)

    def label(x):
        return int(torch.cdist(x, shifted)[0].argmin())

    return label


PLANS = (
    [blend(12, 0.15)],
    [blend(8, 0.2), inject(4, lift=0.1, land=0.25)],
    [blend(8, 0.25), inject(3, lift=0.0, land=0.2)],
    [blend(10, 0.3), tighten(4)],
    [blend(3, 0.15), restart(), blend(2, 1.0), tighten(2)],
)


@pytest.mark.parametrize("campaigns", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_batch_is_step_on_a_thousand_campaigns(campaigns):
    fewer = 0
    for n in range(campaigns):
        rng = torch.Generator().manual_seed(n)
        x = 1.5 * torch.randn(1, 2, generator=rng)
        explainer = LeapFactual(Identity(), None, FLOW, PLANS[n % len(PLANS)])
        label, target = voter(n), n % 3
        step = interview(explainer, x, target, STEP, label)
        batch = interview(explainer, x, target, BATCH, label, most=1 + n % 9)
        assert torch.equal(step[0].z_counterfactual, batch[0].z_counterfactual), n
        assert step[1] == batch[1]
        assert step[3] == batch[3] == 0
        fewer += batch[4] < step[4]
    assert fewer > campaigns / 2, "batches save rounds"


def test_a_campaign_is_the_explainer():
    for n in range(60):
        x = 1.5 * torch.randn(1, 2, generator=torch.Generator().manual_seed(n))
        label, plan = voter(n), PLANS[n % len(PLANS)]

        def ask(x, label=label):
            return torch.eye(3)[[label(row[None]) for row in x]]

        wanted = LeapFactual(Identity(), ask, FLOW, plan, accelerate=False).explain(x, n % 3)
        explainer = LeapFactual(Identity(), None, FLOW, plan)
        found = interview(explainer, x, n % 3, BATCH, label)[0]
        assert torch.equal(found.z_counterfactual, wanted.z_counterfactual)
        assert torch.equal(found.queries, wanted.queries)


@pytest.mark.parametrize("campaigns", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_bisect_asks_little_and_says_what_it_guessed(campaigns):
    plan = [blend(250, 0.01)]
    explainer = LeapFactual(Identity(), None, FLOW, plan)
    same = 0
    for n in range(campaigns):
        x = MEANS[:1] + 0.2 * torch.randn(1, 2, generator=torch.Generator().manual_seed(n))
        label = voter(n)
        step = interview(explainer, x, 1, BATCH, label, most=250)
        bisect = interview(explainer, x, 1, BISECT, label, most=250)
        assert bisect[2] <= 1 + 9 * 3
        assert 0 < len(bisect[1]) - bisect[3] <= bisect[2], "asked or guessed"
        same += torch.equal(step[0].z_counterfactual, bisect[0].z_counterfactual)
    assert same >= 0.75 * campaigns, "where the label changes once, it is the same"


def test_bisect_can_be_wrong_and_then_has_guessed():
    """A label that comes and goes is missed, but not in silence."""
    outcomes = {}
    labels = [0, 0, 1, 0, 0, 0, 0, 0]
    while True:
        got = next_questions(BISECT, 8, 0, outcomes)
        if not got.ask:
            break
        outcomes[got.ask[0]] = labels[got.ask[0]]
    assert got.answers == (0,) * 8
    assert got.guessed == 7


@pytest.mark.parametrize("mode", [STEP, BATCH, BISECT])
def test_no_consensus_stops_where_it_matters(mode):
    frames = 1 if mode == STEP else 4
    stuck = next_questions(mode, frames, 0, {frames - 1: -3} | dict.fromkeys(range(frames - 1), 0))
    assert stuck.stuck == frames - 1


def test_what_comes_after_a_change_does_not_matter():
    assert next_questions(BATCH, 4, 0, {0: 0, 1: 2, 2: -3}).answers == (0, 2)
    assert next_questions(BATCH, 4, 0, {1: 2, 2: 0}).ask == (0, 3)


def test_answers_must_be_labels():
    explainer = LeapFactual(Identity(), None, FLOW, PLANS[0])
    with pytest.raises(InputError, match="labels of 0 to 2, got -2"):
        lookahead(explainer, MEANS[:1], 1, [-2], 4)
    with pytest.raises(InputError, match="must be one of"):
        next_questions("guess", 1, None, {})
