import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import leapfactual as lf
from leapfactual.errors import InputError
from leapfactual.fields import ACTIVATIONS, FIELDS, expand_time


def fields(features, classes):
    return [
        lf.MLPField(features, classes, width=16, depth=2),
        lf.UNet1dField(features, classes, channels=8, multipliers=(1, 2, 2), blocks=1),
    ]


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
    field = lf.UNet1dField(512, 2, channels=32).eval()
    seen = []
    for block in [*field.down, *field.up]:
        block.register_forward_hook(
            lambda _, __, out: seen.append(out.square().mean().sqrt().item())
        )
    field(torch.tensor(0.5), torch.randn(16, 512), torch.eye(2)[[0, 1] * 8])
    assert len(seen) == 13
    assert all(0.7 < magnitude < 1.4 for magnitude in seen), seen


def test_unet_starts_at_zero_velocity_and_pulls_its_weights_to_the_sphere():
    field = lf.UNet1dField(20, 2, channels=8).train()
    with torch.no_grad():
        field.inlet.weight.mul_(7)
    v = field(torch.tensor(0.5), torch.randn(3, 20), torch.eye(2)[[0, 1, 0]])
    assert torch.equal(v, torch.zeros_like(v))
    assert field.inlet.weight.square().mean().item() == pytest.approx(1, abs=1e-2)


def test_unet_output_does_not_depend_on_the_length_of_its_weights():
    field = lf.UNet1dField(20, 2, channels=8).eval()
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
        (lambda: lf.MLPField(2, 2, activation="swish"), r"one of \['silu'.*got 'swish'"),
        (lambda: lf.UNet1dField(2, 2, multipliers=()), "at least one level, got none"),
        (lambda: lf.UNet1dField(2, 2, channels=-8), "`channels` must be"),
    ],
)
def test_wrong_sizes_are_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_the_unet_knows_its_features_apart():
    """What it learns may differ from feature to feature, at random."""
    torch.manual_seed(0)
    field = lf.UNet1dField(64, 2, channels=16, multipliers=(1,), blocks=1)
    wanted = torch.randn(64).sign() * torch.tensor([[-1.0], [1.0]])
    adam = torch.optim.Adam(field.parameters(), lr=0.02)
    for _ in range(150):
        z, c = torch.randn(32, 64), torch.arange(32) % 2
        loss = (field(torch.rand(32), z, torch.eye(2)[c]) - wanted[c]).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert loss < 0.1
