"""How many queries does LeapFactual save?

Explains the same points with LeapFactual and with Algorithm 2 as printed, in which every image
takes every leap and is queried after each, and prints queries, field evaluations (NFE) and time of
both, as ratios, with the largest difference in latents.
"""

import time

import torch

import leapfactual as lf
from leapfactual import reference
from leapfactual.generators import Identity
from leapfactual.testing import GaussianOracle

ORACLE = GaussianOracle(torch.tensor([[-2.0, 0.0], [2.0, 0.0], [0.0, 2.5]]).double(), 0.6)
PLAN = [lf.blend(25, 0.1), lf.inject(5, lift=0.0, land=0.1)]


def main() -> None:
    """Measures and prints."""
    z, y = ORACLE.sample(1000)
    target, flow = (y + 1) % 3, ORACLE.flow()
    started = time.perf_counter()
    expected = reference.explain(Identity(), ORACLE.classifier, flow, z, target, PLAN)
    reference_seconds = time.perf_counter() - started
    explainer = lf.LeapFactual(Identity(), ORACLE.classifier, flow, PLAN, batch_size=3000)
    started = time.perf_counter()
    explanation = explainer.explain(z, target)
    seconds = time.perf_counter() - started

    leaps, n = sum(stage.n for stage in PLAN), len(z)
    nfe = n * sum(stage.n * flow.solver.nfe * (1 + (stage.lift > 0)) for stage in PLAN)
    queries, ours = n * (leaps + 1), int(explanation.queries.sum())
    print(f"queries {queries:>10} → {ours:>9}   {queries / ours:5.1f} × fewer")
    ours = int(explanation.nfe.sum())
    print(f"NFE     {nfe:>10} → {ours:>9}   {nfe / ours:5.1f} × fewer")
    faster = reference_seconds / seconds
    print(f"seconds {reference_seconds:>10.2f} → {seconds:>9.2f}   {faster:5.1f} × faster")
    gap = (explanation.counterfactual - expected).abs().max().item()
    valid = explanation.valid.double().mean()
    print(f"largest difference in latents: {gap:.1e}; valid: {valid:.3f}")


if __name__ == "__main__":
    main()
