"""The picture of images beside their reconstructions, class by class."""

import numpy as np
import torch

from leapfactual.report.reconstructions import (
    FRAME,
    GAP,
    MAX_PAIRS,
    TEXT_WIDTH,
    draw_reconstructions,
)

SIDE = 12 * 4
RED = (214, 39, 40)


def pixels(before, after):
    x = torch.rand(len(before), 1, 12, 12)
    classes = ("a cat", "a dog", "nothing")
    sheet = draw_reconstructions(x, 1 - x, torch.tensor(before), torch.tensor(after), classes)
    return x, np.asarray(sheet)


def panel(sheet, line, column):
    """A panel without its frame, and whether that is red; images and reconstructions by turns."""
    top = GAP + line * (SIDE + 2 * FRAME + GAP)
    pair = 2 * (SIDE + 2 * FRAME) + 3 * GAP
    left = TEXT_WIDTH + column // 2 * pair + column % 2 * (SIDE + 2 * FRAME)
    inside = sheet[top + FRAME :, left + FRAME :][:SIDE, :SIDE]
    return inside, tuple(sheet[top, left]) == RED


def test_the_least_recognized_class_is_first_and_its_lost_images_are_framed():
    x, sheet = pixels([0, 0, 1, 1, 1], [0, 0, 1, 0, 1])
    assert [panel(sheet, 0, n)[1] for n in range(6)] == [False, True] + 4 * [False]
    assert not any(panel(sheet, 1, n)[1] for n in range(4))
    for column, expected in ((0, x[3, 0]), (1, 1 - x[3, 0])):
        found = panel(sheet, 0, column)[0][2::4, 2::4, 0] / 255
        np.testing.assert_allclose(found, expected.numpy(), atol=0.003)
    height = GAP + 2 * (SIDE + 2 * FRAME + GAP)
    assert sheet.shape[0] == height, "a class without images has no row"


def test_a_row_shows_six_images_at_most():
    _, sheet = pixels([2] * 9, [2] * 9)
    last = panel(sheet, 0, 2 * MAX_PAIRS - 1)[0]
    assert last.shape == (SIDE, SIDE, 3)
    assert last.std() > 10


def test_large_images_are_made_smaller_whatever_their_shape():
    x = torch.rand(3, 3, 200, 100)
    y = torch.zeros(3).long()
    sheet = draw_reconstructions(x, x, y, y, ["leaf"])
    assert sheet.size == (TEXT_WIDTH + 6 * (2 * (48 + 6) + 12), GAP + 96 + 6 + GAP)
