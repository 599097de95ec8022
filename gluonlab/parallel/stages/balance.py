"""Where to cut a chain of layers so that its stages are alike in time or in memory."""

from __future__ import annotations

import math
import time
from functools import lru_cache
from heapq import heappop, heappush
from typing import Callable, Dict, List, NamedTuple, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon, nd

from gluonlab.kvstores.groups import Group
from gluonlab.models.rewriting import rewrite
from gluonlab.parallel.data.replica import IMAGES, LABELS, with_loss
from gluonlab.parallel.objective import label_columns, make_loss
from gluonlab.parallel.planned import Shards
from gluonlab.parallel.stages.chain import check_count, in_stretches, possible_cuts, run
from gluonlab.parallel.stages.memory import StageMemory, bindings
from gluonlab.parallel.stages.stage import ACTIVATION, make_stage
from gluonlab.parallel.strategy import StrategyPlan

Cost = Callable[[int, int, int], float]  # of a stage, its number, with the layers from begin to end
TIME, MEMORY = "time", "memory"
REPEATS = 5


class Balanced(NamedTuple):
    """The cuts that were chosen, and each stage's part of all stages' time or memory, ``of``."""

    cuts: List[int]
    shares: List[float]
    of: str

    def of_rank_0(self, group: Group) -> Balanced:
        """What the group's first process has chosen, for all: times that are measured differ."""
        cuts, shares = (group.everyones(np.array(each))[0] for each in (self.cuts, self.shares))
        return Balanced(cuts.astype(int).tolist(), shares.tolist(), self.of)


def choose_cuts(
    layers: Sequence[gluon.HybridBlock],
    loss: gluon.HybridBlock,
    plan: StrategyPlan,
    ctx: mx.Context,
) -> Balanced:
    """The cuts that make the most expensive stage cheapest, by what ``plan.split.balance`` says.

    ``ctx``: the device on which layers are timed. Raises ModelError for a chain that cannot be cut
    into so many.
    """
    split = plan.split
    stages = split.size * split.stages_per_device
    possible = possible_cuts(layers)
    check_count(split.model, layers, possible, stages)
    stretches = in_stretches(layers, possible)  # what is cut as if each were one layer
    if split.balance == TIME:
        totals = np.cumsum([0.0, *layer_seconds(stretches, plan, ctx)])
        seconds = lambda stage, begin, end: totals[end] - totals[begin]  # noqa: E731
        found = _balanced(seconds, lambda *stage: 0.0, len(stretches), stages, TIME)
    else:
        costs = stage_bytes(stretches, loss, plan)
        found = _balanced(*costs, len(stretches), stages, MEMORY)
    return found._replace(cuts=[possible[cut - 1] for cut in found.cuts])


def _balanced(cost: Cost, spare: Cost, layers: int, stages: int, of: str) -> Balanced:
    cuts = least_largest(cost, layers, stages, spare)
    costs = [cost(*stage) for stage in zip(range(stages), [0, *cuts], [*cuts, layers])]
    return Balanced(cuts, [each / sum(costs) for each in costs], of)


def least_largest(
    cost: Cost, layers: int, stages: int, spare: Cost = lambda stage, begin, end: 0.0
) -> List[int]:
    """The cuts of ``layers`` into ``stages`` whose most expensive stage costs least.

    Each stage has one layer at least. ``spare``: by how much a stage may become cheaper with more
    layers. What is cheapest so far is extended first, so that the costs of stages that are much too
    long are never asked for (Dijkstra's algorithm, with the largest cost in place of the sum).
    """
    ways = [_Way(0.0, stages, (0,), 0.0, True)]
    extended = set()
    while True:
        way = heappop(ways)
        begin, end = ([0, *way.ends])[-2:]
        if not way.known:
            stage = stages - way.left - 1
            own = cost(stage, begin, end)
            heappush(ways, way._replace(largest=max(way.before, own), known=True))
            if way.left and layers - end > way.left:
                floor = max(way.before, own - spare(stage, begin, end))
                heappush(ways, way._replace(largest=floor, ends=(*way.ends[:-1], end + 1)))
        elif not way.left:
            return list(way.ends[1:-1])
        elif (way.left, end) not in extended:
            extended.add((way.left, end))
            first = end + 1 if way.left > 1 else layers
            heappush(ways, _Way(way.largest, way.left - 1, (*way.ends, first), way.largest, False))


class _Way(NamedTuple):
    """Stages that end at ``ends``, and how many are ``left``.

    ``largest``: the cost of the largest, or of what is not ``known`` at least; ``before``: without
    the last.
    """

    largest: float
    left: int
    ends: Tuple[int, ...]
    before: float
    known: bool


def stage_bytes(
    layers: Sequence[gluon.HybridBlock], loss: gluon.HybridBlock, plan: StrategyPlan
) -> Tuple[Cost, Cost]:
    """The bytes that a stage takes by MXNet's own plan, with all its slots, for a whole batch.

    And by how much more layers can reduce them, where the last one gives a large array.
    """
    split = plan.split
    bound = bindings(Shards((split.share,)), plan.microbatches, split, label_columns(loss))
    shapes = _shapes(layers, plan)
    learned = [any(map(_learns, layers[:begin])) for begin in range(len(layers))]

    @lru_cache(maxsize=None)
    def of_layers(begin: int, end: int) -> StageMemory:
        def given(images: int) -> Tuple[Tuple[int, ...], type]:
            return (images, *shapes[begin][1:]), np.float32

        learns = learned[begin]
        stage = make_stage(layers, begin, end, loss, plan.preprocess, plan.conversion, learns)
        return StageMemory(stage, given, plan)

    def cost(number: int, begin: int, end: int) -> float:
        return float(sum(of_layers(begin, end).taken(bound[number])))

    def spare(number: int, begin: int, end: int) -> float:
        """What is given on, its gradient, and what MXNet copies of it, is one of them no more."""
        arrays = 2 * len(bound[number]) + 2 * len({binding.slot for binding in bound[number]})
        return 4.0 * arrays * math.prod(shapes[end])

    return cost, spare


def _learns(layer: gluon.HybridBlock) -> bool:
    return any(param.grad_req != "null" for param in layer.collect_params().values())


def layer_seconds(
    layers: Sequence[gluon.HybridBlock], plan: StrategyPlan, ctx: mx.Context
) -> List[float]:
    """How long each layer takes for a microbatch, forward and backward, on the device."""
    shapes, seconds = _shapes(layers, plan), []
    for number in range(len(layers)):
        graph, inputs = _graph(layers, number, number + 1, plan, shapes)
        seconds.append(_seconds(graph, inputs, ctx))
    return seconds


def _graph(
    layers: Sequence[gluon.HybridBlock],
    begin: int,
    end: int,
    plan: StrategyPlan,
    shapes: Sequence[Tuple[int, ...]],
) -> Tuple[mx.sym.Symbol, Dict[str, Tuple[int, ...]]]:
    """Some layers as a graph, with the loss if they are the last, and the shapes of its inputs."""
    name = IMAGES if begin == 0 else ACTIVATION
    value = mx.sym.var(name)
    value = run(layers[begin:end], plan.preprocess(mx.sym, value) if begin == 0 else value)
    inputs = {name: shapes[begin]}
    if end == len(layers):
        value = with_loss(value, make_loss())
        inputs[LABELS] = shapes[0][:1]
    return value, inputs


def _shapes(layers: Sequence[gluon.HybridBlock], plan: StrategyPlan) -> List[Tuple[int, ...]]:
    """What each layer takes of a microbatch, and what the last one gives."""
    shape = (plan.microbatches.largest(plan.split.share), *plan.split.image_shape)
    shapes = [shape]
    for number in range(len(layers)):
        data = mx.sym.var(IMAGES)
        value = layers[number](plan.preprocess(mx.sym, data) if number == 0 else data)
        _, [shape], _ = value.infer_shape(**{IMAGES: shape})
        shapes.append(shape)
    return shapes


def _seconds(graph: mx.sym.Symbol, inputs: Dict[str, Tuple[int, ...]], ctx: mx.Context) -> float:
    shapes = graph.infer_shape(**inputs)[0]
    args = {name: nd.ones(shape, ctx) for name, shape in zip(graph.list_arguments(), shapes)}
    kinds = {name: (each.shape, each.dtype) for name, each in args.items()}
    graph = rewrite(graph, ctx, kinds, set(args) - {LABELS})
    states = graph.infer_shape(**{name: kind[0] for name, kind in kinds.items()})[2]
    aux = {n: nd.ones(shape, ctx) for n, shape in zip(graph.list_auxiliary_states(), states)}
    grads = {name: nd.zeros_like(array) for name, array in args.items() if name != LABELS}
    executor = graph.bind(ctx, args, args_grad=grads, grad_req=dict.fromkeys(grads, "write"),
                          aux_states=aux)  # fmt: skip
    heads = [nd.ones_like(output) for output in executor.outputs]
    best = float("inf")
    for _ in range(1 + REPEATS):
        nd.waitall()
        began = time.perf_counter()
        executor.forward(is_train=True)
        executor.backward(heads)
        nd.waitall()
        best = min(best, time.perf_counter() - began)
    return best
