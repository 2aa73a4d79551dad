"""Training of autoencoders: their own objective, and two terms that keep texture.

A *perceptual* term compares features of image and reconstruction, which penalizes blur. An
*adversarial* term has a critic tell patches of images from patches of reconstructions, so that
texture is drawn even where it cannot be reconstructed.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import checks
from .._engine.cuda_graphs import synchronizes, to_memory_format
from ..errors import InputError
from ..files import fingerprint
from ..generators import VAE, WAE, SpatialAutoencoder
from ..generators.io import Configured
from ..imaging import save_grid
from ..types import Conditional, no_op
from .loop import PRECISIONS, Batch, Epoch, Loop, check_choice

PREVIEW_IMAGES = 8

Perceptual = Callable[[Tensor, Tensor], Tensor]


class Autoencoder(Protocol):
    """Protocol of what can be trained here: a generator with an objective, a torch module."""

    def encode(self, x: Tensor) -> Tensor:
        """Returns latents."""
        ...

    def decode(self, z: Tensor) -> Tensor:
        """Returns images."""
        ...

    def loss(self, x: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Returns the objective, a scalar, and the reconstruction."""
        ...


class ConditionalAutoencoder(Conditional, Protocol):
    """Protocol of what can be trained with conditions."""

    def loss(self, x: Tensor, rng: torch.Generator, c: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the objective, a scalar, and the reconstruction."""
        ...


class Indexed(Protocol):
    """Protocol of image sets with random access: a tensor, or :class:`data.Images`."""

    def __len__(self) -> int:
        """The number of images."""
        ...

    def __getitem__(self, rows: Tensor, /) -> Tensor:
        """Returns the images of some rows."""
        ...


def fit(
    model: Autoencoder | ConditionalAutoencoder,
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
    adversarial_from: float = 0.0,
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None,
    precision: str = "float32",
    seed: int = 0,
    checkpoint: str | Path | None = None,
    preview: str | Path | None = None,
    on_epoch: Callable[[Epoch], object] | None = None,
    on_progress: Callable[[float], object] = no_op,
) -> list[float]:
    """Trains an autoencoder in place, on the device that it is on.

    The defaults are the paper's for Morpho-MNIST.

    Arguments:
        model: A :class:`VAE`, :class:`WAE` or :class:`SpatialAutoencoder`, or any torch module
            with their three methods.
        images: Images ``(N, C, H, W)`` in [0, 1], or a set that can be indexed with rows.
        conditions: One row of probabilities for each image, ``(N, K)``, for a conditional model.
        epochs: How often to go through the images.
        batch_size: How many images to a step.
        learning_rate: The learning rate, at its largest.
        weight_decay: The weight decay; with one, AdamW is used.
        schedule: ``constant``, or ``cosine`` for a rate that falls to zero at the end.
        ema: The decay of an exponential moving average of the weights, which become the trained
            ones; 0 for none.
        perceptual: A distance between two batches of images, with one value each. On a GPU steps
            are captured in a CUDA graph if it is a torch module that does not synchronize with the
            device.
        perceptual_weight: The weight of the perceptual term.
        adversarial_weight: The weight of the critic's term; 0 for none.
        adversarial_from: The share of the epochs after which the critic joins, from 0 to 1. Before
            there is something to criticize it would only disturb.
        augment: Augments a batch of images before it is used, drawing from the epoch's generator.
        precision: ``float32``, or ``bfloat16`` for mixed precision on a GPU.
        seed: The seed of everything random, the model's initial weights excepted.
        checkpoint: A file to keep the state in after every epoch. If it exists, training resumes
            from there, to exactly the same weights.
        preview: A PNG file to draw images and reconstructions into after every epoch.
        on_epoch: Called after every epoch.
        on_progress: Called every now and then with the share that is done.

    Returns:
        The mean loss of every epoch.

    Example:
        >>> len(fit(VAE((1, 8, 8), features=2), torch.rand(16, 1, 8, 8), epochs=2))
        2
    """
    module = _module(model)
    check_choice(precision, PRECISIONS, "precision")
    if not 0 <= checks.number(adversarial_from, "adversarial_from") <= 1:
        raise InputError(
            f"`adversarial_from` must be a share of the epochs, 0 to 1, got {adversarial_from!r}."
        )
    _check_images(images, batch_size)
    if isinstance(model, VAE) and model.classes and conditions is None:
        raise InputError(
            "a conditional model is trained with conditions: pass what the classifier says of "
            "the images, fit_generator(model, images, p)."
        )
    sample = images[torch.arange(min(PREVIEW_IMAGES, len(images)))]
    checks.images(images if isinstance(images, Tensor) else sample, "images")
    if conditions is not None:
        checks.probabilities(conditions, len(images), conditions.shape[-1], "conditions")
    device, mixed = next(module.parameters()).device, precision == "bfloat16"
    sample = sample.to(device)

    def condition(rows: Tensor) -> Batch:
        if conditions is None:
            return ()
        return (conditions[rows.to(conditions.device)].to(device),)

    def finish_epoch(epoch: Epoch) -> None:
        if preview is not None:
            draw_preview(model, sample, preview, condition(torch.arange(len(sample))))
        if on_epoch is not None:
            on_epoch(epoch)

    loop = Loop(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        optimizer="adamw" if weight_decay else "adam",
        schedule=schedule,
        ema=ema,
        seed=seed,
        checkpoint=checkpoint,
        on_epoch=finish_epoch,
        on_progress=on_progress,
    )
    # Half-precision convolutions are faster with their channels last, and so are those between
    # normalizations over channels.
    last = mixed or isinstance(model, SpatialAutoencoder)
    layout = torch.channels_last if last else torch.contiguous_format
    to_memory_format(module, layout)
    modules: dict[str, nn.Module] = {"model": module}
    if adversarial_weight:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            modules["critic"] = Critic(sample.shape[1]).to(device)

    def identity() -> tuple[dict[str, object], str]:
        options: dict[str, object] = {
            "perceptual_weight": perceptual_weight if perceptual else 0.0,
            "adversarial_weight": adversarial_weight,
            "adversarial_from": adversarial_from,
            "precision": precision,
            "model": model.config() if isinstance(model, Configured) else type(model).__name__,
        }
        return options, _fingerprint(images, sample, conditions)

    state = loop.begin(modules, identity)
    rng = torch.Generator(device)

    def objective(criticized: bool, x: Tensor, *c: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=mixed, cache_enabled=False):
            loss, x_hat = model.loss(x, rng, *c)
            if perceptual is not None:
                loss = loss + perceptual_weight * perceptual(x_hat, x).mean()
            if criticized:
                critic, optimizer = modules["critic"], state.optimizers["critic"]
                loss = loss - adversarial_weight * _score(critic, optimizer, x, x_hat)
        return loss

    objectives = {0: partial(objective, False)}
    if adversarial_weight:
        objectives[round(adversarial_from * epochs)] = partial(objective, True)

    def batches() -> Iterator[Batch]:
        order = torch.randperm(len(images), generator=rng, device=device)
        order = order.to(images.device if isinstance(images, Tensor) else "cpu")
        for rows in _split(order, batch_size):
            x = images[rows].to(device, memory_format=layout)
            if not isinstance(images, Tensor):
                checks.images(x, "images")
            yield (x if augment is None else augment(x, rng), *condition(rows))

    # A step is captured only if nothing in it synchronizes with the device.
    capture = type(model) in (VAE, WAE, SpatialAutoencoder)
    if perceptual is not None:
        pair = [sample, sample]
        capture = (
            capture and isinstance(perceptual, nn.Module) and not synchronizes(perceptual, pair)
        )
    for part in modules.values():
        part.train()
    try:
        return loop.run(state, objectives, batches, rng, rows=len(images), capture=capture)
    finally:
        module.eval()
        to_memory_format(module, torch.contiguous_format)


@torch.no_grad()
def draw_preview(
    model: Autoencoder | ConditionalAutoencoder,
    x: Tensor,
    path: str | Path,
    condition: Sequence[Tensor] = (),
) -> None:
    """Draws images in a first row and their reconstructions below."""
    module = _module(model)
    mode = module.training
    module.eval()
    x_hat = model.decode(model.encode(x, *condition), *condition).clamp(0, 1)
    module.train(mode)
    save_grid(torch.cat([x, x_hat]), path, columns=len(x), zoom=max(1, 64 // x.shape[3]))


class Critic(nn.Module):
    """Creates a critic, which tells patches of images from patches of reconstructions."""

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


def _score(
    critic: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, x_hat: Tensor
) -> Tensor:
    """Takes a step of the critic on a batch, and returns its mean score of the reconstructions."""
    loss = F.relu(1 - critic(x)).mean() + F.relu(1 + critic(x_hat.detach())).mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    score: Tensor = critic(x_hat).mean()
    return score


def _split(order: Tensor, batch_size: int) -> list[Tensor]:
    """Splits the rows; a single one left over joins the batch before, for batch norm's sake."""
    batches = list(torch.split(order, batch_size))
    if len(batches) > 1 and len(batches[-1]) == 1:
        last = batches.pop()
        batches[-1] = torch.cat([batches[-1], last])
    return batches


def _module(model: Autoencoder | ConditionalAutoencoder) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise InputError(
            f"`model` must be a torch module such as VAE or WAE, got {type(model).__name__}."
        )
    return model


def _check_images(images: Indexed, batch_size: int) -> None:
    if len(images) < 2:
        raise InputError(
            f"`images` must hold at least two images to train on, got {len(images)}. Check the "
            "path."
        )
    if batch_size == 1:
        raise InputError("`batch_size` must be at least 2: batch norm needs several images.")


def _fingerprint(images: Indexed, sample: Tensor, conditions: Tensor | None) -> str:
    """Recognizes a set of images: a tensor by its pixels, one on disk by its files' names."""
    pixels = images if isinstance(images, Tensor) else sample
    names = "\n".join(getattr(images, "names", []))
    return fingerprint(
        str(len(images)), pixels, names, *([] if conditions is None else [conditions])
    )
