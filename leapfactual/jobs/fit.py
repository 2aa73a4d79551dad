"""From a set of images and a classifier to a bundle, without writing code.

The order is: summarize the data, train the generator, check that the classifier answers the same
on reconstructions, and only then train the flow and search for plans on held-out images. Each step
logs what it sees. What is trained is kept in a folder beside the bundle, so that an interrupted
fit resumes where it stopped.

A generator whose latents are rows is cheap, and enough for digits and drawings. Where it blurs
what the classifier looks at, as it does in photographs, a spatial one takes its place, with a flow
on its maps and guided plans (:mod:`leapfactual.jobs.spatial`).
"""

import json
import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._engine.memory import in_halves
from ..bundle import Bundle
from ..data import Images, Table
from ..errors import InputError
from ..fields import MLPField
from ..files import fingerprint
from ..flow import Flow
from ..generators import VAE, WAE, SpatialAutoencoder, Standardized
from ..leaps import RatedPlan, describe
from ..metrics import best_distance
from ..solvers import Midpoint
from ..training import embed, fit, fit_generator
from ..training.augmentation import d4_orbit, random_d4
from ..training.loop import Epoch
from ..types import Classifier, Generator, no_op
from .budget import TIMED_STEPS, Budget, seconds_per_step
from .consistency import GOOD_AGREEMENT, MIN_AGREEMENT, Agreement, agreement
from .guided_plans import enough_images, search_guided_plans
from .job import OnProgress
from .judge import BATCH_SIZE as JUDGE_BATCH_SIZE
from .judge import train_judge
from .labels import NearestNeighbors, Votes
from .plans import HeldOut, PlanSearch, search_fast_plan, search_plans
from .spatial import Trainer, duration, with_memory
from .subject import Log, summarize_data

GENERATORS = ("auto", "vae", "wae", "spatial")
# Smaller images leave a map nothing to shrink.
MIN_SPATIAL_SIDE = 32
# How far reconstructions may be from the images, as a share of the distance between images that
# have nothing to do with each other: a blurred photograph is at a half, a sharp one at a tenth.
MAX_BLUR = 0.3
# The minutes of a fit of photographs, on a GPU and on a CPU, and how they are shared out; what is
# left is for the choice of plans.
GPU_MINUTES, CPU_MINUTES = 7.0, 45.0
TRY_SHARE, AUTOENCODER_SHARE, JUDGE_SHARE, FLOW_SHARE = 0.05, 0.34, 0.04, 0.34
# Mirrored images are trained on too, if the classifier gives them the same class.
MIN_MIRROR_AGREEMENT, MAX_MIRROR_IMAGES = 0.98, 200
# A network that learns the classifier's answers any worse is no judge of it.
MIN_JUDGE_AGREEMENT = 0.8
JUDGE_STEPS = 1500
# A tenth is held out: enough to rate plans on, and little to lose for the training.
HELD_OUT_SHARE, MAX_HELD_OUT = 0.1, 1000
# A few dozen plans are tried; on 256 images, one image is a difference of 0.4 %.
MAX_SEARCH_IMAGES = 256
# Budgets of optimizer steps, from which the epochs follow: the fewer images, the more epochs.
GENERATOR_STEPS, FLOW_STEPS = 6000, 10000
MAX_EPOCHS, MAX_FLOW_EPOCHS = 500, 200
# Images are kept in half precision, up to 1 GiB; more are read when they are needed.
MAX_BYTES_IN_MEMORY = 1 << 30
# A class with less than a third of the mean number of images is drawn as often as the others.
RARE_CLASS_RATIO = 1 / 3
# With fewer images of a class, a flow learns these by heart.
MIN_COUNT = 50
# Latents whose standard deviation and means lie in these bounds need no standardization.
MIN_LATENT_STD, MAX_LATENT_STD, MAX_LATENT_MEAN = 0.2, 5.0, 5.0


@dataclass(frozen=True)
class Recipe:
    """The settings of a fit; what is None is chosen by the data.

    Arguments:
        generator: ``auto``, ``vae``, ``wae`` or ``spatial``; for tables there is one choice only.
        features: The number of latent features.
        epochs: The epochs of the generator.
        flow_epochs: The epochs of the flow.
        rotate: Whether to augment with rotations and reflections, for images that have no up.
        seed: The seed of everything random.
        minutes: The time for the whole fit. Photographs take 7 minutes on a GPU and 45 on a CPU
            unless it is given; others what they need.
    """

    generator: str = "auto"
    features: int | None = None
    epochs: int | None = None
    flow_epochs: int | None = None
    rotate: bool = False
    seed: int = 0
    minutes: float | None = None

    def __post_init__(self) -> None:
        if self.generator not in GENERATORS:
            raise InputError(
                f"the generator must be one of {', '.join(GENERATORS)}, got {self.generator!r}."
            )
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise InputError(f"`minutes` must be positive, got {self.minutes!r}. Try 10.")


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
    run = _Run(recipe or Recipe(), folder.parent / f"{folder.name}.fit", log, on_progress, device)
    with run.timed("all"):
        summary, lines = summarize_data(images, classifier, classes, device)
        for line in lines:
            log(line)
        run.work.mkdir(parents=True, exist_ok=True)
        train, test = _split(images, run.recipe.seed, device)
        with run.timed("generator"):
            generator, epochs = _choose_generator(run, images, train, test, classifier)
        spatial = isinstance(generator, SpatialAutoencoder)
        labelled, model = _surrogate(run, classifier, generator, train)
        consistency = _check_consistency(run, test, generator, model, epochs, force)
        with run.timed("flow"):
            train_flow = _train_map_flow if spatial else _train_flow
            flow, record, p = train_flow(run, labelled, generator, model, classes)
        if spatial and oracle is None:
            with run.timed("judge"):
                oracle = _train_judge(run, labelled, p, model, test)
        with run.timed("plan"):
            side = min(images.shape[1:]) if spatial else 0
            held_out = HeldOut(
                generator,
                model,
                flow,
                test[:MAX_SEARCH_IMAGES],
                oracle=oracle,
                distance=best_distance(side)[0].to(device) if spatial else None,
                seed=run.recipe.seed,
            )
            search, fast = (_search_guided_plans if spatial else _search_plans)(run, held_out)
    bundle = Bundle.make(
        generator,
        flow,
        model,
        _evenly_spaced(train, 512),
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


@dataclass(frozen=True, eq=False)
class _Run:
    """The settings of a fit, where its parts are kept, and who hears of it."""

    recipe: Recipe
    work: Path
    log: Log
    on_progress: OnProgress
    device: str
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def on_gpu(self) -> bool:
        return torch.device(self.device).type == "cuda"

    @cached_property
    def budget(self) -> Budget:
        minutes = self.recipe.minutes or (GPU_MINUTES if self.on_gpu else CPU_MINUTES)
        name = fingerprint(json.dumps(asdict(self.recipe)))[:12]
        return Budget(60 * minutes, self.work / f"budget-{name}.json")

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[step] = time.perf_counter() - started

    def on_epoch(self, step: str) -> Callable[[Epoch], object]:
        """Returns what to call after every epoch of a step."""

        def finish(epoch: Epoch) -> None:
            self.budget.save()
            self.on_progress(epoch.number / epoch.of, step)

        return finish

    def checkpoint(self, part: str, *settings: object) -> Path:
        """Returns the file of a part; another recipe has another file."""
        name = fingerprint(json.dumps([asdict(self.recipe), *settings]))[:12]
        return self.work / f"{part}-{name}.safetensors"


class _Part:
    """Some rows of a set: in memory where they fit, else read when they are needed."""

    def __init__(
        self, images: Images | Table, rows: Tensor, device: str, p: Tensor | None = None
    ) -> None:
        self.images, self.rows, self.device, self.p = images, rows, device, p
        self.names = [f"{len(images)} images", *images.names[:: max(1, len(images) // 1000)]]
        self.kept: Tensor | None = None
        size = 2 * len(rows) * math.prod(images.shape)
        if size <= MAX_BYTES_IN_MEMORY and len(images.shape) == 3:
            kept = torch.empty(len(rows), *images.shape, dtype=torch.float16)
            for start in range(0, len(rows), 256):
                kept[start : start + 256] = images[rows[start : start + 256]].half()
            self.kept = kept.to(device)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        if self.kept is not None:
            where = index if isinstance(index, slice) else index.to(self.kept.device)
            return self.kept[where].float()
        where = index if isinstance(index, slice) else index.to(self.rows.device)
        return self.images[self.rows[where]].to(self.device)

    def batches(self, batch_size: int) -> Iterator[Tensor]:
        for start in range(0, len(self), batch_size):
            yield self[start : start + batch_size]


def _split(images: Images | Table, seed: int, device: str) -> tuple[_Part, Tensor]:
    """Returns the images to train on, and those held out, in random order.

    Folders stand one class behind the other, and plans are tried on the first of those held out.
    """
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    out = min(MAX_HELD_OUT, max(10, round(HELD_OUT_SHARE * len(images))))
    return _Part(images, order[out:].sort().values, device), images[order[:out]].to(device)


def _evenly_spaced(train: _Part, n: int) -> Tensor:
    return train[torch.linspace(0, len(train) - 1, min(len(train), n)).long()]


def _describe_data(images: Images | Table, train: _Part) -> dict[str, object]:
    """Returns what explaining needs to know of the data, for the bundle's record."""
    if isinstance(images, Table):
        return {"columns": list(images.columns), "std": train[:].std(0).tolist()}
    return {"stretch": getattr(images, "stretch", "none")}


def _choose_generator(
    run: _Run,
    images: Images | Table,
    train: _Part,
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
        return _train_spatial(run, images, train)
    chosen = recipe.generator != "auto" or recipe.features or recipe.epochs
    if chosen or side < MIN_SPATIAL_SIDE:
        return _train_generator(run, images, train)
    cheap, epochs = _train_generator(run, images, train, TRY_SHARE * run.budget.seconds)
    _, model = _surrogate(run, classifier, cheap, train)
    same, blur = agreement(test, cheap, model).overall, _blur(cheap, test)
    if same >= GOOD_AGREEMENT and blur <= MAX_BLUR:
        return cheap, epochs
    run.log(
        f"Of {len(test)} held out it keeps the class of {same:.1%}, and reconstructions are at "
        f"{blur:.0%} of the distance between random images. That is too blurred, so a spatial one "
        "takes its place."
    )
    return _train_spatial(run, images, train)


@torch.no_grad()
def _blur(generator: Generator, x: Tensor) -> float:
    """Returns the distance of reconstructions, as a share of that between random images."""
    distance = best_distance(min(x.shape[2:]))[0].to(x.device)
    near, far = [], []
    for a, b in zip(torch.split(x, 64), torch.split(x.roll(len(x) // 2, 0), 64), strict=True):
        near.append(distance(generator.decode(generator.encode(a)), a))
        far.append(distance(b, a))
    return (torch.cat(near).mean() / torch.cat(far).mean()).item()


def _train_spatial(run: _Run, images: Images, train: _Part) -> tuple[SpatialAutoencoder, int]:
    if not run.on_gpu:
        run.log(
            "On a GPU it would be larger, keep finer detail and take minutes; see --device cuda."
        )
    share = AUTOENCODER_SHARE * run.budget.seconds
    return _trainer(run, train, images.shape).autoencoder(
        share, run.on_epoch("training the generator"), run.log
    )


def _trainer(run: _Run, train: _Part, shape: tuple[int, int, int]) -> Trainer:
    return Trainer(
        train,
        shape,
        run.device,
        run.budget,
        run.recipe.seed,
        run.checkpoint,
        run.work / "preview.png",
    )


def _train_generator(
    run: _Run, images: Images, train: _Part, most: float | None = None
) -> tuple[Generator, int]:
    """Trains a generator of rows, and logs how long that will take before it begins.

    Arguments:
        run: The fit.
        images: The set.
        train: The images to train on.
        most: The seconds that it may take. Defaults to what it needs.
    """
    recipe = run.recipe
    torch.manual_seed(recipe.seed)
    variance = _evenly_spaced(train, 512).var().item()
    model = _build_generator(recipe, images.shape, variance).to(run.device)
    batch = 128 if len(train) >= 2000 else 64
    steps = GENERATOR_STEPS if min(images.shape[1:]) <= 32 else 2 * GENERATOR_STEPS
    epochs = recipe.epochs or _epochs(steps, batch, len(train), least=8)
    if most is None and recipe.minutes is not None:
        most = AUTOENCODER_SHARE * run.budget.seconds
    each = _step_seconds(model, train[:batch]) * math.ceil(len(train) / batch)
    if most is not None:
        fits = max(1, int(most / each))
        epochs = run.budget.decide("rows", lambda: min(epochs, fits))
    seconds = each * epochs
    kind = type(model).__name__
    rest = "; then the flow, and the choice of a plan, a few minutes." if most is None else "."
    run.log(
        f"Training a {kind} of {_features(model)} features for {epochs} epochs, about "
        f"{duration(seconds)}{rest}"
    )
    fit_generator(
        model,
        train,
        epochs=epochs,
        batch_size=batch,
        learning_rate=2e-3,
        schedule="cosine",
        seed=recipe.seed,
        checkpoint=run.checkpoint("generator", epochs, kind),
        preview=run.work / "preview.png",
        augment=random_d4 if recipe.rotate else None,
        on_epoch=run.on_epoch("training the generator"),
    )
    model.requires_grad_(False)
    return model, epochs


def _build_generator(recipe: Recipe, shape: tuple[int, ...], variance: float) -> Any:  # noqa: ANN401 - VAE or WAE
    """Builds a generator for images of a shape; dark ones weigh their errors more."""
    pixels, side = math.prod(shape), min(shape[1:])
    halvings = max(1, min(5, math.ceil(math.log2(side / 4)) + (side <= 32))) if side >= 8 else 1
    features = recipe.features or (16 if side < 16 else 32 if side <= 32 else 64)
    if recipe.rotate:
        _check_square(shape)
    if recipe.generator == "wae":
        widths = (16, 32, 64, 128, 256)[:halvings]
        return WAE(shape, features, widths=widths)
    weight = max(4000.0, 5.0 * pixels) * min(20.0, max(1.0, 0.1 / max(variance, 1e-9)))
    widths = ((8, 16, 32, 32) if side <= 32 else (8, 16, 32, 64, 64))[:halvings]
    return VAE(shape, features, widths=widths, reconstruction_weight=round(weight))


def _check_square(shape: Sequence[int]) -> None:
    if shape[1] != shape[2]:
        raise InputError(
            f"images of {shape[1]} × {shape[2]} cannot be rotated: only square ones can. Resize "
            "them with --size, or leave out --rotate."
        )


def _features(model: nn.Module) -> int:
    return int(model.features)  # type: ignore[arg-type]


def _step_seconds(model: Any, x: Tensor) -> float:  # noqa: ANN401 - VAE or WAE
    """Times a few steps of training, on weights that are put back."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    started = 0.0
    for n in range(4):
        if n == 1:
            _synchronize(x)
            started = time.perf_counter()
        loss, _ = model.loss(x, torch.Generator(x.device).manual_seed(0))
        loss.backward()
    _synchronize(x)
    seconds = (time.perf_counter() - started) / 3
    model.zero_grad(set_to_none=True)
    model.load_state_dict(state)
    model.eval()
    return 1.15 * seconds


def _synchronize(x: Tensor) -> None:
    """Waits until a GPU is done, since it runs behind the host."""
    if x.is_cuda:
        torch.cuda.synchronize(x.device)


def _surrogate(
    run: _Run, classifier: Classifier | Votes, generator: Generator, train: _Part
) -> tuple[_Part, Classifier]:
    """Returns the images with labels, and whom to query.

    For votes that is a kNN surrogate or, on maps, whose distances say little, a network.
    """
    if not isinstance(classifier, Votes):
        return train, classifier
    voted = train.rows[classifier.known[train.rows]]
    p = classifier.p[voted].to(train.device)
    labelled = _Part(train.images, voted, train.device, p)
    if isinstance(generator, SpatialAutoencoder):
        return labelled, _fit_judge(run, labelled, p, "surrogate", run.recipe.seed)
    z = torch.cat([generator.encode(x) for x in labelled.batches(256)])
    return labelled, NearestNeighbors(generator, z, p)


def _check_consistency(
    run: _Run,
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


def _train_map_flow(
    run: _Run,
    train: _Part,
    generator: Any,  # noqa: ANN401 - a spatial autoencoder
    classifier: Classifier,
    classes: Sequence[str],
) -> tuple[Flow, dict[str, Any], Tensor]:
    """Trains the flow of a spatial generator; conditions are hard, since guidance needs sides."""
    shape = generator.shape
    if run.recipe.rotate:
        _check_square(shape)
        orbit: Callable[[Tensor], Iterable[Tensor]] = d4_orbit
    elif train.p is None and _mirrors(train, classifier):
        run.log("The classifier gives mirrored images the same class, so they are used as well.")
        orbit = _mirrored
    else:
        orbit = _alone
    turns = len(list(orbit(train[:1])))
    z, p = embed(_orbits(train, orbit), generator, classifier)
    if train.p is not None:
        p = torch.cat([part.repeat(turns, 1) for part in torch.split(train.p, 256)])
    balanced = _balance(run, p, classes)
    flow, epochs = _trainer(run, train, shape).flow(
        generator,
        z,
        p,
        FLOW_SHARE * run.budget.seconds,
        run.on_epoch("training the flow"),
        run.log,
        balanced=balanced,
    )
    with_memory(
        256, lambda batch: flow.fit_typicality(z, p, per_class=200, batch_size=batch), run.log
    )
    first = torch.cat([part[:n] for part, n in _first_of_each(p, turns)])
    return flow, {"flow epochs": epochs, "soft": False, "balanced": balanced}, first


def _first_of_each(p: Tensor, turns: int) -> Iterator[tuple[Tensor, int]]:
    """Yields the answers on every batch of images and its copies, and how many are originals."""
    for part in torch.split(p, 256 * turns):
        yield part, len(part) // turns


def _mirrors(train: _Part, classifier: Classifier) -> bool:
    """Tells whether mirrored images have the same class for the classifier."""
    x = _evenly_spaced(train, MAX_MIRROR_IMAGES)
    labels, mirrored = (in_halves(classifier, part).argmax(1) for part in (x, x.flip(3)))
    same = labels == mirrored
    return bool(same.double().mean() >= MIN_MIRROR_AGREEMENT)


def _train_judge(
    run: _Run, train: _Part, p: Tensor, classifier: Classifier, test: Tensor
) -> Classifier:
    """Trains a second opinion to choose a reliable plan with."""
    judge = _fit_judge(run, train, p, "judge", run.recipe.seed + 1)
    labels, judged = (in_halves(each, test).argmax(1) for each in (classifier, judge))
    share = (labels == judged).double().mean().item()
    good = share >= MIN_JUDGE_AGREEMENT
    run.log(
        "There is no oracle, so a small network learnt the classifier's answers to judge with: "
        f"they agree on {share:.1%} of {len(test)} held out"
        + ("." if good else ", too few, so the classifier is its own judge.")
    )
    return judge if good else classifier


def _fit_judge(run: _Run, train: _Part, p: Tensor, name: str, seed: int) -> Classifier:
    shape = tuple(train.images.shape)
    rows = torch.arange(TIMED_STEPS * JUDGE_BATCH_SIZE) % len(train)
    sample = train[rows]

    def timed(epochs: int, on_epoch: Callable[[Epoch], object]) -> object:
        return train_judge(sample.__getitem__, p[rows], shape, epochs=epochs, on_epoch=on_epoch)

    def choose() -> int:
        steps = min(JUDGE_STEPS, JUDGE_SHARE * run.budget.seconds / seconds_per_step(timed))
        return max(2, round(steps * JUDGE_BATCH_SIZE / len(train)))

    epochs = run.budget.decide(name, choose)
    return train_judge(
        train.__getitem__,
        p,
        shape,
        epochs=epochs,
        seed=seed,
        checkpoint=run.checkpoint(name, epochs),
        on_epoch=run.on_epoch("training a judge"),
    )


def _search_guided_plans(run: _Run, held_out: HeldOut) -> tuple[PlanSearch, RatedPlan | None]:
    """Searches guided plans, on as many images as there is time for."""
    few = enough_images(held_out, 0.8 * run.budget.left)
    search = search_guided_plans(
        few, run.budget.left, lambda share: run.on_progress(share, "choosing a plan")
    )
    run.log(search.why)
    return search, None


def _train_flow(
    run: _Run,
    train: _Part,
    generator: Generator,
    classifier: Classifier,
    classes: Sequence[str],
) -> tuple[Flow, dict[str, Any], Tensor]:
    """Trains the flow on latents and the classifier's answers, or the votes of people."""
    recipe = run.recipe
    rotates = recipe.rotate and len(train[:1].shape) == 4
    z, p = embed(_orbits(train, d4_orbit) if rotates else train, generator, classifier)
    if train.p is not None:
        p = torch.cat([part.repeat(8 if rotates else 1, 1) for part in torch.split(train.p, 256)])
    soft = bool((p.max(1).values < 1).any())
    balanced = _balance(run, p, classes)
    std, mean = z.std(correction=0).item(), z.mean(0).abs().max()
    standardize = not MIN_LATENT_STD < std < MAX_LATENT_STD or bool(mean > MAX_LATENT_MEAN)
    batch = 256 if len(z) >= 2000 else 64
    epochs = recipe.flow_epochs or min(
        MAX_FLOW_EPOCHS, _epochs(FLOW_STEPS, batch, len(z), least=20)
    )
    settings: dict[str, Any] = {
        "batch_size": batch,
        "learning_rate": 2e-3,
        "schedule": "cosine",
        "balanced": balanced,
        "standardize": standardize,
        "seed": recipe.seed,
    }

    def build() -> Flow:
        torch.manual_seed(recipe.seed)
        field = MLPField(z.shape[1], len(classes), width=256, depth=4)
        return Flow(field, Midpoint(2), soft=soft).to(z.device)

    def most_epochs() -> int:
        rows = torch.arange(TIMED_STEPS * batch, device=z.device) % len(z)
        timed = partial(fit, build(), z[rows], p[rows], **settings)
        each = seconds_per_step(lambda epochs, on_epoch: timed(epochs=epochs, on_epoch=on_epoch))
        steps = FLOW_SHARE * run.budget.seconds / each
        return max(1, int(steps / math.ceil(len(z) / batch)))

    if recipe.minutes is not None:
        epochs = min(epochs, run.budget.decide("row flow", most_epochs))
    flow = build()
    fit(
        flow,
        z,
        p,
        epochs=epochs,
        ema=0.999 if epochs * len(z) / batch > 2000 else 0.0,
        **settings,
        checkpoint=run.checkpoint("flow", epochs, batch, soft, balanced),
        on_epoch=run.on_epoch("training the flow"),
    )
    flow.requires_grad_(False)
    flow.fit_typicality(z, p, per_class=500)
    return flow, {"flow epochs": epochs, "soft": soft, "balanced": balanced}, p


def _balance(run: _Run, p: Tensor, classes: Sequence[str]) -> bool:
    """Returns whether classes are so uneven that each should be drawn equally often."""
    count = p.argmax(1).bincount(minlength=len(classes))
    present = count[count > 0].double()
    if len(present) < 2:
        raise InputError(
            f"the classifier gives one class, {classes[int(count.argmax())]}, to all of {len(p)} "
            f"images to train on. Give images of other classes too, at least {MIN_COUNT} of each."
        )
    balanced = bool(present.min() < RARE_CLASS_RATIO * present.mean())
    few = [f"{name} {n}" for name, n in zip(classes, count.tolist(), strict=True) if n < MIN_COUNT]
    if few:
        run.log(
            f"Few images to learn a class from: {', '.join(few[:8])}. Below {MIN_COUNT}, expect "
            "counterfactuals of it to be rare and all alike."
        )
    if balanced:
        rare = classes[int(count.where(count > 0, count.max()).argmin())]
        run.log(f"The classes are uneven ({rare} is rare), so each is drawn equally often.")
    return balanced


def _search_plans(run: _Run, held_out: HeldOut) -> tuple[PlanSearch, RatedPlan | None]:
    """Searches the front and the fast plan on the same held-out images."""
    search = search_plans(held_out, lambda share: run.on_progress(share, "choosing a plan"))
    fast = search_fast_plan(held_out, lambda share: run.on_progress(share, "choosing a fast plan"))
    run.log(search.why)
    if fast is not None:
        run.log(
            f"With --fast: {describe(fast.plan)}, which takes {fast.numbers['queries']:.0f} "
            "queries and was no worse than the paper's reliable plan."
        )
    return search, fast


def _orbits(train: _Part, orbit: Callable[[Tensor], Iterable[Tensor]]) -> Iterator[Tensor]:
    """Yields the images in all rotations or reflections, batch by batch."""
    for x in train.batches(256):
        yield from orbit(x)


def _mirrored(x: Tensor) -> tuple[Tensor, ...]:
    return x, x.flip(3)


def _alone(x: Tensor) -> tuple[Tensor, ...]:
    return (x,)


def _epochs(steps: int, batch: int, n: int, least: int) -> int:
    return min(MAX_EPOCHS, max(least, round(steps * batch / n)))
