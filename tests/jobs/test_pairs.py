"""Which image is to become which class."""

from pathlib import Path

import pytest
import torch

from leapfactual.data import open_images
from leapfactual.errors import InputError, MissingData
from leapfactual.jobs.job import Inputs
from leapfactual.jobs.pairs import (
    all_pairs,
    augmentation_pairs,
    choose_pairs,
    find_sources,
    random_pairs,
    random_targets,
    rare_classes,
    read_pairs,
    sample_pairs,
)


@pytest.fixture(scope="module")
def inputs(shipped, folder):
    return Inputs(shipped.bundle, shipped.classifier, open_images(folder))


def test_sources_are_the_classes_of_reconstructions(inputs, shipped):
    x = inputs.images[list(range(24))]
    generator = shipped.bundle.generator
    with torch.no_grad():
        wanted = shipped.classifier(generator.decode(generator.encode(x))).argmax(1)
        kept = shipped.classifier(x).argmax(1)
    assert find_sources(inputs) == wanted.tolist()
    assert find_sources(inputs, mask=torch.zeros(1, 28, 28)) == kept.tolist()


def test_pairs_of_one_target_of_all_or_of_a_list(inputs, tmp_path):
    assert choose_pairs(inputs, target="7") == [(row, 7) for row in range(24)]
    sources = find_sources(inputs)
    pairs = choose_pairs(inputs, all_targets=True)
    assert len(pairs) == 9 * 24
    assert all(k != sources[row] for row, k in pairs)
    path = tmp_path / "targets.csv"
    path.write_text("image,target\ndigit 3.png,9\n")
    assert choose_pairs(inputs, targets=path) == read_pairs(path, inputs.images, "0123456789")
    for options in ({}, {"target": "7", "all_targets": True}):
        with pytest.raises(InputError, match="in one way: --target CLASS.*classes are 0, 1"):
            choose_pairs(inputs, **options)


def test_every_target_but_ones_own():
    assert all_pairs([0, 2], range(3)) == [(0, 1), (0, 2), (1, 0), (1, 1)]
    assert all_pairs([0, 2], [1, 2]) == [(0, 1), (0, 2), (1, 1)]


def test_a_share_of_pairs_is_drawn_in_order():
    pairs = all_pairs([0] * 50, [0, 1, 2])
    some = sample_pairs(pairs, 0.3, seed=1)
    assert len(some) == 30
    assert some == sorted(some) == sample_pairs(pairs, 0.3, seed=1)
    assert set(some) < set(pairs)
    assert sample_pairs(pairs, 1.0) == pairs
    for share in (0.0, 1.2):
        with pytest.raises(InputError, match="share"):
            sample_pairs(pairs, share)


def test_random_targets_are_other_classes():
    pairs = random_pairs([0, 1, 2] * 50, 3, seed=0)
    assert all(target != row % 3 for row, target in pairs)
    assert {target for _, target in pairs} == {0, 1, 2}
    assert pairs == random_pairs([0, 1, 2] * 50, 3, seed=0)
    source = torch.tensor([0, 1, 2] * 50)
    assert random_targets(source, 3, seed=0).tolist() == [target for _, target in pairs]
    assert not torch.equal(random_targets(source, 3, 0), random_targets(source, 3, 1))


def test_augmentation_makes_named_or_rare_classes(inputs):
    assert rare_classes([0] * 8 + [1, 2], 3) == [1, 2]
    said, sources = [], find_sources(inputs)
    assert augmentation_pairs(inputs, to=["3", "5"]) == all_pairs(sources, [3, 5])
    rare = rare_classes(sources, 10)
    assert augmentation_pairs(inputs, rare=True, log=said.append) == all_pairs(sources, rare)
    assert said == [f"Rare are {', '.join(map(str, rare))}."]
    with pytest.raises(InputError, match="--to or --rare, not both"):
        augmentation_pairs(inputs, to=["3"], rare=True)


def test_targets_from_a_list(inputs, tmp_path):
    digits, path = inputs.images, tmp_path / "targets.csv"
    path.write_text("image,target\ndigit 3.png,9\ndigit 3.png,1\n")
    row = [Path(name).name for name in digits.names].index("digit 3.png")
    assert read_pairs(path, digits, list("0123456789")) == [(row, 9), (row, 1)]
    for text, message in (
        ("image,target\ndigit 99.png,9\n", "there is no such image. Did you mean `digit"),
        ("image,target\ndigit 3.png,ten\n", "`ten` is none of the classes"),
        ("picture,class\n", "must have the columns `image` and `target`"),
        ("image,target\n", "names no image"),
        ("image,target\n\n", "names no image"),
        ("", "must have the columns `image` and `target`, got none"),
        ("image,target\ndigit 3.png\n", "`` is none of the classes"),
        ("image,target\ndigit 3.png,dîner\n", "is no CSV file .*Save it as UTF-8"),
        (f"image,target\n{'9' * 200_000},9\n", "is no CSV file .*field larger"),
    ):
        path.write_text(text, encoding="latin-1")
        with pytest.raises(InputError, match=message):
            read_pairs(path, digits, list("0123456789"))
    with pytest.raises(MissingData, match="no list of targets"):
        read_pairs(tmp_path / "no.csv", digits, "ab")
