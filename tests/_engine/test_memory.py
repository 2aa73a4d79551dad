"""Smaller batches, where a device runs out of memory."""

import pytest
import torch

import leapfactual as lf
from leapfactual._engine.memory import in_halves
from leapfactual.generators import Identity
from leapfactual.jobs.consistency import agreement


class Small:
    """A device with room for so many rows."""

    def __init__(self, room):
        self.room, self.sizes = room, []

    def __call__(self, x, y=0):
        self.sizes.append(len(x))
        if len(x) > self.room:
            raise torch.OutOfMemoryError
        return x + y


@pytest.mark.parametrize("room", [1, 3, 10, 11])
def test_halves_give_the_same_as_the_whole_in_the_same_order(room):
    x, y = torch.arange(11), 100 * torch.arange(11)
    device = Small(room)
    assert in_halves(device, x, y).tolist() == (x + y).tolist()
    assert sum(size for size in device.sizes if size <= room) == 11


def test_one_row_that_does_not_fit_is_an_error():
    with pytest.raises(torch.OutOfMemoryError):
        in_halves(Small(0), torch.arange(4))


def test_other_errors_are_not_taken_for_want_of_memory():
    device = Small(9)
    with pytest.raises(RuntimeError):
        in_halves(lambda x: device(x).reshape(7), torch.arange(4))
    assert device.sizes == [4]


def test_embedding_and_agreement_get_along_with_little_memory():
    x, seen = torch.rand(20, 2), Small(6)
    generator = Identity()

    def classifier(x):
        return torch.eye(2)[(seen(x)[:, 0] > 0.5).long()]

    z, p = lf.embed(x, generator, classifier)
    assert torch.equal(z, x)
    assert torch.equal(p.argmax(1), (x[:, 0] > 0.5).long())
    assert agreement(x, generator, classifier).overall == 1
    assert max(seen.sizes) == 20
