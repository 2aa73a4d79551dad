"""What the package ships out of this study: a bundle, two networks and 200 test digits.

``python -m studies morpho-mnist`` writes them to its folder ``shipped``; the ones in the package
are those of the published run's first seed. Weights are in half precision, which moves no answer.
"""

from pathlib import Path

import torch

from leapfactual.bundle import Bundle
from leapfactual.classifiers import from_logits
from leapfactual.data import Dataset
from leapfactual.files import write_modules, write_safetensors
from leapfactual.jobs.plans import HeldOut, search_fast_plan, search_plans
from leapfactual.pretrained import FORMAT, RELIABLE_PLAN
from leapfactual.training import embed

from .parts import Parts

PER_CLASS = 20
SCALED_ON = 10_000
CHOSEN_ON = 256
FAST_CHOSEN_ON = 10_000


def ship(parts: Parts, train_set: Dataset, digits: Dataset, folder: Path) -> None:
    """Writes what the package is to ship, from the parts of one seed.

    The front of plans is chosen on training digits, so that no test digit has a say.
    """
    chosen = torch.cat([(digits.labels == n).nonzero()[:PER_CLASS, 0] for n in range(10)])
    chosen = chosen.sort().values
    images = digits.images[chosen]
    vae, flow = parts.vae, parts.our_flow
    classifier, oracle = from_logits(parts.network), from_logits(parts.oracle)
    held_out = train_set.images[-FAST_CHOSEN_ON:].to(flow.mean.device)
    fast = search_fast_plan(HeldOut(vae, classifier, flow, held_out, oracle=oracle))
    vae, flow = vae.cpu(), flow.cpu()
    classifier, oracle = classifier.to("cpu"), oracle.to("cpu")
    z, p = embed(train_set.images[:SCALED_ON], vae, classifier)
    flow.fit_typicality(z, p, per_class=500)
    few = train_set.images[-CHOSEN_ON:]
    tried = search_plans(HeldOut(vae, classifier, flow, few, oracle=oracle))
    bundle = Bundle.make(
        vae,
        flow,
        classifier,
        digits.images[:2000],
        classes=digits.classes,
        plan=RELIABLE_PLAN,
        classifier_name="a small convolutional network for MNIST",
        front=tried.front,
        fast=fast,
    )
    bundle.save(folder / "bundle", overwrite=True, half=True)
    networks = {"network": parts.network, "oracle": parts.oracle}
    write_modules(networks, folder / "networks.safetensors", half=True)
    pixels = {"images": (255 * images).round().byte(), "labels": digits.labels[chosen]}
    write_safetensors(pixels, folder / "digits.safetensors", {"format": FORMAT})
