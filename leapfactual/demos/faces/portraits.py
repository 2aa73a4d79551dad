"""The generator: a GAN that draws portraits of 1024 × 1024.

It is MobileStyleGAN, distilled from StyleGAN2 on photographs of FFHQ: a mapping from noise to *w*,
512 numbers, and a synthesis from *w* to the picture. The weights come as OpenVINO models in the
package ``random-face``. OpenVINO runs the synthesis on a CPU several times as fast as torch does;
torch runs it on a GPU, in batches and with gradients. Both draw the same.

References:
    | MobileStyleGAN: A Lightweight Convolutional Neural Network for High-Fidelity Image Synthesis
    | (Belousov, 2021)
    | https://arxiv.org/abs/2104.04767
"""

from importlib.util import find_spec

import torch
from torch import Tensor

from ...data import packages
from ...errors import InputError
from ...generators import GAN, Inversion, from_openvino

FEATURES, SIDE = 512, 1024
AUTO = "auto"
ENGINES = (AUTO, "openvino", "torch")
CLASSES = ("not smiling", "smiling")
EYES = ((0.30, 0.42, 0.46, 0.53), (0.54, 0.42, 0.70, 0.53))
MOUTH = (0.36, 0.61, 0.64, 0.76)


def expressive(side: int) -> Tensor:
    """Returns the mask of the eyes and of the mouth in aligned portraits, ``(1, side, side)``.

    Example:
        >>> round(expressive(1024).mean().item(), 3)
        0.077
    """
    mask = torch.zeros(1, side, side)
    for left, top, right, bottom in (*EYES, MOUTH):
        rows = slice(round(top * side), round(bottom * side))
        mask[:, rows, round(left * side) : round(right * side)] = 1.0
    return mask


def portraits(
    engine: str = AUTO,
    device: torch.device | str = "cpu",
    inversion: Inversion = Inversion(),  # noqa: B008 - frozen
) -> GAN:
    """Returns the generator; ``leapfactual data get face-gan`` fetches its weights.

    Arguments:
        engine: What draws: ``openvino`` on a CPU, ``torch`` anywhere, or ``auto`` for the faster
            of those that are there.
        device: Where to draw.
        inversion: How photographs are inverted, which needs ``torch``.
    """
    chosen = engine_for(engine, device)
    files = {path.name: path for path in packages.files("face-gan")}
    mapping = from_openvino(files["MappingNetwork.xml"], "torch")
    synthesis = from_openvino(files["SynthesisNetwork.xml"], chosen)
    for network in (mapping, synthesis):
        if isinstance(network, torch.nn.Module):
            network.to(device)
    return GAN(
        synthesis,
        FEATURES,
        (3, SIDE, SIDE),
        mapping=mapping,
        inversion=inversion,
        device=device,
    )


def engine_for(engine: str, device: torch.device | str) -> str:
    """Returns the engine to draw with: the requested one, or for ``auto`` the faster one.

    Example:
        >>> engine_for("auto", "cuda")
        'torch'
    """
    if engine not in ENGINES:
        raise InputError(f"`engine` must be one of {list(ENGINES)}, got {engine!r}.")
    on_cpu = torch.device(device).type == "cpu"
    if engine == "openvino" and not on_cpu:
        raise InputError(
            f"OpenVINO draws on the CPU, not on {device}. Use engine='torch', or device='cpu'."
        )
    if engine != AUTO:
        return engine
    return "openvino" if on_cpu and find_spec("openvino") is not None else "torch"
