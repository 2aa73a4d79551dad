"""Work in smaller batches, where a device runs out of memory."""

from collections.abc import Callable

import torch
from torch import Tensor


def in_halves(function: Callable[..., Tensor], *rows: Tensor) -> Tensor:
    """Returns what a function of rows gives; in halves where the device runs out of memory.

    Rows must be independent, so that halves of a batch give the same as the whole.

    Arguments:
        function: The function, which gives one row for each.
        rows: Its arguments, all of one length.

    Example:
        >>> in_halves(torch.square, torch.arange(3))
        tensor([0, 1, 4])
    """
    try:
        return function(*rows)
    except torch.OutOfMemoryError:
        if len(rows[0]) < 2:
            raise
    # Outside of the handler, so that the failed batch is let go before the next try.
    torch.cuda.empty_cache()
    middle = len(rows[0]) // 2
    first = in_halves(function, *(part[:middle] for part in rows))
    return torch.cat([first, in_halves(function, *(part[middle:] for part in rows))])
