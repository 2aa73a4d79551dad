"""Which image is to become which class: pairs of a row and a target.

An image's *source* is the class that the classifier gives to its reconstruction, since that is
where a walk starts.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from .. import checks
from .._engine.memory import in_halves
from ..data import Images, Table
from ..data.csv import read_csv_rows
from ..errors import InputError
from ..imaging import paste
from ..types import no_op
from .job import Inputs

Pairs = list[tuple[int, int]]


@torch.no_grad()
def find_sources(inputs: Inputs, mask: Tensor | None = None) -> list[int]:
    """Encodes, decodes and classifies all images, and returns their sources.

    Arguments:
        inputs: The bundle, the classifier and the images.
        mask: Where images may change, if not everywhere; elsewhere the image itself is shown.
    """
    generator, sources = inputs.bundle.generator, []

    def answer(x: Tensor) -> Tensor:
        reconstruction = generator.decode(generator.encode(x))
        if mask is not None:
            reconstruction = paste(reconstruction, x, mask)
        return inputs.classifier(reconstruction)

    for x in inputs.images.batches(256):
        sources += in_halves(answer, x.to(inputs.bundle.device)).argmax(1).tolist()
    return sources


def choose_pairs(
    inputs: Inputs,
    *,
    target: str | None = None,
    all_targets: bool = False,
    targets: Path | None = None,
    mask: Tensor | None = None,
) -> Pairs:
    """Returns the pairs of one target, of every target, or of a list.

    Arguments:
        inputs: The bundle, the classifier and the images.
        target: The name of one class, for all images.
        all_targets: Whether to take every class but the image's source.
        targets: A CSV file, as :func:`read_pairs` reads it.
        mask: Where images may change, if not everywhere.
    """
    classes = inputs.bundle.classes
    if sum((target is not None, all_targets, targets is not None)) != 1:
        raise InputError(
            "say what the images are to become, in one way: --target CLASS, --all-targets, or "
            f"--targets FILE.csv. The classes are {', '.join(classes)}."
        )
    if target is not None:
        k = checks.find_class(target, classes)
        return [(row, k) for row in range(len(inputs.images))]
    if targets is not None:
        return read_pairs(targets, inputs.images, classes)
    return all_pairs(find_sources(inputs, mask), range(len(classes)))


def read_pairs(path: str | Path, images: Images | Table, classes: Sequence[str]) -> Pairs:
    """Reads pairs from a CSV file with the columns ``image`` and ``target``.

    An image is named as the set names it, or by its file name alone where that is unique.
    """
    return [
        (row, checks.find_class(cells["target"], classes, f"{place}: "))
        for place, row, cells in read_csv_rows(path, images, "target", "targets")
    ]


def all_pairs(sources: Sequence[int], targets: Sequence[int]) -> Pairs:
    """Pairs every image with every target that is not its source.

    Example:
        >>> all_pairs([0, 1], targets=[0, 1, 2])
        [(0, 1), (0, 2), (1, 0), (1, 2)]
    """
    return [(row, k) for row, source in enumerate(sources) for k in targets if k != source]


def sample_pairs(pairs: Pairs, share: float, seed: int = 0) -> Pairs:
    """Draws a share of the pairs without replacement, and keeps their order.

    Arguments:
        pairs: The pairs.
        share: The share, above 0 and up to 1.
        seed: The seed of the draw.
    """
    if not 0 < checks.number(share, "share") <= 1:
        raise InputError(f"`share` must be above 0 and up to 1, got {share!r}.")
    if share == 1:
        return pairs
    rng = torch.Generator().manual_seed(seed)
    kept = torch.randperm(len(pairs), generator=rng)[: max(1, round(share * len(pairs)))]
    return [pairs[n] for n in kept.sort().values.tolist()]


def augmentation_pairs(
    inputs: Inputs,
    *,
    to: Sequence[str] | None = None,
    rare: bool = False,
    share: float = 1.0,
    seed: int = 0,
    log: Callable[[str], object] = no_op,
) -> Pairs:
    """Pairs every image with the classes to make more images of.

    Arguments:
        inputs: The bundle, the classifier and the images.
        to: The names of these classes. Defaults to all.
        rare: Whether to take the classes with fewer images than an equal share instead.
        share: The share of the pairs to draw.
        seed: The seed of the draw.
        log: Called with a sentence about the rare classes.
    """
    if to is not None and rare:
        raise InputError("give --to or --rare, not both.")
    classes, sources = inputs.bundle.classes, find_sources(inputs)
    targets = list(range(len(classes)))
    if to is not None:
        targets = [checks.find_class(name, classes) for name in to]
    elif rare:
        targets = rare_classes(sources, len(classes))
        log(f"Rare are {', '.join(classes[k] for k in targets)}.")
    return sample_pairs(all_pairs(sources, targets), share, seed)


def random_targets(
    source: Tensor, classes: int, seed: int, among: Sequence[int] | None = None
) -> Tensor:
    """Draws a target for each image, uniformly among the classes that are not its source.

    Arguments:
        source: The sources, with shape ``(B,)``.
        classes: How many classes there are.
        seed: The seed of the draw.
        among: The classes to draw from, at least two. Defaults to all.

    Example:
        >>> random_targets(torch.tensor([0, 1, 0]), classes=2, seed=0)
        tensor([1, 0, 1])
    """
    rng = torch.Generator().manual_seed(seed)
    if among is not None:
        weights = torch.zeros(len(source), classes)
        weights[:, list(among)] = 1
        weights.scatter_(1, source.cpu()[:, None], 0)
        return torch.multinomial(weights, 1, generator=rng)[:, 0].to(source.device)
    shift = torch.randint(1, classes, (len(source),), generator=rng)
    return (source + shift.to(source.device)) % classes


def random_pairs(sources: Sequence[int], classes: int, seed: int) -> Pairs:
    """Pairs every image with one target, drawn by :func:`random_targets`."""
    targets = random_targets(torch.tensor(sources), classes, seed)
    return list(enumerate(targets.tolist()))


def rare_classes(sources: Sequence[int], classes: int) -> list[int]:
    """Returns the classes that have fewer images than an equal share.

    Example:
        >>> rare_classes([0, 0, 0, 0, 1, 2, 2, 2], classes=3)
        [1]
    """
    counts = Counter(sources)
    return [k for k in range(classes) if counts[k] < len(sources) / classes]
