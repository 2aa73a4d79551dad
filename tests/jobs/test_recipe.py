"""The recipe of a fit: its settings, its budget, its files and the images it learns from."""

import json

import pytest
import torch

from leapfactual.errors import InputError
from leapfactual.jobs.recipe import (
    CPU_AUTOENCODER_SHARE,
    CPU_PLAN_SHARE,
    FLOW_SHARE,
    GPU_AUTOENCODER_SHARE,
    GPU_PLAN_SHARE,
    ORACLE_SHARE,
    TRY_SHARE,
    Recipe,
    balance,
    orbits,
    split,
)
from leapfactual.training.augmentation import d4_orbit
from leapfactual.training.loop import Epoch

from .conftest import Digits, Squares, part_of, run_of


def test_images_without_an_up_are_augmented_with_all_rotations():
    part = part_of(Digits(60))
    assert sum(len(batch) for batch in orbits(part, d4_orbit)) == 8 * 60


def test_an_unknown_generator_is_named():
    with pytest.raises(InputError, match="must be one of auto, vae, wae, spatial, got 'gan'"):
        Recipe(generator="gan")


def test_plans_are_tried_on_images_of_all_classes_though_folders_stand_in_order():
    digits = Digits()
    order = digits.labels.argsort(stable=True)
    digits.x, digits.labels = digits.x[order], digits.labels[order]
    _, held_out = split(digits, 0, "cpu")
    rows = (held_out[:, None] == digits.x[None]).flatten(2).all(2).int().argmax(1)
    assert len(held_out) == 60
    assert len(set(digits.labels[rows[:30]].tolist())) >= 8


def test_one_class_alone_is_refused_and_few_images_of_a_class_are_named(tmp_path):
    said = []
    run = run_of(tmp_path, said.append)
    p = torch.eye(2)[[0] * 90 + [1]]
    with pytest.raises(InputError, match="one class, red, to all of 90 .* at least 50 of each"):
        balance(run, p[:90], Squares.classes)
    assert balance(run, p, Squares.classes)
    assert said == [
        "Few images to learn a class from: blue 1. Below 50, expect counterfactuals of it to be "
        "rare and all alike.",
        "The classes are uneven (blue is rare), so each is drawn equally often.",
    ]


def test_epochs_remember_what_was_spent(tmp_path):
    run = run_of(tmp_path, minutes=1.0)
    run.training("training")["on_epoch"](Epoch(1, 2, 0.0, 0.0))
    assert 0 < json.loads(run.budget.path.read_text())["spent"] < 60


@pytest.mark.parametrize(
    ("autoencoder", "plans"),
    [(GPU_AUTOENCODER_SHARE, GPU_PLAN_SHARE), (CPU_AUTOENCODER_SHARE, CPU_PLAN_SHARE)],
)
def test_shares_of_the_time_leave_a_flow_on_maps_no_less_than_one_on_rows(autoencoder, plans):
    shares = TRY_SHARE, autoencoder, ORACLE_SHARE, plans
    assert 1 - sum(shares) >= FLOW_SHARE
