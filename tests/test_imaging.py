import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from leapfactual.imaging import MAX_KEPT_CHANGE, grid, keep_pixels, save_grid


def test_a_grid_puts_images_where_they_belong(tmp_path):
    x = torch.zeros(3, 1, 4, 5)
    x[1] = 0.5
    sheet = grid(x, columns=2, gap=1)
    assert sheet.size == (13, 11)
    assert sheet.getpixel((1, 1)) == (0, 0, 0)
    assert sheet.getpixel((7, 1)) == (128, 128, 128)
    assert sheet.getpixel((7, 6)) == (255, 255, 255), "no fourth image"
    save_grid(torch.rand(2, 3, 4, 4), tmp_path / "g.png", zoom=3)
    with Image.open(tmp_path / "g.png") as picture:
        assert picture.size == (42, 24)


def pictures(seed, shape=(2, 3, 12, 15)):
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(3, *shape, generator=rng)


@given(st.integers(0, 10_000), st.sampled_from([1, 3]), st.sampled_from([0.01, 0.1, 1.0]))
def test_kept_pixels_lie_between_the_decoded_ones_and_what_was_lost_put_back(seed, colours, size):
    start, x, noise = pictures(seed, (2, colours, 9, 7))
    y = start + size * (noise - 0.5)
    kept = keep_pixels(y, start, x)
    low, high = torch.minimum(y, y + x - start), torch.maximum(y, y + x - start)
    assert (kept >= low.clamp(0, 1) - 1e-6).all()
    assert (kept <= high.clamp(0, 1) + 1e-6).all()


@given(st.integers(0, 10_000))
def test_where_nothing_has_changed_the_input_stays_bit_for_bit(seed):
    start, x, _ = pictures(seed)
    assert torch.equal(keep_pixels(start, start, x), x)
    y = start.clone()
    y[:, :, 4:7, 5:8] += 1.0
    kept = keep_pixels(y, start, x)
    near = torch.zeros(12, 15, dtype=torch.bool)
    near[2:9, 3:10] = True
    assert torch.equal(kept[:, :, ~near], x[:, :, ~near]), "two pixels around the change"
    assert (kept != x)[:, :, near].double().mean() > 0.9
    decoded = y.clamp(0, 1)[:, :, 4:7, 5:8]
    torch.testing.assert_close(kept[:, :, 4:7, 5:8], decoded, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("change", "share"), [(1.2, 0.0), (1.0, 0.0), (0.5, 0.5), (0.2, 0.8)])
def test_the_more_a_pixel_changes_the_less_is_put_back(change, share):
    """A change is given as a share of that from which on nothing is put back."""
    start, x, _ = 0.2 + 0.6 * pictures(0)
    y = start + change * MAX_KEPT_CHANGE
    kept = keep_pixels(y, start, x)
    expected = y + share * (x - start)
    torch.testing.assert_close(kept, expected.clamp(0, 1), rtol=0, atol=1e-5)


def test_change_is_that_of_all_colours():
    start, x, _ = 0.2 + 0.6 * pictures(0)
    y = start.clone()
    y[:, 1] += 0.6 * MAX_KEPT_CHANGE
    kept = keep_pixels(y, start, x)
    torch.testing.assert_close(kept, (y + 0.8 * (x - start)).clamp(0, 1), rtol=0, atol=1e-5)


def test_kept_pixels_have_the_precision_of_the_decoded_ones():
    start, x, y = pictures(0)
    assert keep_pixels(y.half(), start, x.double()).dtype == torch.half
    assert torch.equal(keep_pixels(y, start, x), keep_pixels(y, start, x.double()))
