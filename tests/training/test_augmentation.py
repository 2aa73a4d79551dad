"""Rotated and mirrored images keep what is in them."""

import torch

from leapfactual.training.augmentation import d4_orbit, random_d4, random_mirror, random_rotation


def test_the_orbit_of_d4_has_eight_images_and_nothing_is_lost():
    x = torch.rand(1, 2, 5, 5)
    orbit = list(d4_orbit(x))
    assert len({tuple(y.flatten().tolist()) for y in orbit}) == 8
    for y in orbit:
        assert torch.equal(y.flatten().sort().values, x.flatten().sort().values)
    draws = [random_d4(x, torch.Generator().manual_seed(n)) for n in range(50)]
    assert {tuple(d.flatten().tolist()) for d in draws} == {
        tuple(y.flatten().tolist()) for y in orbit
    }


def test_rotation_keeps_what_is_in_the_middle():
    x = torch.zeros(200, 1, 33, 33)
    x[:, :, 15:18, 8:25] = 1.0
    found = random_rotation(x, torch.Generator().manual_seed(0))
    assert (found[:, 0, 16, 16] > 0.9).all()
    torch.testing.assert_close(found.sum((1, 2, 3)), x.sum((1, 2, 3)), rtol=0.1, atol=0)
    mean = found.mean(0)[0]
    torch.testing.assert_close(mean, mean.T, rtol=0, atol=0.06)


def test_rotation_mirrors_half_of_them():
    x = torch.zeros(400, 1, 65, 65)
    x[:, :, 32, 32:60] = 1.0
    x[:, :, 4:33, 58] = 0.5
    found = random_rotation(x, torch.Generator().manual_seed(0))[:, 0]
    line = torch.linspace(-1, 1, 65)
    weight = found / found.sum((1, 2), keepdim=True)
    bright, faint = weight * (found > 0.75), weight * ((found < 0.75) & (found > 0.2))
    where = [
        torch.stack([(part * line[:, None]).sum((1, 2)), (part * line).sum((1, 2))], 1)
        for part in (bright, faint)
    ]
    side = where[0][:, 0] * where[1][:, 1] - where[0][:, 1] * where[1][:, 0]
    assert 0.4 < (side > 0).double().mean() < 0.6


def test_each_image_is_mirrored_or_not_by_itself():
    x = torch.rand(400, 1, 3, 5)
    found = random_mirror(x, torch.Generator().manual_seed(0))
    mirrored = (found == x.flip(3)).flatten(1).all(1)
    assert 0.4 < mirrored.double().mean() < 0.6
    assert torch.equal(found[~mirrored], x[~mirrored])
