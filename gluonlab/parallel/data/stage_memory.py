"""How much memory a network's stages take on a device, before they are bound to any."""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, Sequence, Set, Tuple

import mxnet as mx
from mxnet import gluon, nd

from gluonlab.parallel.data.stage_gradients import (
    Arrays,
    Gradients,
    Kinds,
    Wishes,
    bytes_of,
    kinds_between,
)
from gluonlab.parallel.data.stages import Stage, cut

MIB = 2**20
Make = Callable[..., nd.NDArray]


def allocated_mib(executor: Any) -> int:
    """What MXNet says that a graph's plan allocates; it leaves fractions of a MiB out."""
    [mebibytes] = re.findall(r"Total (\d+) MB allocated", executor.debug_str())
    return int(mebibytes)


def planned_mib(
    graphs: Sequence[Tuple[mx.sym.Symbol, Kinds]],
    params: Dict[str, gluon.Parameter],
    without_memory: Make,
) -> float:
    """What one device needs to train by all of these graphs, one after the other.

    Each graph comes with shapes and types of all its arguments and states. ``without_memory(shape,
    dtype=...)``: an array that has none. As in `gluonlab.parallel.data.tower.Memory`, stages of the
    same place lie in the memory of the largest, and gradients between stages in arrays that all
    graphs of a size use. But MXNet makes a copy of the gradients that a stage's backward begins
    with, for each graph, and its plan does not tell of them.
    """
    arrays, copies = Arrays(without_memory), 0
    told: List[List[float]] = []  # MiB of each stage of each graph
    for graph, kinds in graphs:
        stages = cut(graph)
        layers = [layer for stage in stages for layer in stage.layers]
        given = {**kinds, **{name: kinds[layer.beta] for layer in layers for name in layer.told}}
        between, wishes = kinds_between(stages, given), Wishes(stages, layers, params)
        Gradients(stages, wishes, between, arrays)
        copies += sum(bytes_of(between[name]) for name in wishes.wanted)
        wanted = {*wishes.wanted, *(name for layer in layers for name in layer.told[:2])}
        wanted.update(name for name, param in params.items() if param.grad_req != "null")
        mebibytes = []
        for stage, learns in zip(stages, wishes.learns):
            asked = _asked(stage, learns, wanted, params)
            mebibytes.append(_stage_mib(stage, asked, between, given, without_memory))
        told.append(mebibytes)
    largest: List[float] = [max(of_one_place) for of_one_place in zip(*told)]
    return float(sum(largest) + (arrays.bytes + copies) / MIB)


def _asked(
    stage: Stage, learns: bool, wanted: Set[str], params: Dict[str, gluon.Parameter]
) -> List[str]:
    """The arguments for which `parallel.data.tower.Tower` binds a stage with gradients."""
    names = stage.graph.list_arguments()
    if learns:
        return [name for name in names if name in wanted]
    return [name for name in names if name in params][-1:]


def _stage_mib(
    stage: Stage, asked: List[str], between: Kinds, given: Kinds, without_memory: Make
) -> float:
    kinds = {name: between[name] for name in stage.graph.list_arguments()}
    arrays = {name: without_memory(shape, dtype=dtype) for name, (shape, dtype) in kinds.items()}
    states = {name: without_memory(given[name][0]) for name in stage.graph.list_auxiliary_states()}
    requests = {name: "write" if name in asked else "null" for name in arrays}
    ctx = next(iter(arrays.values())).context
    gradients = {name: arrays[name] for name in asked}
    executor = stage.graph.bind(ctx, arrays, gradients, requests, states)
    return allocated_mib(executor) + 0.5  # of a fraction that is left out half, on average
