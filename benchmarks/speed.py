"""How much faster than the published procedure, on the same networks and digits, in one run?

The published procedure integrates with dopri5 at 1e-4, walks every image through every leap, in
batches of 512, and asks the classifier after each. Ours takes fixed steps, asks only what can
matter, and walks the plan that was calibrated for the bundle. Quality stands beside the time: the
share that reach the target, the share that an independent judge agrees with, and the L1 distance.

    python benchmarks/speed.py [number of digits] [device]
"""

import sys
import time

import torch

import leapfactual as lf
from leapfactual.studies.morpho_mnist.shipping import load

BATCH, BLENDING, INJECTION, GAMMA = 512, 15, 5, 0.1
ROUNDS = 40
FEW = (lf.blend(6, 0.3), lf.inject(2, lift=0.0, land=0.1))


@torch.no_grad()
def published(shipped, flow, x, target):
    """Walks as the authors' code does, and returns counterfactuals and field evaluations."""
    vae, ask, found, calls = shipped.bundle.generator, shipped.classifier, [], []
    handle = flow.field.register_forward_hook(lambda *_: calls.append(None))
    for part, y in zip(x.split(BATCH), target.split(BATCH), strict=True):
        z, goal = vae.encode(part), flow.one_hot(y)
        for _ in range(BLENDING):
            z = flow.land(flow.lift(z, ask(vae.decode(z)), GAMMA), goal, GAMMA)
        for _ in range(INJECTION):
            z = flow.land(z, goal, GAMMA)
            ask(vae.decode(z))
        found.append(vae.decode(z))
    handle.remove()
    return torch.cat(found), len(calls) / len(x.split(BATCH))


def timed(function, device):
    """Returns what a function gives and the seconds that it takes, after a first go."""
    function()
    if device == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    result = function()
    if device == "cuda":
        torch.cuda.synchronize()
    return result, time.perf_counter() - started


def main() -> None:
    """Runs both, prints times, quality and their ratio, and the latency of one digit."""
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    device = sys.argv[2] if len(sys.argv) > 2 else "cpu"
    shipped = load()
    shipped.bundle.to(device)
    for classifier in (shipped.classifier, shipped.judge):
        for cell in classifier.__closure__ or ():
            if isinstance(cell.cell_contents, torch.nn.Module):
                cell.cell_contents.to(device)
    x = shipped.digits.images.repeat(-(-n // 200), 1, 1, 1)[:n].to(device)
    target = torch.randint(10, (n,), generator=torch.Generator().manual_seed(0)).to(device)
    vae, flow = shipped.bundle.generator, shipped.bundle.flow
    with torch.no_grad():
        back = vae.decode(vae.encode(x))
    crossed = shipped.classifier(back).argmax(1) != target

    def quality(found):
        with torch.no_grad():
            valid = (shipped.classifier(found).argmax(1) == target)[crossed].double().mean()
            judge = (shipped.judge(found).argmax(1) == target)[crossed].double().mean()
        change = (found - back)[crossed].abs().mean()
        return f"validity {valid:.4f}, oracle {judge:.4f}, L1 {change:.4f}"

    slow = flow.with_solver(lf.Dopri5(1e-4, 1e-4))
    (found, evaluations), before = timed(lambda: published(shipped, slow, x, target), device)
    print(f"published: {1000 * before / n:.3f} ms a digit, {quality(found)}, ", end="")
    print(f"{evaluations:.0f} evaluations of the field")
    for name, plan, solver in (
        ("same plan, Midpoint(2)", None, lf.Midpoint(2)),
        ("calibrated plan, Midpoint(2)", shipped.bundle.rung(1.0).plan, lf.Midpoint(2)),
        ("few large leaps, Midpoint(2)", FEW, lf.Midpoint(2)),
    ):
        plan = plan or [lf.blend(BLENDING, GAMMA), lf.inject(INJECTION, lift=0.0, land=GAMMA)]
        explainer = lf.LeapFactual(
            vae, shipped.classifier, flow.with_solver(solver), plan, batch_size=n
        )
        e, seconds = timed(lambda explainer=explainer: explainer.explain(x, target), device)
        print(
            f"{name}: {1000 * seconds / n:.3f} ms a digit, {quality(e.counterfactual)}, ", end=""
        )
        cost = f"{e.evaluations.float().mean():.0f} evaluations, {e.questions.float().mean():.0f}"
        print(f"{cost} questions: {before / seconds:.1f} × faster")
    one = lf.LeapFactual(vae, shipped.classifier, flow, [lf.blend(15, 0.2)])
    times = []
    for row in range(ROUNDS):
        started = time.perf_counter()
        one.explain(x[row : row + 1], target[row : row + 1])
        times.append(1000 * (time.perf_counter() - started))
    middle, late = sorted(times)[ROUNDS // 2], sorted(times)[int(0.95 * ROUNDS)]
    print(f"one digit, 15 leaps: p50 {middle:.1f} ms, p95 {late:.1f} ms")


if __name__ == "__main__":
    main()
