"""What is explained: photographs, the classifier that is asked, and an independent oracle."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from leapfactual.data import Images, open_images
from leapfactual.data.datasets import split
from leapfactual.demos.faces.expressions import ExpressionNetwork, SmileClassifier, resize
from leapfactual.demos.faces.identity import SAME, FaceEmbedder, IdentityDistance
from leapfactual.demos.faces.landmarks import SmileOracle
from leapfactual.demos.faces.portraits import CLASSES, portraits
from leapfactual.errors import InputError
from leapfactual.explanation import Explanation
from leapfactual.files import atomic
from leapfactual.generators import GAN
from leapfactual.imaging import to_pil
from leapfactual.jobs.pairs import random_targets
from leapfactual.metrics import Metric
from leapfactual.training.augmentation import random_mirror, random_rotation
from leapfactual.types import Classifier, no_op

from ..galaxies.vgg import BatchedClassifier, train_classifier, vgg16

FACE_SIDE, FACES_PER_SEED, FIRST_SEED = 128, 500, 1000
RESNET_MULTIPLIERS = (1, 2, 4, 4)
# Further classifiers of the same make, which agree with a counterfactual or do not.
FILTERS = 4
TEST_SHARE = 0.2


@dataclass(frozen=True, eq=False)
class Subject:
    """Photographs, and who says what is on them.

    Arguments:
        name: What the set is called.
        train: The photographs to train on.
        test: Those to explain.
        classes: What the classes are called.
        classifier: The classifier to explain.
        oracle: A second, independent classifier.
        rows: The training images whose labels the classifier learnt from; None for all.
        filters: Further classifiers that learnt from these rows.
        reference: The class that images of all others are taken to, and its own from.
        metrics: What else is measured of a counterfactual.
    """

    name: str
    train: Images
    test: Images
    classes: tuple[str, ...]
    classifier: Classifier
    oracle: Classifier
    rows: Tensor | None = None
    filters: tuple[Classifier, ...] = ()
    reference: int | None = None
    metrics: tuple[Metric, ...] = ()

    def targets(self, source: Tensor, seed: int) -> Tensor:
        """Draws a class for each image that it does not have, see :attr:`reference`."""
        drawn = random_targets(source, len(self.classes), seed)
        if self.reference is None:
            return drawn
        return drawn.where(source == self.reference, self.reference)


# -- faces --


def draw_faces(
    folder: Path,
    trained: int,
    tested: int,
    *,
    gan: Callable[[], GAN],
    classifier: Classifier,
    batch_size: int,
    progress: Callable[[float], object] = no_op,
) -> None:
    """Draws faces of 128 × 128 into class folders of ``train`` and ``test``, where they miss.

    Arguments:
        folder: Where the two folders are.
        trained: How many to train on.
        tested: How many to test with.
        gan: Returns the generator, which is needed only if faces are missing.
        classifier: Sorts the faces into classes, as large as they are drawn.
        batch_size: How many to draw at a time.
        progress: Called with the share that is done.
    """
    there = {int(path.stem) for path in folder.glob("*/*/[0-9]*.png")}
    total = trained + tested
    missing = [n for n in range(total) if n not in there]
    if not missing:
        return
    generator = gan()
    for seed in sorted({n // FACES_PER_SEED for n in missing}):
        w = generator.sample(FACES_PER_SEED, FIRST_SEED + seed)
        numbers = [n for n in missing if n // FACES_PER_SEED == seed]
        for start in range(0, len(numbers), batch_size):
            some = numbers[start : start + batch_size]
            with torch.no_grad():
                x = generator.decode(w[[n % FACES_PER_SEED for n in some]])
            names = [CLASSES[k] for k in classifier(x).argmax(1).tolist()]
            small = resize(x, FACE_SIDE).clamp(0, 1).cpu()
            for n, name, image in zip(some, names, small, strict=True):
                part = "train" if n < trained else "test"
                with atomic(folder / part / name / f"{n:05}.png") as temporary:
                    to_pil(image).save(temporary, format="PNG")
            progress(some[-1] / total)


def faces(
    folder: Path,
    *,
    trained: int,
    tested: int,
    size: int,
    device: str,
    progress: Callable[[float], object] = no_op,
) -> Subject:
    """Returns faces that the GAN drew, taken as photographs, and two networks that see smiles.

    Arguments:
        folder: Where the pictures are kept.
        trained: How many to train on.
        tested: How many to explain.
        size: Height and width.
        device: Where to compute.
        progress: Called with the share of faces that are drawn.
    """
    on_cpu = torch.device(device).type == "cpu"
    smiles = SmileClassifier(ExpressionNetwork.load().to(device))
    draw_faces(
        folder,
        trained,
        tested,
        gan=partial(portraits, device=device),
        classifier=smiles,
        batch_size=1 if on_cpu else 128,
        progress=progress,
    )
    train, test = (open_images(folder / part, size=(size, size)) for part in ("train", "test"))
    identity = IdentityDistance(FaceEmbedder.load().to(device))

    def same(e: Explanation) -> Tensor:
        return (identity(e.x, e.counterfactual) < SAME).double()

    return Subject(
        f"faces, {size} × {size}",
        train,
        test,
        CLASSES,
        smiles,
        SmileOracle.load().to(device),
        metrics=(Metric("same person", True, same),),
    )


# -- folders --


@dataclass(frozen=True)
class Schooling:
    """How classifiers of a folder are trained.

    Arguments:
        share: The share of the labels that the explained classifier learns from; the oracle learns
            from all of them.
        steps: How many steps of 128 images.
        width: The channels of the first layer of a network.
        rotate: Whether images have no up, so that they are learnt in all orientations.
    """

    share: float = 1.0
    steps: int = 1500
    width: int = 32
    rotate: bool = False

    def train(
        self,
        network: nn.Module,
        x: Tensor,
        y: Tensor,
        steps: int,
        seed: int,
        weights: Tensor | None = None,
    ) -> None:
        """Trains a network on labelled images, in place."""
        augment = random_rotation if self.rotate else random_mirror
        train_classifier(network, x, y, steps=steps, weights=weights, augment=augment, seed=seed)


def folder(
    path: Path,
    *,
    size: int,
    grey: bool = False,
    crop: int | None = None,
    schooling: Schooling,
    reference: str | None,
    cache: Path,
    device: str,
    seed: int,
    progress: Callable[[float], object] = no_op,
) -> Subject:
    """Returns the photographs of class folders, and networks trained on their labels.

    The classifier is a small residual network; with a share of the labels only, it is of the
    oracle's make, since a weak one is to be told from a strong one by what it learnt from. The
    oracle is a VGG16 with batch norm.

    Arguments:
        path: A folder with ``train`` and ``test``, each of class folders; or class folders, or a
            zip of them, of which a fifth is held out.
        size: Height and width.
        grey: Whether they are to be grey.
        crop: The side of the centre that is cut out first. Defaults to the whole image.
        schooling: How classifiers are trained.
        reference: The class to take images of all others to.
        cache: The file that trained networks are kept in.
        device: Where to compute.
        seed: The seed of everything random.
        progress: Called with the share of networks that are trained.
    """
    train, test = _open(path, size, 1 if grey else 3, crop)
    assert train.labels is not None
    classes = tuple(train.classes)
    if reference is not None and reference not in classes:
        raise InputError(f"`{reference}` is not a class: there are {', '.join(classes)}.")
    x, y = train[:].to(device), train.labels.to(device)
    some = torch.arange(len(y))
    weak = schooling.share < 1
    if weak:
        some = split(train.labels, 1 - schooling.share, seed, classes)[0]
    rows = {"classifier": some, "oracle": torch.arange(len(y))}
    rows |= {f"filter {n}": some for n in range(FILTERS * weak)}
    networks = {
        name: ResNet(x.shape[1], len(classes), schooling.width)
        if name == "classifier" and not weak
        else vgg16(x.shape[1], len(classes), schooling.width)
        for name in rows
    }
    known: Mapping[str, Tensor] = load_file(cache, device) if cache.exists() else {}
    for n, (name, network) in enumerate(networks.items()):
        network.to(device)
        if known:
            own = {k.split("/", 1)[1]: v for k, v in known.items() if k.startswith(f"{name}/")}
            network.load_state_dict(own)
            network.eval().requires_grad_(False)
            continue
        torch.manual_seed(seed + n)
        chosen = rows[name].to(device)
        schooling.train(network, x[chosen], y[chosen], schooling.steps, seed + n)
        progress((n + 1) / len(networks))
    if not known:
        cache.parent.mkdir(parents=True, exist_ok=True)
        with atomic(cache) as temporary:
            save_file(
                {
                    f"{name}/{key}": value.contiguous()
                    for name, network in networks.items()
                    for key, value in network.state_dict().items()
                },
                temporary,
            )
    answers = {name: BatchedClassifier(network) for name, network in networks.items()}
    return Subject(
        f"{path.stem}, {size} × {size}"
        + (f", centre {crop}" if crop else "")
        + (", grey" if grey else ""),
        train,
        test,
        classes,
        answers["classifier"],
        answers["oracle"],
        rows=some if weak else None,
        filters=tuple(a for name, a in answers.items() if name.startswith("filter")),
        reference=None if reference is None else classes.index(reference),
    )


def _open(path: Path, size: int, channels: int, crop: int | None) -> tuple[Images, Images]:
    shown = partial(open_images, size=(size, size), channels=channels, crop=crop)
    if (path / "train").is_dir() and (path / "test").is_dir():
        train, test = (shown(path / part) for part in ("train", "test"))
    else:
        images = shown(path)
        if images.labels is None:
            raise InputError(f"{path} has no class folders. Put the images of a class into one.")
        train, test = (
            images.take(rows) for rows in split(images.labels, TEST_SHARE, 0, images.classes)
        )
    if train.labels is None or tuple(train.classes) != tuple(test.classes):
        raise InputError(
            f"{path}/train and {path}/test must hold the same class folders, got "
            f"{list(train.classes)} and {list(test.classes)}."
        )
    return train, test


class ResNet(nn.Module):
    """Creates a small residual network of four stages, each half the size of the one before.

    Example:
        >>> ResNet(3, 4)(torch.zeros(2, 3, 64, 64)).shape
        torch.Size([2, 4])
    """

    def __init__(self, channels: int, classes: int, width: int = 32) -> None:
        super().__init__()
        widths = (width, *(width * m for m in RESNET_MULTIPLIERS))
        self.first = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.stages = nn.ModuleList(_Stage(before, after) for before, after in pairwise(widths))
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Returns one row of logits for each image."""
        x = self.first(x)
        for stage in self.stages:
            x = stage(x)
        logits: Tensor = self.head(F.relu(x).mean((2, 3)))
        return logits


class _Stage(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.skip = nn.Conv2d(inputs, outputs, 1, stride=2, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(inputs), nn.BatchNorm2d(outputs)])
        self.first = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(F.relu(self.norms[0](x)))
        out: Tensor = self.skip(x) + self.second(F.relu(self.norms[1](y)))
        return out
