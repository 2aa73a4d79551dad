import dataclasses
import hashlib
import pickle

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from leapfactual.data import packages
from leapfactual.errors import InputError, MissingData
from leapfactual.generators import GAN, Inversion
from leapfactual.metrics import LPIPS
from leapfactual.metrics.lpips import BACKBONES


def arrays(backbone, seed=0):
    """Random weights in the layout of the published file."""
    rng = np.random.default_rng(seed)
    body, heads, before, n = {}, {}, 3, 0
    for layer in BACKBONES[backbone]:
        if layer == "*":
            kernel = rng.random((1, 1, before, 1), dtype=np.float32)
            heads[f"NetLinLayer_{len(heads)}"] = {"Conv_0": {"kernel": kernel}}
        elif len(layer) == 4:
            after, size = layer[:2]
            kernel = rng.standard_normal((size, size, before, after), dtype=np.float32) / size
            body[f"Conv_{n}"] = {"kernel": kernel, "bias": np.zeros(after, dtype=np.float32)}
            before, n = after, n + 1
    return {"Body_0": body, **heads}


def by_hand(weights, x, other):
    """AlexNet's LPIPS, written out."""
    mean, std = torch.tensor([-0.030, -0.088, -0.188]), torch.tensor([0.458, 0.448, 0.450])
    total = 0
    a, b = ((2 * v - 1 - mean[:, None, None]) / std[:, None, None] for v in (x, other))
    for n, (stride, padding, pool) in enumerate(
        [(4, 2, 0), (1, 2, 1), (1, 1, 1), (1, 1, 0), (1, 1, 0)]
    ):
        kernel = torch.tensor(weights["Body_0"][f"Conv_{n}"]["kernel"]).permute(3, 2, 0, 1)
        if pool:
            a, b = F.max_pool2d(a, 3, 2), F.max_pool2d(b, 3, 2)
        a, b = (F.conv2d(v, kernel, stride=stride, padding=padding).relu() for v in (a, b))
        head = torch.tensor(weights[f"NetLinLayer_{n}"]["Conv_0"]["kernel"]).flatten()
        gap = a / (a.norm(dim=1, keepdim=True) + 1e-10) - b / (b.norm(dim=1, keepdim=True) + 1e-10)
        total = total + (gap.square() * head[:, None, None]).sum(1).mean((1, 2))
    return total


def test_lpips_against_a_second_implementation():
    weights = arrays("alexnet")
    metric = LPIPS("alexnet")
    metric.read(weights)
    x, other = torch.rand(3, 3, 64, 64), torch.rand(3, 3, 64, 64)
    torch.testing.assert_close(metric(x, other), by_hand(weights, x, other), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("backbone", "side"), [("alexnet", 64), ("vgg16", 32)])
def test_lpips_is_a_symmetric_distance_of_single_pairs(backbone, side):
    metric = LPIPS(backbone)
    x, other = torch.rand(2, 1, side, side), torch.rand(2, 1, side, side)
    distance = metric(x, other)
    assert torch.equal(metric(x, x), torch.zeros(2))
    torch.testing.assert_close(distance, metric(other, x))
    torch.testing.assert_close(metric(x[:1], other[:1]), distance[:1], rtol=1e-3, atol=1e-5)
    assert (distance > 0).all()


class Fire(torch.nn.Module):
    """As in torchvision, with its names."""

    def __init__(self, before, squeezed, expanded):
        super().__init__()
        self.squeeze = torch.nn.Conv2d(before, squeezed, 1)
        self.expand1x1 = torch.nn.Conv2d(squeezed, expanded, 1)
        self.expand3x3 = torch.nn.Conv2d(squeezed, expanded, 3, padding=1)

    def forward(self, x):
        x = self.squeeze(x).relu()
        return torch.cat([self.expand1x1(x).relu(), self.expand3x3(x).relu()], 1)


def test_lpips_with_squeezenet_against_a_second_implementation():
    torch.manual_seed(0)
    pool = torch.nn.MaxPool2d(3, 2, ceil_mode=True)
    layers = [torch.nn.Conv2d(3, 64, 3, 2), torch.nn.ReLU(), pool]
    layers += [Fire(64, 16, 64), Fire(128, 16, 64), pool, Fire(128, 32, 128), Fire(256, 32, 128)]
    layers += [
        pool,
        Fire(256, 48, 192),
        Fire(384, 48, 192),
        Fire(384, 64, 256),
        Fire(512, 64, 256),
    ]
    features = torch.nn.Sequential(*layers)
    ends, sizes = (1, 4, 7, 9, 10, 11, 12), (64, 128, 256, 384, 384, 512, 512)
    heads = {f"lin{n}.model.1.weight": torch.rand(1, c, 1, 1) for n, c in enumerate(sizes)}
    metric = LPIPS("squeezenet")
    state = {f"features.{k}": v for k, v in features.state_dict().items()}
    metric.read_torch(dict(sorted(state.items())), heads)
    x, other = torch.rand(2, 3, 64, 64), torch.rand(2, 3, 64, 64)
    shift = torch.tensor([-0.030, -0.088, -0.188])[:, None, None]
    scale = torch.tensor([0.458, 0.448, 0.450])[:, None, None]
    total, pair = torch.zeros(2), [(2 * v - 1 - shift) / scale for v in (x, other)]
    with torch.no_grad():
        for n, layer in enumerate(features):
            pair = [layer(v) for v in pair]
            if n in ends:
                a, b = (v / (v.square().sum(1, keepdim=True).sqrt() + 1e-10) for v in pair)
                w = heads[f"lin{ends.index(n)}.model.1.weight"]
                total += (w * (a - b).square()).sum(1).mean((1, 2))
    torch.testing.assert_close(metric(x, other), total)
    with pytest.raises(MissingData, match="read_torch"):
        LPIPS.load("squeezenet")
    with pytest.raises(InputError, match="do not fit a squeezenet"):
        metric.read_torch({}, heads)


def test_lpips_reads_its_weights_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LEAPFACTUAL_CACHE", str(tmp_path))
    with pytest.raises(MissingData, match="leapfactual data get lpips-alexnet"):
        LPIPS.load()
    content = pickle.dumps(arrays("alexnet"), protocol=4)
    (tmp_path / "lpips-alexnet").mkdir()
    (tmp_path / "lpips-alexnet" / "alexnet.ckpt").write_bytes(content)
    member = packages.Member("w/alexnet.ckpt", hashlib.sha256(content).hexdigest())
    card = dataclasses.replace(packages.CARDS["lpips-alexnet"], members=(member,))
    monkeypatch.setitem(packages.CARDS, "lpips-alexnet", card)
    expected = LPIPS("alexnet")
    expected.read(arrays("alexnet"))
    x, other = torch.rand(2, 3, 64, 64), torch.rand(2, 3, 64, 64)
    assert torch.equal(LPIPS.load("alexnet")(x, other), expected(x, other))
    with pytest.raises(InputError, match="do not fit a vgg16"):
        LPIPS("vgg16").read(arrays("alexnet"))


def test_lpips_guides_an_inversion():
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(4, 3 * 8 * 8),
        torch.nn.Tanh(),
        torch.nn.Unflatten(1, (3, 8, 8)),
        torch.nn.Upsample(40),
    )
    metric = LPIPS("alexnet")
    how = Inversion(steps=150, perceptual=metric, perceptual_weight=0.1)
    gan = GAN(network, 4, (3, 40, 40), inversion=how)
    z = gan.sample(3, seed=5)
    found = gan.invert(gan.decode(z).detach())
    assert found.error.max() < 0.02
    assert found.perceptual.max() < 0.01
    torch.testing.assert_close(found.z, z, rtol=0, atol=0.1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LPIPS("resnet"), "`backbone` must be one of"),
        (lambda: LPIPS()(torch.rand(1, 3, 64, 64), torch.rand(1, 3, 32, 32)), "of one shape"),
        (lambda: LPIPS()(torch.rand(1, 3, 8, 8), torch.rand(1, 3, 8, 8)), "too small for alexnet"),
    ],
)
def test_wrong_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()
