"""The table of faces: the paper's setting and ours, batch by batch.

A thousand pictures of 1024 × 1024 do not fit anywhere, so every batch is explained, measured and
let go; what stays is a number per face and metric.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from leapfactual.demos.faces.identity import SAME
from leapfactual.demos.faces.portraits import expressive
from leapfactual.explainer import LeapFactual
from leapfactual.explanation import Explanation
from leapfactual.flow import Flow
from leapfactual.generators import GAN
from leapfactual.leaps import Stage
from leapfactual.masks import Change, inside
from leapfactual.metrics import METRICS, Metric, oracle_validity, perceptual
from leapfactual.metrics.standard import summarize
from leapfactual.types import Classifier

from ..truncated import BlendingWalk
from .sampling import LabeledFaces
from .training import Oracles

N_B = (5, 10, 15, 20)
GAMMA_B = 0.8
PAPER_INJECTION = (5, 0.8, 0.83)
PAPER_LEAPS = 10
PAIRS = "random pairs"
MASKED = "in a mask"


def metrics(oracles: Oracles, side: int) -> list[Metric]:
    """Returns what is measured of every face."""
    mask = expressive(side)

    def distance(e: Explanation) -> Tensor:
        return oracles.likeness(e.reconstruction, e.counterfactual).double()

    def expression(e: Explanation) -> Tensor:
        return inside(e.reconstruction, e.counterfactual, mask).double()

    return [
        *(METRICS[name] for name in ("ACC", "AUC", "SSIM", "PSNR")),
        *(perceptual(lpips, name=name) for name, lpips in oracles.lpips.items()),
        oracle_validity(oracles.opinion, "oracle"),
        Metric("identity distance", False, distance),
        Metric("same person", True, lambda e: (distance(e) < SAME).double()),
        Metric("change in eyes and mouth", True, expression),
        *(METRICS[name] for name in ("L1", "queries")),
    ]


@dataclass
class Measurements:
    """Gathers the values of every metric, and the mean change of every pixel.

    Arguments:
        metrics: What is measured.
    """

    metrics: Sequence[Metric]
    values: dict[str, list[Tensor]] = field(default_factory=dict)
    change: Change = field(default_factory=Change)

    def add(self, e: Explanation) -> None:
        """Takes in a batch."""
        for metric in self.metrics:
            value = metric.function(e).detach().double().cpu()
            self.values.setdefault(metric.name, []).append(value)
        self.change.add(e.reconstruction, e.counterfactual)

    def means(self, names: Sequence[str] | None = None) -> dict[str, float]:
        """Returns the mean of every metric, or of some."""
        chosen = [m for m in self.metrics if names is None or m.name in names]
        return {m.name: summarize(m, torch.cat(self.values[m.name])).mean for m in chosen}

    def first(self, count: int) -> "Measurements":
        """Returns the measurements of the first faces alone, without their changes."""
        kept = {name: [torch.cat(values)[:count]] for name, values in self.values.items()}
        return Measurements(self.metrics, kept)

    def of(self, name: str) -> Tensor:
        """Returns the values of one metric, a number per face."""
        return torch.cat(self.values[name])


@dataclass(frozen=True, eq=False)
class Setup:
    """The generator, the black box, a flow and the oracles.

    Arguments:
        gan: The generator.
        classifier: The black box.
        flow: The flow.
        oracles: The networks that assess counterfactuals.
        batch_size: How many faces to draw at a time.
    """

    gan: GAN
    classifier: Classifier
    flow: Flow
    oracles: Oracles
    batch_size: int = 8

    def measurements(self, without: Sequence[str] = ()) -> Measurements:
        """Returns empty measurements, of all metrics but some."""
        known = metrics(self.oracles, self.gan.shape[1])
        return Measurements([m for m in known if m.name not in without])

    def explainer(self, plan: Sequence[Stage], mask: Tensor | None = None) -> LeapFactual:
        """Returns an explainer with a plan, everywhere or in a mask."""
        return LeapFactual(
            self.gan,
            self.classifier,
            self.flow,
            plan,
            batch_size=self.batch_size,
            accelerate=False,
            mask=mask,
        )

    def batches(self, faces: LabeledFaces) -> list[tuple[Tensor, Tensor]]:
        """Returns latents and the class that each face does not have, batch by batch."""
        target = 1 - faces.p.argmax(1)
        parts = zip(
            torch.split(faces.w, self.batch_size),
            torch.split(target, self.batch_size),
            strict=True,
        )
        return list(parts)


@torch.no_grad()
def explain_as_paper(
    setup: Setup, faces: LabeledFaces, progress: Callable[[float], object]
) -> dict[str, Measurements]:
    """Explains faces with the paper's steps: blending cut short, reliable ones, random pairs.

    One walk stands for all, so its queries are not counted here.
    """
    names = [*(f"LeapFactual N_b = {n}" for n in N_B), "LeapFactual_R"]
    found = {name: setup.measurements(without=("queries",)) for name in names}
    found[PAIRS] = setup.measurements(without=("ACC", "AUC", "oracle", "queries"))
    batches = setup.batches(faces)
    others = torch.split(faces.w.roll(1, 0), setup.batch_size)
    for k, (w, target) in enumerate(batches):
        x = setup.gan.decode(w)
        blended = BlendingWalk(
            setup.gan, setup.classifier, setup.flow, x, target, max(N_B), GAMMA_B, z=w
        )
        for n in N_B:
            found[f"LeapFactual N_b = {n}"].add(blended.stop_after(n))
        way = blended.inject(PAPER_LEAPS, *PAPER_INJECTION)
        reliable = blended.stop_injections_after(way, PAPER_INJECTION[0])
        found["LeapFactual_R"].add(reliable)
        found[PAIRS].add(replace(reliable, counterfactual=setup.gan.decode(others[k])))
        progress((k + 1) / len(batches))
    return found


@torch.no_grad()
def explain_with_plans(
    setup: Setup,
    faces: LabeledFaces,
    plans: Mapping[str, Sequence[Stage]],
    progress: Callable[[float], object],
    mask: Tensor | None = None,
) -> dict[str, Measurements]:
    """Explains faces with plans of ours, everywhere or in a mask."""
    found = {name: setup.measurements() for name in plans}
    batches = setup.batches(faces)
    explainers = {name: setup.explainer(plan, mask) for name, plan in plans.items()}
    for k, (w, target) in enumerate(batches):
        x = setup.gan.decode(w)
        for name, explainer in explainers.items():
            found[name].add(explainer.explain(x, target, w))
        progress((k + 1) / len(batches))
    return found
