"""From a set of images and a classifier to a bundle, without writing code.

The order is: look at the data, train the generator, ask whether the classifier answers the same on
reconstructions, and only then train the flow and choose a plan on images held out. Each step says
what it sees. What is trained is kept in a folder beside the bundle, so that an interrupted fit
goes on where it stopped.
"""

import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..bundle import Bundle
from ..data import Images, Table
from ..errors import InputError
from ..fields import MLPField
from ..flow import Flow
from ..generators import VAE, WAE, Standardized
from ..leaps import describe
from ..solvers import Midpoint
from ..training import embed, fit, fit_generator
from ..training.augmentation import d4_orbit, random_d4
from ..training.loop import Epoch
from ..types import Classifier, Generator, silent
from .consistency import POOR, Agreement, agreement
from .labels import NearestNeighbors, Votes
from .plans import PlanSearch, search_fast_plan, search_plans

GENERATORS = ("auto", "vae", "wae")
HELD_OUT = 0.1
MOST_HELD_OUT = 1000
CALIBRATED_ON = 256
LOOKED_AT = 500
GENERATOR_STEPS, FLOW_STEPS = 6000, 10000
MOST_EPOCHS = 500
FEWEST_IMAGES = 40
MOST_IN_MEMORY = 1 << 30
RARE = 1 / 3
DARK, FAINT = 0.8, 0.03

Tell = Callable[[str], object]
Progress = Callable[[float, str], object]


@dataclass(frozen=True)
class Recipe:
    """Says how a bundle is to be trained; what is None is chosen by the data.

    Arguments:
        generator: ``auto``, ``vae`` or ``wae``; for tables there is one choice only.
        features: The number of latent features.
        epochs: How often the generator goes through the images.
        flow_epochs: How often the flow goes through their latents.
        rotate: Whether to augment with rotations and reflections, for images that have no up.
        seed: The seed of everything random.
    """

    generator: str = "auto"
    features: int | None = None
    epochs: int | None = None
    flow_epochs: int | None = None
    rotate: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.generator not in GENERATORS:
            raise InputError(
                f"the generator must be one of {', '.join(GENERATORS)}, got {self.generator!r}."
            )


@dataclass(frozen=True, eq=False)
class Fitted:
    """Is a bundle and what was seen while it was made.

    Arguments:
        bundle: The bundle.
        seen: What the data are, as values that JSON can hold.
        agreement: Whether the classifier answers the same on reconstructions.
        search: What plans were tried and chosen.
        seconds: How long each step took.
    """

    bundle: Bundle
    seen: Mapping[str, object]
    agreement: Agreement
    search: PlanSearch
    seconds: Mapping[str, float] = field(default_factory=dict)


class PoorAgreement(InputError):
    """Says that the classifier does not recognise reconstructions, so that no flow can help."""


@torch.no_grad()
def summarize_data(
    images: Images | Table,
    classifier: Classifier | Votes,
    classes: Sequence[str],
    device: str = "cpu",
) -> tuple[dict[str, object], list[str]]:
    """Looks at the data before anything is trained.

    Arguments:
        images: The set.
        classifier: The classifier, asked about at most 500 of the images; or votes.
        classes: What the classes are called.
        device: Where to compute.

    Returns:
        What was seen, as values that JSON can hold, and the same in sentences.
    """
    n = len(images)
    voted = isinstance(classifier, Votes)
    rows = torch.linspace(0, n - 1, min(n, LOOKED_AT)).long()
    if isinstance(classifier, Votes):
        rows = classifier.known.nonzero()[:, 0]
        answers = classifier.p[rows]
    else:
        asked = [classifier(images[part].to(device)) for part in torch.split(rows, 100)]
        answers = torch.cat(asked)
    label = answers.argmax(1).cpu()
    shares = label.bincount(minlength=len(classes)).double() / len(label)
    soft = bool((answers.max(1).values < 1).any())
    seen: dict[str, object] = {
        "images": n,
        "shape": list(images.shape),
        "left out": len(images.broken),
        "classes": list(classes),
        "shares": {
            name: round(share, 3) for name, share in zip(classes, shares.tolist(), strict=True)
        },
        "answers": "probabilities" if soft else "labels",
    }
    kind = "rows of" if isinstance(images, Table) else "images of"
    size = " × ".join(map(str, images.shape))
    columns = " columns" if isinstance(images, Table) else " (channels, height, width)"
    lines = [f"{n} {kind} {size}{columns}."]
    if images.broken:
        names = "; ".join(f"{b.name}: {b.reason}" for b in images.broken[:3])
        more = f"; and {len(images.broken) - 3} more" if len(images.broken) > 3 else ""
        lines.append(f"Left out {len(images.broken)}: {names}{more}")
    by_share = sorted(zip(classes, shares.tolist(), strict=True), key=lambda pair: -pair[1])
    listed = ", ".join(f"{name} {share:.0%}" for name, share in by_share[:12])
    lines.append(
        f"People voted on {len(label)} images. They say: {listed}."
        if voted
        else f"The classifier gives {'probabilities' if soft else 'labels'}. Of {len(label)} it "
        f"says: {listed}."
    )
    never = [name for name, share in by_share if share == 0]
    if never:
        lines.append(
            f"It never says {', '.join(never[:5])} here: those classes cannot become targets "
            "unless other images show them."
        )
    if voted and len(label) < FEWEST_IMAGES:
        raise InputError(
            f"people voted on {len(label)} images, too few to learn from: at least "
            f"{FEWEST_IMAGES} are needed, better some thousands."
        )
    if len(set(label.tolist())) < 2:
        raise InputError(
            f"the classifier gives one class, {classes[int(label[0])]}, to all of {len(label)} "
            "images. Check that it gets images as it was trained on: values in [0, 1], the right "
            "size and channels."
        )
    if images.labels is not None and tuple(images.classes) == tuple(classes):
        right = (label == images.labels[rows]).double().mean().item()
        seen["accuracy"] = round(right, 4)
        lines.append(f"It agrees with the labels that came with the data on {right:.1%}.")
    if n < FEWEST_IMAGES:
        raise InputError(
            f"there are {n} images to learn from, too few: give at least {FEWEST_IMAGES}, better "
            "some thousands."
        )
    return seen, lines


def choose_stretch(images: Images | Table) -> str:
    """Returns ``sqrt`` for images that are black but for something faint, and ``none`` for others.

    A decoder leaves a faint floor where images are black; classifiers of such images see little
    else. With a stretch the floor all but vanishes before the classifier is asked.
    """
    if isinstance(images, Table):
        return "none"
    x = images[torch.linspace(0, len(images) - 1, min(len(images), 64)).long()]
    dark = (x == 0).double().mean().item() > DARK and x.mean().item() < FAINT
    return "sqrt" if dark else "none"


def fit_bundle(
    images: Images | Table,
    classifier: Classifier | Votes,
    folder: str | Path,
    *,
    classes: Sequence[str],
    recipe: Recipe | None = None,
    oracle: Classifier | None = None,
    named: str = "a classifier",
    force: bool = False,
    overwrite: bool = False,
    device: str = "cpu",
    tell: Tell = silent,
    progress: Progress = silent,
) -> Fitted:
    """Trains a generator and a flow, chooses plans, and saves the bundle.

    Arguments:
        images: The set.
        classifier: The classifier to explain; or votes of people, whose judgement the flow then
            carries. A stand-in chooses the plan, see :mod:`leapfactual.jobs.labels`.
        folder: Where the bundle goes. Beside it, until it is done, stands ``NAME.fit`` with the
            parts that are trained.
        classes: What the classes are called.
        recipe: How to train.
        oracle: A second classifier, to choose a reliable plan with.
        named: What the classifier is called, for the record.
        force: Go on although the classifier does not recognise reconstructions.
        overwrite: Replace a bundle that is there.
        device: Where to compute.
        tell: Is told a sentence at a time what is seen.
        progress: Is told the share that is done of a step, and which.
    """
    recipe, folder = recipe or Recipe(), Path(folder)
    if folder.exists() and not overwrite:
        raise InputError(
            f"there is something at {folder} already. Give another --out, or pass --overwrite."
        )
    started = time.perf_counter()
    seconds: dict[str, float] = {}
    seen, lines = summarize_data(images, classifier, classes, device)
    for line in lines:
        tell(line)
    work = folder.parent / f"{folder.name}.fit"
    work.mkdir(parents=True, exist_ok=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(recipe.seed))
    out = min(MOST_HELD_OUT, max(10, round(HELD_OUT * len(images))))
    held, kept = order[:out].sort().values, order[out:].sort().values
    train, test = _Part(images, kept, device), images[held].to(device)

    mark = time.perf_counter()
    generator, epochs = _generator(recipe, images, train, work, device, tell, progress)
    seconds["generator"] = time.perf_counter() - mark
    labelled, said = train, None
    if isinstance(classifier, Votes):
        voted = kept[classifier.known[kept]]
        labelled, said = _Part(images, voted, device), classifier.p[voted].to(device)
        z = torch.cat([generator.encode(x) for x in labelled.batches(256)])
        classifier = NearestNeighbors(generator, z, said)
    found = agreement(test, generator, classifier)
    tell(
        f"Of {len(test)} held out the classifier gives the same class to the original and to its "
        f"reconstruction in {found.overall:.1%}: {found.advice}"
    )
    if found.overall < POOR and not force:
        raise PoorAgreement(
            f"only {found.overall:.1%} of reconstructions keep their class, so nothing was spent "
            f"on a flow: {found.advice} Look at {work / 'preview.png'}. Train longer with --epochs "
            f"{2 * epochs}, or go on all the same with --force."
        )

    mark = time.perf_counter()
    flow, record = _flow(
        recipe, labelled, generator, classifier, classes, work, tell, progress, said
    )
    seconds["flow"] = time.perf_counter() - mark
    mark = time.perf_counter()
    chosen = search_plans(
        generator,
        classifier,
        flow,
        test[:CALIBRATED_ON],
        oracle=oracle,
        seed=recipe.seed,
        progress=lambda share: progress(share, "choosing a plan"),
    )
    fast = search_fast_plan(
        generator,
        classifier,
        flow,
        test[:CALIBRATED_ON],
        oracle=oracle,
        seed=recipe.seed,
        progress=lambda share: progress(share, "choosing a fast plan"),
    )
    seconds["plan"] = time.perf_counter() - mark
    tell(chosen.why)
    if fast is not None:
        tell(
            f"With --fast: {describe(fast.plan)}, which asks {fast.numbers['queries']:.0f} "
            "times and was no worse than the paper's reliable plan."
        )
    seconds["all"] = time.perf_counter() - started
    if isinstance(images, Table):
        record |= {"columns": list(images.columns), "spread": train[:].std(0).tolist()}
    else:
        record["stretch"] = getattr(images, "stretch", "none")
    bundle = Bundle.make(
        generator,
        flow,
        classifier,
        train[torch.linspace(0, len(train) - 1, min(len(train), 512)).long()],
        classes=classes,
        plan=chosen.front[0].plan,
        classifier_name=named,
        training={
            **record,
            "images": len(train),
            "held out": len(test),
            "generator epochs": epochs,
            "recipe": asdict(recipe),
            "why": chosen.why,
            "seconds": {name: round(value, 1) for name, value in seconds.items()},
        },
        agreement=found.record(),
        front=chosen.front,
        fast=fast,
    )
    bundle.save(folder, overwrite=overwrite)
    shutil.rmtree(work, ignore_errors=True)
    return Fitted(bundle, seen, found, chosen, seconds)


class _Part:
    """Is some rows of a set: in memory where they fit, else read when they are needed."""

    def __init__(self, images: Images | Table, rows: Tensor, device: str) -> None:
        self.images, self.rows, self.device = images, rows, device
        self.names = [f"{len(images)} images", *images.names[:: max(1, len(images) // 1000)]]
        self.kept: Tensor | None = None
        if 2 * len(rows) * math.prod(images.shape) <= MOST_IN_MEMORY and len(images.shape) == 3:
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
        return self.images[self.rows[index]].to(self.device)

    def batches(self, batch_size: int) -> Iterator[Tensor]:
        for start in range(0, len(self), batch_size):
            yield self[start : start + batch_size]


def _generator(
    recipe: Recipe,
    images: Images | Table,
    train: _Part,
    work: Path,
    device: str,
    tell: Tell,
    progress: Progress,
) -> tuple[Generator, int]:
    """Trains the generator, and says how long that will take before it begins."""
    if isinstance(images, Table):
        return Standardized.of(train[:]), 0
    torch.manual_seed(recipe.seed)
    some = train[torch.linspace(0, len(train) - 1, min(len(train), 512)).long()]
    model = _model(recipe, images.shape, some.var().item()).to(device)
    batch = 128 if len(train) >= 2000 else 64
    steps = GENERATOR_STEPS if min(images.shape[1:]) <= 32 else 2 * GENERATOR_STEPS
    epochs = recipe.epochs or _epochs(steps, batch, len(train), fewest=8)
    seconds = _step_seconds(model, train[:batch]) * math.ceil(len(train) / batch) * epochs
    kind = type(model).__name__
    tell(
        f"Training a {kind} of {_features(model)} features for {epochs} epochs, about "
        f"{_duration(seconds)}; then the flow, and the choice of a plan, a few minutes."
    )
    name = hashlib.sha256(json.dumps([asdict(recipe), epochs, kind]).encode()).hexdigest()[:12]
    fit_generator(
        model,
        train,
        epochs=epochs,
        batch_size=batch,
        learning_rate=2e-3,
        schedule="cosine",
        seed=recipe.seed,
        checkpoint=work / f"generator-{name}.safetensors",
        preview=work / "preview.png",
        augment=random_d4 if recipe.rotate else None,
        on_epoch=_shown(progress, "training the generator"),
    )
    model.requires_grad_(False)
    return model, epochs


def _model(recipe: Recipe, shape: tuple[int, ...], variance: float) -> Any:  # noqa: ANN401 - VAE or WAE
    """Builds a generator for images of a shape; dark ones weigh their errors more."""
    pixels, side = math.prod(shape), min(shape[1:])
    halvings = max(1, min(5, math.ceil(math.log2(side / 4)) + (side <= 32))) if side >= 8 else 1
    features = recipe.features or (16 if side < 16 else 32 if side <= 32 else 64)
    if recipe.rotate and shape[1] != shape[2]:
        raise InputError(
            f"images of {shape[1]} × {shape[2]} cannot be turned: only square ones can. Resize "
            "them with --size, or leave out --rotate."
        )
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
            started = time.perf_counter()
        loss, _ = model.loss(x, torch.Generator(x.device).manual_seed(0))
        loss.backward()
    seconds = (time.perf_counter() - started) / 3
    model.zero_grad(set_to_none=True)
    model.load_state_dict(state)
    model.eval()
    return 1.15 * seconds


def _flow(
    recipe: Recipe,
    train: _Part,
    generator: Generator,
    classifier: Classifier,
    classes: Sequence[str],
    work: Path,
    tell: Tell,
    progress: Progress,
    said: Tensor | None = None,
) -> tuple[Flow, dict[str, Any]]:
    """Trains the flow on latents and the classifier's answers, or on what people said."""
    rotates = recipe.rotate and len(train[:1].shape) == 4
    z, p = embed(_rotated(train) if rotates else train, generator, classifier)
    if said is not None:
        p = torch.cat([part.repeat(8 if rotates else 1, 1) for part in torch.split(said, 256)])
    soft = bool((p.max(1).values < 1).any())
    count = p.argmax(1).bincount(minlength=len(classes))
    present = count[count > 0].double()
    balanced = bool(present.min() < RARE * present.mean())
    spread = z.std(correction=0).item()
    standardize = not 0.2 < spread < 5 or bool(z.mean(0).abs().max() > 5)
    batch = 256 if len(z) >= 2000 else 64
    epochs = recipe.flow_epochs or min(200, _epochs(FLOW_STEPS, batch, len(z), fewest=20))
    torch.manual_seed(recipe.seed)
    flow = Flow(MLPField(z.shape[1], len(classes), width=256, depth=4), Midpoint(2), soft=soft)
    flow.to(z.device)
    if balanced:
        rare = classes[int(count.where(count > 0, count.max()).argmin())]
        tell(f"The classes are uneven ({rare} is rare), so each is drawn equally often.")
    described = json.dumps([asdict(recipe), epochs, batch, soft, balanced])
    name = hashlib.sha256(described.encode()).hexdigest()[:12]
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
        checkpoint=work / f"flow-{name}.safetensors",
        on_epoch=_shown(progress, "training the flow"),
    )
    flow.requires_grad_(False)
    flow.fit_typicality(z, p, per_class=500)
    return flow, {"flow epochs": epochs, "soft": soft, "balanced": balanced}


def _rotated(train: _Part) -> Iterator[Tensor]:
    """Goes through the images in all eight ways of turning and mirroring them."""
    for x in train.batches(256):
        yield from d4_orbit(x)


def _epochs(steps: int, batch: int, n: int, fewest: int) -> int:
    return min(MOST_EPOCHS, max(fewest, round(steps * batch / n)))


def _shown(progress: Progress, what: str) -> Callable[[Epoch], object]:
    return lambda epoch: progress(epoch.number / epoch.of, what)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 90 else f"{seconds / 60:.0f} minutes"
