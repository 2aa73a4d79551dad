"""Pictures of many faces in one: small copies of what was drawn, sheets, and an animation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from ...explanation import Explanation
from ...files import atomic
from ...generators import GAN
from ...imaging import to_pil
from ...report.cards import frames
from ...types import Generator
from .expressions import resize

SMALL = 256
GAP, MARGIN = 4, 150
FRAMES, FRAME_MS, PAUSE_MS = 16, 90, 900


class Album:
    """Generator that keeps a small copy of all that it draws.

    A walk draws every iterate once, to query the classifier; the page and the animation show them
    again, through :attr:`thumbnails`, without drawing them again.

    Arguments:
        gan: Draws.
        side: The side of a small copy, in pixels.
    """

    def __init__(self, gan: GAN, side: int = SMALL) -> None:
        self.gan, self.side = gan, side
        self.kept: dict[bytes, Tensor] = {}

    @property
    def thumbnails(self) -> "Thumbnails":
        """A generator of the small copies."""
        return Thumbnails(self)

    def encode(self, x: Tensor) -> Tensor:
        """Returns the latents of ``x``, by inversion."""
        return self.gan.encode(x)

    @torch.no_grad()
    def decode(self, z: Tensor) -> Tensor:
        """Returns the images of ``z``, and keeps small copies."""
        x = self.gan.decode(z)
        for row, image in zip(z, (255 * resize(x, self.side)).round().byte(), strict=True):
            self.kept[_key(row)] = image.cpu()
        return x

    def shrink(self, e: Explanation) -> Explanation:
        """Returns an explanation with small pictures, for :attr:`thumbnails` as its generator."""
        path = e.path
        if path is not None and path.mask is not None:
            path = replace(path, mask=resize(path.mask[None], self.side)[0])
        return replace(
            e,
            x=resize(e.x, self.side),
            reconstruction=resize(e.reconstruction, self.side),
            counterfactual=resize(e.counterfactual, self.side),
            path=path,
        )


class Thumbnails:
    """Generator of the small copies in an album.

    Arguments:
        album: Keeps them.
    """

    def __init__(self, album: Album) -> None:
        self.album = album

    def encode(self, x: Tensor) -> Tensor:
        """Returns the latents of ``x``, by inversion."""
        return self.album.encode(x)

    def decode(self, z: Tensor) -> Tensor:
        """Returns small images of ``z``, which are drawn only if they never were."""
        for row in z:
            if _key(row) not in self.album.kept:
                self.album.decode(row[None].to(self.album.gan.device))
        return torch.stack([self.album.kept[_key(row)] for row in z]).float() / 255


def _key(row: Tensor) -> bytes:
    return row.detach().cpu().contiguous().numpy().tobytes()


@dataclass(frozen=True, eq=False)
class Line:
    """Row of pictures on a sheet, and what to write beside it.

    Arguments:
        title: What to write.
        images: The pictures ``(N, C, H, W)``.
        frames: The colour of a frame around each, or None.
    """

    title: str
    images: Tensor
    frames: Sequence[str | None] = ()


def write_sheet(lines: Sequence[Line], path: Path, side: int = 160) -> None:
    """Writes rows of pictures with titles as one JPEG."""
    columns = max(len(line.images) for line in lines)
    size = (MARGIN + columns * (side + GAP), len(lines) * (side + GAP))
    page = Image.new("RGB", size, "white")
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(14)
    for n, line in enumerate(lines):
        top = n * (side + GAP)
        draw.multiline_text((6, top + side // 2 - 20), line.title, "black", font, spacing=5)
        for k, image in enumerate(line.images):
            left = MARGIN + k * (side + GAP)
            page.paste(to_pil(image).resize((side, side), Image.Resampling.LANCZOS), (left, top))
            colour = line.frames[k] if k < len(line.frames) else None
            if colour is not None:
                box = (left, top, left + side - 1, top + side - 1)
                draw.rectangle(box, outline=colour, width=4)
    with atomic(path) as temporary:
        page.save(temporary, format="JPEG", quality=90)


def animate(
    explanations: Sequence[Explanation],
    generator: Generator,
    path: Path,
    columns: int,
    side: int = 128,
) -> None:
    """Writes the paths of many faces, side by side and at one pace, as an animated WEBP.

    Arguments:
        explanations: Explanations of one face each, with their paths.
        generator: Decodes the iterates.
        path: The file.
        columns: How many faces to a row.
        side: The side of a face, in pixels.
    """
    ways = [resize(frames(e, 0, generator)[0], side) for e in explanations]
    rows = -(-len(ways) // columns)
    shown = []
    for n in range(FRAMES):
        page = Image.new("RGB", (columns * side, rows * side), "white")
        for k, way in enumerate(ways):
            step = round(n / (FRAMES - 1) * (len(way) - 1))
            page.paste(to_pil(way[step]), (k % columns * side, k // columns * side))
        shown.append(page)
    times = [PAUSE_MS, *[FRAME_MS] * (FRAMES - 2), PAUSE_MS]
    with atomic(path) as temporary:
        shown[0].save(
            temporary,
            format="WEBP",
            save_all=True,
            append_images=shown[1:],
            duration=times,
            loop=0,
            quality=85,
        )
