"""What split channels take on each device of a copy of the network, planned.

Every level has graphs and activations of its own. The gradients with which a level's backward
begins are in one of two memories that levels take in turns; MXNet copies them to arrays of its own.
"""

from __future__ import annotations

from typing import Dict, Iterator, List, NamedTuple, Sequence, Set

from gluonlab.parallel.compiled_graph import Kinds, bytes_of
from gluonlab.parallel.memory_estimate import Graph, ShardSizes, Taken, input_kinds, of_parameters
from gluonlab.parallel.strategy import StrategyPlan
from gluonlab.parallel.tensor.layout import wanted
from gluonlab.parallel.tensor.replica import Levels, Params


class _Binding(NamedTuple):
    """Graphs for so many images, and columns of labels, that add to gradients or replace them."""

    images: int
    columns: int
    add: bool


class _Level(NamedTuple):
    """A level on a device: ``inputs`` of the network, and what is ``given`` by the level before.

    ``own``: bytes of what each of its graphs has to itself, besides inputs. ``place``: the memory
    in which it leaves ``gradients`` bytes for the level before.
    """

    graph: Graph
    inputs: Kinds
    given: Kinds
    own: int
    place: int
    gradients: int


class ChannelMemory:
    """Tells what the devices of a copy take, device i with the parameters ``params[i]``."""

    def __init__(
        self,
        levels: Levels,
        scoring: Levels,
        params: Sequence[Params],
        plan: StrategyPlan,
        columns: int = 0,
    ) -> None:
        """``scoring``: the levels for plain labels, where those of training have ``columns``."""
        self._levels = {columns: levels, 0: scoring}
        self._columns = columns
        self._params, self._plan = params, plan

    def taken(self, shards: ShardSizes) -> List[Taken]:
        """As `gluonlab.parallel.strategy.Strategy` says."""
        bound = self._bindings(shards)
        return [self._of_device(device, bound) for device in range(len(self._params))]

    def _bindings(self, shards: ShardSizes) -> Set[_Binding]:
        """What `gluonlab.parallel.tensor.replica.ChannelReplica` binds."""
        ways = (shards.trained, self._columns, True), (shards.scored, 0, False)
        return {
            _Binding(end - begin, columns, number > 0 and trains)
            for shares, columns, trains in ways
            for share in filter(None, shares)
            for number, (begin, end) in enumerate(self._plan.microbatches.bounds(share))
        }

    def _of_device(self, device: int, bound: Set[_Binding]) -> Taken:
        plan = self._plan
        own = inputs = pools = 0
        passed: Dict[int, int] = {}
        for images, columns, _ in bound:
            for level in self._walk(device, images, columns):
                own += level.own
                inputs += sum(map(bytes_of, level.inputs.values()))
                passed[level.place] = max(level.gradients, passed.get(level.place, 0))
        # the levels' graphs share the memory of the largest
        largest = {columns: images for images, columns, _ in sorted(bound)}
        for columns, images in largest.items():
            for level in self._walk(device, images, columns):
                pools += level.graph.activations({**level.inputs, **level.given})
        params = self._params[device].values()
        copies = len(plan.split.copies)
        always = of_parameters(params, plan.make_optimizer(), plan.kvstore, copies)
        return Taken(*always, own + pools + sum(passed.values()), inputs)

    def _walk(self, device: int, images: int, columns: int) -> Iterator[_Level]:
        """The levels, with the kinds of arrays that each gets of the one before."""
        levels = self._levels[columns]
        given: Kinds = {}
        split = self._plan.split
        network = input_kinds(images, split.image_shape, columns, split.image_dtype)
        for number, parts in enumerate(levels.parts):
            symbol = parts[device].graph
            wants = wanted(levels.between[number - 1]) if number else []
            graph = Graph(symbol, self._params[device], wants)
            names = set(symbol.list_arguments())
            inputs = {name: kind for name, kind in network.items() if name in names}
            outputs = graph.outputs({**inputs, **given})
            crossing = levels.between[number] if number < len(levels.between) else []
            begins = [kind for each, kind in zip(crossing, outputs) if not each.learns]
            own = sum(map(bytes_of, begins if crossing else outputs))
            own += graph.learns * sum(map(bytes_of, outputs))
            gradients = sum(bytes_of(given[name]) for name in wants)
            yield _Level(graph, inputs, given, own, number % 2, gradients)
            given = {each.name: kind for each, kind in zip(crossing, outputs)}
