"""Choosing guided plans for latents that are maps, on held-out images.

On maps the paper's leaps hardly move the class without guidance. A plan begins with one or two
strong leaps and goes on with larger, less guided ones for the images that have not arrived; what
is still astray then has its class replaced outright, from the start and without guidance. The
*nearest* plan is the one with the smallest distance among those that reach the target as often as
the best; tightening makes up for the size of its leaps. From there, at the boundary, a guided
injection goes on into the class: so every image goes as far as the others, and none keeps what a
large first leap overshot. A focus takes back what changed beside the point, where classes differ
at some places only. The *reliable* plan is the nearest that the oracle disputes half as often as
the images themselves or, without one, the plan that it agrees with most, among those that still
show the same picture. What lies between them on the Pareto front of distance and agreement becomes
the dial of reliability. The distance is a perceptual one, as a share of that between images that
have nothing to do with each other.

The grid of injections is coarse. Agreement and distance both rise with the guidance of an
injection, so that bisection finds the weakest that is agreed with, or the strongest that is near.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeGuard

from ..leaps import Leaps, Plan, RatedPlan, Stage, blend, describe, focus, inject, restart, tighten
from ..solvers import NoisedMidpoint
from ..types import no_op
from .held_out import HeldOut, Walks
from .plans import MIN_RELIABILITY_GAP, PlanSearch, best_by

# Steps of three evaluations make a guided leap: six a replacement, and fewer a smaller leap. With
# four whatever the size the nearest of 160 leaves were farther by 1 and 5 %, and two plans took a
# tenth more evaluations; eight for a replacement come nearer by another percent.
SOLVER = NoisedMidpoint(6)
# Number of leaps, step size and guidance of the first stage. Few and large leaps are cheap; others
# come hardly nearer once they are tightened, so that a few of them are enough.
FIRST_LEAPS = ((1, 0.6, 3.0), (2, 0.35, 3.0), (2, 0.35, 4.0), (1, 0.6, 2.0))
# Then, for images that have not arrived, larger steps with less guidance: number of leaps, step
# size, and the most guidance.
LARGER_LEAPS = ((1, 0.6, 2.0), (1, 0.8, 2.0))
# What has not arrived then was led to where the decoder knows nothing. Replacements from the
# start, the paper's leaps without guidance, stay where it does: of 36 such leaves of 128 × 128,
# four turned 31 and eight 35; of 26 others, going on turned none. Some faces need guidance even
# then.
REPLACEMENTS = ((8, 1.0, 1.0), (4, 1.0, 2.0))
# Five bisections leave a thirtieth of the last leap. Only the nearest plans are tightened, and
# first focused by this much: on faces that comes a tenth nearer, on leaves not.
BISECTIONS, TIGHTENED, NEAR_FOCUS = 5, 2, 0.6
# Injections, which go on from the boundary: number, step size, guidance, and the focus behind
# them, if any. What counts is to begin at the boundary; from there agreement rises with distance
# alike, whether by larger steps, by more of them or by more guidance. A focus is worth a fifth of
# the distance or more on faces, and nothing on leaves.
# Tried in this order, so that what time allows is spread over the whole range.
INJECTIONS = (
    (1, 0.5, 4.0, 0.6),
    (1, 0.3, 4.0, None),
    (2, 0.5, 3.0, 1.0),
    (1, 0.5, 3.0, None),
    (1, 0.5, 4.0, 1.0),
    (1, 0.5, 4.0, None),
    (2, 0.5, 3.0, 0.6),
    (1, 0.3, 3.0, None),
    (2, 0.5, 3.0, None),
)
# Bisections of the reliable plan's guidance, between none and its own, or up to so much more.
REFINEMENTS, MORE_GUIDANCE = 3, 2.0
# At a larger share of the distance between random images it is another picture, however reliable;
# but where already the nearest are far, half as far again is allowed.
MAX_DISTANCE, MAX_RELATIVE_DISTANCE = 0.25, 1.5
# Beyond some agreement little grows but distance: on faces of 64 × 64, a plan that the oracle
# always agreed with distorted them, at 20 % of the distance between random faces; one that it
# agreed with in 97 % was at 8 %. A poor oracle disputes images as well: half of that is enough.
ENOUGH_AGREEMENT = 0.98
# Keeping the input's pixels may cost this much validity and agreement, or one image, but no more:
# it is chance. On leaves of 128 × 128 it made reliable counterfactuals nearer by 4 %, and an
# independent oracle agreed with 82 % of them instead of 90 %.
TOLERANCE = 0.01
# Images that plans are rated on, at least; on 64, one image is a difference of 1.6 %. How long it
# takes is found out with these, and with fewer.
MIN_IMAGES, TRIAL_IMAGES = 64, 16


def search_guided_plans(
    held_out: HeldOut,
    seconds: float,
    on_progress: Callable[[float], object] = no_op,
) -> PlanSearch:
    """Tries guided plans on held-out images, as long as there is time, and returns the best.

    Arguments:
        held_out: The images to try plans on, with an oracle and a distance.
        seconds: The time to spend.
        on_progress: Called with the share that is done.
    """
    started = time.perf_counter()
    # Injected, since it is reliable counterfactuals that own pixels may cost agreement.
    middle = _arriving(*FIRST_LEAPS[0])
    injected = (*middle, *_going_on(*INJECTIONS[0]))
    kept, plain = (held_out.rate(injected, typical=False, keep_pixels=k) for k in (True, False))
    chance = max(TOLERANCE, 1.001 / len(held_out.x))
    keep = all(kept.numbers[n] >= plain.numbers[n] - chance for n in ("validity", "oracle"))
    tried = {injected: kept if keep else plain}
    tried[middle] = held_out.rate(middle, typical=False, keep_pixels=keep)

    def rate(plans: Iterable[Plan], share: float) -> None:
        """Rates plans until a share of the time is spent."""
        for plan in plans:
            spent = (time.perf_counter() - started) / seconds
            on_progress(min(1.0, spent))
            if spent > share:
                return
            if plan not in tried:
                tried[plan] = held_out.rate(plan, typical=False, keep_pixels=keep)

    def valid() -> list[RatedPlan]:
        """Returns the plans that reach the target as often as the best, the nearest first."""
        return _by_distance(best_by("validity", [*tried.values()]))

    rate((_arriving(*first) for first in FIRST_LEAPS), 0.3)
    loose = [rated.plan for rated in valid()[:TIGHTENED]]
    tight = [(*plan, tighten(BISECTIONS)) for plan in loose]
    rate([tight[0], (*loose[0], focus(NEAR_FOCUS), tight[0][-1]), *tight[1:]], 0.45)
    nearest = valid()[0].plan
    rate(((*nearest, *_going_on(*more)) for more in INJECTIONS), 0.8)
    own = held_out.own_agreement()
    enough, most = _limits(valid(), own)

    def strong(rated: RatedPlan) -> bool:
        """Returns whether less guidance may do, or more would be too far."""
        return rated.numbers["oracle"] >= enough or rated.numbers["distance"] > most

    reliable = _reliable(valid(), enough, most)
    w = max((stage.guidance for stage in reliable.plan if _injects(stage)), default=1.0)
    low, high = (1.0, w) if strong(reliable) else (w, w + MORE_GUIDANCE)
    for _ in range(REFINEMENTS):
        w = (low + high) / 2
        plan = tuple(replace(s, guidance=w) if _injects(s) else s for s in reliable.plan)
        rate([plan], 0.9)
        if plan not in tried:
            break
        low, high = (low, w) if strong(tried[plan]) else (w, high)
    front = _front([*tried.values()], own)
    # Typicality costs a density for each image, so that only the chosen plans are measured.
    chosen = dict.fromkeys(rated.plan for rated in front)
    numbers = {plan: held_out.rate(plan, keep_pixels=keep).numbers for plan in chosen}
    front = tuple(replace(rated, numbers=numbers[rated.plan]) for rated in front)
    on_progress(1.0)
    near, far = front[0], front[-1]
    pixels = "keeping" if keep else "without keeping"
    why = (
        f"Of {len(tried)} plans tried on {len(held_out.x)} held-out images, {pixels} the input's "
        f"own pixels where nothing changes, {describe(near.plan)} reaches "
        f"{near.numbers['validity']:.1%} at the smallest distance "
        f"({near.numbers['distance']:.1%} of that between random images). {describe(far.plan)} is "
        f"agreed with by the oracle in {far.numbers['oracle']:.1%} (own images: {own:.1%}), at "
        f"distance {far.numbers['distance']:.1%}."
    )
    return PlanSearch(front, tuple(tried.values()), why, own, keep_pixels=keep)


def _front(tried: Sequence[RatedPlan], own: float) -> tuple[RatedPlan, ...]:
    """Returns the Pareto front of distance and agreement, from the nearest to the reliable.

    Arguments:
        tried: The plans.
        own: The share of the images themselves that the oracle agrees with.
    """
    valid = _by_distance(best_by("validity", tried))
    nearest, reliable = valid[0], _reliable(valid, *_limits(valid, own))
    low, high = (r.numbers["oracle"] for r in (nearest, reliable))
    front = [replace(nearest, reliability=0.0)]
    for rated in valid[1:]:
        oracle = rated.numbers["oracle"]
        if low < oracle < high and rated.numbers["distance"] < reliable.numbers["distance"]:
            reliability = (oracle - low) / (high - low)
            apart = reliability - front[-1].reliability >= MIN_RELIABILITY_GAP
            if apart and reliability <= 1 - MIN_RELIABILITY_GAP:
                front.append(replace(rated, reliability=reliability))
    return (*front, replace(reliable, reliability=1.0))


def _limits(valid: Sequence[RatedPlan], own: float) -> tuple[float, float]:
    """Returns the agreement that is enough, and the distance at which it is another picture."""
    nearest = min(rated.numbers["distance"] for rated in valid)
    most = max(MAX_DISTANCE, MAX_RELATIVE_DISTANCE * nearest)
    return min(ENOUGH_AGREEMENT, (1 + own) / 2), most


def _reliable(valid: Sequence[RatedPlan], enough: float, most: float) -> RatedPlan:
    """Returns the nearest plan with enough agreement or, without one, of the most."""
    same = [rated for rated in valid if rated.numbers["distance"] <= most]
    agreed = [rated for rated in same if rated.numbers["oracle"] >= enough]
    return _by_distance(agreed or best_by("oracle", same))[0]


def _arriving(n: int, gamma: float, guidance: float) -> Plan:
    """Returns the plan of small leaps first, and larger ones for those that have not arrived."""
    larger = (blend(m, g, min(w, guidance)) for m, g, w in LARGER_LEAPS if g > gamma)
    replacements = (blend(*each) for each in REPLACEMENTS)
    return (blend(n, gamma, guidance), *larger, restart(), *replacements)


def _going_on(n: int, gamma: float, guidance: float, tau: float | None) -> Plan:
    """Returns the stages that go on into the class."""
    leaps = inject(n, gamma, gamma, 1.0, guidance)
    return (leaps,) if tau is None else (leaps, focus(tau))


def _injects(stage: Stage) -> TypeGuard[Leaps]:
    return isinstance(stage, Leaps) and not stage.blends


def _by_distance(rated: Sequence[RatedPlan]) -> list[RatedPlan]:
    return sorted(rated, key=lambda each: each.numbers["distance"])


def enough_images(held_out: HeldOut, seconds: float) -> HeldOut:
    """Returns as many of the images as plans can be rated on in the time, by a short trial.

    What a plan costs however few the images are is told apart from what each image costs: on a GPU
    it is nearly everything.
    """
    if len(held_out.x) <= MIN_IMAGES:
        return held_out
    plan = _arriving(*FIRST_LEAPS[0])

    def measure(images: int) -> float:
        trial = held_out.first(images)
        # Walks that are kept take no time.
        trial.walks = Walks()
        started = time.perf_counter()
        trial.rate(plan, typical=False)
        return time.perf_counter() - started

    # On a GPU the first walk takes longer: what later ones replay is captured then.
    if held_out.x.is_cuda:
        measure(MIN_IMAGES)
    few, more = measure(TRIAL_IMAGES), measure(MIN_IMAGES)
    each = max(more - few, 0.0) / (MIN_IMAGES - TRIAL_IMAGES)
    plans = 3 + len(FIRST_LEAPS) + TIGHTENED + 1 + len(INJECTIONS) + REFINEMENTS
    spare = max(seconds / plans - more, 0.0)
    return held_out.first(MIN_IMAGES + int(spare / each)) if each else held_out
