"""Cuts a network's chain of layers into pipeline stages, and estimates each stage's memory.

Each layer of a chain reads the output of the previous layer. A block that only calls its children
one after the other is divided into the layers of its children. Examples are HybridSequential, and
gluoncv's networks, which call `features` and then `output`. Any other block, such as a residual
block, is one layer. To decide, `_is_chain` compares the block's graph with the graph of its
children called one after the other.
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

from gluonlab.data.loading.split_batch import Microbatches
from gluonlab.errors import ModelError
from gluonlab.kvstores.process_groups import ProcessGroup
from gluonlab.models.rewrite_network import rewrite_graph
from gluonlab.models.symbol_graph import parse_graph
from gluonlab.parallel.compiled_graph import ArraySpec, ArraySpecs, array_bytes
from gluonlab.parallel.data.replica import IMAGES, LABELS, append_loss
from gluonlab.parallel.memory_estimate import MemoryEstimate, ShardSizes, UnboundGraph, input_specs, parameter_bytes
from gluonlab.parallel.mixed_precision import Conversion
from gluonlab.parallel.pipeline.pipeline_schedule import SCHEDULES, PipelineSchedule
from gluonlab.parallel.pipeline.verify_pipeline_schedule import peaks
from gluonlab.parallel.strategy import Parallelism, StrategyPlan
from gluonlab.parallel.training_loss import label_columns, loss_parameters, make_loss, scoring_loss

CHAIN_INPUT = "gluonlab_chain"


def chain_layers(net: gluon.HybridBlock) -> List[gluon.HybridBlock]:
    """Return the layers of a network's chain, or only the network itself if it is not a chain."""
    children = list(net._children.values())
    if not children or not _is_chain(net, children):
        return [net]
    return [layer for child in children for layer in chain_layers(child)]


def apply_layers(layers: Sequence[gluon.HybridBlock], value: Any) -> Any:
    """Apply layers one after the other to a symbol or an array."""
    for layer in layers:
        value = layer(value)
    return value


def check_stage_count(model: str, layers: Sequence[gluon.HybridBlock], possible: Sequence[int], stages: int) -> None:
    """Raise ModelError if a network has too few possible cuts for the number of stages.

    ``possible``: the result of `possible_cuts`.
    """
    if len(possible) >= stages - 1:
        return
    layer_count, reason = len(layers), ""
    if len(possible) < layer_count - 1:
        numbers = ", ".join(map(str, possible))
        places = f"can be cut only in front of layers {numbers}: elsewhere," if numbers else "cannot be cut:"
        reason = f" (it {places} both sides share parameters, or the next layer needs several input arrays)"
    fewer = "fewer stages, " if len(possible) else ""
    raise ModelError(
        f"{model} is a chain of {layer_count} layer{'s' * (layer_count != 1)}, which cannot be "
        f"cut into {stages} stages{reason}: choose {fewer}--strategy data, or another model"
    )


def check_cuts(model: str, layers: Sequence[gluon.HybridBlock], cuts: Sequence[int]) -> None:
    """Raise ModelError if the chain cannot be cut before each of the layers numbered ``cuts``.

    The numbers must be at least 1 and increase, so that each stage has a layer.
    """
    last = len(layers) - 1
    check_stage_count(model, layers, range(1, len(layers)), len(cuts) + 1)
    cut_text = ",".join(map(str, cuts))
    if list(cuts) != sorted(set(cuts)) or not all(1 <= cut <= last for cut in cuts):
        raise ModelError(
            f"--cut {cut_text}: must be increasing layer numbers from 1 to {last}; the layers of {model} are: "
            f"{list_layers(layers)}"
        )
    for cut in cuts:
        if len(apply_layers(layers[:cut], mx.sym.var(CHAIN_INPUT)).list_outputs()) > 1:
            raise ModelError(
                f"--cut {cut_text}: layer {cut} of {model}, {layer_name(layers[cut])}, needs several "
                "input arrays, but only one array can be sent between stages: cut elsewhere"
            )


def possible_cuts(layers: Sequence[gluon.HybridBlock]) -> List[int]:
    """Return the numbers of the layers before which a chain can be cut.

    Only one array may cross a cut, and no parameter may be used on both sides of the cut.
    """
    value, bounds = mx.sym.var(CHAIN_INPUT), [0]
    for number, layer in enumerate(layers[:-1], start=1):
        value = layer(value)
        if len(value.list_outputs()) == 1:
            bounds.append(number)
    last_user: Dict[str, int] = {}  # parameter -> number of the last stretch that uses it
    stretches = list(zip(bounds, [*bounds[1:], len(layers)]))
    names = [
        set(apply_layers(layers[a:b], mx.sym.var(CHAIN_INPUT)).list_inputs()) - {CHAIN_INPUT} for a, b in stretches
    ]
    for number, used in enumerate(names):
        last_user.update(dict.fromkeys(used, number))
    cuts, last_needed = [], 0
    for number, used in enumerate(names):
        if number > last_needed:
            cuts.append(bounds[number])
        last_needed = max([last_needed, *(last_user[name] for name in used)])
    return cuts


def group_layers(layers: Sequence[gluon.HybridBlock], cuts: Sequence[int]) -> List[gluon.HybridBlock]:
    """Return one block for each group of layers between two cuts."""
    stretches = []
    for begin, end in zip([0, *cuts], [*cuts, len(layers)]):
        stretch = layers[begin]
        if end - begin > 1:
            stretch = nn.HybridSequential(prefix="")  # adds no prefix to the layers' names
            stretch.add(*layers[begin:end])
        stretches.append(stretch)
    return stretches


def list_layers(layers: Sequence[gluon.HybridBlock]) -> str:
    """Return the numbers and names of layers as text: "0 conv0, 1 pool0, 2 relu0"."""
    return ", ".join(f"{number} {layer_name(layer)}" for number, layer in enumerate(layers))


def layer_name(layer: gluon.HybridBlock) -> str:
    """Return a layer's name without the names of the blocks that contain it."""
    return str(layer.name).rsplit("_", 1)[-1]


def _is_chain(net: gluon.HybridBlock, children: Sequence[gluon.HybridBlock]) -> bool:
    """Return True if a block only calls its children, one after the other."""
    value = mx.sym.var(CHAIN_INPUT)
    try:
        return _graph_structure(apply_layers(children, value)) == _graph_structure(net(value))
    except (TypeError, ValueError, AttributeError, AssertionError, mx.base.MXNetError):
        return False  # a child does not accept the output of the previous one


def _graph_structure(graph: mx.sym.Symbol) -> Tuple[Any, ...]:
    """Return a graph's operators, attributes, inputs and outputs, for comparing two graphs.

    Operator names and entry versions are omitted: they contain counters, which differ between equal
    graphs.
    """
    json_graph = parse_graph(graph)
    nodes: List[Dict[str, Any]] = json_graph["nodes"]
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
        [head[:2] for head in json_graph["heads"]],
    )


ACTIVATION = "gluonlab_activation"


class PipelineStage(NamedTuple):
    """A stage of the network, whose output is an activation, or the loss and scores.

    Attributes:
        graph: The graph for training.
        scoring: The graph for evaluation, whose labels have shape (n,).
        inputs: Names of the inputs: images or an activation, and in the last stage also labels.
        params: Parameters of the stage, by name.
        needs_input_gradient: Whether an earlier stage has trained parameters.
        constants: Arrays of the loss, by name.
    """

    graph: mx.sym.Symbol
    scoring: mx.sym.Symbol
    inputs: Sequence[str]
    params: Dict[str, gluon.Parameter]
    needs_input_gradient: bool
    constants: Dict[str, gluon.Parameter]

    @property
    def all_parameters(self) -> Dict[str, gluon.Parameter]:
        """All arrays of the stage's graphs, by name."""
        return {**self.params, **self.constants}

    @property
    def is_last(self) -> bool:
        """True if the stage ends with the loss."""
        return LABELS in self.inputs

    @property
    def has_trained_parameters(self) -> bool:
        """True if any parameter of the stage is trained."""
        return any(param.grad_req != "null" for param in self.params.values())


def make_stages(
    layers: Sequence[gluon.HybridBlock],
    cuts: Sequence[int],
    loss: gluon.HybridBlock,
    preprocess: Callable[[Any, Any], Any],
    convert: Conversion,
) -> List[PipelineStage]:
    """Create the stages of a network.

    ``cuts``: the number of the first layer in each of the stages 1, 2, ...

    Raises:
        ModelError: Two stages share a parameter, whose gradients would have to be summed across
            devices.
    """
    bounds = [0, *cuts, len(layers)]
    stages: List[PipelineStage] = []
    needs_gradient = False
    used_names: Set[str] = set()
    for begin, end in zip(bounds, bounds[1:]):
        stage = make_stage(layers, begin, end, loss, preprocess, convert, needs_gradient)
        for name in used_names.intersection(stage.params):
            raise ModelError(
                f"layers on both sides of the cut in front of layer {begin} share the parameter {name}: cut "
                "elsewhere, or choose --strategy data"
            )
        stages.append(stage)
        needs_gradient = needs_gradient or stage.has_trained_parameters
        used_names.update(stage.params)
    return stages


def make_stage(
    layers: Sequence[gluon.HybridBlock],
    begin: int,
    end: int,
    loss: gluon.HybridBlock,
    preprocess: Callable[[Any, Any], Any],
    convert: Conversion,
    needs_input_gradient: bool,
) -> PipelineStage:
    """Create a stage from the layers ``begin`` to ``end`` - 1.

    ``needs_input_gradient``: whether backward must compute the gradient of the stage's input.
    """
    first, last = begin == 0, end == len(layers)
    plain_loss = scoring_loss(loss) if label_columns(loss) else loss
    data = mx.sym.var(IMAGES if first else ACTIVATION)
    scores = convert(apply_layers(layers[begin:end], preprocess(mx.sym, data) if first else data))
    graph = append_loss(scores, loss) if last else scores
    scoring = append_loss(scores, plain_loss) if last else scores
    # Parameters of all layers, because a layer may use a parameter of another layer.
    params = {name: param for layer in layers for name, param in layer.collect_params().items()}
    names = [*graph.list_arguments(), *graph.list_auxiliary_states()]
    stage_params = {name: params[name] for name in names if name in params}
    inputs = [IMAGES if first else ACTIVATION, *[LABELS] * last]
    constants = loss_parameters(loss) if last else {}
    return PipelineStage(graph, scoring, inputs, stage_params, needs_input_gradient, constants)


# Memory estimates. A slot is memory for the activations of one microbatch. A stage has as many
# slots as it keeps microbatches at once
# (`gluonlab.parallel.pipeline.verify_pipeline_schedule.peaks`).

MakeSchedule = Callable[[int], PipelineSchedule]  # for a number of microbatches


class StageBinding(NamedTuple):
    """A graph that the pipeline must bind for a stage.

    Attributes:
        images: Number of images.
        columns: Number of label columns (`gluonlab.parallel.training_loss.label_columns`).
        accumulate: Whether the graph adds to the gradients.
        slot: Number of the memory area for the graph's activations.
    """

    images: int
    columns: int
    accumulate: bool
    slot: int


def make_schedule(split: Parallelism, microbatches: int) -> PipelineSchedule:
    """Create the pipeline schedule for one replica of the network."""
    return SCHEDULES[split.schedule](split.size, microbatches, split.stages_per_device)


def stage_bindings(
    shards: ShardSizes, microbatches: Microbatches, split: Parallelism, columns: int
) -> List[Set[StageBinding]]:
    """Return, for each stage, the set of graphs that `Pipeline` binds."""
    bindings: List[Set[StageBinding]] = [set() for _ in range(split.size * split.stages_per_device)]
    for images in filter(None, shards.train_sizes):
        bounds = microbatches.bounds(images)
        slots = peaks(make_schedule(split, len(bounds)))
        for number, (begin, end) in enumerate(bounds):
            for stage, count in zip(bindings, slots):
                stage.add(StageBinding(end - begin, columns, number > 0, number % count))
    for images in filter(None, shards.score_sizes):
        for begin, end in microbatches.bounds(images):
            for stage in bindings:
                stage.add(StageBinding(end - begin, 0, False, 0))
    return bindings


class PipelineMemory:
    """Estimates the memory of one replica's devices; stage i is on device ``i % size``."""

    def __init__(self, stages: Sequence[PipelineStage], loss: gluon.HybridBlock, plan: StrategyPlan) -> None:
        self._stages, self._plan, self._columns = stages, plan, label_columns(loss)
        self._activation_cache: Dict[Tuple[int, int], ArraySpec] = {}
        self._stage_memory = [
            StageMemory(stage, partial(self._activation_spec, number), plan) for number, stage in enumerate(stages)
        ]

    def estimate_memory(self, shards: ShardSizes) -> List[MemoryEstimate]:
        """Return an estimate for each device of a replica: the sum over the device's stages."""
        split = self._plan.parallelism
        bindings = stage_bindings(shards, self._plan.microbatches, split, self._columns)
        estimates = [memory.estimate_memory(of_stage) for memory, of_stage in zip(self._stage_memory, bindings)]
        return [MemoryEstimate(*map(sum, zip(*estimates[device :: split.size]))) for device in range(split.size)]

    def _activation_spec(self, number: int, images: int) -> ArraySpec:
        """Return the shape and type of the activation that stage ``number`` reads."""
        key = number, images
        if key not in self._activation_cache:
            previous = self._stages[number - 1]
            split = self._plan.parallelism
            specs = input_specs(images, split.image_shape, self._columns, split.image_dtype)
            if number > 1:
                specs[ACTIVATION] = self._activation_spec(number - 1, images)
            inputs = {name: specs[name] for name in previous.inputs}
            [self._activation_cache[key]] = UnboundGraph(previous.graph, previous.all_parameters).output_specs(inputs)
        return self._activation_cache[key]


class StageMemory:
    """Estimates the memory that one stage needs.

    ``activation_spec(images)`` returns the shape and type of the stage's input.
    """

    def __init__(self, stage: PipelineStage, activation_spec: Callable[[int], ArraySpec], plan: StrategyPlan) -> None:
        self._stage, self._activation_spec, self._plan = stage, activation_spec, plan
        self._parameter_bytes = parameter_bytes(
            stage.params.values(), plan.make_optimizer(), plan.kvstore, len(plan.parallelism.copies)
        )
        self._activation_cache: Dict[Tuple[int, int], int] = {}  # of graphs, by images and columns
        self._binding_cache: Dict[Tuple[int, int], Tuple[int, int]] = {}

    def estimate_memory(self, bindings: Set[StageBinding]) -> MemoryEstimate:
        """Estimate the memory that the stage needs if the graphs ``bindings`` are bound."""
        separate = [self._bytes_per_binding(binding.images, binding.columns) for binding in bindings]
        binding_bytes, inputs = map(sum, zip(*separate))
        slots: Dict[int, Tuple[int, int]] = {}  # slot -> (images, columns) of its largest graph
        for binding in bindings:
            size = binding.images, binding.columns
            slots[binding.slot] = max(slots.get(binding.slot, size), size)
        activations = binding_bytes + sum(self._activation_bytes(*size) for size in slots.values())
        return MemoryEstimate(*self._parameter_bytes, activations, inputs)

    def _bytes_per_binding(self, images: int, columns: int) -> Tuple[int, int]:
        """Return how many bytes a binding needs: (activations and gradients, images and labels)."""
        key = images, columns
        if key not in self._binding_cache:
            specs = self._input_specs(images, columns)
            input_bytes = {name: array_bytes(spec) for name, spec in specs.items()}
            activation_bytes = input_bytes.pop(ACTIVATION, 0)
            activation_bytes += self._unbound_graph(columns).bytes_per_binding(specs)
            self._binding_cache[key] = activation_bytes, sum(input_bytes.values())
        return self._binding_cache[key]

    def _activation_bytes(self, images: int, columns: int) -> int:
        """Return the bytes that MXNet plans for activations.

        ``columns``: the number of label columns.
        """
        key = images, columns
        if key not in self._activation_cache:
            graph, specs = self._unbound_graph(columns), self._input_specs(images, columns)
            self._activation_cache[key] = graph.activation_bytes(specs)
        return self._activation_cache[key]

    def _unbound_graph(self, columns: int) -> UnboundGraph:
        stage = self._stage
        symbol = stage.graph if columns else stage.scoring
        return UnboundGraph(symbol, stage.all_parameters, [ACTIVATION] * stage.needs_input_gradient)

    def _input_specs(self, images: int, columns: int) -> ArraySpecs:
        """Return the shape and type of each input that the stage reads."""
        split = self._plan.parallelism
        specs = input_specs(images, split.image_shape, columns, split.image_dtype)
        if ACTIVATION in self._stage.inputs:
            specs[ACTIVATION] = self._activation_spec(images)
        return {name: specs[name] for name in self._stage.inputs}


# The choice of cuts, so that all stages need about the same time or memory.

# cost(stage, begin, end): seconds or bytes of a stage of the layers from begin to before end
Cost = Callable[[int, int, int], float]
TIME, MEMORY = "time", "memory"
REPEATS = 5


class BalancedCuts(NamedTuple):
    """The chosen cuts, and each stage's fraction of the total time or memory (``balance``)."""

    cuts: List[int]
    shares: List[float]
    balance: str

    def broadcast_from_rank_0(self, group: ProcessGroup) -> BalancedCuts:
        """Return rank 0's cuts on all ranks, since measured times differ between ranks."""
        cuts, shares = (group.all_gather(np.array(values))[0] for values in (self.cuts, self.shares))
        return BalancedCuts(cuts.astype(int).tolist(), shares.tolist(), self.balance)


def choose_cuts(
    layers: Sequence[gluon.HybridBlock], loss: gluon.HybridBlock, plan: StrategyPlan, ctx: mx.Context
) -> BalancedCuts:
    """Choose the cuts that minimize the largest time or memory of a stage.

    ``plan.parallelism.balance``: "time" or "memory". ``ctx``: the device on which layers are timed.
    Raises ModelError for a chain with too few possible cuts.
    """
    split = plan.parallelism
    stages = split.size * split.stages_per_device
    possible = possible_cuts(layers)
    check_stage_count(split.model, layers, possible, stages)
    stretches = group_layers(layers, possible)  # each is treated as one layer
    if split.balance == TIME:
        totals = np.cumsum([0.0, *measure_layer_seconds(stretches, plan, ctx)])
        seconds = lambda stage, begin, end: totals[end] - totals[begin]  # noqa: E731
        chosen = _balance_stages(seconds, lambda *stage: 0.0, len(stretches), stages, TIME)
    else:
        costs = stage_byte_costs(stretches, loss, plan)
        chosen = _balance_stages(*costs, len(stretches), stages, MEMORY)
    return chosen._replace(cuts=[possible[cut - 1] for cut in chosen.cuts])


def _balance_stages(cost: Cost, savings: Cost, layers: int, stages: int, balance: str) -> BalancedCuts:
    """Choose cuts with `minimize_largest_stage`, and compute each stage's fraction of the cost."""
    cuts = minimize_largest_stage(cost, layers, stages, savings)
    costs = [cost(*stage) for stage in zip(range(stages), [0, *cuts], [*cuts, layers])]
    return BalancedCuts(cuts, [stage_cost / sum(costs) for stage_cost in costs], balance)


def minimize_largest_stage(
    cost: Cost, layers: int, stages: int, savings: Cost = lambda stage, begin, end: 0.0
) -> List[int]:
    """Return the cuts that minimize the cost of the most expensive stage.

    ``layers`` is the number of layers, and ``stages`` is the number of stages.

    Each stage has at least one layer. ``savings(stage, begin, end)``: an upper bound on how much
    cheaper the stage [begin, end) can become when layers are added. The search is Dijkstra's
    algorithm with the largest cost of a stage as the length of a path, instead of the sum. The
    search extends the cheapest partial partition first, so it never computes the costs of overlong
    stages.
    """
    queue = [_PartialPartition(0.0, stages, (0,), 0.0, True)]
    extended = set()
    while True:
        current = heappop(queue)
        begin, end = ([0, *current.ends])[-2:]
        if not current.known:
            stage = stages - current.left - 1
            stage_cost = cost(stage, begin, end)
            exact = max(current.before, stage_cost)
            heappush(queue, current._replace(largest=exact, known=True))
            if current.left and layers - end > current.left:
                bound = max(current.before, stage_cost - savings(stage, begin, end))
                longer = (*current.ends[:-1], end + 1)
                heappush(queue, current._replace(largest=bound, ends=longer))
        elif not current.left:
            return list(current.ends[1:-1])
        elif (current.left, end) not in extended:
            extended.add((current.left, end))
            first = end + 1 if current.left > 1 else layers
            ends = (*current.ends, first)
            heappush(queue, _PartialPartition(current.largest, current.left - 1, ends, current.largest, False))


class _PartialPartition(NamedTuple):
    """The first stages of a partition.

    Attributes:
        largest: The largest cost of these stages, or only a lower bound if ``known`` is false.
        left: Number of stages still to be added.
        ends: 0, followed by the end of each stage.
        before: The largest cost of these stages, except the last stage.
        known: Whether the cost of the last stage has been computed.
    """

    largest: float
    left: int
    ends: Tuple[int, ...]
    before: float
    known: bool


def stage_byte_costs(
    layers: Sequence[gluon.HybridBlock], loss: gluon.HybridBlock, plan: StrategyPlan
) -> Tuple[Cost, Cost]:
    """Return the functions ``cost`` and ``savings`` for `minimize_largest_stage`, in bytes.

    The cost is based on MXNet's memory plan for a full batch, including all microbatches that a
    stage keeps at once. ``savings`` is not 0, because a longer stage can need less memory: its last
    layer may have a smaller output.
    """
    split = plan.parallelism
    bindings = stage_bindings(ShardSizes((split.max_shard_images,)), plan.microbatches, split, label_columns(loss))
    shapes = _layer_shapes(layers, plan)
    earlier_trained = [any(map(_has_trained_parameters, layers[:begin])) for begin in range(len(layers))]

    @lru_cache(maxsize=None)
    def memory_of(begin: int, end: int) -> StageMemory:
        """Return the memory estimator of a stage with the layers ``begin`` to ``end`` - 1."""

        def activation_spec(images: int) -> Tuple[Tuple[int, ...], type]:
            return (images, *shapes[begin][1:]), np.float32

        learns = earlier_trained[begin]
        stage = make_stage(layers, begin, end, loss, plan.preprocess, plan.conversion, learns)
        return StageMemory(stage, activation_spec, plan)

    def cost(number: int, begin: int, end: int) -> float:
        return float(sum(memory_of(begin, end).estimate_memory(bindings[number])))

    def savings(number: int, begin: int, end: int) -> float:
        """Return how many of the stage's bytes are no longer needed if layers are added."""
        # With more layers, the stage no longer needs its current output, the output's gradient, and
        # MXNet's copies of both.
        arrays = 2 * len(bindings[number]) + 2 * len({binding.slot for binding in bindings[number]})
        return 4.0 * arrays * math.prod(shapes[end])

    return cost, savings


def _has_trained_parameters(layer: gluon.HybridBlock) -> bool:
    return any(param.grad_req != "null" for param in layer.collect_params().values())


def measure_layer_seconds(layers: Sequence[gluon.HybridBlock], plan: StrategyPlan, ctx: mx.Context) -> List[float]:
    """Measure how many seconds each layer's forward and backward pass takes for one microbatch."""
    shapes, seconds = _layer_shapes(layers, plan), []
    for number in range(len(layers)):
        graph, inputs = _layers_graph(layers, number, number + 1, plan, shapes)
        seconds.append(_measure_seconds(graph, inputs, ctx))
    return seconds


def _layers_graph(
    layers: Sequence[gluon.HybridBlock], begin: int, end: int, plan: StrategyPlan, shapes: Sequence[Tuple[int, ...]]
) -> Tuple[mx.sym.Symbol, Dict[str, Tuple[int, ...]]]:
    """Return the graph of the layers ``begin`` to ``end`` - 1, and its input shapes.

    If the last layer is included, the graph ends with the loss.
    """
    name = IMAGES if begin == 0 else ACTIVATION
    value = mx.sym.var(name)
    value = apply_layers(layers[begin:end], plan.preprocess(mx.sym, value) if begin == 0 else value)
    inputs = {name: shapes[begin]}
    if end == len(layers):
        value = append_loss(value, make_loss())
        inputs[LABELS] = shapes[0][:1]
    return value, inputs


def _layer_shapes(layers: Sequence[gluon.HybridBlock], plan: StrategyPlan) -> List[Tuple[int, ...]]:
    """Return each layer's input shape for a microbatch, and the last layer's output shape."""
    shape = (plan.microbatches.largest_part(plan.parallelism.max_shard_images), *plan.parallelism.image_shape)
    shapes = [shape]
    for number in range(len(layers)):
        data = mx.sym.var(IMAGES)
        value = layers[number](plan.preprocess(mx.sym, data) if number == 0 else data)
        _, [shape], _ = value.infer_shape(**{IMAGES: shape})
        shapes.append(shape)
    return shapes


def _measure_seconds(graph: mx.sym.Symbol, inputs: Dict[str, Tuple[int, ...]], ctx: mx.Context) -> float:
    """Return how many seconds the fastest of several forward and backward passes takes."""
    shapes = graph.infer_shape(**inputs)[0]
    args = {name: nd.ones(shape, ctx) for name, shape in zip(graph.list_arguments(), shapes)}
    specs = {name: (array.shape, array.dtype) for name, array in args.items()}
    graph = rewrite_graph(graph, ctx, specs, set(args) - {LABELS})
    states = graph.infer_shape(**{name: spec[0] for name, spec in specs.items()})[2]
    aux = {n: nd.ones(shape, ctx) for n, shape in zip(graph.list_auxiliary_states(), states)}
    grads = {name: nd.zeros_like(array) for name, array in args.items() if name != LABELS}
    executor = graph.bind(ctx, args, args_grad=grads, grad_req=dict.fromkeys(grads, "write"), aux_states=aux)
    heads = [nd.ones_like(output) for output in executor.outputs]
    best = float("inf")
    for _ in range(1 + REPEATS):
        nd.waitall()
        start = time.perf_counter()
        executor.forward(is_train=True)
        executor.backward(heads)
        nd.waitall()
        best = min(best, time.perf_counter() - start)
    return best
