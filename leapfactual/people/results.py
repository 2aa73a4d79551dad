"""The results of a campaign: a table, pictures, and a page to look at."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import select

from ..explainer import LeapFactual
from ..explanation import Explanation
from ..files import atomic
from ..report import cards, write_page
from .exchange.records import escape_formula
from .status import describe_answer, run_history
from .store import tables as t
from .store.assets import get_asset
from .store.database import Database
from .transitions import EXHAUSTED, REACHED, get_campaign
from .worker import decode_png, load_explainer, lookahead

MAX_STEM_BYTES = 150
COLUMNS = (
    "picture",
    "target",
    "status",
    "reason",
    "source",
    "label",
    "leaps",
    "queries",
    "guessed",
    "votes",
    "adjudicated",
    "doubted",
)


def rows(db: Database) -> Iterator[dict[str, Any]]:
    """Yields a row of the table for every run of a campaign."""
    with db.read() as c:
        classes = get_campaign(c).classes
        numbers = list(c.execute(select(t.run.c.id).order_by(t.run.c.id)).scalars())
    for number in numbers:
        run = run_history(db, number)
        result = run["result"] or {}
        frames = [f for s in run["segments"] for f in s["frames"]]
        votes = [v for f in frames for v in f["votes"]]
        yield {
            "picture": run["name"],
            "target": classes[run["target"]],
            "status": run["status"],
            "reason": run["reason"],
            "source": describe_answer(run["answers"][0], classes) if run["answers"] else "",
            "label": describe_answer(result["label"], classes) if result else "",
            "leaps": result.get("leaps", ""),
            "queries": len(run["answers"]),
            "guessed": run["guessed"],
            "votes": sum(v["counted"] for v in votes),
            "adjudicated": sum(f["adjudicated"] for f in frames),
            "doubted": run["doubted"],
        }


def write_results(
    db: Database, out: str | Path, bundle: str | Path | None = None, device: str = "cpu"
) -> int:
    """Writes results.csv, results.json, the pictures and a page; returns how many runs ended.

    Runs are walked again one by one, so memory does not grow with their number.

    Arguments:
        db: The database.
        out: The folder to write to.
        bundle: The bundle, if it is somewhere else than when the campaign was made.
        device: Where to compute.
    """
    out, table = Path(out), list(rows(db))
    with atomic(out / "results.csv") as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(
            {k: escape_formula(v) if isinstance(v, str) else v for k, v in row.items()}
            for row in table
        )
    with atomic(out / "results.json") as temporary:
        temporary.write_text(json.dumps(table, indent=1) + "\n")
    with db.read() as c:
        campaign = get_campaign(c)
    count = 0

    def write_run_cards() -> Iterator[dict[str, Any]]:
        nonlocal count
        for run, e, pictures in explanations(db, explainer, device):
            stem = run["name"].replace("\\", "/").strip("/").replace("/", "-")
            stem = stem.encode()[-MAX_STEM_BYTES:].decode(errors="ignore")
            for what, content in pictures.items():
                place = out / "pictures" / f"{run['id']:04d}, {stem}, {what}.png"
                with atomic(place) as temporary:
                    temporary.write_bytes(content)
            count += 1
            (card,) = cards(e, names=[run["name"]], generator=explainer.generator)
            yield card | {"reason": run["reason"]}

    if not any(row["status"] in (REACHED, EXHAUSTED) for row in table):
        return 0
    explainer = load_explainer(db, bundle, device, keep_path=True)
    write_page(
        out / "index.html",
        write_run_cards(),
        title=campaign.name,
        about=f"{campaign.question} What people would have had to see for another answer. The "
        "pictures are synthetic.",
        classes=campaign.classes,
        asked="people",
    )
    return count


def explanations(
    db: Database, explainer: LeapFactual, device: str = "cpu"
) -> Iterator[tuple[dict[str, Any], Explanation, dict[str, bytes]]]:
    """Replays every run that was walked to its end, through the answers that people gave.

    Yields the history of the run (:func:`.status.run_history`), the explanation with its path, and
    the pictures as PNGs.

    Arguments:
        db: The campaign.
        explainer: What walked its pictures; see :func:`.worker.load_explainer`.
        device: Where it computes.
    """
    with db.read() as c:
        numbers = list(
            c.execute(
                select(t.run.c.id)
                .where(t.run.c.status.in_([REACHED, EXHAUSTED]))
                .order_by(t.run.c.id)
            ).scalars()
        )
    for number in numbers:
        run = run_history(db, number)
        with db.read() as c:
            before = get_asset(c, run["asset"])
            after = get_asset(c, run["result"]["counterfactual"])
        assert before is not None
        assert after is not None
        x = decode_png(before[1]).to(device)
        e = lookahead(explainer, x, run["target"], run["answers"], 1).explanation
        assert e is not None
        yield run, e, {"before": before[1], "after": after[1]}
