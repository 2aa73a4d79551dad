"""The worker: computes the frames of the next segment, and the end of a run.

A job is leased. A worker that is killed leaves its lease to run out, and the job is done again, to
the same frames: they follow from the picture and the answers. What a job brings is written in one
transaction, and only if it is still wanted.
"""

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
from .questions import STEP
from .store import tables as t
from .store.assets import SAFETENSORS, put_asset
from .store.database import Database, Unavailable
from .transitions import (
    ASKING,
    EXHAUSTED,
    REACHED,
    advance,
    answers,
    end_run,
    get_campaign,
    job_input_hash,
    log_event,
    stall,
)

# A segment takes seconds. A worker that has not come back after minutes was killed.
JOB_LEASE_SECONDS = 600.0
# Five tries, 10 to 80 seconds apart, outlast a GPU whose memory is full for the moment.
MAX_ATTEMPTS, RETRY_SECONDS = 5, 5.0


@dataclass(frozen=True)
class WorkItem:
    """A job that a worker has claimed, with all that it takes to do it.

    Arguments:
        id: The number of the job.
        run: The run to continue.
        input_sha256: The hash of what it was queued for, see :func:`.transitions.job_input_hash`.
        answers: The labels so far.
        target: The class to reach.
        picture: The image, as a PNG.
        guessed: How many of the labels nobody was asked for.
    """

    id: int
    run: int
    input_sha256: str
    answers: tuple[int, ...]
    target: int
    picture: bytes
    guessed: int


@dataclass(frozen=True, eq=False)
class Lookahead:
    """What follows from the answers so far: frames to ask about, or the end of the walk.

    Arguments:
        frames: The images of the next segment, ``(N, C, H, W)``; none at the end.
        explanation: The explanation, at the end.
    """

    frames: Tensor | None
    explanation: Explanation | None


@torch.no_grad()
def lookahead(
    explainer: LeapFactual, x: Tensor, target: int, answers: Sequence[int], max_frames: int
) -> Lookahead:
    """Replays a walk through its answers, and continues as if the last one were given again.

    Arguments:
        explainer: How to walk; its classifier is not queried.
        x: The image, ``(1, C, H, W)``.
        target: The class to reach.
        answers: The labels so far, in the order of the queries. Before the first one a segment
            has one frame.
        max_frames: The largest number of frames.
    """
    classes = explainer.flow.classes
    dialogue = explainer.dialogue(x, target)
    frames = []
    try:
        frame = next(dialogue)
        for answer in answers:
            frame = dialogue.send(_one_hot(answer, classes, x))
        frames.append(frame)
        while answers and len(frames) < max_frames:
            frames.append(dialogue.send(_one_hot(answers[-1], classes, x)))
    except StopIteration as stop:
        if not frames:
            return Lookahead(None, stop.value)
    return Lookahead(torch.cat(frames), None)


def _one_hot(label: int, classes: int, x: Tensor) -> Tensor:
    """Returns a label as the probabilities ``(1, K)`` of a classifier that is certain."""
    if not 0 <= label < classes:
        raise InputError(f"a walk goes on with labels of 0 to {classes - 1}, got {label}.")
    return torch.eye(classes, device=x.device)[label : label + 1]


def encode_png(x: Tensor) -> bytes:
    """Returns an image ``(C, H, W)`` in [0, 1] as a PNG."""
    buffer = io.BytesIO()
    to_pil(x).save(buffer, format="PNG")
    return buffer.getvalue()


def decode_png(content: bytes) -> Tensor:
    """Returns a PNG that :func:`encode_png` made as an image ``(1, C, H, W)``."""
    with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
        return as_images(image)


class Worker:
    """Creates a worker, which does the jobs of a campaign one by one.

    Arguments:
        db: The database.
        bundle: The bundle, if it is somewhere else than when the campaign was made.
        device: Where to compute.
    """

    def __init__(
        self, db: Database, bundle: str | Path | None = None, device: str = "cpu"
    ) -> None:
        self.db, self.name, self.device = db, uuid.uuid4().hex, device
        self.explainer = load_explainer(db, bundle, device)
        with db.read() as c:
            campaign = get_campaign(c)
        self.max_frames = 1 if campaign.mode == STEP else campaign.max_frames

    def once(self, now: float | None = None, run: int | None = None) -> bool:
        """Does one job, of any run or of one, and returns whether there was one."""
        job = self.claim(time.time() if now is None else now, run)
        if job is None:
            return False
        try:
            x = decode_png(job.picture).to(self.device)
            found = lookahead(self.explainer, x, job.target, job.answers, self.max_frames)
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

    def claim(self, now: float, run: int | None = None) -> WorkItem | None:
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
                if job_input_hash(c, row.run_id) != row.input_sha256:
                    _set(c, row.id, state=t.DONE)
                elif row.attempts >= MAX_ATTEMPTS:
                    _set(c, row.id, state=t.FAILED)
                    stall(c, row.run_id, row.error or "its worker was killed again and again", now)
                else:
                    tried = row.attempts + 1
                    held = {"worker": self.name, "until": now + JOB_LEASE_SECONDS}
                    _set(c, row.id, state=t.LEASED, attempts=tried, **held)
                    return _work_item(c, row)
        return None

    def fail(self, job: WorkItem, reason: str, now: float) -> None:
        """Gives a job back that went wrong; after some tries, ever further apart, a run stalls."""
        with self.db.write() as c:
            row = c.execute(select(t.job).where(t.job.c.id == job.id)).one()
            if row.worker == self.name and row.state == t.LEASED:
                until = now + RETRY_SECONDS * 2**row.attempts
                _set(c, job.id, state=t.QUEUED, error=reason, until=until)
            log_event(c, now, "failed", job=job.id, reason=reason)

    def give_back(self, job: WorkItem) -> None:
        """Lets somebody else do a job at once, for this worker is told to stop."""
        with self.db.write() as c:
            row = c.execute(select(t.job).where(t.job.c.id == job.id)).one()
            if row.worker == self.name and row.state == t.LEASED:
                _set(c, job.id, state=t.QUEUED, attempts=row.attempts - 1, until=None)

    def finish(self, job: WorkItem, found: Lookahead, now: float) -> bool:
        """Writes what a job brought, if it is still wanted, and returns whether it was.

        Whoever comes first may: two workers bring the same.
        """
        frames = [] if found.frames is None else [encode_png(x) for x in found.frames.cpu()]
        with self.db.write() as c:
            state = c.execute(select(t.job.c.state).where(t.job.c.id == job.id)).scalar_one()
            if state not in (t.QUEUED, t.LEASED):
                return False
            _set(c, job.id, state=t.DONE)
            if job_input_hash(c, job.run) != job.input_sha256:
                return False
            log_event(c, now, "computed", run=job.run)
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
                    assumed=job.answers[-1] if job.answers else None,
                    frames=len(frames),
                    discarded=False,
                )
                .returning(t.segment.c.id)
            ).scalar_one()
            c.execute(
                insert(t.frame),
                [
                    {"segment_id": segment, "position": k, "asset": put_asset(c, content)}
                    for k, content in enumerate(frames)
                ],
            )
            c.execute(update(t.run).where(t.run.c.id == job.run).values(status=ASKING))
            advance(c, job.run, now)
        return True

    def _end(self, c: Connection, job: WorkItem, e: Explanation, now: float) -> None:
        latents = {"z": e.z.cpu(), "z_counterfactual": e.z_counterfactual.cpu().clone()}
        result = {
            "counterfactual": put_asset(c, encode_png(e.counterfactual[0].cpu())),
            "reconstruction": put_asset(c, encode_png(e.reconstruction[0].cpu())),
            "latents": put_asset(c, save(latents), SAFETENSORS),
            "source": int(e.source[0]),
            "label": int(e.label[0]),
            "leaps": int(e.leaps[0]),
            "queries": int(e.queries[0]),
            "guessed": job.guessed,
        }
        status = REACHED if bool(e.valid[0]) else EXHAUSTED
        end_run(c, job.run, status, _describe(e, get_campaign(c).classes), now, result)


def _set(c: Connection, job: int, **values: object) -> None:
    c.execute(update(t.job).where(t.job.c.id == job).values(**values))


def _work_item(c: Connection, row: t.Record) -> WorkItem:
    """Returns a job with all that it takes to do it."""
    run = c.execute(select(t.run).where(t.run.c.id == row.run_id)).one()
    content = c.execute(
        select(t.asset.c.content).where(t.asset.c.sha256 == run.asset)
    ).scalar_one()
    labels, guessed = answers(c, run.id)
    return WorkItem(row.id, run.id, row.input_sha256, tuple(labels), run.target, content, guessed)


def _describe(e: Explanation, classes: Sequence[str]) -> str:
    """Says in a sentence what came of a walk."""
    source, target, label = (classes[int(k[0])] for k in (e.source, e.target, e.label))
    if bool(e.source[0] == e.target[0]):
        return f"people called it {target} from the start"
    if bool(e.valid[0]):
        first, leaps = int(e.first[0]), int(e.leaps[0])
        return f"from {source} to {target} by leap {first}, returned after {leaps}"
    return f"still {label} at the end: try more leaps or a larger step size"


def _run_worker(place: str, bundle: str | Path | None, device: str, parent: int) -> None:
    """Does jobs for as long as the process that started this one lives."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    torch.set_num_threads(max(1, torch.get_num_threads() // 2))
    Worker(Database(place), bundle, device).run(lambda: os.getppid() != parent)


@contextmanager
def worker_process(
    db: Database, bundle: str | Path | None = None, device: str = "cpu"
) -> Iterator[None]:
    """Runs a worker in a process of its own, which is started again should it die.

    Ctrl-C reaches all processes at once; the worker does not hear it, and is told to stop.

    Arguments:
        db: The database.
        bundle: The bundle, if it is somewhere else than when the campaign was made.
        device: Where to compute.
    """
    find_bundle(db, bundle)
    over = threading.Event()
    started: list[BaseProcess] = []

    def watch() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        spawn = get_context("spawn")
        while not over.is_set():
            process = spawn.Process(
                target=_run_worker, args=(db.place, bundle, device, os.getpid()), daemon=True
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


def hash_bundle(bundle: Path) -> str:
    """Returns the SHA-256 of a bundle's manifest, which holds those of its files."""
    path = bundle / MANIFEST
    if not path.is_file():
        raise InputError(f"{bundle} is no bundle: there is no {MANIFEST}. Make one with `fit`.")
    return sha256(path)


def find_bundle(db: Database, place: str | Path | None = None) -> Path:
    """Returns where the bundle of a campaign is, if it is the one that it was made with."""
    with db.read() as c:
        campaign = get_campaign(c)
    found = Path(place or campaign.bundle)
    if not (found / MANIFEST).is_file():
        raise InputError(
            f"the bundle of this campaign is not at {found}. Say where it is now with --bundle."
        )
    if hash_bundle(found) != campaign.bundle_sha256:
        raise InputError(
            f"{found} is not the bundle that this campaign was made with: its manifest differs. "
            "Give the right one with --bundle."
        )
    return found


def load_explainer(
    db: Database,
    bundle: str | Path | None = None,
    device: str = "cpu",
    *,
    keep_path: bool = False,
) -> LeapFactual:
    """Returns the explainer of a campaign, from the bundle that it was made with.

    Arguments:
        db: The database.
        bundle: The bundle, if it is somewhere else than when the campaign was made.
        device: Where to compute.
        keep_path: Whether explanations keep every iterate.
    """
    loaded = Bundle.load(find_bundle(db, bundle)).to(device)
    with db.read() as c:
        plan = get_campaign(c).plan
    return build_explainer(loaded, plan, keep_path=keep_path)


def build_explainer(bundle: Bundle, plan: str, *, keep_path: bool = False) -> LeapFactual:
    """Returns an explainer without a classifier, of one picture at a time.

    Neither batches nor fused copies of the networks, so that frames do not depend on which others
    are computed with them and a replay gives them bit for bit.

    Arguments:
        bundle: The bundle.
        plan: The leaps, as :func:`leapfactual.leaps.describe` writes them.
        keep_path: Whether explanations keep every iterate.
    """
    return LeapFactual(
        bundle.generator,
        None,
        bundle.flow.requires_grad_(False),
        parse(plan),
        batch_size=1,
        keep_path=keep_path,
        accelerate=False,
        keep_pixels=bundle.keep_pixels,
        classes=bundle.classes,
    )
