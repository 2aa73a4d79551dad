"""Choosing a plan by trying some on held-out images, instead of guessing.

A counterfactual may stop just across the boundary or go on to where the class's own images are.
What lies between is a trade of distance against typicality. The search explains held-out images
with several plans, measures what each gives, and keeps the Pareto front of distance and
typicality: from reliability 0, just across the boundary, to 1, as typical as the class's own
images. A second classifier, the oracle, has its say about the reliable end, if there is one.

Typicality is that of the counterfactual as an *image*: it is encoded again, and the percentile of
that latent's density among the class's own latents is taken. The latent that a walk ends at would
not do: where the generator ignores some of its features, leaps drift in them, which no image shows
and no density forgives. The class's own images are measured in the same way, decoded and encoded
again, which makes them a little smoother and more typical than the originals.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from .. import checks
from .._engine.memory import in_halves
from ..errors import InputError
from ..explainer import LeapFactual
from ..flow import Flow
from ..leaps import Leaps, Plan, RatedPlan, blend, describe, inject, tighten
from ..metrics import l1
from ..solvers import RK4, FixedStep, Midpoint
from ..types import Classifier, Generator, no_op
from .job import typicality
from .pairs import random_targets

BATCH_SIZE, PAIRS_AT_A_TIME = 1024, 64
Distance = Callable[[Tensor, Tensor], Tensor]

# Step sizes of blending: the paper's 0.1, half of it for a shorter distance, and larger ones for
# fewer queries. The paper's is tried with injections even where another is nearer.
BLEND_STEPS = (0.05, 0.1, 0.2, 0.4)
PAPER_BLEND_STEP = 0.1
# Number of leaps times step size. Soft conditions never become exactly the target's, so every
# image takes every leap: twice the paper's 15 x 0.1. With hard conditions an image that has
# arrived takes no more leaps, and a longer way costs only images that are hard to turn.
TOTAL_BLEND_STEP_SOFT, TOTAL_BLEND_STEP_HARD = 3.0, 6.0
# Eight bisections leave 1/256 of the last leap, less than an 8-bit picture shows.
BISECTIONS = 8
# Step sizes (lift, land) of injection: the paper's, and one that also takes something out. The
# counts go past the paper's 5, where distance grows and typicality does not any more.
INJECTION_STEPS = ((0.0, 0.1), (0.1, 0.2))
INJECTION_COUNTS = (1, 2, 3, 4, 5, 8)

# One of 256 held-out images is 0.4 %: a smaller difference in validity or agreement is chance.
SHARE_TOLERANCE = 0.005
# Plans within 2 % of the smallest distance look the same; then the fewest queries decide.
RELATIVE_L1_TOLERANCE = 1.02
# Operating points closer than this are hardly told apart by the median typicality of 256 images.
MIN_RELIABILITY_GAP = 0.1

# The grid of fast plans: three to six large leaps whose sizes sum to 1 to 1.5, the paper's way in
# a fraction of its 15 leaps, then one or two injections of (land, confidence), the second one for
# images that the classifier is still unsure of.
FAST_BLENDS = ((3, 0.35), (3, 0.5), (4, 0.3), (4, 0.35), (5, 0.25), (6, 0.25))
FAST_INJECTIONS = (
    ((0.2, 1.0),),
    ((0.3, 1.0),),
    ((0.4, 0.998),),
    ((0.2, 0.999), (0.3, 0.99)),
    ((0.2, 0.999), (0.5, 0.995)),
    ((0.15, 0.9995), (0.3, 0.995)),
)
FAST_SOLVER_STEPS = (1, 2)
# What a query costs, in evaluations of the field. For the shipped digits it has 3 times the
# operations and takes up to 60 times as long on a CPU; only the order in which plans are tried,
# and when the search stops, depend on a number between.
QUERY_COST = 12
# Plans up to a quarter dearer than the cheapest good one are tried too: they may be better, and
# one query more costs about that much.
MAX_RELATIVE_COST = 1.25
# A margin of 0.2 % in distance: a plan that only ties with the paper's on the held-out images
# would be worse on every other sample.
MAX_RELATIVE_L1 = 0.998

PAPER: tuple[Plan, ...] = (
    (blend(15, 0.1),),
    (blend(15, 0.1), inject(5, lift=0.0, land=0.1)),
)


@dataclass(frozen=True)
class PlanSearch:
    """The result of a search for plans.

    Arguments:
        front: The chosen plans, by rising reliability, the first 0 and the last 1.
        tried: Every plan that was tried.
        why: What was chosen and why, in sentences.
        own: What the class's own images reach, of what makes a plan reliable: their median
            typicality or, for guided plans, the share that the oracle agrees with.
        paper: The paper's two plans for digits on the same images, to compare with.
        keep_pixels: Whether the plans are best with the input's own pixels kept.
    """

    front: tuple[RatedPlan, ...]
    tried: tuple[RatedPlan, ...]
    why: str
    own: float
    paper: tuple[RatedPlan, ...] = ()
    keep_pixels: bool = False


class HeldOut:
    """Creates a trial of plans on held-out images, each with a target drawn for it.

    The images are encoded, decoded and classified once, here; every plan is tried on the same
    images and targets. A class that the flow never saw is no target: nothing can reach it, and no
    plan is to blame.

    Arguments:
        generator: The generator.
        classifier: The classifier to explain.
        flow: The flow, whose :meth:`Flow.fit_typicality` was called.
        x: Images that nothing was trained on; a few hundred. The more, the finer the comparison.
        oracle: A second, independent classifier.
        distance: A distance between two batches of images, with one value each, that plans are
            compared by too, as the share of the distance between random images.
        seed: The seed of the target classes.
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
    ) -> None:
        checks.images(x)
        if len(x) < 2:
            raise InputError(f"`x` must hold at least two images to try plans on, got {len(x)}.")
        self.generator, self.classifier, self.flow = generator, classifier, flow
        self.x, self.oracle = x, oracle
        with torch.no_grad():
            self.reconstruction = torch.cat(
                [in_halves(self._reconstruct, part) for part in torch.split(x, BATCH_SIZE)]
            )
        self.source = _labels(classifier, self.reconstruction)
        seen = (~flow.quantiles.isnan().all(1)).nonzero()[:, 0].tolist()
        among = seen if 1 < len(seen) < flow.classes else None
        self.target = random_targets(self.source, flow.classes, seed, among)
        self.distance = None if distance is None else relative(distance, x)

    def _reconstruct(self, x: Tensor) -> Tensor:
        return self.generator.decode(self.generator.encode(x))

    def first(self, n: int) -> Self:
        """Returns the trial on the first ``n`` of the images."""
        if n >= len(self.x):
            return self
        part = copy.copy(self)
        for name in ("x", "reconstruction", "source", "target"):
            setattr(part, name, getattr(self, name)[:n])
        return part

    def own_agreement(self) -> float:
        """Returns the share of the images themselves that oracle and classifier agree on."""
        assert self.oracle is not None
        same = _labels(self.oracle, self.x) == _labels(self.classifier, self.x)
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
        flow = self.flow if solver is None else self.flow.with_solver(solver)
        explainer = LeapFactual(
            self.generator, self.classifier, flow, plan, keep_pixels=keep_pixels
        )
        e = explainer.explain(self.x, self.target)
        counted = e.source != e.target
        numbers = {
            "validity": e.valid[counted].double().mean().item(),
            "L1": l1(e)[counted].mean().item(),
            "queries": e.queries[counted].double().mean().item(),
        }
        if self.distance is not None:
            numbers["distance"] = self.distance(e.counterfactual, self.x)[counted].mean().item()
        if typical:
            ranks = typicality(self.generator, flow, e.counterfactual, self.target)
            numbers["typicality"] = ranks[counted].nan_to_num(0.0).median().item()
        if self.oracle is not None:
            labels = _labels(self.oracle, e.counterfactual).to(self.target.device)
            numbers["oracle"] = (labels == self.target)[counted].double().mean().item()
        return RatedPlan(plan, 0.0, numbers, solver)


def search_plans(held_out: HeldOut, on_progress: Callable[[float], object] = no_op) -> PlanSearch:
    """Tries plans on held-out images and returns the Pareto front of the best.

    The blending step of the nearest plan is the one with the most valid counterfactuals, then the
    smallest distance, then the fewest queries. The reliable end of the front is the plan of
    smallest distance among those that are typical, valid, and, with an oracle, agreed with.

    Arguments:
        held_out: The images to try plans on.
        on_progress: Called with the share that is done.
    """
    soft = held_out.flow.soft
    total = len(BLEND_STEPS) + 2 * (1 + len(INJECTION_STEPS) * len(INJECTION_COUNTS)) + len(PAPER)
    done = 0

    def rate(plan: Plan) -> RatedPlan:
        nonlocal done
        rated = held_out.rate(plan)
        done += 1
        on_progress(done / total)
        return rated

    own = held_out.own_typicality()
    blends = [rate((_blending(gamma, soft), tighten(BISECTIONS))) for gamma in BLEND_STEPS]
    nearest = _nearest(blends)
    walked = [
        rate((stage, *more))
        for stage in dict.fromkeys((nearest.plan[0], _blending(PAPER_BLEND_STEP, soft)))
        for more in ((), *_injections())
    ]
    paper = tuple(rate(plan) for plan in PAPER)
    reliable = _most_reliable([*walked, *paper], own)
    front, tried = _front(nearest, walked, reliable), (*blends, *walked)
    return PlanSearch(front, tried, _why(front, tried, len(held_out.x), own), own, paper)


def _why(front: Sequence[RatedPlan], tried: Sequence[RatedPlan], images: int, own: float) -> str:
    low, high = front[0], front[-1]
    typical = high.numbers["typicality"]
    reached = (
        "as typical as the class's own images"
        if typical >= own
        else f"the most typical that was reached ({typical:.0f}; own images {own:.0f})"
    )
    oracle = high.numbers.get("oracle")
    agreed = "" if oracle is None else f"; the oracle agrees with {oracle:.1%}"
    return (
        f"Of {len(tried)} plans tried on {images} held-out images, {describe(low.plan)} reaches "
        f"{low.numbers['validity']:.1%} at the smallest distance ({low.numbers['L1']:.4f}). "
        f"{describe(high.plan)} is {reached}, at distance {high.numbers['L1']:.4f}{agreed}."
    )


def search_fast_plan(
    held_out: HeldOut, on_progress: Callable[[float], object] = no_op
) -> RatedPlan | None:
    """Returns the cheapest plan that is no worse than the paper's reliable one, if there is one.

    Few large leaps, with as few steps of the solver as possible, come first; then, injections in
    one or two rounds, the second one for images that the classifier is still unsure of. No worse
    means: on held-out images it reaches the target as often, at no larger distance, and is as
    often agreed with by the oracle or, without an oracle, as typical as the paper's plan at fine
    steps. Of the plans that cost nearly as little as the cheapest, the one that is best by the
    oracle, or most typical, is taken.

    Arguments:
        held_out: The images to try plans on.
        on_progress: Called with the share that is done.
    """
    # The oracle is the better witness of reliability; typicality costs a density for each image.
    criterion = "typicality" if held_out.oracle is None else "oracle"
    typical = held_out.oracle is None
    paper = held_out.rate(PAPER[1], RK4(5), typical=typical).numbers
    plans = sorted(_fast_plans(), key=lambda candidate: _cost(*candidate))
    good: list[RatedPlan] = []
    least = 0.0
    for n, (plan, solver) in enumerate(plans):
        if good and _cost(plan, solver) > MAX_RELATIVE_COST * least:
            break
        rated = held_out.rate(plan, solver, typical=typical)
        numbers = rated.numbers
        near = numbers["L1"] <= MAX_RELATIVE_L1 * paper["L1"]
        if near and all(numbers[key] >= paper[key] for key in ("validity", criterion)):
            least = least or _cost(plan, solver)
            good.append(rated)
        on_progress((n + 1) / len(plans))
    best = max(good, key=lambda rated: rated.numbers[criterion], default=None)
    return best and replace(best, reliability=1.0)


def _fast_plans() -> list[tuple[Plan, FixedStep]]:
    return [
        ((blend(n, gamma), *(inject(1, 0.0, *step) for step in injections)), Midpoint(steps))
        for n, gamma in FAST_BLENDS
        for injections in FAST_INJECTIONS
        for steps in FAST_SOLVER_STEPS
    ]


def _cost(plan: Plan, solver: FixedStep) -> float:
    """Estimates what a plan costs, in evaluations of the field."""
    leaps = [stage for stage in plan if isinstance(stage, Leaps)]
    transports = sum(stage.n * (2 - stage.open_loop) for stage in leaps)
    queries = sum(1 if stage.open_loop else stage.n for stage in leaps)
    return QUERY_COST * queries + solver.nfe * transports


@torch.no_grad()
def _labels(classifier: Classifier, x: Tensor) -> Tensor:
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


def _injections() -> list[Plan]:
    return [
        (inject(n, lift=lift, land=land),)
        for lift, land in INJECTION_STEPS
        for n in INJECTION_COUNTS
    ]


def _blending(gamma: float, soft: bool) -> Leaps:
    """Returns as many leaps of a step size as nearly every image needs to arrive."""
    total = TOTAL_BLEND_STEP_SOFT if soft else TOTAL_BLEND_STEP_HARD
    return blend(round(total / gamma), gamma)


def best_by(name: str, candidates: Sequence[RatedPlan]) -> list[RatedPlan]:
    """Returns the plans whose validity, or agreement, is that of the best but for chance."""
    best = max(rated.numbers[name] for rated in candidates)
    return [rated for rated in candidates if rated.numbers[name] >= best - SHARE_TOLERANCE]


def _nearest(candidates: Sequence[RatedPlan]) -> RatedPlan:
    """Returns the plan with the fewest queries of those about as near as the nearest."""
    valid = best_by("validity", candidates)
    least = min(rated.numbers["L1"] for rated in valid)
    near = [rated for rated in valid if rated.numbers["L1"] <= RELATIVE_L1_TOLERANCE * least]
    return min(near, key=lambda rated: rated.numbers["queries"])


def _most_reliable(candidates: Sequence[RatedPlan], own: float) -> RatedPlan:
    """Returns the nearest of those that are typical, valid and, with an oracle, agreed with."""
    left = best_by("validity", candidates)
    if "oracle" in left[0].numbers:
        left = best_by("oracle", left)
    most = max(rated.numbers["typicality"] for rated in left)
    # Beyond the typicality of the class's own images, more is no gain and costs distance.
    wanted = min(own, most)
    return min(
        (rated for rated in left if rated.numbers["typicality"] >= wanted),
        key=lambda rated: rated.numbers["L1"],
    )


def _front(
    nearest: RatedPlan, walked: Sequence[RatedPlan], reliable: RatedPlan
) -> tuple[RatedPlan, ...]:
    """Returns the Pareto front of distance and typicality between the two ends."""
    least, most = nearest.numbers["typicality"], reliable.numbers["typicality"]
    front = [replace(nearest, reliability=0.0)]
    for rated in sorted(walked, key=lambda r: r.numbers["L1"]):
        typical = rated.numbers["typicality"]
        if least < typical < most and rated.numbers["L1"] < reliable.numbers["L1"]:
            reliability = (typical - least) / (most - least)
            apart = reliability - front[-1].reliability >= MIN_RELIABILITY_GAP
            if apart and reliability <= 1 - MIN_RELIABILITY_GAP:
                front.append(replace(rated, reliability=reliability))
    return (*front, replace(reliable, reliability=1.0))
