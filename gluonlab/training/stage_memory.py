"""How much memory the stages of a network take on one device, told before they are bound to arrays that have any."""

from __future__ import annotations

import re
from typing import Callable, Dict

import mxnet as mx
from mxnet import gluon, nd

from gluonlab.training.stage_gradients import Gradients, Kind, Wishes, kinds_between
from gluonlab.training.stages import cut

MIB = 2**20


def planned_mib(
    graph: mx.sym.Symbol,
    params: Dict[str, gluon.Parameter],
    kinds: Dict[str, Kind],
    without_memory: Callable[..., nd.NDArray],
) -> int:
    """``kinds``: shapes and types of all arguments and states. ``without_memory(shape, dtype=...)``: an array that has none."""
    stages = cut(graph)
    layers = [layer for stage in stages for layer in stage.layers]
    given = dict(kinds)
    for layer in layers:
        given.update((name, kinds[layer.beta]) for name in layer.told)
    between = kinds_between(stages, given)
    wishes = Wishes(stages, layers, params)
    gradients = Gradients(stages, wishes, between, without_memory)
    trained = {name for name, param in params.items() if param.grad_req != "null"}
    wanted = wishes.wanted | trained | {name for layer in layers for name in layer.told[:2]}
    total = gradients.bytes / MIB
    for stage, learns in zip(stages, wishes.learns):
        names = stage.graph.list_arguments()
        arrays = {name: without_memory(between[name][0], dtype=between[name][1]) for name in names}
        targets = {name: array for name, array in arrays.items() if learns and name in wanted}
        states = {name: without_memory(given[name][0]) for name in stage.graph.list_auxiliary_states()}
        requests = {name: "write" if name in targets else "null" for name in names}
        executor = stage.graph.bind(arrays_on(arrays), arrays, targets, requests, states)
        [mebibytes] = re.findall(r"Total (\d+) MB allocated", executor.debug_str())
        total += int(mebibytes) + 0.5  # MXNet leaves fractions out
    return round(total)


def arrays_on(arrays: Dict[str, nd.NDArray]) -> mx.Context:
    """The device that arrays have in common."""
    return next(iter(arrays.values())).context
