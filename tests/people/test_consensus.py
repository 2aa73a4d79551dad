"""When votes are a consensus."""

import itertools
import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leapfactual.errors import InputError
from leapfactual.people.consensus import (
    DAWID_SKENE,
    IMPLAUSIBLE,
    NO_CONSENSUS,
    UNSURE,
    Rule,
    confusion_matrix,
    dawid_skene,
    krippendorff_alpha,
    posterior,
)

ANSWERS = st.lists(st.integers(-2, 3), min_size=0, max_size=9)


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        ([], None),
        ([1, 1], None),
        ([1, 1, 1], 1),
        ([1, 1, 2], 1),
        ([1, 2, 3], None),
        ([1, 2, 1, 2], None),
        ([1, 2, 1, 2, 1], None),
        ([1, 2, 1, 2, 1, 1], 1),
        ([1, 2, 1, 2, 1, 2, 3], NO_CONSENSUS),
        ([UNSURE] * 3, None),
        ([UNSURE] * 7, NO_CONSENSUS),
        ([1, 1, UNSURE], 1),
        ([IMPLAUSIBLE, IMPLAUSIBLE, 0], IMPLAUSIBLE),
    ],
)
def test_the_majority_decides(answers, outcome):
    assert Rule().decide(answers) == outcome


@given(ANSWERS)
def test_the_order_of_votes_does_not_matter(answers):
    rule = Rule(least=2, most=6)
    found = {
        rule.decide(list(some)) for some in itertools.islice(itertools.permutations(answers), 200)
    }
    assert len(found) == 1


@given(ANSWERS)
def test_a_tie_is_never_broken(answers):
    outcome = Rule(least=2, most=9, share=0.51).decide(answers)
    if outcome is not None and outcome != NO_CONSENSUS:
        rivals = [answers.count(k) for k in set(answers) - {outcome}]
        assert answers.count(outcome) > max(rivals, default=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"least": 5, "most": 3}, "at least 5 votes and at most 3"),
        ({"share": 0.5}, "half is a tie"),
        ({"method": "loudest"}, "must be one of"),
        ({"method": DAWID_SKENE, "least": 2}, "at least three people"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        Rule(**options)


def test_who_answers_at_random_counts_for_nothing():
    honest = confusion_matrix({(k, k): 20 for k in range(3)}, 3)
    random = confusion_matrix({(k, a): 10 for k in range(3) for a in range(3)}, 3)
    p = posterior([0, 1, 1, 1], [honest, random, random, random])
    assert p.argmax() == 0
    rule = Rule(method=DAWID_SKENE, posterior=0.8)
    assert rule.decide([0, 1, 1, 1], [honest, random, random, random]) == 0
    assert Rule().decide([0, 1, 1, 1]) == 1, "the majority is fooled"


def test_dawid_skene_waits_for_three_people():
    confidence = confusion_matrix({(k, k): 1000 for k in range(2)}, 2)
    rule = Rule(method=DAWID_SKENE)
    assert rule.decide([0, 0], [confidence, confidence]) is None
    assert rule.decide([0, 0, 0], [confidence, confidence, confidence]) == 0


def crowd(people=12, tasks=150, classes=4, spammers=4, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, classes, tasks)
    votes = []
    for task in range(tasks):
        for person in rng.choice(people, 5, replace=False):
            good = person >= spammers and rng.random() < 0.8
            votes.append((task, int(person), int(truth[task] if good else rng.integers(classes))))
    return truth, votes


def test_dawid_skene_finds_the_truth_and_the_spammers():
    truth, votes = crowd()
    found = dawid_skene(votes, 4)
    guesses = np.array([found.posteriors[k].argmax() for k in range(len(truth))])
    by_task = [[a for t, _, a in votes if t == k] for k in range(len(truth))]
    majority = np.array([max(set(a), key=a.count) for a in by_task])
    assert (guesses == truth).mean() > (majority == truth).mean() + 0.02
    skill = {p: np.diag(m[:4, :4]).mean() for p, m in found.confusions.items()}
    assert max(skill[p] for p in range(4)) < min(skill[p] for p in range(4, 12))


def test_gold_seeds_dawid_skene():
    truth, votes = crowd(spammers=7)
    gold = {k: int(truth[k]) for k in range(40)}
    rest = slice(40, None)
    share = []
    for known in ({}, gold):
        found = dawid_skene(votes, 4, known)
        guesses = np.array([found.posteriors[k].argmax() for k in range(len(truth))])
        share.append((guesses == truth)[rest].mean())
        if known:
            assert all(guesses[k] == v for k, v in gold.items())
    assert share[1] >= share[0]


def test_dawid_skene_is_that_of_crowd_kit():
    import pandas

    _, votes = crowd()
    frame = pandas.DataFrame(votes, columns=["task", "worker", "label"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from crowdkit.aggregation import DawidSkene

        theirs = DawidSkene(n_iter=200, tol=1e-9).fit(frame)
    ours = dawid_skene(votes, 4, iterations=200, tolerance=1e-9, smoothing=1e-10)
    p = np.stack([ours.posteriors[k][:4] for k in theirs.probas_.index])
    assert np.abs(p - theirs.probas_[[0, 1, 2, 3]].to_numpy()).max() < 1e-3


def test_agreement_is_krippendorffs():
    # The nominal example of Krippendorff's own introduction, α = 0.743 (to three digits).
    rows = [
        "1 2 3 3 2 1 4 1 2 . . .",
        "1 2 3 3 2 2 4 1 2 5 . 3",
        ". 3 3 3 2 3 4 2 2 5 1 .",
        "1 2 3 3 2 4 4 1 2 5 1 .",
    ]
    votes = [
        (unit, int(value))
        for row in rows
        for unit, value in enumerate(row.split())
        if value != "."
    ]
    assert krippendorff_alpha(votes) == pytest.approx(0.743, abs=5e-4)
    assert math.isnan(krippendorff_alpha([]))
    assert krippendorff_alpha([(1, 0), (1, 1), (2, 1), (2, 0)]) < 0
