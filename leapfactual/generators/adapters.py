"""Adapters for generators of other libraries."""

import hashlib
import importlib
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..errors import InputError, MissingData
from ..extras import require
from .gan import GAN, Inversion
from .layers import check_images, check_shape
from .openvino import Graph

_INVERSION = Inversion()


ENGINES = ("openvino", "torch")


def from_openvino(path: str | Path, engine: str = "openvino") -> Callable[[Tensor], Tensor]:
    """Returns a function that runs an OpenVINO model with one input and one output.

    OpenVINO itself runs every model, on the CPU and without a gradient: as a GAN's synthesis it
    then needs an encoder, or latents of its own. Torch runs models of plain convolutions, on any
    device and with a gradient, and needs nothing installed; see
    :class:`leapfactual.generators.openvino.Graph`.

    Arguments:
        path: The ``.xml`` file, with its ``.bin`` file beside it.
        engine: ``openvino`` or ``torch``.
    """
    path = checks.path(path)
    if engine not in ENGINES:
        raise InputError(f"`engine` must be one of {list(ENGINES)}, got {engine!r}.")
    if engine == "torch":
        return Graph(path)
    if not path.is_file():
        raise MissingData(f"there is no OpenVINO model at {path}. Give the path of its .xml file.")
    openvino = require("openvino", extra="openvino", subject="OpenVINO models need")
    try:
        model = openvino.Core().compile_model(
            str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
        )
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise InputError(f"{path} is no OpenVINO model ({reason}). Copy it again.") from error
    if len(model.inputs) != 1 or len(model.outputs) != 1:
        raise InputError(
            f"{path} must have one input and one output, got {len(model.inputs)} and "
            f"{len(model.outputs)}. Export the part of the model that you need."
        )
    rows = model.inputs[0].partial_shape[0]

    def call(z: Tensor) -> Tensor:
        array = z.detach().cpu().float().numpy()
        if rows.is_dynamic:
            return torch.from_numpy(model(array)[0]).to(z.device)
        parts = [torch.from_numpy(model(row[None])[0].copy()) for row in array]
        return torch.cat(parts).to(z.device)

    return call


class LatentDiffusionVAE:
    """Creates a generator from a ``diffusers.AutoencoderKL``, its latents flattened to rows.

    Arguments:
        model: The autoencoder.
        shape: The shape of an image, ``(C, H, W)``; height and width as the autoencoder can halve
            them.
    """

    def __init__(self, model: Any, shape: tuple[int, int, int]) -> None:  # noqa: ANN401
        self.model, self.shape = model, check_shape(shape)
        with torch.no_grad():
            blank = torch.zeros(1, *self.shape).to(model.device, model.dtype)
            latent = model.encode(blank).latent_dist.mean
            x_hat = model.decode(latent).sample
        if x_hat.shape != blank.shape:
            raise InputError(
                f"the autoencoder gives {checks.shape(x_hat)} back for {checks.shape(blank)}: it "
                "cannot halve images of that size. Resize them so that it can."
            )
        self.latent = tuple(latent.shape[1:])

    def encode(self, x: Tensor) -> Tensor:
        """Returns the scaled means ``(B, D)`` of the latents of ``x``."""
        check_images(x, self.shape)
        mean: Tensor = self.model.encode((2 * x - 1).to(self.model.dtype)).latent_dist.mean
        return torch.flatten(mean * self.model.config.scaling_factor, 1).to(x)

    def decode(self, z: Tensor) -> Tensor:
        """Returns the images of ``z``, in [0, 1]."""
        latent = z.reshape(-1, *self.latent) / self.model.config.scaling_factor
        x: Tensor = self.model.decode(latent.to(self.model.dtype)).sample
        return ((x + 1) / 2).clamp(0, 1).to(z)


def stylegan(
    path: str | Path,
    code: str | Path,
    *,
    trust: str = "",
    inversion: Inversion = _INVERSION,
    device: torch.device | str = "cpu",
) -> GAN:
    """Creates a generator from one of NVIDIA's StyleGAN files, with your own copy of their code.

    Such a file is a pickle: opening it runs what it says. It is therefore opened only when
    ``trust`` is its SHA-256, which the error without it shows.

    Arguments:
        path: The ``.pkl`` file.
        code: The folder of the StyleGAN code, with ``legacy.py`` and ``dnnlib`` in it.
        trust: The SHA-256 of a file that you trust.
        inversion: How images are inverted.
        device: Where to put the networks.
    """
    path, code = Path(path), Path(code)
    if not path.is_file():
        raise MissingData(f"there is no StyleGAN file at {path}. Give the path of a .pkl file.")
    if not (code / "legacy.py").is_file():
        raise MissingData(
            f"there is no legacy.py in {code}. Give the folder of your copy of the StyleGAN code."
        )
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if trust != digest:
        raise InputError(
            f"{path} is a pickle, which runs what it says when it is opened. Its SHA-256 is "
            f"{digest}. Compare it with its publisher's; if you trust it pass trust='{digest}'."
        )
    sys.path.insert(0, str(code))
    try:
        legacy = importlib.import_module("legacy")
        network: Any = legacy.load_network_pkl(io.BytesIO(content))["G_ema"].eval().to(device)
    finally:
        sys.path.remove(str(code))

    def mapping(noise: Tensor) -> Tensor:
        w: Tensor = network.mapping(noise, None)
        return w[:, 0]

    def synthesis(w: Tensor) -> Tensor:
        every = w[:, None].expand(-1, network.num_ws, -1)
        x: Tensor = network.synthesis(every, noise_mode="const")
        return x

    shape = (network.img_channels, network.img_resolution, network.img_resolution)
    return GAN(
        synthesis,
        features=network.w_dim,
        shape=shape,
        mapping=mapping,
        noise=network.z_dim,
        inversion=inversion,
        device=device,
    )
