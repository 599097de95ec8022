"""Mean and variance of a BatchNorm layer over several devices, and their gradient.

Each device finds the mean and the variance of its own images. The mean of all is that of the
devices' means, weighted by their shares of the images; the variance of all is the weighted mean of
variances and squared distances of the means to that mean (Chan, Golub, LeVeque, "Algorithms for
computing the sample variance", 1983), which loses no digits where the mean is large.

With these as given numbers a layer's backward is gamma * inv * dy. As mean and variance depend on
the images, all devices then subtract gamma * inv / n * (B + (x - mean) * inv * G), where inv is 1 /
sqrt(variance), n the number of pixels of a channel on all devices, and B and G the sums of dy and
of dy * (x - mean) * inv over these (Ioffe, Szegedy, "Batch Normalization", 2015, section 3). B and
G are the gradients of beta and gamma, which the layers' backward has left on each device.

That is as exact as BatchNorm on one device, and no more: the mean is rounded, so that of normalised
images is not 0 but r, and the gradients of images sum to -gamma * inv * r * G. The weights in front
multiply that by the mean of what they see. Of a parameter's change, where images have a mean of
1,000 and deviations of 1, plain BatchNorm on one CPU loses 0.015 (medians of 12 draws, at worst
among the parameters), this 0.011, 0.013 and 0.004 on 2, 4 and 8; where the mean is 100, both lose
0.0001. With B less r * G instead of B it would be 0.0005 to 0.0008. But to find r each layer would
take a sum over its images once more, on each device; that part of it which joining the devices'
means adds costs no such sum, and without it 0.011, 0.005 and 0.002 are left. Images are
standardised, and no layer in a network has such means: neither is done."""

from __future__ import annotations

from functools import partial
from typing import Any, Dict, List, NamedTuple, Sequence, Set

import mxnet as mx
from mxnet import gluon, nd

from gluonlab.engine.fast_invoke import (
    NO_ATTRIBUTES,
    Attributes,
    CopyInto,
    EngineCall,
    OperatorCall,
)
from gluonlab.models.symbol_graph import parsed, to_symbol
from gluonlab.parallel.data.sync_bn import Layer, is_batch_norm

TOLD = Attributes({"use_global_stats": True, "fix_gamma": False, "eps": 0.0})
OVER_DEVICES = Attributes({"axis": 0})
ALONG_DEVICES = Attributes({"axis": 1})


class OnDevice(NamedTuple):
    """A layer on one device."""

    data: nd.NDArray  # (n, C, ...)
    epsilon: float  # that is added to the variance
    statistics: nd.NDArray  # (2, C), to be written: mean and variance, with epsilon, of all images
    sums: Sequence[nd.NDArray]  # of backward: gradients of gamma and beta, (C,)
    gradient: "nd.NDArray | None"  # of data, to be completed; None where nobody wants it
    scratch: nd.NDArray  # of the shape of data


class SharedStatistics:
    """``forward`` and ``backward`` of one layer, queued on all devices; the first one adds up."""

    def __init__(
        self, devices: Sequence[OnDevice], shares: Sequence[float], gamma: nd.NDArray
    ) -> None:
        """``shares``: of the batch's images, by device; ``gamma`` (C,): the first device's."""
        ctx, channels = gamma.context, gamma.size
        own = nd.empty((2, len(devices), channels), ctx)
        self._look: List[EngineCall] = []
        self._gather: List[EngineCall] = []
        for number, device in enumerate(devices):
            moments = [nd.empty((channels,), device.data.context) for _ in range(2)]
            self._look.append(_look(device, *moments))
            self._gather += [_copy(moments[of], own[of][number]) for of in (0, 1)]
        self._combine = _combination(own, shares, devices[0].statistics)
        first = devices[0].statistics
        self._spread = [_copy(first, device.statistics) for device in devices[1:]]
        completed = [device for device in devices if device.gradient is not None]
        sums = nd.empty((len(devices), 2, channels), ctx)
        self._gather_sums = [
            _copy(device.sums[of], sums[number][of])
            for number, device in enumerate(devices if completed else ())
            for of in (0, 1)
        ]
        total, scale = nd.empty((2, channels), ctx), nd.empty((1, channels), ctx)
        one, zero, mean = (make((channels,), ctx) for make in (nd.ones, nd.zeros, nd.zeros))
        # gamma * inv as backward has it, to the bit: where a layer sees one pixel, nothing is left
        # of dy
        inputs = [gamma.reshape((1, -1)), one, zero, mean, first[1]]
        self._factors = [
            _call("sum", [sums], total, OVER_DEVICES),
            _call("BatchNorm", inputs, scale, TOLD),
            _call("broadcast_mul", [total, scale], total),
        ]
        pixels = sum(device.data.size for device in devices) // channels
        self._complete = [_Completion(device, total, pixels) for device in completed]

    def forward(self) -> None:
        """Find mean and variance of all, from the devices' own; in autograd's train mode."""
        for call in self._look:
            call()
        for copy in self._gather:
            copy()
        # one operation to the engine, which waits once for the GPU
        with mx.engine.bulk(len(self._combine)):
            for call in self._combine:
                call()
        for copy in self._spread:
            copy()

    def backward(self) -> None:
        """Complete the gradients of data, once the sums are there."""
        for copy in self._gather_sums if self._complete else ():
            copy()
        with mx.engine.bulk(len(self._factors)):
            for call in self._factors if self._complete else ():
                call()
        for completion in self._complete:
            completion.run()


def _look(device: OnDevice, mean: nd.NDArray, inverse: nd.NDArray) -> EngineCall:
    """Find a device's own mean and 1 / sqrt(variance + epsilon), by what else is training."""
    ctx, shape = mean.context, mean.shape
    gamma, variance = nd.ones(shape, ctx), nd.ones(shape, ctx)
    inputs = [device.data, gamma, nd.zeros(shape, ctx), nd.zeros(shape, ctx), variance]
    own = dict(fix_gamma=False, eps=device.epsilon, momentum=1.0, output_mean_var=True)
    return _call("BatchNorm", inputs, (device.scratch, mean, inverse), Attributes(own))


def _combination(own: nd.NDArray, shares: Sequence[float], found: nd.NDArray) -> List[EngineCall]:
    """From means and 1 / sqrt(variances) (2, devices, C) to mean and variance (2, C)."""
    ctx, count = own.context, len(shares)
    of_all, of_one = (nd.array(shares, ctx).reshape(shape) for shape in ((1, count, 1), (count, 1)))
    means, variances = own[0], own[1]  # (devices, C)
    weighted, distances = nd.empty(own.shape, ctx), nd.empty(means.shape, ctx)
    between = nd.empty((own.shape[2],), ctx)
    mean, variance = found[0:1], found[1]
    return [
        _call("_power_scalar", [variances], variances, Attributes({"scalar": -2.0})),
        _call("broadcast_mul", [own, of_all], weighted),
        _call("sum", [weighted], found, ALONG_DEVICES),
        _call("broadcast_sub", [means, mean], distances),
        _call("square", [distances], distances),
        _call("broadcast_mul", [distances, of_one], distances),
        _call("sum", [distances], between, OVER_DEVICES),
        _call("broadcast_add", [variance, between], variance),
    ]


class _Completion:
    """On one device: gradient -= (factors[0] * (data - mean) * inv + factors[1]) / pixels."""

    def __init__(self, device: OnDevice, factors: nd.NDArray, pixels: int) -> None:
        ctx = device.data.context
        here = factors if ctx == factors.context else nd.empty(factors.shape, ctx)
        self._fetch = None if here is factors else _copy(factors, here)
        statistics = [here[0], here[1], device.statistics[0], device.statistics[1]]  # views
        # the update of SGD: weight -= lr * gradient
        step = Attributes({"lr": 1 / pixels, "wd": 0.0})
        self._calls = [
            _call("BatchNorm", [device.data, *statistics], device.scratch, TOLD),
            _call("sgd_update", [device.gradient, device.scratch], device.gradient, step),
        ]

    def run(self) -> None:
        if self._fetch is not None:
            self._fetch()
        with mx.engine.bulk(len(self._calls)):
            for call in self._calls:
                call()


def _call(
    name: str, inputs: List[nd.NDArray], output: Any, attributes: Attributes = NO_ATTRIBUTES
) -> EngineCall:
    outputs = output if isinstance(output, tuple) else (output,)
    return partial(OperatorCall(name, inputs, *outputs), attributes)


def _copy(source: nd.NDArray, destination: nd.NDArray) -> EngineCall:
    return partial(CopyInto(destination).copy, source)


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

    That is what MXNet's BatchNorm does on such a device. On a CPU its backward moves them, so those
    of a layer stay whose backward nobody needs: neither its gamma and beta are trained, nor
    anything in front of it. On a GPU its forward in training moves them all.

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
        self._devices = [_DeviceStatistics(layers, params, ctx, moving) for ctx in ctxs]
        self.statistics = [device.statistics for device in self._devices]

    def move(self, busy: Sequence[int]) -> None:
        """running = momentum * running + (1 - momentum) * statistics, those of ``busy`` devices."""
        with_them: Set[int] = set(busy)
        for number, device in enumerate(self._devices):
            if number not in with_them:
                device.learn_from(self._devices[busy[0]])
            device.move()


class _DeviceStatistics:
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

    def learn_from(self, other: "_DeviceStatistics") -> None:
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
