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
from leapfactual.jobs.held_out import HeldOut
from leapfactual.jobs.plans import search_fast_plan, search_plans
from leapfactual.pretrained import FORMAT, RELIABLE_PLAN
from leapfactual.training import embed

from .training import Parts

DIGITS_PER_CLASS = 20
TYPICALITY_DIGITS = 10_000
# The front is searched with some hundred plans, the fast plan with few: it can afford more digits.
FRONT_DIGITS = 256
FAST_PLAN_DIGITS = 10_000


def ship(parts: Parts, train_set: Dataset, digits: Dataset, folder: Path) -> None:
    """Writes what the package is to ship, from the parts of one seed.

    The front of plans is chosen on training digits, so that no test digit has a say.
    """
    chosen = torch.cat([(digits.labels == n).nonzero()[:DIGITS_PER_CLASS, 0] for n in range(10)])
    chosen = chosen.sort().values
    images = digits.images[chosen]
    vae, flow = parts.vae, parts.our_flow
    classifier, oracle = from_logits(parts.network), from_logits(parts.oracle)
    held_out = train_set.images[-FAST_PLAN_DIGITS:].to(flow.mean.device)
    fast = search_fast_plan(HeldOut(vae, classifier, flow, held_out, oracle=oracle))
    vae, flow = vae.cpu(), flow.cpu()
    classifier, oracle = classifier.to("cpu"), oracle.to("cpu")
    z, p = embed(train_set.images[:TYPICALITY_DIGITS], vae, classifier)
    flow.fit_typicality(z, p, per_class=500)
    few = train_set.images[-FRONT_DIGITS:]
    search = search_plans(HeldOut(vae, classifier, flow, few, oracle=oracle))
    bundle = Bundle.make(
        vae,
        flow,
        classifier,
        digits.images[:2000],
        classes=digits.classes,
        plan=RELIABLE_PLAN,
        classifier_name="a small convolutional network for MNIST",
        front=search.front,
        fast=fast,
    )
    bundle.save(folder / "bundle", overwrite=True, half=True)
    networks = {"network": parts.network, "oracle": parts.oracle}
    write_modules(networks, folder / "networks.safetensors", half=True)
    pixels = {"images": (255 * images).round().byte(), "labels": digits.labels[chosen]}
    write_safetensors(pixels, folder / "digits.safetensors", {"format": FORMAT})
