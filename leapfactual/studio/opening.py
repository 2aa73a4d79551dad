"""What a studio can be opened with: a bundle, the digits that ship, the faces of the demo."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from .. import pretrained
from ..data.images import OnImage
from ..jobs.job import Inputs, open_inputs
from .gallery import Gallery
from .studio import Position, Studio

DIGITS, FACES = "digits", "faces"
# Of each class. Every face takes a second or two to draw on two cores.
FACES_EACH = 6


def open_digits(device: str = "cpu") -> Studio:
    """Returns the studio of what the package ships, with its oracle."""
    shipped = pretrained.load()
    images, labels = shipped.digits.images, shipped.digits.labels.tolist()
    names = [f"test digit {n}, a {label}" for n, label in enumerate(labels)]
    return Studio.of(
        shipped.bundle.to(device),
        shipped.classifier.to(device),
        Gallery(images, names, device=device),
        oracle=shipped.oracle.to(device),
    )


def open_faces(
    device: str = "cpu", on_progress: Callable[[float, str], object] = lambda *_: None
) -> Studio:
    """Returns the studio of faces of 1024 × 1024 that a GAN draws; fetches what is missing.

    Arguments:
        device: Where to compute.
        on_progress: Called with the share that is done and what is going on.
    """
    from ..data import packages
    from ..demos.faces import demo
    from ..demos.faces.expressions import ExpressionNetwork, SmileClassifier
    from ..demos.faces.portraits import CLASSES, portraits

    demo.require()
    for name in demo.PACKAGES:
        on_progress(0.0, f"fetching {name}")
        packages.get(name)
    gan = portraits(device=device)
    classifier = SmileClassifier(ExpressionNetwork.load().to(device))
    faces = demo.draw_faces(
        gan,
        classifier,
        FACES_EACH,
        demo.FIRST_SEED,
        lambda share: on_progress(share, "drawing faces"),
    )
    z = torch.cat([face.w for face in faces])
    with torch.no_grad():
        x = torch.cat([gan.decode(row[None]).cpu() for row in z])
    near, far = (Position(n, plan) for n, plan in enumerate(demo.PLANS.values()))
    return Studio(
        gan,
        classifier,
        demo.shipped_flow().to(device),
        (near, far),
        CLASSES,
        Gallery(x, [face.name for face in faces], z, device=device),
        name="a network of expressions",
    )


def open_bundle(
    folder: Path,
    images: Sequence[Path],
    classifier: str,
    *,
    place: Path | None = None,
    output_type: str | None = None,
    oracle: str | None = None,
    force: bool = False,
    device: str = "cpu",
    on_image: OnImage = None,
) -> tuple[Studio, Inputs]:
    """Returns the studio of a bundle, and what it was opened from.

    Arguments:
        folder: The folder of the bundle.
        images: The pictures: files, or one folder or archive.
        classifier: The name of the classifier.
        place: Where to look for the classifier's file. Defaults to the current folder.
        output_type: What the classifier answers with. Defaults to what its first answer shows.
        oracle: The name of a second classifier.
        force: Whether to explain a classifier that the bundle does not recognize.
        device: Where to compute.
        on_image: Called with the number of images looked at and of all.
    """
    inputs = open_inputs(
        folder,
        images,
        classifier,
        folder=place,
        output_type=output_type,
        device=device,
        on_image=on_image,
    )
    stretch = str(inputs.bundle.training.get("stretch", "none"))
    gallery = Gallery(inputs.images, stretch=stretch, device=device)
    second = inputs.open_oracle(oracle) if oracle else None
    studio = Studio.of(inputs.bundle, inputs.classifier, gallery, oracle=second, force=force)
    return studio, inputs
