"""Folded networks are the same function."""

import copy

import pytest
import torch
from torch import nn

from leapfactual._engine.fusion import fuse
from leapfactual.generators import VAE, WAE


def stirred(module):
    """Gives batch norms something to fold."""
    torch.manual_seed(0)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d) and part.track_running_stats:
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2.0)
            if part.affine:
                nn.init.normal_(part.weight)
                nn.init.normal_(part.bias)
    return module.double().eval()


def agree(module, x):
    twin = fuse(module)
    with torch.no_grad():
        torch.testing.assert_close(twin(x), module(x), rtol=1e-10, atol=1e-10)
    return twin


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "extra"),
    [(3, 2, 1, 1), (4, 2, 1, 0), (2, 2, 0, 0), (5, 2, 2, 1), (5, 3, 1, 0), (3, 3, 0, 0)],
)
@pytest.mark.parametrize("bias", [True, False])
def test_transposed_convolutions_become_phases(kernel, stride, padding, extra, bias):
    layer = nn.ConvTranspose2d(3, 5, kernel, stride, padding, extra, bias=bias)
    module = stirred(nn.Sequential(layer, nn.BatchNorm2d(5), nn.LeakyReLU(0.2)))
    twin = agree(module, torch.randn(4, 3, 7, 6).double())
    assert not any(isinstance(part, nn.ConvTranspose2d | nn.BatchNorm2d) for part in twin)


@pytest.mark.parametrize("kernel", [5, 7])
def test_large_convolutions_are_done_on_the_coarse_grid(kernel):
    module = stirred(
        nn.Sequential(
            nn.ConvTranspose2d(6, 4, 3, 2, 1, 1),
            nn.BatchNorm2d(4),
            nn.SiLU(),
            nn.Conv2d(4, 2, kernel),
        )
    )
    twin = agree(module, torch.randn(3, 6, 9, 8).double())
    assert isinstance(twin[-1], nn.PixelShuffle)


@pytest.mark.parametrize(
    "layers",
    [
        [nn.ConvTranspose2d(64, 64, 3, 2, 1, 1)],
        [nn.ConvTranspose2d(4, 4, 3, 2, 1, 1, groups=2)],
        [nn.ConvTranspose2d(4, 4, 3, 2, 0)],
        [nn.ConvTranspose2d(4, 4, (3, 4), 2, 1)],
        [nn.PixelShuffle(2), nn.Conv2d(1, 1, 4)],
        [nn.PixelShuffle(2), nn.Conv2d(1, 1, 5, padding=2)],
        [nn.PixelShuffle(2), nn.Conv2d(1, 8, 5)],
        [nn.BatchNorm2d(4), nn.ReLU()],
        [nn.Conv2d(4, 4, 3), nn.Dropout(), nn.BatchNorm2d(4)],
        [nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)],
        [nn.Conv2d(4, 4, 3, padding="same")],
    ],
)
def test_what_would_not_help_or_not_be_the_same_stays(layers):
    channels = 64 if isinstance(layers[0], nn.ConvTranspose2d) and layers[0].in_channels > 4 else 4
    module = stirred(nn.Sequential(*layers))
    assert agree(module, torch.randn(2, channels, 8, 8).double()) is module


def test_linear_layers_take_their_norm_in():
    module = stirred(nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 3)))
    twin = agree(module, torch.randn(9, 5).double())
    assert [type(part) for part in twin] == [nn.Linear, nn.ReLU, nn.Linear]


@pytest.mark.parametrize("made", [VAE((1, 28, 28), kernel=5), WAE((3, 32, 24)), VAE((2, 20, 36))])
def test_generators_are_the_same(made):
    generator = stirred(made)
    before = copy.deepcopy(generator.state_dict())
    twin = fuse(generator)
    x = torch.rand(3, *generator.shape).double()
    with torch.no_grad():
        z = generator.encode(x)
        torch.testing.assert_close(twin.encode(x), z, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(twin.decode(z), generator.decode(z), rtol=1e-9, atol=1e-9)
    assert twin is not generator
    assert all(torch.equal(value, before[name]) for name, value in generator.state_dict().items())


def test_a_network_in_training_is_left_alone():
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    assert fuse(module) is module


def test_what_is_given_is_not_written_to():
    module = nn.Sequential(nn.PixelShuffle(2), nn.ReLU(inplace=True), nn.Hardtanh(0, 1)).eval()
    x = torch.randn(2, 4, 3, 3)
    before = x.clone()
    fuse(module)(x)
    assert torch.equal(x, before)


def test_layers_with_a_forward_of_their_own_stay():
    class Odd(nn.ConvTranspose2d):
        def forward(self, x):
            return -super().forward(x)

    module = nn.Sequential(Odd(2, 2, 3, 2, 1, 1), nn.BatchNorm2d(2)).eval()
    assert fuse(module) is module
