"""Sync BatchNorm: computes batch statistics and their gradients over several devices.

**Forward.** Each device computes the mean and the variance of its own images. The mean of the batch
is the mean of the devices' means, weighted by their numbers of images. The variance of the batch is
the weighted mean of the devices' variances, plus the weighted mean of the squared distances between
the devices' means and the batch's mean (Chan, Golub, LeVeque, "Algorithms for computing the sample
variance", 1983). This formula loses no precision if the mean is large.

**Backward.** Let x be a layer's input and dy the gradient of its output. Let inv be
1 / sqrt(variance), and n the number of values of a channel on all devices. If the statistics were
constants, the gradient of x would be gamma * inv * dy. But the mean and the variance depend on the
images. So all devices then subtract gamma * inv / n * (B + (x - mean) * inv * G). Here B is the sum
of dy, and G is the sum of dy * (x - mean) * inv (Ioffe, Szegedy, "Batch Normalization", 2015,
section 3). B and G are the gradients of beta and gamma, so the backward pass of each device has
already computed its summands of B and G.

**Rounding.** The rounding of the mean is not corrected. Inputs are standardized, so the rounding
error does not matter. The error is also no larger than the error of BatchNorm on one device. As an
example, take images with mean 1,000 and standard deviation 1. With plain BatchNorm on one CPU, the
error is 0.015 of a parameter's update (worst parameter, median of 12 draws). With this module, the
error is 0.011, 0.013 and 0.004 on 2, 4 and 8 devices. For mean 100, both errors are 0.0001. Let r
be the mean of the normalized images, which is not exactly 0 because of rounding. With B - r * G
instead of B, the error would be 0.0005 to 0.0008. But to compute r, each device would need one more
sum over the images of each layer.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Dict, List, NamedTuple, Sequence, Set

import mxnet as mx
from mxnet import gluon, nd

from gluonlab.engine.fast_invoke import NO_ATTRIBUTES, Attributes, CopyInto, EngineCall, OperatorCall
from gluonlab.models.symbol_graph import parse_graph, to_symbol
from gluonlab.parallel.data.sync_bn import BatchNormLayer, is_batch_norm

GIVEN_STATISTICS = Attributes({"use_global_stats": True, "fix_gamma": False, "eps": 0.0})
FIRST_AXIS = Attributes({"axis": 0})
SECOND_AXIS = Attributes({"axis": 1})


class DeviceLayer(NamedTuple):
    """The arrays of a BatchNorm layer on one device; C is the number of channels."""

    data: nd.NDArray  # input of the layer, (n, C, ...)
    epsilon: float  # added to the variance
    statistics: nd.NDArray  # (2, C), computed here: mean and variance + epsilon of the whole batch
    sums: Sequence[nd.NDArray]  # gradients of gamma and beta, each (C,), computed by backward
    gradient: "nd.NDArray | None"  # gradient of data, to be completed here; None if not needed
    scratch: nd.NDArray  # working memory with the shape of data


class SyncBatchNormLayer:
    """A BatchNorm layer on all devices. The first device combines the statistics of all devices."""

    def __init__(self, devices: Sequence[DeviceLayer], shares: Sequence[float], gamma: nd.NDArray) -> None:
        """Prepare all calls for the forward and backward passes.

        Args:
            devices: The layer on each device.
            shares: The fraction of the batch's images on each device; the sum is 1.
            gamma: The layer's gamma (C,) on the first device.
        """
        ctx, channels = gamma.context, gamma.size
        gathered = nd.empty((2, len(devices), channels), ctx)
        self._compute_local: List[EngineCall] = []
        self._gather: List[EngineCall] = []
        for number, device in enumerate(devices):
            moments = [nd.empty((channels,), device.data.context) for _ in range(2)]
            self._compute_local.append(_local_statistics(device, *moments))
            self._gather += [_copy(moments[i], gathered[i][number]) for i in (0, 1)]
        self._combine = _combine_statistics(gathered, shares, devices[0].statistics)
        first = devices[0].statistics
        self._broadcast = [_copy(first, device.statistics) for device in devices[1:]]
        completed = [device for device in devices if device.gradient is not None]
        sums = nd.empty((len(devices), 2, channels), ctx)
        self._gather_sums = [
            _copy(device.sums[i], sums[number][i])
            for number, device in enumerate(devices if completed else ())
            for i in (0, 1)
        ]
        total, scale = nd.empty((2, channels), ctx), nd.empty((1, channels), ctx)
        one, zero, mean = (make((channels,), ctx) for make in (nd.ones, nd.zeros, nd.zeros))
        # gamma * inv is computed by the operator BatchNorm, so that its bits are the same as in
        # backward. Then the gradient is exactly 0 for a layer with one value per channel.
        inputs = [gamma.reshape((1, -1)), one, zero, mean, first[1]]
        self._factors = [
            _call("sum", [sums], total, FIRST_AXIS),
            _call("BatchNorm", inputs, scale, GIVEN_STATISTICS),
            _call("broadcast_mul", [total, scale], total),
        ]
        pixels = sum(device.data.size for device in devices) // channels
        self._complete = [_GradientCorrection(device, total, pixels) for device in completed]

    def forward(self) -> None:
        """Queue the computation of the batch's mean and variance, in autograd's train mode."""
        for call in self._compute_local:
            call()
        for copy in self._gather:
            copy()
        # With bulk, the engine waits for the GPU only once, not after each call.
        with mx.engine.bulk(len(self._combine)):
            for call in self._combine:
                call()
        for copy in self._broadcast:
            copy()

    def backward(self) -> None:
        """Add the gradient terms that need sums over devices, after a stage's backward."""
        for copy in self._gather_sums if self._complete else ():
            copy()
        with mx.engine.bulk(len(self._factors)):
            for call in self._factors if self._complete else ():
                call()
        for completion in self._complete:
            completion.run()


def _local_statistics(device: DeviceLayer, mean: nd.NDArray, inverse: nd.NDArray) -> EngineCall:
    """Return a call that computes a device's mean and 1 / sqrt(variance + epsilon).

    The call runs the operator BatchNorm in training mode: a single kernel that reads the images
    once.
    """
    ctx, shape = mean.context, mean.shape
    gamma, variance = nd.ones(shape, ctx), nd.ones(shape, ctx)
    inputs = [device.data, gamma, nd.zeros(shape, ctx), nd.zeros(shape, ctx), variance]
    attributes = dict(fix_gamma=False, eps=device.epsilon, momentum=1.0, output_mean_var=True)
    return _call("BatchNorm", inputs, (device.scratch, mean, inverse), Attributes(attributes))


def _combine_statistics(gathered: nd.NDArray, shares: Sequence[float], result: nd.NDArray) -> List[EngineCall]:
    """Return the calls that compute the batch's statistics from the statistics of the devices.

    Args:
        gathered: (2, devices, C): each device's mean and 1 / sqrt(variance + epsilon). The calls
            overwrite this array.
        shares: The fraction of the batch's images on each device.
        result: (2, C), the output: the batch's mean and variance + epsilon.
    """
    ctx, count = gathered.context, len(shares)
    shares_3d, shares_2d = (nd.array(shares, ctx).reshape(shape) for shape in ((1, count, 1), (count, 1)))
    # Each (devices, C). The first call converts ``variances`` from 1 / sqrt(variance) to variance.
    means, variances = gathered[0], gathered[1]
    weighted, distances = nd.empty(gathered.shape, ctx), nd.empty(means.shape, ctx)
    between = nd.empty((gathered.shape[2],), ctx)
    mean, variance = result[0:1], result[1]
    return [
        _call("_power_scalar", [variances], variances, Attributes({"scalar": -2.0})),
        _call("broadcast_mul", [gathered, shares_3d], weighted),
        _call("sum", [weighted], result, SECOND_AXIS),
        _call("broadcast_sub", [means, mean], distances),
        _call("square", [distances], distances),
        _call("broadcast_mul", [distances, shares_2d], distances),
        _call("sum", [distances], between, FIRST_AXIS),
        _call("broadcast_add", [variance, between], variance),
    ]


class _GradientCorrection:
    """The calls for gradient -= (factors[0] * (data - mean) * inv + factors[1]) / pixels.

    ``factors`` (2, C) on the first device: gamma * inv times the sums G and B. ``pixels``: number
    of values of a channel on all devices.
    """

    def __init__(self, device: DeviceLayer, factors: nd.NDArray, pixels: int) -> None:
        ctx = device.data.context
        local = factors if ctx == factors.context else nd.empty(factors.shape, ctx)
        self._fetch = None if local is factors else _copy(factors, local)
        statistics = [local[0], local[1], device.statistics[0], device.statistics[1]]  # views
        # SGD's update: weight -= lr * gradient
        step = Attributes({"lr": 1 / pixels, "wd": 0.0})
        self._calls = [
            _call("BatchNorm", [device.data, *statistics], device.scratch, GIVEN_STATISTICS),
            _call("sgd_update", [device.gradient, device.scratch], device.gradient, step),
        ]

    def run(self) -> None:
        """Queue the correction, after copying ``factors`` to this device if necessary."""
        if self._fetch is not None:
            self._fetch()
        with mx.engine.bulk(len(self._calls)):
            for call in self._calls:
                call()


def _call(name: str, inputs: List[nd.NDArray], output: Any, attributes: Attributes = NO_ATTRIBUTES) -> EngineCall:
    outputs = output if isinstance(output, tuple) else (output,)
    return partial(OperatorCall(name, inputs, *outputs), attributes)


def _copy(source: nd.NDArray, destination: nd.NDArray) -> EngineCall:
    return partial(CopyInto(destination).copy, source)


MAX_ARRAYS = 60  # limit of multi_sgd_update
# variance + epsilon is rounded several times. Without this factor, a variance of 0 could become
# negative when epsilon is subtracted again.
EPSILON_FACTOR = 1 - 2.0**-20


def layers_updating_statistics(
    graph: mx.sym.Symbol, params: Dict[str, gluon.Parameter], inputs: Dict[str, nd.NDArray], ctx: mx.Context
) -> List[int]:
    """Return the numbers of the BatchNorm layers whose running statistics change in training.

    On a GPU, MXNet updates all running statistics in forward. On a CPU, MXNet updates them in
    backward. If neither a layer nor any earlier layer is trained, the layer needs no backward pass,
    so its statistics do not change on a CPU.

    The numbers are in the order of MXNet's updates, which matters if layers share statistics.
    ``inputs``: the arrays of the graph other than ``params``.
    """
    json_graph = parse_graph(graph)
    nodes = json_graph["nodes"]
    layers = list(filter(is_batch_norm, nodes))
    trained = {name for name, param in params.items() if param.grad_req != "null"}
    gammas_betas = [{nodes[entry[0]]["name"] for entry in layer["inputs"][1:3]} for layer in layers]
    with_backward = {number for number, names in enumerate(gammas_betas) if names & trained}
    all_distinct = len({layer["inputs"][3][0] for layer in layers}) == len(layers)
    if ctx.device_type == "gpu" or (all_distinct and len(with_backward) == len(layers)):
        return list(range(len(layers)))
    for number, layer in enumerate(layers):
        layer["name"] = f"layer{number}"  # names may repeat in the graph
    numbered = to_symbol(nodes, json_graph["heads"], json_graph["attrs"])
    arrays = {**{name: param.data(ctx) for name, param in params.items()}, **inputs}
    args = {name: arrays[name] for name in numbered.list_arguments()}
    gradients = {name: params[name].grad(ctx) for name in trained & set(args)}
    requests = {name: "write" if name in gradients else "null" for name in args}
    states = {name: arrays[name] for name in numbered.list_auxiliary_states()}
    plan = numbered.bind(ctx, args, gradients, requests, states).debug_str()
    # The plan is in the order of execution: backward runs the last layer of a chain first.
    position = {n: plan.find(f"Name=layer{n}_backward\n") for n in range(len(layers))}
    moving = (n for n in position if position[n] >= 0 or n in with_backward)
    return sorted(moving, key=position.__getitem__)


class RunningMoments:
    """The mean and variance of all sync BatchNorm layers, and the updates of running statistics.

    ``statistics[device][layer.number]`` has shape (2, C): the mean, and variance + epsilon. The
    arrays of all layers are views of one array, so that one operation on each device updates many
    layers.
    """

    def __init__(
        self,
        layers: Sequence[BatchNormLayer],
        params: Dict[str, gluon.Parameter],
        ctxs: Sequence[mx.Context],
        moving: Sequence[int],
    ) -> None:
        """Allocate the statistics. ``moving``: the result of `layers_updating_statistics`."""
        self._devices = [_DeviceStatistics(layers, params, ctx, moving) for ctx in ctxs]
        self.statistics = [device.statistics for device in self._devices]

    def update_running(self, busy: Sequence[int]) -> None:
        """Compute running = momentum * running + (1 - momentum) * statistics on every device.

        ``busy``: numbers of the devices with images. Other devices copy the statistics of the first
        busy device.
        """
        with_images: Set[int] = set(busy)
        for number, device in enumerate(self._devices):
            if number not in with_images:
                device.copy_from(self._devices[busy[0]])
            device.update_running()


class _DeviceStatistics:
    """The statistics of all layers on one device, and the calls that update running statistics."""

    def __init__(
        self,
        layers: Sequence[BatchNormLayer],
        params: Dict[str, gluon.Parameter],
        ctx: mx.Context,
        moving: Sequence[int],
    ) -> None:
        channels = [params[layer.beta].shape[0] for layer in layers]
        self._with_epsilon, self._without_epsilon, epsilons = (nd.zeros((2 * sum(channels),), ctx) for _ in range(3))
        self.statistics: List[nd.NDArray] = _layer_views(self._with_epsilon, channels)
        for layer, epsilon in zip(layers, _layer_views(epsilons, channels)):
            epsilon[1] = layer.epsilon * EPSILON_FACTOR
        self._copy_into = CopyInto(self._with_epsilon)
        self._subtract = OperatorCall("broadcast_sub", [self._with_epsilon, epsilons], self._without_epsilon)
        self._updates: List[_RunningUpdate] = []
        by_number = {
            layer.number: (layer, moments)
            for layer, moments in zip(layers, _layer_views(self._without_epsilon, channels))
        }
        for number in moving:
            layer, moments = by_number[number]
            for running, moment in zip(layer.running[:2], moments):
                self._append(params[running].data(ctx), moment, 1 - layer.running.momentum)

    def _append(self, running: nd.NDArray, moment: nd.NDArray, rate: float) -> None:
        if not self._updates or not self._updates[-1].can_append(running):
            self._updates.append(_RunningUpdate())
        self._updates[-1].append(running, moment, rate)

    def copy_from(self, other: "_DeviceStatistics") -> None:
        self._copy_into.copy(other._with_epsilon)

    def update_running(self) -> None:
        self._subtract(NO_ATTRIBUTES)
        for update in self._updates:
            update.run()


class _RunningUpdate:
    """Updates several running statistics with SGD's formula: weight -= lr * (weight - gradient)."""

    def __init__(self) -> None:
        self._running: List[nd.NDArray] = []
        self._inputs: List[nd.NDArray] = []
        self._rates: List[float] = []
        self._call: "OperatorCall | None" = None

    def can_append(self, running: nd.NDArray) -> bool:
        """Return False if the update is full or already contains ``running``.

        If a layer is used twice, its statistics are updated twice, which needs two `_RunningUpdate`
        objects.
        """
        is_new = all(running is not other for other in self._running)
        return is_new and len(self._running) < MAX_ARRAYS

    def append(self, running: nd.NDArray, moment: nd.NDArray, rate: float) -> None:
        self._running.append(running)
        self._inputs += [running, moment]
        self._rates.append(rate)

    def run(self) -> None:
        """Queue the update of all appended statistics, as one call of multi_sgd_update."""
        if self._call is None:
            self._call = OperatorCall("multi_sgd_update", self._inputs, *self._running)
            count = len(self._rates)
            rates = dict(lrs=tuple(self._rates), wds=(1.0,) * count, num_weights=count)
            self._attributes = Attributes({**rates, "rescale_grad": -1.0})
        self._call(self._attributes)


def _layer_views(flat: nd.NDArray, channels: Sequence[int]) -> List[nd.NDArray]:
    """Return, for each layer, a view (2, C) of a flat array. ``channels``: C of each layer."""
    views, begin = [], 0
    for count in channels:
        views.append(flat[begin : begin + 2 * count].reshape((2, count)))
        begin += 2 * count
    return views
