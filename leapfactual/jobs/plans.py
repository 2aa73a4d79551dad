"""Choosing a plan by trying some on held-out images, instead of guessing.

A counterfactual may stop just across the boundary or go on to where the class's own images are.
What lies between is a trade of distance against typicality. PlanSearch walks held-out images to
another class with several plans, measures what each gives, and keeps those that no other beats: a
*front* of plans, from reliability 0, just across the boundary, to 1, as typical as the class's
own images. A second classifier, if there is one, has its say about the top.

Typicality is that of the counterfactual as an *image*: it is encoded anew, and the percentile of
that latent's density among the class's own latents is taken. The latent that a walk ends at would
not do: where the generator ignores some of its features, leaps drift in them, which no image shows
and no density forgives. The class's own images are measured in the same way, decoded and encoded
anew, which makes them a little smoother and more typical than the originals.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .. import checks
from ..errors import InputError
from ..explainer import LeapFactual
from ..flow import Flow
from ..leaps import Leaps, Plan, RatedPlan, blend, describe, inject, tighten
from ..metrics import l1
from ..solvers import RK4, FixedStep, Midpoint
from ..types import Classifier, Generator
from .job import typicality

STEPS = (0.05, 0.1, 0.2, 0.4)
WAY = {True: 3.0, False: 6.0}
INJECTIONS = ((0.0, 0.1), (0.1, 0.2))
NUMBERS = (1, 2, 3, 4, 5, 8)
CAREFUL = 0.1
HALVINGS = 8
SLACK = 0.005
APART = 0.1
FAST_BLENDS = ((3, 0.35), (3, 0.5), (4, 0.3), (4, 0.35), (5, 0.25), (6, 0.25))
FAST_INJECTIONS = (
    ((0.2, 1.0),),
    ((0.3, 1.0),),
    ((0.4, 0.998),),
    ((0.2, 0.999), (0.3, 0.99)),
    ((0.2, 0.999), (0.5, 0.995)),
    ((0.15, 0.9995), (0.3, 0.995)),
)
FAST_STEPS = (1, 2)
A_QUESTION = 12
DEARER = 1.25
NEARER = 0.998
PAPER: tuple[Plan, ...] = (
    (blend(15, 0.1),),
    (blend(15, 0.1), inject(5, lift=0.0, land=0.1)),
)


@dataclass(frozen=True)
class PlanSearch:
    """Is what was tried and what was chosen.

    Arguments:
        front: The chosen plans, by rising reliability, the first 0 and the last 1.
        tried: Every plan that was tried.
        paper: The paper's two plans for digits on the same images, to compare with.
        images: How many images they were tried on.
        own: The typicality that these images themselves have of their own class.
    """

    front: tuple[RatedPlan, ...]
    tried: tuple[RatedPlan, ...]
    paper: tuple[RatedPlan, ...]
    images: int
    own: float

    @property
    def why(self) -> str:
        """Says what was chosen and why."""
        low, high = self.front[0], self.front[-1]
        typical = high.numbers["typicality"]
        reached = (
            "as typical as the class's own images"
            if typical >= self.own
            else f"the most typical that was reached ({typical:.0f}; own images {self.own:.0f})"
        )
        oracle = high.numbers.get("oracle")
        agreed = "" if oracle is None else f"; the second classifier agrees with {oracle:.1%}"
        return (
            f"Of {len(self.tried)} plans tried on {self.images} held-out images, "
            f"{describe(low.plan)} reaches {low.numbers['validity']:.1%} at the smallest distance "
            f"({low.numbers['L1']:.4f}). {describe(high.plan)} is {reached}, at distance "
            f"{high.numbers['L1']:.4f}{agreed}."
        )


def search_plans(
    generator: Generator,
    classifier: Classifier,
    flow: Flow,
    x: Tensor,
    *,
    oracle: Classifier | None = None,
    seed: int = 0,
    progress: Callable[[float], object] | None = None,
) -> PlanSearch:
    """Tries plans on held-out images and returns a front of the best.

    The step of blending is the one with the most valid counterfactuals, then the smallest
    distance, then the fewest queries. The top of the front is the plan of smallest distance
    among those that are typical, valid, and, with a oracle, agreed with.

    Arguments:
        generator: The generator.
        classifier: The classifier to explain.
        flow: The flow, whose :meth:`Flow.fit_typicality` was called.
        x: Images that nothing was trained on; a few hundred.
        oracle: A second, independent classifier.
        seed: The seed of the target classes, one drawn for each image.
        progress: Is told the share that is done.
    """
    trial = _Trial(generator, classifier, flow, x, oracle, seed)
    own = typicality(generator, flow, trial.back, trial.source).nan_to_num(0.0).median().item()
    total = len(STEPS) + 2 * (1 + len(INJECTIONS) * len(NUMBERS)) + len(PAPER)
    done = 0

    def attempt(plan: Plan) -> RatedPlan:
        nonlocal done
        rated = trial.of(plan)
        done += 1
        if progress is not None:
            progress(done / total)
        return rated

    blends = [attempt((_blending(gamma, flow.soft), tighten(HALVINGS))) for gamma in STEPS]
    lowest = _nearest(blends)
    walked = [
        attempt((stage, *more))
        for stage in dict.fromkeys((lowest.plan[0], _blending(CAREFUL, flow.soft)))
        for more in ((), *_injections())
    ]
    paper = tuple(attempt(plan) for plan in PAPER)
    top = _top([*walked, *paper], own)
    front = _ladder(lowest, walked, top)
    return PlanSearch(front, (*blends, *walked), paper, len(x), own)


def search_fast_plan(
    generator: Generator,
    classifier: Classifier,
    flow: Flow,
    x: Tensor,
    *,
    oracle: Classifier | None = None,
    seed: int = 0,
    progress: Callable[[float], object] | None = None,
) -> RatedPlan | None:
    """Returns the cheapest plan that is no worse than the paper's reliable one, if there is one.

    Few large leaps, with as few steps of the solver as possible, come first; then, injections in
    one or two rounds, the second one for images that the classifier is still unsure of. No worse
    means: on held-out images it reaches the target as often, at no larger distance, and is as
    often agreed with by the oracle or, without a oracle, as typical as the paper's plan at fine
    steps. Of the plans that cost nearly as little as the cheapest, the one that is best by the
    oracle, or most typical, is taken.

    Arguments:
        generator: The generator.
        classifier: The classifier to explain.
        flow: The flow, whose :meth:`Flow.fit_typicality` was called.
        x: Images that nothing was trained on; the more, the finer the comparison.
        oracle: A second, independent classifier.
        seed: The seed of the target classes, one drawn for each image.
        progress: Is told the share that is done.
    """
    trial = _Trial(generator, classifier, flow, x, oracle, seed)
    second = "typicality" if oracle is None else "oracle"
    typical = oracle is None
    paper = trial.of(PAPER[1], RK4(5), typical=typical).numbers
    plans = [
        ((blend(n, gamma), *(inject(1, 0.0, *step) for step in injections)), Midpoint(steps))
        for n, gamma in FAST_BLENDS
        for injections in FAST_INJECTIONS
        for steps in FAST_STEPS
    ]
    good: list[RatedPlan] = []
    least = 0.0
    for n, (plan, solver) in enumerate(sorted(plans, key=lambda p: _cost(*p))):
        if good and _cost(plan, solver) > DEARER * least:
            break
        rated = trial.of(plan, solver, typical=typical)
        numbers = rated.numbers
        near = numbers["L1"] <= NEARER * paper["L1"]
        if near and all(numbers[key] >= paper[key] for key in ("validity", second)):
            least = least or _cost(plan, solver)
            good.append(rated)
        if progress is not None:
            progress((n + 1) / len(plans))
    best = max(good, key=lambda rated: rated.numbers[second], default=None)
    return best and replace(best, reliability=1.0)


def _cost(plan: Plan, solver: FixedStep) -> float:
    """Returns about what a plan costs, in evaluations of the field."""
    leaps = [stage for stage in plan if isinstance(stage, Leaps)]
    transports = sum(stage.n * (2 - stage.open_loop) for stage in leaps)
    queries = sum(1 if stage.open_loop else stage.n for stage in leaps)
    return A_QUESTION * queries + solver.nfe * transports


class _Trial:
    """Tries plans on the same images, each with a target drawn for it."""

    def __init__(
        self,
        generator: Generator,
        classifier: Classifier,
        flow: Flow,
        x: Tensor,
        oracle: Classifier | None,
        seed: int,
    ) -> None:
        checks.images(x)
        if len(x) < 2:
            raise InputError(f"`x` must hold at least two images to try plans on, got {len(x)}.")
        self.generator, self.classifier, self.flow = generator, classifier, flow
        self.x, self.oracle = x, oracle
        parts = torch.split(x, 1024)
        with torch.no_grad():
            self.back = torch.cat([generator.decode(generator.encode(part)) for part in parts])
            self.source = _labels(classifier, self.back)
        random = torch.Generator().manual_seed(seed)
        shift = torch.randint(1, flow.classes, (len(x),), generator=random)
        self.target = (self.source + shift.to(self.source.device)) % flow.classes

    def of(
        self, plan: Plan, solver: FixedStep | None = None, *, typical: bool = True
    ) -> RatedPlan:
        """Returns what a plan gives, with how typical that is if it is wanted."""
        flow = self.flow if solver is None else self.flow.with_solver(solver)
        found = LeapFactual(self.generator, self.classifier, flow, plan).explain(
            self.x, self.target
        )
        counted = found.source != found.target
        numbers = {
            "validity": found.valid[counted].double().mean().item(),
            "L1": l1(found)[counted].mean().item(),
            "queries": found.queries[counted].double().mean().item(),
        }
        if typical:
            ranks = typicality(self.generator, flow, found.counterfactual, self.target)
            numbers["typicality"] = ranks[counted].nan_to_num(0.0).median().item()
        if self.oracle is not None:
            said = _labels(self.oracle, found.counterfactual).to(self.target.device)
            numbers["oracle"] = (said == self.target)[counted].double().mean().item()
        return RatedPlan(plan, 0.0, numbers, solver)


@torch.no_grad()
def _labels(classifier: Classifier, x: Tensor) -> Tensor:
    return torch.cat([classifier(part).argmax(1) for part in torch.split(x, 1024)])


def _injections() -> list[Plan]:
    return [(inject(n, lift=lift, land=land),) for lift, land in INJECTIONS for n in NUMBERS]


def _blending(gamma: float, soft: bool) -> Leaps:
    """Returns enough leaps; with hard conditions those that have arrived take no more of them."""
    return blend(round(WAY[soft] / gamma), gamma)


def _valid_enough(candidates: Sequence[RatedPlan]) -> list[RatedPlan]:
    best = max(rated.numbers["validity"] for rated in candidates)
    return [rated for rated in candidates if rated.numbers["validity"] >= best - SLACK]


def _nearest(candidates: Sequence[RatedPlan]) -> RatedPlan:
    """Returns the cheapest of those that are about as near as the nearest."""
    valid = _valid_enough(candidates)
    least = min(rated.numbers["L1"] for rated in valid)
    near = [rated for rated in valid if rated.numbers["L1"] <= 1.02 * least]
    return min(near, key=lambda rated: rated.numbers["queries"])


def _top(candidates: Sequence[RatedPlan], own: float) -> RatedPlan:
    """Returns the nearest of those that are typical, valid and, with a oracle, agreed with."""
    left = _valid_enough(candidates)
    if "oracle" in left[0].numbers:
        best = max(rated.numbers["oracle"] for rated in left)
        left = [rated for rated in left if rated.numbers["oracle"] >= best - SLACK]
    most = max(rated.numbers["typicality"] for rated in left)
    wanted = min(own, most)
    return min(
        (rated for rated in left if rated.numbers["typicality"] >= wanted),
        key=lambda rated: rated.numbers["L1"],
    )


def _ladder(
    lowest: RatedPlan, walked: Sequence[RatedPlan], top: RatedPlan
) -> tuple[RatedPlan, ...]:
    """Returns the plans between the lowest and the top that no other beats in both ways."""
    least, most = lowest.numbers["typicality"], top.numbers["typicality"]
    front = [RatedPlan(lowest.plan, 0.0, lowest.numbers)]
    for rated in sorted(walked, key=lambda r: r.numbers["L1"]):
        typical = rated.numbers["typicality"]
        if least < typical < most and rated.numbers["L1"] < top.numbers["L1"]:
            reliability = (typical - least) / (most - least)
            if reliability - front[-1].reliability >= APART and reliability <= 1 - APART:
                front.append(RatedPlan(rated.plan, reliability, rated.numbers))
    return (*front, RatedPlan(top.plan, 1.0, top.numbers))
