"""The published procedure against ours, on the same networks and digits."""

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from leapfactual.bundle import Bundle
from leapfactual.explainer import LeapFactual
from leapfactual.extras import require
from leapfactual.generators import VAE
from leapfactual.jobs.pairs import random_targets
from leapfactual.leaps import Stage, blend, inject
from leapfactual.pretrained import Pretrained
from leapfactual.report.tables import Row, row
from leapfactual.solvers import Midpoint, Solver

from .clock import peak, seconds

BATCH, BLENDING, INJECTION, GAMMA = 512, 15, 5, 0.1
TOLERANCE = 1e-4
PUBLISHED = (blend(BLENDING, GAMMA), inject(INJECTION, lift=0.0, land=GAMMA))
LATENCY_DIGITS = 200
SIZES = (1, 10, 100, 1000, 10_000)
FRESH = """
import time
started = time.perf_counter()
from leapfactual.pretrained import load
shipped = load()
bundle, classifier = shipped.bundle.to("{device}"), shipped.classifier.to("{device}")
explainer = bundle.explainer(classifier, plan=bundle.fast.plan, solver=bundle.fast.solver)
explainer.explain(shipped.digits.images[:1].to("{device}"), 3).counterfactual.cpu()
print(time.perf_counter() - started)
"""


@dataclass(frozen=True, eq=False)
class Work:
    """The digits to explain, and the networks to explain them with.

    Arguments:
        shipped: The bundle, the classifier and the oracle, on some device.
        x: Digits.
        target: A class for each, never the one it has.
        reconstruction: Their reconstructions.
    """

    shipped: Pretrained
    x: Tensor
    target: Tensor
    reconstruction: Tensor

    @classmethod
    @torch.no_grad()
    def make(cls, shipped: Pretrained, x: Tensor, seed: int) -> "Work":
        """Draws the targets."""
        vae = shipped.bundle.generator
        parts = [vae.decode(vae.encode(part)) for part in torch.split(x, BATCH)]
        reconstruction = torch.cat(parts)
        source = _labels(shipped.classifier, reconstruction)
        return cls(shipped, x, random_targets(source, 10, seed), reconstruction)

    @property
    def device(self) -> str:
        """Where it all is."""
        return str(self.x.device.type)

    @property
    def bundle(self) -> Bundle:
        """The bundle."""
        return self.shipped.bundle

    def explainer(
        self,
        plan: Sequence[Stage] | None = None,
        solver: Solver | None = None,
        batch_size: int | None = None,
    ) -> LeapFactual:
        """Returns an explainer. The plan defaults to the bundle's fast plan."""
        fast = self.bundle.fast
        assert fast is not None
        flow = self.bundle.flow.with_solver(solver or fast.solver or Midpoint(2))
        networks = self.bundle.generator, self.shipped.classifier
        return LeapFactual(*networks, flow, plan or fast.plan, batch_size=batch_size)

    def quality(self, counterfactual: Tensor) -> dict[str, float]:
        """Returns validity, the oracle's agreement, and the distance to the reconstruction."""
        oracle, classifier = self.shipped.oracle, self.shipped.classifier
        return {
            "validity": (_labels(classifier, counterfactual) == self.target)
            .double()
            .mean()
            .item(),
            "oracle": (_labels(oracle, counterfactual) == self.target).double().mean().item(),
            "L1": (counterfactual - self.reconstruction).abs().double().mean().item(),
        }


@torch.no_grad()
def explain_as_published(work: Work, count: Callable[[], object] = lambda: None) -> Tensor:
    """Returns counterfactuals as the authors' code makes them.

    Dopri5 at 1e-4, soft conditions; every image takes every leap, in batches of 512. The networks
    are called directly, without any of our checks.

    This is the loop of :func:`leapfactual.reference.explain`, written out again because it is
    timed: the reference goes through :class:`~leapfactual.Flow`, whose checks the authors' code
    does not have, and makes one query more: 21 instead of 20, since the authors do not
    query between the two stages.

    Arguments:
        work: What to explain.
        count: Called with every evaluation of the field.
    """
    odeint = require(
        "torchdiffeq", extra="adaptive", subject="the published procedure needs"
    ).odeint
    vae, flow, network = work.bundle.generator, work.bundle.flow, work.shipped.classifier.network
    assert isinstance(vae, VAE)

    def query(z: Tensor) -> Tensor:
        p: Tensor = network(vae.decoder(z)).softmax(1)
        return p

    def transport(z: Tensor, c: Tensor, start: float, end: float) -> Tensor:
        def v(t: Tensor, u: Tensor) -> Tensor:
            count()
            velocity: Tensor = GAMMA * flow.field(t, u, c)
            return velocity

        u = (z - flow.mean) / flow.scale
        times = u.new_tensor([start, end])
        path: Tensor = odeint(v, u, times, rtol=TOLERANCE, atol=TOLERANCE, method="dopri5")
        return path[-1] * flow.scale + flow.mean

    counterfactuals = []
    for x, y in zip(torch.split(work.x, BATCH), torch.split(work.target, BATCH), strict=True):
        z, goal = vae.encode(x), flow.one_hot(y)
        for _ in range(BLENDING):
            z = transport(transport(z, query(z), 1.0, 0.0), goal, 0.0, 1.0)
        for _ in range(INJECTION):
            z = transport(z, goal, 0.0, 1.0)
            query(z)
        counterfactuals.append(vae.decoder(z))
    return torch.cat(counterfactuals)


def compare(work: Work, sizes: Mapping[str, int]) -> list[Row]:
    """Returns time and quality of the published procedure and of ours, for sizes of batches."""
    nfe: list[None] = []
    reference = explain_as_published(work, lambda: nfe.append(None))
    before: list[float] = []
    most = peak(
        lambda: before.extend(
            seconds(lambda: explain_as_published(work), work.device, warm=0, times=1)
        ),
        work.device,
    )
    per_batch = len(nfe) / -(-len(work.x) // BATCH)
    values = {
        "microseconds": [1e6 * s / len(work.x) for s in before],
        "nfe": [per_batch],
        "queries": [float(BLENDING + INJECTION)],
        **{key: [value] for key, value in work.quality(reference).items()},
        "MiB, peak": [most],
    }
    rows = []
    for setting, size in sizes.items():
        rows += [row(setting, "published", metric, v) for metric, v in values.items()]
        rows += _ours(work, setting, "same plan", PUBLISHED, Midpoint(2), size, before)
        rows += _ours(work, setting, "fast plan", None, None, size, before)
    return rows


def _ours(
    work: Work,
    setting: str,
    method: str,
    plan: Sequence[Stage] | None,
    solver: Solver | None,
    size: int,
    before: Sequence[float],
) -> list[Row]:
    explainer = work.explainer(plan, solver, size)
    took = seconds(lambda: explainer.explain(work.x, work.target), work.device)
    explanation = explainer.explain(work.x, work.target)
    values = {
        "microseconds": [1e6 * s / len(work.x) for s in took],
        "speedup": [before[0] / s for s in took],
        "nfe": [explanation.nfe.double().mean().item()],
        "queries": [explanation.queries.double().mean().item()],
        **{key: [value] for key, value in work.quality(explanation.counterfactual).items()},
        "MiB, peak": [peak(lambda: explainer.explain(work.x, work.target), work.device)],
    }
    return [row(setting, method, metric, v) for metric, v in values.items()]


def one_digit(work: Work, setting: str) -> list[Row]:
    """Returns the latency of a single digit, warm, and of the first one in a fresh process."""
    explainer = work.explainer()
    rows = torch.arange(LATENCY_DIGITS) % len(work.x)
    for k in rows[:3].tolist():
        explainer.explain(work.x[k : k + 1], work.target[k : k + 1])
    took = sorted(
        1000
        * seconds(
            lambda k=k: explainer.explain(work.x[k : k + 1], work.target[k : k + 1]),  # type: ignore[misc]
            work.device,
            warm=0,
            times=1,
        )[0]
        for k in rows.tolist()
    )
    code = FRESH.format(device=work.device)
    fresh = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    return [
        row(setting, "fast plan", "milliseconds, p50", [median(took)]),
        row(setting, "fast plan", "milliseconds, p95", [took[int(0.95 * len(took))]]),
        row(setting, "fast plan", "seconds, fresh process", [float(fresh)]),
    ]


def batches(work: Work, setting: str) -> list[Row]:
    """Returns how many counterfactuals a second there are, for batches of several sizes."""
    rows = []
    for size in SIZES:
        if size <= len(work.x):
            explainer = work.explainer(batch_size=size)
            x, y = work.x[:size], work.target[:size]
            took = seconds(lambda: explainer.explain(x, y), work.device, times=10)  # noqa: B023
            rows.append(row(setting, "fast plan", f"per second, {size}", [size / median(took)]))
    return rows


@torch.no_grad()
def _labels(classifier: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return torch.cat([classifier(part).argmax(1) for part in torch.split(x, BATCH)])
