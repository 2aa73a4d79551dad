"""The commands fit, explain and evaluate, as a newcomer uses them: files in, files out."""

import json
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from typer.testing import CliRunner

import leapfactual as lf
from leapfactual import cli
from leapfactual.cli import jobs
from leapfactual.errors import ClassifierError, InputError, MissingData
from leapfactual.jobs import plans
from leapfactual.leaps import RatedPlan, describe
from tests.jobs.conftest import FEW_PLANS, PLAN_GRIDS

MODELS = """
import torch
from sklearn.datasets import load_digits
from sklearn.svm import LinearSVC

data = load_digits()
svm = LinearSVC(random_state=0, C=0.1).fit(data.data / 16, data.target)


def predict(x):
    return svm.predict(x.flatten(1).numpy())


def other(x):
    return 9 - predict(x)


def two(x):
    return torch.tensor([[0.3, 0.7]]).expand(len(x), 2)


def guess(x):
    return torch.rand(len(x), 10).softmax(1)
"""


def run(*words):
    result = CliRunner().invoke(cli.app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module", params=PLAN_GRIDS)
def place(tmp_path_factory, request):
    """A folder with pictures, a module with classifiers and a bundle."""
    folder = tmp_path_factory.mktemp("place")
    with pytest.MonkeyPatch.context() as patch:
        for name, values in FEW_PLANS.items() if request.param == "few plans" else ():
            patch.setattr(plans, name, values)
        patch.chdir(folder)
        patch.setenv("LEAPFACTUAL_CACHE", str(folder / "cache"))
        data = load_digits()
        for n in range(500):
            path = Path("digits") / str(data.target[n]) / f"{n}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((data.images[n] * 15).astype("uint8")).save(path)
        Path("digits/3/broken.png").write_bytes(b"no picture")
        Path("few").mkdir()
        for n in range(500, 512):
            Image.fromarray((data.images[n] * 15).astype("uint8")).save(f"few/{n}.png")
        Path("my_models.py").write_text(MODELS)
        Path("table.csv").write_text("a,b\n1,2\n")
        fitted = json.loads(
            run(
                *("fit", "digits", "--classifier", "my_models.py:predict", "--out", "bundle"),
                *("--epochs", 25, "--flow-epochs", 40, "--features", 10, "--force", "--json"),
            )
        )
        Path("fitted.json").write_text(json.dumps(fitted))
        yield folder


def test_explain_keeps_to_a_mask(place):
    mask = Image.new("L", (8, 8))
    mask.paste(255, (0, 0, 8, 4))
    mask.save("upper.png")
    words = "explain", "bundle", "few", "--all-targets", "--out"
    said = json.loads(run(*words, "upper", "--mask", "upper.png", "--json"))
    free = json.loads(run(*words, "anywhere", "--json"))
    assert said["count"] == free["count"] == 9 * 12
    reached = [found["counterfactual"]["status"].get("reached", 0) for found in (said, free)]
    assert 0 < reached[0] < reached[1]
    row = json.loads(Path("upper/results.json").read_text())["rows"][0]
    before = np.asarray(Image.open(row["name"]))
    after = np.asarray(Image.open(f"upper/counterfactuals/{row['file']}.png"))
    assert (before[4:] == after[4:]).all()
    assert (before[:4] != after[:4]).any()
    with pytest.raises(InputError, match="another job, which differs in its .*mask"):
        run(*words, "upper")
    mask.resize((9, 8)).save("wrong.png")
    with pytest.raises(InputError, match=r"of the images, \(1, 8, 8\) .* got \(1, 8, 9\)"):
        run(*words, "other", "--mask", "wrong.png")
    with pytest.raises(MissingData, match="there is no image at"):
        run(*words, "other", "--mask", "none.png")
    assert not Path("other").exists()


def test_explain_makes_alternatives(place):
    words = "explain", "bundle", "few", "--target", 3, "--alternatives", 2, "--out", "several"
    assert json.loads(run(*words, "--json"))["count"] == 24
    rows = json.loads(Path("several/results.json").read_text())["rows"]
    assert [row["alternative"] for row in rows] == [1, 2] * 12
    pictures = [Path(f"several/counterfactuals/{row['file']}.png").read_bytes() for row in rows]
    assert len(set(pictures)) == 24
    with pytest.raises(InputError, match="which differs in its alternatives"):
        run(*words, "--seed", 1)
    with pytest.raises(InputError, match="2 alternatives or reliable counterfactuals, not both"):
        run(*words[:-1], "both", "--reliable")
    assert not Path("both").exists()


def test_fit_prints_the_data_and_the_front(place):
    fitted = json.loads(Path("fitted.json").read_text())
    assert fitted["data"]["images"] == 500
    assert fitted["data"]["left out"] == 1
    assert fitted["data"]["answers"] == "labels"
    assert fitted["data"]["accuracy"] > 0.95
    assert fitted["front"][0]["reliability"] == 0
    assert fitted["front"][-1]["reliability"] == 1
    assert fitted["front"][0]["validity"] > 0.9
    assert "Of " in fitted["why"]


def test_the_front_of_long_plans_is_printed_whole(capsys):
    numbers = dict.fromkeys(("validity", "L1", "queries", "distance", "typicality", "oracle"), 0.5)
    plan = (lf.blend(4, 0.35, 3), *(lf.blend(2, step, 3) for step in (0.4, 0.7, 1.0)))
    front = tuple(RatedPlan(plan, reliability, numbers) for reliability in (0.0, 1.0))
    search = SimpleNamespace(front=front, paper=())
    jobs._print_front(SimpleNamespace(search=search))
    printed = capsys.readouterr().out
    assert printed.count(describe(plan)) == 2
    assert all(name in printed for name in numbers)
    assert "…" not in printed


def test_explain_finds_the_classifier_by_itself(place):
    out = run("explain", "bundle", "few", "--target", "3", "--reliable", "--out", "report")
    assert "in a browser" in out
    rows = json.loads(Path("report/results.json").read_text())["rows"]
    assert len(rows) == 12
    assert {row["target"] for row in rows} == {"3"}
    assert sum(row["status"] != "not reached" for row in rows) >= 10
    assert "strip" in Path("report/index.html").read_text()
    again = run("explain", "bundle", "few", "--target", "3", "--reliable", "--out", "report")
    assert again == out


def test_a_zip_is_explained_as_its_folder_is(place, tmp_path):
    with zipfile.ZipFile("few.zip", "w") as archive:
        for path in sorted(Path("few").iterdir()):
            archive.write(path)
    tables = []
    for source in ("few", "few.zip"):
        run("explain", "bundle", source, "--target", "3", "--out", tmp_path / source)
        tables.append(json.loads((tmp_path / source / "results.json").read_text())["rows"])
    unpacked, zipped = tables
    for row, same in zip(zipped, unpacked, strict=True):
        expected = {**same, "name": f"few.zip/{same['name']}"}
        assert row == {**expected, "milliseconds": row["milliseconds"]}


def test_a_module_elsewhere_is_remembered_with_its_folder(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("explain", place / "bundle", place / "few", "--target", "3", "--out", "here")
    summary = json.loads(run(*words, "--json"))
    assert summary["count"] == 12
    assert summary["page"] == "here/index.html"


def test_a_bundle_from_elsewhere_wants_to_be_told_the_classifier(place, tmp_path, monkeypatch):
    monkeypatch.setenv("LEAPFACTUAL_CACHE", str(tmp_path))
    words = ("explain", "bundle", "few", "--target", "3", "--out", tmp_path / "out")
    with pytest.raises(InputError, match="made for `my_models.py:predict`.*--classifier"):
        run(*words)
    run(*words, "--classifier", "my_models.py:predict", "--quiet")


def test_every_target_and_targets_from_a_list(place, tmp_path):
    run(
        "explain", "bundle", "few/500.png", "few/501.png", "--all-targets", "--out", tmp_path / "a"
    )
    rows = json.loads((tmp_path / "a" / "results.json").read_text())["rows"]
    assert len(rows) == 18
    assert all(row["source"] != row["target"] for row in rows)
    Path("targets.csv").write_text("image,target\n500.png,1\n501.png,2\n")
    run("explain", "bundle", "few", "--targets", "targets.csv", "--out", tmp_path / "b")
    rows = json.loads((tmp_path / "b" / "results.json").read_text())["rows"]
    assert [row["target"] for row in rows] == ["1", "2"]


def test_operating_points_go_from_near_to_typical(place, tmp_path):
    means = []
    for r in (0, 1):
        words = ("--target", "3", "--reliability", r, "--json", "--out", tmp_path / str(r))
        means.append(json.loads(run("explain", "bundle", "few", *words))["counterfactual"])
    assert means[0]["mean L1"] < means[1]["mean L1"]
    assert means[0]["mean typicality"] < means[1]["mean typicality"]
    words = ("--target", "3", "--plan", "blend(2, 0.4)", "--out", tmp_path / "plan")
    run("explain", "bundle", "few", *words)
    found = json.loads((tmp_path / "plan" / "results.json").read_text())
    assert found["plan"] == "blend(2, 0.4)"


def test_evaluate_gives_metrics_with_errors_and_a_matrix(place, tmp_path):
    words = ("--oracle", "my_models.py:predict", "--out", tmp_path / "out")
    found = json.loads(run("evaluate", "bundle", "few", *words, "--json"))
    assert found["metrics"]["validity"]["mean"] > 0.8
    assert found["metrics"]["oracle"] == found["metrics"]["validity"]
    assert found["metrics"]["L1"]["sem"] > 0
    assert len(found["validity"]) == len(found["validity"][0]) == 10
    text = run("evaluate", "bundle", "few", "--out", tmp_path / "text", "--target", "3")
    assert "| L1 |" in text


def test_a_file_can_hold_the_options(place, tmp_path):
    Path("job.toml").write_text('[explain]\ntarget = "3"\nreliable = true\npage = 2\n')
    run("explain", "bundle", "few", "--config", "job.toml", "--out", tmp_path / "out")
    job = json.loads((tmp_path / "out" / "job.json").read_text())
    assert job["shown"] == 2
    assert job["reliable"]
    Path("bad.toml").write_text('[explain]\ntraget = "3"\n')
    with pytest.raises(InputError, match="`traget` in bad.toml is no option.*mean `target`"):
        run("explain", "bundle", "few", "--config", "bad.toml", "--out", tmp_path / "x")
    with pytest.raises(MissingData, match="no configuration file no.toml"):
        run("explain", "bundle", "few", "--config", "no.toml", "--out", tmp_path / "x")
    for text in ("[explain", f"a = {'[' * 10**5}"):
        Path("bad.toml").write_text(text)
        with pytest.raises(InputError, match="is no TOML file"):
            run("explain", "bundle", "few", "--config", "bad.toml", "--out", tmp_path / "x")


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        (("nowhere", "--target", "3"), MissingData, "there is nothing at nowhere"),
        (("few", "--target", "13"), InputError, "`13` is none of the classes. Did you mean"),
        (("few",), InputError, "in one way: --target CLASS"),
        (("few", "--target", "3", "--all-targets"), InputError, "in one way"),
        (
            ("few", "--target", "3", "--classifier", "my_models.py:other"),
            InputError,
            "agrees with it on only .*% of .* probe images",
        ),
        (("few", "--target", "3", "--classifier", "my_models.py:two"), InputError, "10 classes"),
        (
            ("few", "--target", "3", "--classifier", "my_models.py:guess"),
            ClassifierError,
            "one class by itself and another among others",
        ),
        (
            ("few", "--target", "3", "--classifier", "my_models.py:svn"),
            InputError,
            "has no `svn`; it has",
        ),
        (
            ("few", "--target", "3", "--classifier", "model.py:f"),
            MissingData,
            "no file .*model.py",
        ),
        (("few", "--target", "3", "--plan", "leap(3)"), InputError, "is no plan"),
        (
            ("few", "--target", "3", "--plan", "blend(2, 0.1)", "--reliability", "1"),
            InputError,
            "one of them",
        ),
        (("few", "digits", "--target", "3"), InputError, "is a folder. Give one folder, or files"),
        *(
            (("few", "--target", "3", "--device", name), InputError, f"device {name}` cannot be")
            for name in ("abacus", "meta", "hpu", "cuda:99")
        ),
        (
            ("few", "--target", "3", "--device", "mps"),
            InputError,
            r"device mps` cannot be used \(.{,120}\)\. Use cpu",
        ),
        (("table.csv", "--target", "3"), InputError, "images of 1 × 8 × 8; table.csv is a table"),
    ],
)
def test_mistakes_are_named_and_leave_nothing(place, tmp_path, words, kind, message):
    with pytest.raises(kind, match=message):
        run("explain", "bundle", *words, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_missing_bundle_is_named(place, tmp_path):
    with pytest.raises(MissingData, match="there is no bundle at bundel"):
        run("explain", "bundel", "few", "--target", "3", "--out", tmp_path / "out")


def test_fit_wants_names_for_labels(place, tmp_path):
    words = ("fit", "few", "--classifier", "my_models.py:predict", "--out", tmp_path / "b")
    with pytest.raises(InputError, match="answers with labels.*--classes cat,dog"):
        run(*words)
    with pytest.raises(InputError, match="tells 2 classes apart, but there are 10 names"):
        run(*("fit", "digits", "--classifier", "my_models.py:two", "--out", tmp_path / "b"))


def test_a_full_disk_is_one_sentence_and_loses_nothing(place, tmp_path, monkeypatch, capsys):
    from leapfactual.jobs import explain

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    words = ["explain", "bundle", "few", "--target", "3", "--quiet", "--out", tmp_path / "out"]
    with monkeypatch.context() as patch:
        patch.setattr(explain, "write_animation", full)
        patch.setattr("sys.argv", ["leapfactual", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
    assert stop.value.code == 1
    assert "the disk is full" in capsys.readouterr().err
    run(*words)
    assert (tmp_path / "out" / "index.html").exists()
