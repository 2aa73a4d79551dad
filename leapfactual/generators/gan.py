r"""GANs: images from latents, and latents from images by inversion.

A style-based GAN has two halves, a mapping :math:`z \mapsto w` and a synthesis
:math:`w \mapsto x`. The space of *w* is less entangled than that of *z*, so leaps are taken there.

A GAN has no encoder. *Inversion* searches for the latent whose image is nearest to a given one,

.. math:: \min_w \; \|g(w) - x\|^2 + \lambda \, d(g(w), x) + \mu \, \|w - \bar w\|^2 / D ,

with a perceptual distance :math:`d`, starting from the output of a trained encoder, or from the
mean latent :math:`\bar w`. Every inverted image comes with its reconstruction error.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .. import checks
from ..errors import InputError, NeedsGradient
from .layers import ConvEncoder, check_images, check_latents, check_shape

# Enough for the mean and std of latents to within a few per cent, and one batch on a GPU.
STATISTICS_SAMPLES = 512
# A latent feature that does not vary must not divide by zero.
MIN_STD = 1e-6

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Inversion:
    r"""Settings of an inversion.

    Arguments:
        steps: How many steps of Adam to take.
        learning_rate: The learning rate, which falls to zero as a cosine.
        perceptual: A distance between two batches of images, with one value each.
        perceptual_weight: The weight :math:`\lambda` of that distance.
        mean_weight: The weight :math:`\mu` of the distance to the mean latent.
    """

    steps: int = 300
    learning_rate: float = 0.05
    perceptual: Callable[[Tensor, Tensor], Tensor] | None = None
    perceptual_weight: float = 1.0
    mean_weight: float = 0.0


@dataclass(frozen=True)
class InversionResult:
    """The result of an inversion.

    Arguments:
        z: The latents, with shape ``(B, D)``.
        error: The root mean square difference between image and re-synthesis, with shape ``(B,)``.
        perceptual: The perceptual distance, with shape ``(B,)``, where one was given.
    """

    z: Tensor
    error: Tensor
    perceptual: Tensor | None


class GAN:
    """Creates a generator from any mapping and synthesis.

    Arguments:
        synthesis: A function from latents to images.
        features: The number of latent features D.
        shape: The shape of an image, ``(C, H, W)``.
        mapping: A function from Gaussian noise ``(B, noise)`` to latents; none if the noise is the
            latent.
        noise: The number of noise features. Defaults to ``features``.
        values: The range of the synthesis' output, which is brought to [0, 1] and cut off there.
        encoder: A function from images to latents that inversion starts from; see
            :meth:`fit_encoder`.
        inversion: How :meth:`encode` inverts.
        seed: The seed of the noise that the mean latent is estimated from.
        device: Where the networks are. Defaults to the device of their parameters.

    Example:
        >>> from torch.nn import Linear, Sequential, Unflatten
        >>> synthesis = Sequential(Linear(2, 16), Unflatten(1, (1, 4, 4)))
        >>> GAN(synthesis, features=2, shape=(1, 4, 4)).decode(torch.zeros(3, 2)).shape
        torch.Size([3, 1, 4, 4])
    """

    def __init__(
        self,
        synthesis: Function,
        features: int,
        shape: Sequence[int],
        *,
        mapping: Function | None = None,
        noise: int | None = None,
        values: tuple[float, float] = (-1.0, 1.0),
        encoder: Function | None = None,
        inversion: Inversion = Inversion(),
        seed: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        checks.positive(features, "features")
        if not values[0] < values[1]:
            raise InputError(f"`values` must be (low, high), got {values!r}. Often (-1, 1).")
        self.synthesis, self.mapping, self.encoder = synthesis, mapping, encoder
        self.features, self.shape = features, check_shape(shape)
        self.noise, self.values, self.inversion = noise or features, values, inversion
        self.device = torch.device(device or _device(mapping or synthesis))
        latents = self.sample(STATISTICS_SAMPLES, seed)
        if latents.ndim != 2 or latents.shape[1] != features:
            raise InputError(
                f"the mapping must give latents of shape (B, {features}), got "
                f"{checks.shape(latents)}. Pass the right `features`."
            )
        self.mean = latents.mean(0, keepdim=True)

    @torch.no_grad()
    def sample(self, n: int, seed: int = 0) -> Tensor:
        """Returns ``n`` latents of random images, with shape ``(n, D)``."""
        checks.positive(n, "n")
        noise = torch.randn(n, self.noise, generator=torch.Generator().manual_seed(seed))
        noise = noise.to(self.device)
        return noise if self.mapping is None else self.mapping(noise)

    def decode(self, z: Tensor) -> Tensor:
        """Returns the images of ``z``, in [0, 1]."""
        return self._unclamped(z).clamp(0, 1)

    def _unclamped(self, z: Tensor) -> Tensor:
        """Returns images whose gradient does not vanish where they are too bright or too dark."""
        check_latents(z, self.features)
        low, high = self.values
        x = (self.synthesis(z) - low) / (high - low)
        if tuple(x.shape) != (len(z), *self.shape):
            raise InputError(
                f"the synthesis must give images of shape {self.shape}, got {checks.shape(x)} for "
                f"{len(z)} latents. Pass the right `shape`."
            )
        return x

    def encode(self, x: Tensor) -> Tensor:
        """Returns the latents of ``x``, by inversion."""
        return self.invert(x).z

    def invert(self, x: Tensor) -> InversionResult:
        """Returns the latents whose images come nearest to ``x``, and how near that is."""
        check_images(x, self.shape)
        how, x = self.inversion, x.detach()
        z = self._start(x).detach().clone().requires_grad_(how.steps > 0)
        optimizer = torch.optim.Adam([z], lr=how.learning_rate)
        for step in range(how.steps):
            rate = 0.5 * (1 + torch.cos(torch.tensor(torch.pi * step / how.steps)).item())
            optimizer.param_groups[0]["lr"] = how.learning_rate * rate
            with torch.enable_grad():
                x_hat = self._unclamped(z)
                if not x_hat.requires_grad:
                    raise NeedsGradient(
                        "inversion needs a differentiable synthesis, but this one gives no "
                        "gradient. Pass an encoder and Inversion(steps=0), or use a torch module."
                    )
                (z.grad,) = torch.autograd.grad(self._objective(z, x_hat, x), z)
            optimizer.step()
        return self._measure(z.detach(), x)

    def _start(self, x: Tensor) -> Tensor:
        if self.encoder is None:
            return self.mean.to(x).expand(len(x), -1)
        with torch.no_grad():
            z = self.encoder(x)
        checks.latents(z, self.features, "the encoder's latents")
        return z

    def _objective(self, z: Tensor, x_hat: Tensor, x: Tensor) -> Tensor:
        """Sums over images, so that each is inverted as if it were alone."""
        how = self.inversion
        loss = (x_hat - x).square().flatten(1).mean(1)
        if how.perceptual is not None:
            loss = loss + how.perceptual_weight * how.perceptual(x_hat, x)
        if how.mean_weight:
            loss = loss + how.mean_weight * (z - self.mean.to(z)).square().mean(1)
        return loss.sum()

    @torch.no_grad()
    def _measure(self, z: Tensor, x: Tensor) -> InversionResult:
        x_hat, perceptual = self.decode(z), self.inversion.perceptual
        error = (x_hat - x).square().flatten(1).mean(1).sqrt()
        return InversionResult(z, error, None if perceptual is None else perceptual(x_hat, x))

    def fit_encoder(
        self,
        encoder: nn.Module | None = None,
        *,
        steps: int = 2000,
        batch_size: int = 64,
        learning_rate: float = 1e-3,
        seed: int = 0,
        on_step: Callable[[int, float], object] | None = None,
    ) -> list[float]:
        """Trains an encoder on images of random latents, to start inversions from.

        Arguments:
            encoder: A module from images to latents. Defaults to a small convolutional one.
            steps: How many steps of Adam to take.
            batch_size: How many images to a step.
            learning_rate: The learning rate, which falls to zero as a cosine.
            seed: The seed of the latents and of the weights.
            on_step: Called after every step with its number and loss.

        Returns:
            The mean squared error of every step, in units of the latents' variance.
        """
        std = self.sample(STATISTICS_SAMPLES, seed + 1).std(0).clamp_min(MIN_STD)
        mean = self.mean[0]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = encoder or ConvEncoder(self.shape, (32, 64, 128), self.features)
        network.to(mean.device).train()
        optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        losses = []
        for step in range(steps):
            z = self.sample(batch_size, seed + 2 + step)
            with torch.no_grad():
                x = self.decode(z)
            loss = (network(x) - (z - mean) / std).square().mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            if on_step is not None:
                on_step(step + 1, losses[-1])
        network.eval()
        self.encoder = lambda x: network(x) * std + mean
        return losses


def _device(function: Function) -> torch.device:
    if isinstance(function, nn.Module):
        for tensor in (*function.parameters(), *function.buffers()):
            return tensor.device
    return torch.device("cpu")
