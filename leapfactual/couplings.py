r"""How noise :math:`z_0` meets latents :math:`z_1` in training.

The paper draws the two independently, given the class: :math:`q(h) = q(z_0) \, q(z_1 \mid c)`. Any
other pairing *within a class* keeps both marginals, and with them what lifting removes and landing
brings. Pairing each latent with a near noise sample makes the paths straighter and the leaps
shorter.

A coupling takes ``(z0, z1, c)`` and returns ``z0`` in another order.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .extras import require

Coupling = Callable[[Tensor, Tensor, Tensor], Tensor]


def independent(z0: Tensor, z1: Tensor, c: Tensor) -> Tensor:
    """Returns the noise as it was drawn: the paper's coupling."""
    return z0


def optimal_transport(z0: Tensor, z1: Tensor, c: Tensor) -> Tensor:
    """Pairs noise and latents at the least total squared distance, within each class of a batch.

    References:
        | Improving and generalizing flow-based generative models with minibatch optimal
        | transport (Tong et al., 2024)
        | https://arxiv.org/abs/2302.00482
    """
    ot = require(
        "ot",
        extra="transport",
        subject="the optimal-transport coupling needs",
        package="POT",
        remedy="or use the independent coupling",
    )
    paired = z0.clone()
    labels = c.argmax(1)
    for label in range(c.shape[1]):
        rows = (labels == label).nonzero()[:, 0]
        if not len(rows):
            continue
        cost = torch.cdist(z1[rows].double(), z0[rows].double()).square().cpu().numpy()
        partner = ot.emd([], [], cost, numItermax=10_000_000).argmax(1)
        paired[rows] = z0[rows[partner]]
    return paired


COUPLINGS: dict[str, Coupling] = {
    coupling.__name__: coupling for coupling in (independent, optimal_transport)
}
