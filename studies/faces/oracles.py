"""The oracles of counterfactual faces: networks that are independent of the black box."""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from leapfactual.demos.faces.identity import FaceEmbedder, IdentityDistance
from leapfactual.demos.faces.landmarks import SmileOracle
from leapfactual.errors import InputError
from leapfactual.metrics import LPIPS

from .training import Oracles

PACKAGES = ("face-gan", "expressions", "face-landmarks", "identities", "lpips-alexnet")


def load_oracles(device: str = "cpu", squeezenet: Path | None = None) -> Oracles:
    """Loads those whose weights packages carry, and the paper's LPIPS, where that is given.

    Arguments:
        device: Where to compute.
        squeezenet: A safetensors file with torchvision's weights of SqueezeNet 1.1 and those of
            the published heads.
    """
    lpips = {"LPIPS (AlexNet)": LPIPS.load("alexnet").to(device)}
    if squeezenet is not None:
        distance = LPIPS("squeezenet")
        try:
            weights = load_file(squeezenet)
        except (OSError, SafetensorError) as error:
            raise InputError(
                f"{squeezenet} is no safetensors file ({error}). Give one with SqueezeNet's "
                "weights, or leave it out."
            ) from error
        distance.read_torch(weights, weights)
        lpips = {"LPIPS": distance.to(device), **lpips}
    identity_distance = IdentityDistance(FaceEmbedder.load().to(device))
    return Oracles(SmileOracle.load().to(device), identity_distance, lpips)
