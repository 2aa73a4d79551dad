"""The spatial autoencoder: latents that are maps, flattened with their channels last."""

import pytest
import torch
from torch import nn

import leapfactual as lf
from leapfactual import generators
from leapfactual.classifiers import from_logits
from leapfactual.errors import InputError
from leapfactual.generators import SpatialAutoencoder
from leapfactual.testing import check_explainer, check_generator
from leapfactual.types import Generator


def stirred(module):
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.15)
    return module.eval()


def small(shape=(3, 16, 16), channels=4, widths=(8, 16), **options):
    return stirred(SpatialAutoencoder(shape, channels, widths=widths, blocks=1, **options))


@pytest.mark.parametrize(
    ("shape", "side"),
    [
        ((3, 32, 32), (4, 4)),
        ((1, 64, 64), (8, 8)),
        ((3, 96, 96), (12, 12)),
        ((3, 40, 56), (5, 7)),
        ((1, 33, 47), (5, 6)),
        ((3, 65, 32), (9, 4)),
        ((1, 5, 9), (1, 2)),
        ((2, 1, 1), (1, 1)),
    ],
)
def test_it_keeps_its_contract_for_any_shape(shape, side):
    model = small(shape, channels=2, widths=(4, 8, 8))
    check_generator(model, torch.rand(3, *shape))
    assert isinstance(model, Generator)
    assert model.latent_shape == (2, *side)
    assert model.encode(torch.rand(2, *shape)).shape == (2, model.features)
    assert model.features == 2 * side[0] * side[1]


@pytest.mark.parametrize("widths", [(8,), (4, 8), (4, 4, 8, 8)])
def test_every_width_halves_the_map(widths):
    model = small((1, 48, 32), 3, widths)
    half = 2 ** len(widths)
    assert model.latent_shape == (3, 48 // half, 32 // half)
    check_generator(model, torch.rand(2, 1, 48, 32))


def test_a_latent_holds_its_map_with_the_channels_last():
    model = small()
    x = torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        mean = model.encoder(2 * x - 1).chunk(2, dim=1)[0] + model.project(2 * x - 1)
        z = model.encode(x)
        for row, column, channel in ((0, 0, 1), (2, 3, 0), (1, 2, 3)):
            place = (row * 4 + column) * 4 + channel
            torch.testing.assert_close(z[:, place], mean[:, channel, row, column])


@pytest.mark.parametrize(("row", "column"), [(0, 0), (3, 17), (1, 9), (2, 0)])
def test_a_place_of_the_latent_is_that_place_of_the_picture(row, column):
    model = small((1, 16, 72), 3, (8, 8)).double()
    z = torch.randn(1, model.features).double()
    other = z.reshape(4, 18, 3).clone()
    other[row, column] += 1
    with torch.no_grad():
        change = (model._image(other.reshape(1, -1)) - model._image(z)).abs()[0, 0]
        columns = (change.amax(0) > 1e-12).nonzero()[:, 0]
    place = change[4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
    assert place.mean() > 5 * change.mean()
    low, high = 4 * (column - 3), 4 * (column + 4)
    assert columns.min() >= low - 6
    assert columns.max() < high + 6


def test_a_place_of_the_picture_is_that_place_of_the_latent():
    model = small((1, 16, 72), 3, (8, 8)).double()
    x = torch.rand(1, 1, 16, 72).double()
    other = x.clone()
    other[..., 4:8, 60:64] = 1 - other[..., 4:8, 60:64]
    with torch.no_grad():
        change = (model.encode(other) - model.encode(x)).abs().reshape(4, 18, 3).amax(2)
    assert change[1, 15] > 1e-3
    assert (change[:, :10] == 0).all()


def test_the_field_of_maps_reads_the_same_places():
    model = small((1, 24, 72), 2, (8, 8)).double()
    torch.manual_seed(1)
    field = lf.fields.UNet2dField(model.latent_shape, 2, channels=8, multipliers=(1,), blocks=1)
    field = stirred(field).double()
    assert field.features == model.features
    assert lf.Flow(field).field.latent_channels == 2
    z, c = torch.randn(1, model.features).double(), torch.eye(2)[:1].double()
    other = z.clone()
    other[0, 2 * (4 * 18 + 16)] += 1
    t = torch.tensor(0.5)
    with torch.no_grad():
        moved = (field(t, other, c) - field(t, z, c)).reshape(6, 18, 2).abs().amax(2)
        drawn = (model._image(other) - model._image(z)).abs()[0, 0]
    coarse = nn.functional.avg_pool2d(drawn[None], 4)[0]
    for change in (moved, coarse):
        weight = change / change.sum()
        assert (weight.sum(1) @ torch.arange(6.0).double()).item() == pytest.approx(4, abs=1)
        assert (weight.sum(0) @ torch.arange(18.0).double()).item() == pytest.approx(16, abs=1)


@pytest.mark.parametrize(("shape", "channels"), [((1, 16, 24), 5), ((3, 13, 18), 7)])
def test_it_begins_with_the_principal_components_of_patches(shape, channels):
    model = SpatialAutoencoder(shape, channels, widths=(4, 8), blocks=1)
    x = torch.rand(40, *shape).cumsum(2).cumsum(3)
    x = x / x.amax((1, 2, 3), keepdim=True)
    model.initialize(x)
    padded = nn.functional.pad(x, model.pad, mode="reflect")
    patches = nn.functional.unfold(padded, 4, stride=4).transpose(1, 2).flatten(0, 1)
    mean = patches.mean(0)
    v = torch.linalg.svd(patches - mean, full_matrices=False).Vh[:channels]
    wanted = nn.functional.fold(
        ((patches - mean) @ v.T @ v + mean).reshape(40, -1, patches.shape[1]).transpose(1, 2),
        padded.shape[2:],
        4,
        stride=4,
    )
    left, _, top, _ = model.pad
    wanted = wanted[..., top : top + shape[1], left : left + shape[2]].clamp(0, 1)
    with torch.no_grad():
        z = model.encode(x)
        torch.testing.assert_close(model.decode(z), wanted, rtol=0, atol=1e-4)
    maps = z.reshape(-1, channels)
    torch.testing.assert_close(maps.mean(0), torch.zeros(channels), rtol=0, atol=1e-3)
    torch.testing.assert_close(maps.std(0), torch.ones(channels), rtol=0, atol=0.02)


def test_more_channels_than_a_patch_has_pixels_are_as_good():
    model = SpatialAutoencoder((1, 8, 8), 9, widths=(4,), blocks=1)
    x = torch.rand(20, 1, 8, 8)
    model.initialize(x)
    with torch.no_grad():
        torch.testing.assert_close(model.decode(model.encode(x)), x, rtol=0, atol=1e-5)


def test_padding_is_by_reflection_and_is_cropped_again():
    model = small((1, 13, 18), 2, (4, 8))
    x = torch.rand(2, 1, 13, 18)
    assert model.pad == (1, 1, 1, 2)
    whole = small((1, 16, 20), 2, (4, 8))
    whole.load_state_dict(model.state_dict())
    with torch.no_grad():
        padded = nn.functional.pad(x, (1, 1, 1, 2), mode="reflect")
        torch.testing.assert_close(model.encode(x), whole.encode(padded))
        z = model.encode(x)
        torch.testing.assert_close(model.decode(z), whole.decode(z)[..., 1:14, 1:19])


def test_the_objective_by_hand():
    model = small((1, 8, 8), 2, (4, 8), kl_weight=0.3)
    x = torch.rand(4, 1, 8, 8)
    loss, x_hat = model.loss(x, torch.Generator().manual_seed(0))
    mean, log_variance = model.encoder(2 * x - 1).chunk(2, dim=1)
    mean = mean + model.project(2 * x - 1)
    kl = torch.distributions.kl_divergence(
        torch.distributions.Normal(mean, (log_variance / 2).exp()),
        torch.distributions.Normal(0, 1),
    )
    torch.testing.assert_close(loss, (x_hat - x).abs().mean() + 0.3 * kl.mean())
    again, _ = model.loss(x, torch.Generator().manual_seed(0))
    other, _ = model.loss(x, torch.Generator().manual_seed(1))
    assert torch.equal(again, loss)
    assert not torch.equal(other, loss), "latents are drawn"


def test_variances_stay_in_bounds():
    model = small((1, 8, 8), 2, (4, 8))
    nn.init.constant_(model.encoder[-1].bias, 1e4)
    loss, x_hat = model.loss(torch.rand(2, 1, 8, 8), torch.Generator().manual_seed(0))
    assert torch.isfinite(loss)
    assert torch.isfinite(x_hat).all()


def test_half_precision_is_close():
    model = small()
    x = torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        z = model.encode(x)
        image = model.decode(z)
        model.half()
        torch.testing.assert_close(model.encode(x.half()).float(), z, rtol=0, atol=0.02)
        torch.testing.assert_close(model.decode(z.half()).float(), image, rtol=0, atol=0.02)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 19, 30)])
def test_save_then_load_is_equal(shape, tmp_path):
    model = small(shape, 3, (4, 8), kl_weight=1e-3)
    generators.save(model, tmp_path / "g.safetensors")
    again = generators.load(tmp_path / "g.safetensors")
    assert again.config() == model.config()
    assert again.latent_shape == model.latent_shape
    assert again.pad == model.pad
    x = torch.rand(2, *shape)
    with torch.no_grad():
        assert torch.equal(again.encode(x), model.encode(x))
        assert torch.equal(again.decode(model.encode(x)), model.decode(model.encode(x)))
    check_generator(again, x)


@pytest.mark.parametrize("accelerate", [True, False])
def test_it_explains_with_a_flow_of_maps(accelerate):
    model = small((3, 17, 20), 2, (4, 8))
    field = lf.fields.UNet2dField(model.latent_shape, 2, channels=8, multipliers=(1, 2), blocks=1)
    flow = lf.Flow(stirred(field), lf.Midpoint(2))
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 17 * 20, 2)).eval()
    x = torch.rand(6, 3, 17, 20)
    plan = [lf.blend(3, 0.5, 2), lf.inject(2, 0.0, 0.2, guidance=2)]
    options = {"accelerate": accelerate, "keep_pixels": True}
    explainer = lf.LeapFactual(model, from_logits(network), flow, plan, **options)
    target = torch.arange(6) % 2
    check_explainer(explainer, x, target)
    found = explainer.explain(x, target)
    assert torch.equal(found.reconstruction, x)
    assert (found.z_counterfactual - found.z).abs().mean() > 1e-3
    with torch.no_grad():
        said = from_logits(network)(found.counterfactual)
    torch.testing.assert_close(found.probabilities, said, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: small((3, 0, 8)), r"\(channels, height, width\) of one image, got \(3, 0, 8\)"),
        (lambda: small(channels=0), "`channels` must be .* got 0"),
        (lambda: small(widths=()), "`widths` must name 1 to 16 levels, got 0"),
        (lambda: small(widths=(8, -1)), "`widths` must be"),
        (lambda: SpatialAutoencoder((1, 8, 8), blocks=0), "`blocks` must be .* got 0"),
        (lambda: SpatialAutoencoder((1, 8, 8), blocks=10**4), "`blocks` must be .* 64, got 10000"),
        (lambda: small().encode(torch.rand(2, 1, 16, 16)), r"got \(2, 1, 16, 16\)"),
        (lambda: small().encode(torch.zeros(2, 3, 16, 16).byte()), "must be floating point"),
        (lambda: small().decode(torch.zeros(2, 5)), "must have 64 features"),
    ],
)
def test_wrong_autoencoders_are_named(call, message):
    with pytest.raises(InputError, match=message):
        call()
