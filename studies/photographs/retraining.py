"""Counterfactuals as training data: is a weak classifier better with them than without?

Every image that the weak classifier learnt from is turned into every class that it is not, and the
target counts as its true class. New classifiers learn from both. All of them take as many steps,
a control with nothing added too, so that what it leads by is due to what was added.

A counterfactual is *agreed* with if further weak classifiers give it the target class, which needs
no more labels. It is *right* if the oracle does, who learnt from all: what a perfect filter would
give.

Most classes are those that an image is not, so that counterfactuals make rare classes as frequent
as others, and a classifier expects them as often. With *half*, counterfactuals are half of what is
learnt from, and classes stay as frequent as they were.
"""

import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from leapfactual.bundle import Bundle
from leapfactual.explanation import Explanation
from leapfactual.jobs.pairs import all_pairs

from ..galaxies.improvement import Counterfactuals, describe, evaluate, join, rarest
from ..galaxies.vgg import BatchedClassifier, vgg16
from .subjects import Schooling, Subject
from .tables import BATCH_SIZE, WAYS, explainer_of

CONTROL = "weak, longer"
# Networks of each kind, whose scores are averaged: one alone is off by a point.
NETWORKS = 2


def measure_retraining(
    bundle: Bundle,
    subject: Subject,
    schooling: Schooling,
    device: str,
    seed: int,
    progress: Callable[[float], object],
) -> dict[str, float]:
    """Returns how well classifiers do with counterfactuals, by ``what | way | metric``."""
    assert subject.rows is not None
    assert subject.train.labels is not None
    assert subject.test.labels is not None
    x = subject.train[subject.rows].to(device)
    y = subject.train.labels[subject.rows].to(device)
    tested, truth = subject.test[:].to(device), subject.test.labels.to(device)
    rare = rarest(y)
    made = {way: make(bundle, subject, number, x, y) for way, number in WAYS.items()}
    numbers = {
        f"counterfactuals to train on | {way} | {name}": value
        for way, some in made.items()
        for name, value in describe(some).items()
    }
    plain, reliable = made["plain"], made["reliable"]
    arms: dict[str, tuple[Counterfactuals, Tensor, bool]] = {
        CONTROL: (plain, torch.zeros_like(plain.valid), False),
        "plain, all": (plain, plain.valid, False),
        "reliable, all": (reliable, reliable.valid, False),
        "reliable, agreed": (reliable, reliable.agreed, False),
        "reliable, agreed, half": (reliable, reliable.agreed, True),
        "reliable, right, half": (reliable, reliable.right, True),
    }
    most = max(int(keep.sum()) for _, keep, _ in arms.values())
    steps = round(schooling.steps * (1 + most / len(x)))
    scores = {
        "weak": evaluate(subject.classifier, tested, truth, rare),
        "strong": evaluate(subject.oracle, tested, truth, rare),
    }
    for n, (name, (some, keep, half)) in enumerate(arms.items()):
        images, classes = torch.cat([x, some.x[keep]]), torch.cat([y, some.target[keep]])
        weights = half_each(y, some.target[keep]) if half else torch.ones(len(classes))
        found = []
        for m in range(NETWORKS):
            torch.manual_seed(seed + m)
            network = vgg16(x.shape[1], len(subject.classes), schooling.width).to(device)
            schooling.train(network, images, classes, steps, seed + m, weights)
            found.append(evaluate(BatchedClassifier(network), tested, truth, rare))
            progress((n + (m + 1) / NETWORKS) / len(arms))
        scores[name] = {k: statistics.fmean(own[k] for own in found) for k in found[0]}
    for name, own in scores.items():
        for metric, value in own.items():
            numbers[f"retraining | {name} | {metric}"] = value
            lead = value - scores[CONTROL][metric]
            numbers[f"retraining | {name} | lead in {metric}"] = lead
    return numbers


def half_each(real: Tensor, made: Tensor) -> Tensor:
    """Returns how often to draw each image, so that half are real and classes keep their shares.

    A class of which nothing was made is drawn from the real images alone.

    Arguments:
        real: The classes of the real images.
        made: The classes of the others, which stand behind them.

    Example:
        >>> half_each(torch.tensor([0, 0, 0, 1]), torch.tensor([1, 1, 1, 0]))
        tensor([0.5000, 0.5000, 0.5000, 0.5000, 0.1667, 0.1667, 0.1667, 1.5000])
    """
    real, made = real.cpu(), made.cpu()
    classes = int(torch.cat([real, made]).max()) + 1
    of_real, of_made = real.bincount(minlength=classes), made.bincount(minlength=classes)
    halved = torch.where(of_made > 0, 0.5, 1.0)
    return torch.cat([halved[real], 0.5 * of_real[made] / of_made[made]])


def make(bundle: Bundle, subject: Subject, number: int, x: Tensor, y: Tensor) -> Counterfactuals:
    """Turns every image into every class that it is not, with one of the bundle's plans."""
    explainer = explainer_of(bundle, subject, number)
    pairs = torch.tensor(all_pairs(y.tolist(), range(len(subject.classes)))).to(y.device)
    return join(
        [
            _filter(subject, explainer.explain(x[rows], target))
            for rows, target in (part.T for part in torch.split(pairs, BATCH_SIZE))
        ]
    )


@torch.no_grad()
def _filter(subject: Subject, e: Explanation) -> Counterfactuals:
    agreed = e.valid
    for classifier in subject.filters:
        agreed = agreed & (classifier(e.counterfactual).argmax(1) == e.target)
    right = subject.oracle(e.counterfactual).argmax(1) == e.target
    return Counterfactuals(e.counterfactual, e.target, e.valid, e.valid, agreed, right)
