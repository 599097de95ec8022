"""Each device's part of a network's parameters and of their states, and the whole of them."""

from __future__ import annotations

from typing import Dict, List, Mapping, Sequence

import mxnet as mx
from mxnet import gluon, nd

from gluonlab.optimizers.states import ParameterState, States
from gluonlab.parallel.channels.layout import Slice

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
