"""Counterfactuals as training data: does a weak classifier learn from them?

Every galaxy of the fifth that the weak classifier was trained on is turned into every class that
it is not; the target counts as its true class. Shares of that are added to the fifth, and a new
classifier is trained. It goes through the galaxies as often as the weak one did, and as often
through what is added, so it is trained for longer; a control has as many steps and nothing added.

Typicality and the agreement of further weak classifiers, the oracles, need no more labels than the
fifth has. Only those that the strong classifier calls *right* do: they tell what a perfect filter
would give.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from leapfactual.explainer import default_batch_size
from leapfactual.explanation import Explanation
from leapfactual.jobs.pairs import all_pairs
from leapfactual.metrics.standard import auroc
from leapfactual.types import Classifier

from .tables import MIN_TYPICALITY, three_ways
from .training import Galaxies, Parts, Settings
from .vgg import BatchedClassifier

SHARES = (0.1, 0.5, 1.0)
BASELINE = "20 %"
LONGER = f"{BASELINE}, longer"


@dataclass(frozen=True, eq=False)
class Counterfactuals:
    """A set of counterfactuals, and which filters each of them passes.

    Arguments:
        x: The images.
        target: The class that each was made for.
        valid: Whether the explained classifier says so.
        typical: Whether it is valid and typical of that class.
        agreed: Whether it is valid and all oracles say so.
        right: Whether the strong classifier says so.
    """

    x: Tensor
    target: Tensor
    valid: Tensor
    typical: Tensor
    agreed: Tensor
    right: Tensor


def make(parts: Parts, train_set: Galaxies, settings: Settings) -> dict[str, Counterfactuals]:
    """Turns every galaxy of the fifth into every other class, in all three ways."""
    sources = train_set.y[parts.few].tolist()
    pairs = torch.tensor(all_pairs(sources, range(len(train_set.classes))))
    rows, target = pairs.to(parts.few.device).T
    pieces: dict[str, list[Counterfactuals]] = {}
    size = default_batch_size(train_set.x)
    for r, t in zip(torch.split(rows, size), torch.split(target, size), strict=True):
        for name, e in three_ways(parts, train_set.x[parts.few[r]], t, settings).items():
            pieces.setdefault(name, []).append(_filter(parts, e))
    return {name: join(made) for name, made in pieces.items()}


@torch.no_grad()
def _filter(parts: Parts, e: Explanation) -> Counterfactuals:
    agreed = e.valid
    for oracle in parts.oracles:
        agreed = agreed & (oracle(e.counterfactual).argmax(1) == e.target)
    typicality = parts.flow.typicality(e.z_counterfactual, e.target)
    right = parts.strong(e.counterfactual).argmax(1) == e.target
    typical = e.valid & (typicality >= MIN_TYPICALITY)
    return Counterfactuals(e.counterfactual, e.target, e.valid, typical, agreed, right)


def join(made: list[Counterfactuals]) -> Counterfactuals:
    """Returns several pieces as one set."""
    names = [field.name for field in fields(Counterfactuals)]
    return Counterfactuals(*(torch.cat([getattr(part, name) for part in made]) for name in names))


@dataclass(frozen=True, eq=False)
class Arm:
    """The training data of one classifier.

    Arguments:
        rows: The galaxies, as rows of the training set.
        made: Counterfactuals that some are taken of.
        keep: Which.
        longer: How much longer than usual to train.
    """

    rows: Tensor
    made: Counterfactuals | None = None
    keep: Tensor | None = None
    longer: float = 1.0

    @property
    def more(self) -> tuple[Tensor, Tensor] | None:
        """The images that are added, and their labels."""
        if self.made is None or self.keep is None:
            return None
        return self.made.x[self.keep], self.made.target[self.keep]


def arms(
    made: dict[str, Counterfactuals], few: Tensor, train_set: Galaxies, rare: int, seed: int
) -> dict[str, Arm]:
    """Returns what is compared.

    Arguments:
        made: The counterfactuals, by the way they were made.
        few: The rows of the fifth.
        train_set: The training set.
        rare: The rarest class.
        seed: What is drawn.
    """
    standard, reliable, gentle = (made[name] for name in ("CE", "reliable CE", "gentle CE"))
    pairs = len(standard.target)
    order = torch.randperm(pairs, generator=torch.Generator().manual_seed(seed)).to(few.device)
    found = {LONGER: Arm(few, longer=1 + pairs / (2 * len(few)))}
    for name in ("CE", "reliable CE"):
        for share in SHARES:
            keep = order[: max(1, round(share * pairs))]
            found[f"{name}, {share:.0%}"] = Arm(few, made[name], keep)
    of_rare, even = gentle.agreed & (gentle.target == rare), oversample(few, train_set.y)
    return found | {
        "reliable CE, agreed": Arm(few, reliable, reliable.agreed),
        "reliable CE, right": Arm(few, reliable, reliable.right),
        "gentle CE, 100%": Arm(few, gentle, order),
        "gentle CE, typical": Arm(few, gentle, gentle.typical),
        "gentle CE, agreed": Arm(few, gentle, gentle.agreed),
        "gentle CE of the rarest class, agreed": Arm(few, gentle, of_rare),
        "repeated": Arm(even),
        "repeated, gentle CE of the rarest class, agreed": Arm(even, gentle, of_rare),
    }


def rarest(y: Tensor) -> int:
    """Returns the class with the fewest galaxies, of those that have any.

    Example:
        >>> rarest(torch.tensor([0, 0, 0, 2, 2, 3]))
        3
    """
    count = y.bincount()
    return int(torch.where(count > 0, count, len(y) + 1).argmin())


def oversample(rows: Tensor, y: Tensor) -> Tensor:
    """Repeats rows until every class has as many as the largest: what one would try first.

    Example:
        >>> oversample(torch.arange(4), torch.tensor([0, 0, 0, 1]))
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
    rare = rarest(train_set.y[parts.few])
    pace = train_set.pace(parts.few, settings.weak_epochs, settings.least_steps)
    baseline = evaluate(parts.weak, test_set.x, test_set.y, rare)
    numbers = {f"{name}: retraining | {BASELINE} | {m}": v for m, v in baseline.items()}

    def note(method: str, classifier: BatchedClassifier) -> None:
        for metric, value in evaluate(classifier, test_set.x, test_set.y, rare).items():
            numbers[f"{name}: retraining | {method} | {metric}"] = value
            gain = value - baseline[metric]
            numbers[f"{name}: retraining | {method} | gain in {metric}"] = gain

    note("100 %", parts.strong)
    made = make(parts, train_set, settings)
    progress("counterfactuals")
    for method, arm in arms(made, parts.few, train_set, rare, seed).items():
        steps = pace * arm.longer
        found = train_set.learn(arm.rows, arm.more, settings, steps=steps, seed=seed)
        note(method, found)
        progress(f"retrained with {method}")
    return numbers | {
        f"{name}: counterfactuals to train on | {way} | {what}": value
        for way, of in made.items()
        for what, value in describe(of).items()
    }


def leads(numbers: Mapping[str, float | None]) -> dict[str, float]:
    """Returns what every classifier of a run has over the one trained for longer on nothing new.

    That one takes as many steps as those that get all counterfactuals, so their lead is due to
    what was added and not to how long it was learnt. Those that get fewer stop sooner.

    Example:
        >>> leads({"toy | CE | ACC": 0.5, "toy | 20 %, longer | ACC": 0.25})
        {'toy | CE | lead in ACC': 0.25}
    """
    found = {}
    for key, value in numbers.items():
        setting, method, metric = key.split(" | ")
        control = numbers.get(f"{setting} | {LONGER} | {metric}")
        if value is None or control is None or method == LONGER or metric.startswith("gain"):
            continue
        found[f"{setting} | {method} | lead in {metric}"] = value - control
    return found


def describe(of: Counterfactuals) -> dict[str, float]:
    """Returns the share of counterfactuals that pass each filter, and how many of those are right.

    Right is what the strong classifier says.
    """

    def share(of_these: Tensor) -> float:
        return of_these.double().mean().item()

    return {
        "valid": share(of.valid),
        "typical": share(of.typical),
        "agreed": share(of.agreed),
        "right": share(of.right),
        "right, of typical": share(of.right[of.typical]),
        "right, of agreed": share(of.right[of.agreed]),
    }


def evaluate(classifier: Classifier, x: Tensor, y: Tensor, rare: int) -> dict[str, float]:
    """Returns accuracy, area under the curve, balanced accuracy and that on the rarest class.

    Classes of which there is no test galaxy do not count.
    """
    p = classifier(x)
    right = (p.argmax(1) == y).double()
    of_class = torch.stack([right[y == k].mean() for k in range(p.shape[1])])
    return {
        "ACC": right.mean().item(),
        "AUC": auroc(torch.cat([p.double(), y[:, None].double()], 1)).item(),
        "balanced ACC": of_class.nanmean().item(),
        "ACC on the rarest class": of_class[rare].item(),
    }
