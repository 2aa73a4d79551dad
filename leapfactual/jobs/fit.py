"""From a set of images and a classifier to a bundle, without writing code.

The order is: summarize the data, train the generator, check that the classifier answers the same
on reconstructions, and only then train the flow and search for plans on held-out images. Each step
logs what it sees. What is trained is kept in a folder beside the bundle, so that an interrupted
fit resumes where it stopped.

A generator whose latents are rows is cheap, and enough for digits and drawings
(:mod:`leapfactual.jobs.rows`). Where it blurs what the classifier looks at, as it does in
photographs, a spatial one takes its place, with a flow on its maps and guided plans
(:mod:`leapfactual.jobs.spatial`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from .. import checks
from .._engine.memory import in_halves
from ..bundle import Bundle
from ..bundle.manifest import PICTURE, refuse_foreign_files
from ..classifiers import Network
from ..data import Images, Table
from ..errors import InputError
from ..files import atomic
from ..flow import Flow
from ..generators import SpatialAutoencoder, Standardized
from ..metrics import best_distance
from ..report.reconstructions import draw_reconstructions
from ..types import Classifier, Generator, no_op
from . import rows, spatial
from .consistency import GOOD_AGREEMENT, MIN_AGREEMENT, Agreement, agreement
from .held_out import HeldOut, labels_of, relative
from .labels import NearestNeighbors, Votes
from .oracle import choose_oracle, fit_oracle
from .plans import PlanSearch
from .progress import OnProgress, duration
from .queries import PROBES, Queries, answers_file
from .recipe import (
    BATCH_SIZE,
    MAX_SEARCH_IMAGES,
    TRY_SHARE,
    WRITTEN,
    Part,
    Recipe,
    Run,
    evenly_spaced,
    evenly_spaced_rows,
    split,
)
from .subject import Log, summarize_data

# Smaller images leave a map nothing to shrink.
MIN_SPATIAL_SIDE = 32
# How far reconstructions may be from the images, as a share of the distance between images that
# have nothing to do with each other: a blurred photograph is at a half, a sharp one at a tenth.
MAX_BLUR = 0.3


@dataclass(frozen=True, eq=False)
class Fitted:
    """A bundle, and what its fit measured.

    Arguments:
        bundle: The bundle.
        summary: What :func:`~leapfactual.jobs.subject.summarize_data` measured, as values that
            JSON can hold.
        agreement: Whether the classifier answers the same on reconstructions.
        search: Which plans were tried and chosen.
        seconds: How long each stage took.
        queries: How many images the classifier was asked about in each stage.
    """

    bundle: Bundle
    summary: Mapping[str, object]
    agreement: Agreement
    search: PlanSearch
    seconds: Mapping[str, float] = field(default_factory=dict)
    queries: Mapping[str, int] = field(default_factory=dict)


class PoorAgreement(InputError):
    """The classifier does not recognize reconstructions, so that no flow can help."""


def fit_bundle(
    images: Images | Table,
    classifier: Classifier | Votes,
    folder: str | Path,
    *,
    classes: Sequence[str],
    recipe: Recipe | None = None,
    oracle: Classifier | None = None,
    classifier_name: str = "a classifier",
    force: bool = False,
    overwrite: bool = False,
    device: str = "cpu",
    log: Log = no_op,
    on_progress: OnProgress = no_op,
    on_saved: Callable[[], object] = no_op,
) -> Fitted:
    """Summarizes the data, trains a generator, checks it, trains a flow, searches plans, saves.

    Arguments:
        images: The set.
        classifier: The classifier to explain; or votes of people, whose opinion the flow then
            carries. A kNN surrogate chooses the plan, see :mod:`leapfactual.jobs.labels`.
        folder: Where the bundle goes. Beside it, until it is done, stands ``NAME.fit`` with the
            parts that are trained.
        classes: The names of the classes.
        recipe: The settings of the training.
        oracle: A second, independent classifier, to choose a reliable plan with.
        classifier_name: The name of the classifier, for the record.
        force: Whether to go on although the classifier does not recognize reconstructions.
        overwrite: Whether to replace a bundle that is there.
        device: Where to compute.
        log: Called with a sentence at a time about what is seen.
        on_progress: Called with how far the whole is, see :mod:`leapfactual.jobs.progress`.
        on_saved: Called when the bundle is there, as long as the fit can be resumed.
    """
    folder = checks.path(folder)
    run = Run.begin(recipe or Recipe(), work_folder(folder), classifier, device, log, on_progress)
    # A fit that was killed behind this point ends as it would have ended.
    overwrite = overwrite or WRITTEN in run.budget.kept
    if folder.exists() and not overwrite:
        raise InputError(
            f"there is something at {folder} already. Give another --out, or pass --overwrite."
        )
    if folder.exists():
        refuse_foreign_files(folder)
    asked = classifier if isinstance(classifier, Votes) else run.queries
    assert asked is not None, "there is a classifier, or votes"
    with run.stage("first look"):
        summary = _first_look(run, images, asked, classes)
        train, test = split(
            images, run.recipe.seed, device, lambda share: run.advance(share, "reading the images")
        )
        _announce(run, images, train, classes)
    with run.stage("generator"):
        generator, epochs = _choose_generator(run, images, train, test, asked, classes)
        labelled, model = _surrogate(run, asked, generator, train)
    is_spatial = isinstance(generator, SpatialAutoencoder)
    kind = spatial if is_spatial else rows
    with run.stage("check"):
        consistency = agreement(test, generator, model, classes=classes)
        picture = _draw_reconstructions(run, test, generator, model, classes)
        _check_consistency(run, consistency, generator, epochs, force)
    with run.stage("flow"):
        flow, record, p = kind.train_flow(run, labelled, generator, model, classes)
    if is_spatial and oracle is None:
        with run.stage("oracle"):
            oracle = choose_oracle(run, labelled, p, model, test)
    with run.stage("plan"):
        search = kind.search(run, _hold_out(run, generator, model, flow, test, oracle))
    with run.stage("bundle"):
        bundle = Bundle.make(
            generator,
            flow,
            model,
            evenly_spaced(train, 512),
            classes=classes,
            plan=search.front[0].plan,
            classifier_name=classifier_name,
            training={
                **record,
                **_describe_data(images, train),
                "images": len(train),
                "held out": len(test),
                "generator epochs": epochs,
                "recipe": asdict(run.recipe),
                "why": search.why,
                "seconds": run.seconds_of_stages,
                "queries": run.asked,
            },
            agreement=consistency.to_json(),
            front=search.front,
            fast=search.fast,
            keep_pixels=search.keep_pixels,
            picture=picture,
        )
        run.budget.decide(WRITTEN, lambda: True)
        bundle.save(folder, overwrite=overwrite, staging=run.work)
    on_saved()
    run.tell_cost()
    run.end(answers_file(folder))
    return Fitted(bundle, summary, consistency, search, run.seconds_of_stages, run.asked)


def work_folder(folder: Path) -> Path:
    """Returns where the parts of a bundle are kept until it is done."""
    return folder.parent / f"{folder.name}.fit"


def _first_look(
    run: Run, images: Images | Table, classifier: Classifier | Votes, classes: Sequence[str]
) -> dict[str, object]:
    """Looks at the images and the classifier's answers, before anything is trained."""
    if run.queries is not None:
        x = images[evenly_spaced_rows(len(images), PROBES)].to(run.device)
        changed = run.queries.begin(x)
        if changed:
            run.log(
                f"The classifier has changed since this fit was begun: it answers otherwise about "
                f"{changed} of {len(x)} images. The generator is kept, all else is made anew."
            )
            run.forget_answers()
    summary, lines = summarize_data(images, classifier, classes, run.device)
    for line in lines:
        run.log(line)
    return summary


def _announce(run: Run, images: Images | Table, train: Part, classes: Sequence[str]) -> None:
    """Says how long it will take, or how much of it is left."""
    if _may_be_spatial(run.recipe, images):
        expected = spatial.expected_seconds(run)
    else:
        expected = rows.expected_seconds(run, images, train, len(classes))
    run.stages.expect(expected)
    left = run.budget.expected_left
    if left is not None:
        run.log(f"Resuming: about {duration(left)} are left.")
    else:
        parts = ", ".join(f"{duration(s)} for the {name}" for name, s in expected.items())
        run.log(f"This will take about {duration(sum(expected.values()))}: {parts}.")
        run.budget.note(sum(expected.values()))
        run.budget.save()


def _may_be_spatial(recipe: Recipe, images: Images | Table) -> bool:
    """Returns whether the generator may be one of maps."""
    if isinstance(images, Table) or recipe.generator in ("vae", "wae"):
        return False
    if recipe.generator == "spatial":
        return True
    return not (recipe.features or recipe.epochs) and min(images.shape[1:]) >= MIN_SPATIAL_SIDE


def _hold_out(
    run: Run,
    generator: Generator,
    model: Classifier,
    flow: Flow,
    test: Tensor,
    oracle: Classifier | None,
) -> HeldOut:
    """Returns the trial of plans on the images held out."""
    is_spatial = isinstance(generator, SpatialAutoencoder)
    # A network that nobody needs to count is walked faster as it is. But on maps a CPU takes a
    # second for a leap of a batch, so that every query should be heard of.
    if (
        (run.on_gpu or not is_spatial)
        and isinstance(model, Queries)
        and not model.kept
        and type(model.classifier) is Network
    ):
        model = model.classifier
    return HeldOut(
        generator,
        model,
        flow,
        test[:MAX_SEARCH_IMAGES],
        oracle=oracle,
        distance=(best_distance(min(test.shape[2:]))[0].to(run.device) if is_spatial else None),
        seed=run.recipe.seed,
        kept=run.work / "walks.jsonl",
        on_batch=run.stages.pulse,
    )


def _describe_data(images: Images | Table, train: Part) -> dict[str, object]:
    """Returns what explaining needs to know of the data, for the bundle's record."""
    if isinstance(images, Table):
        record: dict[str, object] = {"columns": list(images.columns), "label": images.label}
        return {**record, "std": train[:].std(0).tolist()}
    return {"stretch": getattr(images, "stretch", "none")}


def _choose_generator(
    run: Run,
    images: Images | Table,
    train: Part,
    test: Tensor,
    classifier: Classifier | Votes,
    classes: Sequence[str],
) -> tuple[Generator, int]:
    """Trains a cheap generator and, where it falls short of photographs, a spatial one."""
    recipe = run.recipe
    if isinstance(images, Table):
        return Standardized.of(train[:]), 0
    side = min(images.shape[1:])
    if recipe.generator == "spatial":
        if side < MIN_SPATIAL_SIDE:
            raise InputError(
                f"images of {images.shape[1]} × {images.shape[2]} are too small for a spatial "
                f"generator: it needs {MIN_SPATIAL_SIDE} pixels. Take --generator vae."
            )
        return spatial.train_generator(run, images, train)
    if not _may_be_spatial(recipe, images):
        return rows.train_generator(run, images, train)
    seconds = TRY_SHARE * run.budget.seconds
    tried = seconds / (seconds + run.autoencoder_seconds)
    cheap, epochs = rows.train_generator(run, images, train, seconds, end=tried)
    _, model = _surrogate(run, classifier, cheap, train)
    same, blur = agreement(test, cheap, model).overall, _blur(cheap, test)
    if same >= GOOD_AGREEMENT and blur <= MAX_BLUR:
        expected = rows.expected_seconds(run, images, train, len(classes))
        run.stages.expect({**expected, "generator": 0.0})
        return cheap, epochs
    run.log(
        f"Of {len(test)} held out it keeps the class of {same:.1%}, and reconstructions are at "
        f"{blur:.0%} of the distance between random images. That is too blurred, so a spatial one "
        "takes its place."
    )
    return spatial.train_generator(run, images, train, start=tried)


@torch.no_grad()
def _blur(generator: Generator, x: Tensor) -> float:
    """Returns the distance of reconstructions, as a share of that between random images."""
    distance = relative(best_distance(min(x.shape[2:]))[0].to(x.device), x)
    parts = [generator.decode(generator.encode(part)) for part in torch.split(x, BATCH_SIZE)]
    return distance(torch.cat(parts), x).mean().item()


def _surrogate(
    run: Run, classifier: Classifier | Votes, generator: Generator, train: Part
) -> tuple[Part, Classifier]:
    """Returns the images with labels, and whom to query.

    For votes that is a kNN surrogate or, on maps, whose distances say little, a network.
    """
    if not isinstance(classifier, Votes):
        return train, classifier
    voted = train.rows[classifier.known[train.rows]]
    p = classifier.p[voted].to(train.device)
    labelled = Part(train.images, voted, train.device, p)
    if isinstance(generator, SpatialAutoencoder):
        return labelled, fit_oracle(run, labelled, p, "surrogate", run.recipe.seed)
    z = torch.cat([generator.encode(x) for x in labelled.batches(BATCH_SIZE)])
    return labelled, NearestNeighbors(generator, z, p)


@torch.no_grad()
def _draw_reconstructions(
    run: Run, test: Tensor, generator: Generator, classifier: Classifier, classes: Sequence[str]
) -> bytes | None:
    """Draws images held out beside their reconstructions, and returns the picture."""
    if test.ndim != 4:
        return None
    parts = torch.split(test, BATCH_SIZE)
    x_hat = torch.cat(
        [in_halves(lambda x: generator.decode(generator.encode(x)), x) for x in parts]
    )
    before, after = labels_of(classifier, test), labels_of(classifier, x_hat)
    path = run.work / PICTURE
    with atomic(path) as temporary:
        sheet = draw_reconstructions(test, x_hat, before, after, classes)
        sheet.save(temporary, format="PNG")
    return path.read_bytes()


def _check_consistency(
    run: Run, result: Agreement, generator: Generator, epochs: int, force: bool
) -> None:
    """Checks that the classifier gives the same class to images and to reconstructions."""
    run.log(
        f"Of {int(result.count.sum())} held out the classifier gives the same class to the "
        f"original and to its reconstruction in {result.overall:.1%}: {result.advice}"
    )
    if result.overall < MIN_AGREEMENT and not force:
        raise PoorAgreement(
            f"only {result.overall:.1%} of reconstructions keep their class, so nothing was spent "
            f"on a flow: {result.advice} Look at {run.work / PICTURE}. "
            + (
                f"Give it more time with --minutes {2 * run.budget.seconds / 60:g}"
                if isinstance(generator, SpatialAutoencoder)
                else f"Train longer with --epochs {2 * epochs}"
            )
            + ", or go on all the same with --force."
        )
