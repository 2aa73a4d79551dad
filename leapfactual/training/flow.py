"""From images to a trained flow: embed once, then fit on latents and probabilities alone."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from .. import checks
from .._engine.cuda_graphs import to_memory_format
from .._engine.memory import in_halves
from ..couplings import COUPLINGS
from ..errors import InputError
from ..fields import FIELDS
from ..files import fingerprint
from ..flow import Flow
from ..types import Batched, Classifier, Generator, no_op
from .loop import PRECISIONS, Batch, Epoch, Loop, check_choice

# Beyond a factor of five either the noise or the latents are negligible where the two are mixed,
# and the velocity is learnt from the other alone.
MIN_STD_RATIO, MAX_STD_RATIO, MAX_OFFSET = 0.2, 5.0, 5.0


@torch.no_grad()
def embed(
    images: Tensor | Batched | Iterable[Tensor],
    generator: Generator,
    classifier: Classifier,
    batch_size: int = 256,
) -> tuple[Tensor, Tensor]:
    """Returns the latents of images and the classifier's probabilities for the images.

    Only one batch of images is in memory at a time; only latents and probabilities are kept. As in
    the paper, the classifier is queried on the original images, not on their reconstructions.
    Where the device runs out of memory, a batch is taken in halves.

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
    latents, answers = _Rows("the generator's latents"), _Rows("the classifier's answers")
    for x in batches_of(images, batch_size):
        z, p = in_halves(generator.encode, x), in_halves(classifier, x)
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
    """A growing buffer of rows, which doubles when it is full.

    A list of many small tensors would hold as much, but fragment the memory between them.

    Arguments:
        name: What the rows are, for errors.
    """

    def __init__(self, name: str) -> None:
        self.name, self.buffer, self.length = name, torch.empty(0, 0), 0

    @property
    def columns(self) -> int:
        return self.buffer.shape[1]

    def append(self, rows: Tensor) -> None:
        if self.length and rows.dtype != self.buffer.dtype:
            raise InputError(
                f"{self.name} were {self.buffer.dtype} at first and are {rows.dtype} later. Let "
                "every batch have one type."
            )
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
    """Yields images in batches, however they come, and checks that there is at least one."""
    checks.positive(batch_size, "batch_size")
    if isinstance(images, Tensor):
        parts: Iterable[Tensor] = torch.split(images, batch_size)
    else:
        parts = images.batches(batch_size) if isinstance(images, Batched) else images
    empty = True
    for x in parts:
        checks.images(x, "images")
        if len(x):
            empty = False
            yield x
    if empty:
        raise InputError(
            "`images` must hold at least one image, got none. Check the path or the filter."
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
    precision: str = "float32",
    seed: int = 0,
    checkpoint: str | Path | None = None,
    on_epoch: Callable[[Epoch], object] | None = None,
    on_progress: Callable[[float], object] = no_op,
) -> list[float]:
    """Trains a flow on latents and the classifier's probabilities, with the CE-CFM objective.

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
        standardize: Let the flow work on latents of unit standard deviation; for latents whose own
            is far from the base's.
        precision: ``float32``, or ``bfloat16`` for mixed precision on a GPU.
        seed: The seed of everything random, the flow's initial weights excepted.
        checkpoint: A file to keep the state in after every epoch. If it exists, training resumes
            from there, to exactly the same weights.
        on_epoch: Called after every epoch.
        on_progress: Called every now and then with the share that is done.

    Returns:
        The mean loss of every epoch.

    Example:
        >>> from leapfactual import Flow, MLPField
        >>> flow = Flow(MLPField(features=2, classes=2))
        >>> z, p = torch.randn(64, 2), torch.eye(2).repeat(32, 1)
        >>> len(fit(flow, z, p, epochs=3))
        3
    """
    check_choice(coupling, COUPLINGS, "coupling")
    check_choice(precision, PRECISIONS, "precision")
    loop = Loop(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        optimizer=optimizer,
        schedule=schedule,
        ema=ema,
        seed=seed,
        checkpoint=checkpoint,
        on_epoch=on_epoch,
        on_progress=on_progress,
    )
    flow.check_latents(z)
    if not len(z):
        raise InputError("`z` must hold at least one latent, got none. Embed some images first.")
    checks.probabilities(p, len(z), flow.classes)
    if not list(flow.field.parameters()):
        raise InputError(
            f"there is nothing to train: {type(flow.field).__name__} has no parameters. Build the "
            "flow with a field such as MLPField."
        )
    z, p = z.detach(), p.detach()
    c = flow.condition(p)
    flow.quantiles.fill_(math.nan)
    if standardize:
        flow.standardize(z)
    else:
        _warn_of_scale(z, flow.base.std)

    def identity() -> tuple[dict[str, object], str]:
        options = {
            "coupling": coupling,
            "balanced": balanced,
            "standardize": standardize,
            "precision": precision,
        }
        return {**options, "flow": flow.config()}, fingerprint(z, p)

    mixed = precision == "bfloat16"
    to_memory_format(flow.field, torch.channels_last)
    state = loop.begin({"field": flow.field}, identity)
    rng = torch.Generator(z.device)

    def objective(z: Tensor, c: Tensor) -> Tensor:
        with torch.autocast(z.device.type, torch.bfloat16, enabled=mixed, cache_enabled=False):
            return flow.loss(z, c, COUPLINGS[coupling], rng)

    def batches() -> Iterator[Batch]:
        for rows in torch.split(_order(c, balanced, rng), batch_size):
            yield z[rows], c[rows]

    flow.train()
    try:
        return loop.run(
            state,
            {0: objective},
            batches,
            rng,
            rows=len(z),
            # A field of someone else's may synchronize with the device, and transport does.
            capture=type(flow.field) in FIELDS.values() and coupling == "independent",
            advice=", or pass standardize=True if the latents are large",
        )
    finally:
        flow.eval()
        to_memory_format(flow.field, torch.contiguous_format)


def _warn_of_scale(z: Tensor, std: float) -> None:
    ratio, offset = z.std(correction=0).item() / std, z.mean(0).abs().max().item() / std
    if not MIN_STD_RATIO < ratio < MAX_STD_RATIO or offset > MAX_OFFSET:
        warnings.warn(
            f"the latents spread {ratio:.3g} times as wide as the flow's base and lie up to "
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
