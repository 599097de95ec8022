"""Each device's part of a network's parameters, states and statistics, and the whole of them."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Tuple

import mxnet as mx
from mxnet import gluon, nd

from gluonlab.kvstores.process_groups import ProcessGroup
from gluonlab.optimizers.optimizer_states import ParameterState, States
from gluonlab.parallel.data.microbatches import Microbatches
from gluonlab.parallel.data.replica import IMAGES
from gluonlab.parallel.data.running_statistics import RunningStatistics
from gluonlab.parallel.tensor.layout import Layout, Slice, flat_graph

Slices = Mapping[str, Slice]
Parts = Dict[str, gluon.Parameter]


class Everywhere:
    """A parameter that all devices have whole: ``parts[i]`` on device i of each copy."""

    def __init__(self, parts: Sequence[gluon.Parameter]) -> None:
        self.name = str(parts[0].name)
        self._arrays = {ctx: part.data(ctx) for part in parts for ctx in part.list_ctx()}

    def list_ctx(self) -> List[mx.Context]:
        """The devices."""
        return list(self._arrays)

    def data(self, ctx: mx.Context) -> nd.NDArray:
        """The array on one of them."""
        return self._arrays[ctx]


def parts_of(
    params: Mapping[str, gluon.Parameter],
    slices: Slices,
    device: int,
    ctxs: Sequence[mx.Context],
) -> Parts:
    """The parameters that a device has, on the devices ``ctxs`` that play it in each copy.

    They have the names, multipliers and values of ``params``, the whole ones.
    """
    made: Parts = {}
    for name, whole in params.items():
        value = part(whole.list_data()[0], slices.get(name), device)
        own = gluon.Parameter(
            name, whole.grad_req, value.shape, whole.dtype, whole.lr_mult, whole.wd_mult,
            differentiable=whole._differentiable,
        )  # fmt: skip
        own.initialize(mx.init.Constant(0), ctx=list(ctxs))
        for array in own.list_data():
            value.copyto(array)
        made[name] = own
    return made


def part(whole: nd.NDArray, slice: "Slice | None", device: int) -> nd.NDArray:
    """A device's part of an array; all of it where it is not sliced."""
    if slice is None:
        return whole
    begin, end = slice.bounds[device]
    return nd.slice_axis(whole, axis=slice.axis, begin=begin, end=end)


def joined(parts: Sequence[nd.NDArray], slice: "Slice | None") -> nd.NDArray:
    """The whole array of the devices' parts, on the CPU; nothing waits."""
    if slice is None:
        return parts[0].copyto(mx.cpu())
    return nd.concat(*[each.copyto(mx.cpu()) for each in parts], dim=slice.axis)


def joined_states(of_devices: Sequence[States], slices: Slices) -> States:
    """The states of whole parameters, sorted by name as one trainer has them."""
    by_name: Dict[str, List[ParameterState]] = {}
    for states in of_devices:
        for state in states.parameters:
            by_name.setdefault(state.name, []).append(state)
    whole = tuple(_joined_state(by_name[name], slices.get(name)) for name in sorted(by_name))
    return of_devices[0]._replace(parameters=whole)


def _joined_state(parts: Sequence[ParameterState], slice: "Slice | None") -> ParameterState:
    first = parts[0]
    if slice is None or first.shape is None:
        return first
    arrays = tuple(joined(arrays, slice) for arrays in zip(*(each.arrays for each in parts)))
    shape = list(first.shape)
    shape[slice.axis] = slice.bounds[-1][1]
    return first._replace(shape=tuple(shape), arrays=arrays)


def state_parts(states: States, slices: Slices, device: int, params: Parts) -> States:
    """What a device has of the states of whole parameters."""
    own = []
    for state in states.parameters:
        if state.name in params:
            arrays = tuple(part(array, slices.get(state.name), device) for array in state.arrays)
            own.append(state._replace(shape=params[state.name].shape, arrays=arrays))
    return states._replace(parameters=tuple(own))


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
        group: ProcessGroup,
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
