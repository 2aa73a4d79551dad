from pathlib import Path

import numpy as np
import pytest
import torch

from leapfactual.errors import InputError
from leapfactual.metrics import morphology, morphometrics, relative_error

REFERENCE = dict(np.load(Path(__file__).parent / "morphometrics.npz"))
DIGITS = torch.tensor(REFERENCE["images"] / 255).float()[:, None]


@pytest.fixture(scope="module")
def measured():
    return morphometrics(DIGITS)


@pytest.mark.parametrize("name", morphology.NAMES)
def test_morphometrics_agree_with_the_authors_implementation(measured, name):
    """The reference breaks ties of the medial axis by chance: hence 2 % for the length."""
    error = (measured[name].numpy() - REFERENCE[name]) / REFERENCE[name]
    tolerance = 0.02 if name == "length" else 0.01
    assert (abs(error) < tolerance).mean() >= 0.95
    assert abs(np.median(error)) < 0.005


def test_a_bar_has_the_measures_of_a_bar():
    x = torch.zeros(1, 1, 28, 28)
    x[..., 4:24, 12:16] = 1
    found = {name: value.item() for name, value in morphometrics(x).items()}
    assert found["area"] == pytest.approx(80, rel=0.03)
    assert found["thickness"] == pytest.approx(4, rel=0.15)
    forks = 16 + 4 * 2 * 2**0.5
    assert found["length"] == pytest.approx(forks, rel=0.15), "the axis forks to the four corners"
    assert found["slant"] == pytest.approx(0, abs=1e-9)
    assert found["height"] == pytest.approx(20, rel=0.05)
    assert 3.9 < found["width"] < 5.5, "with the soft edges of enlarging"


def test_shearing_changes_the_slant_and_keeps_the_height(measured):
    x = torch.zeros(2, 1, 28, 28)
    for y in range(4, 24):
        shift = (y - 14) // 4
        x[0, 0, y, 12 - shift : 16 - shift] = 1
        x[1, 0, y, 12 + shift : 16 + shift] = 1
    found = morphometrics(x)
    assert found["slant"][0].item() == pytest.approx(np.arctan(0.25), abs=0.03)
    assert found["slant"][1].item() == pytest.approx(-np.arctan(0.25), abs=0.03)
    assert found["width"][0].item() < 6, "along the shear; across it would be 9"


def test_medial_axes_agree_with_scikit_image_up_to_ties():
    skimage = pytest.importorskip("skimage.morphology")
    ndimage = pytest.importorskip("scipy.ndimage")
    shapes = morphology.enlarge(DIGITS[:10, 0].double()) >= 0.5
    distance = morphology.border_distance(shapes)
    mask, ours = shapes.numpy(), morphology.thinning(shapes, distance)(0).numpy()
    for n in range(10):
        expected = ndimage.distance_transform_edt(mask[n])
        np.testing.assert_allclose(distance[n], expected, rtol=1e-12)
    for n in range(10):
        theirs = skimage.medial_axis(mask[n], rng=0)
        assert abs(int(ours[n].sum()) - int(theirs.sum())) <= 0.1 * theirs.sum()
        near = ndimage.binary_dilation(theirs, iterations=2)
        assert (ours[n] & ~near).sum() <= 0.05 * ours[n].sum()
        assert (
            ndimage.label(ours[n], np.ones((3, 3)))[1]
            == ndimage.label(mask[n], np.ones((3, 3)))[1]
        )


@pytest.mark.slow
def test_morphometrics_of_a_batch_are_those_of_its_images_and_of_many_workers(
    measured, monkeypatch
):
    monkeypatch.setattr(morphology, "CHUNK_PIXELS", {"cpu": 7 * 28**2})
    for found in (morphometrics(DIGITS[:20]), morphometrics(DIGITS[:20], workers=2)):
        for name in morphology.NAMES:
            torch.testing.assert_close(found[name], measured[name][:20])


def test_images_without_contrast_have_no_measures():
    found = morphometrics(torch.full((2, 1, 28, 28), 0.5))
    assert all(value.isnan().all() for value in found.values())
    assert morphometrics(torch.zeros(0, 1, 28, 28))["area"].shape == (0,)


def test_relative_error_is_absolute():
    true = {name: torch.tensor([-2.0]) for name in morphology.NAMES}
    found = relative_error({name: torch.tensor([-1.0]) for name in morphology.NAMES}, true)
    assert found["slant"].item() == 0.5


def test_colour_has_no_morphometrics():
    with pytest.raises(InputError, match="grey images"):
        morphometrics(torch.rand(1, 3, 28, 28))
