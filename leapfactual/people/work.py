"""The jobs of a campaign: walk on from what people said, and draw what to ask about next.

A job is leased. A worker that is killed leaves its lease to run out, and the job is done again, to
the same frames: they follow from the picture and the answers. What a job brings is written in one
transaction, and only if it is still wanted.
"""

import hashlib
import io
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import save
from sqlalchemy import Connection, insert, or_, select, update
from torch import Tensor

from ..bundle import Bundle
from ..errors import InputError, LeapError
from ..explain import LeapFactual
from ..explanation import Explanation
from ..leaps import parse
from ..manifest import MANIFEST, sha256
from ..pictures import as_images
from ..report.cards import picture
from . import tables as t
from .database import Database, Unavailable
from .rounds import (
    ASKING,
    EXHAUSTED,
    REACHED,
    STALLED,
    answers,
    end,
    fingerprint,
    note,
    progress,
    settings,
)
from .segments import STEP, Ahead, ahead

LEASE = 600.0
ATTEMPTS = 5
PNG, SAFETENSORS = "image/png", "application/vnd.safetensors"


@dataclass(frozen=True)
class Job:
    """Is what a worker has taken on.

    Arguments:
        id: Its number.
        run: The run to go on with.
        input: What it was queued for.
        said: The answers so far.
        target: The class to reach.
        picture: The image, as a file.
        guessed: How many of the answers nobody was asked for.
    """

    id: int
    run: int
    input: str
    said: tuple[int, ...]
    target: int
    picture: bytes
    guessed: int


def encoded(x: Tensor) -> bytes:
    """Returns an image ``(C, H, W)`` in [0, 1] as a PNG."""
    buffer = io.BytesIO()
    picture(x).save(buffer, format="PNG")
    return buffer.getvalue()


def decoded(content: bytes) -> Tensor:
    """Returns a PNG of ours as an image ``(1, C, H, W)``."""
    with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
        return as_images(image)


def store(c: Connection, content: bytes, media: str = PNG) -> str:
    """Keeps a file by its hash, once, and returns that."""
    digest = hashlib.sha256(content).hexdigest()
    if c.execute(select(t.asset.c.sha256).where(t.asset.c.sha256 == digest)).first() is None:
        c.execute(insert(t.asset).values(sha256=digest, media=media, content=content))
    return digest


class Worker:
    """Does jobs.

    Arguments:
        db: The database.
        bundle: The bundle, if it is somewhere else than when the campaign was made.
        device: Where to compute.
    """

    def __init__(
        self, db: Database, bundle: str | Path | None = None, device: str = "cpu"
    ) -> None:
        self.db, self.name = db, uuid.uuid4().hex
        place = bundle_of(db, bundle)
        with db.read() as c:
            campaign = settings(c)
        self.explainer = explainer_of(Bundle.load(place).to(device), campaign.plan)
        self.device = device
        self.ahead = 1 if campaign.mode == STEP else campaign.ahead

    def once(self, now: float | None = None) -> bool:
        """Does one job, if there is one, and returns whether there was."""
        job = self.claim(time.time() if now is None else now)
        if job is None:
            return False
        try:
            found = ahead(
                self.explainer,
                decoded(job.picture).to(self.device),
                job.target,
                job.said,
                self.ahead,
            )
        except (LeapError, RuntimeError) as error:
            self.fail(job, str(error), time.time() if now is None else now)
            return True
        self.finish(job, found, time.time() if now is None else now)
        return True

    def run(self, stop: Callable[[], bool], pause: float = 0.2) -> None:
        """Does jobs until it is told to stop; a database that fails is waited for."""
        while not stop():
            try:
                busy = self.once()
            except Unavailable:
                busy = False
            if not busy:
                time.sleep(pause)

    def claim(self, now: float) -> Job | None:
        """Takes on a job that nobody does, or whose worker has not been heard of."""
        free = or_(t.job.c.state == t.QUEUED, (t.job.c.state == t.LEASED) & (t.job.c.until < now))
        with self.db.read() as c:
            if c.execute(select(t.job.c.id).where(free).limit(1)).first() is None:
                return None
        with self.db.write() as c:
            self._give_up(c, now)
            row = c.execute(select(t.job).where(free).order_by(t.job.c.id).limit(1)).one_or_none()
            if row is None:
                return None
            c.execute(
                update(t.job)
                .where(t.job.c.id == row.id)
                .values(
                    state=t.LEASED, worker=self.name, until=now + LEASE, attempts=row.attempts + 1
                )
            )
            run = c.execute(select(t.run).where(t.run.c.id == row.run_id)).one()
            content = c.execute(
                select(t.asset.c.content).where(t.asset.c.sha256 == run.asset)
            ).scalar_one()
            said, guessed = answers(c, run.id)
            return Job(row.id, run.id, row.input_sha256, tuple(said), run.target, content, guessed)

    def _give_up(self, c: Connection, now: float) -> None:
        """Stalls the runs whose jobs were tried too often."""
        tried = t.job.c.state.in_([t.QUEUED, t.LEASED]) & (t.job.c.attempts >= ATTEMPTS)
        over = (t.job.c.state == t.QUEUED) | (t.job.c.until < now)
        for row in c.execute(select(t.job).where(tried, over)).all():
            c.execute(update(t.job).where(t.job.c.id == row.id).values(state=t.FAILED))
            reason = row.error or "its worker was killed again and again"
            end(c, row.run_id, STALLED, reason, now)

    def fail(self, job: Job, reason: str, now: float) -> None:
        """Gives a job back that went wrong; after a few times its run stalls."""
        with self.db.write() as c:
            c.execute(
                update(t.job)
                .where(t.job.c.id == job.id, t.job.c.worker == self.name)
                .values(state=t.QUEUED, error=reason)
            )
            note(c, now, "failed", job=job.id, reason=reason)

    def finish(self, job: Job, found: Ahead, now: float) -> bool:
        """Writes what a job brought, if it is still wanted, and returns whether it was."""
        frames = [] if found.frames is None else [encoded(x) for x in found.frames.cpu()]
        with self.db.write() as c:
            mine = c.execute(
                select(t.job.c.id).where(
                    t.job.c.id == job.id, t.job.c.state == t.LEASED, t.job.c.worker == self.name
                )
            ).one_or_none()
            made = c.execute(select(t.segment.c.id).where(t.segment.c.run_id == job.run)).all()
            said, _ = answers(c, job.run)
            if mine is None or fingerprint(job.run, len(made), said) != job.input:
                return False
            c.execute(update(t.job).where(t.job.c.id == job.id).values(state=t.DONE))
            if found.explanation is not None:
                self._end(c, job, found.explanation, now)
                return True
            number = c.execute(
                select(t.segment.c.id).where(t.segment.c.run_id == job.run, ~t.segment.c.discarded)
            ).all()
            segment = c.execute(
                insert(t.segment)
                .values(
                    run_id=job.run,
                    number=len(number),
                    assumed=job.said[-1] if job.said else None,
                    frames=len(frames),
                    discarded=False,
                )
                .returning(t.segment.c.id)
            ).scalar_one()
            c.execute(
                insert(t.frame),
                [
                    {"segment_id": segment, "position": k, "asset": store(c, content)}
                    for k, content in enumerate(frames)
                ],
            )
            c.execute(update(t.run).where(t.run.c.id == job.run).values(status=ASKING))
            progress(c, segment, now)
        return True

    def _end(self, c: Connection, job: Job, e: Explanation, now: float) -> None:
        latents = {"z": e.z.cpu(), "z_counterfactual": e.z_counterfactual.cpu().clone()}
        result = {
            "counterfactual": store(c, encoded(e.counterfactual[0].cpu())),
            "reconstruction": store(c, encoded(e.reconstruction[0].cpu())),
            "latents": store(c, save(latents), SAFETENSORS),
            "source": int(e.source[0]),
            "label": int(e.label[0]),
            "leaps": int(e.leaps[0]),
            "questions": int(e.questions[0]),
            "guessed": job.guessed,
        }
        status = REACHED if bool(e.valid[0]) else EXHAUSTED
        end(c, job.run, status, _said(e, settings(c).classes), now, result)


def _said(e: Explanation, classes: Sequence[str]) -> str:
    """Says in a sentence what came of a walk."""
    source, target, label = (classes[int(k[0])] for k in (e.source, e.target, e.label))
    if bool(e.source[0] == e.target[0]):
        return f"people called it {target} from the start"
    if bool(e.valid[0]):
        first, leaps = int(e.first[0]), int(e.leaps[0])
        return f"from {source} to {target} by leap {first}, returned after {leaps}"
    return f"still {label} at the end: try more leaps or a larger step size"


def _work(place: str, bundle: Path | None, device: str, parent: int) -> None:
    """Does jobs for as long as the process that started this one lives."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(max(1, torch.get_num_threads() // 2))
    Worker(Database(place), bundle, device).run(lambda: os.getppid() != parent)


@contextmanager
def beside(db: Database, bundle: Path | None = None, device: str = "cpu") -> Iterator[None]:
    """Has a worker in a process of its own, which is started again should it die.

    Arguments:
        db: The database.
        bundle: The bundle, if it is somewhere else than when the campaign was made.
        device: Where to compute.
    """
    bundle_of(db, bundle)
    over = threading.Event()
    started: list[BaseProcess] = []

    def watch() -> None:
        spawn = get_context("spawn")
        while not over.is_set():
            process = spawn.Process(
                target=_work, args=(db.place, bundle, device, os.getpid()), daemon=True
            )
            process.start()
            started[:] = [process]
            while process.is_alive() and not over.wait(0.5):
                pass
            over.wait(1.0)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(10)
        for process in started:
            process.terminate()
            process.join(10)


def fingerprint_of(bundle: Path) -> str:
    """Returns what a bundle is known by: the hash of its manifest, which has its files'."""
    path = bundle / MANIFEST
    if not path.is_file():
        raise InputError(f"{bundle} is no bundle: there is no {MANIFEST}. Make one with `fit`.")
    return sha256(path)


def bundle_of(db: Database, place: str | Path | None = None) -> Path:
    """Returns where the bundle of a campaign is, if it is the one that it was made with."""
    with db.read() as c:
        campaign = settings(c)
    found = Path(place or campaign.bundle)
    if fingerprint_of(found) != campaign.bundle_sha256:
        raise InputError(
            f"{found} is not the bundle that this campaign was made with: its manifest differs. "
            "Give the right one with --bundle."
        )
    return found


def explainer_of(bundle: Bundle, plan: str) -> LeapFactual:
    """Returns what walks, one picture at a time, so that results do not depend on company."""
    flow = bundle.flow.requires_grad_(False)
    return LeapFactual(bundle.generator, None, flow, parse(plan), batch_size=1, plain=True)


def seen(x: Tensor) -> Tensor:
    """Returns images as people see them: in 256 shades.

    A network that is asked about these answers as a person would who sees what it sees.
    """
    return torch.cat([decoded(encoded(image.cpu())) for image in x]).to(x)
