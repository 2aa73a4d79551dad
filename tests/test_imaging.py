import torch
from PIL import Image

from leapfactual.imaging import grid, save_grid


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
