r"""What each setting does, and whether lifting removes the class and nothing else.

**Effects.** One setting of the paper's plan is changed at a time. All walks here take four
midpoint steps per transport, which gives the adaptive solver's numbers in a fraction of its time.

**Probes.** The theorem behind the method says that a lifted latent :math:`z_0` is independent of
the class, and that landing with the same class brings back all of :math:`z_1`. So a probe should
fail to read the class from :math:`z_0`, and read from it, given the class, what it can read from
:math:`z_1`: here the shapes of strokes. Their scores are shares of the variance *within* classes,
so that knowing the class alone scores 0.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leapfactual.classifiers import from_logits
from leapfactual.explainer import LeapFactual
from leapfactual.explanation import Explanation
from leapfactual.flow import Flow
from leapfactual.leaps import Stage, blend, inject, tighten
from leapfactual.metrics import METRICS, diversity, morphometrics, oracle_validity
from leapfactual.metrics.morphology import NAMES
from leapfactual.pretrained import PLAN
from leapfactual.solvers import RK4, Dopri5, Euler, Midpoint, Solver

from .comparison import PAPER_PLAN, PAPER_RELIABLE_PLAN, l1
from .training import Parts

MEASURED = ("ACC", "L1", "queries", "nfe")
STEPS = Midpoint(4)


def measure_effects(parts: Parts, x: Tensor, target: Tensor) -> dict[str, float]:
    """Returns the numbers of one seed, by ``effect | setting | metric``."""
    numbers: dict[str, float] = {}
    classifier, oracle = from_logits(parts.network), oracle_validity(from_logits(parts.oracle))

    def walk(effect: str, value: str, flow: Flow, plan: tuple[Stage, ...]) -> Explanation:
        found = LeapFactual(parts.vae, classifier, flow, plan, batch_size=len(x)).explain(
            x, target
        )
        for metric in (*(METRICS[name] for name in MEASURED), oracle):
            numbers[f"effect of {effect} | {value} | {metric.name}"] = metric.mean(found)
        return found

    flow, hard, transported = (
        f.with_solver(STEPS) for f in (parts.flow, parts.hard_flow, parts.ot_flow)
    )
    for n in (5, 10, 15, 20, 30):
        walk("N_b", f"{n}", flow, (blend(n, 0.1),))
    several = [
        walk("gamma_b", f"{gamma:g}", flow, (blend(15, gamma),))
        for gamma in (0.025, 0.05, 0.1, 0.2, 0.4)
    ]
    numbers["effect of gamma_b | all | diversity"] = diversity(several, l1).mean().item()
    for n in (0, 1, 2, 3, 5, 8):
        walk("N_i", f"{n}", flow, (*PAPER_PLAN, inject(n, lift=0.0, land=0.1)))
    for name, plan in (("blending", PAPER_PLAN), ("with injection", PAPER_RELIABLE_PLAN)):
        walk("conditions", f"soft, {name}", flow, plan)
        walk("conditions", f"hard, {name}", hard, plan)
    for gamma in (0.1, 0.2, 0.4):
        walk("coupling", f"independent, gamma_b {gamma:g}", hard, (blend(15, gamma),))
        walk("coupling", f"optimal transport, gamma_b {gamma:g}", transported, (blend(15, gamma),))
    solvers: tuple[Solver, ...] = (
        Euler(4),
        *(Midpoint(n) for n in (1, 2, 4, 8)),
        Dopri5(1e-4, 1e-4),
    )
    for solver in solvers:
        walk("solver", f"{solver}", parts.flow.with_solver(solver), PAPER_RELIABLE_PLAN)
    for n in (0, 2, 4, 6, 8):
        stages: tuple[Stage, ...] = (tighten(n),) if n else ()
        walk("tightening", f"{n}", parts.our_flow, (*PLAN[:1], *stages))
    return numbers


def measure_probes(parts: Parts, x: Tensor, workers: int) -> dict[str, float]:
    """Returns the probes' scores of one seed, by ``probe | latents | metric``."""
    with torch.no_grad():
        z1 = parts.vae.encode(x)
        images = parts.vae.decode(z1)
        p = from_logits(parts.network)(images)
        lifted = {
            name: flow.with_solver(RK4(20)).lift(z1, flow.condition(p))
            for name, flow in (("paper's flow", parts.flow), ("our flow", parts.our_flow))
        }
    labels, classes = p.argmax(1), F.one_hot(p.argmax(1), 10).float()
    measured = morphometrics(images, workers)
    shapes = torch.stack([measured[name] for name in NAMES], 1).to(z1)
    whole = shapes.isfinite().all(1)
    numbers = {}
    for name, z in (("z1", z1), *((f"z0, {name}", z0) for name, z0 in lifted.items())):
        numbers[f"probe | {name} | class accuracy"] = class_accuracy(z, labels)
        shares = explained_variance(z[whole], classes[whole], shapes[whole])
        for measure, share in zip(NAMES, shares, strict=True):
            numbers[f"probe | {name} | variance of {measure}"] = share
    return numbers


def class_accuracy(z: Tensor, labels: Tensor) -> float:
    """Returns the accuracy, on one half, of a probe that was trained on the other."""
    half = len(z) // 2
    logits = _probe(z, half, 10, lambda out: F.cross_entropy(out, labels[:half]))
    return (logits[half:].argmax(1) == labels[half:]).double().mean().item()


def explained_variance(z: Tensor, classes: Tensor, shapes: Tensor) -> list[float]:
    """Returns the shares of the variance within classes that a probe explains from latents."""
    half = len(z) // 2
    counts = classes[:half].sum(0).clamp_min(1)[:, None]
    residual = shapes - classes @ (classes[:half].T @ shapes[:half] / counts)
    residual = residual / residual[:half].std(0)
    given = torch.cat([z, classes], 1)
    outputs = _probe(given, half, shapes.shape[1], lambda out: F.mse_loss(out, residual[:half]))
    error = (outputs[half:] - residual[half:]).square().mean(0)
    shares: list[float] = (1 - error / residual[half:].square().mean(0)).tolist()
    return shares


@torch.enable_grad()
def _probe(z: Tensor, half: int, outputs: int, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """Trains a small network on one half, all at once, and returns its outputs for both."""
    z = (z - z[:half].mean(0)) / z[:half].std(0).clamp_min(1e-6)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Linear(z.shape[1], 128),
            nn.SiLU(),
            nn.Linear(128, 128),
            nn.SiLU(),
            nn.Linear(128, outputs),
        ).to(z.device)
    adam = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=0.1)
    for _ in range(300):
        adam.zero_grad(set_to_none=True)
        loss(network(z[:half])).backward()  # type: ignore[no-untyped-call]
        adam.step()
    with torch.no_grad():
        out: Tensor = network(z)
    return out
