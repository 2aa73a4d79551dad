"""OpenVINO models as torch modules: in batches, on any device, with gradients.

A model is an ``.xml`` file with the graph and a ``.bin`` file with the numbers. The graph is run
operation by operation; those that a generator of plain convolutions needs are known. Whole
numbers, which are shapes and places, stay on the CPU, so that nothing waits for a GPU.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import InputError, MissingData

CLOSE = 1e-2
TYPES = {"f32": np.float32, "f16": np.float16, "i64": np.int64, "i32": np.int32}

Options = Mapping[str, str]


def _ints(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part.strip()]


def _axes(axes: Tensor) -> list[int]:
    return [int(axis) for axis in axes.reshape(-1)]


def _reshape(options: Options, x: Tensor, shape: Tensor) -> Tensor:
    wanted = _axes(shape)
    if options.get("special_zero") == "true":
        wanted = [x.shape[n] if size == 0 else size for n, size in enumerate(wanted)]
    return x.reshape(wanted)


def _squeeze(options: Options, x: Tensor, axes: Tensor) -> Tensor:
    for axis in sorted((a % x.ndim for a in _axes(axes)), reverse=True):
        x = x.squeeze(axis)
    return x


def _unsqueeze(options: Options, x: Tensor, axes: Tensor) -> Tensor:
    chosen = _axes(axes)
    for axis in sorted(a % (x.ndim + len(chosen)) for a in chosen):
        x = x.unsqueeze(axis)
    return x


def _broadcast(options: Options, x: Tensor, shape: Tensor) -> Tensor:
    wanted = _axes(shape)
    if options["mode"] == "bidirectional":
        return x.expand(torch.empty(wanted, device="meta").add(x.to("meta")).shape)
    return x.expand(wanted)


def _geometry(options: Options) -> tuple[list[int], list[int], list[int]]:
    """Returns stride, padding and dilation."""
    begin, end = _ints(options["pads_begin"]), _ints(options["pads_end"])
    if begin != end or options.get("auto_pad", "explicit") != "explicit":
        raise InputError(
            f"a convolution is padded by {begin} before and {end} after ({options['auto_pad']}), "
            "where torch pads both sides alike. Run the model with engine='openvino'."
        )
    return _ints(options["strides"]), begin, _ints(options["dilations"])


def _convolution(options: Options, x: Tensor, kernel: Tensor) -> Tensor:
    return F.conv2d(x, kernel, None, *_geometry(options))


def _grouped(options: Options, x: Tensor, kernel: Tensor) -> Tensor:
    return F.conv2d(x, kernel.flatten(0, 1), None, *_geometry(options), len(kernel))


def _grouped_back(options: Options, x: Tensor, kernel: Tensor) -> Tensor:
    stride, padding, dilation = _geometry(options)
    extra = _ints(options.get("output_padding", "0, 0"))
    apart = list(kernel.shape[3:]) == stride and padding == extra == [0, 0]
    if apart and kernel.shape[1] == kernel.shape[2] == 1 and dilation == [1, 1]:
        return _spread(x, kernel[:, 0, 0])
    return F.conv_transpose2d(
        x, kernel.flatten(0, 1), None, stride, padding, extra, len(kernel), dilation
    )


def _spread(x: Tensor, kernel: Tensor) -> Tensor:
    """Puts a scaled kernel in the place of every pixel: what wavelets go up with.

    That is a transposed convolution whose kernels do not overlap, several times as fast.
    """
    (rows, columns), (height, width) = kernel.shape[1:], x.shape[2:]
    spread = x[:, :, :, None, :, None] * kernel[:, None, :, None, :]
    return spread.reshape(len(x), -1, rows * height, columns * width)


def _prelu(options: Options, x: Tensor, slope: Tensor) -> Tensor:
    return F.prelu(x, slope.reshape(-1))


def _matmul(options: Options, a: Tensor, b: Tensor) -> Tensor:
    a = a.transpose(-1, -2) if options["transpose_a"] == "true" else a
    b = b.transpose(-1, -2) if options["transpose_b"] == "true" else b
    return a @ b


def _gather(options: Options, x: Tensor, rows: Tensor, axis: Tensor) -> Tensor:
    n = int(axis)
    found = x.index_select(n, rows.reshape(-1))
    return found.reshape([*x.shape[:n], *rows.shape, *x.shape[n + 1 :]])


OPERATIONS: dict[str, Callable[..., Tensor | Sequence[Tensor]]] = {
    "Add": lambda o, a, b: a + b,
    "Multiply": lambda o, a, b: a * b,
    "Power": lambda o, a, b: a**b,
    "MatMul": _matmul,
    "ReduceMean": lambda o, x, axes: x.mean(_axes(axes), keepdim=o["keep_dims"] == "true"),
    "ShapeOf": lambda o, x: torch.tensor(x.shape),
    "Gather": _gather,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Concat": lambda o, *parts: torch.cat(parts, int(o["axis"])),
    "Reshape": _reshape,
    "Tile": lambda o, x, times: x.repeat(_axes(times)),
    "Broadcast": _broadcast,
    "PReLU": _prelu,
    "Convolution": _convolution,
    "GroupConvolution": _grouped,
    "GroupConvolutionBackpropData": _grouped_back,
    "VariadicSplit": lambda o, x, axis, sizes: torch.split(x, _axes(sizes), int(axis)),
}


Port = tuple[str, str]


@dataclass(frozen=True)
class Step:
    """Is one operation of a graph.

    Arguments:
        kind: Which operation.
        options: Its attributes.
        inputs: Where what goes in comes from.
        outputs: Where what comes out is kept.
        last: What nobody needs after it.
    """

    kind: str
    options: Options
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    last: tuple[Port, ...] = ()


class Graph(nn.Module):
    """Is an OpenVINO model with one input and one output, run by torch.

    Its weights are buffers: they move with the module and are not trained, while gradients pass
    through to the input. A model that was made for one row at a time is asked for several at once
    where that comes to the same, which is found out at the first such call.

    Arguments:
        path: The ``.xml`` file, with its ``.bin`` file beside it.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        path = Path(path)
        weights = path.with_suffix(".bin")
        for file in (path, weights):
            if not file.is_file():
                raise MissingData(
                    f"there is no OpenVINO model at {path}: {file.name} is missing. Give the path "
                    "of its .xml file, with the .bin file beside it."
                )
        self.steps: list[Step] = []
        self.whole: dict[Port, Tensor] = {}
        self.entries: list[Port] = []
        self.exits: list[Port] = []
        self.together: bool | None = None
        try:
            self._read(ElementTree.parse(path).getroot(), weights.read_bytes())
        except InputError as error:
            raise InputError(f"{path} cannot be run by torch: {error}") from error
        except (ElementTree.ParseError, AttributeError, KeyError, ValueError) as error:
            raise InputError(
                f"{path} is no OpenVINO model, or damaged ({type(error).__name__}: {error}). Copy "
                "it again."
            ) from error
        self.eval()

    def _read(self, root: ElementTree.Element, content: bytes) -> None:
        sources = {
            (edge.attrib["to-layer"], edge.attrib["to-port"]): (
                edge.attrib["from-layer"],
                edge.attrib["from-port"],
            )
            for edge in root.iter("edge")
        }
        for layer in root.iter("layer"):
            name, kind = layer.attrib["id"], layer.attrib["type"]
            data = layer.find("data")
            options = {} if data is None else dict(data.attrib)
            inputs = tuple(
                sources[name, port.attrib["id"]] for port in layer.iterfind("input/port")
            )
            outputs = tuple((name, port.attrib["id"]) for port in layer.iterfind("output/port"))
            if kind == "Parameter":
                self.entries.append(outputs[0])
            elif kind == "Result":
                self.exits.append(inputs[0])
            elif kind == "Const":
                self._keep(outputs[0], options, content)
            elif kind in OPERATIONS:
                self.steps.append(Step(kind, options, inputs, outputs))
            else:
                raise InputError(
                    f"it has the operation {kind}, which is not known here. Run it with "
                    "engine='openvino'."
                )
        if len(self.entries) != 1 or len(self.exits) != 1:
            raise InputError(
                f"it must have one input and one output, got {len(self.entries)} and "
                f"{len(self.exits)}. Export the part of the model that you need."
            )
        self.steps = _with_ends(self.steps, self.exits)

    def _keep(self, port: Port, options: Options, content: bytes) -> None:
        """Keeps a constant: numbers as a buffer, shapes and places on the CPU."""
        start, size = int(options["offset"]), int(options["size"])
        if start + size > len(content):
            raise ValueError(f"the .bin file ends before byte {start + size}")
        kind = TYPES[options["element_type"]]
        array = np.frombuffer(content[start : start + size], kind).reshape(_ints(options["shape"]))
        value = torch.from_numpy(array.copy())
        if value.is_floating_point():
            self.register_buffer(_name(port), value.float())
        else:
            self.whole[port] = value

    def forward(self, x: Tensor) -> Tensor:
        """Returns the output for a batch of rows."""
        if len(x) == 1 or self.together:
            return self._run(x)
        if self.together is None:
            found = self._first_try(x)
            if found is not None:
                return found
        return torch.cat([self._run(row) for row in torch.split(x, 1)])

    def _first_try(self, x: Tensor) -> Tensor | None:
        """Runs several rows at once, and finds out whether that comes to the same."""
        one = self._run(x[:1])
        try:
            found = self._run(x)
            same = len(found) == len(x) and _near(found[:1], one)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, IndexError):
            same = False
        self.together = same
        return found if same else None

    def _run(self, x: Tensor) -> Tensor:
        values: dict[Port, Tensor] = {**self.whole, self.entries[0]: x}
        for step in self.steps:
            given = [self._value(port, values) for port in step.inputs]
            found = OPERATIONS[step.kind](step.options, *given)
            values.update(
                zip(step.outputs, [found] if isinstance(found, Tensor) else found, strict=True)
            )
            for port in step.last:
                values.pop(port, None)
        return self._value(self.exits[0], values)

    def _value(self, port: Port, values: Mapping[Port, Tensor]) -> Tensor:
        return values[port] if port in values else self.get_buffer(_name(port))


def _near(a: Tensor, b: Tensor) -> bool:
    """Tells whether two outputs are the same but for how a device rounds."""
    return bool((a - b).abs().mean() <= CLOSE * b.abs().mean())


def _with_ends(steps: Sequence[Step], kept: Sequence[Port]) -> list[Step]:
    """Notes for each operation what it is the last to need, so that memory is free again."""
    needed, found = set(kept), []
    for step in reversed(steps):
        last = {*step.inputs, *step.outputs} - needed
        needed |= last
        found.append(replace(step, last=tuple(last)))
    return found[::-1]


def _name(port: Port) -> str:
    return "constant_{}_{}".format(*port)
