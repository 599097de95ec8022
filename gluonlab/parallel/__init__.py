"""Strategies: how a network and its batches are laid out over devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gluonlab.parallel.strategy import MakeStrategy


def strategy_class(way: str) -> MakeStrategy:
    """The strategy of a way to split (`gluonlab.parallel.strategy.WAYS`); no other is imported."""
    if way == "data":
        from gluonlab.parallel.data.strategy import DataParallel

        return DataParallel
    if way == "channels":
        from gluonlab.parallel.tensor.strategy import ChannelParallel

        return ChannelParallel
    from gluonlab.parallel.pipeline.strategy import StagedParallel

    return StagedParallel
