"""OpenVINO models run by torch, against OpenVINO itself."""

import numpy as np
import pytest
import torch

from leapfactual.errors import InputError, MissingData
from leapfactual.generators import GAN, from_openvino
from leapfactual.generators.openvino import OPERATIONS, Graph

openvino = pytest.importorskip("openvino")
op = pytest.importorskip("openvino.opset13")
random = np.random.default_rng(0)


def numbers(*shape):
    return random.standard_normal(shape).astype(np.float32)


def constant(*values):
    return op.constant(np.array(values, dtype=np.int64))


def grouped_back(x, stride, kernel=(2, 2)):
    kernel = numbers(6, 1, 1, *kernel)
    nothing = np.array([0, 0])
    return op.group_convolution_backprop_data(
        x, op.constant(kernel), strides=stride, pads_begin=nothing, pads_end=nothing,
        dilations=np.array([1, 1]),
    )  # fmt: skip


ONES = np.array([1, 1])
MODELS = {
    "Add": lambda x: op.add(x, op.constant(numbers(1, 6, 1, 1))),
    "Multiply": lambda x: op.multiply(x, op.constant(numbers(6, 1, 1))),
    "Power": lambda x: op.power(op.multiply(x, x), op.constant(np.float32(0.7))),
    "MatMul": lambda x: op.matmul(x, op.constant(numbers(5, 4)), False, True),
    "MatMul, first turned": lambda x: op.matmul(x, op.constant(numbers(4, 3)), True, False),
    "ReduceMean": lambda x: op.reduce_mean(x, constant(1, -1), keep_dims=True),
    "ShapeOf, Gather, Concat, Reshape": lambda x: op.reshape(
        x,
        op.concat([op.gather(op.shape_of(x), constant(0), constant(0)), constant(-1, 2)], 0),
        special_zero=False,
    ),
    "Reshape, zeros kept": lambda x: op.reshape(x, constant(0, 0, -1), special_zero=True),
    "Squeeze, Unsqueeze": lambda x: op.squeeze(op.unsqueeze(x, constant(1, 3)), constant(-3)),
    "Tile": lambda x: op.tile(x, constant(1, 1, 2, 3)),
    "Broadcast": lambda x: op.add(
        x, op.broadcast(op.constant(numbers(6, 1, 1)), constant(6, 4, 4), broadcast_spec="NUMPY")
    ),
    "Broadcast, both": lambda x: op.broadcast(
        x, constant(1, 2, 6, 1, 1), broadcast_spec="BIDIRECTIONAL"
    ),
    "PReLU": lambda x: op.prelu(x, op.constant(numbers(6))),
    "PReLU, one slope": lambda x: op.prelu(x, op.constant(numbers(1))),
    "Convolution": lambda x: op.convolution(
        x, op.constant(numbers(5, 6, 3, 3)), ONES, ONES, ONES, ONES
    ),
    "GroupConvolution": lambda x: op.group_convolution(
        x, op.constant(numbers(3, 4, 2, 3, 3)), ONES, ONES, ONES, ONES
    ),
    "GroupConvolutionBackpropData": lambda x: grouped_back(x, np.array([2, 1])),
    "GroupConvolutionBackpropData, apart": lambda x: grouped_back(x, np.array([2, 1]), (2, 1)),
    "GroupConvolutionBackpropData, apart both ways": lambda x: grouped_back(
        x, np.array([2, 3]), (2, 3)
    ),
    "VariadicSplit": lambda x: op.variadic_split(x, constant(1), constant(2, 4)).output(1),
}


def saved(build, path, shape=(-1, 6, 4, 4)):
    entry = op.parameter(list(shape), np.float32)
    model = openvino.Model([build(entry)], [entry])
    openvino.save_model(model, path, compress_to_fp16=False)
    return path


@pytest.mark.parametrize("name", MODELS)
def test_operations_come_to_the_same(name, tmp_path):
    path = saved(MODELS[name], tmp_path / "m.xml")
    x = torch.from_numpy(numbers(1, 6, 4, 4))
    wanted = torch.from_numpy(
        openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(
            x.numpy()
        )[0]
    )
    torch.testing.assert_close(Graph(path)(x), wanted, rtol=1e-4, atol=1e-4)


def test_every_operation_is_tested():
    words = {word for name in MODELS for word in name.replace(",", " ").split()}
    assert set(OPERATIONS) <= words


@pytest.mark.filterwarnings("ignore")
def test_a_network_runs_in_batches_and_gives_gradients(tmp_path):
    network = torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3, padding=1),
        torch.nn.PReLU(4),
        torch.nn.ConvTranspose2d(4, 4, 2, stride=2, groups=4, bias=False),
        torch.nn.Conv2d(4, 1, 1),
    ).eval()
    model = openvino.convert_model(network, example_input=torch.zeros(1, 2, 4, 4))
    openvino.save_model(model, tmp_path / "m.xml", compress_to_fp16=False)
    graph = from_openvino(tmp_path / "m.xml", engine="torch")
    x = torch.randn(5, 2, 4, 4, requires_grad=True)
    torch.testing.assert_close(graph(x), network(x), rtol=1e-4, atol=1e-5)
    assert graph.batched
    graph(x).square().sum().backward()
    found, x.grad = x.grad, None
    network(x).square().sum().backward()
    torch.testing.assert_close(found, x.grad, rtol=1e-4, atol=1e-4)
    assert not list(graph.parameters())
    assert graph.double()(x.double()).dtype == torch.float64


def test_a_model_for_one_row_is_asked_row_by_row(tmp_path):
    def one(x):
        return op.reshape(op.multiply(x, x), constant(1, 8, 12), special_zero=False)

    graph = Graph(saved(one, tmp_path / "m.xml", (1, 6, 4, 4)))
    x = torch.from_numpy(numbers(3, 6, 4, 4))
    torch.testing.assert_close(graph(x), x.square().reshape(3, 8, 12))
    assert graph.batched is False


def test_as_the_synthesis_of_a_gan_it_can_be_inverted(tmp_path):
    weights = torch.linalg.qr(torch.randn(16, 4, generator=torch.Generator().manual_seed(0)))[0]

    def build(z):
        row = op.matmul(z, op.constant(weights.numpy()), False, True)
        return op.reshape(row, constant(-1, 1, 4, 4), special_zero=False)

    synthesis = from_openvino(saved(build, tmp_path / "m.xml", (-1, 4)), engine="torch")
    gan = GAN(synthesis, 4, (1, 4, 4))
    z = 0.3 * torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
    x = gan.decode(z)
    assert (gan.decode(gan.encode(x)) - x).abs().max() < 0.05


def test_what_torch_cannot_run_is_said(tmp_path):
    path = saved(lambda x: op.erf(x), tmp_path / "m.xml")
    with pytest.raises(InputError, match="operation Erf, which is not known.*engine='openvino'"):
        Graph(path)
    uneven = saved(
        lambda x: op.convolution(
            x, op.constant(numbers(5, 6, 2, 2)), ONES, np.array([0, 0]), ONES, ONES
        ),
        tmp_path / "uneven.xml",
    )
    with pytest.raises(InputError, match=r"padded by \[0, 0\] before and \[1, 1\] after"):
        Graph(uneven)(torch.zeros(1, 6, 4, 4))
    entry = op.parameter([1, 2], np.float32)
    two = openvino.Model([op.add(entry, entry), op.multiply(entry, entry)], [entry])
    openvino.save_model(two, tmp_path / "two.xml")
    with pytest.raises(InputError, match="one input and one output, got 1 and 2"):
        Graph(tmp_path / "two.xml")
    with pytest.raises(InputError, match=r"one of \['openvino', 'torch'\], got 'tensor'"):
        from_openvino(path, engine="tensor")


def test_damaged_files_are_named(tmp_path):
    with pytest.raises(MissingData, match=r"m.xml is missing"):
        Graph(tmp_path / "m.xml")
    path = saved(MODELS["Convolution"], tmp_path / "m.xml")
    text, weights = path.read_text(), path.with_suffix(".bin")
    content = weights.read_bytes()
    weights.write_bytes(content[:40])
    with pytest.raises(InputError, match="the .bin file ends before"):
        Graph(path)
    weights.unlink()
    with pytest.raises(MissingData, match="m.bin is missing"):
        Graph(path)
    weights.write_bytes(content)
    for broken in ("<net", "", "<net><layers><layer/></layers></net>", text.replace("f32", "q7")):
        path.write_text(broken)
        with pytest.raises(InputError, match="no OpenVINO model, or damaged|one input"):
            Graph(path)


def edited(path, *changes):
    """Writes a model with other text in its graph."""
    text = path.read_text()
    for before, after in changes:
        assert before in text
        text = text.replace(before, after, 1)
    path.write_text(text)
    return path


def test_graphs_that_lead_nowhere_are_refused(tmp_path):
    def build(x):
        return op.reshape(op.add(x, x), constant(0, -1), special_zero=True)

    names = iter("abcdef")

    def model(*changes):
        return edited(saved(build, tmp_path / f"{next(names)}.xml"), *changes)

    text = model().read_text()
    layers = [part.split('"')[1] for part in text.split("<layer id=")[1:]]
    kinds = [part.split('type="')[1].split('"')[0] for part in text.split("<layer id=")[1:]]
    add, reshape = (layers[kinds.index(kind)] for kind in ("Add", "Reshape"))
    edge = f'from-layer="{layers[kinds.index("Parameter")]}" from-port="0" to-layer="{add}"'
    back = f'from-layer="{reshape}" from-port="2" to-layer="{add}"'
    with pytest.raises(InputError, match="Add reads port 2 of layer .* which none before it wri"):
        Graph(model((edge, back)))
    with pytest.raises(InputError, match="no OpenVINO model, or damaged"):
        Graph(model(('<port id="0"', "<port")))
    path = model(('special_zero="true"', 'special="true"'))
    with pytest.raises(InputError, match="operation Reshape, layer .* cannot be run"):
        Graph(path)(torch.zeros(1, 6, 4, 4))
    with pytest.raises(InputError, match=r"takes rows of shape \(6, 4, 4\), got \(6, 4\)"):
        Graph(model())(torch.zeros(1, 6, 4))


@pytest.mark.parametrize(
    ("times", "match"),
    [
        (3, r"it gives \(1, 6, 12, 4\), the file declares \(-1, 6, 8, 4\)"),
        (-2, "operation Tile, .* cannot be run"),
        (2**40, "operation Tile, .* cannot be run|the file declares"),
    ],
)
def test_a_constant_that_was_exchanged_does_not_change_what_comes_out(times, match, tmp_path):
    path = saved(lambda x: op.tile(x, constant(1, 1, 2, 1)), tmp_path / "m.xml")
    weights = path.with_suffix(".bin")
    content = np.frombuffer(weights.read_bytes(), np.int64).copy()
    content[list(content).index(2)] = times
    weights.write_bytes(content.tobytes())
    with pytest.raises(InputError, match=match):
        Graph(path)(torch.zeros(1, 6, 4, 4))


def test_what_a_graph_makes_is_bounded_before_it_is_made(tmp_path):
    def build(x):
        wide = op.broadcast(op.constant(numbers(6, 1, 1)), constant(6, 2**11, 2**12))
        return op.add(op.reduce_mean(x, constant(2, 3), keep_dims=True), wide)

    path = saved(build, tmp_path / "m.xml")
    with pytest.raises(InputError, match=r"gives 50,331,648 numbers, more than 33,554,432"):
        Graph(path)(torch.zeros(1, 6, 4, 4))
    path = saved(
        lambda x: op.reshape(x, constant(2, 3, 4, 4), False), tmp_path / "n.xml", (1, 6, 4, 4)
    )
    with pytest.raises(InputError, match=r"makes \(2, 3, 4, 4\) of 1 rows"):
        Graph(path)(torch.zeros(1, 6, 4, 4))
