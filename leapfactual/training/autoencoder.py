"""Training of autoencoders: one loop for VAE and WAE, with the terms that keep texture.

Besides the model's own objective two terms on the reconstruction can be asked for. A *perceptual*
term compares features of image and reconstruction, so that what blurs is missed. An *adversarial*
one has a critic tell patches of images from patches of reconstructions, so that texture is drawn
where it cannot be remembered.
"""

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import checks
from .._engine.cuda_graphs import (
    CapturedStep,
    make_adam,
    set_learning_rate,
    synchronizes,
    to_memory_format,
)
from ..errors import InputError
from ..generators.vae import VAE, ConditionalVAE
from ..generators.wae import WAE
from ..imaging import save_grid
from .state import Epoch, Training, finite, rate, reseed

Perceptual = Callable[[Tensor, Tensor], Tensor]


class Autoencoder(Protocol):
    """Is what can be trained here: a module with an objective, and the generator's two methods."""

    def encode(self, x: Tensor) -> Tensor:
        """Returns latents."""
        ...

    def decode(self, z: Tensor) -> Tensor:
        """Returns images."""
        ...

    def loss(self, x: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Returns the objective and the reconstruction."""
        ...


class Conditional(Protocol):
    """Is what can be trained with conditions."""

    def encode(self, x: Tensor, c: Tensor) -> Tensor:
        """Returns latents."""
        ...

    def decode(self, z: Tensor, c: Tensor) -> Tensor:
        """Returns images."""
        ...

    def loss(self, x: Tensor, c: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Returns the objective and the reconstruction."""
        ...


class Indexed(Protocol):
    """Is a set of images that can be drawn from at random: a tensor, or :class:`data.Images`."""

    def __len__(self) -> int:
        """The number of images."""
        ...

    def __getitem__(self, rows: Tensor, /) -> Tensor:
        """Returns the images of some rows."""
        ...


def fit(
    model: Autoencoder | Conditional,
    images: Indexed,
    conditions: Tensor | None = None,
    *,
    epochs: int = 100,
    batch_size: int = 256,
    learning_rate: float = 5e-3,
    weight_decay: float = 0.0,
    schedule: str = "constant",
    ema: float = 0.0,
    perceptual: Perceptual | None = None,
    perceptual_weight: float = 10.0,
    adversarial_weight: float = 0.0,
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None,
    precision: str = "float32",
    seed: int = 0,
    checkpoint: str | Path | None = None,
    preview: str | Path | None = None,
    on_epoch: Callable[[Epoch], object] | None = None,
) -> list[float]:
    """Trains an autoencoder in place, on the device that it is on.

    The defaults are the paper's for Morpho-MNIST.

    Arguments:
        model: A :class:`VAE`, :class:`WAE` or :class:`ConditionalVAE`, or anything with their
            three methods.
        images: Images ``(N, C, H, W)`` in [0, 1], or a set that can be indexed with rows.
        conditions: One row of class weights for each image, ``(N, K)``, for a conditional model.
        epochs: How often to go through the images.
        batch_size: How many images to a step.
        learning_rate: The learning rate, at its largest.
        weight_decay: The weight decay; with one, AdamW is used.
        schedule: ``constant``, or ``cosine`` for a rate that falls to zero at the end.
        ema: The decay of a moving average of the weights, which become the trained ones.
        perceptual: A distance between two batches of images, with one value each. On a GPU a step
            is recorded and replayed where it is a torch module that does not wait for the device.
        perceptual_weight: How much it counts.
        adversarial_weight: How much the critic counts; 0 for none.
        augment: Changes a batch of images before it is used, with the epoch's randomness.
        precision: ``float32``, or ``bfloat16`` for mixed precision on a GPU.
        seed: The seed of everything random, the model's initial weights excepted.
        checkpoint: A file to keep the state in after every epoch. When it exists, training goes
            on from there, to the very same weights.
        preview: A PNG file to draw images and reconstructions into after every epoch.
        on_epoch: Called after every epoch, to show progress.

    Returns:
        The mean loss of every epoch.

    Example:
        >>> from leapfactual.generators import VAE, fit
        >>> len(fit(VAE((1, 8, 8), features=2), torch.rand(16, 1, 8, 8), epochs=2))
        2
    """
    module = _module(model)
    if not 0 <= ema < 1:
        raise InputError(f"`ema` must be in [0, 1), got {ema!r}. Try 0.999, or 0 for none.")
    if isinstance(model, ConditionalVAE) and conditions is None:
        raise InputError(
            "a conditional model is trained with conditions: pass what the classifier says of "
            "the images, fit(model, images, p)."
        )
    _check(images, epochs, batch_size, learning_rate, schedule, precision)
    device, mixed = next(module.parameters()).device, precision == "bfloat16"
    layout = torch.channels_last if mixed else torch.contiguous_format
    to_memory_format(module, layout)
    modules: dict[str, nn.Module] = {"model": module}
    sample = images[torch.arange(min(8, len(images)))]
    checks.images(images if isinstance(images, Tensor) else sample, "images")
    if conditions is not None:
        checks.probabilities(conditions, len(images), conditions.shape[-1], "conditions")
    if adversarial_weight:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            modules["critic"] = Critic(sample.shape[1]).to(device)
    kind = torch.optim.AdamW if weight_decay else torch.optim.Adam
    optimizers: dict[str, torch.optim.Optimizer] = {
        name: make_adam(kind, list(part.parameters()), learning_rate, weight_decay)
        for name, part in modules.items()
    }
    settings = {
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "weight_decay": weight_decay,
        "schedule": schedule,
        "ema": ema,
        "perceptual_weight": perceptual_weight if perceptual else 0.0,
        "adversarial_weight": adversarial_weight,
        "precision": precision,
        "seed": seed,
        "model": model.config() if hasattr(model, "config") else type(model).__name__,
    }
    data = "" if checkpoint is None else _fingerprint(images, sample, conditions)
    training = Training(settings, data, modules, optimizers, ema)
    if checkpoint is not None and Path(checkpoint).exists():
        training.read(Path(checkpoint))
    steps = math.ceil(len(images) / batch_size)
    shown = [] if conditions is None else [conditions[: len(sample)].to(device)]

    def objective(x: Tensor, given: list[Tensor], rng: torch.Generator) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=mixed, cache_enabled=False):
            loss, back = model.loss(x, *given, rng)  # type: ignore[call-arg, arg-type]
            if perceptual is not None:
                loss = loss + perceptual_weight * perceptual(back, x).mean()
            if adversarial_weight:
                loss = loss - adversarial_weight * _criticised(
                    modules["critic"], optimizers["critic"], x, back
                )
        return loss

    def step(x: Tensor, *given: Tensor) -> Tensor:
        loss = objective(x, list(given), rng)
        optimizers["model"].zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizers["model"].step()
        training.average()
        return loss.detach()

    rng = torch.Generator(device)
    known = type(model) in (VAE, ConditionalVAE, WAE)
    if perceptual is not None:
        pair = [sample.to(device)] * 2
        known = known and isinstance(perceptual, nn.Module) and not synchronizes(perceptual, pair)
    take = CapturedStep(step, rng, known)
    started = time.perf_counter()
    for part in modules.values():
        part.train()
    try:
        for epoch in range(len(training.losses), epochs):
            reseed(rng, seed, epoch)
            order = torch.randperm(len(images), generator=rng, device=device)
            order = order.to(images.device if isinstance(images, Tensor) else "cpu")
            total = torch.zeros((), device=device)
            for n, rows in enumerate(_batches(order, batch_size), epoch * steps):
                for adam in optimizers.values():
                    set_learning_rate(adam, rate(schedule, learning_rate, n, steps * epochs))
                x = images[rows].to(device, memory_format=layout)
                if not isinstance(images, Tensor):
                    checks.images(x, "images")
                if augment is not None:
                    x = augment(x, rng)
                given = (
                    []
                    if conditions is None
                    else [conditions[rows.to(conditions.device)].to(device)]
                )
                total += take(x, *given) * len(rows)
            training.losses.append(finite(total.item() / len(images), epoch, learning_rate))
            if checkpoint is not None:
                training.write(Path(checkpoint))
            if preview is not None:
                draw_preview(model, sample.to(device), preview, shown)
            if on_epoch is not None:
                seconds = time.perf_counter() - started
                on_epoch(Epoch(epoch + 1, epochs, training.losses[-1], seconds))
    finally:
        module.eval()
        to_memory_format(module, torch.contiguous_format)
    training.finish()
    return list(training.losses)


@torch.no_grad()
def draw_preview(
    model: Autoencoder | Conditional, x: Tensor, path: str | Path, given: Sequence[Tensor] = ()
) -> None:
    """Draws images in a first row and their reconstructions below."""
    module = _module(model)
    mode = module.training
    module.eval()
    back = model.decode(model.encode(x, *given), *given).clamp(0, 1)
    module.train(mode)
    save_grid(torch.cat([x, back]), path, columns=len(x), zoom=max(1, 64 // x.shape[3]))


class Critic(nn.Module):
    """Tells patches of images from patches of reconstructions."""

    def __init__(self, channels: int, widths: Sequence[int] = (32, 64, 128)) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in zip([channels, *widths[:-1]], widths, strict=True):
            convolution = nn.Conv2d(before, after, 4, stride=2, padding=1)
            layers += [nn.utils.parametrizations.spectral_norm(convolution), nn.LeakyReLU(0.2)]
        self.layers = nn.Sequential(*layers, nn.Conv2d(widths[-1], 1, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        """Returns one number for each patch, large for images."""
        out: Tensor = self.layers(x)
        return out


def _criticised(
    critic: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, back: Tensor
) -> Tensor:
    """Lets the critic learn from a batch, and returns what it says of the reconstructions."""
    loss = F.relu(1 - critic(x)).mean() + F.relu(1 + critic(back.detach())).mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    said: Tensor = critic(back).mean()
    return said


def _batches(order: Tensor, batch_size: int) -> list[Tensor]:
    """Splits the rows; a single one left over joins the batch before, for batch norm's sake."""
    batches = list(torch.split(order, batch_size))
    if len(batches) > 1 and len(batches[-1]) == 1:
        last = batches.pop()
        batches[-1] = torch.cat([batches[-1], last])
    return batches


def _module(model: Autoencoder | Conditional) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise InputError(
            f"`model` must be a torch module such as VAE or WAE, got {type(model).__name__}."
        )
    return model


def _check(
    images: Indexed, epochs: int, batch_size: int, rate: float, schedule: str, precision: str
) -> None:
    checks.positive(epochs, "epochs")
    checks.positive(batch_size, "batch_size")
    if len(images) < 2:
        raise InputError(
            f"`images` must hold at least two images to train on, got {len(images)}. Check the "
            "path."
        )
    if batch_size < 2:
        raise InputError("`batch_size` must be at least 2: batch norm needs several images.")
    if not 0 < rate < math.inf:
        raise InputError(f"`learning_rate` must be positive, got {rate!r}. Try 1e-3.")
    for name, value, known in (
        ("schedule", schedule, ("constant", "cosine")),
        ("precision", precision, ("float32", "bfloat16")),
    ):
        if value not in known:
            raise InputError(f"`{name}` must be one of {list(known)}, got {value!r}.")


def _fingerprint(images: Indexed, sample: Tensor, conditions: Tensor | None) -> str:
    """Recognises a set of images: a tensor by its pixels, one on disk by its files' names."""
    digest = hashlib.sha256(f"{len(images)} {tuple(sample.shape)}".encode())
    whole = images if isinstance(images, Tensor) else sample
    digest.update(whole.detach().cpu().float().contiguous().numpy().tobytes())
    digest.update("\n".join(getattr(images, "names", [])).encode())
    if conditions is not None:
        digest.update(conditions.detach().cpu().float().contiguous().numpy().tobytes())
    return digest.hexdigest()
