"""What the jobs share: inputs, the choice of a plan, and pieces that survive a kill."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import leapfactual as lf
from leapfactual.data import open_images
from leapfactual.errors import InputError
from leapfactual.files import atomic
from leapfactual.jobs.job import Inputs, Job, Pieces, _open_matching, begin, open_inputs
from leapfactual.jobs.queries import Queries
from leapfactual.jobs.spatial import build_autoencoder

CLASSIFIER = "from leapfactual.pretrained import load\nexplained = load().classifier\n"


@pytest.fixture(scope="module")
def inputs(shipped, folder):
    return Inputs(shipped.bundle, shipped.classifier, open_images(folder))


@pytest.fixture
def job(inputs):
    return inputs.job([(row, 3) for row in range(24)], inputs.bundle.plan)


def test_arguments_of_a_job_are_given_by_name(inputs):
    parts = inputs.bundle, inputs.classifier, inputs.images, [(0, 3)], inputs.bundle.plan
    with pytest.raises(TypeError, match="positional"):
        Job(*parts)


def test_a_job_is_recognized_by_what_changes_its_results(job):
    same = job.to_json()
    assert (
        json.loads(json.dumps(same)) == same == replace(job, title="Other", force=True).to_json()
    )
    for name, value in {
        "pairs": [(0, 3)],
        "plan": (lf.blend(3, 0.1),),
        "solver": lf.Midpoint(7),
        "reliable": (lf.blend(3, 0.1),),
        "mask": torch.ones(1, 28, 28),
        "alternatives": 2,
        "shown": 7,
    }.items():
        other = replace(job, **{name: value}).to_json()
        assert {key for key in same if other[key] != same[key]} - {"count"} == {name}


def test_another_classifier_than_the_bundles_makes_another_job(job):
    others = [lf.classifiers.from_labels(lambda x, k=k: [k] * len(x), 10) for k in (0, 1)]
    same, *seen = (
        replace(job, classifier=each, force=True).to_json() for each in (job.classifier, *others)
    )
    assert same == job.to_json()
    assert len({each["classifier"] for each in (same, *seen)}) == 3


def test_inputs_are_opened_to_fit_the_bundle(shipped, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shipped.bundle.save(tmp_path / "bundle")
    (tmp_path / "mine.py").write_text(CLASSIFIER)
    opened = open_inputs(tmp_path / "bundle", [folder], "mine.py:explained")
    x = opened.images[[0, 1]]
    assert x.shape == (2, 1, 28, 28)
    torch.testing.assert_close(opened.classifier(x), shipped.classifier(x))
    assert opened.bundle.recognizes(opened.classifier)
    assert torch.equal(opened.open_oracle("mine.py:explained")(x), opened.classifier(x))
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"images of 1 × 28 × 28; .*t.csv is a table"):
        open_inputs(tmp_path / "bundle", [tmp_path / "t.csv"], "mine.py:explained")


def test_a_column_without_a_name_is_no_label(tmp_path):
    """Tables of pandas begin with such a one, the index."""
    path, table = tmp_path / "t.csv", SimpleNamespace(probes=torch.zeros(8, 3))
    path.write_text(",a,b\n0,1,2\n1,2,3\n")
    table.training = {"columns": ["", "a", "b"], "label": None}
    assert _open_matching(table, [path]).columns == ("", "a", "b")
    table.training = {"columns": ["", "a"], "label": "b"}
    assert _open_matching(table, [path]).columns == ("", "a")


def test_a_job_that_waits_for_its_classifier_is_heard_of(job, tmp_path):
    queries = Queries(job.classifier)
    asking = replace(job, classifier=queries)
    heard = []
    pieces = Pieces(asking, tmp_path, 16)
    for piece in pieces.pending("explained", lambda *told: heard.append(told[1])):
        queries(piece.load()[0])
    done = [0, 0, 16, 16, 24]
    assert heard == [f"explained {n} of 24" for n in done], "after each query and each piece"


def test_a_plan_is_the_bundles_or_given_or_on_the_front_or_fast(shipped):
    bundle = shipped.bundle
    assert bundle.choose_plan() == (bundle.plan, None)
    assert bundle.choose_plan(plan="blend(2, 0.4)") == ((lf.blend(2, 0.4),), None)
    assert bundle.choose_plan(reliability=1.0) == (bundle.front[-1].plan, None)
    assert bundle.choose_plan(fast=True) == (bundle.fast.plan, bundle.fast.solver)
    with pytest.raises(InputError, match="one of them"):
        bundle.choose_plan(plan="blend(2, 0.4)", fast=True)
    with pytest.raises(InputError, match="this bundle has no fast plan"):
        replace(bundle, fast=None).choose_plan(fast=True)


def test_pieces_with_a_record_are_not_done_again(job, tmp_path):
    begin(tmp_path / "out", job.to_json(), 10)
    done = []
    with pytest.raises(KeyboardInterrupt):
        for piece in Pieces(job, tmp_path / "out", size=10).pending("explained"):
            done.append(piece.start)
            if len(done) == 2:
                raise KeyboardInterrupt
            piece.record.write_text('{"rows": []}')
    begin(tmp_path / "out", job.to_json(), 10)
    seen, pieces = [], Pieces(job, tmp_path / "out", size=10)
    for piece in pieces.pending("explained", lambda *progress: seen.append(progress)):
        x, target = piece.load()
        assert len(x) == len(target) == len(piece.pairs) == min(10, 24 - piece.start)
        done.append(piece.start)
        piece.record.write_text('{"rows": []}')
    assert done == [0, 10, 10, 20]
    assert [said for _, said, _ in seen] == [f"explained {n} of 24" for n in (10, 20, 24)]
    assert [share for share, *_ in seen] == [10 / 24, 20 / 24, 1.0]
    assert [path.read_text() for path in pieces.records()] == ['{"rows": []}'] * 3
    pieces.clear()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["job.json"]


def test_a_folder_of_another_job_is_refused(job, tmp_path):
    out = tmp_path / "out"
    begin(out, job.to_json(), 10)
    with pytest.raises(InputError, match="another job, which differs in its pairs, count"):
        begin(out, replace(job, pairs=[(0, 3)]).to_json(), 10)
    (out / "job.json").write_text("{")
    with pytest.raises(InputError, match=r"job.json is damaged .*Give another --out"):
        begin(out, job.to_json(), 10)


def test_a_kill_at_the_very_beginning_or_end_is_no_other_job(job, tmp_path):
    out = tmp_path / "out"
    killed = atomic(out / "job.json")
    killed.__enter__()
    assert len(list(out.iterdir())) == 1
    begin(out, job.to_json(), 10)
    assert [path.name for path in out.iterdir()] == ["job.json"]
    (out / ".parts").mkdir()
    begin(out, job.to_json(), 10)
    assert [path.name for path in out.iterdir()] == ["job.json"]
    (tmp_path / "mine" / ".parts").mkdir(parents=True)
    with pytest.raises(InputError, match="there is something"):
        begin(tmp_path / "mine", job.to_json(), 10)
    assert (tmp_path / "mine" / ".parts").exists(), "it is not ours"


def test_pieces_are_small_where_a_walk_is_slow_and_stay_as_they_were(job, tmp_path):
    assert job.pairs_per_piece(128) == 128
    generator = build_autoencoder((1, 32, 32), 8)
    maps = replace(job, bundle=SimpleNamespace(device="cpu", generator=generator))
    assert maps.pairs_per_piece(128) == 8
    assert replace(maps, alternatives=4).pairs_per_piece(128) == 2
    assert begin(tmp_path / "out", job.to_json(), 128) == 128
    assert begin(tmp_path / "out", job.to_json(), 8) == 128, "begun on a GPU"
