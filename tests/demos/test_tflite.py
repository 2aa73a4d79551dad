"""Models of TensorFlow Lite, written here with the library of flatbuffers."""

import numpy as np
import pytest

from leapfactual.demos.faces.tflite import read_weights
from leapfactual.errors import InputError

flatbuffers = pytest.importorskip("flatbuffers")
random = np.random.default_rng(0)
CONVOLUTION, DEQUANTIZE, PAD = 3, 6, 60
FLOAT, HALF, WHOLE = 0, 1, 2


def table(builder, **fields):
    """Writes a table of the fields ``f0``, ``f1`` …: of which kind each is, and its value."""
    builder.StartObject(5)
    for name, (kind, value) in fields.items():
        getattr(builder, f"Prepend{kind}Slot")(int(name[1:]), value, 0)
    return builder.EndObject()


def vector(builder, tables):
    builder.StartVector(4, len(tables), 4)
    for place in reversed(tables):
        builder.PrependUOffsetTRelative(place)
    return builder.EndVector()


def written(tensors, operations):
    """A model with one graph.

    Arguments:
        tensors: The shape, the type and the content of each.
        operations: The kind, the inputs and the outputs of each.
    """
    builder = flatbuffers.Builder(0)
    kinds = sorted({kind for kind, _, _ in operations})
    offset = "UOffsetTRelative"

    def numbers(values):
        return builder.CreateNumpyVector(np.array(values, np.int32))

    codes = [
        table(builder, f0=("Int8", kind)) if n % 2 else table(builder, f3=("Int32", kind))
        for n, kind in enumerate(kinds)
    ]
    buffers, described, done = [table(builder)], [], []
    for n, (shape, kind, array) in enumerate(tensors):
        if array is not None:
            data = builder.CreateNumpyVector(np.frombuffer(array.tobytes(), np.uint8))
            buffers.append(table(builder, f0=(offset, data)))
        number = 0 if array is None else len(buffers) - 1
        place, name = numbers(shape), builder.CreateString(f"tensor {n}")
        described.append(
            table(
                builder,
                f0=(offset, place), f1=("Int8", kind), f2=("Uint32", number), f3=(offset, name),
            )
        )  # fmt: skip
    for kind, inputs, outputs in operations:
        given, made = numbers(inputs), numbers(outputs)
        done.append(
            table(builder, f0=("Uint32", kinds.index(kind)), f1=(offset, given), f2=(offset, made))
        )
    parts = vector(builder, described), vector(builder, done)
    graph = table(builder, f0=(offset, parts[0]), f3=(offset, parts[1]))
    parts = [vector(builder, found) for found in (codes, [graph], buffers)]
    fields = zip(("f1", "f2", "f4"), parts, strict=True)
    model = table(builder, f0=("Uint32", 3), **{name: (offset, part) for name, part in fields})
    builder.Finish(model, b"TFL3")
    return bytes(builder.Output())


@pytest.fixture
def model():
    """A model that uses its second weights first, and one bias twice."""
    wide = random.standard_normal((4, 3, 3, 2)).astype(np.float32)
    half = random.standard_normal((2, 1, 1, 4)).astype(np.float16)
    bias = random.standard_normal(4).astype(np.float16)
    tensors = [
        ((1, 8, 8, 2), FLOAT, None),
        (wide.shape, FLOAT, wide),
        (half.shape, HALF, half),
        (half.shape, FLOAT, None),
        (bias.shape, HALF, bias),
        (bias.shape, FLOAT, None),
        ((2,), WHOLE, np.array([1, 2], np.int32)),
        ((), FLOAT, np.float32(3.0)),
        ((1, 8, 8, 2), FLOAT, None),
    ]
    operations = [
        (DEQUANTIZE, [2], [3]),
        (DEQUANTIZE, [4], [5]),
        (CONVOLUTION, [0, 3, 5], [8]),
        (PAD, [8, 6, 7], [8]),
        (CONVOLUTION, [8, 1, 5], [8]),
    ]
    return written(tensors, operations), [half, bias, wide, bias]


def test_weights_come_in_the_order_of_use(model):
    content, wanted = model
    found = read_weights(content)
    assert [array.shape for array in found] == [array.shape for array in wanted]
    for array, other in zip(found, wanted, strict=True):
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, other.astype(np.float32))


@pytest.mark.parametrize("length", [0, 3, 8, 100, 300])
def test_a_damaged_model_is_refused(model, length):
    with pytest.raises(InputError, match="the model of TensorFlow Lite is damaged"):
        read_weights(model[0][:length])
    with pytest.raises(InputError, match="damaged"):
        read_weights(b"no model at all, but text")
