"""From images to a trained flow: embed once, then fit on latents and answers alone.

The randomness of an epoch is drawn from the seed and the epoch's number, and from nothing else. A
checkpoint therefore needs no generator states, and a training that was interrupted and resumed
ends at the very weights of one that was not.
"""

import hashlib
import json
import math
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from . import checks
from .couplings import COUPLINGS
from .errors import InputError, TrainingError
from .files import atomic
from .flow import Flow
from .types import Classifier, Generator

FORMAT = "leapfactual checkpoint 1"
OPTIMISERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
SCHEDULES = ("constant", "cosine")


@torch.no_grad()
def embed(
    images: Tensor | Iterable[Tensor],
    generator: Generator,
    classifier: Classifier,
    batch_size: int = 256,
) -> tuple[Tensor, Tensor]:
    """Returns the latents of images and what the classifier says of the images.

    Only one batch of images is in memory at a time; what stays are the latents and the answers. As
    in the paper, the classifier is asked about the original images, not about their
    reconstructions.

    Arguments:
        images: Images ``(N, C, H, W)`` in [0, 1], or any iterable of such batches, which is read
            once.
        generator: Its ``encode`` makes the latents.
        classifier: Gives the probabilities.
        batch_size: How many images at a time when ``images`` is one tensor.

    Returns:
        Latents ``(N, D)`` and probabilities ``(N, K)``.

    Example:
        >>> from leapfactual.generators import Identity
        >>> z, p = embed(torch.zeros(5, 2), Identity(), lambda x: torch.eye(4)[[0] * len(x)])
        >>> z.shape, p.shape
        (torch.Size([5, 2]), torch.Size([5, 4]))
    """
    checks.positive(batch_size, "batch_size")
    batches = torch.split(images, batch_size) if isinstance(images, Tensor) else images
    latents: list[Tensor] = []
    answers: list[Tensor] = []
    for x in batches:
        checks.images(x, "images")
        if not len(x):
            continue
        z, p = generator.encode(x), classifier(x)
        checks.one_row_each(z, x, "encode")
        checks.latents(
            z, latents[0].shape[1] if latents else z.shape[-1], "the generator's latents"
        )
        classes = answers[0].shape[1] if answers else p.shape[-1]
        checks.probabilities(p, len(x), classes, "the classifier's answer")
        latents.append(z)
        answers.append(p)
    if not latents:
        raise InputError(
            "`images` must hold at least one image, got none. Check the path or the filter."
        )
    return torch.cat(latents), torch.cat(answers)


@dataclass(frozen=True)
class Epoch:
    """Is what is known after an epoch: its number, of how many, mean loss, seconds so far."""

    number: int
    of: int
    loss: float
    seconds: float


@dataclass(frozen=True)
class _Settings:
    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    optimiser: str
    schedule: str
    ema: float
    coupling: str
    balanced: bool
    standardise: bool
    seed: int

    def __post_init__(self) -> None:
        checks.positive(self.epochs, "epochs")
        checks.positive(self.batch_size, "batch_size")
        choices: list[tuple[str, Iterable[str]]] = [
            ("optimiser", OPTIMISERS),
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

    def rate(self, step: int, steps: int) -> float:
        if self.schedule == "constant":
            return self.learning_rate
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * step / steps))


def fit(
    flow: Flow,
    z: Tensor,
    p: Tensor,
    *,
    epochs: int = 30,
    batch_size: int = 256,
    learning_rate: float = 5e-3,
    weight_decay: float = 0.0,
    optimiser: str = "adam",
    schedule: str = "constant",
    ema: float = 0.0,
    coupling: str = "independent",
    balanced: bool = False,
    standardise: bool = False,
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
        optimiser: ``adam`` or ``adamw``.
        schedule: ``constant``, or ``cosine`` for a rate that falls to zero at the end.
        ema: The decay of an exponential moving average of the weights, which become the trained
            ones; 0 for none.
        coupling: ``independent`` (the paper's) or ``optimal_transport``; see
            :mod:`leapfactual.couplings`.
        balanced: Draw every class equally often, for imbalanced data.
        standardise: Let the flow work on latents of unit spread; for latents far from the base's
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
        optimiser=optimiser,
        schedule=schedule,
        ema=ema,
        coupling=coupling,
        balanced=balanced,
        standardise=standardise,
        seed=seed,
    )
    flow.check_latents(z)
    if not len(z):
        raise InputError("`z` must hold at least one latent, got none. Embed some images first.")
    c = flow.condition(p)
    checks.probabilities(p, len(z), flow.classes)
    if standardise:
        flow.standardise(z)
    elif not 0.2 < (spread := z.std().item() / flow.base.std) < 5 and len(z) > 1:
        warnings.warn(
            f"the latents spread {spread:.3g} times as wide as the flow's base. "
            "Training will be poor; pass standardise=True.",
            stacklevel=2,
        )
    state = _State(flow, settings, _fingerprint(z, p))
    if checkpoint is not None and Path(checkpoint).exists():
        state.read(Path(checkpoint))
    started = time.perf_counter()
    flow.train()
    try:
        for epoch in range(len(state.losses), epochs):
            state.losses.append(_train_epoch(state, z, c, epoch))
            if checkpoint is not None:
                state.write(Path(checkpoint))
            if on_epoch is not None:
                on_epoch(Epoch(epoch + 1, epochs, state.losses[-1], time.perf_counter() - started))
    finally:
        flow.eval()
    state.finish()
    return list(state.losses)


class _State:
    """Holds everything that changes in training, and puts it on disk and back."""

    def __init__(self, flow: Flow, settings: _Settings, data: str) -> None:
        self.flow, self.settings, self.data = flow, settings, data
        self.parameters = dict(flow.field.named_parameters())
        self.averages = (
            {k: v.detach().clone() for k, v in self.parameters.items()} if settings.ema else {}
        )
        self.optimiser = OPTIMISERS[settings.optimiser](
            self.parameters.values(), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
        self.losses: list[float] = []

    @torch.no_grad()
    def average(self) -> None:
        for name, mean in self.averages.items():
            mean.lerp_(self.parameters[name], 1 - self.settings.ema)

    @torch.no_grad()
    def finish(self) -> None:
        for name, mean in self.averages.items():
            self.parameters[name].copy_(mean)

    def write(self, path: Path) -> None:
        tensors = {f"flow.{k}": v.contiguous() for k, v in self.flow.state_dict().items()}
        tensors |= {f"ema.{k}": v for k, v in self.averages.items()}
        for name, parameter in self.parameters.items():
            for key, value in self.optimiser.state[parameter].items():
                tensors[f"optimiser.{key}.{name}"] = value
        metadata = {
            "format": FORMAT,
            "settings": json.dumps(asdict(self.settings)),
            "data": self.data,
            "losses": json.dumps(self.losses),
        }
        with atomic(path) as temporary:
            save_file(tensors, temporary, metadata)

    def read(self, path: Path) -> None:
        try:
            with safe_open(path, framework="pt", device=str(self.flow.mean.device)) as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise InputError(
                f"the checkpoint {path} is no whole safetensors file ({error}). Delete it to "
                f"start anew."
            ) from error
        if metadata.get("format") != FORMAT:
            raise InputError(
                f"{path} must be a `{FORMAT}`, got `{metadata.get('format')}`. Give another path "
                f"for the checkpoint."
            )
        self._compare(path, json.loads(metadata["settings"]), metadata["data"])
        self.losses = json.loads(metadata["losses"])
        parts: dict[str, dict[str, Tensor]] = {"flow": {}, "ema": {}, "optimiser": {}}
        for name, value in tensors.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = value
        self.flow.load_state_dict(parts["flow"])
        self.averages = parts["ema"]
        for name, value in parts["optimiser"].items():
            key, _, parameter = name.partition(".")
            # Adam counts its steps on the CPU, whatever the device of the weights.
            self.optimiser.state[self.parameters[parameter]][key] = (
                value.cpu() if key == "step" else value
            )

    def _compare(self, path: Path, settings: dict[str, object], data: str) -> None:
        differ = [k for k, v in asdict(self.settings).items() if settings.get(k) != v]
        if differ:
            old, new = (
                {k: settings.get(k) for k in differ},
                {k: asdict(self.settings)[k] for k in differ},
            )
            raise InputError(
                f"the checkpoint {path} was written with {old}, but this call has {new}. "
                "Resume with the same settings, or delete the checkpoint to start anew."
            )
        if data != self.data:
            raise InputError(
                f"the checkpoint {path} was written for other latents or answers. "
                "Resume with the same data, or delete the checkpoint to start anew."
            )


def _train_epoch(state: _State, z: Tensor, c: Tensor, epoch: int) -> float:
    """Takes the steps of one epoch and returns the mean loss, asking the device for it once."""
    settings, n = state.settings, len(z)
    generator = torch.Generator(z.device).manual_seed(_epoch_seed(settings.seed, epoch))
    order = _order(c, settings.balanced, generator)
    batches = torch.split(order, settings.batch_size)
    total = torch.zeros((), device=z.device)
    for step, rows in enumerate(batches, epoch * len(batches)):
        for group in state.optimiser.param_groups:
            group["lr"] = settings.rate(step, settings.epochs * len(batches))
        state.optimiser.zero_grad(set_to_none=True)
        loss = state.flow.loss(z[rows], c[rows], COUPLINGS[settings.coupling], generator)
        loss.backward()  # type: ignore[no-untyped-call]
        state.optimiser.step()
        state.average()
        total += loss.detach() * len(rows)
    mean = total.item() / n
    if not math.isfinite(mean):
        raise TrainingError(
            f"training diverged in epoch {epoch + 1}: the loss is {mean}. Lower learning_rate "
            f"(now {settings.learning_rate:g}), or pass standardise=True if the latents are large."
        )
    return mean


def _order(c: Tensor, balanced: bool, generator: torch.Generator) -> Tensor:
    """Returns the rows of one epoch: each once, or every class equally often."""
    if not balanced:
        return torch.randperm(len(c), device=c.device, generator=generator)
    labels = c.argmax(1)
    weights = 1 / labels.bincount(minlength=c.shape[1])[labels].double()
    return torch.multinomial(weights, len(c), replacement=True, generator=generator)


def _epoch_seed(seed: int, epoch: int) -> int:
    digest = hashlib.sha256(f"{seed} {epoch}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


def _fingerprint(z: Tensor, p: Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in (z, p):
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
