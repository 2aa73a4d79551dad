import dataclasses
import hashlib
import io

import pytest
import torch
from torch.nn import functional as F

from leapfactual.data import packages
from leapfactual.errors import InputError, MissingData
from leapfactual.metrics import EfficientNetLite0
from leapfactual.metrics.imagenet import CARD, SIDE, STAGES

# Where the table of stages has stride 2, counted in blocks.
HALVING = (1, 3, 5, 11)


def checkpoint(seed=0):
    """Random weights with the names of the published file."""
    rng = torch.Generator().manual_seed(seed)
    weights = {}

    def convolution(name, *shape):
        scale = (2 / (shape[1] * shape[2] * shape[3])) ** 0.5
        weights[f"{name}.weight"] = scale * torch.randn(shape, generator=rng)

    def norm(name, n):
        weights[f"{name}.weight"] = 0.5 + torch.rand(n, generator=rng)
        weights[f"{name}.bias"] = torch.randn(n, generator=rng) / 5
        weights[f"{name}.running_mean"] = torch.randn(n, generator=rng) / 5
        weights[f"{name}.running_var"] = 0.5 + torch.rand(n, generator=rng)
        weights[f"{name}.num_batches_tracked"] = torch.tensor(0)

    convolution("_conv_stem", 32, 3, 3, 3)
    norm("_bn0", 32)
    before, n = 32, 0
    for widening, after, depth, kernel, _ in STAGES:
        for _ in range(depth):
            wide, block = before * widening, f"_blocks.{n}"
            if widening > 1:
                convolution(f"{block}._expand_conv", wide, before, 1, 1)
                norm(f"{block}._bn0", wide)
            convolution(f"{block}._depthwise_conv", wide, 1, kernel, kernel)
            norm(f"{block}._bn1", wide)
            convolution(f"{block}._project_conv", after, wide, 1, 1)
            norm(f"{block}._bn2", after)
            before, n = after, n + 1
    convolution("_conv_head", 1280, before, 1, 1)
    norm("_bn1", 1280)
    weights["_fc.weight"] = torch.randn(1000, 1280, generator=rng) / 36
    weights["_fc.bias"] = torch.zeros(1000)
    return weights


def by_hand(weights, x):
    """The network on pixels of its own size, written out; padding as TensorFlow's SAME."""

    def same(x, name, stride=1, groups=1):
        kernel = weights[f"{name}.weight"]
        total = [max((-(-n // stride) - 1) * stride + kernel.shape[2] - n, 0) for n in x.shape[2:]]
        (top, left) = (n // 2 for n in total)
        x = F.pad(x, (left, total[1] - left, top, total[0] - top))
        return F.conv2d(x, kernel, stride=stride, groups=groups)

    def norm(x, name):
        mean, var, scale, bias = (
            weights[f"{name}.{part}"][:, None, None]
            for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / (var + 0.001).sqrt() * scale + bias

    x = norm(same((x * 255 - 127) / 128, "_conv_stem", 2), "_bn0").clamp(0, 6)
    for n in range(16):
        block, y = f"_blocks.{n}", x
        if n > 0:
            y = norm(same(y, f"{block}._expand_conv"), f"{block}._bn0").clamp(0, 6)
        y = same(y, f"{block}._depthwise_conv", 2 if n in HALVING else 1, y.shape[1])
        y = norm(y, f"{block}._bn1").clamp(0, 6)
        y = norm(same(y, f"{block}._project_conv"), f"{block}._bn2")
        x = x + y if x.shape == y.shape else y
    return norm(same(x, "_conv_head"), "_bn1").clamp(0, 6).mean((2, 3))


@pytest.fixture(scope="module")
def network():
    network = EfficientNetLite0()
    network.read(checkpoint())
    return network


def test_it_agrees_with_a_second_implementation(network):
    x = torch.rand(2, 3, SIDE, SIDE)
    features = network(x)
    assert features.shape == (2, 1280)
    assert features.std(0).mean() > 1e-3, "the two images differ"
    torch.testing.assert_close(features, by_hand(checkpoint(), x), rtol=1e-4, atol=1e-4)


def test_images_are_resized_and_grey_is_repeated(network):
    grey = torch.rand(1, 1, 40, 56)
    large = F.interpolate(grey, (SIDE, SIDE), mode="bilinear", antialias=True)
    torch.testing.assert_close(network(grey), network(large.repeat(1, 3, 1, 1)))


def test_rows_come_in_batches_and_probabilities_sum_to_one(network):
    x = torch.rand(3, 3, 64, 64)
    torch.testing.assert_close(network.rows(x, batch_size=2), network(x))
    assert network.rows(x[:0]).shape == (0, 1280)
    p = network.classify(x)
    assert p.shape == (3, 1000)
    torch.testing.assert_close(p.sum(1), torch.ones(3))


def test_gradients_reach_the_images_but_not_the_weights(network):
    x = torch.rand(1, 3, 32, 32, requires_grad=True)
    network(x).sum().backward()
    assert x.grad.abs().sum() > 0
    assert not any(p.requires_grad for p in network.parameters())


def test_weights_are_converted_once(tmp_path, monkeypatch):
    monkeypatch.setenv("LEAPFACTUAL_CACHE", str(tmp_path))
    with pytest.raises(MissingData, match="leapfactual data get efficientnet-lite0"):
        EfficientNetLite0.load()
    file = io.BytesIO()
    torch.save(checkpoint(), file, _use_new_zipfile_serialization=False)
    folder = tmp_path / CARD
    folder.mkdir()
    (folder / "weights.pth").write_bytes(file.getvalue())
    member = packages.Member("w/weights.pth", hashlib.sha256(file.getvalue()).hexdigest())
    card = dataclasses.replace(packages.CARDS[CARD], members=(member,))
    monkeypatch.setitem(packages.CARDS, CARD, card)
    expected = EfficientNetLite0()
    expected.read(checkpoint())
    for again in (False, True):
        assert (folder / "weights.safetensors").exists() is again
        found = EfficientNetLite0.load().state_dict()
        assert all(torch.equal(found[name], v) for name, v in expected.state_dict().items())
        monkeypatch.setattr("leapfactual.metrics.imagenet.read_checkpoint", None)
    assert sorted(path.name for path in folder.iterdir()) == ["weights.pth", "weights.safetensors"]
    (folder / "weights.safetensors").write_bytes(b"damaged")
    with pytest.raises(InputError, match="Delete it; it is made again"):
        EfficientNetLite0.load()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda net: net(torch.rand(1, 2, 64, 64)), r"\(B, 1 or 3, H, W\), got \(1, 2, 64, 64\)"),
        (lambda net: net(torch.rand(3, 64)), r"\(B, 1 or 3, H, W\), got \(3, 64\)"),
        (lambda net: net(255 * torch.rand(1, 3, 64, 64)), r"must be images in \[0, 1\]"),
        (
            lambda net: net.read({"_conv_tail.weight": torch.zeros(1)}),
            "no weights called '_conv_t",
        ),
        (lambda net: net.read({"weight": torch.zeros(1)}), "no weights called"),
        (lambda net: net.read({"_fc.bias": torch.zeros(1000)}), "do not fit EfficientNet-Lite0"),
        (lambda net: net.read({**checkpoint(), "_fc.bias": torch.zeros(9)}), "do not fit"),
    ],
)
def test_wrong_input_is_named(network, call, message):
    with pytest.raises(InputError, match=message):
        call(network)


@pytest.mark.skipif(
    not packages.present(CARD),
    reason="WEIGHTS ARE MISSING, PHOTOGRAPHS ARE NOT TESTED: leapfactual data get " + CARD,
)
def test_the_published_weights_name_what_is_on_photographs():
    """ImageNet's classes of an Egyptian cat, an espresso and a tripod, which is on `camera`."""
    data = pytest.importorskip("skimage.data")
    known = {"cat": 285, "coffee": 967, "camera": 872}
    network = EfficientNetLite0.load()
    for name, label in known.items():
        picture = torch.tensor(getattr(data, name)()).float() / 255
        x = picture.expand(3, -1, -1) if picture.ndim == 2 else picture.permute(2, 0, 1)
        p = network.classify(x[None])[0]
        assert p.argmax() == label, name
        assert p.max() > 0.7, name
