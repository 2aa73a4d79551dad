"""Labels that people gave, instead of a classifier that can be queried.

Training a flow needs one label for each image: votes will do, and then the flow carries the
opinion of those who voted. Choosing a plan needs queries about new images; there a *kNN
surrogate* answers, with the votes on the images that are nearest in latent space.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..data import Images, Table
from ..data.csv import read_csv_rows
from ..errors import InputError
from ..types import Generator

# Enough votes to average over, few enough to stay among images that look alike.
NEIGHBORS = 15


@dataclass(frozen=True, eq=False)
class Votes:
    """The votes of people on a set of images.

    Arguments:
        p: The share of votes of each class, ``(N, K)``; zeros where nobody voted.
        classes: The names of the classes.
        count: How many votes there are.
        people: How many people gave them, where that is known.
    """

    p: Tensor
    classes: tuple[str, ...]
    count: int
    people: int | None = None

    @property
    def known(self) -> Tensor:
        """Which images have votes, ``(N,)``."""
        return self.p.sum(1) > 0

    def __repr__(self) -> str:
        who = "" if self.people is None else f" of {self.people} people"
        return f"Votes({self.count}{who} on {int(self.known.sum())} of {len(self.p)} images)"


def read_votes(
    path: str | Path, images: Images | Table, classes: Sequence[str] | None = None
) -> Votes:
    """Reads votes from a CSV file with the columns ``image`` and ``label``.

    A line is a vote: an image may have several, of whoever stands in the column ``annotator``, if
    there is one. Images are named as the set names them, or by their file name alone where that is
    unique.

    Arguments:
        path: The file.
        images: The set.
        classes: The names of the classes. Defaults to the labels that there are, in order.
    """
    labels: list[tuple[int, str]] = []
    who: set[tuple[str, int]] = set()
    for where, row, cells in read_csv_rows(path, images, "label", "votes"):
        label = cells["label"]
        if not label or (classes is not None and label not in classes):
            listed = ", ".join(classes or ()) or "a name"
            raise InputError(f"{where} says `{label}`, expected one of: {listed}.")
        if "annotator" in cells:
            vote = (cells["annotator"], row)
            if vote in who:
                raise InputError(f"{where}: `{vote[0]}` votes twice on `{cells['image']}`.")
            who.add(vote)
        labels.append((row, label))
    names = tuple(classes or sorted({label for _, label in labels}))
    if len({label for _, label in labels}) < 2:
        raise InputError(f"{path} must name at least two classes, got {list(names)}.")
    p = torch.zeros(len(images), len(names))
    for row, label in labels:
        p[row, names.index(label)] += 1
    p = p / p.sum(1, keepdim=True).clamp_min(1)
    people = len({name for name, _ in who}) if who else None
    return Votes(p, names, len(labels), people)


class NearestNeighbors:
    r"""Creates a kNN surrogate of people: the mean of their votes on the nearest images.

    .. math:: p(x) = \frac{1}{k} \sum_{n \in N_k(g^{-1}(x))} p_n

    Distances are Euclidean between latents, standardized feature by feature.

    Arguments:
        generator: The generator, which encodes images.
        z: The latents of images with votes, ``(N, D)``.
        p: The votes, ``(N, K)``.
        k: The number of neighbors.
    """

    def __init__(self, generator: Generator, z: Tensor, p: Tensor, k: int = NEIGHBORS) -> None:
        self.generator, self.k = generator, min(k, len(z))
        self.mean, self.scale = z.mean(0), z.std(0).clamp_min(1e-6)
        self.z, self.p = (z - self.mean) / self.scale, p

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Returns probabilities ``(B, K)``."""
        z = (self.generator.encode(x) - self.mean) / self.scale
        nearest = torch.cdist(z, self.z.to(z)).topk(self.k, largest=False).indices
        return self.p.to(z)[nearest].mean(1)
