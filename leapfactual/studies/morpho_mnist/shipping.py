"""What the package ships out of this study: a bundle, two networks and 200 test digits.

``leapfactual study morpho-mnist`` writes them to its folder ``shipped``; the ones in the package
are those of the published run's first seed. Weights are in half precision, which moves no answer.
"""

from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

import torch
from torch import nn

from ...bundle import Bundle
from ...calibration import calibrate, quickest
from ...classifiers import Network, from_logits
from ...data import Dataset
from ...files import read_safetensors, write_safetensors
from ...training import embed
from .parts import Parts, judge_network, read_parts, small_classifier, write_parts
from .table import OURS_R

FORMAT = "leapfactual shipped 1"
PER_CLASS = 20
SCALED_ON = 10_000
CHOSEN_ON = 256
QUICK_CHOSEN_ON = 10_000


@dataclass(frozen=True, eq=False)
class Shipped:
    """Is what the package ships.

    Arguments:
        bundle: Generator, flow and plan.
        classifier: The classifier that it explains.
        judge: An independent, stronger classifier.
        digits: Test digits.
    """

    bundle: Bundle
    classifier: Network
    judge: Network
    digits: Dataset


def ship(parts: Parts, train_set: Dataset, digits: Dataset, folder: Path) -> None:
    """Writes what the package is to ship, from the parts of one seed.

    The ladder of plans is chosen on training digits, so that no test digit has a say.
    """
    chosen = torch.cat([(digits.labels == n).nonzero()[:PER_CLASS, 0] for n in range(10)])
    chosen = chosen.sort().values
    images = digits.images[chosen]
    vae, flow = parts.vae, parts.our_flow
    classifier, judge = from_logits(parts.network), from_logits(parts.judge)
    held_out = train_set.images[-QUICK_CHOSEN_ON:].to(flow.mean.device)
    quick = quickest(vae, classifier, flow, held_out, judge=judge)
    vae, flow = vae.cpu(), flow.cpu()
    classifier, judge = classifier.to("cpu"), judge.to("cpu")
    z, p = embed(train_set.images[:SCALED_ON], vae, classifier)
    flow.calibrate(z, p, per_class=500)
    tried = calibrate(vae, classifier, flow, train_set.images[-CHOSEN_ON:], judge=judge)
    bundle = Bundle.make(
        vae,
        flow,
        classifier,
        digits.images[:2000],
        classes=digits.classes,
        plan=OURS_R,
        judge="a small convolutional network for MNIST",
        ladder=tried.ladder,
        quick=quick,
    )
    bundle.save(folder / "bundle", overwrite=True, half=True)
    networks = {"network": parts.network, "judge": parts.judge}
    write_parts(networks, folder / "networks.safetensors", half=True)
    pixels = {"images": (255 * images).round().byte(), "labels": digits.labels[chosen]}
    write_safetensors(pixels, folder / "digits.safetensors", {"format": FORMAT})


def load(folder: Path | None = None) -> Shipped:
    """Returns what the package ships, or what :func:`ship` wrote to a folder.

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
    networks: dict[str, nn.Module] = {"network": small_classifier(), "judge": judge_network()}
    read_parts(networks, folder / "networks.safetensors")
    path = folder / "digits.safetensors"
    _, pixels = read_safetensors(path, FORMAT, "Install the package again.")
    digits = Dataset(pixels["images"] / 255, pixels["labels"], tuple("0123456789"))
    classifier, judge = (from_logits(network) for network in networks.values())
    return Shipped(Bundle.load(folder / "bundle"), classifier, judge, digits)
