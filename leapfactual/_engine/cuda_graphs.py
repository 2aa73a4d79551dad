"""CUDA graph capture: on a GPU a step is captured once and replayed from then on.

The networks of the paper are small. Launching their kernels one by one takes ten times as long as
running them; a captured step launches them all at once.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Adam

# Steps that run as they are before the capture: lazy initialisation and cuDNN's choice of
# algorithms must be over by then. torch's own examples take three.
WARM_UP_STEPS = 3


class CapturedStep:
    """Creates a training step that is captured where it can be replayed.

    A step is a function of tensors that returns a tensor and changes others in place: weights,
    the optimizer's state, averages. To be captured it must not synchronize with the device, and
    numbers that change from step to step must be tensors, such as the learning rate that
    :func:`make_adam` makes.

    The first calls run as they are and count as steps; so do calls with other shapes than the
    first one's, such as a shorter last batch. Replaying draws the same random numbers.

    Arguments:
        step: The step.
        rng: The random number generator of the step.
        enabled: Whether the step may be captured. On the CPU it never is.
    """

    def __init__(
        self, step: Callable[..., Tensor], rng: torch.Generator, enabled: bool = True
    ) -> None:
        self.step, self.rng = step, rng
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
        with torch.cuda.device(self.rng.device):
            if self.calls <= WARM_UP_STEPS:
                return _on_side_stream(self.step, tensors)
            if self.graph is None:
                self.graph = self._capture(tensors)
            for kept, tensor in zip(self.inputs, tensors, strict=True):
                kept.copy_(tensor)
            self.graph.replay()
            return self.output

    def _capture(self, tensors: tuple[Tensor, ...]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.rng)
        self.inputs = [tensor.clone() for tensor in tensors]
        with torch.cuda.graph(graph):
            self.output = self.step(*self.inputs)
        return graph


T = TypeVar("T")


def capture(
    step: Callable[..., T], tensors: Sequence[Tensor]
) -> tuple[torch.cuda.CUDAGraph, list[Tensor], T]:
    """Captures a step that draws no random numbers.

    A step that synchronizes with the device cannot be captured, and a capture that breaks off
    leaves things behind. So the step is tried first, with synchronization as a RuntimeError.

    Returns:
        The graph, the tensors that it reads, and those that it writes.
    """
    with torch.cuda.device(tensors[0].device):
        with _autotune(), _forbid_sync():
            _on_side_stream(step, tensors)
        inputs = [tensor.clone() for tensor in tensors]
        graph = torch.cuda.CUDAGraph()
        with _autotune(), torch.cuda.graph(graph):
            output = step(*inputs)
    return graph, inputs, output


def synchronizes(step: Callable[..., object], tensors: Sequence[Tensor]) -> bool:
    """Tells whether a function synchronizes with the device, so that it cannot be captured."""
    if tensors[0].device.type != "cuda":
        return False
    try:
        with _forbid_sync():
            step(*tensors)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return True
    return False


@contextmanager
def _autotune() -> Iterator[None]:
    """Lets cuDNN try its algorithms for convolutions, and take the fastest."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextmanager
def _forbid_sync() -> Iterator[None]:
    """Makes everything that synchronizes with the device fail."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


def _on_side_stream(step: Callable[..., T], tensors: Sequence[Tensor]) -> T:
    """Runs a step on a stream of its own, as steps must before they are captured."""
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(current)
    with torch.cuda.stream(side):
        out = step(*tensors)
    current.wait_stream(side)
    return out


def to_memory_format(module: nn.Module, layout: torch.memory_format) -> None:
    """Converts kernels to a memory format; half precision is faster with channels last."""
    for parameter in module.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=layout)


def make_adam(
    kind: type[Adam], parameters: Sequence[Tensor], learning_rate: float, weight_decay: float = 0.0
) -> Adam:
    """Returns an Adam whose steps can be captured where the parameters are on a GPU."""
    if parameters[0].device.type != "cuda":
        return kind(parameters, lr=learning_rate, weight_decay=weight_decay, fused=True)
    rate = torch.tensor(learning_rate, device=parameters[0].device)
    return kind(parameters, lr=rate, weight_decay=weight_decay, fused=True, capturable=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Sets the learning rate, in place where it is a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(learning_rate)
        else:
            group["lr"] = learning_rate
