"""Plans as text, and stages and solvers with any values."""

import inspect
import random
from pathlib import Path

import leapfactual as lf
from leapfactual import leaps, solvers

from ..mutations import TEXTS, mutate_text, number, value
from ..watch import expect
from .kind import Kind, Read

NAMES = ("blend", "inject", "tighten", "focus", "restart", "eval", "")
MAKERS = (lf.blend, lf.inject, lf.tighten, leaps.focus, leaps.Leaps)
SOLVERS = tuple(solvers.SOLVERS.values())


class Plans(Kind):
    """Plans."""

    name, share = "plans", 20

    def make(self, rng: random.Random, given: Path, outside: Path) -> Read:
        """See :meth:`Kind.make`."""
        if rng.random() < 0.3:
            maker = rng.choice((*MAKERS, *SOLVERS))
            arguments = [
                number(rng) if rng.random() < 0.7 else value(rng)
                for _ in range(rng.choice((1, 2, 3, 4, 5)))
            ]
            return lambda: _make(maker, arguments)
        stages = [
            f"{rng.choice(NAMES)}({', '.join(repr(number(rng)) for _ in range(rng.randrange(6)))})"
            for _ in range(rng.choice((0, 1, 2, 3, 3000)))
        ]
        text = rng.choice((", ", ";", " ", ",,")).join(stages)
        if rng.random() < 0.6:
            text = mutate_text(rng, "blend(15, 0.1), inject(5, 0, 0.1, 0.99, 2), tighten(8)")
        elif rng.random() < 0.2:
            text = rng.choice(TEXTS)
        return lambda: _parse(text)


def _parse(text: str) -> None:
    _check(lf.leaps.parse(text))


def _make(maker: object, arguments: list[object]) -> None:
    assert callable(maker)
    # With other numbers of arguments it is Python that refuses.
    known = list(inspect.signature(maker).parameters.values())
    needed = sum(p.default is p.empty for p in known)
    chosen = (arguments * (needed + 1))[: max(needed, min(len(arguments), len(known)))]
    made = maker(*chosen)
    if isinstance(made, leaps.Stage):
        _check((made,))
    elif isinstance(made, solvers.FixedStep):
        expect(1 <= made.steps <= solvers.MAX_FIXED_STEPS, f"a solver of {made.steps} steps")


def _check(plan: tuple[leaps.Stage, ...]) -> None:
    for stage in plan:
        expect(0 <= stage.n <= leaps.MAX_LEAPS, f"a stage of {stage.n} leaps")
    expect(leaps.parse(leaps.describe(plan)) == plan, f"{plan} is read back as another plan")
