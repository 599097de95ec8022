"""The statistics of shared BatchNorm layers on every device, and running ones that follow them.

Which running statistics move is what MXNet's BatchNorm does on such a device. On a CPU its backward
moves them, so those of a layer stay whose backward nobody needs: neither its gamma and beta are
trained, nor anything in front of it. On a GPU its forward in training moves them all.
"""

from __future__ import annotations

from typing import Dict, List, Sequence, Set

import mxnet as mx
from mxnet import gluon, nd

from gluonlab.engine.invoke import NO_ATTRIBUTES, Attributes, CopyInto, OperatorCall
from gluonlab.models.graphs import parsed, to_symbol
from gluonlab.parallel.data.stages import Layer
from gluonlab.parallel.data.sync_bn import is_batch_norm

MOST_ARRAYS = 60  # that multi_sgd_update takes
# A layer's statistics have variance + epsilon, rounded several times; what is left of the variance
# 0 must not be less.
CERTAIN = 1 - 2.0**-20


def moved(
    graph: mx.sym.Symbol,
    params: Dict[str, gluon.Parameter],
    inputs: Dict[str, nd.NDArray],
    ctx: mx.Context,
) -> List[int]:
    """The numbers of the BatchNorm layers of ``graph`` whose running statistics training moves.

    They are in the order in which it moves them, which counts where layers have the same ones.
    ``inputs``: what the graph takes besides ``params``.
    """
    whole = parsed(graph)
    nodes = whole["nodes"]
    layers = list(filter(is_batch_norm, nodes))
    trained = {name for name, param in params.items() if param.grad_req != "null"}
    own = [{nodes[entry[0]]["name"] for entry in layer["inputs"][1:3]} for layer in layers]
    certain = {number for number, names in enumerate(own) if names & trained}
    apart = len({layer["inputs"][3][0] for layer in layers}) == len(layers)
    if ctx.device_type == "gpu" or (apart and len(certain) == len(layers)):
        return list(range(len(layers)))
    for number, layer in enumerate(layers):
        layer["name"] = f"layer{number}"  # two may have the same
    numbered = to_symbol(nodes, whole["heads"], whole["attrs"])
    arrays = {**{name: param.data(ctx) for name, param in params.items()}, **inputs}
    args = {name: arrays[name] for name in numbered.list_arguments()}
    gradients = {name: params[name].grad(ctx) for name in trained & set(args)}
    requests = {name: "write" if name in gradients else "null" for name in args}
    states = {name: arrays[name] for name in numbered.list_auxiliary_states()}
    told = numbered.bind(ctx, args, gradients, requests, states).debug_str()
    # as they are executed: of a chain the last comes first
    places = {n: told.find(f"Name=layer{n}_backward\n") for n in range(len(layers))}
    return sorted((n for n in places if places[n] >= 0 or n in certain), key=places.__getitem__)


class RunningMoments:
    """``statistics[device][layer.number]``: mean and variance, with epsilon, of a layer, (2, C).

    Those of all layers lie side by side, so that one operation on each device serves many layers.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        params: Dict[str, gluon.Parameter],
        ctxs: Sequence[mx.Context],
        moving: Sequence[int],
    ) -> None:
        """``moving``: the numbers of the layers that are `moved`, in order."""
        self._devices = [_Device(layers, params, ctx, moving) for ctx in ctxs]
        self.statistics = [device.statistics for device in self._devices]

    def move(self, busy: Sequence[int]) -> None:
        """running = momentum * running + (1 - momentum) * statistics, those of ``busy`` devices."""
        with_them: Set[int] = set(busy)
        for number, device in enumerate(self._devices):
            if number not in with_them:
                device.learn_from(self._devices[busy[0]])
            device.move()


class _Device:
    def __init__(
        self,
        layers: Sequence[Layer],
        params: Dict[str, gluon.Parameter],
        ctx: mx.Context,
        moving: Sequence[int],
    ) -> None:
        channels = [params[layer.beta].shape[0] for layer in layers]
        self._all, self._pure, epsilons = (nd.zeros((2 * sum(channels),), ctx) for _ in range(3))
        self.statistics: List[nd.NDArray] = _views(self._all, channels)
        for layer, epsilon in zip(layers, _views(epsilons, channels)):
            epsilon[1] = layer.epsilon * CERTAIN
        self._learn = CopyInto(self._all)
        self._subtract = OperatorCall("broadcast_sub", [self._all, epsilons], self._pure)
        self._updates: List[_Update] = []
        by_number = {
            layer.number: (layer, moments)
            for layer, moments in zip(layers, _views(self._pure, channels))
        }
        for number in moving:
            layer, moments = by_number[number]
            for running, moment in zip(layer.running[:2], moments):
                self._append(params[running].data(ctx), moment, 1 - layer.running.momentum)

    def _append(self, running: nd.NDArray, moment: nd.NDArray, rate: float) -> None:
        if not self._updates or not self._updates[-1].takes(running):
            self._updates.append(_Update())
        self._updates[-1].append(running, moment, rate)

    def learn_from(self, other: "_Device") -> None:
        self._learn.copy(other._all)

    def move(self) -> None:
        self._subtract(NO_ATTRIBUTES)
        for update in self._updates:
            update.run()


class _Update:
    """Running statistics moved by one update of SGD: weight -= lr * (weight - gradient)."""

    def __init__(self) -> None:
        self._running: List[nd.NDArray] = []
        self._inputs: List[nd.NDArray] = []
        self._rates: List[float] = []
        self._call: "OperatorCall | None" = None

    def takes(self, running: nd.NDArray) -> bool:
        """A layer that is used twice moves twice, one time after the other."""
        is_new = all(running is not other for other in self._running)
        return is_new and len(self._running) < MOST_ARRAYS

    def append(self, running: nd.NDArray, moment: nd.NDArray, rate: float) -> None:
        self._running.append(running)
        self._inputs += [running, moment]
        self._rates.append(rate)

    def run(self) -> None:
        if self._call is None:
            self._call = OperatorCall("multi_sgd_update", self._inputs, *self._running)
            count = len(self._rates)
            rates = dict(lrs=tuple(self._rates), wds=(1.0,) * count, num_weights=count)
            self._attributes = Attributes({**rates, "rescale_grad": -1.0})
        self._call(self._attributes)


def _views(flat: nd.NDArray, channels: Sequence[int]) -> List[nd.NDArray]:
    """Parts (2, C) of one array."""
    views, begin = [], 0
    for count in channels:
        views.append(flat[begin : begin + 2 * count].reshape((2, count)))
        begin += 2 * count
    return views
