"""Chooses how a batch is walked: step by step, with fused copies, or as a CUDA graph."""

import time
from collections.abc import Generator as Coroutine
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..explanation import Explanation
from ..types import Classifier
from ..walk import Walker, drive
from .copies import Copies, Networks
from .replay import WalkGraphs


class Batch(NamedTuple):
    """Images to explain at a time.

    Arguments:
        x: The images.
        target: The class to reach with each, ``(B,)``.
        z: Their latents, where they are known.
    """

    x: Tensor
    target: Tensor
    z: Tensor | None


def dialogue(walker: Walker, batch: Batch) -> Coroutine[Tensor, Tensor, Explanation]:
    """Yields the images of a batch to label, is sent the answers, returns the explanation."""
    started = time.perf_counter()
    x, target, z = batch
    z = walker.encode(x) if z is None else z
    state = yield from walker.run(z, target, x.detach() if walker.needs_images else None)
    yield from walker.resolve_deferred(state)
    return state.explanation(x, time.perf_counter() - started)


def step_by_step(walker: Walker, classifier: Classifier, batches: Sequence[Batch]) -> Explanation:
    """Walks batches with the networks as they are."""
    return Explanation.cat([drive(dialogue(walker, batch), classifier) for batch in batches])


class Engine:
    """Creates an engine, which keeps copies and CUDA graphs from call to call.

    Both are made anew when networks, flow, plan or mask have changed. Whatever cannot be copied
    or captured is walked step by step.

    Attributes:
        copies: The fused copies of the networks last used.
        graphs: The CUDA graphs of walks with them.
    """

    def __init__(self) -> None:
        self.copies: Copies | None = None
        self.graphs: WalkGraphs | None = None

    @torch.no_grad()
    def run(self, walker: Walker, classifier: Classifier, batches: Sequence[Batch]) -> Explanation:
        """Walks batches with fused copies of the networks, by replay where that is possible.

        Images are encoded by the generator itself, so that where a walk starts does not depend on
        what was copied when.

        Arguments:
            walker: The walker, with the networks as they are.
            classifier: The classifier.
            batches: The batches. All but the last have the same size.
        """
        started = time.perf_counter()
        results, flags = [], []
        for n, (x, target, z) in enumerate(batches):
            z = walker.encode(x) if z is None else z
            if n == 0:
                copies, graphs = self._refresh(walker, classifier, z)
                fast = replace(walker, generator=copies.networks.generator)
            batch = Batch(x, target, z)
            replayed = None if walker.keep_path else graphs.run(x, z, target)
            if replayed is None:
                result = drive(dialogue(fast, batch), copies.networks.classifier)
                results.append(result)
                flags.append(torch.zeros_like(target, dtype=torch.bool))
            else:
                results.append(replayed[0])
                flags.append(replayed[1])
        whole = Explanation.cat(results)
        for rows in torch.split(torch.cat(flags).nonzero()[:, 0], len(batches[0].x)):
            if len(rows):
                whole = whole.put(rows, self._recheck(whole[rows], fast, copies, graphs))
        share = (time.perf_counter() - started) / len(whole)
        return replace(whole, seconds=torch.full_like(whole.seconds, share))

    def _refresh(
        self, walker: Walker, classifier: Classifier, z: Tensor
    ) -> tuple[Copies, WalkGraphs]:
        """Returns copies and graphs of the networks as they are now."""
        networks = Networks(walker.generator, classifier)
        copies, graphs = self.copies, self.graphs
        if copies is None or copies.originals != networks:
            copies, graphs = Copies(networks), None
        if copies.stale(z):
            copies.refresh(z)
            graphs = None
        parts = walker.flow, walker.plan, walker.mask, walker.keep_pixels
        if graphs is None or not graphs.serves(*parts):
            graphs = WalkGraphs(copies, *parts)
        self.copies, self.graphs = copies, graphs
        return copies, graphs

    def _recheck(
        self, ambiguous: Explanation, walker: Walker, copies: Copies, graphs: WalkGraphs
    ) -> Explanation:
        """Walks ambiguous images again, in full precision and with every query made."""
        x, z, y = ambiguous.x, ambiguous.z, ambiguous.target
        replayed = graphs.run(x, z, y, exact=True)
        if replayed is None or replayed[1].any():
            return drive(dialogue(walker, Batch(x, y, z)), copies.networks.classifier)
        return replayed[0]
