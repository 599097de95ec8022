"""Parallel strategies, which divide a network and its batches between devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gluonlab.parallel.strategy import MakeStrategy


def strategy_class(mode: str) -> MakeStrategy:
    """Import and return the strategy class for ``mode``, one of ``strategy.SPLIT_MODES``."""
    if mode == "data":
        from gluonlab.parallel.data.strategy import DataParallel

        return DataParallel
    if mode == "tensor":
        from gluonlab.parallel.tensor.strategy import TensorParallel

        return TensorParallel
    # modes "pipeline" and "layers"; "layers" is a pipeline with one microbatch at a time
    from gluonlab.parallel.pipeline.strategy import PipelineParallel

    return PipelineParallel
