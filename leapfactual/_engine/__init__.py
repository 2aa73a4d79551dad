"""The engine: runs batches of walks the fastest way that gives the same labels.

=====================  ========================================================================
:mod:`.engine`         chooses among the ways, batch by batch
:mod:`.copies`         fused copies of the networks, verified before they are used
:mod:`.fusion`         conv-BN fusion, and transposed convolutions rewritten on the coarse grid
:mod:`.replay`         whole walks captured as CUDA graphs
:mod:`.cuda_graphs`    capture of steps; also what training captures
=====================  ========================================================================
"""

from .engine import Batch, Engine, step_by_step

__all__ = ["Batch", "Engine", "step_by_step"]
