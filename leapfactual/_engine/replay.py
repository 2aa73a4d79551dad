"""Whole walks as CUDA graphs: on a GPU a batch is one launch.

A walk takes hundreds of small steps, and launching them one by one takes longer than running them.
A masked walk (see :mod:`leapfactual.walk`) is therefore captured once for each size of batch and
replayed from then on. Sizes are rounded up to *buckets*, so that few graphs serve all; a batch
that falls short is padded with copies of its last latent. Encoding is left out: it happens once,
and may be an inversion of many steps. With a mask the images are read beside their latents.

On the way, velocities and images are drafted in half precision; the iterate that is returned is
decoded and classified in full. A graph is used only if, on the images at hand, it comes to the
same labels as a walk step by step. Otherwise it is captured again in full precision, or not at
all.

An image for which draft and full precision disagree, or which has left the target class at the end
of an open-loop stage, is *ambiguous*. Those are few, and are walked again by an *exact* graph: in
full precision and with every query made.

A U-Net on maps is a hundred times as dear as launching it, so that images which have arrived must
not walk on. There a walk is *gathered*: step by step, with the rows that still take part. Only the
field is captured, for the few rows that are left in the end or asked about one by one.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..explanation import TENSORS, Explanation
from ..fields import FIELDS, UNet2dField, VelocityField
from ..flow import Flow
from ..leaps import Stage
from ..solvers import FixedStep
from ..walk import Walker, drive
from .copies import MAX_PROBES, Copies, Networks, weights
from .cuda_graphs import capture, to_memory_format

GATHERED = "gathered"
NAMES = [name for name in TENSORS if name not in ("x", "seconds")]
# Below sixteen images a launch costs the same, so that smaller buckets would only be more graphs.
MIN_BUCKET = 16
# Ambiguous images are walked twice. With a tenth of them half precision still pays; with many
# more, the second walk would eat up what the first one saved.
MAX_AMBIGUOUS = 0.1
# From so many rows on, a U-Net takes longer than its launches.
MAX_REPLAYED_ROWS = 64
# Each graph keeps its own activations on the device; eight cover the sizes of a job and its rest.
MAX_GRAPHS = 8


def bucket(n: int) -> int:
    """Returns the size that a batch is padded to: at most a quarter more, but at least 16.

    Example:
        >>> [bucket(n) for n in (1, 16, 33, 512, 513, 10_000)]
        [16, 16, 40, 512, 640, 10240]
    """
    n = max(n, MIN_BUCKET)
    step = 1 << ((n - 1).bit_length() - 3)
    return -(-n // step) * step


@dataclass(frozen=True, eq=False)
class CapturedWalk:
    """Walk of one size of batch, ready to be replayed.

    Arguments:
        graph: The CUDA graph. It knows where its networks are, but does not keep them there.
        inputs: The tensors that it reads: latents, targets and, with a mask, images.
        outputs: The tensors that it writes: what an explanation holds, and which are ambiguous.
        networks: The networks that it queries, kept alive.
    """

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    outputs: list[Tensor]
    networks: tuple[Networks, Networks, Flow]

    def replay(self, inputs: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Returns what an explanation holds, by name, and which images are ambiguous."""
        for kept, new in zip(self.inputs, inputs, strict=True):
            kept[: len(new)] = new
            kept[len(new) :] = new[-1:]
        self.graph.replay()
        *results, ambiguous = (tensor[: len(inputs[0])].clone() for tensor in self.outputs)
        return dict(zip(NAMES, results, strict=True)), ambiguous


class WalkGraphs:
    """Creates the CUDA graphs of a walk, one for each size of batch, as they are needed.

    Arguments:
        copies: The networks to query.
        flow: The flow.
        plan: The stages.
        mask: Where images may change. Defaults to everywhere.
        keep_pixels: Whether to show the input's own pixels where nothing has changed.

    Attributes:
        graphs: The graphs, by bucket and exactness; None for a size that was seen once.
        refused: Why there is no graph of a size, where capture failed or did not agree.
    """

    def __init__(
        self,
        copies: Copies,
        flow: Flow,
        plan: Sequence[Stage],
        mask: Tensor | None = None,
        keep_pixels: bool = False,
    ) -> None:
        self.copies, self.flow, self.plan, self.keep_pixels = copies, flow, plan, keep_pixels
        self.mask = None if mask is None else mask.clone()
        self.graphs: dict[object, CapturedWalk | None] = {}
        self.refused: dict[object, Exception | None] = {}
        self.gathers = isinstance(flow.field, UNet2dField)
        known = type(flow.field) in FIELDS.values() and isinstance(flow.solver, FixedStep)
        frozen = copies.originals.drafts if self.gathers else copies.networks.replayable
        self.usable = known and frozen and flow.mean.dtype == torch.float32
        self.signature = signature(flow, plan)
        self.error: Exception | None = None
        self.draft: Networks | None = None

    def serves(
        self,
        flow: Flow,
        plan: Sequence[Stage],
        mask: Tensor | None = None,
        keep_pixels: bool = False,
    ) -> bool:
        """Tells whether the graphs are of this flow, as it is now, and of this way to show."""
        if (mask is None) != (self.mask is None) or self.signature != signature(flow, plan):
            return False
        if keep_pixels != self.keep_pixels:
            return False
        return mask is None or (self.mask is not None and torch.equal(mask, self.mask))

    def run(
        self, x: Tensor, z: Tensor, y: Tensor, *, exact: bool = False
    ) -> tuple[Explanation, Tensor] | None:
        """Returns the explanation of a batch and which images are ambiguous, if it can.

        The first batch of its size is not worth a capture, and gets nothing.

        Arguments:
            x: The images.
            z: Their latents.
            y: The class to reach with each.
            exact: Whether to leave nothing ambiguous.
        """
        key = GATHERED if self.gathers else (bucket(len(z)), exact)
        if not self.usable or not z.is_cuda or z.dtype != torch.float32 or key in self.refused:
            return None
        if self.gathers:
            return None if exact else self._gather(x, z, y)
        if key not in self.graphs:
            self.graphs[key] = None
            return None
        inputs = [z, y, x.to(z.dtype)] if self._walker().needs_images else [z, y]
        walk = self.graphs[key]
        if walk is None:
            captured = [known for known, graph in self.graphs.items() if graph is not None]
            if len(captured) >= MAX_GRAPHS:
                self.graphs[captured[0]] = None
            walk = self.graphs[key] = self._capture(inputs, exact)
            if walk is None:
                self.refused[key] = self.error
                return None
        self.graphs[key] = self.graphs.pop(key)
        results, ambiguous = walk.replay(inputs)
        return explain(x, results), ambiguous

    @torch.no_grad()
    def _gather(self, x: Tensor, z: Tensor, y: Tensor) -> tuple[Explanation, Tensor] | None:
        """Walks in half precision, with the rows that take part in a step."""
        images = x.to(z.dtype) if self._walker().needs_images else None
        try:
            if self.draft is None:
                self.draft = self.copies.originals.fuse(torch.float16)
            flow = self.flow.with_field(drafted(self.flow.field))
            *results, ambiguous = self.walk(self.draft, flow, True, z, y, images, masked=False)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # half precision may overflow; see `refused`
            self.refused[GATHERED] = error
            return None
        if ambiguous.double().mean() > MAX_AMBIGUOUS:
            self.refused[GATHERED] = None
        return explain(x, dict(zip(NAMES, results, strict=True))), ambiguous

    def _walker(self) -> Walker:
        generator = self.copies.networks.generator
        options = {"mask": self.mask, "keep_pixels": self.keep_pixels}
        return Walker(generator, self.flow, self.plan, **options)  # type: ignore[arg-type]

    @torch.no_grad()
    def _capture(self, inputs: Sequence[Tensor], exact: bool) -> CapturedWalk | None:
        """Captures the fastest walk that comes to the same labels, if there is one."""
        networks, size, few = self.copies.networks, bucket(len(inputs[0])), slice(0, MAX_PROBES)
        walker = self._walker()
        state = drive(walker.run(*(part[few] for part in inputs)), networks.classifier)
        drive(walker.resolve_deferred(state), networks.classifier)
        padded = [
            torch.cat([part, part[-1:].expand(size - len(part), *part.shape[1:])])
            for part in inputs
        ]
        for half in (False,) if exact else (True, False):
            try:
                draft = self.copies.originals.fuse(torch.float16) if half else networks
                flow = half_precision(self.flow) if half else self.flow
                captured = capture(partial(self.walk, draft, flow, exact), padded)
                walk = CapturedWalk(*captured, (networks, draft, flow))
                results, ambiguous = walk.replay(inputs)
            except Exception as error:  # a user's network may raise anything; see `refused`
                self.error = error
                continue
            same = results["label"][few] == state.p.argmax(1)
            agrees = bool((ambiguous[few] | same).all())
            if agrees and ambiguous.double().mean() <= MAX_AMBIGUOUS:
                return walk
        return None

    def walk(
        self,
        draft: Networks,
        flow: Flow,
        exact: bool,
        z: Tensor,
        y: Tensor,
        x: Tensor | None = None,
        *,
        masked: bool = True,
    ) -> list[Tensor]:
        """Walks with drafts; returns what an explanation holds and which are ambiguous.

        Arguments:
            draft: The networks for the iterates on the way.
            flow: The flow, perhaps in half precision.
            exact: Whether to resolve deferred queries.
            z: The latents.
            y: The class to reach with each.
            x: The images, where they are needed.
            masked: Whether the walk is free of branches.
        """
        networks = self.copies.networks
        # What is no torch module was not copied, and gets images as it always does.
        halved = draft.classifier is not self.copies.originals.classifier

        def answer(x: Tensor) -> Tensor:
            if x.dtype == torch.half and halved:
                return draft.classifier(x)
            return networks.classifier(x.float())

        walker = replace(self._walker(), flow=flow, draft=draft.generator, masked=masked)
        state = drive(walker.run(z, y, x), answer)
        if exact:
            drive(walker.resolve_deferred(state), answer)
        ambiguous = torch.zeros_like(state.reached)
        for moved, taken, _ in state.deferred:
            ambiguous = ambiguous | (moved & ~state.inside_since(taken))
        state.image = walker.render(state.z, networks.generator, state.canvas)
        if draft is not networks:
            state.p = networks.classifier(state.image)
            state.queries = state.queries + 1
            ambiguous = ambiguous | ((state.p.argmax(1) == y) != state.reached)
        result = state.explanation(state.image, 0.0)
        diverged = ~state.image.isfinite().flatten(1).all(1)
        return [*(getattr(result, name) for name in NAMES), ambiguous | diverged]


def explain(x: Tensor, results: dict[str, Tensor]) -> Explanation:
    """Makes an explanation of what a walk returned; the engine knows how long it took."""
    seconds = torch.zeros_like(results["z"][:, 0])
    return Explanation(x=x, seconds=seconds, **results)  # type: ignore[arg-type]


def signature(flow: Flow, plan: Sequence[Stage]) -> object:
    """Returns what a graph depends on besides the networks that it queries and the mask."""
    return flow.solver, flow.soft, tuple(plan), *weights(flow)


class _HalfField(VelocityField):
    """Field in half precision, for latents in single."""

    def __init__(self, field: VelocityField) -> None:
        super().__init__(field.features, field.classes)
        self.field = copy.deepcopy(field).half().requires_grad_(False)
        to_memory_format(self.field, torch.channels_last)

    def forward(self, t: Tensor, z: Tensor, c: Tensor) -> Tensor:
        return self.bind(c)(t, z)

    def bind(self, c: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        velocity = self.field.bind(c.half())
        return lambda t, z: velocity(t, z.half()).float()

    @property
    def latent_channels(self) -> int:
        return self.field.latent_channels

    def config(self) -> dict[str, object]:
        return self.field.config()


class _ReplayedField(VelocityField):
    """Field that is evaluated on few rows by one launch of a CUDA graph.

    Sizes are rounded up to powers of two, so that few graphs serve all.
    """

    def __init__(self, field: VelocityField) -> None:
        super().__init__(field.features, field.classes)
        self.field = field
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, list[Tensor], Tensor]] = {}

    def forward(self, t: Tensor, z: Tensor, c: Tensor) -> Tensor:
        return self.bind(c)(t, z)

    def bind(self, c: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        if not c.is_cuda or len(c) > MAX_REPLAYED_ROWS:
            return self.field.bind(c)
        return lambda t, z: self._replay(t, z, c)

    def _replay(self, t: Tensor, z: Tensor, c: Tensor) -> Tensor:
        size = 1 << (len(z) - 1).bit_length()
        if size not in self.graphs:
            inputs = [t, *(part[:1].repeat(size, 1) for part in (z, c))]
            self.graphs[size] = capture(self.field, inputs)
        graph, kept, v = self.graphs[size]
        kept[0].copy_(t)
        for own, new in zip(kept[1:], (z, c), strict=True):
            own[: len(new)] = new
        graph.replay()
        return v[: len(z)].clone()

    @property
    def latent_channels(self) -> int:
        return self.field.latent_channels

    def config(self) -> dict[str, object]:
        return self.field.config()


# Copies of fields in half precision, with the state of the weights that were copied: a search for
# plans walks the same field with many explainers.
_drafts: "WeakKeyDictionary[VelocityField, tuple[object, _ReplayedField]]" = WeakKeyDictionary()


def drafted(field: VelocityField) -> VelocityField:
    """Returns a field in half precision that few rows are replayed on, the same as last time."""
    state = tuple(weights(field))
    kept = _drafts.get(field)
    if kept is None or kept[0] != state:
        kept = _drafts[field] = state, _ReplayedField(_HalfField(field))
    return kept[1]


def half_precision(flow: Flow) -> Flow:
    """Returns the flow with its field in half precision."""
    return flow.with_field(_HalfField(flow.field))
