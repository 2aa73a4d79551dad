"""An oracle for choosing reliable plans, trained where none is given.

A reliable counterfactual is one that an oracle agrees with. Where there is none, a small network
of another make learns the classifier's own answers on the training images. It knows nothing that
the classifier does not know, but does not share its blind spots: what only fools the one does not
convince the other.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._engine.memory import in_halves
from ..classifiers import from_logits
from ..files import fingerprint
from ..training.loop import Batch, Epoch, Loop
from ..types import Classifier, no_op
from .budget import TIMED_STEPS, seconds_per_step
from .recipe import ORACLE_SHARE, Part, Run

WIDTHS = (32, 64, 128, 128)
BATCH_SIZE, MAX_STEPS = 64, 1500
# A network that learns the classifier's answers any worse is no oracle.
MIN_ORACLE_AGREEMENT = 0.8
# Photographs of one thing differ in brightness and contrast, which should not decide.
JITTER = 0.1


class OracleNetwork(nn.Module):
    """Creates a plain convolutional network: batch norms, strided convolutions, no shortcuts.

    Batch norms make some hundred steps enough, in which one with group norms learnt nothing.

    Arguments:
        channels: The number of channels of an image.
        classes: The number of classes K.

    Example:
        >>> OracleNetwork(3, 4)(torch.zeros(2, 3, 64, 64)).shape
        torch.Size([2, 4])
    """

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in zip((channels, *WIDTHS), WIDTHS, strict=False):
            for inputs, stride in ((before, 2), (after, 1)):
                layers += [nn.Conv2d(inputs, after, 3, stride=stride, padding=1, bias=False)]
                layers += [nn.BatchNorm2d(after), nn.ReLU()]
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(WIDTHS[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Returns one row of logits for each image."""
        out: Tensor = self.head(self.layers(x).mean((2, 3)))
        return out


def train_oracle(
    images: Callable[[Tensor], Tensor],
    p: Tensor,
    shape: tuple[int, ...],
    *,
    epochs: int,
    seed: int = 0,
    checkpoint: Path | None = None,
    on_epoch: Callable[[Epoch], object] = no_op,
    on_progress: Callable[[float], object] = no_op,
) -> Classifier:
    """Trains a network on images and the classifier's answers, every class equally often.

    Arguments:
        images: Returns the images of some rows.
        p: The classifier's probabilities, with shape ``(N, K)``.
        shape: The shape of an image.
        epochs: How often to go through the images.
        seed: The seed of everything random.
        checkpoint: A file to keep the state in. If it exists, training resumes from there.
        on_epoch: Called after every epoch.
        on_progress: Called every now and then with the share that is done.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = OracleNetwork(shape[0], p.shape[1]).to(p.device)
    loop = Loop(
        epochs=epochs,
        batch_size=BATCH_SIZE,
        learning_rate=2e-3,
        weight_decay=1e-2,
        optimizer="adamw",
        schedule="cosine",
        seed=seed,
        checkpoint=checkpoint,
        on_epoch=on_epoch,
        on_progress=on_progress,
    )
    y, rng = p.argmax(1), torch.Generator(p.device)
    weights = 1 / y.bincount(minlength=p.shape[1])[y].double()
    state = loop.begin({"oracle": network}, lambda: ({}, fingerprint(p)))

    def objective(x: Tensor, y: Tensor) -> Tensor:
        scale, shift = JITTER * torch.randn(
            2, len(x), 1, 1, 1, generator=rng, device=x.device, dtype=x.dtype
        )
        return F.cross_entropy(network(x * (1 + scale) + shift), y)

    def batches() -> Iterator[Batch]:
        order = torch.multinomial(weights, len(y), replacement=True, generator=rng)
        for rows in torch.split(order, BATCH_SIZE):
            yield images(rows), y[rows]

    network.train()
    loop.run(state, {0: objective}, batches, rng, rows=len(y), capture=True)
    return from_logits(network.eval().requires_grad_(False))


def choose_oracle(
    run: Run, train: Part, p: Tensor, classifier: Classifier, test: Tensor
) -> Classifier:
    """Trains an oracle to choose a reliable plan with, or returns the classifier if it is poor."""
    oracle = fit_oracle(run, train, p, "oracle", run.recipe.seed + 1)
    labels, others = (in_halves(each, test).argmax(1) for each in (classifier, oracle))
    share = (labels == others).double().mean().item()
    good = share >= MIN_ORACLE_AGREEMENT
    run.log(
        "No oracle was given, so a small network learnt the classifier's answers to be one: they "
        f"agree on {share:.1%} of {len(test)} held out"
        + ("." if good else ", too few, so the classifier is its own oracle.")
    )
    return oracle if good else classifier


def fit_oracle(run: Run, train: Part, p: Tensor, name: str, seed: int) -> Classifier:
    """Trains an oracle on images and answers, as long as its share of the budget allows."""
    shape = tuple(train.images.shape)
    rows = torch.arange(TIMED_STEPS * BATCH_SIZE) % len(train)
    sample = train[rows]

    def timed(epochs: int, on_epoch: Callable[[Epoch], object]) -> object:
        return train_oracle(sample.__getitem__, p[rows], shape, epochs=epochs, on_epoch=on_epoch)

    def choose() -> int:
        steps = min(MAX_STEPS, ORACLE_SHARE * run.budget.seconds / seconds_per_step(timed))
        return max(2, round(steps * BATCH_SIZE / len(train)))

    epochs = run.budget.decide(name, choose)
    return train_oracle(
        train.__getitem__,
        p,
        shape,
        epochs=epochs,
        seed=seed,
        checkpoint=run.checkpoint(name, epochs),
        **run.training("training an oracle"),
    )
