"""Algorithm 2 with fewer queries, as a dialogue.

Gives the same result as :func:`leapfactual.reference.explain`, the algorithm as printed, with
fewer queries: it visits the same iterates, and of each image returns the last one in the target
class, or else the last. A property test compares the two. A walk yields the images that it wants
labelled and is sent the answers. It does not know who answers: :func:`drive` lets a classifier do
so, a campaign lets people.

No query is made whose answer cannot matter:

- Images whose next leap would not move them wait, and so do images of the target class while
  tightening, which would bring them back, is ahead.
- Where nothing is lifted (``lift = 0``) the path does not depend on the answers. The classifier is
  queried when the next stage needs its answer, or at the end of the plan; iterates in between are
  *deferred*, and resolved backwards, only for images that did not end in the target class.

With a mask, what is shown is pasted into the input, from the first query on; see
:mod:`leapfactual.masks`. Where the input's own pixels are kept, they are put back wherever the
decoded picture has not changed, see :func:`leapfactual.imaging.keep_pixels`; so the first picture
is the input itself.

There are two ways to leave an image out of a step. The usual one gathers the *rows* that take
part, so that the others cost nothing. A *masked* walk is free of branches: every row takes part in
every step and results that are not wanted are dropped. Then nothing has to be known on the host,
and the whole walk can be captured as one CUDA graph.
"""

from collections.abc import Generator as Coroutine
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from . import checks
from .errors import InputError
from .explanation import Explanation, Trajectory
from .flow import Flow
from .imaging import keep_pixels, paste
from .leaps import Focus, Restart, Stage, Tightening
from .solvers import Solver, Velocity
from .types import Classifier, Generator

T = TypeVar("T")
Rows = Tensor | slice
ALL_ROWS = slice(None)


class CountingSolver(Solver):
    """Creates a solver that counts function evaluations (NFE) on behalf of another.

    Arguments:
        solver: The solver that integrates.
    """

    def __init__(self, solver: Solver) -> None:
        self.solver, self.nfe = solver, 0

    def integrate(self, v: Velocity, z: Tensor, start: float, end: float) -> Tensor:
        """See :meth:`Solver.integrate`."""
        return self.solver.integrate(self._counted(v), z, start, end)

    def round_trip(self, down: Velocity, up: Velocity, z: Tensor, gamma: float = 1.0) -> Tensor:
        """See :meth:`Solver.round_trip`."""
        return self.solver.round_trip(self._counted(down), self._counted(up), z, gamma)

    def _counted(self, v: Velocity) -> Velocity:
        def counted(t: Tensor, u: Tensor) -> Tensor:
            self.nfe += getattr(v, "evaluations", 1)
            return v(t, u)

        return counted

    def __repr__(self) -> str:
        return repr(self.solver)


class Canvas(NamedTuple):
    """Images that decoded pictures are shown on.

    Arguments:
        x: The images.
        start: Their reconstructions, where their own pixels are kept.
    """

    x: Tensor
    start: Tensor | None

    def take(self, rows: Rows) -> "Canvas":
        """Returns some of the rows."""
        return Canvas(self.x[rows], None if self.start is None else self.start[rows])


@dataclass(frozen=True, eq=False)
class Walker:
    """Creates a walker, which takes latents along a plan.

    Arguments:
        generator: The generator.
        flow: The flow.
        plan: The stages.
        draft: A cheaper generator for the iterates on the way. Defaults to the generator.
        masked: Whether the walk is free of branches.
        keep_path: Whether to keep every iterate.
        mask: Where images may change, ``(1, H, W)`` or ``(C, H, W)``. Defaults to everywhere.
        keep_pixels: Whether to show the input's own pixels where nothing has changed.
    """

    generator: Generator
    flow: Flow
    plan: Sequence[Stage]
    draft: Generator | None = None
    masked: bool = False
    keep_path: bool = False
    mask: Tensor | None = None
    keep_pixels: bool = False

    @property
    def needs_images(self) -> bool:
        """Whether the images are needed beside their latents."""
        return self.keep_pixels or self.mask is not None

    def encode(self, x: Tensor) -> Tensor:
        """Returns the latents ``(B, D)`` that images start from."""
        checks.images(x)
        z = self.generator.encode(x.detach())
        checks.one_row_each(z, x, "the generator's encode")
        self.flow.check_latents(z)
        return z

    def run(
        self, z: Tensor, target: int | Tensor, x: Tensor | None = None
    ) -> "Coroutine[Tensor, Tensor, State]":
        """Yields images to label, is sent probabilities ``(B, K)``, returns the final state.

        Queries that can wait for the end are left in :attr:`State.deferred`.

        Arguments:
            z: The latents that images start from, with shape ``(B, D)``.
            target: The class to reach.
            x: The images, where :attr:`needs_images` says so.
        """
        y = checks.targets(target, len(z), self.flow.classes, z.device)
        c_target = self.flow.one_hot(y)
        counter = CountingSolver(self.flow.solver)
        flow = self.flow.with_solver(counter)
        canvas = self._canvas(z, x)
        decoded = None if canvas is None else canvas.start
        image = self.generator.decode(z) if decoded is None else decoded
        image, p = yield from self._query(z, image, canvas)
        state, c_source, first = State(y, z, image, p, self, canvas), flow.condition(p), p
        for number, stage in enumerate(self.plan):
            if state.has_pending and stage.n and (not stage.open_loop or stage.confidence < 1):
                p = yield from self._resolve_pending(state, z, p)
            if isinstance(stage, Tightening):
                z, p = yield from self._tighten(state, stage.n)
                continue
            if isinstance(stage, Focus):
                z, p = yield from self._focus(state, stage)
                continue
            if isinstance(stage, Restart):
                z = torch.where(state.reached[:, None], z, state.start)
                p = torch.where(state.reached[:, None], p, first)
                continue
            tightens = any(isinstance(later, Tightening) for later in self.plan[number:])
            waiting = (state.source == state.target) & tightens
            for _ in range(stage.n if stage.land else 0):
                c = flow.condition(p)
                moving = stage.moves(c, c_target, p) & ~waiting
                rows = self._rows(moving)
                if not _any(rows):
                    break
                before = counter.nfe
                leapt = stage.leap(flow, z[rows], c[rows], c_target[rows], c_source[rows])
                z = _put(z, moving, rows, leapt)
                state.move(moving, z, counter.nfe - before)
                if stage.open_loop:
                    state.defer(moving, z)
                else:
                    answer = yield from self._observe(state, moving, rows, state.taken, z)
                    p = _put(p, moving, rows, answer)
        if state.has_pending:
            yield from self._resolve_pending(state, z, p)
        return state

    def resolve_deferred(self, state: "State") -> Coroutine[Tensor, Tensor, None]:
        """Queries deferred iterates, last first, for images not seen in the target class since."""
        state.pending, state.has_pending = torch.zeros_like(state.pending), False
        while state.deferred:
            moved, taken, z = state.deferred.pop()
            missing = moved & ~state.inside_since(taken)
            rows = self._rows(missing)
            if _any(rows):
                yield from self._observe(state, missing, rows, taken, z)

    def render(self, z: Tensor, generator: Generator, canvas: Canvas | None) -> Tensor:
        """Returns the images of ``z``, on a canvas if there is one."""
        return self._show(z, generator.decode(z), canvas)

    def _show(self, z: Tensor, image: Tensor, canvas: Canvas | None) -> Tensor:
        checks.one_row_each(image, z, "the generator's decode")
        checks.check_floating(image, "the generator's image")
        if canvas is None:
            return image
        if image.shape != canvas.x.shape:
            raise InputError(
                f"the generator makes images of shape {checks.shape(image[0])}, which cannot be "
                f"pasted into images of {checks.shape(canvas.x[0])}. Resize the images to the "
                "generator's size."
            )
        if canvas.start is not None:
            image = keep_pixels(image, canvas.start, canvas.x)
        return image if self.mask is None else paste(image, canvas.x, self.mask)

    def _canvas(self, z: Tensor, x: Tensor | None) -> Canvas | None:
        if x is None or not self.needs_images:
            return None
        return Canvas(x, self.generator.decode(z) if self.keep_pixels else None)

    def _resolve_pending(
        self, state: "State", z: Tensor, p: Tensor
    ) -> Coroutine[Tensor, Tensor, Tensor]:
        """Queries the present iterate of rows that moved without one; returns all answers."""
        moved, rows = state.pending, self._rows(state.pending)
        if _any(rows):
            answer = yield from self._observe(state, moved, rows, state.taken, z)
            p = _put(p, moved, rows, answer)
        state.commit(moved)
        return p

    def _tighten(self, state: "State", n: int) -> Coroutine[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Bisects the line back to the start for rows that have crossed into the target class.

        It ends where the class changes, where a draft may have another class than the picture
        that is returned. So it is the generator itself that decodes here.
        """
        yield from self.resolve_deferred(state)
        crossed = state.crossed()
        rows = self._rows(crossed)
        outside = state.start
        for _ in range(n if _any(rows) else 0):
            middle = (outside + state.z) / 2
            z = torch.where(crossed[:, None], middle, state.z)
            state.move(crossed, z, 0)
            yield from self._observe(state, crossed, rows, state.taken, z, self.generator)
            accepted = state.leaps == state.taken
            outside = torch.where(accepted[:, None], outside, middle)
        return state.z, state.p

    def _focus(
        self, state: "State", stage: Focus
    ) -> Coroutine[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Takes back small changes of rows that have crossed and stay in the target class."""
        yield from self.resolve_deferred(state)
        crossed = state.crossed()
        rows = self._rows(crossed)
        if _any(rows):
            focused = stage.apply(self.flow, state.start, state.z)
            z = torch.where(crossed[:, None], focused, state.z)
            state.move(crossed, z, 0)
            yield from self._observe(state, crossed, rows, state.taken, z, self.generator)
        return state.z, state.p

    def _rows(self, mask: Tensor) -> Rows:
        return ALL_ROWS if self.masked else mask.nonzero()[:, 0]

    def _query(
        self, z: Tensor, decoded: Tensor, canvas: Canvas | None, before: Tensor | None = None
    ) -> Coroutine[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Yields the images of ``z``, as they are shown, and returns them with the answer."""
        image = self._show(z, decoded, canvas)
        if before is not None:
            _check_alike(image, before)
        checks.pixels(image, "the generator's image")
        p = yield image
        checks.probabilities(p, len(z), self.flow.classes, "the classifier's answer")
        return image, p.to(z.device)

    def _observe(
        self,
        state: "State",
        mask: Tensor,
        rows: Rows,
        taken: Tensor,
        z: Tensor,
        generator: Generator | None = None,
    ) -> Coroutine[Tensor, Tensor, Tensor]:
        """Queries some of the iterates, updates the state and returns the answers."""
        generator = generator or self.draft or self.generator
        image, p = yield from self._query(
            z[rows],
            generator.decode(z[rows]),
            state.canvas and state.canvas.take(rows),
            state.image,
        )
        state.observe(mask, rows, taken, z, image, p)
        return p


class State:
    """Creates the state of a walk: for every image the iterate to return, and what it cost.

    Arguments:
        target: The class to reach, ``(B,)``.
        z: The latents that images start from, ``(B, D)``.
        image: Their reconstructions.
        p: The classifier's answers on those, ``(B, K)``.
        walker: The walker. Of a masked walk, or of drafts, no images are kept.
        canvas: The images that decoded pictures are shown on, if there are.
    """

    def __init__(
        self,
        target: Tensor,
        z: Tensor,
        image: Tensor,
        p: Tensor,
        walker: Walker,
        canvas: Canvas | None = None,
    ) -> None:
        self.walker, self.canvas = walker, canvas
        self.start, self.reconstruction, self.source = z, image, p.argmax(1)
        self.target, self.z, self.p = target, z, p
        kept = walker.draft is None and not walker.masked
        self.image = image.clone() if kept else None
        self.reached = self.source == target
        self.first = torch.where(self.reached, 0, -1)
        self.leaps, self.taken, self.nfe = (torch.zeros_like(target) for _ in range(3))
        self.queries = torch.ones_like(target)
        self.deferred: list[tuple[Tensor, Tensor, Tensor]] = []
        self.pending, self.has_pending = torch.zeros_like(self.reached), False
        everyone = torch.arange(len(z), device=z.device)
        self.path = [(everyone, self.taken, z)]
        self.answers = [(everyone, self.taken, p)]

    def move(self, mask: Tensor, z: Tensor, nfe: int) -> None:
        """Records that a leap has brought some rows to where they are in ``z``."""
        self.taken = self.taken + mask
        self.nfe = self.nfe + nfe * mask
        if self.walker.keep_path:
            self.path.append((mask.nonzero()[:, 0], self.taken[mask], z[mask]))

    def defer(self, mask: Tensor, z: Tensor) -> None:
        """Keeps the iterates of some rows for a later query."""
        self.deferred.append((mask, self.taken, z))
        self.pending, self.has_pending = self.pending | mask, True

    def commit(self, mask: Tensor) -> None:
        """Drops the deferred iterates of rows whose present iterate has been queried."""
        self.deferred = [
            (moved & ~(mask & (taken == self.taken)), taken, z)
            for moved, taken, z in self.deferred
        ]
        self.pending, self.has_pending = torch.zeros_like(mask), False

    def inside_since(self, taken: Tensor) -> Tensor:
        """Returns which rows were seen in the target class at the leap ``taken`` or later."""
        return self.reached & (self.leaps >= taken)

    def crossed(self) -> Tensor:
        """Returns which rows have come into the target class from outside."""
        return self.reached & (self.source != self.target)

    def observe(
        self, mask: Tensor, rows: Rows, taken: Tensor, z: Tensor, image: Tensor, p: Tensor
    ) -> None:
        """Accepts answers: the last iterate in the target class is kept, or else the last."""
        self.queries = self.queries + mask
        answers = _put(self.p, mask, rows, p)
        inside = (answers.argmax(1) == self.target) & mask
        accepted = inside | (mask & ~self.reached & (taken >= self.leaps))
        self.z = torch.where(accepted[:, None], z, self.z)
        self.p = torch.where(accepted[:, None], answers, self.p)
        self.leaps = torch.where(accepted, taken, self.leaps)
        if self.image is not None:
            self.image[accepted] = image[accepted[rows]]
        self.reached = self.reached | inside
        sooner = inside & ((self.first < 0) | (taken < self.first))
        self.first = torch.where(sooner, taken, self.first)
        if self.walker.keep_path:
            self.answers.append((mask.nonzero()[:, 0], taken[mask], p))

    def explanation(self, x: Tensor, seconds: float) -> Explanation:
        """Returns the explanation of the images ``x``, which took so many seconds in all."""
        assert self.image is not None
        return Explanation(
            x=x,
            reconstruction=self.reconstruction,
            counterfactual=self.image,
            z=self.start,
            z_counterfactual=self.z,
            source=self.source,
            target=self.target,
            label=self.p.argmax(1),
            probabilities=self.p,
            first=self.first,
            leaps=self.leaps,
            nfe=self.nfe,
            queries=self.queries,
            seconds=torch.full_like(self.z[:, 0], seconds / max(len(x), 1)),
            path=self._trajectory() if self.walker.keep_path else None,
        )

    def _trajectory(self) -> Trajectory:
        leaps = sum(stage.n for stage in self.walker.plan)
        z = self.z.new_zeros(len(self.z), leaps + 1, self.z.shape[1])
        p = self.p.new_full((len(self.p), leaps + 1, self.p.shape[1]), torch.nan)
        for rows, taken, value in self.path:
            z[rows, taken] = value
        for rows, taken, value in self.answers:
            p[rows, taken] = value.to(p)
        index = torch.arange(leaps + 1, device=z.device).minimum(self.taken[:, None])[:, :, None]
        z, p = z.take_along_dim(index, 1), p.take_along_dim(index, 1)
        keeps = torch.full_like(self.reached, self.walker.keep_pixels)
        return Trajectory(z, p, self.taken, keeps, self.walker.mask)


@torch.no_grad()
def drive(dialogue: Coroutine[Tensor, Tensor, T], classifier: Classifier) -> T:
    """Lets a classifier answer a dialogue to its end, and returns its result.

    Answers that were kept can be replayed: ``drive(dialogue, lambda _: next(answers))``.
    """
    answer: Tensor | None = None
    while True:
        try:
            images = next(dialogue) if answer is None else dialogue.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        answer = classifier(images)


def _check_alike(image: Tensor, before: Tensor) -> None:
    """Checks that a generator goes on making images of the same size and type."""
    if image.shape[1:] != before.shape[1:] or image.dtype != before.dtype:
        raise InputError(
            f"the generator made images of shape {checks.shape(before[0])} in {before.dtype}, and "
            f"then of {checks.shape(image[0])} in {image.dtype}. Let it give one size and type."
        )


def _any(rows: Rows) -> bool:
    return isinstance(rows, slice) or len(rows) > 0


def _put(whole: Tensor, mask: Tensor, rows: Rows, part: Tensor) -> Tensor:
    """Returns ``whole`` with ``part`` in its rows, where the mask says so."""
    if isinstance(rows, slice):
        return torch.where(mask[:, None], part.to(whole), whole)
    return whole.index_copy(0, rows, part.to(whole))
