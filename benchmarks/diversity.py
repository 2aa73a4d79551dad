"""What does the noise level of alternatives do to validity, distance and diversity?

Finds four counterfactuals of each of the 200 digits that the package ships, to a class drawn for
each, with several noise levels, and prints their validity, distance and diversity. Beside them
stand alternatives in which noise is added to the latents themselves, and those that would be kept
without choosing.
"""

import torch
from torch import Tensor

import leapfactual as lf
from leapfactual.alternatives import Alternatives, diverse
from leapfactual.explanation import Explanation
from leapfactual.jobs.job import typicality
from leapfactual.metrics import METRICS, diversity
from leapfactual.pretrained import Pretrained, load

N, NOISE_LEVELS = 4, (0.1, 0.3, 0.5, 0.7, 1.0)
COLUMNS = ("valid", "L1", "apart", "oracle agrees", "typical")


@torch.no_grad()
def measure(shipped: Pretrained, e: Explanation, apart: Tensor) -> list[float]:
    """Returns the numbers of a line of the table."""
    bundle, moved = shipped.bundle, e.source != e.target
    agrees = shipped.oracle(e.counterfactual).argmax(1) == e.target
    typical = typicality(bundle.generator, bundle.flow, e.counterfactual, e.target)
    values = e.valid, METRICS["L1"].function(e), agrees, typical
    valid, l1, agreed, percent = (value[moved].double().mean().item() for value in values)
    return [valid, l1, apart.mean().item(), agreed, percent]


@torch.no_grad()
def explain_noisy(
    explainer: lf.LeapFactual, x: Tensor, target: Tensor, noise: float
) -> Alternatives:
    """Explains from latents with noise on them; the first of each are kept."""
    usual, flow = explainer.explain(x, target), explainer.flow
    eta = torch.randn(N - 1, flow.features, generator=torch.Generator().manual_seed(0))
    parts = [usual]
    for line in eta:
        found = explainer.explain(x, target, z=usual.z + noise * flow.scale * line)
        parts.append(found)
    rows = torch.arange(N * len(x)).view(N, -1).T.flatten()
    joined = Explanation.cat(parts)[rows]
    reconstruction = usual.reconstruction.repeat_interleave(N, 0)
    e = Explanation(**{**vars(joined), "reconstruction": reconstruction})
    return Alternatives(e, N, joined.valid.view(-1, N).sum(1), diversity(parts))


def main() -> None:
    """Measures and prints."""
    shipped = load()
    x = shipped.digits.images
    rng = torch.Generator().manual_seed(0)
    target = (shipped.digits.labels + torch.randint(1, 10, (len(x),), generator=rng)) % 10
    explainer = shipped.bundle.explainer(shipped.classifier, plan=[lf.blend(15, 0.2)])
    usual = explainer.explain(x, target)
    lines = {"the usual one": measure(shipped, usual, torch.zeros(1))}
    for noise in NOISE_LEVELS:
        found = diverse(explainer, x, target, N, noise=noise)
        lines[f"noise level {noise}"] = measure(shipped, found.explanation, found.apart)
    for candidates, near in ((N, 0.5), (4 * N, 0.0), (4 * N, 1.0), (8 * N, 0.5)):
        found = diverse(explainer, x, target, N, candidates=candidates, near=near)
        name = f"noise level 0.5, {candidates} candidates, near {near}"
        lines[name] = measure(shipped, found.explanation, found.apart)
    for noise in (0.3, 0.5):
        found = explain_noisy(explainer, x, target, noise)
        name = f"noise {noise} on latents, {N} candidates"
        lines[name] = measure(shipped, found.explanation, found.apart)
    print(f"| | {' | '.join(COLUMNS)} |\n|---|{'---|' * len(COLUMNS)}")
    for name, (valid, l1, apart, agreed, percent) in lines.items():
        print(f"| {name} | {valid:.3f} | {l1:.4f} | {apart:.4f} | {agreed:.3f} | {percent:.0f} |")


if __name__ == "__main__":
    main()
