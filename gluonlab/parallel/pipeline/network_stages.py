"""A network as a chain of layers, cut into stages: what a stage is, what it takes, where to cut.

Each layer of a chain takes what the one before gives. Where a block is nothing but its children,
one after the other, its layers are theirs: those of a HybridSequential, and of gluoncv's networks,
which are `features` and then `output`. A block that does more than that, such as a residual one, is
one layer. Which is the case is not believed but seen: the graph of the children in a row must be
that of the block.
"""

from __future__ import annotations

import math
import time
from functools import lru_cache, partial
from heapq import heappop, heappush
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Set, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon, nd
from mxnet.gluon import nn

from gluonlab.errors import ModelError
from gluonlab.kvstores.process_groups import ProcessGroup
from gluonlab.models.rewrite_network import rewrite
from gluonlab.models.symbol_graph import parsed
from gluonlab.parallel.compiled_graph import Kind, Kinds, bytes_of
from gluonlab.parallel.data.microbatches import Microbatches
from gluonlab.parallel.data.replica import IMAGES, LABELS, with_loss
from gluonlab.parallel.memory_estimate import Graph, ShardSizes, Taken, input_kinds, of_parameters
from gluonlab.parallel.mixed_precision import Conversion
from gluonlab.parallel.pipeline.pipeline_schedule import SCHEDULES, PipelineSchedule
from gluonlab.parallel.pipeline.verify_pipeline import peaks
from gluonlab.parallel.strategy import Parallelism, StrategyPlan
from gluonlab.parallel.training_loss import constants_of, label_columns, make_loss, scoring_loss

INPUT = "gluonlab_chain"


def layers_of(net: gluon.HybridBlock) -> List[gluon.HybridBlock]:
    """The layers of a network's chain; the network itself where it is none."""
    children = list(net._children.values())
    if not children or not _is_chain(net, children):
        return [net]
    return [layer for child in children for layer in layers_of(child)]


def run_layers(layers: Sequence[gluon.HybridBlock], value: Any) -> Any:
    """What the layers make of a value, a symbol or an array, one after the other."""
    for layer in layers:
        value = layer(value)
    return value


def check_count(
    model: str, layers: Sequence[gluon.HybridBlock], possible: Sequence[int], stages: int
) -> None:
    """Raise ModelError unless `possible_cuts` are enough for so many stages."""
    if len(possible) >= stages - 1:
        return
    many, why = len(layers), ""
    if len(possible) < many - 1:
        places = ", ".join(map(str, possible)) or "none"
        why = (
            f" (it can be cut in front of these layers: {places}; at the others parameters are "
            "used on both sides, or several arrays go over the cut)"
        )
    fewer = "fewer stages, " if len(possible) else ""
    raise ModelError(
        f"{model} is a chain of {many} layer{'s' * (many != 1)}, which cannot be cut into "
        f"{stages}{why}: choose {fewer}--split data, or another network"
    )


def check_cuts(model: str, layers: Sequence[gluon.HybridBlock], cuts: Sequence[int]) -> None:
    """Raise ModelError unless the chain can be cut in front of the layers with these numbers.

    The numbers are in order, from 1 on: a part has one layer at least.
    """
    last = len(layers) - 1
    check_count(model, layers, range(1, len(layers)), len(cuts) + 1)
    shown = ",".join(map(str, cuts))
    if list(cuts) != sorted(set(cuts)) or not all(1 <= cut <= last for cut in cuts):
        raise ModelError(
            f"--cut {shown}: give numbers from 1 to {last}, each larger than the one before; "
            f"the layers of {model}: {numbered(layers)}"
        )
    for cut in cuts:
        if len(run_layers(layers[:cut], mx.sym.var(INPUT)).list_outputs()) > 1:
            raise ModelError(
                f"--cut {shown}: layer {cut} of {model}, {name_of(layers[cut])}, takes several "
                "arrays, and one is all that goes over a cut: cut elsewhere"
            )


def possible_cuts(layers: Sequence[gluon.HybridBlock]) -> List[int]:
    """The numbers of the layers in front of which a chain can be cut.

    One array goes over a cut, and no parameter is used on both sides of it.
    """
    value, bounds = mx.sym.var(INPUT), [0]
    for number, layer in enumerate(layers[:-1], start=1):
        value = layer(value)
        if len(value.list_outputs()) == 1:
            bounds.append(number)
    last_user: Dict[str, int] = {}  # the stretch between bounds that is the last to use a parameter
    stretches = list(zip(bounds, [*bounds[1:], len(layers)]))
    names = [
        set(run_layers(layers[a:b], mx.sym.var(INPUT)).list_inputs()) - {INPUT}
        for a, b in stretches
    ]
    for number, own in enumerate(names):
        last_user.update(dict.fromkeys(own, number))
    cuts, reaches = [], 0
    for number, own in enumerate(names):
        if number > reaches:
            cuts.append(bounds[number])
        reaches = max([reaches, *(last_user[name] for name in own)])
    return cuts


def in_stretches(
    layers: Sequence[gluon.HybridBlock], cuts: Sequence[int]
) -> List[gluon.HybridBlock]:
    """The layers between cuts, each stretch as one layer."""
    stretches = []
    for begin, end in zip([0, *cuts], [*cuts, len(layers)]):
        stretch = layers[begin]
        if end - begin > 1:
            stretch = nn.HybridSequential(prefix="")  # takes no name
            stretch.add(*layers[begin:end])
        stretches.append(stretch)
    return stretches


def numbered(layers: Sequence[gluon.HybridBlock]) -> str:
    """``0 conv0, 1 pool0, 2 relu0``"""
    return ", ".join(f"{number} {name_of(layer)}" for number, layer in enumerate(layers))


def name_of(layer: gluon.HybridBlock) -> str:
    """A layer's name without those of the blocks that it is in."""
    return str(layer.name).rsplit("_", 1)[-1]


def _is_chain(net: gluon.HybridBlock, children: Sequence[gluon.HybridBlock]) -> bool:
    value = mx.sym.var(INPUT)
    try:
        return _shape_of(run_layers(children, value)) == _shape_of(net(value))
    except (TypeError, ValueError, AttributeError, AssertionError, mx.base.MXNetError):
        return False  # a child takes something else than what the one before gives


def _shape_of(graph: mx.sym.Symbol) -> Tuple[Any, ...]:
    """A graph without names of operators and versions of entries, which count what was made."""
    whole = parsed(graph)
    nodes: List[Dict[str, Any]] = whole["nodes"]
    return (
        [
            (
                node["op"],
                [entry[:2] for entry in node["inputs"]],
                node.get("attrs"),
                node["op"] == "null" and node["name"],
            )
            for node in nodes
        ],
        [head[:2] for head in whole["heads"]],
    )


ACTIVATION = "gluonlab_activation"


class PipelineStage(NamedTuple):
    """A stretch of the network: ``inputs`` -> its activation, or of the last one loss and scores.

    ``params``: those that it has, by name. ``scoring``: the graph for labels (n,), where those of
    training are of another kind. ``wants``: whether a stage before it learns, and so needs the
    gradient of this one's input. ``constants``: what its loss keeps, by name.
    """

    graph: mx.sym.Symbol
    scoring: mx.sym.Symbol
    inputs: Sequence[str]
    params: Dict[str, gluon.Parameter]
    wants: bool
    constants: Dict[str, gluon.Parameter]

    @property
    def kept(self) -> Dict[str, gluon.Parameter]:
        """All arrays that its graphs have, by name."""
        return {**self.params, **self.constants}

    @property
    def is_last(self) -> bool:
        """Whether it ends with the loss."""
        return LABELS in self.inputs

    @property
    def learns(self) -> bool:
        """Whether a parameter of it does."""
        return any(param.grad_req != "null" for param in self.params.values())


def make_stages(
    layers: Sequence[gluon.HybridBlock],
    cuts: Sequence[int],
    loss: gluon.HybridBlock,
    preprocess: Callable[[Any, Any], Any],
    convert: Conversion,
) -> List[PipelineStage]:
    """The stages between ``cuts``, numbers of the layers with which stages begin, but the first.

    Raises ModelError for a parameter that two of them share: its gradients would have to be summed
    between devices.
    """
    bounds = [0, *cuts, len(layers)]
    stages: List[PipelineStage] = []
    learned = False
    taken: Set[str] = set()
    for begin, end in zip(bounds, bounds[1:]):
        stage = make_stage(layers, begin, end, loss, preprocess, convert, learned)
        for name in taken.intersection(stage.params):
            raise ModelError(
                f"{name} is a parameter of layers on both sides of the cut in front of layer "
                f"{begin}: cut elsewhere, or choose --split data"
            )
        stages.append(stage)
        learned = learned or stage.learns
        taken.update(stage.params)
    return stages


def make_stage(
    layers: Sequence[gluon.HybridBlock],
    begin: int,
    end: int,
    loss: gluon.HybridBlock,
    preprocess: Callable[[Any, Any], Any],
    convert: Conversion,
    wants: bool,
) -> PipelineStage:
    """The layers from ``begin`` to ``end`` as a stage."""
    first, last = begin == 0, end == len(layers)
    of_labels = scoring_loss(loss) if label_columns(loss) else loss
    data = mx.sym.var(IMAGES if first else ACTIVATION)
    value = convert(run_layers(layers[begin:end], preprocess(mx.sym, data) if first else data))
    graph = with_loss(value, loss) if last else value
    scoring = with_loss(value, of_labels) if last else value
    # of all layers: one may take a parameter of another
    params = {name: each for layer in layers for name, each in layer.collect_params().items()}
    names = [*graph.list_arguments(), *graph.list_auxiliary_states()]
    own = {name: params[name] for name in names if name in params}
    inputs = [IMAGES if first else ACTIVATION, *[LABELS] * last]
    return PipelineStage(graph, scoring, inputs, own, wants, constants_of(loss) if last else {})


# What stages take on each device, planned. A stage's graphs share the memory of their activations
# slot by slot: as many slots as microbatches are kept there, by
# `gluonlab.parallel.pipeline.verify_pipeline.peaks`.

MakeSchedule = Callable[[int], PipelineSchedule]  # for a number of microbatches


class Binding(NamedTuple):
    """A graph that the pipeline binds for a stage: for how many images, and in which slot.

    ``columns``: of their labels, `gluonlab.parallel.training_loss.label_columns`. ``add``: whether
    it adds to the gradients that are there.
    """

    images: int
    columns: int
    add: bool
    slot: int


def schedule_of(split: Parallelism, microbatches: int) -> PipelineSchedule:
    """The order in which a copy of the network works on so many microbatches."""
    return SCHEDULES[split.schedule](split.size, microbatches, split.stages_per_device)


def bindings(
    shards: ShardSizes, microbatches: Microbatches, split: Parallelism, columns: int
) -> List[Set[Binding]]:
    """What `gluonlab.parallel.pipeline.pipeline_executor.Pipeline` binds, of each stage."""
    found: List[Set[Binding]] = [set() for _ in range(split.size * split.stages_per_device)]
    for share in filter(None, shards.trained):
        bounds = microbatches.bounds(share)
        slots = peaks(schedule_of(split, len(bounds)))
        for number, (begin, end) in enumerate(bounds):
            for own, count in zip(found, slots):
                own.add(Binding(end - begin, columns, number > 0, number % count))
    for share in filter(None, shards.scored):
        for begin, end in microbatches.bounds(share):
            for own in found:
                own.add(Binding(end - begin, 0, False, 0))
    return found


class StagedMemory:
    """Tells what the devices of a copy take, stage i on device ``i % plan.split.size``."""

    def __init__(
        self, stages: Sequence[PipelineStage], loss: gluon.HybridBlock, plan: StrategyPlan
    ) -> None:
        self._stages, self._plan, self._columns = stages, plan, label_columns(loss)
        self._given: Dict[Tuple[int, int], Kind] = {}
        self._own = [
            StageMemory(stage, partial(self._activation, number), plan)
            for number, stage in enumerate(stages)
        ]

    def taken(self, shards: ShardSizes) -> List[Taken]:
        """As `gluonlab.parallel.strategy.Strategy` says."""
        split = self._plan.split
        bound = bindings(shards, self._plan.microbatches, split, self._columns)
        of_stages = [each.taken(graphs) for each, graphs in zip(self._own, bound)]
        return [
            Taken(*map(sum, zip(*of_stages[device :: split.size]))) for device in range(split.size)
        ]

    def _activation(self, number: int, images: int) -> Kind:
        """What the stage before gives for so many images."""
        key = number, images
        if key not in self._given:
            before = self._stages[number - 1]
            split = self._plan.split
            kinds = input_kinds(images, split.image_shape, self._columns, split.image_dtype)
            if number > 1:
                kinds[ACTIVATION] = self._activation(number - 1, images)
            inputs = {name: kinds[name] for name in before.inputs}
            [self._given[key]] = Graph(before.graph, before.kept).outputs(inputs)
        return self._given[key]


class StageMemory:
    """Tells what one stage takes; ``given(images)``: shape and type of what it is given."""

    def __init__(
        self, stage: PipelineStage, given: Callable[[int], Kind], plan: StrategyPlan
    ) -> None:
        self._stage, self._given, self._plan = stage, given, plan
        self._always = of_parameters(
            stage.params.values(), plan.make_optimizer(), plan.kvstore, len(plan.split.copies)
        )
        self._planned: Dict[Tuple[int, int], int] = {}  # of graphs, by images and columns
        self._apart: Dict[Tuple[int, int], Tuple[int, int]] = {}

    def taken(self, bound: Set[Binding]) -> Taken:
        """All together, with these graphs."""
        apart = [self._own(binding.images, binding.columns) for binding in bound]
        own, inputs = map(sum, zip(*apart))
        slots: Dict[int, Tuple[int, int]] = {}  # the largest graph of each
        for binding in bound:
            size = binding.images, binding.columns
            slots[binding.slot] = max(slots.get(binding.slot, size), size)
        activations = own + sum(self._activations(*size) for size in slots.values())
        return Taken(*self._always, activations, inputs)

    def _own(self, images: int, columns: int) -> Tuple[int, int]:
        """What each binding has to itself: beside what is an input of the network, and that."""
        key = images, columns
        if key not in self._apart:
            kinds = self._kinds(images, columns)
            taken = {name: bytes_of(kind) for name, kind in kinds.items()}
            given = taken.pop(ACTIVATION, 0)
            self._apart[key] = given + self._graph(columns).own(kinds), sum(taken.values())
        return self._apart[key]

    def _activations(self, images: int, columns: int) -> int:
        key = images, columns
        if key not in self._planned:
            self._planned[key] = self._graph(columns).activations(self._kinds(images, columns))
        return self._planned[key]

    def _graph(self, columns: int) -> Graph:
        stage = self._stage
        symbol = stage.graph if columns else stage.scoring
        return Graph(symbol, stage.kept, [ACTIVATION] * stage.wants)

    def _kinds(self, images: int, columns: int) -> Kinds:
        split = self._plan.split
        found = input_kinds(images, split.image_shape, columns, split.image_dtype)
        if ACTIVATION in self._stage.inputs:
            found[ACTIVATION] = self._given(images)
        return {name: found[name] for name in self._stage.inputs}


# Where to cut, so that stages are alike in time or in memory.

Cost = Callable[[int, int, int], float]  # of a stage, its number, with the layers from begin to end
TIME, MEMORY = "time", "memory"
REPEATS = 5


class Balanced(NamedTuple):
    """The cuts that were chosen, and each stage's part of all stages' time or memory, ``of``."""

    cuts: List[int]
    shares: List[float]
    of: str

    def of_rank_0(self, group: ProcessGroup) -> Balanced:
        """What the group's first process has chosen, for all: times that are measured differ."""
        cuts, shares = (group.all_gather(np.array(each))[0] for each in (self.cuts, self.shares))
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
    ways = [_PartialPartition(0.0, stages, (0,), 0.0, True)]
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
            heappush(
                ways,
                _PartialPartition(
                    way.largest, way.left - 1, (*way.ends, first), way.largest, False
                ),
            )


class _PartialPartition(NamedTuple):
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
    bound = bindings(ShardSizes((split.share,)), plan.microbatches, split, label_columns(loss))
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
    value = run_layers(layers[begin:end], plan.preprocess(mx.sym, value) if begin == 0 else value)
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
