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

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ..leaps import Leaps, Plan, RatedPlan, blend, describe, inject, tighten
from ..solvers import FixedStep, Midpoint
from ..types import no_op
from .held_out import HeldOut, Values, summarize, surely_above

# Step sizes of blending: the paper's 0.1, half of it for a shorter distance, and larger ones for
# fewer queries. The paper's is tried with injections even where another is nearer.
BLEND_STEPS = (0.1, 0.2, 0.05, 0.4)
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

# From these shares of the time on, no more blending steps and injections are tried.
RACE_SHARE, INJECTION_SHARE = 0.4, 0.8
# Injections that leave an image so much more typical than the class's own are enough, in percent:
# more are farther.
ENOUGH_TYPICALITY = 5.0

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
        fast: The cheapest plan that is no worse than the paper's reliable one, if there is one.
        keep_pixels: Whether the plans are best with the input's own pixels kept.
    """

    front: tuple[RatedPlan, ...]
    tried: tuple[RatedPlan, ...]
    why: str
    own: float
    paper: tuple[RatedPlan, ...] = ()
    fast: RatedPlan | None = None
    keep_pixels: bool = False


class Clock:
    """Creates a clock of a search.

    Arguments:
        seconds: The seconds to spend.
        on_progress: Called with the share that is done.
    """

    def __init__(
        self, seconds: float = math.inf, on_progress: Callable[[float], object] = no_op
    ) -> None:
        self.seconds, self.on_progress = seconds, on_progress
        self.started = time.perf_counter()
        # From which share of the work to which the present part of the search goes.
        self.begin, self.end = 0.0, 1.0

    @property
    def spent(self) -> float:
        """The share of the time that is spent."""
        return (time.perf_counter() - self.started) / self.seconds

    def advance(self, share: float) -> None:
        """Says that a share of the present part is done, unless more of the time is spent."""
        done = self.begin + (self.end - self.begin) * share
        self.on_progress(min(1.0, max(done, self.spent)))


def search_plans(
    held_out: HeldOut,
    seconds: float = math.inf,
    on_progress: Callable[[float], object] = no_op,
) -> PlanSearch:
    """Tries plans on held-out images and returns the Pareto front of the best.

    The blending step of the nearest plan is the one with the most valid counterfactuals, then the
    smallest distance, then the fewest queries. The reliable end of the front is the plan of
    smallest distance among those that are typical, valid, and, with an oracle, agreed with. Last
    comes a fast plan, see :func:`search_fast_plan`.

    The search is done on few images first, and then again on twice as many, as long as there is
    time. What a plan gave for an image is not asked again, and a plan that others surely beat is
    left out.

    Arguments:
        held_out: The images to try plans on.
        seconds: The seconds to spend.
        on_progress: Called with the share that is done.
    """
    clock = Clock(seconds, on_progress)
    for n, following in pairwise((*held_out.rounds, len(held_out.x) + 1)):
        clock.begin, clock.end = clock.end * (n > held_out.rounds[0]), n / len(held_out.x)
        search = _search(held_out.first(n), clock)
        if clock.spent * following / n > 1:
            break
    on_progress(1.0)
    return search


def _search(held_out: HeldOut, clock: Clock) -> PlanSearch:
    """Searches once, with all of the images."""
    soft = held_out.flow.soft
    blends = _race(
        held_out, [(_blending(gamma, soft), tighten(BISECTIONS)) for gamma in BLEND_STEPS], clock
    )
    nearest, own = _nearest(blends), held_out.own_typicality()
    clock.advance(0.3)
    walked: list[RatedPlan] = []
    for blending in dict.fromkeys((nearest.plan[:1], (_blending(PAPER_BLEND_STEP, soft),))):
        walked += _try_injections(held_out, blending, own, clock)
    paper = tuple(held_out.rate(plan) for plan in PAPER)
    clock.advance(0.6)
    reliable = _most_reliable([*walked, *paper], own)
    front, tried = _front(nearest, walked, reliable), (*blends, *walked)
    fast = search_fast_plan(held_out, clock)
    why = _why(front, tried, len(held_out.x), own)
    return PlanSearch(front, tried, why, own, paper, fast)


def _race(held_out: HeldOut, plans: Sequence[Plan], clock: Clock) -> list[RatedPlan]:
    """Rates plans, without those that others surely beat on some of the images."""
    alive = list(plans)
    for n in held_out.rounds:
        trial, values = held_out.first(n), dict[Plan, Values]()
        for plan in alive:
            if not values or clock.spent < RACE_SHARE:
                values[plan] = trial.values(plan)
        alive = [plan for plan in values if not _surely_beaten(values[plan], values.values())]
    return [held_out.rate(plan) for plan in alive]


def _surely_beaten(own: Values, others: Iterable[Values]) -> bool:
    """Returns whether another plan is surely valid more often, or as often and surely nearer."""
    for other in others:
        more = other["validity"] - own["validity"]
        nearer = own["L1"] - RELATIVE_L1_TOLERANCE * other["L1"]
        if surely_above(more - SHARE_TOLERANCE):
            return True
        if more.mean() >= -SHARE_TOLERANCE and surely_above(nearer):
            return True
    return False


def _try_injections(
    held_out: HeldOut, plan: Plan, own: float, clock: Clock
) -> Iterator[RatedPlan]:
    """Yields a plan with more and more injections behind it, as long as that makes it typical."""
    yield held_out.rate(plan)
    for lift, land in INJECTION_STEPS:
        for n in INJECTION_COUNTS:
            if clock.spent > INJECTION_SHARE:
                return
            rated = held_out.rate((*plan, inject(n, lift=lift, land=land)))
            yield rated
            # An oracle may still be won over.
            if held_out.oracle is None and rated.numbers["typicality"] > own + ENOUGH_TYPICALITY:
                break


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


def search_fast_plan(held_out: HeldOut, clock: Clock | None = None) -> RatedPlan | None:
    """Returns the cheapest plan that is no worse than the paper's reliable one, if there is one.

    Few large leaps, with as few steps of the solver as possible, come first; then, injections in
    one or two rounds, the second one for images that the classifier is still unsure of. No worse
    means: on held-out images it reaches the target as often, at no larger distance, and is as
    often agreed with by the oracle or, without an oracle, as typical. Of the plans that cost
    nearly as little as the cheapest, the one that is best by the oracle, or most typical, is
    taken.

    Arguments:
        held_out: The images to try plans on.
        clock: The clock of the whole search. Defaults to one that has time.
    """
    clock = clock or Clock()
    # The oracle is the better witness of reliability; typicality costs a density for each image.
    typical = held_out.oracle is None
    criterion = "typicality" if typical else "oracle"
    wanted = held_out.values(PAPER[1], typical=typical)
    paper = summarize(wanted)
    plans = sorted(_fast_plans(), key=lambda candidate: _cost(*candidate))
    good: list[RatedPlan] = []
    least = math.inf
    for n, (plan, solver) in enumerate(plans):
        if _cost(plan, solver) > MAX_RELATIVE_COST * least or clock.spent > 1:
            break
        if not _surely_worse(held_out, plan, solver, wanted, criterion):
            rated = held_out.rate(plan, solver, typical=typical)
            numbers = rated.numbers
            near = numbers["L1"] <= MAX_RELATIVE_L1 * paper["L1"]
            if near and all(numbers[k] >= paper[k] for k in ("validity", criterion)):
                least = min(least, _cost(plan, solver))
                good.append(rated)
        clock.advance(0.6 + 0.4 * (n + 1) / len(plans))
    best = max(good, key=lambda rated: rated.numbers[criterion], default=None)
    return best and replace(best, reliability=1.0)


def _surely_worse(
    held_out: HeldOut, plan: Plan, solver: FixedStep, wanted: Values, criterion: str
) -> bool:
    """Returns whether some of the images tell already that a plan is worse than wanted."""
    for n in held_out.rounds[:-1]:
        values = held_out.first(n).values(plan, solver, typical=held_out.oracle is None)
        farther = values["L1"] - MAX_RELATIVE_L1 * wanted["L1"][:n]
        if surely_above(farther):
            return True
        if any(surely_above(wanted[k][:n] - values[k]) for k in ("validity", criterion)):
            return True
    return False


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
