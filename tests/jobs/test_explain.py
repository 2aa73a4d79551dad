"""The job of explaining many images: resumable, in bounded memory, safe."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

import leapfactual as lf
from leapfactual.data import open_images, open_table
from leapfactual.errors import InputError
from leapfactual.jobs import explain
from leapfactual.jobs.explain import MEANS, explain_all
from leapfactual.jobs.job import Job
from leapfactual.pretrained import load

ROOT = Path(__file__).parents[2]
PLAN = (lf.blend(15, 0.2),)


@pytest.fixture(scope="module")
def digits(folder):
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
    assert page.count('"strip":"data:image/webp') == 5
    assert not (out / "parts").exists()
    data = page_data(out)
    assert data["plans"] == [
        ["counterfactual of reliability 0.54", "blend(15, 0.2)"],
        ["reliable counterfactual", "blend(15, 0.2), inject(2, 0, 0.1)"],
    ]
    head, *lines = data["table"]
    assert head == ["all 24", "counterfactual of reliability 0.54", "reliable"]
    counts = {name: cells for name, *cells in lines if not name.startswith("mean")}
    assert all(cell.endswith(" of 24") for cells in counts.values() for cell in cells)
    assert sum(int(cells[0].split()[0]) for cells in counts.values()) == 24
    assert lines[-2][0] == "mean queries"
    assert "recognizes what the generator draws was not measured" in data["about"]
    assert not data["cards"][0]["labels"]


def page_data(out):
    page = (out / "index.html").read_text()
    return json.loads(page.split('id="data">')[1].split("</script>")[0])


def test_the_page_names_the_plans_by_their_reliability(shipped, digits, tmp_path):
    front = [
        lf.leaps.RatedPlan((lf.blend(n, 0.2),), r, {}) for n, r in ((5, 0), (9, 0.3), (15, 1))
    ]
    fast = lf.leaps.RatedPlan((lf.blend(3, 0.3),), 0.5, {})
    bundle = replace(shipped.bundle, front=tuple(front), fast=fast)
    for number, (n, size, name) in enumerate(
        (
            (5, 0.2, "nearest counterfactual"),
            (9, 0.2, "counterfactual of reliability 0.30"),
            (15, 0.2, "reliable counterfactual"),
            (3, 0.3, "fast counterfactual"),
            (7, 0.2, "counterfactual"),
        )
    ):
        out = tmp_path / str(number)
        plan = (lf.blend(n, size),)
        explain_all(job(shipped, digits, bundle=bundle, pairs=[(0, 3)], plan=plan), out)
        assert page_data(out)["plans"] == [[name, f"blend({n}, {size})"]]


@pytest.mark.parametrize(
    ("agreement", "sentence"),
    [
        (
            {"overall": 0.985, "images": 200},
            "Of 200 images held out, the classifier gives 197 the same class as before when the "
            "generator has redrawn them.",
        ),
        ({"overall": 98.5, "images": 9}, "Whether the classifier recognizes what"),
        ({"overall": "all"}, "Whether the classifier recognizes what the generator draws was not"),
        (["odd"], "Whether the classifier recognizes what the generator draws was not"),
    ],
)
def test_the_page_says_whether_the_classifier_recognizes_reconstructions(
    shipped, digits, tmp_path, agreement, sentence
):
    bundle = replace(shipped.bundle, agreement=agreement)
    explain_all(job(shipped, digits, bundle=bundle, pairs=[(0, 3)]), tmp_path / "out")
    assert sentence in page_data(tmp_path / "out")["about"]


def test_means_say_of_how_many_they_are_where_not_of_all():
    tally = explain._Tally()
    for value in (10.0, None, 30.0):
        tally.add(
            {"status": "reached", "L1": 0.5, "typicality": value} | dict.fromkeys(MEANS[2:], 1.0)
        )
    table = tally.table(["nearest"])
    assert table[:2] == [["all 3", "nearest"], ["reached", "3 of 3"]]
    assert table[2:4] == [["mean L1", "0.5"], ["mean typicality", "20 % (2 of 3)"]]


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
    monkeypatch.setattr(explain, "PAIRS_PER_PIECE", 8)
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
    # As a kill leaves it that comes when all is written but not yet removed.
    (out / "parts").mkdir()
    (out / "reliable").mkdir(exist_ok=True)
    assert explain_all(job(shipped, digits, **few), out) == first
    assert not (out / "parts").exists()
    assert not (out / "reliable").exists()
    with pytest.raises(InputError, match="results of another job, which differs in its plan"):
        explain_all(job(shipped, digits, **few, plan=(lf.blend(3, 0.1),)), out)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match="there is something at .*mine already"):
        explain_all(job(shipped, digits), tmp_path / "mine")
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.tex"]
    with pytest.raises(InputError, match="there is no image to explain"):
        explain_all(job(shipped, digits, pairs=[]), tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("damage", ['{"rows": [', "\0\0", "[]", "{}", "5", '{"rows": []}'])
def test_damaged_pieces_and_summaries_are_named_and_made_again(shipped, digits, tmp_path, damage):
    out, said = tmp_path / "out", []
    few = job(shipped, digits, pairs=[(0, 3), (1, 4)])
    expected = explain_all(few, out)
    (out / "index.html").unlink()
    (out / "parts").mkdir()
    for path in (out / "parts" / "00000000.json", out / "summary.json"):
        path.write_text(damage)
    again = explain_all(few, out, log=said.append)
    assert again["counterfactual"]["status"] == expected["counterfactual"]["status"]
    damaged = f"{out}/summary.json", f"{out}/parts/00000000.json"
    assert said == [f"{path} is damaged, and is made again." for path in damaged]


def run(out, count, pause=0.0):
    """Explains shipped digits in pieces of ten, waiting at each query, on one thread."""
    threads, shipped = torch.get_num_threads(), load()
    torch.set_num_threads(1)

    class Digits:
        names = tuple(f"{n}.png" for n in range(count))

        def __getitem__(self, rows):
            return shipped.digits.images[rows]

    def classifier(x):
        time.sleep(pause)
        return shipped.classifier(x)

    job = Job(
        bundle=shipped.bundle,
        classifier=classifier,
        images=Digits(),
        pairs=[(n, n % 10) for n in range(count)],
        plan=(lf.blend(8, 0.4),),
        shown=3,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(explain, "PAIRS_PER_PIECE", 10)
        explain_all(job, out)
    torch.set_num_threads(threads)


@pytest.mark.parametrize("count", [60, pytest.param(200, marks=pytest.mark.slow)])
def test_a_kill_in_the_middle_loses_nothing(tmp_path, count):
    """Kills a real process with SIGKILL, resumes its job here, and compares with a whole run."""
    out, whole = tmp_path / "out", tmp_path / "whole"
    code = f"from tests.jobs.test_explain import run; run({str(out)!r}, {count}, 0.03)"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as process:
        while len(list(out.glob("parts/*.json"))) < 3 and process.poll() is None:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
    left = {p.name: p.stat().st_mtime_ns for p in out.glob("parts/0*.json")}
    assert 3 <= len(left) < count // 10
    assert not (out / "results.json").exists()
    run(out, count)
    run(whole, count)
    rows, expected = (
        json.loads((folder / "results.json").read_text())["rows"] for folder in (out, whole)
    )
    assert [row["name"] for row in rows] == [f"{n}.png" for n in range(count)]
    for row in (*rows, *expected):
        del row["milliseconds"]
    assert rows == expected
    assert len(list((out / "counterfactuals").iterdir())) == count


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
        training={"columns": ["width", "height"], "std": [1.0, 1.0]},
    )
    pairs = [(row, 1) for row in range(6)]
    job = Job(bundle=bundle, classifier=classifier, images=table, pairs=pairs, plan=bundle.plan)
    explain_all(job, tmp_path / "out")
    page = (tmp_path / "out" / "index.html").read_text()
    assert '"kind":"rows"' in page
    assert all(card["labels"] for card in page_data(tmp_path / "out")["cards"])
    assert '"columns":["width","height"]' in page
    assert "data:image" not in page.split('id="data"')[1]
    assert not (tmp_path / "out" / "counterfactuals").exists()
