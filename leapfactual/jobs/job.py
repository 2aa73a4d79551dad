"""What the jobs share: their inputs, their plan, and pieces of work that survive a kill.

A job explains pairs of an image and a target class. It does so piece by piece: when a piece is
done, its results are on disk and then, in one rename, its record. After a kill the same call skips
the pieces that have a record, so it resumes where it stopped and ends with the same files. Memory
is bounded by one piece.
"""

import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import checks, masks
from .._engine.memory import in_halves
from ..alternatives import MAX_ALTERNATIVES
from ..bundle import Bundle
from ..classifiers import open_classifier, undo_stretch
from ..data import Images, Table, open_data
from ..data.images import OnImage
from ..data.tables import has_column
from ..errors import InputError
from ..explainer import LeapFactual
from ..explanation import Explanation
from ..files import atomic, fingerprint, is_whole, remove_temporaries
from ..flow import Flow
from ..generators import SpatialAutoencoder
from ..leaps import Stage, describe
from ..solvers import Solver
from ..types import Classifier, Generator, no_op
from .progress import OnProgress
from .queries import Queries, answers_file

JOB_FORMAT = "leapfactual job 2"
JOB, RECORDS, HIDDEN_RECORDS = "job.json", "parts", ".parts"
PAIRS = "pairs per piece"
EXAMPLES = 8
# A walk on maps takes a second or two for each image on a CPU, where a large batch gains nothing.
# A kill is to cost less than a minute, with the reliable plan beside the nearest.
MAP_PAIRS_PER_PIECE_ON_CPU = 8
# A browser opens a page of more only with difficulty.
MAX_SHOWN = 10_000


@dataclass(frozen=True, eq=False, kw_only=True)
class Job:
    """A list of images to explain, each with its target class.

    Arguments:
        bundle: The bundle.
        classifier: The classifier that it explains.
        images: The images, or a table.
        pairs: The rows of images, each with its target class.
        plan: The plan of the counterfactuals.
        solver: The solver of the plan. Defaults to the flow's own.
        reliable: The plan of reliable counterfactuals beside them, if they are wanted.
        mask: Where images may change. Defaults to everywhere.
        alternatives: How many different counterfactuals to make of each pair, without reliable
            ones; see :mod:`leapfactual.alternatives`.
        seed: The seed of the alternatives.
        shown: How many pairs the page shows, evenly spaced.
        title: The heading of the page.
        force: Whether to explain a classifier that the bundle does not recognize.
        keep_pixels: Whether to keep the input's own pixels where nothing has changed. Defaults to
            what was best for the bundle.
    """

    bundle: Bundle
    classifier: Classifier
    images: Images | Table
    pairs: Sequence[tuple[int, int]]
    plan: Sequence[Stage]
    solver: Solver | None = None
    reliable: Sequence[Stage] | None = None
    mask: Tensor | None = None
    alternatives: int = 1
    seed: int = 0
    shown: int = 100
    title: str = "Counterfactuals"
    force: bool = False
    keep_pixels: bool | None = None

    def __post_init__(self) -> None:
        checks.positive(self.shown, "--page", MAX_SHOWN)
        alternatives = checks.positive(self.alternatives, "alternatives", MAX_ALTERNATIVES)
        if alternatives > 1 and self.reliable is not None:
            raise InputError(
                f"give {self.alternatives} alternatives or reliable counterfactuals, not both. "
                "For alternatives that are reliable leave --reliable out and give --reliability 1."
            )

    def to_json(self) -> dict[str, object]:
        """Returns what identifies the job, as values that JSON can hold."""
        weights = self.bundle.flow.state_dict().values()
        another = self.force and not self.bundle.recognizes(self.classifier)
        return {
            "format": JOB_FORMAT,
            "bundle": fingerprint(*weights, self.bundle.answers),
            "images": fingerprint("\n".join(self.images.names)),
            "pairs": fingerprint(repr(list(self.pairs))),
            "count": len(self.pairs),
            "classifier": self.fingerprint_of(self.classifier) if another else None,
            "plan": describe(self.plan),
            "solver": None if self.solver is None else repr(self.solver),
            "reliable": None if self.reliable is None else describe(self.reliable),
            "shown": self.shown,
            "mask": None if self.mask is None else fingerprint(self.mask),
            "alternatives": [self.alternatives, self.seed] if self.alternatives > 1 else None,
            "keep_pixels": self.keep_pixels,
        }

    @torch.no_grad()
    def fingerprint_of(self, classifier: Classifier) -> str:
        """Returns what recognizes a classifier: the classes that it gives to the probes."""
        probes = self.bundle.probes.to(self.bundle.device)
        return fingerprint(in_halves(classifier, probes).argmax(1))

    def pairs_per_piece(self, most: int) -> int:
        """Returns how many pairs a piece is to hold, so that a kill costs less than a minute."""
        on_cpu = torch.device(self.bundle.device).type == "cpu"
        if on_cpu and isinstance(self.bundle.generator, SpatialAutoencoder):
            return max(1, MAP_PAIRS_PER_PIECE_ON_CPU // self.alternatives)
        return most

    def explainer(
        self, plan: Sequence[Stage] | None = None, *, keep_path: bool = False
    ) -> LeapFactual:
        """Returns the explainer of the pairs, with the job's plan or another."""
        return self.bundle.explainer(
            self.classifier,
            plan=plan or self.plan,
            solver=self.solver if plan is None else None,
            force=self.force,
            keep_path=keep_path,
            mask=self.mask,
            keep_pixels=self.keep_pixels,
        )

    def typicality(self, e: Explanation) -> Tensor | None:
        """Returns how typical counterfactuals are of their class, if the bundle has a scale."""
        if not self.has_typicality:
            return None
        return typicality(self.bundle.generator, self.bundle.flow, e.counterfactual, e.target)

    @property
    def has_typicality(self) -> bool:
        """Whether the bundle's flow has a scale of typicality."""
        return not bool(self.bundle.flow.quantiles.isnan().all())


@torch.no_grad()
def typicality(
    generator: Generator, flow: Flow, x: Tensor, y: Tensor, batch_size: int = 1024
) -> Tensor:
    """Returns how typical images are of a class, as percentiles among its own, ``(B,)``.

    Arguments:
        generator: The generator.
        flow: The flow, whose :meth:`Flow.fit_typicality` was called.
        x: Images, or rows.
        y: The class to compare each with, with shape ``(B,)``.
        batch_size: How many images at a time.
    """

    def measure(x: Tensor, y: Tensor) -> Tensor:
        return flow.typicality(generator.encode(x), y)

    parts = zip(torch.split(x, batch_size), torch.split(y, batch_size), strict=True)
    return torch.cat([in_halves(measure, *part) for part in parts])


@dataclass(frozen=True, eq=False)
class Inputs:
    """A bundle, the classifier that it explains, and images of the bundle's shape.

    Arguments:
        bundle: The bundle.
        classifier: The classifier.
        images: The images, or a table.
    """

    bundle: Bundle
    classifier: Classifier
    images: Images | Table

    def job(
        self,
        pairs: Sequence[tuple[int, int]],
        plan: Sequence[Stage],
        **options: Any,  # noqa: ANN401 - the other arguments of a Job
    ) -> Job:
        """Returns a job on these inputs; ``options`` are further arguments of :class:`Job`."""
        return Job(
            bundle=self.bundle,
            classifier=self.classifier,
            images=self.images,
            pairs=pairs,
            plan=plan,
            **options,
        )

    def open_oracle(self, spec: str) -> Classifier:
        """Opens a second classifier, which sees images as the first one does."""
        example = self.images[list(range(min(EXAMPLES, len(self.images))))].to(self.bundle.device)
        opened = open_classifier(spec, example, self.bundle.classes)
        return undo_stretch(opened, _stretch(self.bundle))

    def read_mask(self, path: Path) -> Tensor:
        """Reads a mask from a grey picture of the images' size."""
        return masks.fit_mask(masks.read(path), self.bundle.probes)


def open_inputs(
    bundle: str | Path,
    images: Sequence[Path],
    classifier: str,
    *,
    folder: Path | None = None,
    output_type: str | None = None,
    device: str = "cpu",
    on_image: OnImage = None,
) -> Inputs:
    """Opens a bundle, images and a classifier, and checks that they fit.

    Arguments:
        bundle: The folder of the bundle.
        images: Files, or one folder, archive or table.
        classifier: The name of the classifier, as
            :func:`~leapfactual.classifiers.open_classifier` takes it.
        folder: Where to look for the classifier's file. Defaults to the current folder.
        output_type: What the classifier answers with. Defaults to what its first answer shows.
        device: Where to compute.
        on_image: Called with the number of images looked at and of all.
    """
    loaded = Bundle.load(bundle).to(device)
    opened = _open_matching(loaded, images, on_image)
    stretch = _stretch(loaded)
    if isinstance(opened, Images):
        opened = opened.stretched(stretch)
    model = open_classifier(
        classifier,
        loaded.probes[:EXAMPLES].to(device),
        loaded.classes,
        output_type=output_type,
        folder=folder,
    )
    queries = Queries(undo_stretch(model, stretch), answers_file(Path(bundle)))
    queries.begin(loaded.probes.to(device))
    return Inputs(loaded, queries, opened)


def open_sources(
    paths: Sequence[Path],
    *,
    size: tuple[int, int] | None = None,
    channels: int | None = None,
    label: str | None = None,
    on_image: OnImage = None,
) -> Images | Table:
    """Opens one folder, archive or table, or several files of images."""
    if len(paths) == 1:
        return open_data(paths[0], size=size, channels=channels, label=label, on_image=on_image)
    folders = [path for path in paths if path.is_dir()]
    if folders:
        raise InputError(
            f"{folders[0]} is a folder. Give one folder, or files: not several folders."
        )
    return open_data(list(paths), size=size, channels=channels, label=label, on_image=on_image)


def _open_matching(
    bundle: Bundle, paths: Sequence[Path], on_image: OnImage = None
) -> Images | Table:
    """Opens images in the size of the bundle's, or a table with its columns."""
    shape = tuple(bundle.probes.shape[1:])
    if len(shape) == 3:
        opened = open_sources(
            paths, size=(shape[1], shape[2]), channels=shape[0], on_image=on_image
        )
        if isinstance(opened, Table):
            size = " × ".join(map(str, shape))
            raise InputError(
                f"this bundle explains images of {size}; {paths[0]} is a table. Give images."
            )
        return opened
    label = bundle.training.get("label")
    if not isinstance(label, str) or not has_column(paths[0], label):
        label = None
    opened = open_sources(paths, label=label)
    columns = bundle.training.get("columns")
    if not isinstance(opened, Table) or (columns and list(opened.columns) != columns):
        wanted = ", ".join(map(str, columns)) if isinstance(columns, list) else shape[0]
        has = ", ".join(opened.columns) if isinstance(opened, Table) else "images"
        raise InputError(
            f"this bundle explains a table with the columns {wanted}; {paths[0]} has {has}. Give "
            "a CSV file with those columns, in that order."
        )
    return opened


def _stretch(bundle: Bundle) -> str:
    return str(bundle.training.get("stretch", "none"))


@dataclass(frozen=True, eq=False)
class Piece:
    """Some consecutive pairs of a job, and the file that records that they are done.

    Arguments:
        job: The job.
        start: The number of the first pair.
        size: How many pairs it holds at most.
        record: The file to write, in one rename, when the results are on disk.
    """

    job: Job
    start: int
    size: int
    record: Path

    @property
    def pairs(self) -> Sequence[tuple[int, int]]:
        """The rows of images, each with its target class."""
        return self.job.pairs[self.start : self.start + self.size]

    def load(self) -> tuple[Tensor, Tensor]:
        """Returns the images and their targets, on the bundle's device."""
        device = self.job.bundle.device
        x = self.job.images[[row for row, _ in self.pairs]].to(device)
        return x, torch.tensor([k for _, k in self.pairs], device=device)


class Pieces:
    """Creates the resumable pieces of a job in a folder.

    Arguments:
        job: The job.
        out: The folder, which :func:`begin` made.
        size: How many pairs a piece holds.
        suffix: The ending of the records' names.
        keys: What a record of JSON holds at least.
    """

    def __init__(
        self,
        job: Job,
        out: Path,
        size: int,
        suffix: str = ".json",
        keys: Collection[str] = ("rows",),
    ) -> None:
        self.folder, self.keys = out / RECORDS, keys
        self.job, self.total = job, len(job.pairs)
        self.pieces = [
            Piece(job, start, size, self.folder / f"{start:08d}{suffix}")
            for start in range(0, self.total, size)
        ]

    def pending(
        self,
        verb: str,
        on_progress: OnProgress = no_op,
        log: Callable[[str], object] = no_op,
    ) -> Iterator[Piece]:
        """Yields the pieces that have no whole record; the caller writes it before the next.

        Arguments:
            verb: What was done with the pairs, for the progress.
            on_progress: Called with how far it is, see :mod:`leapfactual.jobs.progress`.
            log: Called with a sentence about each record that is damaged.
        """
        self.folder.mkdir(exist_ok=True)
        for piece in self.pieces:
            drop_damaged(piece.record, log, self.keys)
        pending = [piece for piece in self.pieces if not piece.record.exists()]
        done = self.total - sum(len(piece.pairs) for piece in pending)

        def tell() -> None:
            on_progress(done / self.total, f"{verb} {done} of {self.total}", None)

        if isinstance(self.job.classifier, Queries):
            self.job.classifier.on_call = tell
        tell()
        for piece in pending:
            yield piece
            done += len(piece.pairs)
            tell()

    def records(self) -> Iterator[Path]:
        """Yields the records, in the order of the pairs."""
        return (piece.record for piece in self.pieces)

    def clear(self) -> None:
        """Removes the records, all at once, when everything that is made of them is written."""
        if self.folder.exists():
            hidden = self.folder.with_name(HIDDEN_RECORDS)
            self.folder.rename(hidden)
            shutil.rmtree(hidden)


def begin(out: Path, identity: Mapping[str, object], size: int) -> int:
    """Makes the folder of a job, or resumes this very job there; refuses any other.

    Arguments:
        out: The folder.
        identity: What identifies the job: :meth:`Job.to_json` and what else changes its results.
        size: How many pairs a piece is to hold.

    Returns:
        How many it holds: as many as when the job was begun, maybe on another device.
    """
    path = out / JOB
    if out.is_dir():
        remove_temporaries(out)
    if path.exists():
        try:
            before = json.loads(path.read_text())
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{path} is damaged ({error}), so that nobody knows which job it is of. Give "
                f"another --out, or delete {out}."
            ) from error
        known = before if isinstance(before, dict) else {}
        differ = [name for name in identity if known.get(name) != identity[name]]
        if differ:
            raise InputError(
                f"{out} holds the results of another job, which differs in its "
                f"{', '.join(differ)}. Give another --out, or delete that folder."
            )
        kept = known.get(PAIRS)
        size = kept if isinstance(kept, int) and kept > 0 else size
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(
            f"there is something at {out} already, and no job of ours. Give another --out."
        )
    shutil.rmtree(out / HIDDEN_RECORDS, ignore_errors=True)
    write_json({**identity, PAIRS: size}, path)
    return size


def drop_damaged(path: Path, log: Callable[[str], object], keys: Collection[str] = ()) -> None:
    """Removes a file that is there and cannot be read, so that it is made again, and says so.

    Arguments:
        path: The file.
        log: Called with a sentence if it is damaged.
        keys: What a file of JSON must hold at least.
    """
    if path.exists() and not (is_whole(path) and _holds(path, keys)):
        log(f"{path} is damaged, and is made again.")
        path.unlink()


def _holds(path: Path, keys: Collection[str]) -> bool:
    if path.suffix != ".json" or not keys:
        return True
    content = json.loads(path.read_text(encoding="utf-8"))
    return isinstance(content, dict) and set(keys) <= set(content)


def write_json(content: object, path: Path) -> None:
    """Writes a JSON file, all of it or nothing."""
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
