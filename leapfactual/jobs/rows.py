"""Training for drawings: a generator whose latents are rows, a flow on them, and plans.

A VAE or a WAE of some dozen numbers is cheap, and enough for digits, drawings and tables. How long
it trains follows from a budget of optimizer steps: the fewer images, the more epochs.
"""

import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..data import Images
from ..fields import MLPField
from ..flow import Flow
from ..generators import VAE, WAE
from ..leaps import RatedPlan, describe
from ..solvers import Midpoint
from ..training import embed, fit, fit_generator
from ..training.augmentation import d4_orbit, random_d4
from ..types import Classifier, Generator
from .budget import TIMED_STEPS, seconds_per_step
from .plans import HeldOut, PlanSearch, search_fast_plan, search_plans
from .recipe import (
    AUTOENCODER_SHARE,
    BATCH_SIZE,
    FLOW_SHARE,
    Part,
    Recipe,
    Run,
    balance,
    check_square,
    evenly_spaced,
    orbits,
)
from .spatial import duration

GENERATOR_STEPS, FLOW_STEPS = 6000, 10000
MAX_EPOCHS, MAX_FLOW_EPOCHS = 500, 200
# Latents whose standard deviation and means lie in these bounds need no standardization.
MIN_LATENT_STD, MAX_LATENT_STD, MAX_LATENT_MEAN = 0.2, 5.0, 5.0


def train_generator(
    run: Run, images: Images, train: Part, most: float | None = None
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
    variance = evenly_spaced(train, 512).var().item()
    model = build_generator(recipe, images.shape, variance).to(run.device)
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


def search(run: Run, held_out: HeldOut) -> tuple[PlanSearch, RatedPlan | None]:
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


def _epochs(steps: int, batch: int, n: int, least: int) -> int:
    return min(MAX_EPOCHS, max(least, round(steps * batch / n)))
