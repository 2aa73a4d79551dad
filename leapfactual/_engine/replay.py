"""Whole walks, recorded: on a GPU a batch is one launch.

A walk takes hundreds of small steps, and launching them one by one takes longer than running them.
A straight walk (see :mod:`leapfactual.walk`) is therefore recorded once for each size of batch and
replayed from then on. Sizes are rounded up to *buckets*, so that few recordings serve all; a batch
that falls short is filled with copies of its last latent. Encoding is left out: it happens once,
and may be an inversion of many steps. With a mask the images are read beside their latents.

On the way, velocities and images are drafted in half precision; where a walk ends is decoded and
asked about in full. A recording is used only if, on the images at hand, it comes to the same
labels as a walk step by step. Otherwise it is made anew in full precision, or not at all.

An image for which draft and full precision disagree, or which has left the target class at the end
of a stage that asks nobody, is *in doubt*. Those are few, and are walked again with *care*: in
full precision and with every question asked.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial

import torch
from torch import Tensor

from ..explanation import Explanation
from ..fields import FIELDS, VelocityField
from ..flow import Flow
from ..leaps import Stage
from ..solvers import FixedStep
from ..walk import Route, converse
from .copies import PROBES, Pair, Quick, weights, written
from .cuda_graphs import record

NAMES = [f.name for f in fields(Explanation) if f.name not in ("x", "seconds", "path")]
SMALLEST = 16
DOUBTS = 0.1
MOST = 8


def bucket(n: int) -> int:
    """Returns the size that a batch is filled up to: at most a quarter more, but at least 16.

    Example:
        >>> [bucket(n) for n in (1, 16, 33, 512, 513, 10_000)]
        [16, 16, 40, 512, 640, 10240]
    """
    n = max(n, SMALLEST)
    step = 1 << ((n - 1).bit_length() - 3)
    return -(-n // step) * step


@dataclass(frozen=True, eq=False)
class Recording:
    """Is a walk of one size of batch, ready to be replayed.

    Arguments:
        graph: The recorded work. It knows where its networks are, but does not keep them there.
        inputs: Where it reads latents, targets and, with a mask, images.
        outputs: Where it writes what an explanation holds, and who is in doubt.
        networks: The networks that it asks.
    """

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    outputs: list[Tensor]
    networks: tuple[Pair, Pair, Flow]

    def replay(self, given: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Returns what an explanation holds, by name, and who is in doubt."""
        for kept, new in zip(self.inputs, given, strict=True):
            kept[: len(new)] = new
            kept[len(new) :] = new[-1:]
        self.graph.replay()
        *found, doubt = (tensor[: len(given[0])].clone() for tensor in self.outputs)
        return dict(zip(NAMES, found, strict=True)), doubt


class Recorder:
    """Walks batches by replaying, where it can; :attr:`refused` says where it cannot, and why.

    Arguments:
        quick: The networks to ask.
        flow: The flow.
        plan: The stages.
        mask: Where images may change; everywhere when not given.
    """

    def __init__(
        self, quick: Quick, flow: Flow, plan: Sequence[Stage], mask: Tensor | None = None
    ) -> None:
        self.quick, self.flow, self.plan, self.mask = quick, flow, plan, mask
        self.recordings: dict[object, Recording | None] = {}
        self.refused: dict[object, Exception | None] = {}
        known = type(flow.field) in FIELDS.values() and isinstance(flow.solver, FixedStep)
        self.usable = known and quick.pair.pure and flow.mean.dtype == torch.float32
        self.seen = signature(flow, plan, mask)
        self.error: Exception | None = None

    def explain(
        self, x: Tensor, z: Tensor, y: Tensor, *, care: bool = False
    ) -> tuple[Explanation, Tensor] | None:
        """Returns the explanation of a batch and who is in doubt; nothing where it cannot.

        The first batch of its size is not worth a recording, and gets nothing.

        Arguments:
            x: The images.
            z: Their latents.
            y: The class to reach with each.
            care: Whether to leave no doubt.
        """
        key = bucket(len(z)), care
        if not self.usable or not z.is_cuda or z.dtype != torch.float32 or key in self.refused:
            return None
        if key not in self.recordings:
            self.recordings[key] = None
            return None
        given = [z, y] if self.mask is None else [z, y, x.to(z.dtype)]
        recording = self.recordings[key]
        if recording is None:
            ready = [known for known, made in self.recordings.items() if made is not None]
            if len(ready) >= MOST:
                self.recordings[ready[0]] = None
            recording = self.recordings[key] = self._recorded(given, care)
            if recording is None:
                self.refused[key] = self.error
                return None
        self.recordings[key] = self.recordings.pop(key)
        found, doubt = recording.replay(given)
        seconds = torch.zeros_like(z[:, 0])
        return Explanation(x=x, seconds=seconds, **found), doubt  # type: ignore[arg-type]

    @torch.no_grad()
    def _recorded(self, given: Sequence[Tensor], care: bool) -> Recording | None:
        """Makes the fastest recording that comes to the same labels, if there is one."""
        pair, size, few = self.quick.pair, bucket(len(given[0])), slice(0, PROBES)
        some = Route(pair.generator, self.flow, self.plan, mask=self.mask)
        walk = converse(some.go(*(part[few] for part in given)), pair.classifier)
        converse(some.catch_up(walk), pair.classifier)
        filled = [
            torch.cat([part, part[-1:].expand(size - len(part), *part.shape[1:])])
            for part in given
        ]
        for half in (False,) if care else (True, False):
            try:
                draft = self.quick.plain.copied(torch.float16) if half else pair
                flow = halved(self.flow) if half else self.flow
                recorded = record(partial(self._walk, draft, flow, care), filled)
                recording = Recording(*recorded, (pair, draft, flow))
                found, doubt = recording.replay(given)
            except Exception as error:  # a stranger's network may raise anything; see `refused`
                self.error = error
                continue
            same = found["label"][few] == walk.p.argmax(1)
            if bool((doubt[few] | same).all()) and doubt.double().mean() <= DOUBTS:
                return recording
        return None

    def _walk(
        self,
        draft: Pair,
        flow: Flow,
        care: bool,
        z: Tensor,
        y: Tensor,
        x: Tensor | None = None,
    ) -> list[Tensor]:
        pair = self.quick.pair

        def answer(x: Tensor) -> Tensor:
            return (draft if x.dtype == torch.half else pair).classifier(x)

        route = Route(
            pair.generator, flow, self.plan, draft.generator, straight=True, mask=self.mask
        )
        walk = converse(route.go(z, y, x), answer)
        if care:
            converse(route.catch_up(walk), answer)
        doubt = torch.zeros_like(walk.reached)
        for moved, taken, _ in walk.postponed:
            doubt = doubt | (moved & walk.outside(taken))
        walk.image = route.show(walk.z, pair.generator, x)
        if draft is not pair:
            walk.p = pair.classifier(walk.image)
            walk.queries = walk.queries + 1
            doubt = doubt | ((walk.p.argmax(1) == y) != walk.reached)
        found = walk.explanation(walk.image, 0.0)
        bad = ~walk.image.isfinite().flatten(1).all(1)
        return [*(getattr(found, name) for name in NAMES), doubt | bad]


def signature(flow: Flow, plan: Sequence[Stage], mask: Tensor | None = None) -> object:
    """Returns what a recording depends on besides the networks that it asks."""
    where = None if mask is None else written(mask)
    return flow.solver, flow.soft, tuple(plan), where, *weights(flow)


class _HalfField(VelocityField):
    """Is a field in half precision, for latents in single."""

    def __init__(self, field: VelocityField) -> None:
        super().__init__(field.features, field.classes)
        self.field = copy.deepcopy(field).half().requires_grad_(False)

    def forward(self, t: Tensor, z: Tensor, c: Tensor) -> Tensor:
        return self.under(c)(t, z)

    def under(self, c: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        velocity = self.field.under(c.half())
        return lambda t, z: velocity(t.half(), z.half()).float()

    def config(self) -> dict[str, object]:
        return self.field.config()


def halved(flow: Flow) -> Flow:
    """Returns the flow with its field in half precision."""
    return flow.with_field(_HalfField(flow.field))
