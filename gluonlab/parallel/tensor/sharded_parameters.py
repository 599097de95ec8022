"""Cuts parameters, optimizer states and running statistics into shards, and joins shards again.

Each device holds one shard of each sliced array, and a complete copy of every other array.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Tuple

import mxnet as mx
from mxnet import gluon, nd

from gluonlab.data.loading.split_batch import Microbatches
from gluonlab.kvstores.process_groups import ProcessGroup
from gluonlab.optimizers.optimizer_states import ParameterState, States
from gluonlab.parallel.data.replica import IMAGES
from gluonlab.parallel.data.running_statistics import RunningStatistics
from gluonlab.parallel.tensor.layout import Layout, Slice, unsegmented_graph

Slices = Mapping[str, Slice]
Parameters = Dict[str, gluon.Parameter]


class ReplicatedParameter:
    """A parameter that is not sharded.

    ``parts[i]`` is the parameter on device i of each replica.
    """

    def __init__(self, parts: Sequence[gluon.Parameter]) -> None:
        self.name = str(parts[0].name)
        self._arrays = {ctx: part.data(ctx) for part in parts for ctx in part.list_ctx()}

    def list_ctx(self) -> List[mx.Context]:
        """Return the devices."""
        return list(self._arrays)

    def data(self, ctx: mx.Context) -> nd.NDArray:
        """Return the array on one device."""
        return self._arrays[ctx]


def shard_parameters(
    params: Mapping[str, gluon.Parameter], slices: Slices, device: int, ctxs: Sequence[mx.Context]
) -> Parameters:
    """Create one device's shards of the whole parameters ``params``.

    Shards have the names and multipliers of ``params``. ``slices``: the sliced parameters, by name.
    ``ctxs``: device number ``device`` of each replica.
    """
    shards: Parameters = {}
    for name, whole in params.items():
        value = slice_shard(whole.list_data()[0], slices.get(name), device)
        shard = gluon.Parameter(
            name, whole.grad_req, value.shape, whole.dtype, whole.lr_mult, whole.wd_mult,
            differentiable=whole._differentiable,
        )  # fmt: skip
        shard.initialize(mx.init.Constant(0), ctx=list(ctxs))
        for array in shard.list_data():
            value.copyto(array)
        shards[name] = shard
    return shards


def slice_shard(whole: nd.NDArray, slice: "Slice | None", device: int) -> nd.NDArray:
    """Return a device's shard of an array, or the entire array if ``slice`` is None."""
    if slice is None:
        return whole
    begin, end = slice.bounds[device]
    return nd.slice_axis(whole, axis=slice.axis, begin=begin, end=end)


def gather_shards(shards: Sequence[nd.NDArray], slice: "Slice | None") -> nd.NDArray:
    """Return the entire array on the CPU, concatenated from the devices' shards.

    If ``slice`` is None, every device has the entire array. The call does not wait for the copies.
    """
    if slice is None:
        return shards[0].copyto(mx.cpu())
    return nd.concat(*[shard.copyto(mx.cpu()) for shard in shards], dim=slice.axis)


def gather_states(states_by_device: Sequence[States], slices: Slices) -> States:
    """Join the devices' optimizer states into states of whole parameters, sorted by name."""
    by_name: Dict[str, List[ParameterState]] = {}
    for states in states_by_device:
        for state in states.parameters:
            by_name.setdefault(state.name, []).append(state)
    whole = tuple(_gather_state(by_name[name], slices.get(name)) for name in sorted(by_name))
    return states_by_device[0]._replace(parameters=whole)


def _gather_state(shards: Sequence[ParameterState], slice: "Slice | None") -> ParameterState:
    """Return the optimizer state of a whole parameter, joined from the states of its shards."""
    first = shards[0]
    if slice is None or first.shape is None:
        return first
    arrays = tuple(gather_shards(arrays, slice) for arrays in zip(*(shard.arrays for shard in shards)))
    shape = list(first.shape)
    shape[slice.axis] = slice.bounds[-1][1]
    return first._replace(shape=tuple(shape), arrays=arrays)


def shard_states(states: States, slices: Slices, device: int, params: Parameters) -> States:
    """Cut the optimizer states of whole parameters, and return one device's shards."""
    shards = []
    for state in states.parameters:
        if state.name in params:
            arrays = tuple(slice_shard(array, slices.get(state.name), device) for array in state.arrays)
            shards.append(state._replace(shape=params[state.name].shape, arrays=arrays))
    return states._replace(parameters=tuple(shards))


class _DeviceNetwork(gluon.HybridBlock):
    """One device's part of a network, with only the methods that `RunningStatistics` calls."""

    def __init__(self, layout: Layout, device: int, params: Parameters, paths: Mapping[str, str]) -> None:
        super().__init__()
        self._layout, self._device = layout, device
        self._device_params, self._paths = params, paths

    def collect_params(self, select: Any = None) -> Parameters:
        """Return the device's parameters."""
        return self._device_params

    def _collect_params_with_prefix(self, prefix: str = "", select: Any = None) -> Parameters:
        """Return the device's parameters, by their paths in the whole network."""
        return {path: self._device_params[name] for name, path in self._paths.items()}

    def __call__(self, images: mx.sym.Symbol) -> mx.sym.Symbol:
        """Return the device's graph, without collectives."""
        return unsegmented_graph(self._layout, self._device)(**{IMAGES: images})


class ShardedStatistics:
    """The running statistics on all devices of all replicas, with `RunningStatistics`'s methods.

    ``params[i]``: the parameters on device i of each replica. ``copies[j]``: the devices of replica
    j. ``paths``: the paths of parameters in the whole network, by name.
    """

    def __init__(
        self,
        layout: Layout,
        params: Sequence[Parameters],
        copies: Sequence[Sequence[mx.Context]],
        paths: Mapping[str, str],
        microbatches: Microbatches,
        group: ProcessGroup,
    ) -> None:
        self._params = params
        self._slices = {path: layout.slices[name] for name, path in paths.items() if name in layout.slices}
        self._by_device = [
            RunningStatistics(
                _DeviceNetwork(layout, device, device_params, paths), microbatches, group=group,
                copies=[[ctxs[device]] for ctxs in copies],
            )
            for device, device_params in enumerate(params)
        ]  # fmt: skip
        self.exist = self._by_device[0].exist

    def record_batch(self, shards: Sequence[nd.NDArray]) -> None:
        """Call `RunningStatistics.record_batch` for every device."""
        for statistics in self._by_device:
            statistics.record_batch(shards)

    def average(self) -> None:
        """Call `RunningStatistics.average` for every device."""
        for statistics in self._by_device:
            statistics.average()

    def state(self) -> "Tuple[Dict[str, nd.NDArray], Dict[str, Any]]":
        """Return the whole network's running statistics, like `RunningStatistics.state`."""
        states = [statistics.state() for statistics in self._by_device]
        first, counts = states[0]
        arrays = {
            name: gather_shards([device_arrays[name] for device_arrays, _ in states], self._slice_of(name))
            for name in first
        }
        return arrays, counts

    def restore(self, arrays: Mapping[str, nd.NDArray], counts: Mapping[str, Any]) -> None:
        """Restore every device's statistics from a `state` of the whole network."""
        for device, statistics in enumerate(self._by_device):
            statistics.restore(
                {name: slice_shard(array, self._slice_of(name), device) for name, array in arrays.items()}, counts
            )

    def _slice_of(self, name: str) -> Any:
        """Return the slice of a state's array "kind/copy/path"; None for an unsliced array."""
        kind, *_, path = name.split("/")
        return self._slices.get(path) if kind in ("running", "start") else None
