"""The jobs of a campaign: walk on from what people said, and draw what to ask about next.

A job is leased. A worker that is killed leaves its lease to run out, and the job is done again, to
the same frames: they follow from the picture and the answers. What a job brings is written in one
transaction, and only if it is still wanted.
"""

import hashlib
import io
import os
import signal
import sys
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
from sqlalchemy import Connection, func, insert, select, update
from torch import Tensor

from ..bundle import Bundle
from ..bundle.manifest import MANIFEST, sha256
from ..errors import InputError, LeapError
from ..explainer import LeapFactual
from ..explanation import Explanation
from ..imaging import as_images, to_pil
from ..leaps import parse
from .questions import STEP, Ahead, ahead
from .store import tables as t
from .store.database import Database, Unavailable
from .transitions import (
    ASKING,
    EXHAUSTED,
    REACHED,
    STALLED,
    answers,
    end,
    enqueue,
    fingerprint,
    note,
    progress,
    settings,
)

LEASE = 600.0
ATTEMPTS, PAUSE = 5, 5.0
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
    to_pil(x).save(buffer, format="PNG")
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

    def once(self, now: float | None = None, run: int | None = None) -> bool:
        """Does one job, of any run or of one, and returns whether there was one."""
        job = self.claim(time.time() if now is None else now, run)
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
        except BaseException:
            self.give_back(job)
            raise
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

    def claim(self, now: float, run: int | None = None) -> Job | None:
        """Takes on a job that nobody does, or whose worker has not been heard of."""
        free = t.job.c.state.in_([t.QUEUED, t.LEASED]) & (func.coalesce(t.job.c.until, 0) <= now)
        if run is not None:
            free &= t.job.c.run_id == run
        with self.db.read() as c:
            if c.execute(select(t.job.c.id).where(free).limit(1)).first() is None:
                return None
        with self.db.write() as c:
            first = select(t.job).where(free).order_by(t.job.c.id).limit(1)
            while (row := c.execute(first).one_or_none()) is not None:
                if fingerprint(c, row.run_id) != row.input_sha256:
                    _set(c, row.id, state=t.DONE)
                elif row.attempts >= ATTEMPTS:
                    _set(c, row.id, state=t.FAILED)
                    stall(c, row.run_id, row.error or "its worker was killed again and again", now)
                else:
                    tried = row.attempts + 1
                    held = {"worker": self.name, "until": now + LEASE}
                    _set(c, row.id, state=t.LEASED, attempts=tried, **held)
                    return _job(c, row)
        return None

    def fail(self, job: Job, reason: str, now: float) -> None:
        """Gives a job back that went wrong; after some tries, ever further apart, a run stalls."""
        with self.db.write() as c:
            row = c.execute(select(t.job).where(t.job.c.id == job.id)).one()
            if row.worker == self.name and row.state == t.LEASED:
                until = now + PAUSE * 2**row.attempts
                _set(c, job.id, state=t.QUEUED, error=reason, until=until)
            note(c, now, "failed", job=job.id, reason=reason)

    def give_back(self, job: Job) -> None:
        """Lets somebody else do a job at once, for this worker is told to stop."""
        with self.db.write() as c:
            row = c.execute(select(t.job).where(t.job.c.id == job.id)).one()
            if row.worker == self.name and row.state == t.LEASED:
                _set(c, job.id, state=t.QUEUED, attempts=row.attempts - 1, until=None)

    def finish(self, job: Job, found: Ahead, now: float) -> bool:
        """Writes what a job brought, if it is still wanted, and returns whether it was.

        Whoever comes first may: two workers bring the same.
        """
        frames = [] if found.frames is None else [encoded(x) for x in found.frames.cpu()]
        with self.db.write() as c:
            state = c.execute(select(t.job.c.state).where(t.job.c.id == job.id)).scalar_one()
            if state not in (t.QUEUED, t.LEASED):
                return False
            _set(c, job.id, state=t.DONE)
            if fingerprint(c, job.run) != job.input:
                return False
            note(c, now, "computed", run=job.run)
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
            progress(c, job.run, now)
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
            "queries": int(e.queries[0]),
            "guessed": job.guessed,
        }
        status = REACHED if bool(e.valid[0]) else EXHAUSTED
        end(c, job.run, status, _said(e, settings(c).classes), now, result)


def _set(c: Connection, job: int, **values: object) -> None:
    c.execute(update(t.job).where(t.job.c.id == job).values(**values))


def _job(c: Connection, row: t.Record) -> Job:
    """Returns all that is needed to do a job."""
    run = c.execute(select(t.run).where(t.run.c.id == row.run_id)).one()
    content = c.execute(
        select(t.asset.c.content).where(t.asset.c.sha256 == run.asset)
    ).scalar_one()
    said, guessed = answers(c, run.id)
    return Job(row.id, run.id, row.input_sha256, tuple(said), run.target, content, guessed)


def stall(c: Connection, run: int, reason: str, now: float) -> None:
    """Ends a run whose pictures cannot be computed, until it is tried again."""
    note(c, now, "stalled", run=run, reason=reason)
    end(c, run, STALLED, reason, now)


def retry(db: Database) -> list[str]:
    """Tries the jobs of stalled runs again, and returns the runs."""
    now = time.time()
    with db.write() as c:
        rows = c.execute(select(t.run).where(t.run.c.status == STALLED).order_by(t.run.c.id)).all()
        for run in rows:
            revive(c, run.id, now)
    return [run.name for run in rows]


def revive(c: Connection, run: int, now: float) -> None:
    """Queues the job of a stalled run again."""
    note(c, now, "retried", run=run)
    c.execute(update(t.run).where(t.run.c.id == run).values(finished=None))
    enqueue(c, run, now)


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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    torch.set_num_threads(max(1, torch.get_num_threads() // 2))
    Worker(Database(place), bundle, device).run(lambda: os.getppid() != parent)


@contextmanager
def beside(db: Database, bundle: Path | None = None, device: str = "cpu") -> Iterator[None]:
    """Has a worker in a process of its own, which is started again should it die.

    Ctrl-C reaches all processes at once; the worker does not hear it, and is told to stop.

    Arguments:
        db: The database.
        bundle: The bundle, if it is somewhere else than when the campaign was made.
        device: Where to compute.
    """
    bundle_of(db, bundle)
    over = threading.Event()
    started: list[BaseProcess] = []

    def watch() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
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
    if not (found / MANIFEST).is_file():
        raise InputError(
            f"the bundle of this campaign is not at {found}. Say where it is now with --bundle."
        )
    if fingerprint_of(found) != campaign.bundle_sha256:
        raise InputError(
            f"{found} is not the bundle that this campaign was made with: its manifest differs. "
            "Give the right one with --bundle."
        )
    return found


def explainer_of(bundle: Bundle, plan: str) -> LeapFactual:
    """Returns what walks, one picture at a time, so that results do not depend on company."""
    flow = bundle.flow.requires_grad_(False)
    return LeapFactual(bundle.generator, None, flow, parse(plan), batch_size=1, accelerate=False)
