import torch

from leapfactual.data import squares


def test_squares_are_what_the_paper_says():
    z, y = squares.sample(4000)
    r = z - squares.centres(y)
    assert r.abs().max() < 0.25
    assert squares.centres(y).abs().unique().tolist() == [0.25]
    assert y.bincount().tolist() == [1000] * 4
    assert torch.equal(squares.quadrant(z).argmax(1), y)
    assert torch.equal(squares.sample(8, seed=3)[0], squares.sample(8, seed=3)[0])
