"""How straight are the paths of the two couplings?

Trains one flow with each coupling on the same Gaussian classes and prints the length of the
lifting paths over the straight distance between their ends (1 is straight), and how far each
flow's leaps are from the exact ones.
"""

import torch

import leapfactual as lf
from leapfactual.testing import GaussianOracle

ORACLE = GaussianOracle(torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 1.5]]), 0.7)
TIMES = [1 - n / 50 for n in range(51)]


@torch.no_grad()
def measure(flow: lf.Flow) -> tuple[float, float]:
    """Returns path length over distance, and the relative error of full replacement."""
    z, y = ORACLE.sample(1000, seed=2)
    target = (y + 1) % 3
    points = flow.trace(z, flow.one_hot(y), 1.0, TIMES)
    length = (points[1:] - points[:-1]).norm(dim=2).sum()
    moved = lf.leap(flow, z, flow.one_hot(y), flow.one_hot(target), lift=1, land=1)
    exact = ORACLE.leap(z, y, target, lift=1, land=1)
    error = (moved - exact).norm(dim=1).sum() / (exact - z).norm(dim=1).sum()
    return (length / (points[-1] - points[0]).norm(dim=1).sum()).item(), error.item()


def main() -> None:
    """Trains and prints."""
    z, y = ORACLE.sample(4000, seed=1)
    print(f"{'coupling':<20} {'path / distance':>16} {'replacement error':>18}")
    print(f"{'(exact velocity)':<20} {measure(ORACLE.flow())[0]:>16.4f} {0:>18.4f}")
    for coupling in ("independent", "optimal_transport"):
        torch.manual_seed(0)
        flow = lf.Flow(lf.MLPField(2, 3))
        settings = {"epochs": 60, "learning_rate": 3e-3, "schedule": "cosine", "ema": 0.99}
        lf.fit(flow, z, flow.one_hot(y), coupling=coupling, **settings)
        ratio, error = measure(flow)
        print(f"{coupling:<20} {ratio:>16.4f} {error:>18.4f}")


if __name__ == "__main__":
    main()
