"""Whether two portraits show the same person, by a network that recognizes faces.

It looks at a face of 150 × 150 pixels and gives 128 numbers; those of one person lie close to each
other. Its architecture is a residual network of 29 convolutions, its weights those that the
package ``face_recognition_models`` carries, a file of dlib. Where the maps of the two ways through
a block differ in size, dlib takes what is missing for zero.

References:
    | Dlib-ml: A Machine Learning Toolkit (King, 2009)
    | https://www.jmlr.org/papers/v10/king09a.html

    | Deep Residual Learning for Image Recognition (He et al., 2015)
    | https://arxiv.org/abs/1512.03385
"""

import math
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...data import packages
from ...errors import InputError
from .expressions import resize

MEAN = (122.782, 117.001, 104.298)
STAGES = ((32, 3), (64, 4), (128, 3), (256, 3), (256, 1))
FEATURES = 128
# The threshold that dlib recommends for this network.
SAME = 0.6
SIDE, FRAME_SIDE, TOP, LEFT, BOX = 150, 256, 66, 38, 180


class Block(nn.Module):
    """Residual block; with a stride of 2 it halves the maps, and may widen them."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=stride % 2)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """Returns the maps."""
        out = self.second(F.relu(self.first(x)))
        return F.relu(add_padded(out, F.avg_pool2d(x, self.stride)))


def add_padded(a: Tensor, b: Tensor) -> Tensor:
    """Returns the sum of maps that may differ in size; what one of them lacks is zero.

    Example:
        >>> add_padded(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 2, 1))
        tensor([[[[2., 1.],
                  [1., 0.]]]])
    """
    size = [max(pair) for pair in zip(a.shape, b.shape, strict=True)]
    total = a.new_zeros(size)
    for part in (a, b):
        _, channels, height, width = part.shape
        total[:, :channels, :height, :width] += part
    return total


class FaceEmbedder(nn.Module):
    """Creates the network with random weights; :meth:`load` reads the trained ones."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, STAGES[0][0], 7, 2)
        blocks, before = [], STAGES[0][0]
        for n, (width, length) in enumerate(STAGES):
            blocks.append(Block(before, width, 2 if n else 1))
            blocks += [Block(width, width) for _ in range(length - 1)]
            before = width
        self.blocks = nn.Sequential(*blocks)
        self.last = nn.Linear(before, FEATURES, bias=False)
        self.register_buffer("mean", torch.tensor(MEAN)[:, None, None] / 255)
        self.eval().requires_grad_(False)

    @classmethod
    def load(cls, path: str | Path | None = None) -> Self:
        """Returns it with its trained weights; ``leapfactual data get identities`` fetches them.

        Arguments:
            path: The file of dlib. Defaults to the one in the cache.
        """
        network = cls()
        if path is None:
            (path,) = packages.files("identities")
        try:
            network.read(Path(path).read_bytes())
        except (IndexError, OSError, ValueError) as error:
            raise InputError(
                f"{path} is not the network of identities, or damaged ({type(error).__name__}: "
                f"{error}). Delete it and run `leapfactual data get identities`."
            ) from error
        return network

    def read(self, content: bytes) -> None:
        """Reads the weights from a file of dlib; a scale and shift follow each convolution."""
        reader = DlibReader(content)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                assert module.bias is not None
                weight, bias = reader.take("con_4", module.weight.shape, module.bias.shape)
                scale, shift = reader.take("affine_", module.bias.shape, module.bias.shape)
                module.weight.copy_(weight * scale[:, None, None, None])
                module.bias.copy_(bias * scale + shift)
        (weight,) = reader.take("fc_2", self.last.weight.mT.shape)
        self.last.weight.copy_(weight.mT)

    def forward(self, x: Tensor) -> Tensor:
        """Returns features ``(B, 128)`` of faces ``(B, 3, 150, 150)`` in [0, 1]."""
        x = F.relu(self.first((x - self.mean) * 255 / 256))
        x = self.blocks(F.max_pool2d(x, 3, 2))
        features: Tensor = self.last(x.mean((2, 3)))
        return features


class DlibReader:
    """Reads tensors from a file of dlib, each of which follows the name of its layer.

    Arguments:
        content: The file.
    """

    def __init__(self, content: bytes) -> None:
        self.content, self.place = content, 0

    def take(self, layer: str, *shapes: torch.Size) -> list[Tensor]:
        """Returns the weights of the next layer with this name, cut into these shapes."""
        name = bytes([1, len(layer)]) + layer.encode()
        self.place = self.content.index(name, self.place) + len(name)
        if layer.startswith("fc"):
            self._whole(), self._whole()
        self._whole()
        length = math.prod(self._whole() for _ in range(4))
        sizes = [math.prod(shape) for shape in shapes]
        if length != sum(sizes):
            raise ValueError(f"{length} weights in {layer}, expected {sum(sizes)}")
        array: np.ndarray[Any, Any] = np.frombuffer(self.content, "<f4", length, self.place)
        self.place += array.nbytes
        parts = np.split(array.copy(), np.cumsum(sizes[:-1]))
        return [torch.from_numpy(p).reshape(s) for p, s in zip(parts, shapes, strict=True)]

    def _whole(self) -> int:
        """Returns a whole number: how many bytes it has, then these."""
        start = self.place + 1
        self.place = start + self.content[self.place] % 16
        return int.from_bytes(self.content[start : self.place], "little")


def crop_face(x: Tensor) -> Tensor:
    """Cuts the face out of portraits as the GAN draws them, 150 × 150.

    Arguments:
        x: Square images, ``(B, 3, H, H)``, in [0, 1].
    """
    if x.shape[-1] != FRAME_SIDE:
        x = resize(x, FRAME_SIDE)
    return resize(x[:, :, TOP : TOP + BOX, LEFT : LEFT + BOX], SIDE)


class IdentityDistance:
    """Creates a distance between the persons on two portraits; below 0.6 they count as one.

    Arguments:
        network: The network of identities.
    """

    def __init__(self, network: FaceEmbedder) -> None:
        self.network = network

    @torch.no_grad()
    def __call__(self, x: Tensor, other: Tensor) -> Tensor:
        """Returns the distance of each pair of portraits in [0, 1], with shape ``(B,)``."""
        a, b = self.network(crop_face(x)), self.network(crop_face(other))
        distance: Tensor = (a - b).norm(dim=1)
        return distance
