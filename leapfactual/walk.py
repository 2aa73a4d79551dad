"""The walk of algorithm 2, leap by leap, as a dialogue.

It yields the images that it wants labelled and is sent the answers; it does not know who answers.

No question is asked whose answer cannot matter. Images whose next leap would not move them wait,
and so do images of the target class while tightening, which would bring them back, is ahead.
Where nothing is lifted (``lift = 0``), the path does not depend on the answers: the classifier is
asked when the next stage needs its answer, or about the end of the plan, and afterwards, step by
step backwards, only about images that are not in the target class there.

With a mask, what is shown is pasted into the input, from the first question on; see
:mod:`leapfactual.masks`.

There are two ways to leave an image out. The usual one gathers the *rows* that take part, so that
the others cost nothing. A *straight* walk lets every row take part and throws away what it does
not want: then nothing has to be known on the way, and a GPU can be given the whole walk at once.
"""

from collections.abc import Generator as Coroutine
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from . import checks
from .errors import InputError
from .explanation import Explanation, Path
from .flow import Flow
from .imaging import paste
from .leaps import Stage, Tightening
from .types import Classifier, Generator

T = TypeVar("T")
Rows = Tensor | slice
EVERYONE = slice(None)


@dataclass(frozen=True, eq=False)
class Route:
    """Is what a walk needs to know.

    Arguments:
        generator: Makes latents of images and images of latents.
        flow: The flow.
        plan: The stages.
        draft: Makes the images on the way, where the generator's own are not needed; the generator
            when not given.
        straight: Whether every row takes part in everything.
        keep_path: Whether to keep every iterate.
        mask: Where images may change, ``(1, H, W)`` or ``(C, H, W)``; everywhere when not given.
    """

    generator: Generator
    flow: Flow
    plan: Sequence[Stage]
    draft: Generator | None = None
    straight: bool = False
    keep_path: bool = False
    mask: Tensor | None = None

    def encode(self, x: Tensor) -> Tensor:
        """Returns where images start."""
        checks.images(x)
        z = self.generator.encode(x.detach())
        checks.one_row_each(z, x, "the generator's encode")
        self.flow.check_latents(z)
        return z

    def go(
        self, z: Tensor, target: int | Tensor, x: Tensor | None = None
    ) -> "Coroutine[Tensor, Tensor, Walk]":
        """Yields images to label, is sent probabilities ``(B, K)``, returns the walk.

        Questions that can wait for the end are left in :attr:`Walk.postponed`.

        Arguments:
            z: Where the images start, with shape ``(B, D)``.
            target: The class to reach.
            x: The images, which stay outside of the mask, if there is one.
        """
        y = checks.targets(target, len(z), self.flow.classes, z.device)
        c_target = self.flow.one_hot(y)
        image, p = yield from self._ask(z, self.generator, x)
        walk = Walk(y, z, image, p, self, x)
        for number, stage in enumerate(self.plan):
            if walk.unheard and stage.n and (not stage.blind or stage.confidence < 1):
                p = yield from self._hear_pending(walk, z, p)
            if isinstance(stage, Tightening):
                z, p = yield from self._tighten(walk, stage.n)
                continue
            goes_back = any(isinstance(later, Tightening) for later in self.plan[number:])
            waits = (walk.source == walk.target) & goes_back
            for _ in range(stage.n if stage.land else 0):
                c = self.flow.condition(p)
                moving = stage.moves(c, c_target, p) & ~waits
                rows = self._rows(moving)
                if not _some(rows):
                    break
                given = z[rows], c[rows], c_target[rows]
                leapt, nfe = self.flow.exchange(*given, lift=stage.lift, land=stage.land)
                z = _put(z, moving, rows, leapt)
                walk.move(moving, z, nfe)
                if stage.blind:
                    walk.postpone(moving, z)
                else:
                    said = yield from self._hear(walk, moving, rows, walk.taken, z)
                    p = _put(p, moving, rows, said)
        if walk.unheard:
            yield from self._hear_pending(walk, z, p)
        return walk

    def catch_up(self, walk: "Walk") -> Coroutine[Tensor, Tensor, None]:
        """Asks backwards about iterates that nobody was asked about, as far as it matters."""
        walk.pending, walk.unheard = torch.zeros_like(walk.pending), False
        while walk.postponed:
            moved, taken, earlier = walk.postponed.pop()
            outside = moved & walk.outside(taken)
            rows = self._rows(outside)
            if _some(rows):
                yield from self._hear(walk, outside, rows, taken, earlier)

    def _hear_pending(
        self, walk: "Walk", z: Tensor, p: Tensor
    ) -> Coroutine[Tensor, Tensor, Tensor]:
        """Asks where those stand that moved without asking; returns all answers of now."""
        moved, rows = walk.pending, self._rows(walk.pending)
        if _some(rows):
            said = yield from self._hear(walk, moved, rows, walk.taken, z)
            p = _put(p, moved, rows, said)
        walk.settle(moved)
        return p

    def _tighten(self, walk: "Walk", n: int) -> Coroutine[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Goes back towards the start with all that have crossed into the target class."""
        yield from self.catch_up(walk)
        crossed = walk.crossed()
        rows = self._rows(crossed)
        outside = walk.start
        for _ in range(n if _some(rows) else 0):
            middle = (outside + walk.z) / 2
            z = torch.where(crossed[:, None], middle, walk.z)
            walk.move(crossed, z, 0)
            yield from self._hear(walk, crossed, rows, walk.taken, z)
            stays = walk.leaps == walk.taken
            outside = torch.where(stays[:, None], outside, middle)
        return walk.z, walk.p

    def _rows(self, mask: Tensor) -> Rows:
        return EVERYONE if self.straight else mask.nonzero()[:, 0]

    def show(self, z: Tensor, generator: Generator, x: Tensor | None) -> Tensor:
        """Returns what there is to see of ``z``: its images, pasted into the mask of ``x``."""
        image = generator.decode(z)
        checks.one_row_each(image, z, "the generator's decode")
        if self.mask is None or x is None:
            return image
        if image.shape != x.shape:
            raise InputError(
                f"the generator makes images of shape {checks.shape(image[0])}, which cannot be "
                f"pasted into a mask of {checks.shape(x[0])}. Resize the images to the "
                "generator's size."
            )
        return paste(image, x, self.mask)

    def _ask(
        self, z: Tensor, generator: Generator, x: Tensor | None
    ) -> Coroutine[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Yields the images of ``z`` and returns them with the answer."""
        image = self.show(z, generator, x)
        checks.finite(image, "the generator's image")
        p = yield image
        checks.probabilities(p, len(z), self.flow.classes, "the classifier's answer")
        return image, p.to(z.device)

    def _hear(
        self, walk: "Walk", mask: Tensor, rows: Rows, taken: Tensor, z: Tensor
    ) -> Coroutine[Tensor, Tensor, Tensor]:
        """Asks about some of the iterates, notes the answers and returns them."""
        image, p = yield from self._ask(
            z[rows], self.draft or self.generator, None if walk.x is None else walk.x[rows]
        )
        walk.hear(mask, rows, taken, z, image, p)
        return p


class Walk:
    """Keeps, for every image, the iterate to return and what was spent on it.

    Arguments:
        target: The class to reach, ``(B,)``.
        z: Where the images start, ``(B, D)``.
        image: What the generator makes of that.
        p: What the classifier says of that.
        route: The route. In a straight walk no images are kept.
        x: The images, if the route needs them.
    """

    def __init__(
        self,
        target: Tensor,
        z: Tensor,
        image: Tensor,
        p: Tensor,
        route: Route,
        x: Tensor | None = None,
    ) -> None:
        self.route, self.x = route, x
        self.start, self.reconstruction, self.source = z, image, p.argmax(1)
        self.target, self.z, self.p = target, z, p
        self.image = None if route.straight else image.clone()
        self.reached = self.source == target
        self.first = torch.where(self.reached, 0, -1)
        self.leaps, self.taken, self.nfe = (torch.zeros_like(target) for _ in range(3))
        self.queries = torch.ones_like(target)
        self.postponed: list[tuple[Tensor, Tensor, Tensor]] = []
        self.pending, self.unheard = torch.zeros_like(self.reached), False
        everyone = torch.arange(len(z), device=z.device)
        self.path = [(everyone, self.taken, z)]
        self.answers = [(everyone, self.taken, p)]

    def move(self, mask: Tensor, z: Tensor, nfe: int) -> None:
        """Notes that a leap has brought some rows to where they are in ``z``."""
        self.taken = self.taken + mask
        self.nfe = self.nfe + nfe * mask
        if self.route.keep_path:
            self.path.append((mask.nonzero()[:, 0], self.taken[mask], z[mask]))

    def postpone(self, mask: Tensor, z: Tensor) -> None:
        """Keeps the iterates of some rows, about which nobody has been asked yet."""
        self.postponed.append((mask, self.taken, z))
        self.pending, self.unheard = self.pending | mask, True

    def settle(self, mask: Tensor) -> None:
        """Notes that some rows have been asked about where they stand now."""
        self.postponed = [
            (moved & ~(mask & (taken == self.taken)), taken, z)
            for moved, taken, z in self.postponed
        ]
        self.pending, self.unheard = torch.zeros_like(mask), False

    def outside(self, taken: Tensor) -> Tensor:
        """Returns who was not seen in the target class at the leap ``taken`` or later."""
        return ~self.reached | (self.leaps < taken)

    def crossed(self) -> Tensor:
        """Returns who has come into the target class from outside."""
        return self.reached & (self.source != self.target)

    def hear(
        self, mask: Tensor, rows: Rows, taken: Tensor, z: Tensor, image: Tensor, p: Tensor
    ) -> None:
        """Notes answers; the last iterate in the target class stays, or else the last."""
        self.queries = self.queries + mask
        said = _put(self.p, mask, rows, p)
        inside = (said.argmax(1) == self.target) & mask
        stays = inside | (mask & ~self.reached & (taken >= self.leaps))
        self.z = torch.where(stays[:, None], z, self.z)
        self.p = torch.where(stays[:, None], said, self.p)
        self.leaps = torch.where(stays, taken, self.leaps)
        if self.image is not None:
            kept = stays[rows]
            self.image[stays] = image[kept]
        self.reached = self.reached | inside
        sooner = inside & ((self.first < 0) | (taken < self.first))
        self.first = torch.where(sooner, taken, self.first)
        if self.route.keep_path:
            self.answers.append((mask.nonzero()[:, 0], taken[mask], p))

    def explanation(self, x: Tensor, seconds: float) -> Explanation:
        """Puts it all together."""
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
            path=self._path() if self.route.keep_path else None,
        )

    def _path(self) -> Path:
        leaps = sum(stage.n for stage in self.route.plan)
        z = self.z.new_zeros(len(self.z), leaps + 1, self.z.shape[1])
        p = self.p.new_full((len(self.p), leaps + 1, self.p.shape[1]), torch.nan)
        for rows, taken, value in self.path:
            z[rows, taken] = value
        for rows, taken, value in self.answers:
            p[rows, taken] = value.to(p)
        index = torch.arange(leaps + 1, device=z.device).minimum(self.taken[:, None])[:, :, None]
        z, p = z.take_along_dim(index, 1), p.take_along_dim(index, 1)
        return Path(z, p, self.taken, self.route.mask)


@torch.no_grad()
def converse(dialogue: Coroutine[Tensor, Tensor, T], classifier: Classifier) -> T:
    """Lets a classifier answer a dialogue to its end, and returns what comes of it.

    Answers that were kept can be replayed: ``converse(dialogue, lambda _: next(answers))``.
    """
    answer: Tensor | None = None
    while True:
        try:
            question = next(dialogue) if answer is None else dialogue.send(answer)
        except StopIteration as end:
            found: T = end.value
            return found
        answer = classifier(question)


def _some(rows: Rows) -> bool:
    return isinstance(rows, slice) or len(rows) > 0


def _put(whole: Tensor, mask: Tensor, rows: Rows, part: Tensor) -> Tensor:
    """Returns ``whole`` with ``part`` in its rows, where the mask says so."""
    if isinstance(rows, slice):
        return torch.where(mask[:, None], part.to(whole), whole)
    return whole.index_copy(0, rows, part.to(whole))
