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

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ..bundle import Bundle
from ..data import Images, Table
from ..errors import InputError
from ..generators import SpatialAutoencoder, Standardized
from ..metrics import best_distance
from ..types import Classifier, Generator, no_op
from . import rows, spatial
from .consistency import GOOD_AGREEMENT, MIN_AGREEMENT, Agreement, agreement
from .job import OnProgress
from .judge import fit_judge, train_second_opinion
from .labels import NearestNeighbors, Votes
from .plans import HeldOut, PlanSearch, relative
from .recipe import BATCH_SIZE, TRY_SHARE, Part, Recipe, Run, evenly_spaced, split
from .subject import Log, summarize_data

# Smaller images leave a map nothing to shrink.
MIN_SPATIAL_SIDE = 32
# How far reconstructions may be from the images, as a share of the distance between images that
# have nothing to do with each other: a blurred photograph is at a half, a sharp one at a tenth.
MAX_BLUR = 0.3
# A few dozen plans are tried; on 256 images, one image is a difference of 0.4 %.
MAX_SEARCH_IMAGES = 256


@dataclass(frozen=True, eq=False)
class Fitted:
    """A bundle, and what its fit measured.

    Arguments:
        bundle: The bundle.
        summary: What :func:`~leapfactual.jobs.subject.summarize_data` measured, as values that
            JSON can hold.
        agreement: Whether the classifier answers the same on reconstructions.
        search: Which plans were tried and chosen.
        seconds: How long each step took.
    """

    bundle: Bundle
    summary: Mapping[str, object]
    agreement: Agreement
    search: PlanSearch
    seconds: Mapping[str, float] = field(default_factory=dict)


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
) -> Fitted:
    """Summarizes the data, trains a generator, checks it, trains a flow, searches plans, saves.

    Arguments:
        images: The set.
        classifier: The classifier to explain; or votes of people, whose judgement the flow then
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
        on_progress: Called with the share that is done of a step, and the step.
    """
    folder = Path(folder)
    if folder.exists() and not overwrite:
        raise InputError(
            f"there is something at {folder} already. Give another --out, or pass --overwrite."
        )
    run = Run(recipe or Recipe(), folder.parent / f"{folder.name}.fit", log, on_progress, device)
    with run.timed("all"):
        summary, lines = summarize_data(images, classifier, classes, device)
        for line in lines:
            log(line)
        run.work.mkdir(parents=True, exist_ok=True)
        train, test = split(images, run.recipe.seed, device)
        with run.timed("generator"):
            generator, epochs = _choose_generator(run, images, train, test, classifier)
        is_spatial = isinstance(generator, SpatialAutoencoder)
        kind = spatial if is_spatial else rows
        labelled, model = _surrogate(run, classifier, generator, train)
        consistency = _check_consistency(run, test, generator, model, epochs, force)
        with run.timed("flow"):
            flow, record, p = kind.train_flow(run, labelled, generator, model, classes)
        if is_spatial and oracle is None:
            with run.timed("judge"):
                oracle = train_second_opinion(run, labelled, p, model, test)
        with run.timed("plan"):
            side = min(images.shape[1:]) if is_spatial else 0
            held_out = HeldOut(
                generator,
                model,
                flow,
                test[:MAX_SEARCH_IMAGES],
                oracle=oracle,
                distance=best_distance(side)[0].to(device) if is_spatial else None,
                seed=run.recipe.seed,
            )
            search, fast = kind.search(run, held_out)
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
            "seconds": {name: round(value, 1) for name, value in run.seconds.items()},
        },
        agreement=consistency.to_json(),
        front=search.front,
        fast=fast,
        keep_pixels=search.keep_pixels,
    )
    bundle.save(folder, overwrite=overwrite)
    shutil.rmtree(run.work, ignore_errors=True)
    return Fitted(bundle, summary, consistency, search, run.seconds)


def _describe_data(images: Images | Table, train: Part) -> dict[str, object]:
    """Returns what explaining needs to know of the data, for the bundle's record."""
    if isinstance(images, Table):
        return {"columns": list(images.columns), "std": train[:].std(0).tolist()}
    return {"stretch": getattr(images, "stretch", "none")}


def _choose_generator(
    run: Run,
    images: Images | Table,
    train: Part,
    test: Tensor,
    classifier: Classifier | Votes,
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
    chosen = recipe.generator != "auto" or recipe.features or recipe.epochs
    if chosen or side < MIN_SPATIAL_SIDE:
        return rows.train_generator(run, images, train)
    cheap, epochs = rows.train_generator(run, images, train, TRY_SHARE * run.budget.seconds)
    _, model = _surrogate(run, classifier, cheap, train)
    same, blur = agreement(test, cheap, model).overall, _blur(cheap, test)
    if same >= GOOD_AGREEMENT and blur <= MAX_BLUR:
        return cheap, epochs
    run.log(
        f"Of {len(test)} held out it keeps the class of {same:.1%}, and reconstructions are at "
        f"{blur:.0%} of the distance between random images. That is too blurred, so a spatial one "
        "takes its place."
    )
    return spatial.train_generator(run, images, train)


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
        return labelled, fit_judge(run, labelled, p, "surrogate", run.recipe.seed)
    z = torch.cat([generator.encode(x) for x in labelled.batches(BATCH_SIZE)])
    return labelled, NearestNeighbors(generator, z, p)


def _check_consistency(
    run: Run,
    test: Tensor,
    generator: Generator,
    classifier: Classifier,
    epochs: int,
    force: bool,
) -> Agreement:
    """Checks that the classifier gives the same class to images and to reconstructions."""
    result = agreement(test, generator, classifier)
    run.log(
        f"Of {len(test)} held out the classifier gives the same class to the original and to its "
        f"reconstruction in {result.overall:.1%}: {result.advice}"
    )
    if result.overall < MIN_AGREEMENT and not force:
        raise PoorAgreement(
            f"only {result.overall:.1%} of reconstructions keep their class, so nothing was spent "
            f"on a flow: {result.advice} Look at {run.work / 'preview.png'}. "
            + (
                f"Give it more time with --minutes {2 * run.budget.seconds / 60:g}"
                if isinstance(generator, SpatialAutoencoder)
                else f"Train longer with --epochs {2 * epochs}"
            )
            + ", or go on all the same with --force."
        )
    return result
