"""The recipe of a fit: its settings, its budget, its files and the images it learns from."""

import json
import time
from pathlib import Path

import pytest
import torch

from leapfactual import Flow, MLPField
from leapfactual.errors import InputError
from leapfactual.files import write_safetensors
from leapfactual.jobs.recipe import (
    CPU_AUTOENCODER_SHARE,
    CPU_PLAN_SHARE,
    FLOW_SHARE,
    GPU_AUTOENCODER_SHARE,
    GPU_PLAN_SHARE,
    ORACLE_SHARE,
    TRY_SHARE,
    Recipe,
    Run,
    balance,
    fit_scale,
    orbits,
    split,
)
from leapfactual.training.augmentation import d4_orbit
from leapfactual.training.loop import Epoch
from leapfactual.types import no_op

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


def test_a_fit_that_waits_for_its_classifier_is_heard_of(tmp_path, svm, small_digits):
    heard = []
    run = Run.begin(
        Recipe(), tmp_path, svm, "cpu", lambda _: None, lambda *told: heard.append(told[1])
    )
    with run.stage("check"):
        run.queries(small_digits.x[:4])
    assert heard == ["check"]


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


def test_what_is_left_is_kept_with_every_epoch_and_stage(tmp_path):
    run = run_of(tmp_path)
    run.stages.expect({"generator": 10.0, "flow": 20.0, "plan": 5.0})
    with run.stage("first look"):
        pass
    assert run.budget.expected_left is None
    with run.stage("generator"):
        run.training("training")["on_epoch"](Epoch(1, 4, 0.0, 0.0))
        kept = json.loads(run.budget.path.read_text())
        assert kept["expected left"] == pytest.approx(32.5, abs=1)
    with run.stage("check"):
        pass
    kept = json.loads(run.budget.path.read_text())
    assert kept["expected left"] == pytest.approx(25)


def test_a_fit_that_is_killed_while_it_tidies_up_is_over(tmp_path, monkeypatch):
    work = tmp_path / "bundle.fit"
    run = Run.begin(Recipe(), work, None, "cpu", print, print)
    (work / ".bundle.x").mkdir(parents=True)
    run.checkpoint("flow").write_text("")

    unlink = Path.unlink

    def kill(path, missing_ok=False):
        if path.suffix == ".safetensors":
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", kill)
    with pytest.raises(KeyboardInterrupt):
        run.end(tmp_path / "answers.db")
    monkeypatch.undo()
    assert {path.suffix for path in work.iterdir()} >= {".safetensors", ".json"}
    again = Run.begin(Recipe(), work, None, "cpu", print, print)
    assert not work.exists()
    assert not again.budget.kept


def test_where_answers_cannot_be_kept_a_fit_ends_all_the_same(tmp_path):
    work, said = tmp_path / "bundle.fit", []
    (tmp_path / "file").write_text("no folder")

    def slow(x):
        time.sleep(0.002 * len(x))
        return torch.eye(2)[(x.mean((1, 2, 3)) > 0.5).long()]

    run = Run.begin(Recipe(), work, slow, "cpu", said.append, print)
    run.queries.begin(torch.rand(64, 1, 4, 4))
    run.end(tmp_path / "file" / "answers.db")
    assert "cannot be kept" in said[-1]
    assert not work.exists()


def test_the_scale_of_typicality_is_kept_class_by_class(tmp_path):
    torch.manual_seed(0)
    flow = Flow(MLPField(2, 3, width=8, depth=2))
    z, p = torch.randn(60, 2), torch.eye(3)[torch.arange(60) % 2]
    flow.fit_typicality(z, p, 20)
    expected = flow.quantiles.clone()
    for _ in range(2):
        fit_scale(run_of(tmp_path), flow, z, p, 20)
        torch.testing.assert_close(flow.quantiles, expected, rtol=0, atol=0, equal_nan=True)
        flow.fit_typicality = lambda *_: pytest.fail("measured again")
    del flow.fit_typicality
    other = Flow(MLPField(2, 3, width=8, depth=2))
    fit_scale(run_of(tmp_path), other, z, p, 20)
    assert not torch.equal(other.quantiles[:2], expected[:2])


def test_damaged_parts_of_a_fit_are_named_and_made_again(tmp_path):
    said, recipe = [], Recipe()
    before = Run.begin(recipe, tmp_path, None, "cpu", said.append, no_op)
    before.budget.save()
    write_safetensors({"x": torch.ones(9)}, before.checkpoint("flow"), {"format": "any"})
    (tmp_path / "walks.jsonl").write_text("{}\n[")
    parts = {path: path.read_bytes() for path in tmp_path.iterdir()}
    # What a kill leaves of a file that was being written was never a part.
    (tmp_path / f".flow.safetensors.{'0' * 32}.safetensors").write_text("cut o")
    Run.begin(recipe, tmp_path, None, "cpu", said.append, no_op)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == parts
    assert not said
    for path, content in parts.items():
        path.write_bytes(b"\xff" + content[: len(content) // 2])
    run = Run.begin(recipe, tmp_path, None, "cpu", said.append, no_op)
    assert not list(tmp_path.iterdir())
    assert said == [f"{path} is damaged, and is made again." for path in sorted(parts)]
    assert run.budget.spent < 1


def test_a_folder_with_what_no_fit_has_written_is_left_alone(tmp_path):
    (tmp_path / "settings.json").write_text("// mine\n{}")
    with pytest.raises(InputError, match=r"until it is over, but it holds settings\.json"):
        Run.begin(Recipe(), tmp_path, None, "cpu", no_op, no_op)
    assert (tmp_path / "settings.json").exists()
