"""What the study trains: the explained classifier, the oracle, generators and flows."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leapfactual._engine.cuda_graphs import CapturedStep, make_adam, set_learning_rate
from leapfactual.classifiers import from_logits
from leapfactual.fields import MLPField
from leapfactual.files import read_modules, write_modules
from leapfactual.flow import Flow
from leapfactual.generators import VAE
from leapfactual.pretrained import oracle_network, small_classifier
from leapfactual.solvers import Dopri5, Midpoint
from leapfactual.training import embed, fit, fit_generator
from leapfactual.training.loop import learning_rate_at


@dataclass(frozen=True)
class Settings:
    """How long to train. Defaults to the paper's values, for the parts that it has."""

    classifier_epochs: int = 10
    vae_epochs: int = 100
    flow_epochs: int = 30
    oracle_epochs: int = 12
    our_flow_epochs: int = 60
    opt_steps: int = 1000
    train_digits: int | None = None
    test_digits: int | None = None
    effect_digits: int = 1000
    runs: int = 5
    seed: int = 0


SMOKE = Settings(
    classifier_epochs=5,
    vae_epochs=20,
    oracle_epochs=2,
    our_flow_epochs=40,
    opt_steps=200,
    train_digits=10_000,
    test_digits=500,
    effect_digits=100,
    runs=1,
)


def random_affine(x: Tensor, rng: torch.Generator) -> Tensor:
    """Rotates, scales, shears and shifts digits a little, at random."""
    n = len(x)

    def draw(limit: float) -> Tensor:
        return limit * (2 * torch.rand(n, generator=rng, device=x.device) - 1)

    angle, shear, scale = draw(0.26), draw(0.2), 1 + draw(0.15)
    cos, sin = angle.cos() / scale, angle.sin() / scale
    rows = [
        torch.stack([cos, sin + shear, draw(0.15)], 1),
        torch.stack([-sin, cos, draw(0.15)], 1),
    ]
    grid = F.affine_grid(torch.stack(rows, 1), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, align_corners=False)


def train_classifier(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    epochs: int,
    learning_rate: float,
    seed: int,
    schedule: str = "constant",
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None,
) -> None:
    """Trains a network on labelled images, in place."""
    adam = make_adam(torch.optim.Adam, list(network.parameters()), learning_rate)
    rng = torch.Generator(x.device).manual_seed(seed)

    def step(x: Tensor, y: Tensor) -> Tensor:
        adam.zero_grad(set_to_none=True)
        loss = F.cross_entropy(network(x if augment is None else augment(x, rng)), y)
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        return loss.detach()

    take, steps = CapturedStep(step, rng), -(-len(x) // 256)
    network.train()
    for epoch in range(epochs):
        order = torch.randperm(len(x), generator=rng, device=x.device)
        for n, rows in enumerate(torch.split(order, 256), epoch * steps):
            set_learning_rate(adam, learning_rate_at(schedule, learning_rate, n, epochs * steps))
            take(x[rows], y[rows])
    network.eval().requires_grad_(False)


@dataclass(frozen=True, eq=False)
class Parts:
    """The networks of one seed.

    Arguments:
        network: The classifier to explain.
        oracle: The independent oracle.
        vae: The generator.
        cvae: The conditional generator of the CGM-based rival.
        flow: The paper's flow.
        our_flow: Ours.
        hard_flow: The paper's, trained with hard conditions.
        ot_flow: The same with the optimal-transport coupling.
    """

    network: nn.Module
    oracle: nn.Module
    vae: VAE
    cvae: VAE
    flow: Flow
    our_flow: Flow
    hard_flow: Flow
    ot_flow: Flow

    def modules(self) -> dict[str, nn.Module]:
        """Returns them by name."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def untrained() -> Parts:
    """Returns the parts with random weights."""

    def flow(soft: bool) -> Flow:
        return Flow(MLPField(32, 10, activation="selu"), Dopri5(1e-4, 1e-4), soft=soft)

    return Parts(
        network=small_classifier(),
        oracle=oracle_network(),
        vae=VAE((1, 28, 28), kernel=5),
        cvae=VAE((1, 28, 28), classes=10, kernel=5),
        flow=flow(soft=True),
        our_flow=Flow(MLPField(32, 10, width=256, depth=4), Midpoint(2), soft=True),
        hard_flow=flow(soft=False),
        ot_flow=flow(soft=False),
    )


def train(
    seed: int,
    x: Tensor,
    y: Tensor,
    settings: Settings,
    path: Path,
    progress: Callable[[str], None],
) -> Parts:
    """Trains all parts on the device of the digits, and keeps each in a file when it is done.

    Parts that the file holds already are taken from there.
    """
    torch.manual_seed(seed)
    parts = untrained()
    modules = parts.modules()
    done = read_modules(modules, path) if path.exists() else []
    for module in modules.values():
        module.to(x.device)
    classifier = from_logits(parts.network)

    def flow_on_latents(flow: Flow, **options: Any) -> None:  # noqa: ANN401 - passed on
        z, p = embed(x, parts.vae, classifier, batch_size=4096)
        fit(flow, z, p, seed=seed, **options)

    def conditional() -> None:
        _, p = embed(x, parts.vae, classifier, batch_size=4096)
        fit_generator(parts.cvae, x, p, epochs=settings.vae_epochs, seed=seed)

    todo: dict[str, Callable[[], object]] = {
        "network": lambda: train_classifier(
            parts.network,
            x,
            y,
            epochs=settings.classifier_epochs,
            learning_rate=1e-2,
            seed=seed,
            schedule="cosine",
        ),
        "oracle": lambda: train_classifier(
            parts.oracle,
            x,
            y,
            epochs=settings.oracle_epochs,
            learning_rate=2e-3,
            seed=seed + 1000,
            schedule="cosine",
            augment=random_affine,
        ),
        "vae": lambda: fit_generator(parts.vae, x, epochs=settings.vae_epochs, seed=seed),
        "cvae": conditional,
        "flow": lambda: flow_on_latents(parts.flow, epochs=settings.flow_epochs),
        "our_flow": lambda: flow_on_latents(
            parts.our_flow,
            epochs=settings.our_flow_epochs,
            learning_rate=2e-3,
            schedule="cosine",
            ema=0.999,
        ),
        "hard_flow": lambda: flow_on_latents(parts.hard_flow, epochs=settings.flow_epochs),
        "ot_flow": lambda: flow_on_latents(
            parts.ot_flow, epochs=settings.flow_epochs, coupling="optimal_transport"
        ),
    }
    for name, work in todo.items():
        if name not in done:
            work()
            modules[name].eval().requires_grad_(False)
            done.append(name)
            write_modules({name: modules[name] for name in done}, path)
        progress(name.replace("_", " "))
    return parts
