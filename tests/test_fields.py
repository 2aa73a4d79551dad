import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import leapfactual as lf
from leapfactual._engine.replay import half_precision
from leapfactual.errors import InputError
from leapfactual.fields import ACTIVATIONS, FIELDS, expand_time


def fields(features, classes):
    return [
        lf.MLPField(features, classes, width=16, depth=2),
        lf.fields.UNet1dField(features, classes, channels=8, multipliers=(1, 2, 2), blocks=1),
    ]


def unet2d(shape, classes=3, multipliers=(1, 2), **options):
    field = lf.fields.UNet2dField(
        shape, classes, channels=8, multipliers=multipliers, blocks=1, **options
    )
    return stirred(field)


def stirred(field):
    torch.manual_seed(0)
    for parameter in field.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return field.eval()


@given(st.integers(1, 5), st.integers(1, 33), st.integers(1, 6))
def test_velocity_has_the_shape_of_z(rows, features, classes):
    z, c = torch.randn(rows, features), torch.eye(classes)[torch.zeros(rows, dtype=torch.long)]
    for field in fields(features, classes):
        for t in (torch.tensor(0.3), torch.full((rows,), 0.3)):
            assert field(t, z, c).shape == z.shape


@pytest.mark.parametrize("n", [0, 1])
def test_rows_time_and_class_matter_and_batch_mates_do_not(n):
    field = fields(16, 3)[n].double().eval()
    for parameter in field.parameters():
        if not parameter.ndim:
            torch.nn.init.ones_(parameter)
    z, c, t = torch.randn(4, 16).double(), torch.eye(3).double()[[0, 1, 2, 0]], torch.tensor(0.4)
    v = field(t, z, c)
    torch.testing.assert_close(v[1:2], field(t, z[1:2], c[1:2]), rtol=1e-9, atol=1e-9)
    assert not torch.allclose(v, field(torch.tensor(0.9), z, c))
    assert not torch.allclose(v, field(t, z, c.roll(1, 0)))


def test_mlp_is_the_papers_network():
    field = lf.MLPField(features=32, classes=10)
    shapes = [tuple(m.weight.shape) for m in field.layers if isinstance(m, torch.nn.Linear)]
    assert shapes == [(64, 43), (64, 64), (64, 64), (32, 64)]
    assert sum(isinstance(m, torch.nn.SiLU) for m in field.layers) == 3


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_mlp_takes_other_activations(activation):
    field = lf.MLPField(2, 2, activation=activation)
    assert isinstance(field.layers[1], ACTIVATIONS[activation])


def test_unet_keeps_magnitudes():
    field = lf.fields.UNet1dField(512, 2, channels=32).eval()
    seen = []
    for block in [*field.down, *field.up]:
        block.register_forward_hook(
            lambda _, __, out: seen.append(out.square().mean().sqrt().item())
        )
    field(torch.tensor(0.5), torch.randn(16, 512), torch.eye(2)[[0, 1] * 8])
    assert len(seen) == 13
    assert all(0.7 < magnitude < 1.4 for magnitude in seen), seen


def test_unet_starts_at_zero_velocity_and_pulls_its_weights_to_the_sphere():
    field = lf.fields.UNet1dField(20, 2, channels=8).train()
    with torch.no_grad():
        field.inlet.weight.mul_(7)
    v = field(torch.tensor(0.5), torch.randn(3, 20), torch.eye(2)[[0, 1, 0]])
    assert torch.equal(v, torch.zeros_like(v))
    assert field.inlet.weight.square().mean().item() == pytest.approx(1, abs=1e-2)


def test_unet_output_does_not_depend_on_the_length_of_its_weights():
    field = lf.fields.UNet1dField(20, 2, channels=8).eval()
    torch.nn.init.ones_(field.gain)
    z, c, t = torch.randn(3, 20), torch.eye(2)[[0, 1, 0]], torch.tensor(0.5)
    before = field(t, z, c)
    with torch.no_grad():
        for block in field.down:
            block.first.weight.mul_(5)
    torch.testing.assert_close(field(t, z, c), before, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("n", [0, 1])
def test_config_builds_the_same_field(n):
    field = fields(16, 3)[n]
    other = FIELDS[type(field).__name__](**field.config())
    other.load_state_dict(field.state_dict())
    z, c, t = torch.randn(4, 16), torch.eye(3)[[0, 1, 2, 0]], torch.tensor(0.4)
    assert torch.equal(field.eval()(t, z, c), other.eval()(t, z, c))


def test_time_expands_from_a_scalar_and_from_one_per_row():
    z = torch.zeros(3, 2)
    assert expand_time(torch.tensor(0.5), z).tolist() == [[0.5]] * 3
    assert expand_time(torch.tensor([0.1, 0.2, 0.3]), z).flatten().tolist() == pytest.approx(
        [0.1, 0.2, 0.3]
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lf.MLPField(0, 2), "`features` must be a whole number of at least 1, got 0"),
        (lambda: lf.MLPField(2, 2, depth=0), "`depth` must be"),
        (lambda: lf.MLPField(2, 2, depth=10**5), "`depth` must be .* 256, got 100000"),
        (lambda: lf.fields.UNet1dField(2, 2, blocks=10**4), "`blocks` must be .* 64, got 10000"),
        (lambda: lf.fields.UNet1dField(2, 2, multipliers=[1] * 99), "1 to 16 levels, got 99"),
        (lambda: lf.MLPField(2, 2, activation="swish"), r"one of \['silu'.*got 'swish'"),
        (lambda: lf.fields.UNet1dField(2, 2, multipliers=()), "must name 1 to 16 levels, got 0"),
        (lambda: lf.fields.UNet1dField(2, 2, channels=-8), "`channels` must be"),
        (
            lambda: lf.fields.UNet2dField((2, 3), 2),
            r"\(channels, height, width\) of a latent map, got",
        ),
        (lambda: lf.fields.UNet2dField((2, 0, 3), 2), "`shape` must be .* at least 1, got 0"),
        (
            lambda: lf.fields.UNet2dField((2, 3, 3), 2, multipliers=()),
            "must name 1 to 16 levels, got 0",
        ),
        (lambda: lf.fields.UNet2dField((2, 3, 3), 2, multipliers=(1, 0)), "`multipliers` must be"),
        (lambda: lf.fields.UNet2dField((2, 3, 3), 2, channels=0), "`channels` must be"),
        (lambda: lf.fields.UNet2dField((2, 3, 3), 2, blocks=0), "`blocks` must be"),
        (lambda: lf.fields.UNet2dField((2, 3, 3), 0), "`classes` must be"),
    ],
)
def test_wrong_sizes_are_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_the_unet_knows_its_features_apart():
    """What it learns may differ from feature to feature, at random."""
    torch.manual_seed(0)
    field = lf.fields.UNet1dField(64, 2, channels=16, multipliers=(1,), blocks=1)
    wanted = torch.randn(64).sign() * torch.tensor([[-1.0], [1.0]])
    adam = torch.optim.Adam(field.parameters(), lr=0.02)
    for _ in range(150):
        z, c = torch.randn(32, 64), torch.arange(32) % 2
        loss = (field(torch.rand(32), z, torch.eye(2)[c]) - wanted[c]).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert loss < 0.1


# -- maps --


@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 3),
    st.integers(1, 3),
)
def test_velocities_of_maps_have_the_shape_of_z(rows, channels, height, width, classes, levels):
    field = unet2d((channels, height, width), classes, (1, 2, 2)[:levels])
    z = torch.randn(rows, channels * height * width)
    c = torch.eye(classes)[torch.zeros(rows, dtype=torch.long)]
    assert (field.features, field.latent_channels) == (z.shape[1], channels)
    for t in (torch.tensor(0.3), torch.full((rows,), 0.3)):
        v = field(t, z, c)
        assert v.shape == z.shape
        assert torch.isfinite(v).all()


@pytest.mark.parametrize("shape", [(4, 5, 7), (3, 8, 8), (1, 1, 1), (2, 3, 40), (2, 17, 19)])
def test_in_maps_time_class_and_place_matter_and_batch_mates_do_not(shape):
    field = unet2d(shape).double()
    z, c = torch.randn(4, field.features).double(), torch.eye(3).double()[[0, 1, 2, 0]]
    t = torch.rand(4).double()
    v = field(t, z, c)
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(field(t[order], z[order], c[order]), v[order], rtol=0, atol=1e-10)
    torch.testing.assert_close(field(t[1], z[1:2], c[1:2]), v[1:2], rtol=0, atol=1e-10)
    torch.testing.assert_close(field.bind(c)(t, z), v, rtol=0, atol=0)
    assert not torch.allclose(v, field(t.flip(0), z, c))
    assert not torch.allclose(v, field(t, z, c.roll(1, 0)))
    if shape != (1, 1, 1):
        assert not torch.allclose(v, field(t, z.flip(1), c).flip(1))


def test_what_a_map_holds_at_one_place_moves_its_neighbours_only():
    shape = channels, height, width = 2, 12, 30
    field = unet2d(shape, multipliers=(1,)).double()
    z, c, t = torch.randn(1, field.features).double(), torch.eye(3)[:1].double(), torch.tensor(0.4)
    for row, column in ((3, 20), (11, 0), (0, 29)):
        other = z.reshape(height, width, channels).clone()
        other[row, column] += 1
        change = (field(t, other.reshape(1, -1), c) - field(t, z, c)).abs()
        change = change.reshape(height, width, channels).amax(2)
        rows, columns = (change > 1e-12).nonzero().T
        assert change[row, column] > 1e-3
        assert (rows - row).abs().max() <= 6, "six convolutions"
        assert (columns - column).abs().max() <= 6


def test_small_maps_see_themselves_whole_and_large_ones_at_their_coarse_levels():
    attentions = [
        sum(type(layer).__name__ == "_Attention" for layer in level.layers)
        for shape in ((1, 16, 16), (1, 17, 16))
        for level in lf.fields.UNet2dField(shape, 2, channels=8, multipliers=(1, 2), blocks=2).down
    ]
    assert attentions == [2, 2, 0, 2]
    field = unet2d((1, 5, 5)).double()
    z, c, t = torch.randn(1, 25).double(), torch.eye(3)[:1].double(), torch.tensor(0.4)
    other = z.clone()
    other[0, 0] += 1
    assert ((field(t, other, c) - field(t, z, c)).abs() > 1e-9).all()


def test_maps_start_at_zero_velocity_and_every_weight_learns():
    field = lf.fields.UNet2dField((2, 5, 6), 2, channels=8, multipliers=(1, 2), blocks=1)
    z, c = torch.randn(4, 60), torch.eye(2)[[0, 1, 0, 1]]
    v = field(torch.rand(4), z, c)
    assert torch.equal(v, torch.zeros_like(v))
    stirred(field)(torch.rand(4), z, c).square().mean().backward()
    still = [n for n, p in field.named_parameters() if p.grad is None or not p.grad.any()]
    assert not still


def test_dropout_is_for_training():
    field = unet2d((2, 4, 4), dropout=0.5)
    z, c, t = torch.randn(3, 32), torch.eye(3), torch.tensor(0.4)
    assert torch.equal(field(t, z, c), field(t, z, c))
    plain = unet2d((2, 4, 4))
    assert torch.equal(field(t, z, c), plain(t, z, c))
    assert not torch.equal(field.train()(t, z, c), field(t, z, c))


def test_a_field_of_maps_is_saved_and_loaded_in_a_flow(tmp_path):
    flow = lf.Flow(unet2d((3, 5, 4), dropout=0.2), lf.Midpoint(2))
    z, c = torch.randn(6, 60), torch.eye(3)[[0, 1, 2, 0, 1, 2]]
    flow.standardize(4 * z + 1)
    flow.save(tmp_path / "flow.safetensors")
    other = lf.Flow.load(tmp_path / "flow.safetensors")
    assert other.field.config() == flow.field.config()
    assert other.field.shape == (3, 5, 4)
    assert torch.equal(other.scale, flow.scale)
    with torch.no_grad():
        assert torch.equal(other.lift(z, c, 0.3), flow.lift(z, c, 0.3))
        assert not torch.allclose(flow.lift(z, c, 0.3), z)


def test_maps_in_half_precision_are_close():
    flow = lf.Flow(unet2d((4, 9, 7)), lf.Midpoint(3))
    z, c = torch.randn(5, 252), torch.eye(3)[[0, 1, 2, 0, 1]]
    with torch.no_grad():
        half, whole = (f.lift(z, c, 0.5) for f in (half_precision(flow), flow))
    assert half.dtype == torch.float32
    assert (whole - z).abs().mean() > 0.05
    torch.testing.assert_close(half, whole, rtol=0, atol=0.02)
    assert not torch.equal(half, whole)


def test_the_field_of_maps_knows_its_places_apart():
    torch.manual_seed(0)
    field = lf.fields.UNet2dField((1, 5, 7), 2, channels=16, multipliers=(1,), blocks=1)
    wanted = torch.randn(35).sign() * torch.tensor([[-1.0], [1.0]])
    adam = torch.optim.Adam(field.parameters(), lr=0.01)
    for _ in range(60):
        z, c = torch.randn(16, 35), torch.arange(16) % 2
        loss = (field(torch.rand(16), z, torch.eye(2)[c]) - wanted[c]).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert loss < 0.1
