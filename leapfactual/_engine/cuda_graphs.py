"""Captured steps: on a GPU a step is recorded once and replayed from then on.

The networks of the paper are small. Launching their kernels one by one takes ten times as long as
running them; a recorded step launches them all at once.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Adam

WARM_UP = 3


class Captured:
    """Takes training steps, and records the step where it can be replayed.

    A step is a function of tensors that returns a tensor and changes others in place: weights,
    the optimizer's state, averages. To be recorded it must not wait for the device, and numbers
    that change from step to step must be tensors, such as the learning rate that
    :func:`optimizer` makes.

    The first calls run as they are and count as steps; so do calls with other shapes than the
    first one's, such as a shorter last batch. Replaying draws the same random numbers.

    Arguments:
        step: The step.
        generator: The source of the step's randomness.
        enabled: Whether the step may be recorded. On the CPU it never is.
    """

    def __init__(
        self, step: Callable[..., Tensor], rng: torch.Generator, enabled: bool = True
    ) -> None:
        self.step, self.generator = step, rng
        self.enabled = enabled and rng.device.type == "cuda"
        self.shapes: list[torch.Size] = []
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, *tensors: Tensor) -> Tensor:
        """Takes a step. What is returned is overwritten by the next one."""
        shapes = [tensor.shape for tensor in tensors]
        self.shapes = self.shapes or shapes
        if not self.enabled or shapes != self.shapes:
            return self.step(*tensors)
        self.calls += 1
        with torch.cuda.device(self.generator.device):
            if self.calls <= WARM_UP:
                return _beside(self.step, tensors)
            if self.graph is None:
                self.graph = self._record(tensors)
            for kept, tensor in zip(self.inputs, tensors, strict=True):
                kept.copy_(tensor)
            self.graph.replay()
            return self.output

    def _record(self, tensors: tuple[Tensor, ...]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        self.inputs = [tensor.clone() for tensor in tensors]
        with torch.cuda.graph(graph):
            self.output = self.step(*self.inputs)
        return graph


T = TypeVar("T")


def record(
    step: Callable[..., T], tensors: Sequence[Tensor]
) -> tuple[torch.cuda.CUDAGraph, list[Tensor], T]:
    """Records a step that draws no random numbers.

    A step that waits for the device cannot be recorded, and a recording that breaks off leaves
    things behind. So it is tried first whether the step waits; then there is a RuntimeError.

    Returns:
        The recording, the tensors that it reads, and what it returns.
    """
    with torch.cuda.device(tensors[0].device):
        with _choosing(), _refusing_to_wait():
            _beside(step, tensors)
        inputs = [tensor.clone() for tensor in tensors]
        graph = torch.cuda.CUDAGraph()
        with _choosing(), torch.cuda.graph(graph):
            output = step(*inputs)
    return graph, inputs, output


def waits(step: Callable[..., object], tensors: Sequence[Tensor]) -> bool:
    """Tells whether a function waits for the device, so that it cannot be recorded."""
    if tensors[0].device.type != "cuda":
        return False
    try:
        with _refusing_to_wait():
            step(*tensors)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return True
    return False


@contextmanager
def _choosing() -> Iterator[None]:
    """Lets convolutions be tried in several ways, and takes the fastest."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextmanager
def _refusing_to_wait() -> Iterator[None]:
    """Lets everything that waits for the device fail."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


def _beside(step: Callable[..., T], tensors: Sequence[Tensor]) -> T:
    """Takes a step on a stream of its own, as steps must run before they are recorded."""
    here, beside = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    beside.wait_stream(here)
    with torch.cuda.stream(beside):
        out = step(*tensors)
    here.wait_stream(beside)
    return out


def lay_out(module: nn.Module, layout: torch.memory_format) -> None:
    """Puts the channels of kernels last, which half precision is faster with, or back."""
    for parameter in module.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=layout)


def optimizer(
    kind: type[Adam], parameters: Sequence[Tensor], learning_rate: float, weight_decay: float = 0.0
) -> Adam:
    """Returns an Adam whose steps can be recorded where the parameters are on a GPU."""
    if parameters[0].device.type != "cuda":
        return kind(parameters, lr=learning_rate, weight_decay=weight_decay, fused=True)
    rate = torch.tensor(learning_rate, device=parameters[0].device)
    return kind(parameters, lr=rate, weight_decay=weight_decay, fused=True, capturable=True)


def set_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Sets the learning rate, in place where it is a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(learning_rate)
        else:
            group["lr"] = learning_rate
