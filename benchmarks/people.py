"""How many people can vote at once? Two hundred open pages and vote, all the time.

``python -m benchmarks.people [CAMPAIGN] --seconds 60``; without a campaign a SQLite file is used.
"""

import argparse
import json
import tempfile
import threading
import time
from importlib.resources import files
from pathlib import Path

from leapfactual.data.images import open_images
from leapfactual.imaging import to_pil
from leapfactual.people import campaigns, status
from leapfactual.people.consensus import Rule
from leapfactual.people.creation import create
from leapfactual.people.store.database import Database
from leapfactual.pretrained import load
from studies.people import serve
from studies.people.crowd import Character, Eye, Voter, vote


def main():
    """Prints what was measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("place", nargs="?")
    parser.add_argument("--people", type=int, default=200)
    parser.add_argument("--pause", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=60)
    given = parser.parse_args()
    shipped = load()
    with tempfile.TemporaryDirectory() as folder:
        place = given.place or str(Path(folder) / "campaign.db")
        (Path(folder) / "digits").mkdir()
        for n, x in enumerate(shipped.digits.images):
            to_pil(x).save(Path(folder) / "digits" / f"{n:03d}.png")
        images = open_images(Path(folder) / "digits")
        rule = Rule(least=7, most=15)
        plan = campaigns.CampaignSettings(
            "Which digit is this?", plan="blend(40, 0.04)", rule=rule
        )
        bundle = files("leapfactual") / "shipped" / "bundle"
        create(place, bundle, images, [8] * len(images), plan)
        db = Database(place)
        voters = [
            Voter(campaigns.invite(db, f"person {n}"), Character(0.9, given.pause), n)
            for n in range(given.people)
        ]
        until = threading.Event()
        with serve(place) as url:
            time.sleep(5)
            threading.Timer(given.seconds, until.set).start()
            took = vote(voters, url, Eye(shipped.classifier), 10, until.is_set)
        found = {"people": given.people, "seconds between votes": given.pause, "took": took}
        found["votes a second"] = sum(voter.given for voter in voters) / took
        for what in ("task", "image", "vote"):
            times = sorted(s for voter in voters for s in voter.seconds.get(what, []))
            found[what] = {
                f"{share:.0%} ms": round(1000 * times[int(share * (len(times) - 1))], 1)
                for share in (0.5, 0.9, 0.99, 1.0)
            }
        found["failures"] = [text for voter in voters for text in voter.failures][:20]
        found["stored"] = status.overview(db).votes
        db.close()
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
