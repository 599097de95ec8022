"""BatchNorm's running statistics where each device has some of the channels."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence, Tuple

import mxnet as mx
from mxnet import gluon, nd

from gluonlab.kvstores.groups import Group
from gluonlab.parallel.channels.layout import Layout
from gluonlab.parallel.channels.levels import flat_graph
from gluonlab.parallel.channels.parameters import Parts, joined, part
from gluonlab.parallel.data.microbatches import Microbatches
from gluonlab.parallel.data.replica import IMAGES
from gluonlab.parallel.data.statistics import RunningStatistics


class _OnDevice(gluon.HybridBlock):
    """What a device has of a network, as far as its running statistics want to know it."""

    def __init__(
        self, layout: Layout, device: int, params: Parts, places: Mapping[str, str]
    ) -> None:
        super().__init__()
        self._layout, self._device = layout, device
        self.own, self._places = params, places

    def collect_params(self, select: Any = None) -> Parts:
        """The device's parameters."""
        return self.own

    def _collect_params_with_prefix(self, prefix: str = "", select: Any = None) -> Parts:
        """The device's parameters, by their places in the whole network."""
        return {place: self.own[name] for name, place in self._places.items()}

    def __call__(self, images: mx.sym.Symbol) -> mx.sym.Symbol:
        """Its graph, as if it met no others."""
        return flat_graph(self._layout, self._device)(**{IMAGES: images})


class ChannelStatistics:
    """The running statistics of all devices of all copies, as `RunningStatistics`.

    ``params[i]``: the parameters that device i of each copy has, of which ``copies[j]`` are the
    devices of copy j. ``places``: of parameters, by name, in the whole network.
    """

    def __init__(
        self,
        layout: Layout,
        params: Sequence[Parts],
        copies: Sequence[Sequence[mx.Context]],
        places: Mapping[str, str],
        cut: Microbatches,
        group: Group,
    ) -> None:
        self._params = params
        self._slices = {
            place: layout.slices[name] for name, place in places.items() if name in layout.slices
        }
        self._of_devices = [
            RunningStatistics(
                _OnDevice(layout, device, own, places), cut, group=group,
                copies=[[ctxs[device]] for ctxs in copies],
            )
            for device, own in enumerate(params)
        ]  # fmt: skip
        self.exist = self._of_devices[0].exist

    def saw(self, shards: Sequence[nd.NDArray]) -> None:
        """As `RunningStatistics.saw`."""
        for each in self._of_devices:
            each.saw(shards)

    def average(self) -> None:
        """As `RunningStatistics.average`."""
        for each in self._of_devices:
            each.average()

    def state(self) -> "Tuple[Dict[str, nd.NDArray], Dict[str, Any]]":
        """As `RunningStatistics.state`, of whole statistics."""
        states = [each.state() for each in self._of_devices]
        first, counts = states[0]
        arrays = {
            name: joined([own[name] for own, _ in states], self._slice_of(name)) for name in first
        }
        return arrays, counts

    def restore(self, arrays: Mapping[str, nd.NDArray], counts: Mapping[str, Any]) -> None:
        """As `RunningStatistics.restore`."""
        for device, each in enumerate(self._of_devices):
            each.restore(
                {name: part(array, self._slice_of(name), device) for name, array in arrays.items()},
                counts,
            )

    def _slice_of(self, name: str) -> Any:
        """How the devices share the array ``kind/copy/place`` of a state."""
        kind, *_, own = name.split("/")
        return self._slices.get(own) if kind in ("running", "start") else None
