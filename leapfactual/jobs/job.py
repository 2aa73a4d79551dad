"""What the jobs share."""

import torch
from torch import Tensor

from ..flow import Flow
from ..types import Generator


@torch.no_grad()
def typicality(
    generator: Generator, flow: Flow, x: Tensor, y: Tensor, batch_size: int = 1024
) -> Tensor:
    """Returns how typical images are of a class, as percentiles among its own, ``(B,)``.

    Arguments:
        generator: The generator.
        flow: The flow, whose :meth:`Flow.fit_typicality` was called.
        x: Images, or rows.
        y: The class to compare each with, with shape ``(B,)``.
        batch_size: How many images at a time.
    """
    parts = zip(torch.split(x, batch_size), torch.split(y, batch_size), strict=True)
    return torch.cat([flow.typicality(generator.encode(a), b) for a, b in parts])
