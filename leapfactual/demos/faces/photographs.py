"""Photographs: the face is detected, aligned as in the GAN's training set, then inverted.

The GAN learnt from photographs that were all cut alike: by the line between the eyes and by that
from the eyes to the mouth. Here the landmarks for that come from a network that expects a face
already, and says whether there is one; so squares of several sizes are tried, each is moved to
where its landmarks say that the face is, and the first is taken that surely shows one.

References:
    | A Style-Based Generator Architecture for Generative Adversarial Networks
    | (Karras et al., 2019), appendix A
    | https://arxiv.org/abs/1812.04948
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from ...errors import InputError
from ...generators import GAN
from ...imaging import as_images
from .identity import SAME
from .landmarks import LOWERED, SIDE, FaceMesh, center_face

LEFT_EYE, RIGHT_EYE, MOUTH = (468,), (473,), (61, 291)
# Squares to look for a face in: their sides as shares of the picture's, their stride as a share of
# their side, and how often each is moved to where its landmarks are.
SHARES = (1.0, 0.7, 0.5, 0.35, 0.25)
STEP = 0.5
ROUNDS = 3
# How likely a face must be to be taken, and how likely to look no further.
MIN_PRESENCE, ENOUGH_PRESENCE = 0.9, 0.9999
MIN_SIDE, MAX_ASPECT = 48, 4

Box = tuple[float, float, float, float]


@torch.no_grad()
def anchors(mesh: FaceMesh, x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns where eyes and mouth are in portraits, and how likely there is a face.

    Arguments:
        mesh: Finds the landmarks.
        x: Square images, ``(B, 3, H, H)``, in [0, 1].

    Returns:
        Places ``(B, 3, 2)``, as shares of the side, and probabilities ``(B,)``.
    """
    points, presence = mesh.detect(center_face(x))
    groups = (LEFT_EYE, RIGHT_EYE, MOUTH)
    found = torch.stack([points[:, group, :2].mean(1) for group in groups], 1)
    return (found + found.new_tensor([0.0, LOWERED])) / SIDE, presence


def quad(points: Tensor) -> Tensor:
    """Returns the corners ``(4, 2)`` of the square to cut around a face, from its upper left on.

    Arguments:
        points: Where the left eye, the right eye and the mouth are, ``(3, 2)``.

    Example:
        >>> quad(torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 2.0]]))
        tensor([[-4.0000, -3.8000],
                [-4.0000,  4.2000],
                [ 4.0000,  4.2000],
                [ 4.0000, -3.8000]])
    """
    left, right, mouth = points
    eyes, across = (left + right) / 2, right - left
    down = mouth - eyes
    x = across - torch.stack([-down[1], down[0]])
    x = x / x.norm() * torch.maximum(across.norm() * 2.0, down.norm() * 1.8)
    y = torch.stack([-x[1], x[0]])
    middle = eyes + down * 0.1
    return torch.stack([middle - x - y, middle - x + y, middle + x + y, middle + x - y])


def cut(picture: Image.Image, corners: Tensor, side: int) -> Image.Image:
    """Cuts a rotated square out of a picture; what is beyond its edge is black."""
    flat = [float(value) for value in corners.flatten()]
    larger = picture.transform(
        (2 * side, 2 * side), Image.Transform.QUAD, flat, Image.Resampling.BILINEAR
    )
    return larger.resize((side, side), Image.Resampling.LANCZOS)


def windows(width: int, height: int) -> Iterator[Box]:
    """Yields squares of several sizes that cover a picture."""
    for share in SHARES:
        side = share * min(width, height)
        for top in _starts(height, side):
            for left in _starts(width, side):
                yield left, top, left + side, top + side


def _starts(length: int, side: float) -> list[float]:
    count = 1 + max(0, -(-int(length - side) // max(1, int(STEP * side))))
    return torch.linspace(0, length - side, count).tolist() if count > 1 else [(length - side) / 2]


def align(picture: Image.Image, mesh: FaceMesh, side: int = 1024) -> Image.Image:
    """Finds the face in a photograph and cuts it out as the GAN knows faces.

    Arguments:
        picture: The photograph.
        mesh: Finds the landmarks.
        side: The side of what is cut out, in pixels.
    """
    if min(picture.size) < MIN_SIDE or max(picture.size) > MAX_ASPECT * min(picture.size):
        raise InputError(
            f"a photograph must have at least {MIN_SIDE} pixels a side and be at most "
            f"{MAX_ASPECT} times as long as wide, got {picture.width} × {picture.height}."
        )
    picture = picture.convert("RGB")
    best, found = MIN_PRESENCE, None
    for left, top, right, bottom in windows(*picture.size):
        corners = torch.tensor([[left, top], [left, bottom], [right, bottom], [right, top]])
        for _ in range(ROUNDS):
            points, _ = anchors(mesh, as_images(cut(picture, corners, SIDE)))
            across, down = corners[3] - corners[0], corners[1] - corners[0]
            corners = quad(corners[0] + points[0, :, :1] * across + points[0, :, 1:] * down)
            if not _sound(corners, picture):
                break
        else:
            presence = anchors(mesh, as_images(cut(picture, corners, SIDE)))[1].item()
            if presence > best:
                best, found = presence, corners
            if best > ENOUGH_PRESENCE:
                break
    if found is None:
        raise InputError(
            "no face was found that could be cut out. Cut the photograph so that one face, seen "
            "from the front, fills about half of it."
        )
    return cut(picture, found, side)


def _sound(corners: Tensor, picture: Image.Image) -> bool:
    """Tells whether a square is neither tiny nor far outside of the picture."""
    size = (corners[3] - corners[0]).norm().item()
    middle = corners.mean(0)
    inside = bool(
        (middle >= 0).all() and middle[0] <= picture.width and middle[1] <= picture.height
    )
    return inside and 16 <= size <= 3 * max(picture.size)


@dataclass(frozen=True, eq=False)
class Photograph:
    """Aligned photograph, and its inversion.

    Arguments:
        x: The image, ``(1, 3, H, W)``.
        w: The latent whose image comes nearest, ``(1, D)``.
        error: The root mean square difference between the two.
        distance: How far apart the persons on the two are; below 0.6 they count as one.
    """

    x: Tensor
    w: Tensor
    error: float
    distance: float

    @property
    def verdict(self) -> str:
        """Whether the GAN knows this face, in words."""
        same = self.distance < SAME
        how = "inverts to the same person" if same else "does not invert well: mistrust it"
        return f"{how} (distance {self.distance:.2f}, error {self.error:.3f})"


def invert(
    x: Tensor, gan: GAN, identity_distance: Callable[[Tensor, Tensor], Tensor]
) -> Photograph:
    """Inverts an aligned face.

    Arguments:
        x: The face, ``(1, 3, H, W)``.
        gan: The generator to invert.
        identity_distance: The distance between the persons on two batches of portraits.
    """
    found = gan.invert(x)
    with torch.no_grad():
        distance = identity_distance(x, gan.decode(found.z))
    return Photograph(x, found.z, found.error.item(), distance.item())
