"""A crowd of simulated people explains digits, for real over HTTP.

The paper says that the classifier may be people, and lets a network stand for them. Here a network
is only the eye: two hundred people with characters of their own, good ones, slow ones, some who
leave and some who answer at random, open the page and vote, each picture waits for their
consensus, and the outcome is measured by whether people without fault would accept it.
"""

import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.resources import as_file, files
from pathlib import Path
from statistics import fmean

import torch
from sqlalchemy import func, select

from leapfactual.data.images import open_images
from leapfactual.files import atomic
from leapfactual.imaging import to_pil
from leapfactual.people import campaigns, status, votes
from leapfactual.people.consensus import DAWID_SKENE, MAJORITY, Rule
from leapfactual.people.creation import create
from leapfactual.people.questions import BATCH, BISECT, STEP
from leapfactual.people.store import tables as t
from leapfactual.people.store.assets import get_asset
from leapfactual.people.store.database import Database
from leapfactual.pretrained import load
from leapfactual.report import tables as results

from ..state import read_json, same_study, write_json
from .crowd import Character, Eye, Voter, vote

PLAN = "blend(12, 0.15), inject(2, 0.1, 0.25)"
TARGET = 8
LEASE_SECONDS = 6.0


@dataclass(frozen=True)
class Settings:
    """How many people and pictures there are.

    Arguments:
        people: How many people vote.
        pictures: How many digits are explained, at most 100.
        gold: How many pictures have known answers.
        pause: How many seconds a person takes, on average; real ones take some twenty times that.
        runs: How often everything is done, each time with other people.
        seed: The first seed.
    """

    people: int = 200
    pictures: int = 50
    gold: int = 40
    pause: float = 0.4
    runs: int = 1
    seed: int = 0


CASES = {
    "few spammers": 0.1,
    "many spammers": 0.4,
}
METHODS = (
    (STEP, MAJORITY),
    (BATCH, MAJORITY),
    (BISECT, MAJORITY),
    (BATCH, DAWID_SKENE),
)


def crowd(settings: Settings, spammers: float, seed: int) -> list[Character]:
    """Returns the people: some at random, the rest right in three of four cases or more."""
    rng = torch.Generator().manual_seed(seed)

    def draw() -> float:
        return torch.rand((), generator=rng).item()

    people = []
    for n in range(settings.people):
        if n < spammers * settings.people:
            people.append(Character(0.1, settings.pause / 4))
            continue
        luck = draw()
        pause = settings.pause * (8 if luck < 0.1 else 1)
        patience = int(5 + 20 * draw()) if 0.1 <= luck < 0.3 else None
        people.append(Character(0.75 + 0.24 * draw(), pause, patience))
    return people


def run(
    out: Path,
    settings: Settings,
    *,
    command: str,
    progress: Callable[[float, str], object],
) -> list[results.Row]:
    """Lets the crowd explain digits in every mode, and writes the table.

    What is done is kept in the folder, so that an interrupted study resumes where it stopped.

    Arguments:
        out: The folder to write to.
        settings: How many people and pictures.
        command: How the study was called, for the record.
        progress: Called with the share that is done and what is going on.
    """
    same_study(out, {k: v for k, v in asdict(settings).items() if k != "runs"})
    todo = [
        (settings.seed + n, case, mode, method)
        for n in range(settings.runs)
        for case in CASES
        for mode, method in METHODS
    ]
    found: dict[tuple[str, str, str], list[float]] = {}
    for k, (seed, case, mode, method) in enumerate(todo):
        path = out / f"{seed}-{case.replace(' ', '-')}-{mode}-{method}.json"
        progress(k / len(todo), f"{case}, {mode}, {method}")
        if not path.exists():
            write_json(_campaign(settings, CASES[case], mode, method, seed), path)
        for metric, value in read_json(path).items():
            found.setdefault((case, f"{mode}, {method}", metric), []).append(value)
    rows = [results.row(*key, values) for key, values in found.items()]
    results.write(out / "people.json", rows, seed=settings.seed, command=command)
    with atomic(out / "people.md") as temporary:
        temporary.write_text(results.pivot(rows) + "\n")
    progress(1.0, "done")
    return rows


def _campaign(
    settings: Settings, spammers: float, mode: str, method: str, seed: int
) -> dict[str, float]:
    """Runs one campaign from its first vote to its last, and measures it."""
    shipped = load()
    eye = Eye(shipped.classifier)
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        place = here / "campaign.db"
        rule = Rule(least=3, most=7, method=method)
        _create(here, settings, Rule(**asdict(rule)), mode, seed)
        db = Database(place)
        people = crowd(settings, spammers, seed)
        voters = [
            Voter(campaigns.invite(db, f"person {n}"), character, seed * 1000 + n)
            for n, character in enumerate(people)
        ]

        decided = 0

        def over() -> bool:
            nonlocal decided
            decided += _adjudicate(db, eye)
            with db.read() as c:
                return campaigns.is_finished(c)

        try:
            with serve(place) as url:
                took = vote(voters, url, eye, 10, over)
            return _measure(db, eye, voters, took, decided)
        finally:
            db.close()


def _create(here: Path, settings: Settings, rule: Rule, mode: str, seed: int) -> None:
    """Makes a campaign of digits that are no eights, and of gold from the rest."""
    digits = load().digits
    rows = (digits.labels != TARGET).nonzero()[:, 0].tolist()
    chosen, rest = rows[: settings.pictures], rows[settings.pictures :]
    (here / "digits").mkdir()
    for row in chosen:
        to_pil(digits.images[row]).save(here / "digits" / f"digit-{row:03d}.png")
    for row in rest[: settings.gold]:
        place = here / "gold" / str(int(digits.labels[row]))
        place.mkdir(parents=True, exist_ok=True)
        to_pil(digits.images[row]).save(place / f"gold-{row:03d}.png")
    plan = campaigns.CampaignSettings(
        "Which digit is this?", plan=PLAN, mode=mode, rule=rule, lease=LEASE_SECONDS, seed=seed
    )
    with as_file(files("leapfactual") / "shipped" / "bundle") as bundle:
        create(
            here / "campaign.db",
            bundle,
            open_images(here / "digits"),
            [TARGET] * len(chosen),
            plan,
            open_images(here / "gold"),
        )


@contextmanager
def serve(place: str | Path) -> Iterator[str]:
    """Serves a campaign in a process of its own, with a worker in it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "leapfactual", "people", "serve", str(place)]
    process = subprocess.Popen([*words, "--port", str(port)], stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                with urllib.request.urlopen(f"{url}/alive", timeout=5):
                    break
            except OSError:
                time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def _adjudicate(db: Database, eye: Eye) -> int:
    """Decides what people do not agree on, as an owner without fault would; returns how much."""
    stuck = status.stuck(db)
    for task, _ in stuck:
        with db.read() as c:
            digest = c.execute(select(t.task.c.asset).where(t.task.c.id == task)).scalar_one()
            content = get_asset(c, digest)
        assert content is not None
        votes.adjudicate(db, task, eye(content[1]), time.time())
    return len(stuck)


def _measure(
    db: Database, eye: Eye, voters: list[Voter], took: float, decided: int
) -> dict[str, float]:
    with db.read() as c:
        runs = c.execute(select(t.run)).all()
        given = c.execute(select(func.count()).select_from(t.vote)).scalar_one()
        frames = c.execute(
            select(func.count())
            .select_from(t.vote.join(t.task, t.task.c.id == t.vote.c.task_id))
            .where(t.task.c.kind == t.FRAME)
        ).scalar_one()
        late = c.execute(
            select(func.count()).select_from(t.vote).where(~t.vote.c.counted)
        ).scalar_one()
        rounds = c.execute(select(func.count()).select_from(t.round_)).scalar_one()
        right = []
        for row in c.execute(
            select(t.task.c.asset, t.consensus.c.outcome)
            .join(t.consensus, t.consensus.c.task_id == t.task.c.id)
            .where(~t.consensus.c.adjudicated)
        ).all():
            content = get_asset(c, row.asset)
            assert content is not None
            if row.outcome >= 0:
                right.append(float(eye(content[1]) == row.outcome))
        accepted = 0
        for run in runs:
            if run.status == "reached":
                content = get_asset(c, run.result["counterfactual"])
                assert content is not None
                accepted += eye(content[1]) == run.target
    count = len(runs)
    failures = [text for voter in voters for text in voter.failures]
    seconds = sorted(s for voter in voters for s in voter.seconds.get("vote", []))
    return {
        "accepted by people without fault": accepted / count,
        "reached": sum(run.status == "reached" for run in runs) / count,
        "adjudicated per picture": decided / count,
        "consensus is right": fmean(right) if right else float("nan"),
        "votes on frames per picture": frames / count,
        "votes in all per picture": given / count,
        "late votes per picture": late / count,
        "rounds per picture": rounds / count,
        "guessed labels per picture": fmean(
            [run.result["guessed"] for run in runs if run.result] or [0]
        ),
        "seconds": took,
        "milliseconds for a vote, 99th of 100": 1000 * seconds[int(0.99 * len(seconds))]
        if seconds
        else float("nan"),
        "requests held back, too fast": float(sum(text.endswith("429") for text in failures)),
        "requests failed": float(sum(not text.endswith("429") for text in failures)),
    }
