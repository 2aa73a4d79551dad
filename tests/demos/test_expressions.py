"""The black box of the faces, against a second implementation in NumPy."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.signal import correlate2d

from leapfactual.demos.faces.expressions import (
    NAMES,
    ExpressionNetwork,
    SmileClassifier,
    max_pool,
    preprocess,
)
from leapfactual.errors import InputError, MissingData

h5py = pytest.importorskip("h5py")
random = np.random.default_rng(0)


def layers():
    """The layers of the Keras model that have weights, with their shapes."""
    widths = [8, 16, 32, 64, 128]
    found = {"conv2d_1": {"kernel:0": (3, 3, 1, 8)}, "conv2d_2": {"kernel:0": (3, 3, 8, 8)}}
    norms = {1: 8, 2: 8}
    for n, (before, after) in enumerate(pairwise(widths)):
        found[f"conv2d_{n + 3}"] = {"kernel:0": (1, 1, before, after)}
        for m, inputs in ((1, before), (2, after)):
            found[f"separable_conv2d_{2 * n + m}"] = {
                "depthwise_kernel:0": (3, 3, inputs, 1),
                "pointwise_kernel:0": (1, 1, inputs, after),
            }
        norms |= dict.fromkeys(range(3 * n + 3, 3 * n + 6), after)
    found["conv2d_7"] = {"kernel:0": (3, 3, 128, 7), "bias:0": (7,)}
    for n, width in norms.items():
        names = ("beta", "gamma", "moving_mean", "moving_variance")
        found[f"batch_normalization_{n}"] = {f"{name}:0": (width,) for name in names}
    return found


@pytest.fixture(scope="module")
def keras(tmp_path_factory):
    """A file like the original's, with random weights, and those weights."""
    path = tmp_path_factory.mktemp("faces") / "model.hdf5"
    weights = {}
    with h5py.File(path, "w") as file:
        for layer, parts in layers().items():
            for name, shape in parts.items():
                fan = max(1, int(np.prod(shape[:-1])) if "depthwise" not in name else 9)
                value = random.standard_normal(shape) / fan**0.5
                value = 0.5 + np.abs(value) if name in ("moving_variance:0", "gamma:0") else value
                weights[layer, name] = value.astype(np.float32)
                file[f"model_weights/{layer}/{layer}_1/{name}"] = weights[layer, name]
    return path, weights


def same(x, size, stride):
    """Keras's padding: as much as is needed, more of it at the end."""
    out = -(-x.shape[0] // stride)
    extra = max((out - 1) * stride + size - x.shape[0], 0)
    return (extra // 2, extra - extra // 2)


def convolved(x, kernel, stride=1, pad="same"):
    if pad == "same":
        edge = same(x, kernel.shape[0], stride)
        x = np.pad(x, (edge, edge, (0, 0)))
    maps = [
        sum(correlate2d(x[..., i], kernel[..., i, o], "valid") for i in range(x.shape[2]))
        for o in range(kernel.shape[3])
    ]
    return np.stack(maps, -1)[::stride, ::stride]


def by_hand(x, weights):
    """The network for one image ``(64, 64, 1)``, in Keras's order of axes."""

    def norm(x, n):
        b, g, m, v = (
            weights[f"batch_normalization_{n}", f"{name}:0"]
            for name in ("beta", "gamma", "moving_mean", "moving_variance")
        )
        return g * (x - m) / np.sqrt(v + 1e-3) + b

    def separable(x, n):
        depth = weights[f"separable_conv2d_{n}", "depthwise_kernel:0"]
        maps = [convolved(x[..., i : i + 1], depth[:, :, i : i + 1]) for i in range(x.shape[2])]
        return convolved(
            np.concatenate(maps, -1), weights[f"separable_conv2d_{n}", "pointwise_kernel:0"]
        )

    def pool(x):
        edge = same(x, 3, 2)
        x = np.pad(x, (edge, edge, (0, 0)), constant_values=-np.inf)
        rows = range(0, x.shape[0] - 2, 2)
        return np.stack(
            [np.stack([x[r : r + 3, c : c + 3].max((0, 1)) for c in rows]) for r in rows]
        )

    for n in (1, 2):
        kernel = weights[f"conv2d_{n}", "kernel:0"]
        x = np.maximum(norm(convolved(x, kernel, pad="valid"), n), 0)
    for n in range(4):
        skip = norm(convolved(x, weights[f"conv2d_{n + 3}", "kernel:0"], 2), 3 * n + 3)
        x = np.maximum(norm(separable(x, 2 * n + 1), 3 * n + 4), 0)
        x = pool(norm(separable(x, 2 * n + 2), 3 * n + 5)) + skip
    x = convolved(x, weights["conv2d_7", "kernel:0"]) + weights["conv2d_7", "bias:0"]
    return x.mean((0, 1))


def test_the_network_is_that_of_keras(keras):
    path, weights = keras
    x = random.uniform(-1, 1, (2, 64, 64, 1)).astype(np.float32)
    found = ExpressionNetwork.load(path)(torch.from_numpy(x).permute(0, 3, 1, 2))
    wanted = torch.tensor(np.stack([by_hand(image, weights) for image in x])).float()
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
    assert sum(p.numel() for p in ExpressionNetwork().parameters()) == 56_951


@pytest.mark.parametrize(("size", "wanted"), [(60, 30), (30, 15), (15, 8), (8, 4)])
def test_pooling_halves_as_keras_does(size, wanted):
    x = torch.randn(1, 1, size, size)
    found = max_pool(x)
    assert found.shape == (1, 1, wanted, wanted)
    start = 0 if size % 2 == 0 else -1
    first = x[:, :, max(start, 0) : start + 3, max(start, 0) : start + 3].max()
    assert found[0, 0, 0, 0] == first


def test_a_smile_is_one_class_of_two(keras):
    classifier = SmileClassifier(ExpressionNetwork.load(keras[0]))
    x = torch.rand(3, 3, 512, 512)
    p = classifier(x)
    happy = classifier.network(preprocess(x)).softmax(1)[:, NAMES.index("happy")]
    torch.testing.assert_close(p, torch.stack([1 - happy, happy], 1))


def test_the_face_is_cut_out():
    x = torch.zeros(1, 3, 256, 256)
    x[:, :, 56:232, 40:216] = 1.0
    face = preprocess(x)
    assert face.shape == (1, 1, 64, 64)
    torch.testing.assert_close(face, torch.ones_like(face))
    torch.testing.assert_close(preprocess(torch.zeros(1, 3, 1024, 1024)), -torch.ones_like(face))


def test_weights_that_are_not_there_or_do_not_fit_are_named(keras, tmp_path, monkeypatch):
    monkeypatch.setenv("LEAPFACTUAL_CACHE", str(tmp_path))
    with pytest.raises(MissingData, match="leapfactual data get expressions"):
        ExpressionNetwork.load()
    (tmp_path / "torn.hdf5").write_bytes(keras[0].read_bytes()[:1000])
    with pytest.raises(InputError, match=r"torn.hdf5 is not the network of expressions"):
        ExpressionNetwork.load(tmp_path / "torn.hdf5")
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        file["model_weights/conv2d_1/conv2d_1/kernel:0"] = np.zeros((5, 5, 1, 8))
    with pytest.raises(InputError, match=r"shape \(8, 1, 5, 5\), expected \(8, 1, 3, 3\)"):
        ExpressionNetwork.load(tmp_path / "other.hdf5")
