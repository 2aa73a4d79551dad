r"""Consensus: which outcome the votes on a picture amount to, and how far people agree.

An answer is the number of a class, or one of two that name none: *unsure*, which counts as a vote
and for nothing, and *implausible*, for a picture that is not believable, which is an outcome as a
class is.

*Majority*: at least so many people, of whom a share agrees. *Dawid–Skene*: every person has a
confusion matrix, from gold tasks and from what was decided before; the posterior of an outcome is

.. math:: p(k) \propto \prod_a \pi_a(k, \text{answer}_a) ,

so that who answers at random counts for nothing. Either way a tie is never broken: at the largest
number of votes there is *no consensus*, and an adjudicator decides.

References:
    | Maximum Likelihood Estimation of Observer Error-Rates Using the EM Algorithm
    | (Dawid & Skene, 1979)
    | https://doi.org/10.2307/2346806
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError

UNSURE, IMPLAUSIBLE, NO_CONSENSUS = -1, -2, -3
MAJORITY, DAWID_SKENE = "majority", "dawid-skene"
METHODS = (MAJORITY, DAWID_SKENE)
# So that two votes of three are a share of 2/3, whatever floating point makes of it.
EPS = 1e-9
# Beta(2, 1) prior of how often a person is right: two of three for somebody who was never seen.
PRIOR_RIGHT, PRIOR_WRONG = 2.0, 1.0
# Dirichlet pseudo-counts of a row of the confusion matrix: four answers seen outweigh the prior.
PRIOR_ROW = 4.0

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Rule:
    """Creates a rule, which says when votes on a picture are a consensus.

    Arguments:
        least: How many people must have voted.
        share: Which share of them must agree, by majority.
        most: With how many votes there is no consensus, if there was none before.
        method: ``majority`` or ``dawid-skene``.
        posterior: Which posterior an outcome must have, by Dawid–Skene.

    Example:
        >>> Rule(least=3, share=0.6).decide([4, 4, 9])
        4
    """

    least: int = 3
    share: float = 2 / 3
    most: int = 7
    method: str = MAJORITY
    posterior: float = 0.95

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InputError(f"`method` must be one of {list(METHODS)}, got {self.method!r}.")
        if not 1 <= self.least <= self.most:
            raise InputError(
                f"the rule wants at least {self.least} votes and at most {self.most}. Give "
                "1 <= least <= most."
            )
        if not 0.5 < self.share <= 1 or not 0.5 < self.posterior < 1:
            raise InputError(
                "`share` must be above 1/2 and up to 1, `posterior` above 1/2 and below 1, got "
                f"{self.share!r} and {self.posterior!r}: half is a tie."
            )
        if self.method == DAWID_SKENE and self.least < 3:
            raise InputError(
                f"Dawid–Skene wants at least three people, got `least` = {self.least}."
            )

    def decide(
        self, answers: Sequence[int], confusions: Sequence[Floats] | None = None
    ) -> int | None:
        """Returns the outcome of answers, in whatever order; none if more votes are needed.

        Arguments:
            answers: One answer of each person.
            confusions: The :func:`confusion_matrix` of each person, for Dawid–Skene.
        """
        if len(answers) < self.least:
            return None
        if self.method == MAJORITY:
            outcome = self._majority(answers)
        else:
            if confusions is None:
                raise InputError("Dawid–Skene needs the confusion matrix of each person.")
            outcome = self._posterior(answers, confusions)
        return NO_CONSENSUS if outcome is None and len(answers) >= self.most else outcome

    def _majority(self, answers: Sequence[int]) -> int | None:
        counts = Counter(answer for answer in answers if answer != UNSURE)
        top = max(counts.values(), default=0)
        enough = top >= self.share * len(answers) - EPS
        return counts.most_common(1)[0][0] if enough and top else None

    def _posterior(self, answers: Sequence[int], confusions: Sequence[Floats]) -> int | None:
        p = posterior(answers, confusions)
        best = int(p.argmax())
        return _outcome(best, len(p)) if p[best] >= self.posterior else None


def _outcome(index: int, outcomes: int) -> int:
    """Returns the answer for a row of a confusion matrix; the last one is *implausible*."""
    return IMPLAUSIBLE if index == outcomes - 1 else index


def _column(answer: int, classes: int) -> int:
    """Returns the column of an answer: the classes, then *implausible*, then *unsure*."""
    return {IMPLAUSIBLE: classes, UNSURE: classes + 1}.get(answer, answer)


def confusion_matrix(counts: Mapping[tuple[int, int], float], classes: int) -> Floats:
    r"""Returns the confusion matrix of a person, ``(K + 1, K + 2)``: a row for every truth.

    People see few pictures of each class, so rows share a prior. With the posterior mean
    :math:`\rho` of how often the person is right at all, row :math:`k` is the mean of a Dirichlet
    distribution with pseudo-counts :math:`s \rho` for the right answer and
    :math:`s (1 - \rho) / (K + 1)` for each of the others, plus what was seen of that class.

    Arguments:
        counts: How often the person gave an answer to a truth, ``{(truth, answer): count}``.
        classes: The number of classes K.

    Example:
        >>> confusion_matrix({}, 2).round(2)
        array([[0.67, 0.11, 0.11, 0.11],
               [0.11, 0.67, 0.11, 0.11],
               [0.11, 0.11, 0.67, 0.11]])
    """
    right = sum(count for (truth, answer), count in counts.items() if truth == answer)
    share = (right + PRIOR_RIGHT) / (sum(counts.values()) + PRIOR_RIGHT + PRIOR_WRONG)
    alpha = np.full((classes + 1, classes + 2), PRIOR_ROW * (1 - share) / (classes + 1))
    alpha[np.arange(classes + 1), np.arange(classes + 1)] = PRIOR_ROW * share
    for (truth, answer), count in counts.items():
        alpha[_column(truth, classes), _column(answer, classes)] += count
    matrix: Floats = alpha / alpha.sum(1, keepdims=True)
    return matrix


def posterior(answers: Sequence[int], confusions: Sequence[Floats]) -> Floats:
    """Returns the probability of every outcome, the classes and then *implausible*.

    Who is unsure says nothing, however telling that may be of them.
    """
    classes = confusions[0].shape[0] - 1
    logs = np.zeros(classes + 1)
    for answer, matrix in zip(answers, confusions, strict=True):
        if answer != UNSURE:
            logs += np.log(matrix[:, _column(answer, classes)])
    p = np.exp(logs - np.max(logs))
    normalized: Floats = p / p.sum()
    return normalized


@dataclass(frozen=True, eq=False)
class DawidSkene:
    """The estimates of the EM algorithm, from all votes at once.

    Arguments:
        posteriors: The probability of every outcome for each task, ``{task: (K + 1,)}``.
        confusions: The confusion matrix of every person, ``{person: (K + 1, K + 2)}``.
        iterations: How many iterations it took.
    """

    posteriors: dict[int, Floats]
    confusions: dict[int, Floats]
    iterations: int

    def accuracy(self, person: int) -> float:
        r"""Returns how often a person is right, :math:`\sum_k p(k) \, \pi(k, k)`.

        The prior :math:`p(k)` of the classes is that of the votes at hand.
        """
        prior = np.mean(list(self.posteriors.values()), axis=0)
        return float(prior @ self.confusions[person].diagonal())


def dawid_skene(
    votes: Sequence[tuple[int, int, int]],
    classes: int,
    gold: Mapping[int, int] | None = None,
    *,
    iterations: int = 100,
    tolerance: float = 1e-6,
    smoothing: float = 0.01,
) -> DawidSkene:
    """Estimates truths and confusion matrices from all votes, by expectation maximization.

    Arguments:
        votes: One ``(task, person, answer)`` each.
        classes: The number of classes.
        gold: Truths that are known, by task.
        iterations: How many iterations at most.
        tolerance: The change of posteriors at which to stop.
        smoothing: What is added to every count.
    """
    gold = gold or {}
    tasks, people = (sorted({vote[k] for vote in votes}) for k in (0, 1))
    task = _index(tasks, [v[0] for v in votes])
    person = _index(people, [v[1] for v in votes])
    answer = np.array([_column(v[2], classes) for v in votes], int)
    outcomes = classes + 1
    known = np.full((len(tasks), outcomes), np.nan)
    for row, name in enumerate(tasks):
        if name in gold:
            known[row] = np.eye(outcomes)[_column(gold[name], classes)]
    fixed = ~np.isnan(known[:, 0])
    p = np.full((len(tasks), outcomes), smoothing)
    named = answer < outcomes
    np.add.at(p, (task[named], answer[named]), 1.0)
    p /= p.sum(1, keepdims=True)
    p[fixed] = known[fixed]
    done = 0
    matrices = np.empty((len(people), outcomes, outcomes + 1))
    while done < iterations:
        done += 1
        matrices = np.full((len(people), outcomes, outcomes + 1), smoothing)
        np.add.at(matrices.transpose(0, 2, 1), (person, answer), p[task])
        matrices /= matrices.sum(2, keepdims=True)
        prior = p.mean(0) + 1e-12
        logs = np.tile(np.log(prior), (len(tasks), 1))
        np.add.at(logs, task, np.log(matrices[person, :, answer]))
        new = np.exp(logs - logs.max(1, keepdims=True))
        new /= new.sum(1, keepdims=True)
        new[fixed] = known[fixed]
        moved = float(np.abs(new - p).max()) if len(tasks) else 0.0
        p = new
        if moved < tolerance:
            break
    return DawidSkene(
        dict(zip(tasks, p, strict=True)), dict(zip(people, matrices, strict=True)), done
    )


def _index(names: Sequence[int], values: Sequence[int]) -> NDArray[np.int64]:
    place = {name: n for n, name in enumerate(names)}
    return np.array([place[value] for value in values], np.int64)


def krippendorff_alpha(votes: Sequence[tuple[int, int]]) -> float:
    """Returns Krippendorff's α of ``(task, answer)`` for nominal answers; NaN where there is none.

    One is full agreement, zero what chance would give.

    Example:
        >>> krippendorff_alpha([(1, 0), (1, 0), (2, 1), (2, 1)])
        1.0
    """
    units: dict[int, Counter[int]] = {}
    for task, answer in votes:
        units.setdefault(task, Counter())[answer] += 1
    paired = [unit for unit in units.values() if unit.total() > 1]
    total: Counter[int] = Counter()
    for unit in paired:
        total.update(unit)
    n = total.total()
    if n < 2:
        return math.nan
    observed = sum(
        sum(c * (unit.total() - c) for c in unit.values()) / (unit.total() - 1) for unit in paired
    )
    expected = sum(c * (n - c) for c in total.values()) / (n - 1)
    return 1.0 - observed / expected if expected else 1.0
