"""Checks at the public edge: targets by number and by name."""

import pytest
import torch

from leapfactual import checks
from leapfactual.errors import InputError

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
