"""The result: everything that is known about a batch of counterfactuals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum

import torch
from torch import Tensor

from . import checks
from .errors import InputError


class Status(StrEnum):
    """Says how a search for a counterfactual ended."""

    REACHED = "reached"
    NOT_REACHED = "not reached"
    ALREADY_THERE = "already there"


@dataclass(frozen=True, eq=False)
class Path:
    """Is the way that latents took, leap by leap; an image that has stopped stays where it is.

    Arguments:
        z: The iterates, with shape ``(B, N + 1, D)`` for a plan of N leaps.
        probabilities: What the classifier said of them, with shape ``(B, N + 1, K)``; NaN where it
            was not asked.
        taken: How many leaps each image took, with shape ``(B,)``.
    """

    z: Tensor
    probabilities: Tensor
    taken: Tensor


@dataclass(frozen=True, repr=False, eq=False)
class Explanation:
    """Is a batch of counterfactuals with what is known about each.

    Leaps are counted as the image took them: leaps that would not have moved it are neither taken
    nor counted.

    Arguments:
        x: The images that were explained, ``(B, C, H, W)``, or rows ``(B, D)``.
        reconstruction: What the generator makes of their latents. Similarity is measured against
            it, so that the generator's own loss is not blamed on the explanation.
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
        evaluations: How often the velocity field was evaluated, ``(B,)``.
        questions: How often the classifier was asked, ``(B,)``.
        seconds: The image's share of the time, ``(B,)``.
        path: The way there, if it was asked for.
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
    evaluations: Tensor
    questions: Tensor
    seconds: Tensor
    path: Path | None = None

    @property
    def valid(self) -> Tensor:
        """Whether the classifier gives the counterfactual to the target class, ``(B,)``."""
        return self.label == self.target

    @property
    def margin(self) -> Tensor:
        """The target's probability minus the largest other one, ``(B,)``: 0 or more when valid."""
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

    @property
    def reason(self) -> list[str]:
        """A sentence on each search, with what to try where it failed."""
        rows = zip(
            self.status,
            self.source.tolist(),
            self.target.tolist(),
            self.label.tolist(),
            self.first.tolist(),
            self.leaps.tolist(),
            self.margin.tolist(),
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
        path = self.path and Path(*(change(getattr(self.path, f.name)) for f in fields(Path)))
        tensors = {name: change(getattr(self, name)) for name in _TENSORS}
        return Explanation(**tensors, path=path)

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
            path = Path(*(torch.cat([getattr(p, f.name) for p in paths]) for f in fields(Path)))
        tensors = {name: torch.cat([getattr(part, name) for part in parts]) for name in _TENSORS}
        return Explanation(**tensors, path=path)

    def __repr__(self) -> str:
        classes = sorted(set(self.target.tolist()))
        goal = f"class {classes[0]}" if len(classes) == 1 else f"{len(classes)} classes"
        leaps = f", median {int(self.leaps.median())} leaps" if len(self) else ""
        images = "image" if len(self) == 1 else "images"
        return f"Explanation({len(self)} {images} to {goal}: {int(self.valid.sum())} valid{leaps})"


_TENSORS = [f.name for f in fields(Explanation) if f.name != "path"]


def _sentence(
    status: Status, source: int, target: int, label: int, first: int, leaps: int, margin: float
) -> str:
    if status is Status.ALREADY_THERE:
        return f"class {target} from the start; returned after {leaps} leaps, margin {margin:.2f}"
    if status is Status.REACHED:
        return (
            f"from class {source} to {target} by leap {first}; returned after {leaps} leaps, "
            f"margin {margin:.2f}"
        )
    return (
        f"still class {label} after {leaps} leaps on the way from {source} to {target}, margin "
        f"{margin:.2f}: try more leaps, a larger step size or a second stage"
    )
