"""Checks at the public edge: targets by number and by name."""

import numpy as np
import pytest
import torch

import leapfactual as lf
from leapfactual import checks, generators, masks
from leapfactual.classifiers import from_onnx, load_clip
from leapfactual.data import galaxies, open_images, open_table, read_image
from leapfactual.data.export import export
from leapfactual.errors import InputError
from leapfactual.jobs.labels import read_votes
from leapfactual.pretrained import load
from leapfactual.report import write_page
from tests.jobs.conftest import Digits

NAMES = ("Ankle boot", "Bag", "bag", "T-shirt")
CPU = torch.device("cpu")


def test_classes_are_found_by_name_whatever_their_case():
    assert checks.find_class("ankle BOOT", NAMES) == 0
    assert [checks.find_class(name, NAMES) for name in ("Bag", "bag")] == [1, 2]
    with pytest.raises(InputError, match="`ankle boat` is none .* Did you mean `Ankle boot`"):
        checks.find_class("ankle boat", NAMES)
    with pytest.raises(InputError, match="`BAG` is none of the classes"):
        checks.find_class("BAG", NAMES)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (3, [3, 3]),
        ("t-shirt", [3, 3]),
        (["bag", "Bag"], [2, 1]),
        (torch.tensor([0, 1]), [0, 1]),
    ],
)
def test_targets_are_numbers_or_names_one_for_all_or_one_each(target, expected):
    assert checks.targets(target, 2, 4, CPU, NAMES).tolist() == expected


def test_names_need_an_explainer_that_knows_them():
    with pytest.raises(InputError, match="`target` is 'bag', .* from 0 to 3, or .*classes="):
        checks.targets("bag", 2, 4, CPU)
    with pytest.raises(InputError, match="one class or one per image, here 2"):
        checks.targets(["bag"], 2, 4, CPU, NAMES)
    with pytest.raises(InputError, match="must be a class number or a tensor"):
        checks.targets(["bag", 3], 2, 4, CPU, NAMES)


READERS = (
    *(lf.Bundle.load, lf.Flow.load, lf.Explanation.load, generators.load, open_table, read_image),
    *(galaxies, masks.read, from_onnx, lambda p: generators.from_openvino(p, engine="torch")),
    *(lambda p: load_clip(p, ["a", "b"]), lambda p: read_votes(p, Digits(2))),
)
WRITERS = (
    lambda p: lf.Flow(lf.MLPField(2, 2)).save(p),
    lambda p: generators.save(generators.Identity(), p),
    lambda p: load().bundle.save(p),
    lambda p: write_page(p, [], title="", about="", classes=["a", "b"]),
    lambda p: export("wine", p),
)


@pytest.mark.parametrize("wrong", [5, 0.5, b"a.png", ["a.png"], None, np.zeros(3), "", "a\0b"])
@pytest.mark.parametrize("use", [*READERS, *WRITERS, open_images])
def test_what_is_no_path_is_named(use, wrong, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if use is open_images and isinstance(wrong, list):
        return
    expected = "expected the path of a file or folder, got|images are named by a path"
    with pytest.raises(InputError, match=expected):
        use(wrong)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("use", [*READERS, *WRITERS, open_images])
def test_names_that_no_file_can_have_are_named(use, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="a name of 512 bytes, more than 255"):
        use("photos/" + "ä" * 256)
    with pytest.raises(InputError, match="a path of 6,000 bytes, more than 4,096"):
        use("a/" * 3000)
    assert not any(tmp_path.iterdir())
