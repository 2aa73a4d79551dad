"""The classifier of the study: VGG16 with batch norm, and its training."""

import math
from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leapfactual._engine.cuda_graphs import (
    CapturedStep,
    make_adam,
    set_learning_rate,
    to_memory_format,
)
from leapfactual.errors import MissingData, MissingExtra
from leapfactual.training.augmentation import random_rotation

BLOCKS = ((1,) * 2, (2,) * 2, (4,) * 3, (8,) * 3, (8,) * 3)
WARM_UP = 0.2
BATCH = 128


def vgg16(channels: int, classes: int, width: int = 64) -> nn.Sequential:
    """Returns the network, with random weights and one linear layer on the mean of its features.

    The convolutions stand where torchvision has them, so that its weights fit. Their biases are
    not trained: the batch norms would undo whatever they learn.

    References:
        | Very Deep Convolutional Networks for Large-Scale Image Recognition
        | (Simonyan and Zisserman, 2015)
        | https://arxiv.org/abs/1409.1556

    Example:
        >>> vgg16(1, 4)(torch.zeros(2, 1, 32, 32)).shape
        torch.Size([2, 4])
    """
    layers: list[nn.Module] = []
    before = channels
    for block in BLOCKS:
        for times in block:
            after = times * width
            layers += [
                nn.Conv2d(before, after, 3, padding=1),
                nn.BatchNorm2d(after),
                nn.ReLU(inplace=True),
            ]
            before = after
        layers.append(nn.MaxPool2d(2))
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            assert layer.bias is not None
            nn.init.zeros_(layer.bias).requires_grad_(False)
    head = nn.Sequential(
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5), nn.Linear(before, classes)
    )
    return nn.Sequential(OrderedDict(features=nn.Sequential(*layers), head=head)).eval()


def imagenet() -> dict[str, Tensor]:
    """Returns the weights of torchvision's convolutions, which it fetches once."""
    try:
        from torchvision.models import vgg16_bn  # type: ignore[import-not-found, unused-ignore]
    except (ImportError, RuntimeError) as error:
        raise MissingExtra(
            "ImageNet's weights come with torchvision, which cannot be imported "
            f"({error}). Install one that fits your torch, or do without --imagenet."
        ) from error
    try:
        weights: dict[str, Tensor] = vgg16_bn(weights="DEFAULT").features.state_dict()
    except OSError as error:
        raise MissingData(
            f"torchvision could not fetch ImageNet's weights ({error}). Go online once, or do "
            "without --imagenet."
        ) from error
    return weights


def from_imagenet(network: nn.Sequential) -> None:
    """Gives the convolutions the weights that torchvision carries, for those who have it.

    A network for grey images takes the sum over colours in its first layer.
    """
    weights = imagenet()
    features = network.get_submodule("features")
    if features.get_parameter("0.weight").shape[1] == 1:
        weights["0.weight"] = weights["0.weight"].sum(1, keepdim=True)
    features.load_state_dict(weights)


def train_classifier(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    steps: int,
    batch_size: int = BATCH,
    learning_rate: float = 1e-3,
    weight_decay: float = 0.05,
    weights: Tensor | None = None,
    augment: Callable[[Tensor, torch.Generator], Tensor] = random_rotation,
    seed: int = 0,
) -> None:
    """Trains a network on labelled images, by default rotated and mirrored at random, in place.

    The rate rises for a fifth of the steps and then falls to zero. Images are drawn in random
    order, each as often as the others; with weights, each as often as its weight says.
    """
    mixed = x.device.type == "cuda"
    layout = torch.channels_last if mixed else torch.contiguous_format
    to_memory_format(network, layout)
    adam = make_adam(torch.optim.AdamW, list(network.parameters()), learning_rate, weight_decay)
    rng = torch.Generator(x.device).manual_seed(seed)

    def step(x: Tensor, y: Tensor) -> Tensor:
        adam.zero_grad(set_to_none=True)
        x = augment(x, rng).contiguous(memory_format=layout)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=mixed, cache_enabled=False):
            loss = F.cross_entropy(network(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        return loss.detach()

    take = CapturedStep(step, rng)
    network.train()
    order = torch.empty(0, dtype=torch.long, device=x.device)
    for n in range(steps):
        while len(order) < batch_size:
            more = (
                torch.randperm(len(x), generator=rng, device=x.device)
                if weights is None
                else torch.multinomial(weights.to(x.device), len(x), True, generator=rng)
            )
            order = torch.cat([order, more])
        rows, order = order[:batch_size], order[batch_size:]
        set_learning_rate(adam, _one_cycle(learning_rate, n / steps))
        take(x[rows], y[rows])
    network.eval().requires_grad_(False)


class BatchedClassifier:
    """Creates a classifier that passes images through a network batch by batch.

    On a GPU it answers in mixed precision, as it was trained.
    """

    def __init__(self, network: nn.Module, batch_size: int = 1024) -> None:
        self.network, self.batch_size = network, batch_size

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Returns the probabilities ``(B, K)``."""
        layout = torch.channels_last if x.is_cuda else torch.contiguous_format
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
            logits = [
                self.network(part.contiguous(memory_format=layout))
                for part in torch.split(x, self.batch_size)
            ]
        return torch.cat(logits).float().softmax(1)


def _one_cycle(largest: float, share: float) -> float:
    if share < WARM_UP:
        return largest * (0.04 + 0.96 * share / WARM_UP)
    rest = (share - WARM_UP) / (1 - WARM_UP)
    return largest * 0.5 * (1 + math.cos(math.pi * rest))
