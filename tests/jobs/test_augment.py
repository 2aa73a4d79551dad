"""Counterfactuals as training data: what is kept, what is not, and why."""

import csv
import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

import leapfactual as lf
from leapfactual.cli import app
from leapfactual.data import open_images, open_table
from leapfactual.errors import InputError
from leapfactual.jobs import augment
from leapfactual.jobs.augment import Filters, augment_all, folder_names
from leapfactual.jobs.job import Job

PLAN = (lf.blend(3, 0.4), lf.inject(1, 0.0, 0.2))
CLASSIFIER = "from leapfactual.pretrained import load\n{} = load().{}\n"


@pytest.fixture
def job(shipped, folder):
    pairs = [(row, k) for row in range(12) for k in (2, 7)]
    return Job(
        bundle=shipped.bundle,
        classifier=shipped.classifier,
        images=open_images(folder),
        pairs=pairs,
        plan=PLAN,
    )


def manifest(out):
    with (out / "manifest.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_folder_is_a_data_set(job, shipped, tmp_path):
    summary = augment_all(job, tmp_path / "more")
    found = open_images(tmp_path / "more")
    assert found.classes == ("2", "7")
    assert len(found) == sum(summary["kept"].values())
    lines = manifest(tmp_path / "more")
    assert len(lines) == 24
    assert {line["class"] for line in lines} == {"2", "7"}
    for line in lines:
        assert (tmp_path / "more" / line["class"] / line["file"]).exists() == (
            line["kept"] == "True"
        )
    with torch.no_grad():
        said = shipped.classifier(found[list(range(len(found)))]).argmax(1)
    wanted = torch.tensor([2, 7])[found.labels]
    assert (said == wanted).double().mean() > 0.9
    assert not (tmp_path / "more" / "parts").exists()


def test_filters_leave_out_and_give_the_reason(job, shipped, tmp_path):
    loose = augment_all(job, tmp_path / "all", Filters(valid=False))
    assert loose["kept"] == loose["made"]
    typical = augment_all(job, tmp_path / "typical", Filters(typical=60))
    lines = manifest(tmp_path / "typical")
    assert {line["reason"] for line in lines} >= {"", "not typical"}
    for line in lines:
        assert line["kept"] == str(float(line["typicality"]) >= 60 and line["reason"] == "")
    assert typical["left out"]["not typical"] == sum(x["reason"] == "not typical" for x in lines)

    def contrary(x):
        return torch.eye(10)[torch.full((len(x),), 7)]

    agreed = augment_all(job, tmp_path / "agreed", Filters(oracles=[shipped.oracle, contrary]))
    assert agreed["kept"]["2"] == 0
    assert 0 < agreed["kept"]["7"] <= agreed["made"]["7"]
    assert not (tmp_path / "agreed" / "2").exists()
    with pytest.raises(InputError, match="another job, which differs in its oracles"):
        augment_all(job, tmp_path / "agreed", Filters(oracles=[contrary, shipped.oracle]))


def test_an_interrupted_run_resumes_to_the_same(job, tmp_path, monkeypatch):
    monkeypatch.setattr(augment, "PAIRS_PER_PIECE", 8)
    asked = []

    def classifier(x):
        return job.classifier(x)

    def tired(x):
        asked.append(len(x))
        if sum(asked) > 150:
            raise KeyboardInterrupt
        return job.classifier(x)

    with pytest.raises(KeyboardInterrupt):
        augment_all(replace(job, classifier=tired), tmp_path / "out")
    done = list((tmp_path / "out" / "parts").iterdir())
    assert 0 < len(done) < 3
    augment_all(replace(job, classifier=classifier), tmp_path / "out")
    augment_all(replace(job, classifier=classifier), tmp_path / "whole")
    assert manifest(tmp_path / "out") == manifest(tmp_path / "whole")
    (tmp_path / "out" / "parts").mkdir()
    again = augment_all(replace(job, classifier=classifier), tmp_path / "out")
    assert not (tmp_path / "out" / "parts").exists()
    assert again == json.loads((tmp_path / "out" / "summary.json").read_text())
    with pytest.raises(InputError, match="another job"):
        augment_all(job, tmp_path / "out", Filters(typical=10))


def test_stretched_images_are_written_as_they_were(job, shipped, tmp_path):
    images = job.images.stretched("sqrt")
    made = replace(job, images=images, pairs=[(0, 7)], force=True)
    augment_all(made, tmp_path / "out", Filters(valid=False))
    explainer = shipped.bundle.explainer(shipped.classifier, plan=PLAN)
    found = explainer.explain(images[[0]], 7).counterfactual.square()
    written = open_images(tmp_path / "out")[[0]]
    torch.testing.assert_close(written, found, rtol=0, atol=3e-3)


def test_what_cannot_be_is_refused(job, shipped, tmp_path):
    with pytest.raises(InputError, match="nothing to make"):
        augment_all(replace(job, pairs=[]), tmp_path / "out")
    with pytest.raises(InputError, match="percent"):
        Filters(typical=120)
    (tmp_path / "t.csv").write_text("a,b,class\n1,2,x\n3,4,y\n")
    with pytest.raises(InputError, match="rows of a table"):
        augment_all(replace(job, images=open_table(tmp_path / "t.csv")), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_class_names_become_folders_that_differ():
    names = ["a/b", "a b", "..", "spiral"]
    assert folder_names(names) == ["a_b-0", "a_b-1", "class", "spiral"]
    assert folder_names(["a/b", "a b", "a_b-0"]) == ["a_b-0", "a_b-1", "a_b-0-2"]
    assert folder_names(["Cat", "cat", "dog"]) == ["Cat-0", "cat-1", "dog"]


def test_a_class_may_be_called_as_a_file_of_the_job(job, tmp_path):
    names = ("0", "1", "parts", *"345678", "job.json")
    made = augment_all(
        replace(job, bundle=replace(job.bundle, classes=names), pairs=[(0, 2), (1, 9)]),
        tmp_path / "out",
        Filters(valid=False),
    )
    assert made["kept"]["parts"] == made["kept"]["job.json"] == 1
    assert open_images(tmp_path / "out").classes == ("job.json-9", "parts-2")


def test_the_command(shipped, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shipped.bundle.save(tmp_path / "bundle")
    (tmp_path / "mine.py").write_text(
        CLASSIFIER.format("explained", "classifier") + "oracle = load().oracle\n"
    )
    words = [
        "augment",
        "bundle",
        str(folder),
        "--classifier",
        "mine.py:explained",
        "--out",
        "more",
    ]
    options = ["--to", "3,5", "--oracle", "mine.py:oracle", "--share", "0.5", "--fast", "--json"]
    done = CliRunner().invoke(app, [*words, *options])
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert summary["made"]["3"] + summary["made"]["5"] == sum(summary["made"].values())
    assert open_images(tmp_path / "more").classes == ("3", "5")
    refused = CliRunner().invoke(app, [*words, "--rare", "--to", "3"])
    assert isinstance(refused.exception, InputError)


@pytest.mark.parametrize("damage", ["[{", "\0\0", "[]", "{}", "5"])
def test_damaged_pieces_and_summaries_are_named_and_made_again(job, tmp_path, monkeypatch, damage):
    monkeypatch.setattr(augment, "PAIRS_PER_PIECE", 8)
    out, said = tmp_path / "out", []
    expected = augment_all(job, tmp_path / "whole")

    def stop(share, *_):
        if share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        augment_all(job, out, on_progress=stop)
    (out / "parts" / "00000000.json").write_text(damage)
    assert augment_all(job, out, log=said.append) == expected
    assert said == [f"{out}/parts/00000000.json is damaged, and is made again."]
    (out / "summary.json").write_bytes(damage.encode())
    assert augment_all(job, out, log=said.append) == expected
    assert said[1:] == [f"{out}/summary.json is damaged, and is made again."]
    assert augment_all(job, out, log=said.append) == expected
    assert len(said) == 2
