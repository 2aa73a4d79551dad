r"""Fusion: networks rewritten to the same function in fewer and better-shaped steps.

The time of a counterfactual goes into decoding, and small decoders are slow for their size: a
convolution with eight channels leaves most of a processor idle, and every batch norm and every
activation is another trip through memory. What stands in an ``nn.Sequential`` is therefore
rewritten, by rules that keep its function:

- A batch norm is fused into the layer before it.
- A transposed convolution with stride :math:`s` computes :math:`s^2` interleaved pictures, its
  *phases*. Where it has few channels it becomes an ordinary convolution on the coarse grid with
  :math:`s^2` times as many, and a pixel shuffle that interleaves them.
- An activation does not care about the order of pixels, so the shuffle moves behind it.
- A large convolution with few outputs, such as a decoder's last one, is done on the coarse grid,
  too, and the shuffle moves behind it.

Results differ by rounding. Weights are copied: fuse again when they change.
"""

import copy
from collections.abc import Callable, Sequence
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

# Rewriting a transposed convolution multiplies its channels by the square of its stride. Beyond
# this many, convolutions are no longer short of channels, and it would only cost memory.
MAX_PHASE_CHANNELS = 512
# A decoder's last convolution gives the colours of a picture, with alpha at most four channels.
MAX_PICTURE_CHANNELS = 4
# On the coarse grid a kernel of size k costs as one of (k + s - 2) / s + 1; below five, nothing is
# won.
MIN_COARSE_KERNEL = 5
POINTWISE = (
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.SELU,
    nn.SiLU,
    nn.GELU,
    nn.Tanh,
    nn.Sigmoid,
    nn.Hardtanh,
)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)

Layers = Sequence[nn.Module]
Rule = Callable[[nn.Module, nn.Module], Layers | None]


def fuse(module: nn.Module) -> nn.Module:
    """Returns a network of the same function that runs faster, or the module itself.

    Only modules in evaluation mode are fused.

    Example:
        >>> slow = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
        >>> fuse(slow)
        Sequential(
          (0): Conv2d(1, 8, kernel_size=(3, 3), stride=(1, 1))
          (1): ReLU()
        )
    """
    if any(part.training for part in module.modules()):
        return module
    changed = False

    def visit(part: nn.Module) -> nn.Module:
        nonlocal changed
        for name, child in part.named_children():
            setattr(part, name, visit(child))
        if type(part) is not nn.Sequential:
            return part
        layers = _rewrite(list(part))
        if layers == list(part):
            return part
        changed = True
        return nn.Sequential(*layers)

    with torch.no_grad():
        twin = visit(copy.deepcopy(module)).eval().requires_grad_(False)
    return twin if changed else module


def _rewrite(layers: list[nn.Module]) -> list[nn.Module]:
    layers = _pairwise(layers, _norm)
    layers = [new for layer in layers for new in _phases(layer) or [layer]]
    return _pairwise(layers, _behind)


def _pairwise(layers: list[nn.Module], rule: Rule) -> list[nn.Module]:
    """Goes along the layers once and lets a rule replace neighbours."""
    done: list[nn.Module] = []
    for layer in layers:
        new = rule(done[-1], layer) if done else None
        done = [*done, layer] if new is None else [*done[:-1], *new]
    return done


def _norm(layer: nn.Module, norm: nn.Module) -> Layers | None:
    """Fuses a batch norm into the layer before it."""
    if not isinstance(norm, NORMS) or type(norm) not in NORMS:
        return None
    if norm.running_mean is None or norm.weight is None:
        return None
    if type(layer) is nn.Conv2d and isinstance(norm, nn.BatchNorm2d):
        return [fuse_conv_bn_eval(layer, norm)]
    if type(layer) is nn.ConvTranspose2d and isinstance(norm, nn.BatchNorm2d):
        return [fuse_conv_bn_eval(layer, norm, transpose=True)] if layer.groups == 1 else None
    if type(layer) is nn.Linear and isinstance(norm, nn.BatchNorm1d):
        return [fuse_linear_bn_eval(layer, norm)]
    return None


def _phases(layer: nn.Module) -> Layers | None:
    r"""Turns a transposed convolution into one on the coarse grid and a pixel shuffle.

    The output pixel :math:`sm + a` sees the input pixels :math:`m + d` through the weights
    :math:`a + p - sd`, for the padding :math:`p`.
    """
    if type(layer) is not nn.ConvTranspose2d or not _square(layer):
        return None
    (s, _), (k, _), (p, _) = layer.stride, layer.kernel_size, _pair(layer.padding)
    whole = k - 2 * p + layer.output_padding[0] == s
    if s == 1 or not whole or layer.in_channels * layer.out_channels > MAX_PHASE_CHANNELS:
        return None
    taps = [
        (a, d, a + p - s * d) for a in range(s) for d in range(-k, k + 1) if 0 <= a + p - s * d < k
    ]
    low, high = min(d for _, d, _ in taps), max(d for _, d, _ in taps)
    size, inputs, outputs = high - low + 1, layer.in_channels, layer.out_channels
    weight = layer.weight.new_zeros(outputs, s, s, inputs, size, size)
    for (a, d, k), (b, e, l) in product(taps, taps):  # noqa: E741 - the letter after k
        weight[:, a, b, :, d - low, e - low] = layer.weight[:, :, k, l].T
    conv = _convolution(weight.reshape(s * s * outputs, inputs, size, size), layer.bias, s)
    return [nn.ZeroPad2d((-low, high, -low, high)), conv, nn.PixelShuffle(s)]


def _behind(shuffle: nn.Module, layer: nn.Module) -> Layers | None:
    """Moves a shuffle behind an activation, or behind a large convolution with few outputs."""
    if not isinstance(shuffle, nn.PixelShuffle):
        return None
    if isinstance(layer, POINTWISE):
        if getattr(layer, "inplace", False):
            layer.inplace = False
        return [layer, shuffle]
    coarse = _coarse(layer, shuffle.upscale_factor)
    return None if coarse is None else [coarse, shuffle]


def _coarse(layer: nn.Module, s: int) -> nn.Conv2d | None:
    r"""Returns what a convolution does on the grid that is ``s`` times as coarse.

    The output pixel :math:`sm + a` sees the pixel :math:`sm + a + u` through the weight :math:`u`:
    on the coarse grid, the phase :math:`(a + u) \bmod s` of the pixel :math:`m + \lfloor (a + u)
    / s \rfloor`.
    """
    if type(layer) is not nn.Conv2d or not _square(layer):
        return None
    (k, _), padded = layer.kernel_size, _pair(layer.padding) != (0, 0)
    if padded or layer.stride != (1, 1) or layer.out_channels > MAX_PICTURE_CHANNELS:
        return None
    if k < MIN_COARSE_KERNEL or (k - 1) % s:
        return None
    inputs, outputs, size = layer.in_channels, layer.out_channels, (k + s - 2) // s + 1
    weight = layer.weight.new_zeros(outputs, s, s, inputs, s, s, size, size)
    for a, b, u, w in product(range(s), range(s), range(k), range(k)):
        i, j = a + u, b + w
        weight[:, a, b, :, i % s, j % s, i // s, j // s] = layer.weight[:, :, u, w]
    return _convolution(weight.reshape(s * s * outputs, -1, size, size), layer.bias, s)


def _square(layer: nn.Conv2d | nn.ConvTranspose2d) -> bool:
    """Whether both directions are alike and nothing unusual is asked for."""
    sides = (layer.kernel_size, layer.stride, _pair(layer.padding), layer.output_padding)
    usual = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
    return usual and all(side[0] == side[1] for side in sides)


def _pair(padding: str | tuple[int, ...]) -> tuple[int, ...]:
    return (-1, -1) if isinstance(padding, str) else padding


def _convolution(weight: Tensor, bias: Tensor | None, s: int) -> nn.Conv2d:
    """Returns the convolution with these weights, and each bias for all of its phases."""
    outputs, inputs, *size = weight.shape
    conv = nn.Conv2d(inputs, outputs, tuple(size), bias=bias is not None, device="meta")  # type: ignore[arg-type]
    conv.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        conv.bias = nn.Parameter(bias.repeat_interleave(s * s), requires_grad=False)
    return conv
