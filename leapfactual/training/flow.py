"""From images to a trained flow: embed once, then fit on latents and answers alone."""

import hashlib
import math
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from .. import checks
from .._engine.cuda_graphs import CapturedStep, make_adam, set_learning_rate
from ..couplings import COUPLINGS
from ..errors import InputError
from ..fields import FIELDS
from ..flow import Flow
from ..types import Batched, Classifier, Generator
from .state import Epoch, Training, finite, rate, reseed

OPTIMISERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
SCHEDULES = ("constant", "cosine")


@torch.no_grad()
def embed(
    images: Tensor | Batched | Iterable[Tensor],
    generator: Generator,
    classifier: Classifier,
    batch_size: int = 256,
) -> tuple[Tensor, Tensor]:
    """Returns the latents of images and what the classifier says of the images.

    Only one batch of images is in memory at a time; what stays are the latents and the answers. As
    in the paper, the classifier is asked about the original images, not about their
    reconstructions.

    Arguments:
        images: Images ``(N, C, H, W)`` in [0, 1], a set on disk such as
            :func:`leapfactual.data.open_images` gives, or any iterable of batches, read once.
        generator: Its ``encode`` makes the latents.
        classifier: Gives the probabilities.
        batch_size: How many images at a time, where ``images`` does not come in batches.

    Returns:
        Latents ``(N, D)`` and probabilities ``(N, K)``.

    Example:
        >>> from leapfactual.generators import Identity
        >>> z, p = embed(torch.zeros(5, 2), Identity(), lambda x: torch.eye(4)[[0] * len(x)])
        >>> z.shape, p.shape
        (torch.Size([5, 2]), torch.Size([5, 4]))
    """
    latents, answers = _Rows(), _Rows()
    for x in batches_of(images, batch_size):
        z, p = generator.encode(x), classifier(x)
        checks.one_row_each(z, x, "the generator's encode")
        checks.latents(z, latents.columns or z.shape[-1], "the generator's latents")
        if not isinstance(p, Tensor) or p.ndim != 2:
            got = checks.shape(p) if isinstance(p, Tensor) else type(p).__name__
            raise InputError(
                f"the classifier must answer with rows of probabilities ({len(x)}, K), got {got}. "
                "leapfactual.classifiers makes such a classifier of functions that give labels, "
                "logits or arrays."
            )
        classes = answers.columns or p.shape[1]
        checks.probabilities(p, len(x), classes, "the classifier's answer")
        latents.append(z)
        answers.append(p)
    return latents.whole(), answers.whole()


class _Rows:
    """Gathers rows in one buffer that doubles when it is full.

    A list of many small tensors would hold as much, but leave the memory between them in pieces.
    """

    def __init__(self) -> None:
        self.buffer, self.length = torch.empty(0, 0), 0

    @property
    def columns(self) -> int:
        return self.buffer.shape[1]

    def append(self, rows: Tensor) -> None:
        needed = self.length + len(rows)
        if needed > len(self.buffer):
            larger = rows.new_empty(max(needed, 2 * len(self.buffer)), rows.shape[1])
            if self.length:
                larger[: self.length] = self.buffer[: self.length]
            self.buffer = larger
        self.buffer[self.length : needed] = rows
        self.length = needed

    def whole(self) -> Tensor:
        return self.buffer[: self.length].clone()


def batches_of(images: Tensor | Batched | Iterable[Tensor], batch_size: int) -> Iterable[Tensor]:
    """Goes through images in batches, however they come; refuses to find none."""
    checks.positive(batch_size, "batch_size")
    if isinstance(images, Tensor):
        parts: Iterable[Tensor] = torch.split(images, batch_size)
    else:
        parts = images.batches(batch_size) if isinstance(images, Batched) else images
    found = False
    for x in parts:
        checks.images(x, "images")
        if len(x):
            found = True
            yield x
    if not found:
        raise InputError(
            "`images` must hold at least one image, got none. Check the path or the filter."
        )


@dataclass(frozen=True)
class _Settings:
    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    optimizer: str
    schedule: str
    ema: float
    coupling: str
    balanced: bool
    standardize: bool
    seed: int

    def __post_init__(self) -> None:
        checks.positive(self.epochs, "epochs")
        checks.positive(self.batch_size, "batch_size")
        choices: list[tuple[str, Iterable[str]]] = [
            ("optimizer", OPTIMISERS),
            ("schedule", SCHEDULES),
            ("coupling", COUPLINGS),
        ]
        for name, known in choices:
            if getattr(self, name) not in known:
                raise InputError(
                    f"`{name}` must be one of {list(known)}, got {getattr(self, name)!r}."
                )
        if not 0 < self.learning_rate < math.inf:
            raise InputError(
                f"`learning_rate` must be positive, got {self.learning_rate!r}. Try 1e-3."
            )
        if not 0 <= self.weight_decay < math.inf:
            raise InputError(f"`weight_decay` must be at least 0, got {self.weight_decay!r}.")
        if not 0 <= self.ema < 1:
            raise InputError(
                f"`ema` must be in [0, 1), got {self.ema!r}. Try 0.999, or 0 for none."
            )


def fit(
    flow: Flow,
    z: Tensor,
    p: Tensor,
    *,
    epochs: int = 30,
    batch_size: int = 256,
    learning_rate: float = 5e-3,
    weight_decay: float = 0.0,
    optimizer: str = "adam",
    schedule: str = "constant",
    ema: float = 0.0,
    coupling: str = "independent",
    balanced: bool = False,
    standardize: bool = False,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    on_epoch: Callable[[Epoch], object] | None = None,
) -> list[float]:
    """Trains a flow on latents and the classifier's answers, with the CE-CFM objective.

    The defaults are the paper's for Morpho-MNIST. The flow is trained in place.

    Arguments:
        flow: The flow; its condition, hard or soft, is made from ``p``.
        z: Latents, with shape ``(N, D)``.
        p: Probabilities, with shape ``(N, K)``.
        epochs: How often to go through the latents.
        batch_size: How many latents to a step.
        learning_rate: The learning rate, at its largest.
        weight_decay: The weight decay.
        optimizer: ``adam`` or ``adamw``.
        schedule: ``constant``, or ``cosine`` for a rate that falls to zero at the end.
        ema: The decay of an exponential moving average of the weights, which become the trained
            ones; 0 for none.
        coupling: ``independent`` (the paper's) or ``optimal_transport``; see
            :mod:`leapfactual.couplings`.
        balanced: Draw every class equally often, for imbalanced data.
        standardize: Let the flow work on latents of unit spread; for latents far from the base's
            spread.
        seed: The seed of everything random, the flow's initial weights excepted.
        checkpoint: A file to keep the state in after every epoch. When it exists, training goes on
            from there.
        on_epoch: Called after every epoch, to show progress.

    Returns:
        The mean loss of every epoch.

    Example:
        >>> from leapfactual import Flow, MLPField
        >>> flow = Flow(MLPField(features=2, classes=2))
        >>> z, p = torch.randn(64, 2), torch.eye(2).repeat(32, 1)
        >>> len(fit(flow, z, p, epochs=3))
        3
    """
    settings = _Settings(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        optimizer=optimizer,
        schedule=schedule,
        ema=ema,
        coupling=coupling,
        balanced=balanced,
        standardize=standardize,
        seed=seed,
    )
    flow.check_latents(z)
    if not len(z):
        raise InputError("`z` must hold at least one latent, got none. Embed some images first.")
    checks.probabilities(p, len(z), flow.classes)
    z, p = z.detach(), p.detach()
    c = flow.condition(p)
    flow.quantiles.fill_(math.nan)
    if standardize:
        flow.standardize(z)
    else:
        _warn_of_scale(z, flow.base.std)
    parameters = list(flow.field.parameters())
    if not parameters:
        raise InputError(
            f"there is nothing to train: {type(flow.field).__name__} has no parameters. Build the "
            "flow with a field such as MLPField."
        )
    adam = make_adam(OPTIMISERS[optimizer], parameters, learning_rate, weight_decay)
    training = Training(
        settings={**asdict(settings), "flow": flow.config()},
        data="" if checkpoint is None else _fingerprint(z, p),
        modules={"field": flow.field},
        optimizers={"field": adam},
        ema=ema,
    )
    if checkpoint is not None and Path(checkpoint).exists():
        training.read(Path(checkpoint))
    rng = torch.Generator(z.device)

    def step(z: Tensor, c: Tensor) -> Tensor:
        adam.zero_grad(set_to_none=True)
        loss = flow.loss(z, c, COUPLINGS[coupling], rng)
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        training.average()
        return loss.detach()

    ours = type(flow.field) in FIELDS.values() and coupling == "independent"
    take = CapturedStep(step, rng, enabled=ours)
    started = time.perf_counter()
    flow.train()
    try:
        for epoch in range(len(training.losses), epochs):
            reseed(rng, seed, epoch)
            order = _order(c, balanced, rng)
            batches = torch.split(order, batch_size)
            total = torch.zeros((), device=z.device)
            for n, rows in enumerate(batches, epoch * len(batches)):
                set_learning_rate(adam, rate(schedule, learning_rate, n, epochs * len(batches)))
                total += take(z[rows], c[rows]) * len(rows)
            advice = ", or pass standardize=True if the latents are large"
            training.losses.append(finite(total.item() / len(z), epoch, learning_rate, advice))
            if checkpoint is not None:
                training.write(Path(checkpoint))
            if on_epoch is not None:
                seconds = time.perf_counter() - started
                on_epoch(Epoch(epoch + 1, epochs, training.losses[-1], seconds))
    finally:
        flow.eval()
    training.finish()
    return list(training.losses)


def _warn_of_scale(z: Tensor, std: float) -> None:
    spread, offset = z.std(correction=0).item() / std, z.mean(0).abs().max().item() / std
    if not 0.2 < spread < 5 or offset > 5:
        warnings.warn(
            f"the latents spread {spread:.3g} times as wide as the flow's base and lie up to "
            f"{offset:.3g} of its standard deviations off centre. "
            "Training will be poor; pass standardize=True.",
            stacklevel=3,
        )


def _order(c: Tensor, balanced: bool, rng: torch.Generator) -> Tensor:
    """Returns the rows of one epoch: each once, or every class equally often."""
    if not balanced:
        return torch.randperm(len(c), device=c.device, generator=rng)
    labels = c.argmax(1)
    weights = 1 / labels.bincount(minlength=c.shape[1])[labels].double()
    return torch.multinomial(weights, len(c), replacement=True, generator=rng)


def _fingerprint(z: Tensor, p: Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in (z, p):
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
