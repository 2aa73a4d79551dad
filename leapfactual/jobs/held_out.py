"""Plans tried on held-out images, each image with a target drawn for it.

Every plan walks the same images to the same targets, so that two plans are compared image by
image: what makes one image hard makes it hard for both. That tells a worse plan from chance on a
few dozen images already, and it is given up there. What a plan gave is kept on disk, so that a
search which was interrupted does not begin again.
"""

import copy
import json
import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from .. import checks
from .._engine.memory import in_halves
from ..errors import InputError
from ..explainer import LeapFactual, default_batch_size
from ..files import fingerprint
from ..flow import Flow
from ..leaps import Plan, RatedPlan, describe
from ..metrics import l1
from ..solvers import FixedStep
from ..types import Classifier, Generator, no_op
from .job import typicality
from .pairs import random_targets

BATCH_SIZE, PAIRS_AT_A_TIME = 1024, 64
# After so many images a plan may be given up. A GPU walks all of them in the time of a few.
ROUNDS = (16, 32, 64, 128)

Distance = Callable[[Tensor, Tensor], Tensor]
# What a plan gave for each image, by the name of the number.
Values = dict[str, Tensor]


class HeldOut:
    """Creates a trial of plans on held-out images.

    The images are encoded, decoded and classified once, here. A class that the flow never saw is
    no target: nothing can reach it, and no plan is to blame.

    Arguments:
        generator: The generator.
        classifier: The classifier to explain.
        flow: The flow, whose :meth:`Flow.fit_typicality` was called.
        x: Images that nothing was trained on; a few hundred. The more, the finer the comparison.
        oracle: A second, independent classifier.
        distance: A distance between two batches of images, with one value each, that plans are
            compared by too, as the share of the distance between random images.
        seed: The seed of the target classes.
        kept: A file to keep in what plans gave. If it exists, they are not walked again.
        on_batch: Called now and then while the images are encoded and decoded.
    """

    def __init__(
        self,
        generator: Generator,
        classifier: Classifier,
        flow: Flow,
        x: Tensor,
        *,
        oracle: Classifier | None = None,
        distance: Distance | None = None,
        seed: int = 0,
        kept: Path | None = None,
        on_batch: Callable[[], object] = no_op,
    ) -> None:
        checks.images(x)
        if len(x) < 2:
            raise InputError(f"`x` must hold at least two images to try plans on, got {len(x)}.")
        self.generator, self.classifier, self.flow = generator, classifier, flow
        self.x, self.oracle = x, oracle

        def convert(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
            parts = []
            for part in torch.split(rows, default_batch_size(x)):
                parts.append(in_halves(function, part))
                on_batch()
            return torch.cat(parts)

        with torch.no_grad():
            self.z = convert(generator.encode, x)
            self.reconstruction = convert(generator.decode, self.z)
        self.source = labels_of(classifier, self.reconstruction)
        seen = (~flow.quantiles.isnan().all(1)).nonzero()[:, 0].tolist()
        among = seen if 1 < len(seen) < flow.classes else None
        self.target = random_targets(self.source, flow.classes, seed, among)
        self.distance = None if distance is None else relative(distance, x)
        self.walks = Walks(kept, self._identity() if kept is not None else "")

    def _identity(self) -> str:
        """Returns a fingerprint of everything that decides what a plan gives."""
        parts = [*self.flow.state_dict().values(), self.x, self.reconstruction, self.target]
        if isinstance(self.generator, nn.Module):
            parts += self.generator.state_dict().values()
        if self.oracle is not None:
            parts.append(labels_of(self.oracle, self.x))
        return fingerprint(repr(self.flow.solver), *parts)

    @property
    def rounds(self) -> tuple[int, ...]:
        """How many images a plan has walked when it may be given up, and all of them."""
        n = len(self.x)
        return (n,) if self.x.is_cuda else (*(r for r in ROUNDS if r < n), n)

    def first(self, n: int) -> Self:
        """Returns the trial on the first ``n`` of the images."""
        if n >= len(self.x):
            return self
        part = copy.copy(self)
        for name in ("x", "z", "reconstruction", "source", "target"):
            setattr(part, name, getattr(self, name)[:n])
        return part

    def own_agreement(self) -> float:
        """Returns the share of the images themselves that oracle and classifier agree on."""
        assert self.oracle is not None
        same = labels_of(self.oracle, self.x) == labels_of(self.classifier, self.x)
        return same.double().mean().item()

    def own_typicality(self) -> float:
        """Returns the median typicality of the images themselves, of their own class."""
        ranks = typicality(self.generator, self.flow, self.reconstruction, self.source)
        return ranks.nan_to_num(0.0).median().item()

    def rate(
        self,
        plan: Plan,
        solver: FixedStep | None = None,
        *,
        typical: bool = True,
        keep_pixels: bool = False,
    ) -> RatedPlan:
        """Explains the images with a plan and returns the plan with what it gave.

        Arguments:
            plan: The plan.
            solver: Its solver. Defaults to the flow's own.
            typical: Whether to measure typicality, which costs a density for each image.
            keep_pixels: Whether to keep the input's own pixels where nothing has changed.
        """
        values = self.values(plan, solver, typical=typical, keep_pixels=keep_pixels)
        return RatedPlan(plan, 0.0, summarize(values), solver)

    def values(
        self,
        plan: Plan,
        solver: FixedStep | None = None,
        *,
        typical: bool = True,
        keep_pixels: bool = False,
    ) -> Values:
        """Returns what a plan gives for each image; see :meth:`rate`."""
        flow = self.flow if solver is None else self.flow.with_solver(solver)
        explainer = LeapFactual(
            self.generator, self.classifier, flow, plan, keep_pixels=keep_pixels
        )
        parts: list[Values] = []
        for start, end in pairwise((0, *self.rounds)):
            key = repr([describe(plan), repr(solver), typical, keep_pixels, start, end])
            if key not in self.walks:
                self.walks.put(key, self._walk(explainer, slice(start, end), typical))
            parts.append(self.walks.get(key))
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _walk(self, explainer: LeapFactual, rows: slice, typical: bool) -> Values:
        x, target = self.x[rows], self.target[rows]
        e = explainer.explain(x, target, self.z[rows])
        values = {"validity": e.valid, "L1": l1(e), "queries": e.queries}
        if self.distance is not None:
            values["distance"] = self.distance(e.counterfactual, x)
        if typical:
            ranks = typicality(self.generator, explainer.flow, e.counterfactual, target)
            values["typicality"] = ranks.nan_to_num(0.0)
        if self.oracle is not None:
            labels = labels_of(self.oracle, e.counterfactual).to(target.device)
            values["oracle"] = labels == target
        return {name: value.double().cpu() for name, value in values.items()}


class Walks:
    """Creates a record of what plans gave, in memory and in a file if there is one.

    The file has a line of JSON for each walk. One that was cut off by a kill is dropped, and so is
    all that was written for other networks or images.

    Arguments:
        path: The file.
        identity: What decides what a plan gives.
    """

    def __init__(self, path: Path | None = None, identity: str = "") -> None:
        self.path, self.known = path, dict[str, Values]()
        if path is None:
            return
        text = path.read_text() if path.exists() else ""
        lines, head = text.splitlines(), json.dumps({"identity": identity})
        if lines[:1] != [head]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(head + "\n")
            return
        if not text.endswith("\n"):
            with path.open("a") as file:
                file.write("\n")
        for line in lines[1:]:
            try:
                key, values = json.loads(line)
            except ValueError:
                continue
            self.known[key] = {
                name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()
            }

    def __contains__(self, key: str) -> bool:
        return key in self.known

    def get(self, key: str) -> Values:
        """Returns what a walk gave."""
        return self.known[key]

    def put(self, key: str, values: Values) -> None:
        """Keeps what a walk gave."""
        self.known[key] = values
        if self.path is not None:
            listed = {name: value.tolist() for name, value in values.items()}
            with self.path.open("a") as file:
                file.write(json.dumps([key, listed]) + "\n")


def summarize(values: Mapping[str, Tensor]) -> dict[str, float]:
    """Returns a number for all images: the median for typicality, the mean for all others."""
    return {
        name: (value.median() if name == "typicality" else value.mean()).item()
        for name, value in values.items()
    }


def surely_above(difference: Tensor) -> bool:
    """Returns whether a mean is above zero by more than thrice its standard error.

    Example:
        >>> surely_above(torch.tensor([1.0, 1.1, 0.9])), surely_above(torch.tensor([1.0, -0.9]))
        (True, False)
    """
    error = difference.std() / math.sqrt(len(difference)) if len(difference) > 1 else math.inf
    return bool(difference.mean() > 3 * error)


@torch.no_grad()
def labels_of(classifier: Classifier, x: Tensor) -> Tensor:
    """Returns the classes of images."""
    parts = torch.split(x, BATCH_SIZE)
    return torch.cat([in_halves(classifier, part).argmax(1) for part in parts])


def relative(distance: Distance, x: Tensor) -> Distance:
    """Returns a distance in shares of that between images that have nothing to do with another."""

    @torch.no_grad()
    def pairs(a: Tensor, b: Tensor) -> Tensor:
        parts = zip(torch.split(a, PAIRS_AT_A_TIME), torch.split(b, PAIRS_AT_A_TIME), strict=True)
        return torch.cat([distance(*part) for part in parts])

    between = pairs(x, x.roll(max(1, len(x) // 2), 0)).mean()
    return lambda a, b: pairs(a, b) / between
