"""Votes in and out: their own tools read our files, and what goes out comes in again."""

import csv
import hashlib
import io
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tracemalloc
import warnings
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import func, insert, select, update
from typer.testing import CliRunner

from leapfactual.cli import app
from leapfactual.errors import InputError, MissingData
from leapfactual.imaging import to_pil
from leapfactual.people import assignment, campaigns, exclusion, status, transitions, votes
from leapfactual.people.audit import replay
from leapfactual.people.consensus import IMPLAUSIBLE, UNSURE, Rule
from leapfactual.people.exchange import interchange, label_studio, records, zooniverse
from leapfactual.people.exchange.interchange import export_votes, import_votes
from leapfactual.people.store import tables as t
from leapfactual.people.store.assets import put_asset
from leapfactual.people.store.database import Database
from leapfactual.people.worker import Worker, decode_png
from tests.people.crowd import Clock, invited, labels, play
from tests.people.test_audit import wild

MISSING = (
    "PANOPTES_AGGREGATION IS MISSING: ZOONIVERSE'S OWN TOOL DID NOT READ OUR CSV (python -m venv "
    ".venv/panoptes && .venv/panoptes/bin/pip install panoptes_aggregation==5.3.1)"
)
BOTH = pytest.mark.parametrize("form", interchange.FORMATS)
EXTRACT = """
workflow_id: 1
workflow_version: '1.1'
extractor_config: {question_extractor: [{task: T0}]}
"""
ODD = ("=1+1", "<&\"'>", "$x", "Ünï ☃", "a,b", "unsure", "-6", "7;", "8", "9")


SETUP = {
    "rule": Rule(least=3, most=5),
    "plan": "blend(8, 0.2)",
    "gold_share": 0.2,
    "repeat_share": 0.2,
}


@pytest.fixture(scope="session")
def few(shipped, tmp_path_factory):
    """Holds six digits, and gold."""
    place = tmp_path_factory.mktemp("few")
    for name, rows in (("digits", (0, 3, 6, 9, 12, 15)), ("gold", (20, 30, 40, 50))):
        for row in rows:
            folder = place / name
            if name == "gold":
                folder /= str(int(shipped.digits.labels[row]))
            folder.mkdir(parents=True, exist_ok=True)
            to_pil(shipped.digits.images[row]).save(folder / f"{row}.png")
    return place


@pytest.fixture
def fresh(campaign, few):
    """Makes campaigns in which nobody has voted."""

    def make(place=None, images=None, **options):
        images = images or few / "digits"
        return campaign(place, images=images, gold=few / "gold", **SETUP | options)

    return make


@pytest.fixture(scope="session")
def histories():
    """Holds campaigns in which people voted, by mode."""
    return {}


@pytest.fixture
def played(fresh, network, histories, tmp_path):
    """Makes campaigns in which people voted, on gold and again, too."""

    def make(mode="batch"):
        if mode not in histories:
            made = fresh(mode=mode)
            clock = Clock()
            play(made.db, {p: wild(network, p) for p in invited(made.db, 6)}, clock=clock)
            campaigns.invite(made.db, "late one")
            with made.db.write() as c:
                decided = (t.task.c.kind == t.FRAME) & (t.task.c.state == t.RETIRED)
                for task in c.execute(select(t.task).where(decided).limit(3)).all():
                    votes.cast(c, task, 7, 4, f"late {task.id}", clock(), 2.5)
            made.db.close()
            histories[mode] = Path(made.db.place).read_bytes()
        place = tmp_path / f"played-{mode}.db"
        place.write_bytes(histories[mode])
        opened.append(Database(place))
        return SimpleNamespace(db=opened[-1])

    opened = []
    yield make
    for db in opened:
        db.close()


def count(db, table, *where):
    with db.read() as c:
        return c.execute(select(func.count()).select_from(table).where(*where)).scalar_one()


def state(db):
    """Returns all that is kept."""
    with db.read() as c:
        return {
            table.name: [tuple(row) for row in c.execute(select(table)).all()]
            for table in t.metadata.sorted_tables
        }


def told(db):
    """Returns what people said, what was decided, and what came of it, without numbers of rows."""
    with db.read() as c:
        decided = c.execute(
            select(
                t.run.c.name,
                t.segment.c.number,
                t.frame.c.position,
                t.consensus.c.outcome,
                t.consensus.c.votes,
            )
            .join(t.segment, t.segment.c.run_id == t.run.c.id)
            .join(t.frame, t.frame.c.segment_id == t.segment.c.id)
            .join(t.task, (t.task.c.frame_id == t.frame.c.id) & (t.task.c.kind == t.FRAME))
            .join(t.consensus, t.consensus.c.task_id == t.task.c.id)
        ).all()
        votes = c.execute(
            select(
                t.annotator.c.name,
                t.task.c.kind,
                t.task.c.asset,
                t.vote.c.answer,
                t.vote.c.counted,
                t.vote.c.created,
                t.vote.c.seconds,
            )
            .join(t.task, t.task.c.id == t.vote.c.task_id)
            .join(t.annotator, t.annotator.c.id == t.vote.c.annotator_id)
        ).all()
        runs = c.execute(select(t.run.c.name, t.run.c.status, t.run.c.reason, t.run.c.result))
        return (
            sorted((Path(name).name, *rest) for name, *rest in decided),
            sorted(map(tuple, votes)),
            sorted(((Path(name).name, *rest) for name, *rest in runs), key=repr),
        )


def taken_in(db, path, form):
    """Takes in a file and does jobs, until there is no more to do."""
    worker = Worker(db)
    found = []
    while True:
        while worker.once():
            pass
        found.append(import_votes(db, path, form))
        if not found[-1].taken + found[-1].late:
            return found


def rows(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def tally(db):
    """Counts the votes on every task by answer, by rows."""
    with db.read() as c:
        names = records.answer_words(transitions.get_campaign(c).classes)
        votes = c.execute(select(t.vote.c.task_id, t.vote.c.answer)).all()
    return Counter((task, names[answer]) for task, answer in votes)


# -- out --


def test_every_vote_is_a_row_of_zooniverses_csv(played, tmp_path):
    made = played()
    done = export_votes(made.db, tmp_path / "votes.csv", "zooniverse")
    found = rows(tmp_path / "votes.csv")
    assert done.votes == len(found) == count(made.db, t.vote)
    assert tuple(found[0]) == zooniverse.COLUMNS
    said = Counter()
    with made.db.read() as c:
        for row in found:
            vote = c.execute(
                select(t.vote, t.task.c.kind, t.task.c.asset, t.annotator.c.name)
                .join(t.task, t.task.c.id == t.vote.c.task_id)
                .join(t.annotator, t.annotator.c.id == t.vote.c.annotator_id)
                .where(t.vote.c.id == int(row["classification_id"]))
            ).one()
            assert row["user_name"] == vote.name
            assert row["user_ip"] == row["expert"] == "", "nobody's address is kept"
            assert row["gold_standard"] == ("true" if vote.kind == t.GOLD else "")
            about = json.loads(row["metadata"])
            assert (about["kind"], about["counted"]) == (vote.kind, vote.counted)
            assert about["seconds"] == vote.seconds
            (said_,) = json.loads(row["annotations"])
            assert (said_["task"], said_["task_label"]) == ("T0", "Which digit is this?")
            said[int(row["subject_ids"]), said_["value"]] += 1
            ((subject, data),) = json.loads(row["subject_data"]).items()
            assert (subject, data["sha256"]) == (row["subject_ids"], vote.asset)
            assert ("run" in data) == (vote.kind != t.GOLD)
    assert said == tally(made.db)
    assert found[0]["created_at"].startswith("1970-01-12 13:46:")
    assert found[0]["created_at"].endswith(" UTC")
    assert {json.loads(row["metadata"])["kind"] for row in found} == set(records.KINDS)


def renamed(made, classes):
    with made.db.write() as c:
        c.execute(update(t.campaign).values(classes=classes))
    return made


def panoptes():
    """Returns the Python that has Zooniverse's own tool; its pins do not go with ours."""
    places = [os.environ.get("LEAPFACTUAL_PANOPTES"), Path(sys.prefix) / "panoptes"]
    for place in filter(None, places):
        python = Path(place) / "bin" / "python"
        if python.exists():
            return str(python)
    pytest.skip(MISSING)


def test_zooniverses_own_tool_counts_as_we_do(played, tmp_path):
    python = panoptes()
    made = renamed(played(), ["=0", "One & only", *"23456789"])
    export_votes(made.db, tmp_path / "votes.csv", "zooniverse")
    (tmp_path / "extract.yaml").write_text(EXTRACT)
    (tmp_path / "reduce.yaml").write_text("reducer_config: {question_reducer: {}}")
    code = "from panoptes_aggregation.scripts.aggregation_parser import main; main()"
    for words in (
        ["extract", "votes.csv", "extract.yaml", "-o", "x"],
        ["reduce", "question_extractor_x.csv", "reduce.yaml", "-o", "x"],
    ):
        done = subprocess.run(
            [python, "-I", "-c", code, *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    slugs = {"=0": "0", "One & only": "one-only", "not believable": "not-believable"}
    wanted = Counter()
    for (task, word), n in tally(made.db).items():
        wanted[task, slugs.get(word, word)] += n
    theirs = Counter()
    for row in rows(tmp_path / "question_reducer_x.csv"):
        for name, value in row.items():
            if name.startswith("data.") and name != "data.aggregation_version" and value:
                theirs[int(row["subject_id"]), name.removeprefix("data.")] += int(float(value))
    assert theirs == wanted
    assert len(wanted) > 50


def interface(xml):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from label_studio_sdk.label_interface import LabelInterface
        from label_studio_sdk.label_interface.objects import TaskValue

        return LabelInterface(xml), TaskValue


def test_label_studios_own_tool_accepts_our_annotations(played, tmp_path):
    made = renamed(played(), list(ODD))
    path = tmp_path / "votes.json"
    done = export_votes(made.db, path, "label-studio")
    validator, value = interface(path.with_suffix(".xml").read_text(encoding="utf-8"))
    validator.validate()
    (choices,) = validator.controls
    assert choices.labels == [*ODD, "unsure (no class)", "not believable"]
    tasks = json.loads(path.read_text())
    said = Counter()
    for task in tasks:
        assert validator.validate_task({"data": task["data"]})
        value.model_validate(task)
        for annotation in task["annotations"]:
            assert validator.validate_annotation(annotation)
            said[task["id"], annotation["result"][0]["value"]["choices"][0]] += 1
        assert hashlib.sha256(_picture(task)).hexdigest() == task["data"]["sha256"]
    assert said == tally(made.db)
    assert said.total() == done.votes
    wrong = json.loads(json.dumps(tasks[-1]["annotations"][0]))
    wrong["result"][0]["value"]["choices"] = ["no such class"]
    assert not validator.validate_annotation(wrong), "it does validate"


def _picture(task):
    import base64

    head, content = task["data"]["image"].split(",")
    assert head == "data:image/png;base64"
    return base64.b64decode(content)


@BOTH
def test_pictures_are_written_beside(played, tmp_path, form):
    made = played()
    done = export_votes(made.db, tmp_path / "votes", form, tmp_path / "my pictures")
    files = sorted((tmp_path / "my pictures").glob("*.png"))
    assert len(files) == done.pictures > 10
    for file in files:
        assert hashlib.sha256(file.read_bytes()).hexdigest() == file.stem
        assert decode_png(file.read_bytes()).shape == (1, 1, 28, 28)
    if form == "zooniverse":
        listed = rows(tmp_path / "my pictures" / "manifest.csv")
        assert [row["filename"] for row in listed] == [file.name for file in files]
        assert [row["#sha256"] for row in listed] == [file.stem for file in files]
    else:
        for task in json.loads((tmp_path / "votes").read_text()):
            name = f"{task['data']['sha256']}.png"
            assert task["data"]["image"] == f"/data/local-files/?d=my%20pictures/{name}"


def test_what_is_open_goes_out_without_votes(fresh, tmp_path):
    made = fresh()
    person = invited(made.db, 1)[0]
    worker = Worker(made.db)
    while worker.once():
        pass
    offer = assignment.take(made.db, person, 1000.0)
    votes.vote(made.db, person, offer.key, 4, 1001.0)
    done = export_votes(made.db, tmp_path / "open.json", "label-studio", blank=True)
    tasks = json.loads((tmp_path / "open.json").read_text())
    assert done.votes == 0
    assert len(tasks) == 6 + 4
    assert not any(task["annotations"] for task in tasks)
    export_votes(made.db, tmp_path / "none.csv", "zooniverse", blank=True)
    assert rows(tmp_path / "none.csv") == []


def test_a_campaign_without_anything_is_an_empty_file(campaign, tmp_path):
    made = campaign()
    for form in interchange.FORMATS:
        export_votes(made.db, tmp_path / "none", form)
        assert import_votes(made.db, tmp_path / "none", form) == interchange.ImportSummary(
            0, 0, 0, 0, 0
        )
    with pytest.raises(InputError, match=r"one of \['zooniverse', 'label-studio'\], got 'excel'"):
        export_votes(made.db, tmp_path / "none", "excel")
    with pytest.raises(InputError, match="where the project's XML goes"):
        export_votes(made.db, tmp_path / "none.xml", "label-studio")


def test_no_name_is_a_formula(fresh, tmp_path, network):
    made = fresh(name="=HYPERLINK(1)", plan="blend(2, 0.3)")
    names = ["=1+1", "+1", "-1", "@x", "'=x", "''=x", "'tis", "＝1", "Ada", 'a "b", c']
    for name in names:
        campaigns.invite(made.db, name)
    with made.db.read() as c:
        people = c.execute(select(t.annotator.c.id)).scalars().all()
    play(made.db, {p: labels(network) for p in people[:1]}, most=3)
    with made.db.write() as c:
        task = c.execute(select(t.task).order_by(t.task.c.id)).first()
        for person in people[1:]:
            votes.cast(c, task, person, 4, f"key {person}", 2_000_000.0, 1.0)
    export_votes(made.db, tmp_path / "votes.csv", "zooniverse")
    found = rows(tmp_path / "votes.csv")
    for row in found:
        assert row["user_name"][0] not in "=+-@＝"
        assert row["workflow_name"] == "'=HYPERLINK(1)"
    other = fresh(plan="blend(2, 0.3)")
    taken_in(other.db, tmp_path / "votes.csv", "zooniverse")
    with other.db.read() as c:
        assert set(c.execute(select(t.annotator.c.name)).scalars()) == set(names)


# -- out and in --


@pytest.mark.parametrize(("form", "mode"), [("zooniverse", "bisect"), ("label-studio", "batch")])
def test_what_goes_out_comes_in_again(played, fresh, few, tmp_path, form, mode):
    made = played(mode=mode)
    export_votes(made.db, tmp_path / "votes", form)
    moved = shutil.copytree(few / "digits", tmp_path / "moved")
    other = fresh(images=moved, mode=mode)
    found = taken_in(other.db, tmp_path / "votes", form)
    assert told(other.db) == told(made.db)
    assert found[0].unknown > 0, "frames come with what was said of those before"
    assert found[-1].unknown == 0
    assert sum(one.people for one in found) == 7
    assert sum(one.late for one in found) == count(made.db, t.vote, ~t.vote.c.counted) >= 3
    assert sum(one.taken for one in found) == count(made.db, t.vote, t.vote.c.counted)
    before = state(other.db)
    again = import_votes(other.db, tmp_path / "votes", form)
    assert again == interchange.ImportSummary(0, 0, count(made.db, t.vote), 0, 0)
    assert state(other.db) == before, "twice is once"
    assert replay(other.db).differences == []
    export_votes(other.db, tmp_path / "again", form)
    own = state(made.db)
    assert not import_votes(made.db, tmp_path / "again", form).taken
    assert state(made.db) == own, "one's own votes change nothing"


def test_it_is_the_same_on_postgresql(postgres_server, played, fresh, tmp_path):
    made, other = played(), fresh(postgres_server())
    export_votes(made.db, tmp_path / "votes.csv", "zooniverse")
    taken_in(other.db, tmp_path / "votes.csv", "zooniverse")
    assert told(other.db) == told(made.db)
    for form in interchange.FORMATS:
        export_votes(other.db, tmp_path / form, form, tmp_path / "pictures")
        own = state(made.db), state(other.db)
        for db in (made.db, other.db):
            assert import_votes(db, tmp_path / form, form).skipped == count(db, t.vote)
        assert (state(made.db), state(other.db)) == own


@BOTH
def test_votes_of_who_was_voided_stay_out(played, fresh, tmp_path, form):
    made, other = played(), fresh()
    exclusion.void(made.db, "person 2")
    export_votes(made.db, tmp_path / "votes", form)
    done = import_votes(other.db, tmp_path / "votes", form)
    assert done.skipped == count(made.db, t.vote, t.vote.c.annotator_id == 2) > 5
    assert count(other.db, t.annotator, t.annotator.c.name == "person 2") == 0
    exclusion.void(other.db, "person 3")
    before = state(other.db)
    again = import_votes(other.db, tmp_path / "votes", form)
    assert (again.taken, again.late) == (0, 0)
    assert state(other.db) == before


def test_a_file_that_was_half_taken_in_is_taken_in_again(played, fresh, tmp_path, monkeypatch):
    made, form = played(), "label-studio"
    export_votes(made.db, tmp_path / "votes", form)
    other = fresh()
    worker = Worker(other.db)
    while worker.once():
        pass
    monkeypatch.setattr(interchange, "BATCH_SIZE", 7)
    cast, left = interchange.cast, [20]

    def interrupted(*words):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return cast(*words)

    monkeypatch.setattr(interchange, "cast", interrupted)
    with pytest.raises(KeyboardInterrupt):
        import_votes(other.db, tmp_path / "votes", form)
    assert 0 < count(other.db, t.vote) <= 20
    monkeypatch.setattr(interchange, "cast", cast)
    taken_in(other.db, tmp_path / "votes", form)
    assert told(other.db) == told(made.db)


# -- in, from their tools --


@pytest.fixture
def asked(campaign):
    """Makes a campaign whose first pictures are asked about."""
    made = campaign(rule=Rule(least=2, most=3))
    worker = Worker(made.db)
    while worker.once():
        pass
    with made.db.read() as c:
        made.assets = list(c.execute(select(t.task.c.asset).order_by(t.task.c.id)).scalars())
    return made


def zoo(subject, name="Ada", value="4", at="2026-01-31 12:34:56 UTC", **cells):
    """Writes a row as Zooniverse does."""
    about = {
        "source": "api",
        "session": "e69d",
        "viewport": {"width": 1081, "height": 1049},
        "started_at": "2026-01-31T12:34:50.381Z",
        "user_agent": "Mozilla/5.0",
        "finished_at": "2026-01-31T12:34:55.881Z",
        "seconds": "not ours",
    }
    row = {
        "classification_id": "91178981",
        "user_name": name,
        "user_id": "290475",
        "user_ip": "2c61707e96c97a759840",
        "workflow_id": "6122",
        "workflow_name": "Digits",
        "workflow_version": "28.30",
        "created_at": at,
        "gold_standard": "",
        "expert": "",
        "metadata": json.dumps(about),
        "annotations": json.dumps(
            [{"task": "T0", "task_label": "Which digit is this?", "value": value}]
        ),
        "subject_data": json.dumps({"7421": {"retired": None, "kind": "theirs"} | subject}),
        "subject_ids": "7421",
    }
    return row | cells


def as_csv(path, found, columns=zooniverse.COLUMNS):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
    return path


def studio(data, *annotations, **more):
    """Writes a task as Label Studio does."""
    return {
        "id": 31,
        "annotations": list(annotations),
        "file_upload": "1f2e-x.png",
        "drafts": [],
        "predictions": [{"result": [], "score": 0.5}],
        "data": data,
        "meta": {},
        "created_at": "2026-01-30T12:00:00.000000Z",
        "updated_at": "2026-01-31T12:35:00.000000Z",
        "inner_id": 1,
        "total_annotations": len(annotations),
        "cancelled_annotations": 0,
        "project": 3,
    } | more


def chosen(value="4", by=7, at="2026-01-31T12:34:56.789012Z", **more):
    """Writes an annotation as Label Studio does."""
    return {
        "id": 12,
        "completed_by": by,
        "result": [
            {
                "value": {"choices": [value]},
                "id": "Ua8Zk2wG0q",
                "from_name": "answer",
                "to_name": "image",
                "type": "choices",
                "origin": "manual",
            }
        ],
        "was_cancelled": False,
        "ground_truth": False,
        "created_at": at,
        "updated_at": at,
        "lead_time": 4.25,
        "unique_id": "0a7c6e0e-0000-4000-8000-000000000000",
        "parent_prediction": None,
    } | more


def as_json(path, tasks):
    path.write_text(json.dumps(tasks))
    return path


def votes_of(db):
    with db.read() as c:
        return [
            tuple(row)
            for row in c.execute(
                select(t.annotator.c.name, t.task.c.asset, t.vote.c.answer, t.vote.c.seconds)
                .join(t.vote, t.vote.c.annotator_id == t.annotator.c.id)
                .join(t.task, t.task.c.id == t.vote.c.task_id)
                .order_by(t.vote.c.id)
            )
        ]


def test_zooniverses_export_comes_in(asked, tmp_path):
    one, two, three = asked.assets[:3]
    found = [
        zoo({"#sha256": one}),
        zoo({"Filename": f"{one}.png"}, "not-logged-in-2c61707e96c97a759840", "unsure"),
        zoo({"sha256": two}, value="not believable"),
        zoo({"sha256": "0" * 64}),
        zoo({"//sha256": one}, value="5", at="2026-01-31 12:34:57 UTC"),
        zoo({"sha256": three}, at="2025-01-31 1:34:57 UTC", metadata=""),
    ]
    done = import_votes(asked.db, as_csv(tmp_path / "votes.csv", found), "zooniverse")
    assert done == interchange.ImportSummary(taken=4, late=0, skipped=1, unknown=1, people=2)
    assert votes_of(asked.db) == [
        ("Ada", three, 4, 0.0),
        ("Ada", one, 4, 5.5),
        ("not-logged-in-2c61707e96c97a759840", one, UNSURE, 5.5),
        ("Ada", two, IMPLAUSIBLE, 5.5),
    ]
    assert replay(asked.db).differences == []


def test_label_studios_export_comes_in(asked, tmp_path):
    one, two, three = asked.assets[:3]
    email = {"id": 9, "email": "ben@example.org", "first_name": "", "last_name": ""}
    found = [
        studio({"image": f"/data/upload/3/1f2e3d4c-{one}.png"}, chosen(), chosen("5", by=email)),
        studio({"image": "x", "sha256": two}, chosen("unsure"), chosen("6"), meta=None),
        studio({"image": "x", "sha256": three}, chosen(was_cancelled=True, result=[])),
        studio({"image": "x", "sha256": three}),
    ]
    done = import_votes(asked.db, as_json(tmp_path / "votes.json", found), "label-studio")
    assert done == interchange.ImportSummary(taken=3, late=0, skipped=1, unknown=0, people=2)
    assert sorted(votes_of(asked.db)) == sorted(
        [
            ("label-studio-7", one, 4, 4.25),
            ("ben@example.org", one, 5, 4.25),
            ("label-studio-7", two, UNSURE, 4.25),
        ]
    )


def test_votes_that_were_given_elsewhere_move_a_campaign(asked, tmp_path):
    export_votes(asked.db, tmp_path / "open.json", "label-studio", blank=True)
    tasks = json.loads((tmp_path / "open.json").read_text())
    for task in tasks:
        task["annotations"] = [chosen("4", by=k) for k in (1, 2, 3)]
    done = import_votes(asked.db, as_json(tmp_path / "votes.json", tasks), "label-studio")
    assert (done.taken, done.late) == (12, 6), "two who agree decide, the third comes late"
    assert status.overview(asked.db).runs == {"waiting": 6}
    with asked.db.read() as c:
        (token,) = c.execute(select(t.annotator.c.token_sha256).limit(1)).scalars()
        assert campaigns.find_person(c, token) is None
    worker = Worker(asked.db)
    assert all(worker.once() for _ in range(6))
    assert replay(asked.db).differences == []


def test_a_picture_that_is_asked_about_twice_is_voted_on_twice(campaign, folder, tmp_path):
    twins = tmp_path / "twins"
    twins.mkdir()
    for name in ("a.png", "b.png"):
        (twins / name).write_bytes((folder / "digit-0.png").read_bytes())
    made = campaign(images=twins, rule=Rule(least=2, most=3))
    worker = Worker(made.db)
    while worker.once():
        pass
    with made.db.read() as c:
        (asset,) = set(c.execute(select(t.task.c.asset)).scalars())
    path = as_csv(tmp_path / "votes.csv", [zoo({"#sha256": asset})])
    assert import_votes(made.db, path, "zooniverse").taken == 1
    assert count(made.db, t.vote) == 2
    assert import_votes(made.db, path, "zooniverse").skipped == 1
    assert count(made.db, t.vote) == 2
    campaigns.invite(made.db, "Ben")
    with made.db.write() as c:
        for answer, task in enumerate(c.execute(select(t.task)).all()):
            votes.cast(c, task, 2, answer, f"key {answer}", 2000.0 - answer, 1.0)
    for form in interchange.FORMATS:
        export_votes(made.db, tmp_path / form, form)
        other = campaign(images=twins, rule=Rule(least=2, most=3))
        taken_in(other.db, tmp_path / form, form)
        assert told(other.db) == told(made.db), "where we say which is meant, it is that one"


def test_who_was_looking_at_a_picture_is_told(asked, tmp_path):
    campaigns.invite(asked.db, "Ada")
    offer = assignment.take(asked.db, 1, 1000.0)
    path = as_csv(tmp_path / "votes.csv", [zoo({"#sha256": offer.asset})])
    assert import_votes(asked.db, path, "zooniverse").people == 0
    with pytest.raises(votes.Conflict, match="voted on this picture before"):
        votes.vote(asked.db, 1, offer.key, 5, 1001.0)
    assert assignment.take(asked.db, 1, 1002.0) != offer


SHA = "a" * 64
T0 = {"task": "T0", "value": "4"}


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"value": "five"}, r"line 3: the answer must be one of '0', .*, got 'five'"),
        ({"value": None}, r"line 3: the answer must be one of .* got None"),
        ({"value": 4}, r"line 3: the answer must be one of .* got 4"),
        ({"annotations": "4"}, r"line 3: annotations must be a list of JSON, got '4'"),
        ({"annotations": "[NaN]"}, r"annotations must be a list of JSON"),
        ({"annotations": "[" * 100_000}, r"annotations must be a list of JSON, got '\[+…"),
        ({"annotations": "[]"}, r"annotations must be of one question, T0, got '\[\]'"),
        ({"annotations": json.dumps([T0, T0])}, r"of one question"),
        ({"annotations": "[4]"}, r"of one question"),
        ({"name": ""}, r"line 3: a person's name must be one line of 1 to 100"),
        ({"name": "x" * 101}, r"line 3: a person's name"),
        ({"name": "a\nb"}, r"a person's name"),
        ({"at": "yesterday"}, r"line 3: the time must be like 2026-01-31 12:34:56 UTC, got 'yes"),
        ({"at": "2999-01-31 12:34:56 UTC"}, r"the time must be .* not in the future"),
        ({"at": "1950-01-31 12:34:56 UTC"}, r"the time must be after 1970"),
        ({"subject_data": "{}"}, r"line 3: subject_data must be of one subject, got '{}'"),
        ({"subject_data": '{"1": {}, "2": {}}'}, r"subject_data must be of one subject"),
        ({"subject_data": '{"1": 2}'}, r"subject_data must be of one subject"),
        ({"subject_data": "x"}, r"subject_data must be an object of JSON, got 'x'"),
        ({"subject_data": '{"1": {"a": 2}}'}, r"the picture must be a sha256 .* got None"),
        ({"subject_data": '{"1": {"sha256": "../x"}}'}, r"the picture must be .* got '../x'"),
        ({"metadata": "[]"}, r"line 3: metadata must be an object of JSON, got '\[\]'"),
        ({"metadata": '{"source": "leapfactual"}'}, r"`voided` must be true or false, got None"),
    ],
)
def test_a_row_that_is_wrong_is_named_and_nothing_is_taken(asked, tmp_path, cells, message):
    before = state(asked.db)
    found = [zoo({"#sha256": asked.assets[0]}), zoo({"#sha256": asked.assets[1]}, **cells)]
    path = as_csv(tmp_path / "votes.csv", found)
    if cells.get("name") == "a\nb":
        message = message.replace("line 3", "line 4")
    with pytest.raises(InputError, match=message):
        import_votes(asked.db, path, "zooniverse")
    assert state(asked.db) == before


OWN = {"source": "leapfactual", "sha256": SHA, "kind": "frame", "task": 1}
RUN = OWN | {"run": "r", "original": SHA, "target": 3, "segment": 0, "position": 0}


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (4, r"{ was expected, got 4"),
        ({}, r"task 2: `data` must be an object, got None"),
        (studio({}), r"task 2: the picture must be a sha256 of 64 digits"),
        ({"data": {"sha256": SHA}}, r"task 2: `annotations` must be a list, as in an export"),
        (studio({"sha256": SHA}, meta=[1]), r"`meta` must be an object, got \[1\]"),
        (studio({"sha256": SHA}, 4), r"task 2, annotation 1: an annotation must be an object"),
        (studio({"sha256": SHA}, chosen(), chosen("x")), r"annotation 2: the answer .* got 'x'"),
        (studio({"sha256": SHA}, chosen(result=[])), r"`result` must be of one choice, got \[\]"),
        (studio({"sha256": SHA}, chosen(result=None)), r"`result` must be of one choice"),
        (studio({"sha256": SHA}, chosen(by=None)), r"the person must be a name, got None"),
        (studio({"sha256": SHA}, chosen(by={})), r"the person must be a name, got None"),
        (studio({"sha256": SHA}, chosen(at=None)), r"the time must be like .*, got None"),
        (studio({"sha256": SHA}, chosen(lead_time=-1)), r"the seconds must be .*, got -1"),
        (studio({"sha256": SHA}, chosen(lead_time="1")), r"the seconds must be .*, got '1'"),
        (studio({"sha256": SHA}, chosen(lead_time=10**400)), r"the seconds must be"),
        (studio(OWN | {"kind": "x"}), r"the kind must be one of frame, gold, repeat, got 'x'"),
        (studio(OWN | {"task": -1}), r"the task must be a whole number .*, got -1"),
        (studio(OWN), r"the run must be a name, got None"),
        (studio(RUN | {"run": "\ud800"}), r"the run must be a name, got '.ud800'"),
        (studio(RUN | {"run": "\0"}), r"the run must be a name"),
        (studio(OWN | {"run": "r"}), r"the original must be a sha256 of 64 digits"),
        (studio(RUN | {"target": None}), r"the target must be a whole number .*, got None"),
        (studio(RUN | {"segment": True}), r"the segment must be .*, got True"),
        (studio(RUN | {"position": 2**31}), r"the position must be .*, got 2147483648"),
    ],
)
def test_a_task_that_is_wrong_is_named_and_nothing_is_taken(asked, tmp_path, task, message):
    before = state(asked.db)
    good = studio({"sha256": asked.assets[0]}, chosen())
    path = as_json(tmp_path / "votes.json", [good, task])
    with pytest.raises(InputError, match=message):
        import_votes(asked.db, path, "label-studio")
    assert state(asked.db) == before


def test_files_that_are_something_else_are_refused(asked, tmp_path, monkeypatch):
    path = tmp_path / "file"
    with pytest.raises(MissingData, match="there is no file"):
        import_votes(asked.db, path, "zooniverse")
    for content, form, message in (
        ("", "zooniverse", "the columns user_name, created_at, .* are missing"),
        ("user_name\nx", "zooniverse", "no classification export of Zooniverse"),
        (",".join(zooniverse.COLUMNS) + "\n1,2\n", "zooniverse", "line 2: a row .* 14 columns"),
        (",".join(zooniverse.COLUMNS) + '\n"x', "zooniverse", "line 2: this is no CSV"),
        (",".join(zooniverse.COLUMNS) + "\n" + "x" * 200_000, "zooniverse", "this is no CSV"),
        (",".join(zooniverse.REQUIRED_COLUMNS), "label-studio", r"\[ was expected, got u"),
        ("", "label-studio", r"\[ was expected, got the end"),
        ("[", "label-studio", "{ was expected, got the end"),
        ("[]]", "label-studio", "goes on after the list"),
        ("[{}", "label-studio", "`data` must be an object"),
        ('[{"data": ', "label-studio", "task 1 is no whole object of JSON"),
        ('[{"a": NaN}]', "label-studio", "NaN is no JSON"),
        ('[{"a":' + "[" * 200_000, "label-studio", "task 1 is no whole object of JSON"),
        (json.dumps([studio({"sha256": SHA})])[:-1] + ",]", "label-studio", "{ was expected"),
        (json.dumps([studio({"sha256": SHA})])[:-1] + "{}]", "label-studio", ", or ] was exp"),
        (json.dumps(studio({"sha256": SHA})), "label-studio", r"\[ was expected, got {"),
    ):
        path.write_text(content)
        with pytest.raises(InputError, match=message):
            import_votes(asked.db, path, form)
    path.write_bytes(b"\xff\xfe\x00")
    for form in interchange.FORMATS:
        with pytest.raises(InputError, match="no text in UTF-8"):
            import_votes(asked.db, path, form)
    monkeypatch.setattr(records, "MAX_FILE_BYTES", 2)
    with pytest.raises(InputError, match="has 3 bytes; at most 2 are read"):
        import_votes(asked.db, path, "zooniverse")


def test_another_campaigns_votes_are_refused(asked, tmp_path):
    path = as_csv(tmp_path / "votes.csv", [zoo({"#sha256": SHA}), zoo({"#sha256": "b" * 64})])
    before = state(asked.db)
    with pytest.raises(InputError, match="none of the 2 votes in .* do its jobs first"):
        import_votes(asked.db, path, "zooniverse")
    assert state(asked.db) == before


def test_a_list_is_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(label_studio, "CHUNK", 7)
    tasks = [{"a": "x" * n, "b": [n, {"c": "]}é☃"}]} for n in range(40)]
    for text in (json.dumps(tasks), json.dumps(tasks, indent=3, ensure_ascii=False), " [ ] "):
        found = [task for _, task in label_studio._tasks(io.StringIO(text), Path("x"))]
        assert found == json.loads(text)


def grow_interned_strings():
    """Makes the interpreter enlarge its table of interned strings now, not while we measure.

    pathlib interns every part of every path, here two new file names for each picture. Entries of
    names that are gone are not used again, so every some 250,000 names the table is copied,
    whoever adds the last one. With torch imported that takes 7.7 MB at a stroke. Right after it,
    there is room for more names than a test makes.
    """
    tracemalloc.start()
    for k in itertools.count():
        before = tracemalloc.get_traced_memory()[0]
        for n in range(1000):
            sys.intern(f"filler {k} {n}")
        if tracemalloc.get_traced_memory()[0] - before > 50_000:
            break
    tracemalloc.stop()


@pytest.mark.slow
@BOTH
def test_memory_does_not_grow_with_votes_and_pictures(campaign, tmp_path, form):
    made = campaign()
    people = invited(made.db, 4)
    grow_interned_strings()
    path, peaks, sizes = tmp_path / "votes", [], []
    for tasks in (range(1, 31), range(31, 301)):
        with made.db.write() as c:
            for k in tasks:
                asset = put_asset(c, random.Random(k).randbytes(20_000))
                task = {"id": k, "kind": t.GOLD, "state": t.OPEN, "asset": asset, "truth": 4}
                c.execute(insert(t.task).values(**task))
                for p in people:
                    vote = {"task_id": k, "annotator_id": p, "answer": 4, "key": f"{k} {p}"}
                    times = {"counted": True, "created": 1000.0 + k, "seconds": 1.0}
                    c.execute(insert(t.vote).values(**vote, **times))
        for measure in (
            lambda: export_votes(made.db, path, form, tmp_path / "pictures"),
            lambda: export_votes(made.db, path, form),
            lambda: import_votes(made.db, path, form),
        ):
            tracemalloc.start()
            measure()
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        sizes.append(path.stat().st_size)
    assert sizes[1] - sizes[0] > (5_000_000 if form == "label-studio" else 500_000)
    assert max(peaks[3:]) - max(peaks[:3]) < 300_000, (peaks, sizes)


# -- the commands --


@BOTH
def test_the_commands(played, fresh, tmp_path, form):
    made, other = played(), fresh()
    file = str(tmp_path / "votes")
    run = CliRunner()
    words = ["people", "export", made.db.place, file, "--format", form]
    done = run.invoke(app, [*words, "--pictures", str(tmp_path / "pictures")])
    assert done.exit_code == 0, done.output
    assert f"Wrote {count(made.db, t.vote)} votes to {file}, and" in done.output.replace("\n", " ")
    words = ["people", "import", other.db.place, file, "--format", form]
    done = run.invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "do the jobs and import the file again" in done.output.replace("\n", " ")
    done = run.invoke(app, [*words, "--json"])
    assert json.loads(done.output)["taken"] == 0
