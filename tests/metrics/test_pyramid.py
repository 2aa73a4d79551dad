import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from leapfactual import metrics
from leapfactual.errors import InputError
from leapfactual.metrics import LPIPS, PyramidDistance, best_distance

DISTANCE = PyramidDistance()
SIDES = st.integers(1, 33)


@given(SIDES, SIDES, st.sampled_from([1, 3]))
def test_it_is_a_symmetric_distance_of_single_pairs(height, width, channels):
    x, other, third = torch.rand(3, 4, channels, height, width).double()
    distance = DISTANCE(x, other)
    assert distance.shape == (4,)
    assert (distance > 0).all()
    assert torch.equal(DISTANCE(x, x), torch.zeros(4).double())
    torch.testing.assert_close(DISTANCE(other, x), distance)
    torch.testing.assert_close(DISTANCE(x[1:2], other[1:2]), distance[1:2])
    assert (distance <= DISTANCE(x, third) + DISTANCE(third, other) + 1e-12).all()


@given(SIDES, SIDES, st.floats(-0.5, 0.5))
def test_a_shift_of_the_brightness_costs_itself(height, width, shift):
    x = torch.rand(2, 3, height, width).double()
    expected = torch.full((2,), abs(shift)).double()
    torch.testing.assert_close(DISTANCE(x, x + shift), expected)


def test_the_bands_by_hand():
    x, other = torch.rand(2, 3, 1, 16, 24).double()
    bands, rest = [], x - other
    for _ in range(3):
        coarse = F.avg_pool2d(rest, 2)
        bands.append(rest - coarse.repeat_interleave(2, 2).repeat_interleave(2, 3))
        rest = coarse
    expected = sum(band.abs().mean((1, 2, 3)) for band in [*bands, rest])
    torch.testing.assert_close(DISTANCE(x, other), expected)


def test_what_is_rough_at_one_scale_is_counted_at_that_scale_alone():
    checkers = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    for size in (1, 2, 4):
        rough = checkers.repeat_interleave(size, 0).repeat_interleave(size, 1).repeat(16, 16)
        rough = 0.2 * rough[:32, :32][None, None]
        assert DISTANCE(rough, torch.zeros(1, 1, 32, 32)).item() == pytest.approx(0.2)


@given(st.sampled_from([8, 16, 40]), st.sampled_from([8, 24]))
def test_it_is_never_less_than_the_mean_difference(height, width):
    x, other = torch.rand(2, 4, 3, height, width).double()
    assert (DISTANCE(x, other) >= (x - other).abs().mean((1, 2, 3)) - 1e-12).all()


def test_it_can_be_learnt_from():
    x, target = torch.zeros(2, 1, 9, 9, requires_grad=True), torch.rand(2, 1, 9, 9)
    DISTANCE(x, target).sum().backward()
    assert (x.grad != 0).all()


def test_the_best_distance_is_lpips_where_there_are_weights_and_images_are_large(monkeypatch):
    for present in (False, True):
        monkeypatch.setattr(metrics.pyramid.packages, "present", lambda name, p=present: p)
        monkeypatch.setattr(LPIPS, "load", lambda backbone: LPIPS(backbone))
        for side in (32, 63, 64, 256):
            distance, name = best_distance(side)
            kind = LPIPS if present and side >= 64 else PyramidDistance
            assert isinstance(distance, kind)
            assert name == ("LPIPS" if kind is LPIPS else "the pyramid distance")


@pytest.mark.parametrize(
    ("x", "other", "message"),
    [
        (torch.rand(2, 1, 8, 8), torch.rand(2, 1, 8, 9), r"got \(2, 1, 8, 8\) and \(2, 1, 8, 9\)"),
        (torch.rand(2, 8), torch.rand(2, 8), r"images \(B, C, H, W\) of one shape"),
    ],
)
def test_wrong_input_is_named(x, other, message):
    with pytest.raises(InputError, match=message):
        DISTANCE(x, other)
