"""The oracle on who smiles, against NumPy and, where they are at hand, the originals."""

import zipfile

import numpy as np
import pytest
import torch
from scipy.signal import correlate2d

from leapfactual.data import packages
from leapfactual.demos.faces import landmarks as opinion
from leapfactual.demos.faces.landmarks import USED, Blendshapes, FaceMesh, SmileOracle, center_face
from leapfactual.errors import InputError, MissingData

random = np.random.default_rng(0)


def drawn(*shape, fan=1):
    return (random.standard_normal(shape) / fan**0.5).astype(np.float32)


def kernel(out, size, inputs):
    return [drawn(out, size, size, inputs, fan=size * size * inputs), drawn(out, fan=25)]


def block(inputs, outputs, size=1):
    inner = outputs // 2
    depthwise = [drawn(1, 3, 3, inner, fan=9), drawn(inner, fan=25)]
    return [
        *kernel(inner, size, inputs), drawn(1, 1, inner, fan=9),
        *depthwise, *kernel(outputs, 1, inner), drawn(1, 1, outputs, fan=9),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def weights():
    """The weights of both networks, in the order and the shapes of the original."""
    mesh = [*kernel(16, 3, 3), drawn(1, 1, 16), *[w for _ in range(4) for w in block(16, 16)]]
    for before, after in ((16, 32), (32, 64), (64, 128), (128, 128), (128, 128), (128, 128)):
        mesh += [*block(before, after, 2), *[w for _ in range(4) for w in block(after, after)]]
    mesh += [*kernel(1, 2, 128), *kernel(1, 2, 128), *kernel(1434, 2, 128)]
    blendshapes = [*kernel(96, 1, 146), *kernel(64, 1, 2), drawn(1, 1, 1, 64)]
    for _ in range(4):
        blendshapes += [1 + drawn(64, fan=9), *kernel(384, 1, 97), *kernel(97, 1, 384)]
        blendshapes += [1 + drawn(64, fan=9), *kernel(256, 1, 64), *kernel(64, 1, 256)]
    return mesh, [*blendshapes, *kernel(52, 1, 64)]


@pytest.fixture
def second(weights):
    found = SmileOracle()
    found.read(*weights)
    return found


def convolved(x, kernel, bias, stride=1):
    """A convolution of maps ``(H, W, C)`` in TensorFlow's order of axes, not padded."""
    out, size, _, inputs = kernel.shape
    if size == stride or size == 1:
        height, width = (n // size for n in x.shape[:2])
        patches = x.reshape(height, size, width, size, inputs)
        return np.einsum("aibjc,oijc->abo", patches, kernel) + bias
    maps = [
        sum(correlate2d(x[..., i], kernel[o, ..., i], "valid") for i in range(inputs))
        for o in range(out)
    ]
    return np.stack(maps, -1)[::stride, ::stride] + bias


def bent(x, slope):
    return np.where(x > 0, x, slope * x)


def mesh_by_hand(x, weights):
    """The landmarks of one image ``(256, 256, 3)``."""
    given = iter(weights)

    def take(n):
        return [next(given) for _ in range(n)]

    x = bent(convolved(np.pad(x, ((0, 1), (0, 1), (0, 0))), *take(2), 2), *take(1))
    for n in range(34):
        halved = n >= 4 and n % 5 == 4
        narrow, bias, slope, depthwise, other = take(5)
        out = bent(convolved(x, narrow, bias, 2 if halved else 1), slope)
        maps = [
            correlate2d(out[..., i], depthwise[0, ..., i], "same") for i in range(out.shape[2])
        ]
        out = convolved(np.stack(maps, -1) + other, *take(2))
        if halved:
            height, width, channels = x.shape
            x = x.reshape(height // 2, 2, width // 2, 2, channels).max((1, 3))
            x = np.pad(x, ((0, 0), (0, 0), (0, out.shape[2] - channels)))
        x = bent(x + out, *take(1))
    take(4)
    return convolved(x, *take(2), 2).reshape(478, 3)


def blendshapes_by_hand(points, weights):
    """The blendshapes of one face ``(146, 2)``."""
    given = iter(weights)

    def dense(x):
        kernel, bias = next(given), next(given)
        return x @ kernel[:, 0, 0].T + bias

    def normal(x):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * next(given)

    x = points - points.mean(0)
    x = 0.5 * x / np.sqrt((x**2).sum(1)).mean()
    x = dense(dense(x.T).T)
    x = np.concatenate([next(given)[0, 0], x])
    for _ in range(4):
        x = x + dense(np.maximum(dense(normal(x).T), 0)).T
        x = x + dense(np.maximum(dense(normal(x)), 0))
    return 1 / (1 + np.exp(-dense(x[0])))


def test_landmarks_are_those_of_numpy(second, weights):
    x = random.uniform(0, 1, (2, 256, 256, 3)).astype(np.float32)
    found = second.mesh(torch.from_numpy(x).permute(0, 3, 1, 2))
    wanted = np.stack([mesh_by_hand(image, weights[0]) for image in x])
    assert found.shape == (2, 478, 3)
    torch.testing.assert_close(found, torch.tensor(wanted).float(), rtol=1e-3, atol=1e-3)


def test_blendshapes_are_those_of_numpy(second, weights):
    points = random.uniform(0, 256, (3, 146, 2)).astype(np.float32)
    found = second.blendshapes(torch.from_numpy(points))
    wanted = np.stack([blendshapes_by_hand(face, weights[1]) for face in points])
    torch.testing.assert_close(found, torch.tensor(wanted).float(), rtol=1e-4, atol=1e-5)
    moved = second.blendshapes(torch.from_numpy(3 * points + 40))
    torch.testing.assert_close(moved, found, rtol=1e-3, atol=1e-4)


def test_a_smile_raises_both_corners(second):
    x = torch.rand(3, 3, 512, 512)
    p = second(x)
    raised = second.blendshapes(second.mesh(center_face(x))[:, USED, :2])[:, 44:46]
    torch.testing.assert_close(p, torch.stack([1 - raised.mean(1), raised.mean(1)], 1))
    torch.testing.assert_close(second(x[1:2]), p[1:2])


def test_the_face_is_moved_up():
    x = torch.rand(1, 3, 256, 256)
    found = center_face(x)
    assert torch.equal(found[:, :, :232], x[:, :, 24:])
    assert not found[:, :, 232:].any()
    assert center_face(torch.rand(2, 3, 1024, 1024)).shape == (2, 3, 256, 256)


def test_weights_that_are_not_there_or_do_not_fit_are_named(weights, tmp_path, monkeypatch):
    monkeypatch.setenv("LEAPFACTUAL_CACHE", str(tmp_path))
    with pytest.raises(MissingData, match="leapfactual data get face-landmarks"):
        SmileOracle.load()
    (tmp_path / "torn.task").write_bytes(b"PK and no more")
    with pytest.raises(InputError, match=r"torn.task is not MediaPipe's Face Landmarker"):
        SmileOracle.load(tmp_path / "torn.task")
    with zipfile.ZipFile(tmp_path / "other.task", "w") as file:
        file.writestr("face_landmarks_detector.tflite", b"no model")
    with pytest.raises(InputError, match="TensorFlow Lite is damaged"):
        SmileOracle.load(tmp_path / "other.task")
    mesh, blendshapes = weights
    with pytest.raises(ValueError, match="46 arrays of weights, expected 47"):
        SmileOracle().read(mesh, blendshapes[1:])
    with pytest.raises(ValueError, match=r"shape \(96, 140, 1, 1\), expected \(96, 146\)"):
        SmileOracle().read(mesh, [blendshapes[0][..., :140], *blendshapes[1:]])


@pytest.mark.skipif(not packages.present("face-landmarks"), reason="not in the cache")
def test_the_networks_are_the_originals(tmp_path):
    openvino = pytest.importorskip("openvino")
    (path,) = packages.files("face-landmarks")
    zipfile.ZipFile(path).extractall(tmp_path)

    def original(name):
        options = {"INFERENCE_PRECISION_HINT": "f32"}
        return openvino.Core().compile_model(str(tmp_path / f"{name}.tflite"), "CPU", options)

    second = SmileOracle.load()
    x = torch.rand(2, 3, 256, 256)
    found = second.mesh(x)
    wanted = original("face_landmarks_detector")(x.permute(0, 2, 3, 1).contiguous().numpy())[0]
    torch.testing.assert_close(
        found, torch.tensor(wanted).reshape(2, 478, 3), rtol=1e-4, atol=5e-3
    )
    points = found[:1, USED, :2]
    wanted = original("face_blendshapes")(points.contiguous().numpy())[0]
    torch.testing.assert_close(
        second.blendshapes(points)[0], torch.tensor(wanted), rtol=1e-3, atol=1e-4
    )


def test_sizes_are_those_of_the_original():
    assert len(USED) == len(set(USED)) == 146
    assert max(USED) == opinion.LANDMARKS - 1
    assert sum(p.numel() for p in Blendshapes().parameters()) == 450_520
    assert sum(p.numel() for p in FaceMesh().parameters()) == 1_200_235
