"""Features of a network that was trained on ImageNet, in which to compare sets of images.

EfficientNet-Lite0 is a chain of inverted residual blocks: a 1 × 1 convolution widens the maps, a
depthwise one looks at neighbours, another 1 × 1 convolution narrows them again. Its authors
published it for TensorFlow, and three habits of that library belong to the weights: where a
convolution has stride 2, the odd row of padding is at the bottom and at the right; variances are
normalised with 0.001 added; pixels from 0 to 255 enter as ``(pixel - 127) / 128``.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import checks
from ..data import packages
from ..data.checkpoints import read_checkpoint
from ..errors import InputError
from ..files import read_safetensors, write_safetensors

CARD = "efficientnet-lite0"
FORMAT = "leapfactual EfficientNet-Lite0 1"
SIDE = 224
# Of each stage: how many times a block widens its maps, channels, blocks, kernel, stride.
STAGES = (
    (1, 16, 1, 3, 1),
    (6, 24, 2, 3, 2),
    (6, 40, 2, 5, 2),
    (6, 80, 3, 3, 2),
    (6, 112, 3, 5, 1),
    (6, 192, 4, 5, 2),
    (6, 320, 1, 3, 1),
)
FEATURES = 1280
CLASSES = 1000
# Names in the published file and here, of what is in a block and of what is around the blocks.
IN_BLOCK = {
    "_expand_conv": "expand.convolution",
    "_bn0": "expand.norm",
    "_depthwise_conv": "depthwise.convolution",
    "_bn1": "depthwise.norm",
    "_project_conv": "project.convolution",
    "_bn2": "project.norm",
}
AROUND = {
    "_conv_stem": "stem.convolution",
    "_bn0": "stem.norm",
    "_conv_head": "head.convolution",
    "_bn1": "head.norm",
    "_fc": "classes",
}


class EfficientNetLite0(nn.Module):
    """Creates the network; called with images in [0, 1] it returns features ``(B, 1280)``.

    They are the maps of its last convolution, averaged over the picture. Images of any size are
    resized to 224 × 224, and grey ones repeated to three channels. It is a plain classifier with
    a top-1 accuracy of 75.1 % on ImageNet, as its authors measured.

    A Fréchet distance in these features is not the FID, which is defined by another network, and
    cannot be compared with published values of it. Compare it with the value that real images
    have among themselves, :func:`split_half`.

    References:
        | EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks
        | (Tan and Le, 2019)
        | https://arxiv.org/abs/1905.11946

    Example:
        >>> EfficientNetLite0()(torch.rand(2, 1, 28, 28)).shape
        torch.Size([2, 1280])
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = _unit(3, 32, kernel=3, stride=2)
        blocks, before = [], 32
        for widening, channels, depth, kernel, stride in STAGES:
            for n in range(depth):
                blocks.append(_Block(before, channels, widening, kernel, stride if n == 0 else 1))
                before = channels
        self.blocks = nn.Sequential(*blocks)
        self.head = _unit(before, FEATURES)
        self.classes = nn.Linear(FEATURES, CLASSES)
        self.requires_grad_(False)
        self.eval()

    @classmethod
    def load(cls) -> Self:
        """Returns it with its learnt weights.

        ``leapfactual data get efficientnet-lite0`` fetches them. The first time they are written
        beside what was fetched as safetensors, which is what is read from then on.
        """
        network = cls()
        (path,) = packages.files(CARD)
        converted = path.with_suffix(".safetensors")
        if not converted.is_file():
            network.read(read_checkpoint(path.read_bytes()))
            write_safetensors(network.state_dict(), converted, {"format": FORMAT})
        _, tensors = read_safetensors(converted, FORMAT, "Delete it; it is made again.")
        network._fill(tensors)
        return network

    def read(self, checkpoint: Mapping[str, Tensor]) -> None:
        """Reads the weights from a state dict with the names of the published file."""
        try:
            own = {_own_name(name): value for name, value in checkpoint.items()}
        except (KeyError, ValueError) as error:
            raise InputError(f"EfficientNet-Lite0 has no weights called {error}.") from error
        self._fill(own)

    def _fill(self, tensors: Mapping[str, Tensor]) -> None:
        try:
            self.load_state_dict(tensors)
        except RuntimeError as error:
            raise InputError(f"the weights do not fit EfficientNet-Lite0 ({error}).") from error

    def forward(self, x: Tensor) -> Tensor:
        """Returns the features of images ``(B, 1 or 3, H, W)`` in [0, 1], ``(B, 1280)``."""
        checks.images(x)
        if x.ndim != 4 or x.shape[1] not in (1, 3):
            raise InputError(
                f"EfficientNet-Lite0 takes images (B, 1 or 3, H, W), got {checks.shape(x)}."
            )
        x = x.expand(-1, 3, -1, -1)
        x = F.interpolate(x, (SIDE, SIDE), mode="bilinear", align_corners=False, antialias=True)
        maps: Tensor = self.head(self.blocks(self.stem((255 * x - 127) / 128)))
        return maps.mean((2, 3))

    def classify(self, x: Tensor) -> Tensor:
        """Returns the probabilities of ImageNet's classes, ``(B, 1000)``."""
        logits: Tensor = self.classes(self(x))
        return logits.softmax(1)

    @torch.no_grad()
    def rows(self, images: Tensor, batch_size: int = 64) -> Tensor:
        """Returns the features of many images, batch by batch where the network is.

        Arguments:
            images: Images ``(B, 1 or 3, H, W)`` in [0, 1], on any device.
            batch_size: How many images at a time.
        """
        device = self.classes.weight.device
        return torch.cat([self(part.to(device)) for part in torch.split(images, batch_size)])


class _Block(nn.Module):
    def __init__(self, before: int, after: int, widening: int, kernel: int, stride: int) -> None:
        super().__init__()
        wide = before * widening
        self.expand = _unit(before, wide) if widening > 1 else nn.Identity()
        self.depthwise = _unit(wide, wide, kernel, stride, groups=wide)
        self.project = _unit(wide, after, activation=nn.Identity())
        self.residual = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.project(self.depthwise(self.expand(x)))
        return x + y if self.residual else y


def _unit(
    before: int,
    after: int,
    kernel: int = 1,
    stride: int = 1,
    groups: int = 1,
    activation: nn.Module | None = None,
) -> nn.Sequential:
    """Returns a convolution with its padding, normalisation and activation, ReLU6 by default."""
    first = (kernel - stride) // 2
    last = kernel - stride - first
    convolution = nn.Conv2d(before, after, kernel, stride, groups=groups, bias=False)
    return nn.Sequential(
        OrderedDict(
            padding=nn.ZeroPad2d((first, last, first, last)),
            convolution=convolution,
            norm=nn.BatchNorm2d(after, eps=1e-3),
            activation=activation or nn.ReLU6(),
        )
    )


def _own_name(name: str) -> str:
    """Returns the name here of a weight of the published file.

    Example:
        >>> _own_name("_blocks.3._bn1.bias")
        'blocks.3.depthwise.norm.bias'
    """
    *block, layer, kind = name.split(".")
    if block:
        return f"blocks.{block[1]}.{IN_BLOCK[layer]}.{kind}"
    return f"{AROUND[layer]}.{kind}"
