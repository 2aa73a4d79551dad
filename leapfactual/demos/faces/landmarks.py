"""The oracle: says who smiles by networks that are independent of the classifier.

The first finds 478 landmarks of a face of 256 × 256 pixels: a convolution, then seven stages of
residual blocks, each but the first of which halves the maps. The second looks at 146 of these
landmarks, never at the image, and gives 52 blendshapes, which say how strongly each movement of
the face is made; two of them raise the corners of the mouth. It is an MLP-Mixer: blocks that mix
tokens, then channels. Both are those of MediaPipe's Face Landmarker, in the file that Google
publishes.

References:
    | Real-time Facial Surface Geometry from Monocular Video on Mobile GPUs
    | (Kartynnik et al., 2019)
    | https://arxiv.org/abs/1907.06724

    | Attention Mesh: High-fidelity Face Mesh Prediction in Real-time (Grishchenko et al., 2020)
    | https://arxiv.org/abs/2006.10962

    | MLP-Mixer: An all-MLP Architecture for Vision (Tolstikhin et al., 2021)
    | https://arxiv.org/abs/2105.01601
"""

import zipfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...data import packages
from ...errors import InputError
from .expressions import resize
from .tflite import Array, read_weights

SIDE, LOWERED = 256, 24
WIDTHS = (16, 32, 64, 128, 128, 128, 128)
BLOCKS = 4
LANDMARKS = 478
BLENDSHAPES = 52
SMILES = (44, 45)
TOKENS, WIDTH = 96, 64
# fmt: off
USED = (
    0, 1, 4, 5, 6, 7, 8, 10, 13, 14, 17, 21, 33, 37, 39, 40, 46, 52, 53, 54, 55, 58, 61, 63, 65,
    66, 67, 70, 78, 80, 81, 82, 84, 87, 88, 91, 93, 95, 103, 105, 107, 109, 127, 132, 133, 136,
    144, 145, 146, 148, 149, 150, 152, 153, 154, 155, 157, 158, 159, 160, 161, 162, 163, 168, 172,
    173, 176, 178, 181, 185, 191, 195, 197, 234, 246, 249, 251, 263, 267, 269, 270, 276, 282, 283,
    284, 285, 288, 291, 293, 295, 296, 297, 300, 308, 310, 311, 312, 314, 317, 318, 321, 323, 324,
    332, 334, 336, 338, 356, 361, 362, 365, 373, 374, 375, 377, 378, 379, 380, 381, 382, 384, 385,
    386, 387, 388, 389, 390, 397, 398, 400, 402, 405, 409, 415, 454, 466, 468, 469, 470, 471, 472,
    473, 474, 475, 476, 477,
)
# fmt: on


class Block(nn.Module):
    """Residual block; with a stride of 2 it halves the maps, and may widen them."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        inner = outputs // 2
        self.narrow = nn.Conv2d(inputs, inner, stride, stride)
        self.first = nn.PReLU(inner)
        self.depthwise = nn.Conv2d(inner, inner, 3, padding=1, groups=inner)
        self.widen = nn.Conv2d(inner, outputs, 1)
        self.second = nn.PReLU(outputs)
        self.stride, self.wider = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        """Returns the maps, with channels of zeros added to what is passed on as it is."""
        out = self.widen(self.depthwise(self.first(self.narrow(x))))
        passed = F.pad(F.max_pool2d(x, self.stride), (0, 0, 0, 0, 0, self.wider))
        maps: Tensor = self.second(out + passed)
        return maps


class FaceMesh(nn.Module):
    """Creates the network that finds landmarks, with random weights."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [Block(WIDTHS[0], WIDTHS[0]) for _ in range(BLOCKS)]
        for before, after in pairwise(WIDTHS):
            blocks += [Block(before, after, 2), *(Block(after, after) for _ in range(BLOCKS))]
        self.first = nn.Conv2d(3, WIDTHS[0], 3, 2)
        self.activation = nn.PReLU(WIDTHS[0])
        self.blocks = nn.Sequential(*blocks)
        self.presence = nn.Conv2d(WIDTHS[-1], 1, 2)
        self.last = nn.Conv2d(WIDTHS[-1], 3 * LANDMARKS, 2)
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the landmarks ``(B, 478, 3)``, in pixels, of faces ``(B, 3, 256, 256)``."""
        return self.detect(x)[0]

    def detect(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the landmarks, and how likely it is that there is a face at all, ``(B,)``."""
        maps = self.blocks(self.activation(self.first(F.pad(x, (0, 1, 0, 1)))))
        points: Tensor = self.last(maps)
        return points.reshape(len(x), LANDMARKS, 3), self.presence(maps).flatten().sigmoid()


class Mixer(nn.Module):
    """Mixer block: across tokens, then across channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LayerNorm(WIDTH, 1e-6, bias=False)
        self.tokens = _mlp(TOKENS + 1, 384)
        self.second = nn.LayerNorm(WIDTH, 1e-6, bias=False)
        self.channels = _mlp(WIDTH, 256)

    def forward(self, x: Tensor) -> Tensor:
        """Returns tokens ``(B, 97, 64)`` of the same shape."""
        x = x + self.tokens(self.first(x).mT).mT
        mixed: Tensor = x + self.channels(self.second(x))
        return mixed


def _mlp(width: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width))


class Blendshapes(nn.Module):
    """Creates the network from landmarks to blendshapes, with random weights."""

    def __init__(self) -> None:
        super().__init__()
        self.points = nn.Linear(len(USED), TOKENS)
        self.channels = nn.Linear(2, WIDTH)
        self.extra = nn.ParameterList([torch.randn(WIDTH)])
        self.blocks = nn.Sequential(*(Mixer() for _ in range(BLOCKS)))
        self.last = nn.Linear(WIDTH, BLENDSHAPES)
        self.eval().requires_grad_(False)

    def forward(self, points: Tensor) -> Tensor:
        """Returns the blendshapes ``(B, 52)``, in [0, 1], of landmarks ``(B, 146, 2)``.

        Neither the place of the points nor their scale matters.
        """
        x = points - points.mean(1, keepdim=True)
        x = x / x.norm(dim=2, keepdim=True).mean(1, keepdim=True) / 2
        x = self.channels(self.points(x.mT).mT)
        x = torch.cat([self.extra[0].expand(len(x), 1, WIDTH), x], 1)
        return torch.sigmoid(self.last(self.blocks(x)[:, 0]))


def center_face(x: Tensor) -> Tensor:
    """Resizes portraits of the GAN to 256 × 256 and moves the face up to the middle.

    Arguments:
        x: Square images, ``(B, 3, H, H)``, in [0, 1].
    """
    if x.shape[-1] != SIDE:
        x = resize(x, SIDE)
    return F.pad(x[:, :, LOWERED:], (0, 0, 0, LOWERED))


class SmileOracle(nn.Module):
    """Creates a classifier of portraits: class 1 if they smile, class 0 if not.

    A smile is as likely as both corners of the mouth are raised, on average. The weights are
    random; :meth:`load` reads the trained ones.
    """

    def __init__(self) -> None:
        super().__init__()
        self.mesh, self.blendshapes = FaceMesh(), Blendshapes()

    @classmethod
    def load(cls, path: str | Path | None = None) -> Self:
        """Returns it with its trained weights.

        ``leapfactual data get face-landmarks`` fetches them.

        Arguments:
            path: MediaPipe's file of the Face Landmarker. Defaults to the one in the cache.
        """
        oracle = cls()
        if path is None:
            (path,) = packages.files("face-landmarks")
        try:
            with zipfile.ZipFile(path) as file:
                mesh = read_weights(file.read("face_landmarks_detector.tflite"))
                blendshapes = read_weights(file.read("face_blendshapes.tflite"))
            oracle.read(mesh, blendshapes)
        except (KeyError, OSError, ValueError, zipfile.BadZipFile) as error:
            raise InputError(
                f"{path} is not MediaPipe's Face Landmarker, or damaged ({type(error).__name__}: "
                f"{error}). Delete it and run `leapfactual data get face-landmarks`."
            ) from error
        return oracle

    def read(self, mesh: Sequence[Array], blendshapes: Sequence[Array]) -> None:
        """Reads the weights of both networks, in the order in which they use them.

        Those of a further head of the first, which says whether the tongue is out, stand before
        those of the other two and are left out.
        """
        _copy(self.mesh, [*mesh[:-6], *mesh[-4:]])
        _copy(self.blendshapes, blendshapes)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Returns the probabilities ``(B, 2)`` of portraits in [0, 1]."""
        points = self.mesh(center_face(x))[:, USED, :2]
        smile = self.blendshapes(points)[:, SMILES].mean(1)
        return torch.stack([1 - smile, smile], 1)


def _copy(network: nn.Module, arrays: Sequence[Array]) -> None:
    parameters = list(network.parameters())
    if len(parameters) != len(arrays):
        raise ValueError(f"{len(arrays)} arrays of weights, expected {len(parameters)}")
    for parameter, array in zip(parameters, arrays, strict=True):
        value = torch.from_numpy(array)
        if value.ndim == 4:
            depthwise = parameter.ndim == 4 and parameter.shape[1] == 1
            value = value.permute((3, 0, 1, 2) if depthwise else (0, 3, 1, 2))
        if [n for n in value.shape if n > 1] != [n for n in parameter.shape if n > 1]:
            raise ValueError(
                f"weights of shape {tuple(value.shape)}, expected {tuple(parameter.shape)}"
            )
        parameter.copy_(value.reshape(parameter.shape))
