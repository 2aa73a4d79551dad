"""Kills server and worker again and again, at any moment, while people vote.

Everything runs in processes of its own, forked from one that has loaded all modules, so that a
process is back at once. The socket is the parent's: who comes while nobody serves waits.

Run by hand: ``python -m tests.people.killing --kills 300 --people 50``
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from importlib.resources import files
from pathlib import Path

import httpx
import torch
import uvicorn
from sqlalchemy import func, select

from leapfactual.data.images import open_images
from leapfactual.imaging import to_pil
from leapfactual.people import campaigns, status
from leapfactual.people.audit import replay
from leapfactual.people.consensus import Rule
from leapfactual.people.creation import create
from leapfactual.people.store import tables as t
from leapfactual.people.store.database import Database
from leapfactual.people.web.app import application
from leapfactual.people.worker import Worker, decode_png
from leapfactual.pretrained import load
from leapfactual.web.guard import RateLimiter

KEY = re.compile(r'name="key" value="([0-9a-f]{32})"')


def forked(job):
    """Runs a job in a process of its own, and returns its number."""
    pid = os.fork()
    if pid:
        return pid
    try:
        job()
    finally:
        os._exit(0)


def serve(place, sock):
    """Serves the page on a socket that is open already."""
    app = application(Database(place), limiter=RateLimiter(burst=10**9))
    config = uvicorn.Config(app, fd=sock.fileno(), log_level="critical", access_log=False)
    uvicorn.Server(config).run()


def work(place):
    """Does jobs, and looks for them without pause; those of the killed are done again at once."""
    import leapfactual.people.worker as module

    module.JOB_LEASE_SECONDS = 1.0
    Worker(Database(place)).run(lambda: False, pause=0.02)


class Voter:
    """A person who never gives up: an answer is sent until it is acknowledged."""

    def __init__(self, token, url, answer, pause, seed):
        self.token, self.url, self.answer, self.pause = token, url, answer, pause
        self.chance = random.Random(seed)
        self.acknowledged, self.lost = {}, 0

    async def go(self, stop):
        cookies = {"leapfactual": self.token}
        headers = {"origin": self.url}
        limits = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(
            base_url=self.url, cookies=cookies, headers=headers, timeout=20, limits=limits
        ) as client:
            while not stop.is_set():
                await asyncio.sleep(self.chance.uniform(0.2, 1.8) * self.pause)
                try:
                    page = (await client.get("/task")).text
                    found = KEY.search(page)
                    if found is None:
                        continue
                    picture = (await client.get(f"/image/{found[1]}")).content
                except httpx.HTTPError:
                    continue
                await self.vote(client, found[1], self.answer(picture, self.chance), stop)

    async def vote(self, client, key, answer, stop):
        """Sends an answer until it is taken, and sometimes once more."""
        data = {"key": key, "answer": str(answer)}
        while True:
            try:
                got = await client.post("/vote", data=data)
            except httpx.HTTPError:
                self.lost += 1
                if stop.is_set():
                    return
                await asyncio.sleep(0.05)
                continue
            if got.status_code == 303:
                self.acknowledged[key] = answer
                if self.chance.random() < 0.9:
                    return
            elif got.status_code != 503:
                raise AssertionError(f"{got.status_code}: {got.text[-300:]}")


def crowd(tokens, url, known, path, pause, halt):
    """Lets everybody vote until a file says to stop; writes what was acknowledged."""

    def answer(content, chance):
        if chance.random() < 0.1:
            return chance.randrange(10)
        if content not in known:
            known[content] = int(classifier(decode_png(content)).argmax())
        return known[content]

    classifier = load().classifier

    async def main():
        stop = asyncio.Event()
        voters = [Voter(token, url, answer, pause, k) for k, token in enumerate(tokens)]
        jobs = [asyncio.create_task(voter.go(stop)) for voter in voters]
        while not halt.exists():
            await asyncio.sleep(0.1)
            for job in jobs:
                if job.done():
                    job.result()
        stop.set()
        await asyncio.gather(*jobs)
        return voters

    voters = asyncio.run(main())
    acknowledged = {k: v for voter in voters for k, v in voter.acknowledged.items()}
    lost = sum(voter.lost for voter in voters)
    path.write_text(json.dumps({"acknowledged": acknowledged, "lost": lost}))


def campaign(place, folder, pictures):
    """Makes a campaign that lasts."""
    shipped = load()
    for k in range(pictures):
        to_pil(shipped.digits.images[k]).save(folder / f"digit-{k:03d}.png")
    chosen = campaigns.CampaignSettings(
        "Which digit is this?",
        plan="blend(40, 0.04)",
        mode="batch",
        max_frames=8,
        rule=Rule(least=5, most=9),
        repeat_share=0.1,
    )
    opened = open_images(folder)
    bundle = files("leapfactual") / "shipped" / "bundle"
    create(place, bundle, opened, [3] * len(opened), chosen)


def kill(place, folder, *, kills, people, pictures, pause, seed=0, again=True):
    """Kills so many times, then looks whether anything is lost; returns what was found."""
    torch.set_num_threads(1)
    chance = random.Random(seed)
    (folder / "pictures").mkdir()
    campaign(place, folder / "pictures", pictures)
    db = Database(place)
    tokens = [campaigns.invite(db, f"person {k}") for k in range(people)]
    db.close()
    sock = socket.create_server(("127.0.0.1", 0), backlog=1024)
    sock.set_inheritable(True)
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    jobs = {"server": lambda: serve(place, sock), "worker": lambda: work(place)}
    running = {name: forked(job) for name, job in jobs.items()}
    told, halt = folder / "told.json", folder / "halt"
    voters = forked(lambda: crowd(tokens, url, {}, told, pause, halt))
    started, done = time.time(), {"server": 0, "worker": 0}
    try:
        for _ in range(kills):
            time.sleep(chance.uniform(0.02, 0.5))
            name = chance.choice(list(jobs))
            os.kill(running[name], signal.SIGKILL)
            os.waitpid(running[name], 0)
            done[name] += 1
            running[name] = forked(jobs[name])
        time.sleep(1.0)
        wait_for_votes(place, 60)
        halt.touch()
        assert os.waitpid(voters, 0)[1] == 0
    finally:
        for pid in running.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        sock.close()
    return {"seconds": round(time.time() - started, 1), "kills": done} | found(
        place, json.loads(told.read_text()), again
    )


def wait_for_votes(place, wanted, seconds=60.0):
    """Waits until there are so many votes: a slow machine takes fewer between two kills."""
    db, until = Database(place), time.time() + seconds
    while time.time() < until:
        with db.read() as c:
            if c.execute(select(func.count()).select_from(t.vote)).scalar_one() >= wanted:
                break
        time.sleep(0.2)
    db.close()


def found(place, told, again):
    """Compares what people were told with what is there."""
    db = Database(place)
    with db.read() as c:
        stored = {row.key: row.answer for row in c.execute(select(t.vote)).all()}
        votes = c.execute(select(func.count()).select_from(t.vote)).scalar_one()
        opened = c.execute(
            select(func.count()).select_from(t.event).where(t.event.c.kind == "opened")
        ).scalar_one()
        rounds = c.execute(select(func.count()).select_from(t.round_)).scalar_one()
        pairs = c.execute(select(t.vote.c.task_id, t.vote.c.annotator_id)).all()
        segments = c.execute(select(t.segment.c.run_id, t.segment.c.number)).all()
        statuses = status.overview(db).runs
    acknowledged = told["acknowledged"]
    return {
        "acknowledged": len(acknowledged),
        "sent in vain": told["lost"],
        "votes": votes,
        "lost": sum(stored.get(key) != answer for key, answer in acknowledged.items()),
        "doubled": len(pairs) - len({tuple(pair) for pair in pairs}),
        "rounds": rounds,
        "rounds opened twice": opened - rounds + len(segments) - len({*map(tuple, segments)}),
        "runs": statuses,
        "replay differs": replay(db).differences if again else None,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--place")
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--people", type=int, default=50)
    parser.add_argument("--pictures", type=int, default=200)
    parser.add_argument("--pause", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    assert threading.active_count() == 1, "forking wants one thread"
    with tempfile.TemporaryDirectory() as folder:
        place = given.place or str(Path(folder) / "campaign.db")
        options = {k: v for k, v in vars(given).items() if k != "place"}
        json.dump(kill(place, Path(folder), **options), sys.stdout, indent=1)


if __name__ == "__main__":
    main()
