"""Classifiers in ONNX files: damaged, of wrong shapes and types, with weights in other files."""

import random
from pathlib import Path

import torch
from onnx import TensorProto, helper

import leapfactual as lf
from leapfactual.classifiers import from_onnx, open_classifier

from ..mutations import TEXTS, mutate_bytes
from ..watch import expect, has_secret
from .kind import Kind, Read, check_explanation, small_bundle

OPERATIONS = ("Relu", "Sigmoid", "Exp", "Log", "Sqrt", "Softmax", "Identity", "Shape", "Size")
OPERATIONS += ("Transpose", "Neg", "Not", "IsNaN", "ReduceSum", "ArgMax", "Reciprocal")
SHAPES = (["n", 1, 8, 8], [1, 1, 8, 8], [3, 1, 8, 8], ["n", 64], [], ["n", 3, 8, 8], ["n"])
TYPES = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.UINT8)
TYPES += (TensorProto.FLOAT16, TensorProto.STRING, TensorProto.BOOL)


class Networks(Kind):
    """ONNX files."""

    name, share = "networks", 5

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))
        self.bundle = small_bundle()

    def make(self, rng: random.Random, given: Path, outside: Path) -> Read:
        """See :meth:`Kind.make`."""
        path = given / rng.choice(("a.onnx", "a.onnx", "A.ONNX", "é.onnx"))
        content = _model(rng)
        if rng.random() < 0.35:
            content = mutate_bytes(rng, content)
        path.write_bytes(content)
        if rng.random() < 0.2:
            path.with_name(f"{path.name}.data").write_bytes(rng.randbytes(600))
        output = rng.choice(("logits", "probabilities"))
        kind = rng.randrange(4)
        if kind == 0:
            return lambda: self._ask(path, output)
        return lambda: self._explain(path)

    def _ask(self, path: Path, output: str) -> None:
        p = from_onnx(path, output=output)(self.images)
        expect(len(p) == 3 and p.ndim == 2, f"answers of {p.shape}")
        expect(bool(((p.sum(1) - 1).abs() < 0.02).all()), f"probabilities {p}")
        expect(not has_secret(p.numpy().tobytes()), "answers hold the secret")

    def _explain(self, path: Path) -> None:
        open_classifier(path, self.images, ["dark", "bright"])
        explainer = self.bundle.explainer(
            str(path), plan="blend(2, 0.5)", solver=lf.solvers.Euler(2), force=True
        )
        check_explanation(explainer.explain(self.images, 1), 3, 2)


def _model(rng: random.Random) -> bytes:
    columns = rng.choice((2, 2, 2, 2, 1, 3, 0))
    weights = helper.make_tensor(
        "w", TensorProto.FLOAT, [64, columns], [rng.uniform(-1, 1) for _ in range(64 * columns)]
    )
    if rng.random() < 0.2:
        weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[64, 2])
        weights.data_location = TensorProto.EXTERNAL
        places = ("../outside/secret.bin", "secret.bin", "/etc/passwd", "a.onnx.data", "a.onnx")
        for key, text in (
            ("location", rng.choice((*places, *TEXTS))),
            ("offset", "0"),
            ("length", "512"),
        ):
            entry = weights.external_data.add()
            entry.key, entry.value = key, text.encode(errors="replace").decode()
    nodes = [
        helper.make_node("Flatten", ["x"], ["rows"]),
        helper.make_node("MatMul", ["rows", "w"], ["y0"]),
    ]
    for n in range(rng.choice((0, 0, 0, 1, 2))):
        nodes.append(helper.make_node(rng.choice(OPERATIONS), [f"y{n}"], [f"y{n + 1}"]))
    last = rng.choice((f"y{len(nodes) - 2}",) * 9 + ("rows", "x", "missing"))
    shape, kind = ["n", 1, 8, 8], TensorProto.FLOAT
    if rng.random() < 0.2:
        shape, kind = rng.choice(SHAPES), rng.choice(TYPES)
    graph = helper.make_graph(
        nodes,
        "a",
        [helper.make_tensor_value_info("x", kind, shape)] * rng.choice((1, 1, 1, 1, 1, 0, 2)),
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)],
        [weights],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", rng.choice((17, 17, 13, 99)))]
    )
    model.ir_version = 9
    content: bytes = model.SerializeToString()
    return content
