"""What a bundle is to explain: images, and a classifier or people who voted on them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..classifiers import open_classifier, undo_stretch
from ..data import Images, Table
from ..data.images import OnImage
from ..data.sources import EMPTY_FOLDER
from ..errors import InputError
from ..types import Classifier, no_op
from .job import EXAMPLES, open_sources
from .labels import Votes, read_votes

MAX_SUMMARY_IMAGES = 500
# Numbers in a batch of them: 64 MiB.
BATCH_VALUES = 1 << 24
MAX_STRETCH_IMAGES = 64
MIN_IMAGES = 40
# Of more, one is shown: the others' reasons are mostly the same.
MAX_BROKEN_SHOWN = 3
# Above the first, a generator learns little more in much more time; above the second, nothing.
MAX_GOOD_SIDE, MAX_SIDE = 256, 1024
# Images of which most pixels are black and the mean is faint, as of radio galaxies.
MIN_BLACK_SHARE, MAX_FAINT_MEAN = 0.8, 0.03

Log = Callable[[str], object]


@dataclass(frozen=True, eq=False)
class Subject:
    """What a bundle is to explain: images, and a classifier or people who voted on them.

    Arguments:
        images: The images, or a table.
        classifier: The classifier, or votes.
        classes: The names of the classes.
        oracle: A second, independent classifier.
        classifier_name: The name of the classifier, for the record.
    """

    images: Images | Table
    classifier: Classifier | Votes
    classes: tuple[str, ...]
    oracle: Classifier | None = None
    classifier_name: str = "a classifier"


def open_subject(
    paths: Sequence[Path],
    *,
    classifier: str | None = None,
    votes: Path | None = None,
    oracle: str | None = None,
    classes: Sequence[str] = (),
    output_type: str | None = None,
    size: tuple[int, int] | None = None,
    channels: int | None = None,
    label: str | None = None,
    stretch: str = "auto",
    device: str = "cpu",
    log: Log = no_op,
    on_image: OnImage = None,
) -> Subject:
    """Opens images, and a classifier or votes, and finds the names of the classes.

    Arguments:
        paths: Files, or one folder, archive or table.
        classifier: The name of a classifier, as
            :func:`~leapfactual.classifiers.open_classifier` takes it.
        votes: Instead of it, a CSV file, as :func:`~leapfactual.jobs.labels.read_votes` reads it.
        oracle: The name of a second, independent classifier.
        classes: The names of the classes. Defaults to those of the folders.
        output_type: What the classifier answers with. Defaults to what its first answer shows.
        size: Height and width to resize images to.
        channels: 1 or 3. Defaults to that of the first image.
        label: The column of a table that names the classes. Defaults to one called label, class,
            target or y.
        stretch: The stretch of the images that the generator sees, or ``auto``.
        device: Where to compute.
        log: Called with a sentence about each choice.
        on_image: Called with the number of images looked at and of all.
    """
    if (classifier is None) == (votes is None):
        raise InputError(
            "say whose answers to explain, in one way: --classifier NAME, or --votes FILE.csv for "
            "people's."
        )
    images = open_sources(paths, size=size, channels=channels, label=label, on_image=on_image)
    if isinstance(images, Images):
        _check_size(images.shape)
    names = tuple(classes or images.classes)
    example = images[list(range(min(EXAMPLES, len(images))))].to(device)
    labels: Votes | None = None
    if votes is not None:
        labels = read_votes(votes, images, names or None)
        names = labels.classes
    model: Classifier | None = None
    if classifier is not None:
        model = open_classifier(classifier, example, names, output_type=output_type)
        empty = [Path(b.name).name for b in images.broken if b.reason == EMPTY_FOLDER]
        names = _check_names(model, example, names, empty)
    second = open_classifier(oracle, example, names) if oracle else None
    if stretch == "auto":
        stretch = choose_stretch(images)
        if stretch != "none":
            log(
                "The images are almost all black, so the generator sees them stretched "
                f"({stretch}); the classifier gets them as they are. See --stretch."
            )
    if isinstance(images, Images):
        images = images.stretched(stretch)
        model = None if model is None else undo_stretch(model, stretch)
        second = None if second is None else undo_stretch(second, stretch)
    explained = labels if model is None else model
    assert explained is not None, "there is a classifier, or votes"
    return Subject(images, explained, names, second, classifier or f"people, {labels!r}")


def _check_names(
    classifier: Classifier, example: Tensor, names: tuple[str, ...], empty: Sequence[str]
) -> tuple[str, ...]:
    """Returns a name for each class that the classifier tells apart."""
    count = classifier(example).shape[1]
    if not names:
        return tuple(str(k) for k in range(count))
    if len(names) != count:
        raise InputError(
            f"the classifier tells {count} classes apart, but there are {len(names)} names: "
            f"{', '.join(names[:8])}. Name them with --classes, in the order of its answers."
            + (f" Folders without images: {', '.join(empty[:8])}." if empty else "")
        )
    return names


@torch.no_grad()
def summarize_data(
    images: Images | Table,
    classifier: Classifier | Votes,
    classes: Sequence[str],
    device: str = "cpu",
) -> tuple[dict[str, object], list[str]]:
    """Measures sizes, classes and their balance before anything is trained.

    Arguments:
        images: The set.
        classifier: The classifier, queried about at most 500 of the images; or votes.
        classes: The names of the classes.
        device: Where to compute.

    Returns:
        The summary, as values that JSON can hold, and the same in sentences.
    """
    n = len(images)
    large = [] if isinstance(images, Table) else _check_size(images.shape)
    voted = isinstance(classifier, Votes)
    rows = torch.linspace(0, n - 1, min(n, MAX_SUMMARY_IMAGES)).long()
    if isinstance(classifier, Votes):
        rows = classifier.known.nonzero()[:, 0]
        answers = classifier.p[rows]
    else:
        batches = torch.split(rows, max(1, min(100, BATCH_VALUES // math.prod(images.shape))))
        answers = torch.cat([classifier(images[batch].to(device)) for batch in batches])
    label = answers.argmax(1).cpu()
    shares = label.bincount(minlength=len(classes)).double() / len(label)
    soft = bool((answers.max(1).values < 1).any())
    summary: dict[str, object] = {
        "images": n,
        "shape": list(images.shape),
        "left out": len(images.broken),
        "classes": list(classes),
        "shares": {
            name: round(share, 3) for name, share in zip(classes, shares.tolist(), strict=True)
        },
        "answers": "probabilities" if soft else "labels",
    }
    kind = "rows of" if isinstance(images, Table) else "images of"
    size = " × ".join(map(str, images.shape))
    columns = " columns" if isinstance(images, Table) else " (channels, height, width)"
    lines = [f"{n} {kind} {size}{columns}."]
    left_out = ""
    if images.broken:
        shown = images.broken[: 1 if len(images.broken) > MAX_BROKEN_SHOWN else None]
        names = "; ".join(str(item).removesuffix(".") for item in shown)
        more = len(images.broken) - len(shown)
        left_out = f"Left out {len(images.broken)}: {names}{f'; and {more} more' if more else ''}."
        lines.append(left_out)
    lines += [*describe_conversions(images), *large]
    by_share = sorted(zip(classes, shares.tolist(), strict=True), key=lambda pair: -pair[1])
    listed = ", ".join(f"{name} {share:.0%}" for name, share in by_share[:12])
    lines.append(
        f"People voted on {len(label)} images. They say: {listed}."
        if voted
        else f"The classifier gives {'probabilities' if soft else 'labels'}. Of {len(label)} it "
        f"says: {listed}."
    )
    never = [name for name, share in by_share if share == 0]
    if never:
        lines.append(
            f"It never says {', '.join(never[:5])} here: those classes cannot become targets "
            "unless other images show them."
        )
    if voted and len(label) < MIN_IMAGES:
        raise InputError(
            f"people voted on {len(label)} images, too few to learn from: at least "
            f"{MIN_IMAGES} are needed, better some thousands."
        )
    if len(set(label.tolist())) < 2:
        raise InputError(
            f"the classifier gives one class, {classes[int(label[0])]}, to all of {len(label)} "
            "images. Check that it gets images as it was trained on: values in [0, 1], the right "
            "size and channels."
        )
    if images.labels is not None and tuple(images.classes) == tuple(classes):
        right = (label == images.labels[rows]).double().mean().item()
        summary["accuracy"] = round(right, 4)
        lines.append(f"It agrees with the labels that came with the data on {right:.1%}.")
    if n < MIN_IMAGES:
        raise InputError(
            f"there are {n} images to learn from, too few: give at least {MIN_IMAGES}, better "
            f"some thousands. {left_out}".rstrip()
        )
    return summary, lines


def describe_conversions(images: Images | Table) -> list[str]:
    """Says how many images were converted, and how; nothing where none was."""
    converted = getattr(images, "converted", {})
    if not converted:
        return []
    return [f"Converted: {', '.join(f'{count} {how}' for how, count in converted.items())}."]


def _check_size(shape: tuple[int, int, int]) -> list[str]:
    """Says what to do about images that are too large to learn from, and refuses huge ones."""
    height, width = shape[1:]
    if min(height, width) <= MAX_GOOD_SIDE and max(height, width) <= MAX_SIDE:
        return []
    scale = MAX_GOOD_SIDE / max(height, width)
    small = f"{max(1, round(scale * height))} {max(1, round(scale * width))}"
    advice = (
        f"--size {small} resizes them first, for generator and classifier; they are explained in "
        "that size."
    )
    if max(height, width) > MAX_SIDE:
        raise InputError(
            f"images of {height} × {width} are too large to learn from: at most {MAX_SIDE} pixels "
            f"a side, better {MAX_GOOD_SIDE}. {advice}"
        )
    return [f"Images of {height} × {width} take long to learn from. {advice}"]


def choose_stretch(images: Images | Table) -> str:
    """Returns ``sqrt`` for images that are black but for something faint, and ``none`` for others.

    A decoder leaves a faint floor where images are black; classifiers of such images see little
    else. With a stretch the floor all but vanishes before the classifier sees it.
    """
    if isinstance(images, Table):
        return "none"
    x = images[torch.linspace(0, len(images) - 1, min(len(images), MAX_STRETCH_IMAGES)).long()]
    black = 1 - int(x.count_nonzero()) / x.numel() > MIN_BLACK_SHARE
    faint = x.mean().item() < MAX_FAINT_MEAN
    return "sqrt" if black and faint else "none"
