"""BatchNorm over the whole batch, wherever its images lie: one graph of all devices, in which BatchNorm shares its statistics.

MXNet's SyncBatchNorm waits inside an operator until all devices have come that far, averages their means whatever the sizes of
their shards, and so is wrong for unequal ones and hangs for ever when a device has none. Here nothing waits: the graphs of all
devices become one, and mean and variance of the whole batch are sums in it, which MXNet's engine orders like any other work.
Backward follows from that by differentiation. Parameters keep their names and places.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn

from gluonlab.errors import ModelError
from gluonlab.models.graphs import Entry, Node, new_node, parsed, shapes_in, to_symbol

# Eight gradients of a value and more MXNet adds in place, one after the other, and where they come from several devices, all but
# the first are lost.
MOST_USES = 7


def name_on(device: int, name: str) -> str:
    """What the variable ``name`` of one device's graph is called in the graph of all devices."""
    return f"{name}@{device}"


def group_of(device: int) -> str:
    """What ``Symbol.bind(group2ctx=...)`` knows a device by, which is given by its position."""
    return f"device{device}"


class Statistics(NamedTuple):
    """A BatchNorm layer of the joint graph: what its running statistics are called, and how slowly they move."""

    running_mean: str
    running_var: str
    momentum: float


def batch_norms(graph: mx.sym.Symbol) -> List[Statistics]:
    """The BatchNorm layers of a graph that look at the batch; one with ``use_global_stats`` does not."""
    nodes = parsed(graph)["nodes"]
    return [statistics_of(nodes, node) for node in nodes if is_batch_norm(node)]


def check_network(net: gluon.Block, name: str) -> None:
    """Raise ModelError when a network, whose shapes may be unknown, has no BatchNorm that looks at the batch, or an unusual one."""
    layers = [layer for layer in _layers(net) if isinstance(layer, nn.BatchNorm) and not layer._kwargs["use_global_stats"]]
    if not layers:
        raise ModelError(f"--sync-bn: {name} has no BatchNorm layers: leave it out, or choose another --model")
    if any(layer._kwargs["axis"] != 1 for layer in layers):
        raise ModelError(f"--sync-bn: {name} has a BatchNorm over another axis than 1: leave it out, or choose another --model")


def _layers(block: gluon.Block) -> Iterator[gluon.Block]:
    yield block
    for child in block._children.values():
        yield from _layers(child)


def joint_graph(graph: mx.sym.Symbol, shares: Sequence[float], inputs: Dict[str, Tuple[int, ...]]) -> mx.sym.Symbol:
    """One graph for as many devices as there are ``shares``: the fraction of the batch's images that each of them has.

    ``inputs``: shapes from which all others follow, the number of images apart. Its outputs are those of every device, one device
    after the other, and then for each of `batch_norms`, on every device, mean and variance of the whole batch, (1, C, 1, 1),
    without gradients. Every node belongs to its device's `group_of`.
    """
    old, shapes = parsed(graph), shapes_in(graph, inputs)
    joint = _Joint(len(shares))
    places: List[List[Entry]] = []  # node of the old graph -> its node on each device
    statistics: List[List[Entry]] = []
    for node in old["nodes"]:
        entries = [[[places[i][device][0], output, version] for i, output, version in node["inputs"]] for device in joint.devices]
        if is_batch_norm(node):
            normalised, mean, variance = _batch_norm(joint, node, entries, shares, shapes[f"{node['name']}_output"])
            places.append(normalised)
            statistics.append([joint.add("BlockGrad", d, [value[d]]) for d in joint.devices for value in (mean, variance)])
        else:
            places.append([joint.copy(node, device, entries[device]) for device in joint.devices])
    heads = [[places[i][device][0], output, version] for device in joint.devices for i, output, version in old["heads"]]
    return joint.symbol(heads + [entry for layer in statistics for entry in layer], old["attrs"])


class _Joint:
    """The nodes of a graph of several devices, as MXNet's JSON has them."""

    def __init__(self, devices: int) -> None:
        self.devices = range(devices)
        self.nodes: List[Node] = []

    def copy(self, node: Node, device: int, inputs: List[Entry]) -> Entry:
        """A node of one device's graph."""
        return self._append({**node, "name": name_on(device, node["name"]), "inputs": inputs}, device)

    def add(self, op: str, device: int, inputs: Sequence[Entry], **attrs: Any) -> Entry:
        """A new node; it may take inputs of other devices, which MXNet then copies."""
        return self._append(new_node(op, name_on(device, f"sync_bn{len(self.nodes)}"), inputs, **attrs), device)

    def _append(self, node: Node, device: int) -> Entry:
        self.nodes.append({**node, "attrs": {**node.get("attrs", {}), "__ctx_group__": group_of(device)}})
        return [len(self.nodes) - 1, 0, 0]

    def total(self, parts: List[Entry]) -> List[Entry]:
        """The sum over the devices, computed on the first, for each of them: a result is used MOST_USES times at most.

        What other devices send arrives in memory that may still have oneDNN's order (`gluonlab.engine.exact_memory_plan`), which
        `broadcast_add` and `_mul_scalar` undo when they read, and oneDNN's own sum does not. The latter, with which every device
        has a result of its own, is there for backward: what it sends back goes through the same, before MXNet adds it up.
        """
        total = parts[0]
        for part in parts[1:]:
            total = self.add("broadcast_add", 0, [total, part])
        return self._results(total, self.devices)

    def _results(self, value: Entry, devices: range) -> List[Entry]:
        """The value for each of these devices, computed on the first, or on the first of a part of them."""
        if len(devices) <= MOST_USES:
            return [self.add("_mul_scalar", devices[0], [value], scalar=1.0) for _ in devices]
        each = -(-len(devices) // min(MOST_USES, -(-len(devices) // MOST_USES)))
        parts = [devices[begin : begin + each] for begin in range(0, len(devices), each)]
        return [entry for part in parts for entry in self._results(self.add("_mul_scalar", part[0], [value], scalar=1.0), part)]

    def symbol(self, heads: List[Entry], attrs: Dict[str, Any]) -> mx.sym.Symbol:
        return to_symbol(self.nodes, heads, attrs)


def _batch_norm(
    joint: _Joint, node: Node, inputs: List[List[Entry]], shares: Sequence[float], shape: Tuple[int, ...]
) -> Tuple[List[Entry], List[Entry], List[Entry]]:
    """Per device: the normalised images, and mean and variance (1, C, 1, 1) of the images of all devices.

    The mean of all is the mean of the devices' means, each weighted by its share; so is the variance, of distances to that mean.
    On CPUs MXNet's sums over all axes but one are slow, and so is whatever has them as its gradient. Pooling and convolutions with
    one weight per channel, in which oneDNN does the same, take a tenth of the time.
    """
    attrs = node.get("attrs", {})
    data, gamma, beta = ([inputs[d][i] for d in joint.devices] for i in range(3))
    channels = shape[1]
    if len(shape) != 4:
        data = [joint.add("Reshape", d, [data[d]], shape=(0, 0, -1, 1)) for d in joint.devices]

    def mean_of_all(values: List[Entry]) -> List[Entry]:
        pooled = [joint.add("Pooling", d, [values[d]], kernel=(1, 1), global_pool=True, pool_type="avg") for d in joint.devices]
        means = [joint.add("mean", d, [pooled[d]], axis=(0,), keepdims=True) for d in joint.devices]
        return joint.total([joint.add("_mul_scalar", d, [means[d]], scalar=shares[d]) for d in joint.devices])

    def scaled_and_shifted(d: int, values: Entry, scale: Entry, shift: Entry) -> Entry:
        weight, bias = (
            joint.add("Reshape", d, [scale], shape=(channels, 1, 1, 1)),
            joint.add("Reshape", d, [shift], shape=(channels,)),
        )
        return joint.add("Convolution", d, [values, weight, bias], kernel=(1, 1), num_filter=channels, num_group=channels)

    mean = mean_of_all(data)
    ones = [joint.add("BlockGrad", d, [joint.add("ones_like", d, [mean[d]])]) for d in joint.devices]
    centred = [scaled_and_shifted(d, data[d], ones[d], joint.add("negative", d, [mean[d]])) for d in joint.devices]
    variance = mean_of_all([joint.add("square", d, [centred[d]]) for d in joint.devices])
    normalised = []
    for d in joint.devices:
        scale = joint.add("rsqrt", d, [joint.add("_plus_scalar", d, [variance[d]], scalar=attrs.get("eps", 1e-3))])
        if attrs.get("fix_gamma", "True") != "True":
            scale = joint.add("elemwise_mul", d, [scale, joint.add("Reshape", d, [gamma[d]], shape=(1, channels, 1, 1))])
        images = scaled_and_shifted(d, centred[d], scale, beta[d])
        normalised.append(images if len(shape) == 4 else joint.add("reshape_like", d, [images, inputs[d][0]]))
    return normalised, mean, variance


def is_batch_norm(node: Node) -> bool:
    """Whether a node is a BatchNorm that looks at the batch."""
    return bool(node["op"] == "BatchNorm" and node.get("attrs", {}).get("use_global_stats", "False") != "True")


def statistics_of(nodes: List[Node], node: Node) -> Statistics:
    """What a BatchNorm's node says of its running statistics."""
    mean, variance = (nodes[entry[0]]["name"] for entry in node["inputs"][3:5])
    return Statistics(mean, variance, float(node.get("attrs", {}).get("momentum", 0.9)))
