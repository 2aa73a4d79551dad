"""Algorithm 2: walk to a counterfactual, asking the classifier on the way.

The algorithm is a *dialogue*. It yields the images that it wants labelled and is sent the answers;
it does not know who answers. A network answers at once, a crowd may take a day, a test answers
from a list, and answers that were kept replay to the same result, because steps are fixed and
nothing is random.

No question is asked whose answer cannot matter. Images whose next leap would not move them wait,
and so do images of the target class while tightening, which would bring them back, is ahead.
Where nothing is lifted (``lift = 0``), the path does not depend on the answers: the classifier is
asked when the next stage needs its answer, or about the end of the plan, and afterwards, step by
step backwards, only about images that are not in the target class there.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Generator as Coroutine
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from . import checks
from .errors import InputError
from .explanation import Explanation, Path
from .flow import Flow
from .leaps import Stage, Tightening, leap
from .pictures import Pictures, as_images
from .types import Classifier, Generator

Dialogue = Coroutine[Tensor, Tensor, Explanation]


class Explainer(ABC):
    """Is what every method answers to: parameters in the constructor, data in :meth:`explain`."""

    @abstractmethod
    def explain(self, x: Pictures, target: int | Tensor) -> Explanation:
        """Returns a counterfactual for each image.

        Arguments:
            x: Images, with shape ``(B, C, H, W)`` and values in [0, 1], or rows ``(B, D)``. Arrays
                and pictures of Pillow are taken too, see :func:`leapfactual.pictures.as_images`.
            target: The class to reach: one for all images, or one per image, with shape ``(B,)``.
        """


class LeapFactual(Explainer):
    r"""Explains by leaps along a flow that was trained on the classifier's own answers.

    The plan is a list of stages. With :math:`N_b` blending leaps alone it is the paper's
    LeapFactual; with :math:`N_i` injection leaps after them, LeapFactual_R, whose counterfactuals
    other judges agree with.

    The counterfactual of an image is its *last* iterate that the classifier gives to the target
    class. Where there is none, it is the last iterate, and the status says so.

    References:
        | LeapFactual: Reliable Visual Counterfactual Explanation Using Conditional Flow
        | Matching (Cao et al., 2025)
        | https://arxiv.org/abs/2510.14623

    Arguments:
        generator: Makes latents of images and images of latents.
        classifier: The classifier to explain. It is asked, never differentiated. None when the
            answers come from elsewhere, through :meth:`dialogue`.
        flow: A flow trained on that generator's latents and that classifier's answers.
        plan: The stages, built with :func:`~leapfactual.blend`, :func:`~leapfactual.inject` and
            :func:`~leapfactual.tighten`.
        batch_size: How many images are explained at a time.
        keep_path: Whether to keep every iterate in :attr:`Explanation.path`.

    Example:
        >>> from leapfactual import LeapFactual, blend, inject
        >>> from leapfactual.generators import Identity
        >>> from leapfactual.testing import GaussianOracle
        >>> oracle = GaussianOracle(torch.tensor([[-2.0, 0.0], [2.0, 0.0]]), scale=0.5)
        >>> plan = [blend(20, 0.1), inject(3, lift=0.0, land=0.1)]
        >>> explainer = LeapFactual(Identity(), oracle.classifier, oracle.flow(), plan)
        >>> explainer.explain(torch.tensor([[-2.0, 0.3], [-1.5, 0.0]]), target=1)
        Explanation(2 images to class 1: 2 valid, median 7 leaps)
    """

    def __init__(
        self,
        generator: Generator,
        classifier: Classifier | None,
        flow: Flow,
        plan: Sequence[Stage],
        *,
        batch_size: int = 1024,
        keep_path: bool = False,
    ) -> None:
        stages = [] if isinstance(plan, Stage) else list(plan)
        if not stages or not all(isinstance(stage, Stage) for stage in stages):
            raise InputError(
                f"`plan` must be a list of stages, got {plan!r}. Try [blend(15, 0.1)] or "
                "[blend(15, 0.1), inject(5, lift=0.0, land=0.1)]."
            )
        if not isinstance(generator, Generator):
            raise InputError(
                f"`generator` must have encode and decode, got {type(generator).__name__}. The "
                "order is generator, classifier, flow, plan."
            )
        if classifier is not None and not callable(classifier):
            raise InputError(
                f"`classifier` must be a function from images to probabilities, got "
                f"{type(classifier).__name__}."
            )
        if not isinstance(flow, Flow):
            raise InputError(f"`flow` must be a Flow, got {type(flow).__name__}.")
        checks.positive(batch_size, "batch_size")
        self.generator, self.classifier, self.flow = generator, classifier, flow
        self.plan, self.batch_size, self.keep_path = stages, batch_size, keep_path

    def __repr__(self) -> str:
        return f"LeapFactual({self.generator!r}, {self.flow.classes} classes, plan={self.plan})"

    def explain(self, x: Pictures, target: int | Tensor) -> Explanation:
        """See :meth:`Explainer.explain`."""
        if self.classifier is None:
            raise InputError(
                "there is no classifier to ask. Give one to LeapFactual, or answer its dialogue."
            )
        x = as_images(x)
        checks.images(x)
        y = checks.targets(target, len(x), self.flow.classes, x.device)
        if not len(x):
            raise InputError(
                "`x` must hold at least one image, got none. Check the path or the filter."
            )
        parts = zip(torch.split(x, self.batch_size), torch.split(y, self.batch_size), strict=True)
        return Explanation.cat([converse(self.dialogue(*part), self.classifier) for part in parts])

    @torch.no_grad()
    def dialogue(self, x: Tensor, target: int | Tensor) -> Dialogue:
        """Yields images to label, is sent probabilities ``(B, K)``, returns the explanation."""
        started = time.perf_counter()
        z = self._encode(x)
        y = checks.targets(target, len(x), self.flow.classes, z.device)
        c_target = self.flow.one_hot(y)
        image, p = yield from self._ask(z)
        c = self.flow.condition(p)
        walk = _Walk(y, z, image, p, self.generator.decode if self.keep_path else None)
        for number, stage in enumerate(self.plan):
            if walk.unheard and stage.n and not stage.blind:
                taken, last = walk.postponed.pop()
                rows = (taken > 0).nonzero()[:, 0]
                heard = yield from self._hear(walk, rows, taken, last)
                c = c.index_copy(0, rows, heard)
            if isinstance(stage, Tightening):
                z, c = yield from self._tighten(walk, stage.n)
                continue
            goes_back = any(isinstance(later, Tightening) for later in self.plan[number:])
            waits = (walk.source == walk.target) & goes_back
            for _ in range(stage.n):
                moving = (stage.moves(c, c_target) & ~waits).nonzero()[:, 0]
                if not len(moving):
                    break
                given = z[moving], c[moving], c_target[moving]
                with counted(self.flow.field) as evaluations:
                    moved = leap(self.flow, *given, lift=stage.lift, land=stage.land)
                z = z.index_copy(0, moving, moved)
                walk.move(moving, z, len(evaluations))
                if stage.blind:
                    walk.postpone(z)
                else:
                    heard = yield from self._hear(walk, moving, walk.taken, z)
                    c = c.index_copy(0, moving, heard)
        yield from self._catch_up(walk)
        leaps = sum(stage.n for stage in self.plan)
        return walk.explanation(x, leaps, time.perf_counter() - started)

    def _tighten(self, walk: "_Walk", n: int) -> Coroutine[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Goes back towards the start with all that have crossed into the target class."""
        yield from self._catch_up(walk)
        rows = walk.crossed()
        outside = walk.start[rows]
        for _ in range(n if len(rows) else 0):
            middle = (outside + walk.z[rows]) / 2
            z = walk.z.index_copy(0, rows, middle)
            walk.move(rows, z, 0)
            yield from self._hear(walk, rows, walk.taken, z)
            stays = walk.leaps[rows] == walk.taken[rows]
            outside = torch.where(stays[:, None], outside, middle)
        return walk.z.clone(), self.flow.condition(walk.p)

    def _catch_up(self, walk: "_Walk") -> Coroutine[Tensor, Tensor, None]:
        """Asks backwards about iterates that nobody was asked about, as far as it matters."""
        while walk.postponed:
            taken, earlier = walk.postponed.pop()
            yield from self._hear(walk, walk.outside(taken), taken, earlier)

    def _encode(self, x: Tensor) -> Tensor:
        checks.images(x)
        z = self.generator.encode(x.detach())
        checks.one_row_each(z, x, "the generator's encode")
        self.flow.check_latents(z)
        return z

    def _ask(self, z: Tensor) -> Coroutine[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Yields the images of ``z`` and returns them with the answer."""
        image = self.generator.decode(z)
        checks.one_row_each(image, z, "the generator's decode")
        checks.finite(image, "the generator's image")
        p = yield image
        checks.probabilities(p, len(z), self.flow.classes, "the classifier's answer")
        return image, p.to(z.device)

    def _hear(
        self, walk: "_Walk", rows: Tensor, taken: Tensor, z: Tensor
    ) -> Coroutine[Tensor, Tensor, Tensor]:
        """Asks about some of the iterates ``z``, notes the answers, returns the conditions."""
        if not len(rows):
            return z.new_zeros(0, self.flow.classes)
        image, p = yield from self._ask(z[rows])
        walk.hear(rows, taken[rows], z[rows], image, p)
        return self.flow.condition(p)


class _Walk:
    """Keeps, for every image, the iterate to return and what was spent on it."""

    def __init__(
        self,
        target: Tensor,
        z: Tensor,
        image: Tensor,
        p: Tensor,
        decode: Callable[[Tensor], Tensor] | None,
    ) -> None:
        self.everyone = torch.arange(len(z), device=z.device)
        self.start, self.reconstruction, self.source = z, image, p.argmax(1)
        self.target, self.z, self.image, self.p = target, z.clone(), image.clone(), p.clone()
        self.reached = self.source == target
        self.first = torch.where(self.reached, 0, -1)
        self.leaps, self.taken, self.evaluations = (torch.zeros_like(target) for _ in range(3))
        self.questions = torch.ones_like(target)
        self.postponed: list[tuple[Tensor, Tensor]] = []
        self.unheard = False
        self.keep_path, self.decode = decode is not None, decode
        self.path = [(self.everyone, self.taken.clone(), z)]
        self.answers = [(self.everyone, self.taken.clone(), p)]

    def move(self, rows: Tensor, z: Tensor, evaluations: int) -> None:
        """Notes that a leap has brought ``rows`` to where they are in ``z``."""
        self.taken[rows] += 1
        self.evaluations[rows] += evaluations
        if self.keep_path:
            self.path.append((rows, self.taken[rows], z[rows]))

    def postpone(self, z: Tensor) -> None:
        """Keeps iterates that nobody has been asked about yet."""
        self.postponed.append((self.taken.clone(), z))
        self.unheard = True

    def outside(self, taken: Tensor) -> Tensor:
        """Returns who was not seen in the target class at the leap ``taken`` or later."""
        return (~self.reached | (self.leaps < taken)).nonzero()[:, 0]

    def crossed(self) -> Tensor:
        """Returns who has come into the target class from outside."""
        return (self.reached & (self.source != self.target)).nonzero()[:, 0]

    def hear(self, rows: Tensor, taken: Tensor, z: Tensor, image: Tensor, p: Tensor) -> None:
        """Notes an answer; the last iterate in the target class stays, or else the last."""
        self.unheard = False
        self.questions[rows] += 1
        inside = p.argmax(1) == self.target[rows]
        stays = inside | (~self.reached[rows] & (taken >= self.leaps[rows]))
        kept = rows[stays]
        self.z[kept], self.image[kept] = z[stays], image[stays]
        self.p[kept], self.leaps[kept] = p[stays].to(self.p), taken[stays]
        self.reached[rows] |= inside
        first = self.first[rows]
        self.first[rows] = torch.where(inside & ((first < 0) | (taken < first)), taken, first)
        if self.keep_path:
            self.answers.append((rows, taken, p))

    def explanation(self, x: Tensor, leaps: int, seconds: float) -> Explanation:
        """Puts it all together."""
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
            evaluations=self.evaluations,
            questions=self.questions,
            seconds=torch.full_like(self.z[:, 0], seconds / max(len(x), 1)),
            path=self._path(leaps) if self.keep_path else None,
        )

    def _path(self, leaps: int) -> Path:
        z = self.z.new_zeros(len(self.z), leaps + 1, self.z.shape[1])
        p = self.p.new_full((len(self.p), leaps + 1, self.p.shape[1]), torch.nan)
        for rows, taken, value in self.path:
            z[rows, taken] = value
        for rows, taken, value in self.answers:
            p[rows, taken] = value.to(p)
        index = torch.arange(leaps + 1, device=z.device).minimum(self.taken[:, None])[:, :, None]
        z, p = z.take_along_dim(index, 1), p.take_along_dim(index, 1)
        return Path(z, p, self.taken, self.decode)


@contextmanager
def counted(field: nn.Module) -> Iterator[list[None]]:
    """Gives a list that grows by one with every evaluation of the field inside the block."""
    calls: list[None] = []
    handle = field.register_forward_hook(lambda *_: calls.append(None))
    try:
        yield calls
    finally:
        handle.remove()


@torch.no_grad()
def converse(dialogue: Dialogue, classifier: Classifier) -> Explanation:
    """Lets a classifier answer a dialogue to its end.

    Answers that were kept can be replayed: ``converse(dialogue, lambda _: next(answers))``.
    """
    answer: Tensor | None = None
    while True:
        try:
            question = next(dialogue) if answer is None else dialogue.send(answer)
        except StopIteration as end:
            result: Explanation = end.value
            return result
        answer = classifier(question)
