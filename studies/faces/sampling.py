"""What the flow learns from: faces that the GAN draws, and the black box's answers on them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from leapfactual.errors import InputError
from leapfactual.files import atomic
from leapfactual.generators import GAN
from leapfactual.types import Classifier, no_op

FACES_PER_SEED = 500


@dataclass(frozen=True, eq=False)
class LabeledFaces:
    """Faces: their latents and the classifier's probabilities.

    Arguments:
        w: The latents, with shape ``(N, D)``.
        p: The probabilities, with shape ``(N, K)``.
    """

    w: Tensor
    p: Tensor

    def __getitem__(self, rows: slice) -> "LabeledFaces":
        return LabeledFaces(self.w[rows], self.p[rows])

    def balance(self, per_class: int) -> "LabeledFaces":
        """Returns the first so many of each class, in the order in which they were drawn."""
        label = self.p.argmax(1)
        rows = [(label == k).nonzero()[:per_class, 0] for k in range(self.p.shape[1])]
        chosen = torch.cat(rows).sort().values
        return LabeledFaces(self.w[chosen], self.p[chosen])

    @property
    def rarest(self) -> int:
        """How many faces the class has that has the fewest."""
        return int(self.p.argmax(1).bincount(minlength=self.p.shape[1]).min())


@torch.no_grad()
def sample(
    gan: GAN,
    classifier: Classifier,
    per_class: int,
    *,
    seed: int = 0,
    batch_size: int = 8,
    path: Path | None = None,
    progress: Callable[[float], object] = no_op,
) -> LabeledFaces:
    """Draws faces until there are enough of each class, and returns as many of each.

    Arguments:
        gan: The generator; its latents are drawn in pieces of 500, each with a seed of its own.
        classifier: Queried about every face.
        per_class: How many faces of each class.
        seed: The seed of the first piece.
        batch_size: How many faces to draw at a time.
        path: A file to keep what is done in, and to resume from.
        progress: Called with the share that is done.
    """
    found = _read(path)
    while found is None or found.rarest < per_class:
        if found is not None and len(found.w) >= 20 * per_class + FACES_PER_SEED:
            raise InputError(
                f"the classifier gives one class to {found.rarest} of {len(found.w)} faces only. "
                "Ask for something that is less rare."
            )
        done = 0 if found is None else len(found.w)
        w = gan.sample(FACES_PER_SEED, seed + done // FACES_PER_SEED)
        p = torch.cat([classifier(gan.decode(part)) for part in torch.split(w, batch_size)])
        piece = LabeledFaces(w.cpu(), p.cpu())
        found = (
            piece
            if found is None
            else LabeledFaces(torch.cat([found.w, piece.w]), torch.cat([found.p, piece.p]))
        )
        if path is not None:
            with atomic(path) as temporary:
                save_file({"w": found.w, "p": found.p}, temporary)
        progress(min(1.0, found.rarest / per_class))
    return found.balance(per_class)


def _read(path: Path | None) -> LabeledFaces | None:
    if path is None or not path.exists():
        return None
    try:
        return LabeledFaces(**load_file(path))
    except (SafetensorError, TypeError) as error:
        raise InputError(f"{path} is damaged ({error}). Delete it and run again.") from error
