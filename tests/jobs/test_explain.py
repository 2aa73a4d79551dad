"""The job of explaining many images: resumable, flat in memory, safe."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image

import leapfactual as lf
from leapfactual.data import open_images, open_table
from leapfactual.errors import InputError, MissingData
from leapfactual.jobs import explain as explaining
from leapfactual.jobs.explain import Job, all_pairs, explain_all, listed_pairs, target_named
from leapfactual.pretrained import load

PLAN = (lf.blend(15, 0.2),)


@pytest.fixture(scope="module")
def shipped():
    return load()


@pytest.fixture(scope="module")
def digits(tmp_path_factory, shipped):
    folder = tmp_path_factory.mktemp("digits")
    for n in range(24):
        pixels = (shipped.digits.images[n, 0] * 255).round().byte().numpy()
        Image.fromarray(pixels).save(folder / f"digit {n}.png")
    return open_images(folder)


def job(shipped, digits, **changes):
    arguments = {
        "bundle": shipped.bundle,
        "classifier": shipped.classifier,
        "images": digits,
        "pairs": [(row, 3) for row in range(len(digits))],
        "plan": PLAN,
        "shown": 5,
        **changes,
    }
    return Job(**arguments)


def test_it_writes_pictures_tables_and_a_page(shipped, digits, tmp_path):
    out = tmp_path / "out"
    reliable = (lf.blend(15, 0.2), lf.inject(2, lift=0.0, land=0.1))
    summary = explain_all(job(shipped, digits, reliable=reliable), out)
    assert summary["count"] == 24
    assert sum(summary["counterfactual"]["status"].values()) == 24
    results = json.loads((out / "results.json").read_text())
    assert [row["name"] for row in results["rows"]] == digits.names
    first = results["rows"][0]
    assert first["target"] == "3"
    assert first["reliable"]["status"] in ("reached", "already there")
    for folder in ("counterfactuals", "changes", "reliable"):
        assert len(list((out / folder).glob("*.png"))) == 24
        with Image.open(out / folder / f"{first['file']}.png") as image:
            assert image.size == (28, 28)
    assert len(list((out / "animations").glob("*.webp"))) == 5
    with (out / "results.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 24
    assert float(lines[0]["reliable L1"]) == pytest.approx(first["reliable"]["L1"])
    page = (out / "index.html").read_text()
    assert page.count('"strip":"data:image/png') == 5
    assert not (out / "parts").exists()


def test_the_pictures_are_the_counterfactuals(shipped, digits, tmp_path):
    out = tmp_path / "out"
    explain_all(job(shipped, digits, pairs=[(4, 7)]), out)
    explainer = shipped.bundle.explainer(shipped.classifier, plan=PLAN)
    found = explainer.explain(digits[[4]], 7)
    (path,) = (out / "counterfactuals").iterdir()
    (expected,) = found.pictures()
    with Image.open(path) as image:
        assert image.tobytes() == expected.tobytes()


def test_what_is_done_is_not_done_again(shipped, digits, tmp_path, monkeypatch):
    monkeypatch.setattr(explaining, "PIECE", 8)
    out, asked = tmp_path / "out", []

    def classifier(x):
        asked.append(len(x))
        if sum(asked) > 400:
            raise KeyboardInterrupt
        return shipped.classifier(x)

    def same(x):
        return shipped.classifier(x)

    with pytest.raises(KeyboardInterrupt):
        explain_all(job(shipped, digits, classifier=classifier), out)
    done = sorted(path.name for path in (out / "parts").iterdir())
    assert 0 < len(done) < 3
    stamps = {name: (out / "parts" / name).stat().st_mtime_ns for name in done}
    calls = []
    explain_all(
        job(shipped, digits, classifier=same),
        out,
        lambda *_: calls.append(
            {n: (out / "parts" / n).stat().st_mtime_ns for n in done if (out / "parts").exists()}
        ),
    )
    assert calls[0] == stamps
    rows = json.loads((out / "results.json").read_text())["rows"]
    whole = tmp_path / "whole"
    explain_all(job(shipped, digits, classifier=same), whole)
    expected = json.loads((whole / "results.json").read_text())["rows"]
    for row in (*rows, *expected):
        del row["milliseconds"]
    assert rows == expected


def test_a_finished_job_is_found_and_another_is_refused(shipped, digits, tmp_path):
    out = tmp_path / "out"
    few = {"pairs": [(0, 3), (1, 4)]}
    first = explain_all(job(shipped, digits, **few), out)
    stamp = (out / "results.json").stat().st_mtime_ns
    assert explain_all(job(shipped, digits, **few), out) == first
    assert (out / "results.json").stat().st_mtime_ns == stamp
    with pytest.raises(InputError, match="results of another job: its plan differ"):
        explain_all(job(shipped, digits, **few, plan=(lf.blend(3, 0.1),)), out)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match="there is something at .*mine already"):
        explain_all(job(shipped, digits), tmp_path / "mine")
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.tex"]
    with pytest.raises(InputError, match="there is no image to explain"):
        explain_all(job(shipped, digits, pairs=[]), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_kill_in_the_middle_loses_nothing(tmp_path):
    """Kills a real process with SIGKILL, runs it again, and compares with an undisturbed run."""
    script = tmp_path / "run.py"
    script.write_text(
        "import sys, torch, time\n"
        "import leapfactual as lf\n"
        "from leapfactual import explaining\n"
        "from leapfactual.data import Table\n"
        "from leapfactual.pretrained import load\n"
        "torch.set_num_threads(1)\n"
        "explaining.PIECE = 10\n"
        "s = load()\n"
        "class Digits:\n"
        "    names = [f'{n}.png' for n in range(200)]\n"
        "    def __getitem__(self, rows): return s.digits.images[rows]\n"
        "def slow(x):\n"
        "    time.sleep(float(sys.argv[2]))\n"
        "    return s.classifier(x)\n"
        "pairs = [(n, n % 10) for n in range(200)]\n"
        "job = explaining.Job(s.bundle, slow, Digits(), pairs, (lf.blend(8, 0.4),), shown=3)\n"
        "explaining.explain_all(job, sys.argv[1])\n"
    )
    out = tmp_path / "out"
    with subprocess.Popen([sys.executable, str(script), str(out), "0.03"]) as process:
        deadline = time.monotonic() + 60
        while len(list(out.glob("parts/*.json"))) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
    left = {p.name: p.stat().st_mtime_ns for p in out.glob("parts/0*.json")}
    assert 3 <= len(left) < 20
    assert not (out / "results.json").exists()
    subprocess.run([sys.executable, str(script), str(out), "0"], check=True)
    rows = json.loads((out / "results.json").read_text())["rows"]
    assert [row["name"] for row in rows] == [f"{n}.png" for n in range(200)]
    assert len(list((out / "counterfactuals").iterdir())) == 200


def test_classes_are_found_by_name_with_a_suggestion():
    assert target_named("spiral", ("edge-on", "spiral")) == 1
    with pytest.raises(InputError, match="`sprial` is none of the classes. Did you mean `spiral`"):
        target_named("sprial", ("edge-on", "spiral"))


def test_every_target_but_ones_own():
    assert all_pairs([0, 2], 3) == [(0, 1), (0, 2), (1, 0), (1, 1)]


def test_targets_from_a_list(digits, tmp_path):
    path = tmp_path / "targets.csv"
    path.write_text("image,target\ndigit 3.png,9\ndigit 3.png,1\n")
    row = [Path(name).name for name in digits.names].index("digit 3.png")
    assert listed_pairs(path, digits, list("0123456789")) == [(row, 9), (row, 1)]
    for text, message in (
        ("image,target\ndigit 99.png,9\n", "there is no such image. Did you mean `digit"),
        ("image,target\ndigit 3.png,ten\n", "`ten` is none of the classes"),
        ("picture,class\n", "must have the columns `image` and `target`"),
        ("image,target\n", "names no image"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            listed_pairs(path, digits, list("0123456789"))
    with pytest.raises(MissingData, match="no list of targets"):
        listed_pairs(tmp_path / "no.csv", digits, "ab")


def test_rows_of_a_table_get_a_page_without_pictures(tmp_path):
    rng = torch.Generator().manual_seed(0)
    values = torch.randn(40, 2, generator=rng) + torch.tensor([[3.0, 0.0]])
    lines = "\n".join(f"{a:.4f},{b:.4f}" for a, b in values.tolist())
    (tmp_path / "t.csv").write_text(f"width,height\n{lines}\n")
    table = open_table(tmp_path / "t.csv")
    standard = lf.generators.Standardized.of(table.rows)

    def classifier(x):
        return torch.nn.functional.one_hot((x[:, 0] > 3).long(), 2).float()

    flow = lf.Flow(lf.MLPField(2, 2, width=32))
    z, p = lf.embed(table, standard, classifier)
    lf.fit(flow, z, p, epochs=20, batch_size=16)
    bundle = lf.Bundle.make(
        standard,
        flow,
        classifier,
        table.rows,
        classes=["narrow", "wide"],
        plan=[lf.blend(8, 0.4)],
        training={"columns": ["width", "height"], "spread": [1.0, 1.0]},
    )
    pairs = [(row, 1) for row in range(6)]
    explain_all(Job(bundle, classifier, table, pairs, bundle.plan), tmp_path / "out")
    page = (tmp_path / "out" / "index.html").read_text()
    assert '"kind":"rows"' in page
    assert '"columns":["width","height"]' in page
    assert "data:image/png" not in page.split('id="data"')[1]
    assert not (tmp_path / "out" / "counterfactuals").exists()
