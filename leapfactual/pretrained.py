"""What the package ships: a bundle for handwritten digits, two networks and 200 test digits.

Weights are in half precision, which changes no label. The study of Morpho-MNIST trains and writes
them.
"""

from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from torch import nn

from .bundle import Bundle
from .classifiers import Network, from_logits
from .data import Dataset
from .files import read_modules, read_safetensors
from .leaps import blend, inject, tighten

FORMAT = "leapfactual shipped 1"
PLAN = (blend(60, 0.05), tighten(8), *(blend(2, 0.05), tighten(8)) * 8)
RELIABLE_PLAN = (blend(60, 0.05), inject(2, lift=0.1, land=0.2))


@dataclass(frozen=True, eq=False)
class Pretrained:
    """The digits that the package ships, and what explains them.

    Arguments:
        bundle: Generator, flow and plan.
        classifier: The classifier that it explains.
        oracle: An independent, stronger classifier.
        digits: Test digits.
    """

    bundle: Bundle
    classifier: Network
    oracle: Network
    digits: Dataset


def small_classifier() -> nn.Module:
    """Returns the network that is explained: three strided convolutions and two linear layers."""
    layers: list[nn.Module] = []
    for before, after in ((1, 8), (8, 16), (16, 32)):
        layers += [nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)]
    return nn.Sequential(*layers, *head)


def oracle_network() -> nn.Module:
    """Returns the oracle, an independent and stronger classifier: four wider convolutions."""
    layers: list[nn.Module] = []
    for before, after, pool in (
        (1, 64, False),
        (64, 64, True),
        (64, 128, False),
        (128, 128, True),
    ):
        layers += [nn.Conv2d(before, after, 3, 1, 1), nn.BatchNorm2d(after), nn.ReLU()]
        if pool:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.4), nn.Linear(128 * 49, 10))


def load(folder: Path | None = None) -> Pretrained:
    """Loads what the package ships, or what a run of the digits' study wrote to ``folder``.

    Example:
        >>> shipped = load()
        >>> shipped.digits
        Dataset(200 images of 1 × 28 × 28, 10 classes)
        >>> explainer = shipped.bundle.explainer(shipped.classifier)
        >>> explainer.explain(shipped.digits.images[:4], target=3)
        Explanation(4 images to class 3: 4 valid, median 62 leaps)
    """
    if folder is None:
        with as_file(files("leapfactual") / "shipped") as here:
            return load(here)
    networks: dict[str, nn.Module] = {"network": small_classifier(), "oracle": oracle_network()}
    read_modules(networks, folder / "networks.safetensors")
    path = folder / "digits.safetensors"
    _, pixels = read_safetensors(path, FORMAT, "Install the package again.")
    digits = Dataset(pixels["images"] / 255, pixels["labels"], tuple("0123456789"))
    classifier, oracle = (from_logits(network) for network in networks.values())
    return Pretrained(Bundle.load(folder / "bundle"), classifier, oracle, digits)
