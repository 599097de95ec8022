"""How a network and its batches are spread over devices, once that is decided."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import mxnet as mx

DATA, LAYERS, CHANNELS, PIPELINE = WAYS = ("data", "layers", "channels", "pipeline")


class Split(NamedTuple):
    """``copies[i]``: the devices of copy i of the network, which trains on shard i of each batch.

    ``way``: one of WAYS; with data alone each copy has one device. ``cut``: the layers with which
    stages begin, but the first; None where ``balance`` (time or memory) chooses them.
    ``schedule``: of `gluonlab.parallel.pipeline.schedule.SCHEDULES`. ``channels``: how layers are
    split over a copy's devices (both, column or row). ``share``: the most images of a batch for a
    copy, ``image_shape`` (C, H, W) and ``image_dtype`` theirs. ``model``: the network's name, for
    messages.
    """

    way: str
    copies: List[List[mx.Context]]
    model: str = ""
    share: int = 1
    image_shape: Tuple[int, ...] = ()
    image_dtype: str = "uint8"
    schedule: str = ""
    stages_per_device: int = 1
    cut: Optional[Tuple[int, ...]] = None
    balance: str = ""
    channels: str = ""

    @property
    def size(self) -> int:
        """How many devices a copy has."""
        return len(self.copies[0])

    @property
    def has_copy(self) -> str:
        """What has a copy of the network to itself."""
        return "device" if self.size == 1 else "copy of the network"

    def settings(self) -> Dict[str, Any]:
        """What a run's config.json says of it; of data alone nothing."""
        if self.way == DATA:
            return {}
        settings: Dict[str, Any] = {"split": self.way, "copies": len(self.copies)}
        if self.way == CHANNELS:
            return {**settings, "ways": self.size, "channels": self.channels}
        settings["stages"] = self.size
        if self.cut is None:
            settings["balance"] = self.balance
        else:
            settings["cut"] = ",".join(map(str, self.cut))
        if self.way == PIPELINE:
            settings["pipeline_schedule"] = self.schedule
            settings["stages_per_device"] = self.stages_per_device
        return settings
