"""OpenVINO models as torch modules: in batches, on any device, with gradients.

A model is an ``.xml`` file with the graph and a ``.bin`` file with the weights. The graph is run
operation by operation; those that a convolutional generator needs are implemented. Integers, which
are shapes and indices, stay on the CPU, so that reading them does not synchronize with a GPU.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import checks
from ..errors import InputError, MissingData

# A device's rounding stays far below one per cent of the mean output; a model that mixes its rows,
# or was exported for one, is off by about as much as its outputs vary.
BATCH_RTOL = 1e-2
# The largest array of one row: 32 channels of 1024 × 1024 pixels. Integers are shapes and indices.
MAX_VALUES, MAX_INTEGERS = 2**25, 2**13
TYPES = {"f32": np.float32, "f16": np.float16, "i64": np.int64, "i32": np.int32}

Options = Mapping[str, str]


def _ints(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part.strip()]


def _axes(axes: Tensor) -> list[int]:
    return [int(axis) for axis in axes.reshape(-1)]


def _tile(options: Options, x: Tensor, times: Tensor) -> Tensor:
    counts = _axes(times)
    if not x.is_floating_point() and x.numel() * math.prod(counts) > MAX_INTEGERS:
        raise ValueError(f"it makes more than {MAX_INTEGERS:,} integers")
    return x.repeat(counts)


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


def _grouped_convolution(options: Options, x: Tensor, kernel: Tensor) -> Tensor:
    return F.conv2d(x, kernel.flatten(0, 1), None, *_geometry(options), len(kernel))


def _grouped_transposed(options: Options, x: Tensor, kernel: Tensor) -> Tensor:
    stride, padding, dilation = _geometry(options)
    extra = _ints(options.get("output_padding", "0, 0"))
    disjoint = list(kernel.shape[3:]) == stride and padding == extra == [0, 0]
    if disjoint and kernel.shape[1] == kernel.shape[2] == 1 and dilation == [1, 1]:
        return _tile_kernel(x, kernel[:, 0, 0])
    return F.conv_transpose2d(
        x, kernel.flatten(0, 1), None, stride, padding, extra, len(kernel), dilation
    )


def _tile_kernel(x: Tensor, kernel: Tensor) -> Tensor:
    """Replaces every pixel by the kernel times its value, as inverse wavelet transforms do.

    That is a transposed convolution whose kernels do not overlap, several times as fast.
    """
    (rows, columns), (height, width) = kernel.shape[1:], x.shape[2:]
    tiles = x[:, :, :, None, :, None] * kernel[:, None, :, None, :]
    return tiles.reshape(len(x), -1, rows * height, columns * width)


def _prelu(options: Options, x: Tensor, slope: Tensor) -> Tensor:
    return F.prelu(x, slope.reshape(-1))


def _matmul(options: Options, a: Tensor, b: Tensor) -> Tensor:
    a = a.transpose(-1, -2) if options["transpose_a"] == "true" else a
    b = b.transpose(-1, -2) if options["transpose_b"] == "true" else b
    return a @ b


def _gather(options: Options, x: Tensor, rows: Tensor, axis: Tensor) -> Tensor:
    n = int(axis)
    selected = x.index_select(n, rows.reshape(-1).to(x.device))
    return selected.reshape([*x.shape[:n], *rows.shape, *x.shape[n + 1 :]])


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
    "Tile": _tile,
    "Broadcast": _broadcast,
    "PReLU": _prelu,
    "Convolution": _convolution,
    "GroupConvolution": _grouped_convolution,
    "GroupConvolutionBackpropData": _grouped_transposed,
    "VariadicSplit": lambda o, x, axis, sizes: torch.split(x, _axes(sizes), int(axis)),
}


Port = tuple[str, str]


@dataclass(frozen=True)
class Step:
    """One operation of a graph.

    Arguments:
        kind: Which operation.
        options: Its attributes.
        inputs: The ports that it reads.
        outputs: The ports that it writes.
        shapes: The shapes that the file declares of the outputs, -1 for what may vary; empty where
            it declares none.
        free: The ports that no later operation reads.
    """

    kind: str
    options: Options
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    shapes: tuple[tuple[int, ...], ...]
    free: tuple[Port, ...] = ()


class Graph(nn.Module):
    """Creates a torch module from an OpenVINO model with one input and one output.

    Its weights are buffers: they move with the module and are not trained, while gradients pass
    through to the input. A model that was exported for one row is run in batches if that gives the
    same result, which the first such call tests.

    Arguments:
        path: The ``.xml`` file, with its ``.bin`` file beside it.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        path = checks.path(path)
        weights = path.with_suffix(".bin")
        for file in (path, weights):
            if not file.is_file():
                raise MissingData(
                    f"there is no OpenVINO model at {path}: {file.name} is missing. Give the path "
                    "of its .xml file, with the .bin file beside it."
                )
        self.steps: list[Step] = []
        self.integers: dict[Port, Tensor] = {}
        self.constants: set[Port] = set()
        self.entries: list[Port] = []
        self.exits: list[Port] = []
        self.shape: tuple[int, ...] = ()
        self.batched: bool | None = None
        self.checked: tuple[int, ...] | None = None
        try:
            self._read(ElementTree.parse(path).getroot(), weights.read_bytes())
        except InputError as error:
            raise InputError(f"{path} cannot be run by torch: {error}") from error
        except (
            *(ElementTree.ParseError, AttributeError, LookupError, ValueError),
            RuntimeError,  # sizes beyond what torch can count
        ) as error:
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
            shapes = tuple(map(_declared, layer.iterfind("output/port")))
            if kind == "Parameter":
                self.entries.append(outputs[0])
                self.shape = shapes[0]
            elif kind == "Result":
                self.exits.append(inputs[0])
            elif kind == "Const":
                self._store(outputs[0], options, content)
            elif kind in OPERATIONS:
                self.steps.append(Step(kind, options, inputs, outputs, shapes))
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
        self._check_order()
        self.steps = _plan_memory(self.steps, self.exits)

    def _check_order(self) -> None:
        """Checks that everything is written before it is read."""
        known = {*self.entries, *self.integers, *self.constants}
        for step in self.steps:
            missing = [port for port in step.inputs if port not in known]
            if missing:
                raise InputError(
                    f"its operation {step.kind} reads port {missing[0][1]} of layer "
                    f"{missing[0][0]}, which none before it writes. Its graph has a cycle, or a "
                    "layer is missing. Export it again."
                )
            known |= set(step.outputs)
        if self.exits[0] not in known:
            raise InputError("nothing writes its output. Export it again.")

    def _store(self, port: Port, options: Options, content: bytes) -> None:
        """Stores a constant: floats as a buffer, integers on the CPU."""
        start, size = int(options["offset"]), int(options["size"])
        if start + size > len(content):
            raise ValueError(f"the .bin file ends before byte {start + size}")
        kind = TYPES[options["element_type"]]
        array = np.frombuffer(content[start : start + size], kind).reshape(_ints(options["shape"]))
        value = torch.from_numpy(array.copy())
        if value.is_floating_point():
            self.constants.add(port)
            self.register_buffer(_name(port), value.float())
        else:
            self.integers[port] = value

    def forward(self, x: Tensor) -> Tensor:
        """Returns the output for a batch of rows."""
        self._check_sizes(x)
        if len(x) == 1 or self.batched:
            return self._run(x)
        if self.batched is None:
            out = self._try_batch(x)
            if out is not None:
                return out
        return torch.cat([self._run(row) for row in torch.split(x, 1)])

    def _try_batch(self, x: Tensor) -> Tensor | None:
        """Runs several rows at once; returns nothing if that gives another result."""
        one = self._run(x[:1])
        try:
            out = self._run(x)
            same = len(out) == len(x) and _agree(out[:1], one)
        except InputError:
            same = False
        self.batched = same
        return out if same else None

    def _check_sizes(self, x: Tensor) -> None:
        """Runs one row without numbers, to see what sizes come of it before they take memory."""
        row = tuple(x.shape[1:])
        if row == self.checked:
            return
        if self.shape and not _fits(row, self.shape[1:]):
            raise InputError(
                f"the model takes rows of shape {self.shape[1:]}, got {row}. Give it such."
            )
        rows = self.shape[0] if self.shape and self.shape[0] > 0 else 1
        out = self._run(torch.empty(rows, *row, device="meta"))
        if out.shape[:1] != (rows,):
            raise InputError(
                f"the model makes {tuple(out.shape)} of {rows} rows. Export one that gives an "
                "image for each."
            )
        self.checked = row

    def _run(self, x: Tensor) -> Tensor:
        values: dict[Port, Tensor] = {**self.integers, self.entries[0]: x}
        for step in self.steps:
            try:
                inputs = [self._value(port, values, x) for port in step.inputs]
                out = OPERATIONS[step.kind](step.options, *inputs)
                outputs = [out] if isinstance(out, Tensor) else out
                values.update(zip(step.outputs, outputs, strict=True))
                for value, shape in zip(outputs, step.shapes, strict=True):
                    if x.is_meta or not value.is_floating_point():
                        _check_size(value, shape if x.is_meta else ())
            except (InputError, torch.OutOfMemoryError):
                raise
            except (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
                raise InputError(
                    f"the model's operation {step.kind}, layer {(step.outputs or ('?',))[0][0]}, "
                    f"cannot be run ({error}). Export it again, or run it with engine='openvino'."
                ) from error
            for port in step.free:
                values.pop(port, None)
        return self._value(self.exits[0], values, x)

    def _value(self, port: Port, values: Mapping[Port, Tensor], x: Tensor) -> Tensor:
        if port in values:
            return values[port]
        value = self.get_buffer(_name(port))
        return value.to("meta") if x.is_meta else value


def _declared(port: ElementTree.Element) -> tuple[int, ...]:
    """Returns the shape that a file declares of a port, if it does."""
    return tuple(int(dim.text or "") for dim in port.iterfind("dim"))


def _fits(shape: Sequence[int], declared: Sequence[int]) -> bool:
    """Tells whether a shape is the declared one, in which -1 may be any size."""
    pairs = zip(shape, declared, strict=False)
    return len(shape) == len(declared) and all(want in (-1, size) for size, want in pairs)


def _check_size(value: Tensor, declared: tuple[int, ...]) -> None:
    """Raises ValueError where an array is not as the file declares it, or too large."""
    if declared and not _fits(value.shape, declared):
        raise ValueError(f"it gives {tuple(value.shape)}, the file declares {declared}")
    most = MAX_VALUES if value.is_floating_point() else MAX_INTEGERS
    if value.numel() > most:
        raise ValueError(f"it gives {value.numel():,} numbers, more than {most:,}")


def _agree(a: Tensor, b: Tensor) -> bool:
    """Tells whether two outputs differ by no more than a device's rounding."""
    return bool((a - b).abs().mean() <= BATCH_RTOL * b.abs().mean())


def _plan_memory(steps: Sequence[Step], results: Sequence[Port]) -> list[Step]:
    """Notes for each operation which ports it is the last to need, to free their memory."""
    needed, planned = set(results), []
    for step in reversed(steps):
        last = {*step.inputs, *step.outputs} - needed
        needed |= last
        planned.append(replace(step, free=tuple(last)))
    return planned[::-1]


def _name(port: Port) -> str:
    return "constant_{}_{}".format(*port)
