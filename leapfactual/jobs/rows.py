"""Training for drawings: a generator whose latents are rows, a flow on them, and plans.

A VAE or a WAE of some dozen numbers is cheap, and enough for digits, drawings and tables. How long
it trains follows from a budget of optimizer steps: the fewer images, the more epochs.
"""

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from ..data import Images, Table
from ..fields import MLPField
from ..flow import Flow
from ..generators import VAE, WAE, Standardized
from ..leaps import describe
from ..solvers import Midpoint
from ..training import embed, fit, fit_generator
from ..training.augmentation import d4_orbit, random_d4
from ..types import Classifier, Generator
from .budget import TIMED_STEPS, seconds_per_step
from .held_out import HeldOut
from .plans import PlanSearch, search_plans
from .recipe import (
    BATCH_SIZE,
    FLOW_SHARE,
    MAX_SEARCH_IMAGES,
    MIN_PLAN_SECONDS,
    ROWS_PLAN_SHARE,
    Part,
    Recipe,
    Run,
    balance,
    check_square,
    evenly_spaced,
    fit_scale,
    orbits,
)

GENERATOR_STEPS, FLOW_STEPS = 6000, 10000
MAX_EPOCHS, MAX_FLOW_EPOCHS = 500, 200
# Latents of each class that make the scale of typicality, and images that are timed.
PER_CLASS, TIMED_IMAGES = 500, 64
# Steps are timed for so long at least, since a machine does other things in between.
MIN_TIMED_SECONDS = 1.0
# Latents whose standard deviation and means lie in these bounds need no standardization.
MIN_LATENT_STD, MAX_LATENT_STD, MAX_LATENT_MEAN = 0.2, 5.0, 5.0


@dataclass(frozen=True)
class Schedule:
    """How long something is trained.

    Arguments:
        epochs: How often to go through the data.
        batch: How many rows to a step.
        seconds: How long that takes on this machine.
    """

    epochs: int
    batch: int
    seconds: float


def expected_seconds(
    run: Run, images: Images | Table, train: Part, classes: int
) -> dict[str, float]:
    """Returns about how long each stage takes, by steps and queries that are timed."""
    x, recipe = train[:TIMED_IMAGES], run.recipe
    each = 0.0 if run.queries is None else run.queries.seconds_each
    rotated = 8 if recipe.rotate else 1
    stages: dict[str, float] = {}
    generator: Generator
    if isinstance(images, Table):
        generator = Standardized.of(x)
    else:
        generator, schedule = _schedule_generator(run, images.shape, train)
        stages["generator"] = schedule.seconds
    z = generator.encode(x)
    embedding = rotated * len(train) * (each + _seconds(lambda: generator.encode(x)) / len(x))
    flow = _build_flow(z.shape[1], classes, run.device)
    n = rotated * len(train)
    epochs, batch = _flow_epochs(run, flow, n)
    training = epochs * math.ceil(n / batch) * _flow_step_seconds(flow, batch)
    p = torch.eye(classes, device=z.device)[torch.arange(len(z)) % classes]
    rated = min(len(train), PER_CLASS * classes)
    scale = rated * _seconds(lambda: flow.fit_typicality(z, p)) / len(z)
    stages["flow"] = embedding + training + scale
    # Of a complete search, 85 answers for an image are new and kept; without keeping them it asks
    # and decodes 500 times.
    walk = _seconds(lambda: generator.decode(z)) / len(z)
    search = MAX_SEARCH_IMAGES * (85 * each + 1000 * walk)
    stages["plan"] = min(search, _plan_seconds(run, sum(stages.values())))
    return stages


def train_generator(
    run: Run, images: Images, train: Part, most: float | None = None, end: float = 1.0
) -> tuple[Generator, int]:
    """Trains a generator of rows.

    Arguments:
        run: The fit.
        images: The set.
        train: The images to train on.
        most: The seconds that it may take. Defaults to what it needs.
        end: The share of the stage that is done then.
    """
    model, schedule = _schedule_generator(run, images.shape, train, most)
    kind = type(model).__name__
    run.log(f"Training a {kind} of {_features(model)} features for {schedule.epochs} epochs.")
    fit_generator(
        model,
        train,
        epochs=schedule.epochs,
        batch_size=schedule.batch,
        learning_rate=2e-3,
        schedule="cosine",
        seed=run.recipe.seed,
        checkpoint=run.checkpoint("generator", schedule.epochs, kind),
        preview=run.work / "preview.png",
        augment=random_d4 if run.recipe.rotate else None,
        **run.training("training the generator", 0.0, end),
    )
    model.requires_grad_(False)
    return model, schedule.epochs


def _schedule_generator(
    run: Run, shape: tuple[int, ...], train: Part, most: float | None = None
) -> tuple[Any, Schedule]:
    """Returns an untrained generator, and for how long to train it."""
    recipe = run.recipe
    torch.manual_seed(recipe.seed)
    variance = evenly_spaced(train, 512).var().item()
    model = build_generator(recipe, shape, variance).to(run.device)
    batch = 128 if len(train) >= 2000 else 64
    steps = GENERATOR_STEPS if min(shape[1:]) <= 32 else 2 * GENERATOR_STEPS
    epochs = recipe.epochs or _epochs(steps, batch, len(train), least=8)
    if most is None and recipe.minutes is not None:
        most = run.autoencoder_seconds
    each = _step_seconds(model, train[:batch]) * math.ceil(len(train) / batch)
    if most is not None:
        fits = max(1, int(most / each))
        epochs = run.budget.decide("rows", lambda: min(epochs, fits))
    return model, Schedule(epochs, batch, each * epochs)


def train_flow(
    run: Run,
    train: Part,
    generator: Generator,
    classifier: Classifier,
    classes: Sequence[str],
) -> tuple[Flow, dict[str, Any], Tensor]:
    """Trains the flow on latents and the classifier's answers, or the votes of people."""
    recipe = run.recipe
    rotates = recipe.rotate and len(train[:1].shape) == 4
    z, p = embed(orbits(train, d4_orbit) if rotates else train, generator, classifier)
    if train.p is not None:
        p = torch.cat(
            [part.repeat(8 if rotates else 1, 1) for part in torch.split(train.p, BATCH_SIZE)]
        )
    soft = bool((p.max(1).values < 1).any())
    balanced = balance(run, p, classes)
    std, mean = z.std(correction=0).item(), z.mean(0).abs().max()
    standardize = not MIN_LATENT_STD < std < MAX_LATENT_STD or bool(mean > MAX_LATENT_MEAN)
    torch.manual_seed(recipe.seed)
    flow = _build_flow(z.shape[1], len(classes), z.device, soft)
    epochs, batch = _flow_epochs(run, flow, len(z))
    fit(
        flow,
        z,
        p,
        epochs=epochs,
        batch_size=batch,
        learning_rate=2e-3,
        schedule="cosine",
        ema=0.999 if epochs * len(z) / batch > 2000 else 0.0,
        balanced=balanced,
        standardize=standardize,
        seed=recipe.seed,
        checkpoint=run.checkpoint("flow", epochs, batch, soft, balanced),
        **run.training("training the flow", 0.1, 0.9),
    )
    flow.requires_grad_(False)
    fit_scale(run, flow, z, p, PER_CLASS)
    return flow, {"flow epochs": epochs, "soft": soft, "balanced": balanced}, p


def _build_flow(
    features: int, classes: int, device: torch.device | str, soft: bool = False
) -> Flow:
    field = MLPField(features, classes, width=256, depth=4)
    return Flow(field, Midpoint(2), soft=soft).to(device)


def _flow_epochs(run: Run, flow: Flow, n: int) -> tuple[int, int]:
    """Returns how often a flow goes through so many latents, and how many to a step."""
    batch = 256 if n >= 2000 else 64
    needed = _epochs(FLOW_STEPS, batch, n, least=20)
    epochs = run.recipe.flow_epochs or min(MAX_FLOW_EPOCHS, needed)

    def affordable() -> int:
        each = _flow_step_seconds(flow, batch) * math.ceil(n / batch)
        return min(epochs, max(1, int(FLOW_SHARE * run.budget.seconds / each)))

    if run.recipe.minutes is not None:
        # People may have voted on fewer than were counted on when the time was announced.
        epochs = run.budget.decide(f"row flow {n}", affordable)
    return epochs, batch


def _flow_step_seconds(flow: Flow, batch: int) -> float:
    """Times a step of training, on a copy of the flow and latents drawn at random."""
    other = copy.deepcopy(flow)
    rng = torch.Generator().manual_seed(0)
    z = torch.randn(TIMED_STEPS * batch, flow.features, generator=rng).to(flow.mean)
    p = torch.eye(flow.classes).to(z)[torch.arange(len(z)) % flow.classes]
    return seconds_per_step(
        lambda epochs, on_epoch: fit(
            other, z, p, epochs=epochs, batch_size=batch, on_epoch=on_epoch
        )
    )


def search(run: Run, held_out: HeldOut) -> PlanSearch:
    """Searches plans, within a share of the time."""
    seconds = _plan_seconds(run, run.budget.spent)
    search = search_plans(held_out, seconds, lambda share: run.advance(share, "choosing a plan"))
    run.log(search.why)
    if search.fast is not None:
        run.log(
            f"With --fast: {describe(search.fast.plan)}, which takes "
            f"{search.fast.numbers['queries']:.0f} queries and was no worse than the paper's "
            "reliable plan."
        )
    return search


def _plan_seconds(run: Run, spent: float) -> float:
    """Returns the time for the search, by the time that all before it takes."""
    if run.recipe.minutes is not None:
        return max(run.budget.seconds - spent, 0.05 * run.budget.seconds)
    return max(MIN_PLAN_SECONDS, ROWS_PLAN_SHARE / (1 - ROWS_PLAN_SHARE) * spent)


def build_generator(recipe: Recipe, shape: tuple[int, ...], variance: float) -> Any:  # noqa: ANN401 - VAE or WAE
    """Builds a generator for images of a shape; dark ones weigh their errors more."""
    pixels, side = math.prod(shape), min(shape[1:])
    halvings = max(1, min(5, math.ceil(math.log2(side / 4)) + (side <= 32))) if side >= 8 else 1
    features = recipe.features or (16 if side < 16 else 32 if side <= 32 else 64)
    if recipe.rotate:
        check_square(shape)
    if recipe.generator == "wae":
        widths = (16, 32, 64, 128, 256)[:halvings]
        return WAE(shape, features, widths=widths)
    weight = max(4000.0, 5.0 * pixels) * min(20.0, max(1.0, 0.1 / max(variance, 1e-9)))
    widths = ((8, 16, 32, 32) if side <= 32 else (8, 16, 32, 64, 64))[:halvings]
    return VAE(shape, features, widths=widths, reconstruction_weight=round(weight))


def _features(model: nn.Module) -> int:
    return int(model.features)  # type: ignore[arg-type]


def _step_seconds(model: Any, x: Tensor) -> float:  # noqa: ANN401 - VAE or WAE
    """Times a few steps of training, on weights that are put back."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    seconds: list[float] = []
    while len(seconds) < 1 + TIMED_STEPS or sum(seconds) < MIN_TIMED_SECONDS:
        started = time.perf_counter()
        loss, _ = model.loss(x, torch.Generator(x.device).manual_seed(0))
        loss.backward()
        _synchronize(x)
        seconds.append(time.perf_counter() - started)
    model.zero_grad(set_to_none=True)
    model.load_state_dict(state)
    model.eval()
    # The optimizer and what is around a step take a seventh more.
    return 1.15 * median(seconds[1:])


def _seconds(work: Callable[[], object]) -> float:
    """Times some work, which is done once before to warm up."""
    with torch.no_grad():
        work()
        started = time.perf_counter()
        work()
    return time.perf_counter() - started


def _synchronize(x: Tensor) -> None:
    """Waits until a GPU is done, since it runs behind the host."""
    if x.is_cuda:
        torch.cuda.synchronize(x.device)


def _epochs(steps: int, batch: int, n: int, least: int) -> int:
    return min(MAX_EPOCHS, max(least, round(steps * batch / n)))
