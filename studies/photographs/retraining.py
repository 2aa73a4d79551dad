"""Counterfactuals as training data: is a weak classifier better with them than without?

Every image that the weak classifier learnt from is turned into every class that it is not, and the
target counts as its true class. A new classifier learns from both, with as many steps for each
image as the weak one took. A control takes as many steps as the longest of them, with nothing
added.

A counterfactual is *agreed* with if further weak classifiers give it the target class, which needs
no more labels. It is *right* if the judge does, who learnt from all: what a perfect filter would
give.
"""

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
    none = x[:0], y[:0]
    arms: dict[str, tuple[Tensor, Tensor]] = {CONTROL: none}
    for way, some in made.items():
        for name, keep in (("all", some.valid), ("agreed", some.agreed), ("right", some.right)):
            arms[f"{way}, {name}"] = some.x[keep], some.target[keep]
    most = max(len(more) for more, _ in arms.values())
    scores = {
        "weak": evaluate(subject.classifier, tested, truth, rare),
        "strong": evaluate(subject.judge, tested, truth, rare),
    }
    for n, (name, (more, labels)) in enumerate(arms.items()):
        added = most if name == CONTROL else len(more)
        steps = round(schooling.steps * (1 + added / len(x)))
        torch.manual_seed(seed)
        network = vgg16(x.shape[1], len(subject.classes), schooling.width).to(device)
        images, classes = torch.cat([x, more]), torch.cat([y, labels])
        schooling.train(network, images, classes, steps, seed)
        scores[name] = evaluate(BatchedClassifier(network), tested, truth, rare)
        progress((n + 1) / len(arms))
    for name, own in scores.items():
        for metric, value in own.items():
            numbers[f"retraining | {name} | {metric}"] = value
            lead = value - scores[CONTROL][metric]
            numbers[f"retraining | {name} | lead in {metric}"] = lead
    return numbers


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
    right = subject.judge(e.counterfactual).argmax(1) == e.target
    return Counterfactuals(e.counterfactual, e.target, e.valid, e.valid, agreed, right)
