r"""Algorithm 1: a leap takes one class out of a latent and puts another in.

Two kinds of leap differ only in their step sizes. A *blending* leap takes out as much as it puts
in, so it walks towards the target class and stands still once it is there. An *injection* leap
puts in more than it takes out, so it goes on into the target class, to where an oracle agrees.

*Guidance* lands past the target, on the far side from the class that the image had at first. Where
latents are maps the paper's steps are too weak by themselves, and guidance is what turns the
class.

A walk in leaps bends and oversteps. *Tightening* goes back on the straight line towards the start,
as far as the classifier allows. *Focus* takes back what has changed least. An image that leaps
have driven astray may *restart*.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from . import checks
from .errors import InputError
from .flow import Flow
from .solvers import FixedStep

# The paper takes 300 leaps at most. Behind 52 bisections double precision has no number between.
MAX_LEAPS, MAX_BISECTIONS = 10_000, 52


def leap(
    flow: Flow,
    z: Tensor,
    c: Tensor,
    c_target: Tensor,
    *,
    lift: float,
    land: float,
    guidance: float = 1.0,
    c_source: Tensor | None = None,
) -> Tensor:
    r"""Takes the class :math:`c` out of :math:`z` and puts :math:`c_\text{target}` in.

    .. math::
        z_\text{lift} &= z + \int_1^0 \gamma_\text{lift} \, v(t, z(t), c) \, dt \\
        z_\text{land} &= z_\text{lift}
            + \int_0^1 \gamma_\text{land} \, v(t, z(t), c_\text{target}) \, dt

    With guidance :math:`w > 1` the velocity of landing is :math:`v(c_\text{source}) + w \,
    (v(c_\text{target}) - v(c_\text{source}))`; with :math:`w = 1` it is the paper's.

    Inputs are not checked. If the result is not finite, the leap is repeated through
    :meth:`Flow.lift` and :meth:`Flow.land`, which locate the error.

    Arguments:
        flow: The flow.
        z: Latents, with shape ``(B, D)``.
        c: The condition that they carry, with shape ``(B, K)``.
        c_target: The condition that they are to carry, with shape ``(B, K)``.
        lift: The step size of lifting.
        land: The step size of landing.
        guidance: The guidance :math:`w` of landing.
        c_source: The condition to be guided away from, with shape ``(B, K)``. Defaults to ``c``.
    """
    other = c if c_source is None else c_source
    z_land = flow.round_trip(z, c, c_target, lift=lift, land=land, guidance=guidance, other=other)
    if not checks.capturing(z_land) and not torch.isfinite(z_land).all():
        lifted = flow.lift(z, c, lift)
        return flow.land(lifted, c_target, land, guidance=guidance, other=other)
    return z_land


@dataclass(frozen=True)
class Leaps:
    """Stage of a plan: ``n`` leaps with the step sizes ``lift`` and ``land``.

    Build one with :func:`blend` or :func:`inject`.

    Arguments:
        n: How many leaps.
        lift: The step size of lifting.
        land: The step size of landing.
        confidence: The confidence threshold: an image whose target class has at least this
            probability stays where it is.
        guidance: The guidance of landing, at least 1.
    """

    n: int
    lift: float
    land: float
    confidence: float = 1.0
    guidance: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", checks.whole(self.n, "n"))
        if not 0 <= self.n <= MAX_LEAPS:
            raise InputError(
                f"`n` must be a number of leaps from 0 to {MAX_LEAPS:,}, got {self.n}."
            )
        for name in ("lift", "land"):
            value = checks.number(getattr(self, name), name)
            object.__setattr__(self, name, value)
            if not 0 <= value < math.inf:
                raise InputError(
                    f"`{name}` must be a step size of at least 0, got {value!r}. The paper uses 0 "
                    "to 1.03."
                )
        for name in ("confidence", "guidance"):
            object.__setattr__(self, name, checks.number(getattr(self, name), name))
        if not 1 <= self.guidance < math.inf:
            raise InputError(
                f"`guidance` must be a number of at least 1, got {self.guidance!r}. 1 is the "
                "paper's; photographs take 2 to 4."
            )
        if not 0 <= self.confidence <= 1 or (self.confidence == 0 and self.guidance == 1):
            raise InputError(
                "`confidence` must be a probability above 0 and up to 1, got "
                f"{self.confidence!r}. With 1, every image takes every leap."
            )
        if self.confidence < 1 and self.lift == self.land and self.guidance == 1:
            raise InputError(
                "`confidence` is for injection; a blend stops by itself, got "
                f"confidence={self.confidence!r}."
            )
        if self.lift > self.land:
            raise InputError(
                f"a leap with lift={self.lift} and land={self.land} removes more than it adds. "
                "Use blend(n, gamma), or inject(n, lift=…, land=…) with lift < land."
            )

    @property
    def blends(self) -> bool:
        """Whether the leaps stop in the target class; otherwise they go on into it."""
        return self.lift == self.land and self.confidence == (self.guidance == 1)

    @property
    def open_loop(self) -> bool:
        """Whether the leaps do not depend on the classifier's answers on their way.

        That is so where nothing is lifted and no confidence threshold stops an image in between.
        """
        return self.lift == 0 and (self.confidence == 1 or self.n <= 1)

    def leap(self, flow: Flow, z: Tensor, c: Tensor, c_target: Tensor, c_source: Tensor) -> Tensor:
        """Takes a leap, with the stage's step sizes; see :func:`leap`."""
        sizes = {"lift": self.lift, "land": self.land, "guidance": self.guidance}
        return leap(flow, z, c, c_target, **sizes, c_source=c_source)

    def moves(self, c: Tensor, c_target: Tensor, p: Tensor) -> Tensor:
        """Returns which rows ``(B,)`` take the next leap.

        With equal step sizes, landing undoes lifting once the condition is the target's. That is
        where blending with hard conditions stops by itself. Soft conditions never get there
        exactly. A guided leap would go on, so that it is stopped: in the target class, when the
        probability is high enough.

        Arguments:
            c: The condition that each row carries.
            c_target: The condition that each is to carry.
            p: What the classifier says of each.
        """
        if self.guidance > 1:
            inside = p.argmax(1) == c_target.argmax(1)
            sure = (p * c_target).sum(1) >= self.confidence
            return ~(inside & sure) if self.confidence < 1 else torch.ones_like(inside)
        if self.lift == self.land:
            moves = (c != c_target).any(1) & (self.lift > 0)
        else:
            moves = torch.ones(len(c), dtype=torch.bool, device=c.device)
        return moves if self.confidence == 1 else moves & ((p * c_target).sum(1) < self.confidence)


@dataclass(frozen=True)
class Tightening:
    """Stage of a plan: ``n`` bisection steps back. Build one with :func:`tighten`."""

    n: int
    open_loop, confidence = False, 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", checks.positive(self.n, "n", MAX_BISECTIONS))


@dataclass(frozen=True)
class Restart:
    """Stage of a plan: back to the start, without an arrival. Build one with :func:`restart`."""

    n, open_loop, confidence = 1, False, 1.0


@dataclass(frozen=True)
class Focus:
    """Stage of a plan: small changes of a map are taken back. Build one with :func:`focus`."""

    tau: float
    n, open_loop, confidence = 1, False, 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "tau", checks.number(self.tau, "tau"))
        if not 0 < self.tau < math.inf:
            raise InputError(
                f"`tau` must be a number above 0, got {self.tau!r}. With 0.6, less than half is "
                "left of what changed by less than that share of the average."
            )

    def apply(self, flow: Flow, start: Tensor, z: Tensor) -> Tensor:
        """Returns ``z`` with its change since ``start`` weighted, place by place."""
        channels = flow.field.latent_channels
        if channels == flow.features:
            raise InputError(
                "focus() weighs the places of a map, and these latents are rows of numbers. Leave "
                "it out of the plan, or use a spatial generator."
            )
        change = (z - start).reshape(len(z), -1, channels)
        size = (change / flow.scale.view(-1, channels)).square().sum(2, keepdim=True)
        average = size.mean(1, keepdim=True).clamp(min=torch.finfo(z.dtype).tiny)
        return start + (change * (size / (size + self.tau**2 * average))).flatten(1)


Stage = Leaps | Tightening | Focus | Restart
Plan = tuple[Stage, ...]
STAGES: dict[str, type[Stage]] = {
    "leaps": Leaps,
    "tightening": Tightening,
    "focus": Focus,
    "restart": Restart,
}


@dataclass(frozen=True)
class RatedPlan:
    """Plan with what it gave on held-out images: a point of the Pareto front.

    Arguments:
        plan: The stages.
        reliability: Where it stands between just across the boundary, 0, and as typical as the
            class's own images, 1.
        numbers: Validity, L1, typicality, queries, and oracle where there was one.
        solver: The solver, where it is not the flow's own.
    """

    plan: Plan
    reliability: float
    numbers: Mapping[str, float]
    solver: FixedStep | None = None


def blend(n: int, gamma: float, guidance: float = 1.0) -> Leaps:
    """Plans ``n`` leaps towards the target class that take out as much as they put in.

    With guidance an image takes leaps until it is in the target class.

    Example:
        >>> blend(15, 0.1)
        Leaps(n=15, lift=0.1, land=0.1, confidence=1.0, guidance=1.0)
    """
    stage = Leaps(n, gamma, gamma, float(checks.number(guidance, "guidance") == 1), guidance)
    if gamma > 1:
        raise InputError(
            f"blend(gamma={gamma}) overshoots: 1 replaces the class outright, smaller values "
            "blend. To go on into the target class add inject(n, lift=…, land=…)."
        )
    return stage


def inject(
    n: int, lift: float, land: float, confidence: float = 1.0, guidance: float = 1.0
) -> Leaps:
    """Plans ``n`` leaps on into the target class, which put in more than they take out.

    An image whose target class has at least the probability ``confidence`` need not go on: an
    oracle mostly agrees there. So the others can be given larger steps at the same distance on
    average. For classifiers that answer with labels only, leave it at 1. With guidance, step sizes
    may be equal: the target class is put in further than the source class is taken out.

    Example:
        >>> inject(5, lift=0.0, land=0.1)
        Leaps(n=5, lift=0.0, land=0.1, confidence=1.0, guidance=1.0)
    """
    adds = checks.number(land, "land") - checks.number(lift, "lift")
    if adds < 0 or (adds == 0 and checks.number(guidance, "guidance") == 1):
        raise InputError(
            f"inject(lift={lift}, land={land}) does not add more than it removes. Injection needs "
            "lift < land, or guidance above 1."
        )
    return Leaps(n, lift, land, confidence, guidance)


def tighten(n: int) -> Tightening:
    """Plans to go back towards the start, by bisection, and to stay in the target class.

    Each of the ``n`` queries halves the stretch, on the straight line from the image's latent to
    its counterfactual's, in which the class changes. The counterfactual moves to the nearest point
    that was seen inside the class; it is never given up for one outside. An image that was in the
    target class from the start stays as it is. No flow is needed. Put it after blending: the
    result is nearer to the image, and few large leaps do almost as well as many small ones.

    Example:
        >>> tighten(6)
        Tightening(n=6)
    """
    return Tightening(n)


def focus(tau: float) -> Focus:
    r"""Plans to take back small changes of a map, and to stay in the target class.

    What speaks for a class is often at some places of a picture: the mouth of a face. Guidance
    changes the rest a little too. The change of place :math:`i`, of size :math:`s_i`, is
    multiplied by :math:`s_i^2 / (s_i^2 + \tau^2 \bar{s}^2)`, with the quadratic mean
    :math:`\bar{s}` over places. One query decides whether an image stays in the target class with
    that; otherwise it is left as it was. For latents that are maps.

    Example:
        >>> focus(0.6)
        Focus(tau=0.6)
    """
    return Focus(tau)


def restart() -> Restart:
    """Plans to take images that have not been seen in the target class back to their start.

    Guided leaps that do not arrive lead an image further and further from what the generator
    knows. From there no leap helps; from its start a larger one may. Images that have arrived stay
    as they are, and nothing is queried.

    Example:
        >>> restart()
        Restart()
    """
    return Restart()


def describe(plan: Sequence[Stage]) -> str:
    """Writes a plan in words, from which :func:`parse` reads the same plan.

    Example:
        >>> describe([blend(15, 0.1), inject(5, lift=0.0, land=0.1)])
        'blend(15, 0.1), inject(5, 0, 0.1)'
    """
    words = []
    for stage in plan:
        if isinstance(stage, Restart):
            words.append("restart()")
            continue
        if isinstance(stage, Tightening):
            words.append(f"tighten({stage.n})")
            continue
        if isinstance(stage, Focus):
            words.append(f"focus({_shortest(stage.tau)})")
            continue
        guidance = "" if stage.guidance == 1 else f", {_shortest(stage.guidance)}"
        lift, land = _shortest(stage.lift), _shortest(stage.land)
        if stage.blends:
            words.append(f"blend({stage.n}, {lift}{guidance})")
        else:
            confidence = f", {stage.confidence!r}" if guidance or stage.confidence < 1 else ""
            words.append(f"inject({stage.n}, {lift}, {land}{confidence}{guidance})")
    return ", ".join(words)


def _shortest(value: float) -> str:
    """Writes a number as briefly as can be for it to be read back the same."""
    text = f"{value:g}"
    return text if float(text) == value else repr(value)


def check_plan(plan: object) -> None:
    """Checks that a value is a plan, of no more leaps than a walk can take."""
    stages = list(plan) if isinstance(plan, Sequence) else []
    if not stages or not all(isinstance(stage, Stage) for stage in stages):
        raise InputError(
            f"`plan` must be a list of stages, got {plan!r}. Try [blend(15, 0.1)] or "
            "[blend(15, 0.1), inject(5, lift=0.0, land=0.1)]."
        )
    leaps = sum(stage.n for stage in stages)
    if max(leaps, len(stages)) > MAX_LEAPS:
        raise InputError(
            f"`plan` must have {MAX_LEAPS:,} leaps and stages at most, got {leaps:,} leaps in "
            f"{len(stages):,} stages."
        )


def parse(text: str) -> tuple[Stage, ...]:
    """Reads a plan as :func:`describe` writes it.

    Example:
        >>> parse("blend(15, 0.1), tighten(8)")
        (Leaps(n=15, lift=0.1, land=0.1, confidence=1.0, guidance=1.0), Tightening(n=8))
    """
    makers: dict[str, Callable[..., Stage]] = {
        "blend": blend,
        "inject": inject,
        "tighten": tighten,
        "focus": focus,
        "restart": restart,
    }
    counts = {
        "blend": (2, 3),
        "inject": (3, 4, 5),
        "tighten": (1,),
        "focus": (1,),
        "restart": (0,),
    }
    if not isinstance(text, str):
        raise InputError(f"a plan is read from text, got {text!r}. Write, say, `blend(15, 0.1)`.")
    stages = []
    rest = text.strip()
    while rest:
        found = re.match(r"(blend|inject|tighten|focus|restart)\s*\(([^()]*)\)\s*[,;]?\s*", rest)
        try:
            if found is None:
                raise ValueError
            name, written = found[1], found[2].strip()
            numbers = [float(part) for part in written.split(",")] if written else []
            # The first number of all but one is how many leaps or halvings there are.
            whole = [] if name == "focus" else [int(n) for n in numbers[:1]]
            if len(numbers) not in counts[name] or any(map(operator.ne, whole, numbers)):
                raise ValueError
        except (ValueError, OverflowError) as error:
            raise InputError(
                f"`{text}` is no plan: it goes wrong at `{rest[:30]}`. Write blend(leaps, step) "
                "or blend(leaps, step, guidance); inject(leaps, lift, land), with a confidence "
                "threshold and then a guidance at the end if you like; tighten(halvings); "
                "focus(tau); or restart(), with commas between."
            ) from error
        stages.append(makers[name](*whole, *numbers[len(whole) :]))
        rest = rest[found.end() :]
    if not stages:
        raise InputError("the plan is empty. Write, for example, `blend(15, 0.1)`.")
    check_plan(stages)
    return tuple(stages)
