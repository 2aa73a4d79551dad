"""The classifier of the study: VGG16 with batch norm, and its training."""

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...captured import Captured, optimiser, set_rate
from ...errors import MissingExtra

BLOCKS = ((1,) * 2, (2,) * 2, (4,) * 3, (8,) * 3, (8,) * 3)
WARM_UP = 0.2


def vgg16(channels: int, classes: int, width: int = 64) -> nn.Sequential:
    """Returns the network, with random weights and one linear layer on the mean of its features.

    The convolutions stand where torchvision has them, so that its weights fit.

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
    head = nn.Sequential(
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5), nn.Linear(before, classes)
    )
    return nn.Sequential(OrderedDict(features=nn.Sequential(*layers), head=head)).eval()


def from_imagenet(network: nn.Sequential) -> None:
    """Gives the convolutions the weights that torchvision carries, for those who have it.

    A network for grey images takes the sum over colours in its first layer.
    """
    try:
        from torchvision.models import vgg16_bn  # type: ignore[import-not-found, unused-ignore]
    except (ImportError, RuntimeError) as error:
        raise MissingExtra(
            "ImageNet's weights come with torchvision, which cannot be imported "
            f"({error}). Install one that fits your torch, or do without --imagenet."
        ) from error
    weights = vgg16_bn(weights="DEFAULT").features.state_dict()
    features = network.get_submodule("features")
    if features.get_parameter("0.weight").shape[1] == 1:
        weights["0.weight"] = weights["0.weight"].sum(1, keepdim=True)
    features.load_state_dict(weights)


def turned(x: Tensor, generator: torch.Generator) -> Tensor:
    """Turns each image by an angle of its own and mirrors half of them."""
    n = len(x)
    angle = 2 * torch.pi * torch.rand(n, generator=generator, device=x.device)
    side = torch.rand(n, generator=generator, device=x.device).round() * 2 - 1
    zero = torch.zeros_like(angle)
    rows = [
        torch.stack([side * angle.cos(), -side * angle.sin(), zero], 1),
        torch.stack([angle.sin(), angle.cos(), zero], 1),
    ]
    grid = F.affine_grid(torch.stack(rows, 1), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, padding_mode="reflection", align_corners=False)


def train_classifier(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    steps: int,
    batch_size: int = 128,
    learning_rate: float = 1e-3,
    weight_decay: float = 0.05,
    seed: int = 0,
    progress: Callable[[float], object] | None = None,
) -> None:
    """Trains a network on labelled images that have no up, in place.

    The number of steps is fixed, so that sets of different sizes are trained on equally long. The
    rate rises for a fifth of them and then falls to zero.
    """
    mixed = x.device.type == "cuda"
    layout = torch.channels_last if mixed else torch.contiguous_format
    for parameter in network.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=layout)
    adam = optimiser(torch.optim.AdamW, list(network.parameters()), learning_rate, weight_decay)
    generator = torch.Generator(x.device).manual_seed(seed)

    def step(x: Tensor, y: Tensor) -> Tensor:
        adam.zero_grad(set_to_none=True)
        x = turned(x, generator).contiguous(memory_format=layout)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=mixed, cache_enabled=False):
            loss = F.cross_entropy(network(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        return loss.detach()

    take = Captured(step, generator)
    network.train()
    order = torch.empty(0, dtype=torch.long, device=x.device)
    for n in range(steps):
        while len(order) < batch_size:
            more = torch.randperm(len(x), generator=generator, device=x.device)
            order = torch.cat([order, more])
        rows, order = order[:batch_size], order[batch_size:]
        set_rate(adam, _one_cycle(learning_rate, n / steps))
        take(x[rows], y[rows])
        if progress is not None and n % 10 == 0:
            progress(n / steps)
    network.eval().requires_grad_(False)


class Asked:
    """Is the network as a classifier, asked a part of the images at a time.

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
    return largest * 0.5 * (1 + float(torch.cos(torch.tensor(torch.pi * rest))))
