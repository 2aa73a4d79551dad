import pytest
import torch

import leapfactual as lf
from leapfactual.data import squares
from leapfactual.errors import InputError
from leapfactual.generators import Identity
from leapfactual.jobs.consistency import Agreement

X, Y = squares.sample(400)


class Distorting(Identity):
    def __init__(self, change):
        self.change = change

    def decode(self, z):
        return self.change(z)


def test_a_perfect_pair():
    found = lf.agreement(X, Identity(), squares.quadrant)
    assert found.overall == 1
    assert found.per_class.tolist() == [1] * 4
    assert found.count.tolist() == [100] * 4
    assert found.error.tolist() == [0] * 4
    assert found.advice.startswith("good")


def test_counts_by_hand_and_does_not_depend_on_batches():
    """Mirroring swaps two pairs of classes: nothing agrees, and the error is the mirror's."""
    mirror = Distorting(lambda z: z * torch.tensor([-1.0, 1.0]))
    found = lf.agreement(X, mirror, squares.quadrant, batch_size=7)
    assert found.overall == 0
    assert found.confusion[0, 2] == 100
    expected = (2 * X[Y == 0][:, 0]).abs().mean() / 2
    assert found.error[0].item() == pytest.approx(expected.item(), rel=1e-5)
    assert "does not recognize 100% of reconstructions" in found.advice


def test_a_classifier_that_gives_one_class_to_every_reconstruction():
    """The case of the radio galaxies: a faint floor is enough."""
    floor = Distorting(lambda z: z * 0 - 0.1)
    found = lf.agreement(X, floor, squares.quadrant)
    assert found.overall == 0.25
    assert "gives class 0 to nearly every reconstruction" in found.advice
    assert "stretch" in found.advice


def test_one_weak_class_is_named():
    def lose_some(z):
        red = (z > 0).all(1) & (torch.arange(len(z)) % 8 < 4)
        return torch.where(red[:, None], -z, z)

    found = lf.agreement(X, Distorting(lose_some), squares.quadrant, batch_size=400)
    assert found.per_class[:3].tolist() == [1, 1, 1]
    assert found.per_class[3] < 0.8
    assert "class 3" in found.advice


def test_no_images_and_wrong_answers_are_named():
    with pytest.raises(InputError, match="at least one image"):
        lf.agreement(X[:0], Identity(), squares.quadrant)
    with pytest.raises(InputError, match=r"must give \(400, 2\) back, got \(1, 2\)"):
        lf.agreement(X, Distorting(lambda z: z[:1]), squares.quadrant, batch_size=400)


def test_imbalanced_data_are_not_taken_for_a_collapse():
    found = Agreement(torch.tensor([[900.0, 20.0], [60.0, 20.0]]), torch.zeros(2))
    assert "nearly every" not in found.advice
    assert "class 1" in found.advice
    assert found.to_json() == {
        "overall": pytest.approx(0.92),
        "per_class": [0.9783, 0.25],
        "images": 1000,
    }
