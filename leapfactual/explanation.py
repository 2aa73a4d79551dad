"""The result: everything that is known about a batch of counterfactuals.

An explanation is data. It holds tensors and no network, so that it can be saved and read on a
machine without the model. What shows it (a figure, an animation, a page, a table) is imported
where it is called.
"""

import html
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from PIL import Image
from torch import Tensor

from . import checks
from .errors import InputError, MissingData
from .extras import require
from .files import below, parse_json, read_safetensors, write_safetensors
from .imaging import keep_pixels, paste, to_pil
from .masks import as_mask
from .types import Generator

if TYPE_CHECKING:
    from .report.page import Frame

FORMAT = "leapfactual explanation 2"


class Status(StrEnum):
    """Says how a search for a counterfactual ended."""

    REACHED = "reached"
    NOT_REACHED = "not reached"
    ALREADY_THERE = "already there"


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Iterates of a walk, leap by leap; an image that has stopped stays where it is.

    Arguments:
        z: The iterates, with shape ``(B, N + 1, D)`` for a plan of N leaps.
        probabilities: The classifier's answers on them, with shape ``(B, N + 1, K)``; NaN where it
            was not queried.
        taken: How many leaps each image took, with shape ``(B,)``.
        keeps_pixels: Whether the input's own pixels are shown where nothing has changed, ``(B,)``.
        mask: Where images were allowed to change, if not everywhere.
    """

    z: Tensor
    probabilities: Tensor
    taken: Tensor
    keeps_pixels: Tensor
    mask: Tensor | None = None


@dataclass(frozen=True, repr=False, eq=False)
class Explanation:
    """Batch of counterfactuals with what is known about each.

    Leaps are counted as the image took them: leaps that would not have moved it are neither taken
    nor counted.

    Arguments:
        x: The images that were explained, ``(B, C, H, W)``, or rows ``(B, D)``.
        reconstruction: What the generator makes of their latents, as the classifier saw it first:
            in a mask, if there is one, with ``x`` around it. Similarity is measured against it,
            so that the generator's own loss is not blamed on the explanation. Where the input's
            own pixels are kept, nothing is lost, and it is ``x``.
        counterfactual: The images that were found, exactly as the classifier saw them.
        z: The latents of ``x``, ``(B, D)``.
        z_counterfactual: The latents of ``counterfactual``.
        source: The class of the reconstruction, ``(B,)``.
        target: The class that was asked for, ``(B,)``.
        label: The class of the counterfactual, ``(B,)``.
        probabilities: What the classifier says of the counterfactual, ``(B, K)``.
        first: The leap after which the target class was first seen, ``(B,)``; 0 at the start, -1
            for never.
        leaps: The leap after which the counterfactual stood, ``(B,)``.
        nfe: How often the velocity field was evaluated, ``(B,)``.
        queries: How often the classifier was queried, ``(B,)``.
        seconds: The image's share of the time, ``(B,)``.
        path: The iterates, if they were kept.
        classes: The names of the classes, if they are known.
    """

    x: Tensor
    reconstruction: Tensor
    counterfactual: Tensor
    z: Tensor
    z_counterfactual: Tensor
    source: Tensor
    target: Tensor
    label: Tensor
    probabilities: Tensor
    first: Tensor
    leaps: Tensor
    nfe: Tensor
    queries: Tensor
    seconds: Tensor
    path: Trajectory | None = None
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for shown in (self.reconstruction, self.counterfactual):
            if shown.shape != self.x.shape:
                raise InputError(
                    f"the generator makes {checks.shape(shown)} of images of shape "
                    f"{checks.shape(self.x)}. Give it images of the size that it decodes to."
                )

    @classmethod
    def of(
        cls,
        x: Tensor,
        counterfactual: Tensor,
        target: Tensor,
        probabilities: Tensor,
        source: Tensor,
        *,
        reconstruction: Tensor | None = None,
        z: Tensor | None = None,
        z_counterfactual: Tensor | None = None,
        steps: int = 1,
        queries: int = 2,
        seconds: float = 0.0,
    ) -> Self:
        """Creates the explanation of a method without leaps, for an explainer of your own.

        Arguments:
            x: The images ``(B, C, H, W)``, or rows ``(B, D)``.
            counterfactual: The counterfactuals, of the same shape.
            target: The class to reach, ``(B,)``.
            probabilities: The classifier's answer to the counterfactuals, ``(B, K)``.
            source: The class of the images, ``(B,)``.
            reconstruction: What the generator makes of the images. Defaults to the images.
            z: Their latents. Defaults to the images as rows.
            z_counterfactual: The counterfactuals' latents. Defaults to these as rows.
            steps: How many steps the method takes.
            queries: How many queries of the classifier it takes.
            seconds: How long it took for all images together.
        """
        label, count = probabilities.argmax(1), torch.full_like(target, steps)
        reached = torch.where(label == target, count, -1)
        return cls(
            x=x,
            reconstruction=x if reconstruction is None else reconstruction,
            counterfactual=counterfactual,
            z=x.flatten(1) if z is None else z,
            z_counterfactual=(
                counterfactual.flatten(1) if z_counterfactual is None else z_counterfactual
            ),
            source=source,
            target=target,
            label=label,
            probabilities=probabilities,
            first=torch.where(source == target, 0, reached),
            leaps=count,
            nfe=torch.zeros_like(target),
            queries=torch.full_like(target, queries),
            seconds=torch.full_like(probabilities[:, 0], seconds / max(1, len(x))),
        )

    @property
    def valid(self) -> Tensor:
        """Whether the classifier gives the counterfactual to the target class, ``(B,)``."""
        return self.label == self.target

    @property
    def margin(self) -> Tensor:
        """The target's probability minus the largest other one, ``(B,)``; 0 or more when valid."""
        own = self.probabilities.gather(1, self.target[:, None])[:, 0]
        others = self.probabilities.scatter(1, self.target[:, None], 0.0)
        return own - others.max(1).values

    @property
    def status(self) -> list[Status]:
        """How each search ended."""
        return [
            Status.ALREADY_THERE if start else Status.REACHED if end else Status.NOT_REACHED
            for start, end in zip(
                (self.source == self.target).tolist(), self.valid.tolist(), strict=True
            )
        ]

    def name(self, label: int | Tensor) -> str:
        """Returns what a class is called."""
        return self.classes[int(label)] if self.classes else f"class {int(label)}"

    @property
    def reason(self) -> list[str]:
        """A sentence on each search, with what to try where it failed."""
        rows = zip(
            self.status,
            map(self.name, self.source),
            map(self.name, self.target),
            map(self.name, self.label),
            self.first.tolist(),
            self.leaps.tolist(),
            strict=True,
        )
        return [_sentence(*row) for row in rows]

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, rows: int | slice | Tensor) -> "Explanation":
        """Returns the explanation of some of the images."""
        if isinstance(rows, slice) or (isinstance(rows, Tensor) and rows.ndim):
            return self._map(lambda tensor: tensor[rows])
        row = checks.whole(rows, "rows")
        if not -len(self) <= row < len(self):
            raise IndexError(f"there is no image {row}: there are {len(self)}.")
        return self._map(lambda tensor: tensor[row % len(self)][None])

    def to(self, device: torch.device | str) -> "Explanation":
        """Returns the same with all tensors on ``device``."""
        return self._map(lambda tensor: tensor.to(device))

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Explanation":
        path = None
        if self.path is not None:
            moved = {name: change(getattr(self.path, name)) for name in _PATH}
            path = Trajectory(**moved, mask=self.path.mask)
        tensors = {name: change(getattr(self, name)) for name in TENSORS}
        return Explanation(**tensors, path=path, classes=self.classes)

    @staticmethod
    def cat(parts: Sequence["Explanation"]) -> "Explanation":
        """Puts explanations made with one plan one behind the other."""
        if not parts:
            raise InputError("there is nothing to put together: give at least one explanation.")
        if len(parts) == 1:
            return parts[0]
        paths = [part.path for part in parts if part.path is not None]
        if len(paths) not in (0, len(parts)):
            raise InputError(
                "some of the explanations keep their path and some do not. Make all in one way."
            )
        lengths = sorted({path.z.shape[1] - 1 for path in paths})
        if len(lengths) > 1:
            raise InputError(
                f"the explanations come from plans of {lengths} leaps. Put together what was made "
                "with one plan."
            )
        path = None
        if paths:
            joined = {name: torch.cat([getattr(p, name) for p in paths]) for name in _PATH}
            path = Trajectory(**joined, mask=paths[0].mask)
        tensors = {name: torch.cat([getattr(part, name) for part in parts]) for name in TENSORS}
        return Explanation(**tensors, path=path, classes=parts[0].classes)

    def put(self, rows: Tensor, other: "Explanation") -> "Explanation":
        """Returns the same with the explanation of some images replaced by another one's."""
        tensors = {
            name: getattr(self, name).index_copy(0, rows, getattr(other, name)) for name in TENSORS
        }
        return Explanation(**tensors, path=self.path, classes=self.classes)

    # -- keeping --

    def save(self, path: str | Path) -> None:
        """Writes the explanation to one safetensors file.

        Arguments:
            path: The file.
        """
        tensors = {name: getattr(self, name) for name in TENSORS}
        if self.path is not None:
            tensors |= {f"path/{name}": getattr(self.path, name) for name in _PATH}
            if self.path.mask is not None:
                tensors["path/mask"] = self.path.mask
        own = {name: value.detach().cpu() for name, value in tensors.items()}
        write_safetensors(own, path, {"format": FORMAT, "classes": json.dumps(self.classes)})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads what :meth:`save` wrote; no model is needed.

        Arguments:
            path: The file.
        """
        path = checks.path(path)
        if not path.is_file():
            raise MissingData(
                f"there is no explanation at {path}. Write one with explanation.save(path)."
            )
        metadata, tensors = read_safetensors(path, FORMAT, "Copy it again, or save it again.")
        iterates = below(tensors, "path/")
        own = {name: value for name, value in tensors.items() if not name.startswith("path/")}
        try:
            classes = tuple(map(str, parse_json(metadata["classes"])))
            found = cls(**own, path=Trajectory(**iterates) if iterates else None, classes=classes)
            found._check()
            return found
        except (TypeError, ValueError, LookupError) as error:
            raise InputError(
                f"{path} does not describe an explanation ({error}). Save it again with "
                "Explanation.save."
            ) from error

    def _check(self) -> None:
        """Raises ValueError where what a file holds does not fit together."""
        checks.images(self.x)
        rows, features, known = len(self.x), self.z.shape[1:], self.probabilities.shape[1:]
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys((*_COUNTS, "seconds"), (rows,))
        shapes |= dict.fromkeys(("x", "reconstruction", "counterfactual"), self.x.shape)
        shapes |= dict.fromkeys(("z", "z_counterfactual"), (rows, features.numel()))
        shapes["probabilities"] = (rows, known.numel())
        tensors = {name: getattr(self, name) for name in TENSORS}
        if self.path is not None:
            steps = self.path.z.shape[1:2].numel()
            shapes["path/z"] = (rows, steps, features.numel())
            shapes["path/probabilities"] = (rows, steps, known.numel())
            shapes |= dict.fromkeys(("path/taken", "path/keeps_pixels"), (rows,))
            tensors |= {f"path/{name}": getattr(self.path, name) for name in _PATH}
            if self.path.mask is not None:
                as_mask(self.path.mask)
        for name, value in tensors.items():
            last = name.removeprefix("path/")
            kinds = (torch.int64,) if last in (*_COUNTS, "taken") else checks.FLOATS
            kinds = (torch.bool,) if last == "keeps_pixels" else kinds
            if value.shape != shapes[name] or value.dtype not in kinds:
                raise ValueError(
                    f"`{name}` has the shape {checks.shape(value)} of {value.dtype}, expected "
                    f"{shapes[name]} of {kinds[0]}"
                )
            if value.is_floating_point() and name != "path/probabilities":
                checks.pixels(value, f"`{name}`")
        checks.probabilities(self.probabilities, rows, known.numel(), "probabilities")
        if self.classes and len(self.classes) != known.numel():
            raise ValueError(f"it names {len(self.classes)} classes")
        for name in ("source", "target", "label"):
            checks.targets(tensors[name], rows, known.numel(), self.x.device)

    # -- showing --

    @torch.no_grad()
    def iterates(self, row: int, leaps: Sequence[int], generator: Generator) -> Tensor:
        """Returns the images of one row after some of its leaps, as the classifier saw them.

        Arguments:
            row: Which image.
            leaps: After which of its leaps.
            generator: The generator that the explanation was made with.
        """
        if self.path is None:
            raise InputError("the iterates were not kept. Explain with keep_path=True.")
        image = generator.decode(self.path.z[row, leaps])
        if self.path.keeps_pixels[row]:
            start = generator.decode(self.z[row][None])
            image = keep_pixels(image, start, self.x[row])
        mask = self.path.mask
        return image if mask is None else paste(image, self.x[row], mask)

    def pictures(self, what: str = "counterfactual") -> list[Image.Image]:
        """Returns the counterfactuals, or ``x`` or ``reconstruction``, as pictures of Pillow."""
        if what not in ("x", "reconstruction", "counterfactual") or self.x.ndim != 4:
            raise InputError(
                f"there are pictures of `x`, `reconstruction` and `counterfactual`, for images; "
                f"got {what!r} of shape {checks.shape(self.x)}."
            )
        return [to_pil(image) for image in getattr(self, what)]

    def plot(self, rows: Sequence[int] | None = None) -> Any:  # noqa: ANN401 - a figure of matplotlib, which is not required
        """Draws images, counterfactuals and what changed, as a figure of matplotlib.

        Arguments:
            rows: Which images. Defaults to the first ten.
        """
        from .report import figure

        return figure(self, rows)

    def animate(
        self, path: str | Path, row: int = 0, *, generator: Generator | None = None
    ) -> None:
        """Writes the iterates of one image as an animated GIF, WEBP or PNG.

        Arguments:
            path: The file.
            row: Which image.
            generator: The generator that the explanation was made with. Without it the animation
                shows the two ends.
        """
        from .report import write_animation

        write_animation(self, path, row, generator)

    def report(
        self,
        path: str | Path,
        *,
        generator: Generator | None = None,
        names: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        reliable: "Explanation | None" = None,
        title: str = "Counterfactuals",
    ) -> None:
        """Writes a page to look at: one HTML file that needs nothing beside it.

        Arguments:
            path: The file.
            generator: The generator that the explanation was made with, to show the iterates of an
                explanation that kept its path. Without it the page shows the two ends.
            names: What the images are called.
            columns: What the columns are called, for rows of numbers.
            reliable: Reliable counterfactuals of the same images, to show beside.
            title: The heading.
        """
        from .report import cards, write_page

        if reliable is not None and len(reliable) != len(self):
            raise InputError(
                f"`reliable` must be of the same {len(self)} images, got {len(reliable)}."
            )
        rows = self.x.ndim != 4
        if rows and columns is None:
            columns = [f"column {n + 1}" for n in range(self.x.shape[1])]
        std = self.x.std(0).tolist() if rows and len(self) > 1 else [1.0] * self.x.shape[1]
        write_page(
            path,
            cards(
                self,
                names=names or [f"image {n}" for n in range(len(self))],
                reliable=reliable,
                generator=generator,
            ),
            title=title,
            about=repr(self),
            classes=self.classes or [str(k) for k in range(self.probabilities.shape[1])],
            columns=columns if rows and columns else (),
            std=std if rows else (),
        )

    def show(
        self,
        *,
        generator: Generator | None = None,
        names: Sequence[str] | None = None,
        reliable: "Explanation | None" = None,
        height: int = 800,
    ) -> "Frame":
        """Returns the page of :meth:`report`, which a notebook shows in a frame.

        Arguments:
            generator: As in :meth:`report`.
            names: As in :meth:`report`.
            reliable: As in :meth:`report`.
            height: How many pixels high the frame is.
        """
        from .report.page import Frame

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "page.html"
            self.report(path, generator=generator, names=names, reliable=reliable)
            return Frame(path.read_text(encoding="utf-8"), height)

    def to_frame(self) -> Any:  # noqa: ANN401 - a table of pandas, which is not required
        """Returns a table of pandas with a row for each image."""
        pandas = require("pandas", extra="frame", subject="a frame needs")
        from .report.cards import numbers

        return pandas.DataFrame(
            {
                "source": [*map(self.name, self.source)] if self.classes else self.source.tolist(),
                "target": [*map(self.name, self.target)] if self.classes else self.target.tolist(),
                "status": [str(status) for status in self.status],
                **{k: v for k, v in numbers(self).items() if k != "typicality"},
                "reason": self.reason,
            }
        )

    def _repr_html_(self) -> str:
        from .report import thumbnails

        return thumbnails(self) if len(self) else f"<p>{html.escape(repr(self))}</p>"

    def __repr__(self) -> str:
        targets = sorted(set(self.target.tolist()))
        names = self.classes or range(self.probabilities.shape[1])
        goal = f"class {names[targets[0]]}" if len(targets) == 1 else f"{len(targets)} classes"
        leaps = f", median {int(self.leaps.median())} leaps" if len(self) else ""
        images = "image" if len(self) == 1 else "images"
        return f"Explanation({len(self)} {images} to {goal}: {int(self.valid.sum())} valid{leaps})"


TENSORS = [f.name for f in fields(Explanation) if f.name not in ("path", "classes")]
_PATH = ("z", "probabilities", "taken", "keeps_pixels")
_COUNTS = ("source", "target", "label", "first", "leaps", "nfe", "queries")


def _sentence(status: Status, source: str, target: str, label: str, first: int, leaps: int) -> str:
    more = leaps - max(first, 0)
    if status is Status.ALREADY_THERE:
        onward = f"; the search went on for {_leaps(more)} all the same" if more else ""
        return f"{target} from the start, so nothing had to change{onward}"
    if status is Status.REACHED:
        onward = f"; the search went on for {more} more to improve it" if more else ""
        return f"{source} became {target} after {_leaps(first)}{onward}"
    stayed = f"still {label}" if label == source else f"{source} became {label}"
    return f"{stayed} after {_leaps(leaps)}, not {target}: more leaps or larger steps may help"


def _leaps(n: int) -> str:
    return f"{n} leap" if n == 1 else f"{n} leaps"
