"""Counterfactuals as training data: does a weak classifier learn from them?

Every galaxy of the fifth that the weak classifier was trained on is turned into every class that
it is not; the target counts as its true class. Shares of that are added to the fifth, and a new
classifier is trained for as long as the weak one was.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from ...augmenting import chosen_pairs
from ...explanation import Explanation
from ...metrics.table import auroc
from .parts import Galaxies, Parts, Settings
from .tables import TYPICAL, three_ways
from .vgg import Asked

SHARES = (0.1, 0.5, 1.0)
BATCH = 4096


@dataclass(frozen=True, eq=False)
class Made:
    """Is a set of counterfactuals with what can be known of each without further labels.

    Arguments:
        x: The images.
        target: The class that each was made for.
        valid: Whether the explained classifier says so.
        typical: Whether it is typical of that class.
        agreed: Whether all judges say so.
    """

    x: Tensor
    target: Tensor
    valid: Tensor
    typical: Tensor
    agreed: Tensor

    def only(self, keep: Tensor) -> tuple[Tensor, Tensor]:
        """Returns images and labels of some."""
        return self.x[keep], self.target[keep]


def make(parts: Parts, train_set: Galaxies, settings: Settings) -> dict[str, Made]:
    """Turns every galaxy of the fifth into every other class, in all three ways."""
    sources = train_set.y[parts.few].tolist()
    pairs = torch.tensor(chosen_pairs(sources, range(len(train_set.classes))))
    rows, target = pairs.to(parts.few.device).T
    pieces: dict[str, list[Made]] = {}
    for r, t in zip(torch.split(rows, BATCH), torch.split(target, BATCH), strict=True):
        for name, e in three_ways(parts, train_set.x[parts.few[r]], t, settings).items():
            pieces.setdefault(name, []).append(_judged(parts, e))
    return {name: _joined(made) for name, made in pieces.items()}


@torch.no_grad()
def _judged(parts: Parts, e: Explanation) -> Made:
    agreed = torch.ones_like(e.valid)
    for judge in parts.judges:
        agreed &= judge(e.counterfactual).argmax(1) == e.target
    typical = parts.flow.typicality(e.z_counterfactual, e.target) >= TYPICAL
    return Made(e.counterfactual, e.target, e.valid, typical, agreed)


def _joined(made: list[Made]) -> Made:
    names = [field.name for field in fields(Made)]
    return Made(*(torch.cat([getattr(part, name) for part in made]) for name in names))


def arms(
    parts: Parts,
    train_set: Galaxies,
    settings: Settings,
    seed: int,
    note: Callable[[str, float], object],
) -> dict[str, tuple[Tensor, tuple[Tensor, Tensor] | None]]:
    """Returns what is trained on: rows of the training set, and what is added to them.

    Arguments:
        parts: The parts of a run.
        train_set: The training set.
        settings: The study's settings.
        seed: What is drawn.
        note: Is told the share of counterfactuals that pass each filter.
    """
    made = make(parts, train_set, settings)
    random = torch.Generator().manual_seed(seed)
    found: dict[str, tuple[Tensor, tuple[Tensor, Tensor] | None]] = {}
    for name in ("CE", "reliable CE"):
        of = made[name]
        order = torch.randperm(len(of.target), generator=random).to(of.target.device)
        for share in SHARES:
            keep = order[: max(1, round(share * len(order)))]
            found[f"{name}, {share:.0%}"] = parts.few, of.only(keep)
    of = made["reliable CE"]
    found["reliable CE, agreed"] = parts.few, of.only(of.valid & of.agreed)
    of = made["gentle CE"]
    found["gentle CE, 100%"] = parts.few, of.only(of.target >= 0)
    found["gentle CE, typical"] = parts.few, of.only(of.valid & of.typical)
    found["gentle CE, agreed"] = parts.few, of.only(of.valid & of.agreed)
    for name, of in made.items():
        for filtered in ("valid", "typical", "agreed"):
            note(f"{name} | {filtered}", getattr(of, filtered).double().mean().item())
        trusted = parts.strong(of.x).argmax(1) == of.target
        note(f"{name} | strong says so", trusted.double().mean().item())
        note(f"{name} | strong says so, of agreed", trusted[of.agreed].double().mean().item())
        note(f"{name} | strong says so, of typical", trusted[of.typical].double().mean().item())
    of, rare = made["gentle CE"], rarest(train_set.y[parts.few], len(train_set.classes))
    found["repeated"] = evened(parts.few, train_set.y), None
    found["gentle CE, rarest class, agreed"] = (
        parts.few,
        of.only((of.target == rare) & of.valid & of.agreed),
    )
    return found


def rarest(y: Tensor, classes: int) -> int:
    """Returns the class with the fewest galaxies."""
    return int(y.bincount(minlength=classes).argmin())


def evened(rows: Tensor, y: Tensor) -> Tensor:
    """Repeats rows until every class has as many as the largest: what one would try first.

    Example:
        >>> evened(torch.arange(4), torch.tensor([0, 0, 0, 1]))
        tensor([0, 1, 2, 3, 3, 3])
    """
    kinds = y[rows]
    most = int(kinds.bincount().max())
    parts = []
    for kind in sorted(set(kinds.tolist())):
        own = rows[kinds == kind]
        parts.append(own.repeat(-(-most // len(own)))[:most])
    return torch.cat(parts)


def measure_improvement(
    parts: Parts,
    train_set: Galaxies,
    test_set: Galaxies,
    settings: Settings,
    seed: int,
    name: str,
    progress: Callable[[str], object],
) -> dict[str, float]:
    """Returns how well each classifier does, by ``setting | method | metric``."""
    numbers: dict[str, float] = {}
    rare = rarest(train_set.y, len(train_set.classes))
    baseline = tested(parts.weak, test_set, rare)

    def note(what: str, value: float) -> None:
        numbers[f"{name}: counterfactuals to train on | {what}"] = value

    def test(method: str, classifier: Asked) -> None:
        for metric, value in tested(classifier, test_set, rare).items():
            numbers[f"{name}: retraining | {method} | {metric}"] = value
            gain = value - baseline[metric]
            numbers[f"{name}: retraining | {method} | gain in {metric}"] = gain

    test("20 %", parts.weak)
    test("100 %", parts.strong)
    steps = settings.classifier_steps
    for method, (rows, more) in arms(parts, train_set, settings, seed, note).items():
        found = train_set.learn(rows, more, settings, steps=steps, seed=seed)
        test(method, found)
        progress(f"retrained with {method}")
    return numbers


def tested(classifier: Asked, test_set: Galaxies, rare: int) -> dict[str, float]:
    """Returns accuracy, area under the curve, balanced accuracy and that on the rarest class."""
    p = classifier(test_set.x)
    right = (p.argmax(1) == test_set.y).double()
    of_class = [right[test_set.y == k].mean().item() for k in range(len(test_set.classes))]
    return {
        "ACC": right.mean().item(),
        "AUC": auroc(torch.cat([p.double(), test_set.y[:, None].double()], 1)).item(),
        "balanced ACC": sum(of_class) / len(of_class),
        "ACC on the rarest class": of_class[rare],
    }
