"""Estimates how much memory a network's graphs and parameters need, before allocating it.

For activations, the estimate is MXNet's own memory plan. Graphs are bound as in training, but to
arrays without memory, and MXNet reports how much it would allocate.
"""

from __future__ import annotations

import math
import re
from typing import Any, Callable, Iterable, List, Mapping, NamedTuple, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon, nd
from mxnet.ndarray.ndarray import _new_alloc_handle

from gluonlab.engine.fast_invoke import ARRAY_LIMIT
from gluonlab.kvstores.allreduce_store import is_sharded
from gluonlab.models.rewrite_network import rewrite_graph
from gluonlab.optimizers.optimizer_step import flatten_state
from gluonlab.parallel.compiled_graph import ArraySpec, ArraySpecs, array_bytes
from gluonlab.parallel.data.replica import IMAGES, LABELS

MIB = 2**20
# MXNet reports whole MiB. Rounding to whole MiB does not matter for plans of this size.
PRECISE_MIB = 256


class ShardSizes(NamedTuple):
    """Numbers of images in a shard, for one replica of the network.

    ``train_sizes``: the shard sizes in training. The first size is for a full batch. If the last
    batch of an epoch is smaller, the second size is for that batch. ``score_sizes``: the shard
    sizes in evaluation.
    """

    train_sizes: Tuple[int, ...]
    score_sizes: Tuple[int, ...] = ()


class MemoryEstimate(NamedTuple):
    """Estimated bytes on one device. ``inputs``: the arrays for images and labels."""

    parameters: int
    gradients: int
    optimizer_state: int
    activations: int
    inputs: int


def input_specs(images: int, image_shape: Sequence[int], columns: int, dtype: str = "uint8") -> ArraySpecs:
    """Return the shapes and types of the network's images and labels.

    ``columns``: the number of columns of the label array; 0 for class numbers. With mixup, labels
    have 3 or more columns, and images are float32.
    """
    shape = (images, *image_shape)
    pixels = np.dtype(np.float32 if columns >= 3 else dtype)
    if columns:
        return {IMAGES: (shape, pixels), LABELS: ((images, columns), np.float32)}
    return {IMAGES: (shape, pixels), LABELS: ((images,), np.int32)}


def allocated_mib(executor: Any) -> int:
    """Return the MiB that MXNet plans for an executor, rounded down to a whole number."""
    [mebibytes] = re.findall(r"Total (\d+) MB allocated", executor.debug_str())
    return int(mebibytes)


def parameter_bytes(
    params: Iterable[gluon.Parameter], optimizer: mx.optimizer.Optimizer, kvstore: Any, copies: int
) -> Tuple[int, int, int]:
    """Return how many bytes the parameters, their gradients and optimizer states take on a device.

    ``copies``: number of devices with these parameters. The kvstore ``sharded-optimizer`` divides
    the states between these devices.
    """
    all_params = list(params)
    trained = [param for param in all_params if param.grad_req != "null"]
    states = {
        key: _state_sizes(optimizer, *key) for key in {(len(param.shape), np.dtype(param.dtype)) for param in trained}
    }
    state_bytes = sum(
        count * array_bytes((param.shape, dtype))
        for param in trained
        for count, dtype in states[len(param.shape), np.dtype(param.dtype)]
    )
    if is_sharded(kvstore):
        state_bytes //= copies
    parameters, gradients = (
        sum(array_bytes((param.shape, param.dtype)) for param in group) for group in (all_params, trained)
    )
    return parameters, gradients, state_bytes


class UnboundGraph(NamedTuple):
    """A graph as in `gluonlab.parallel.compiled_graph`, not yet bound to arrays.

    ``params`` may be on any device. ``gradient_inputs``: inputs whose gradients backward computes.
    """

    symbol: mx.sym.Symbol
    params: Mapping[str, gluon.Parameter]
    gradient_inputs: Sequence[str] = ()

    def output_specs(self, inputs: ArraySpecs) -> List[ArraySpec]:
        """Return the shapes and types of the outputs, given the shapes and types ``inputs``."""
        specs = self._argument_specs(inputs)
        _, shapes, _ = self.symbol.infer_shape(**{name: kind[0] for name, kind in specs.items()})
        _, types, _ = self.symbol.infer_type(**{name: kind[1] for name, kind in specs.items()})
        return list(zip(shapes, types))

    def activation_bytes(self, inputs: ArraySpecs) -> int:
        """Return the bytes that MXNet plans for the graph's activations.

        MXNet reports whole MiB. For a small plan, the number of images is multiplied by a factor,
        and the result is divided by the same factor.
        """
        specs = self._argument_specs(inputs)
        trained = set(filter(self._has_gradient, specs))
        rewritten = self._replace(symbol=rewrite_graph(self.symbol, mx.cpu(), specs, trained))
        factor = self._initial_factor(inputs)
        while True:
            mebibytes = allocated_mib(rewritten._bind(_multiply_images(inputs, factor)))
            too_large = self._largest_array_size(_multiply_images(inputs, 4 * factor)) == 0
            if mebibytes >= PRECISE_MIB or too_large:
                return math.ceil(mebibytes * MIB / factor)
            factor *= 4

    def bytes_per_binding(self, inputs: ArraySpecs) -> int:
        """Return how many bytes each bound graph needs in addition to activations and inputs.

        These bytes are for the gradients of ``gradient_inputs``, the head gradients and, if the
        graph has a backward pass, MXNet's copy of the head gradients.
        """
        gradients = sum(array_bytes(inputs[name]) for name in self.gradient_inputs)
        return gradients + (1 + self.needs_backward) * sum(map(array_bytes, self.output_specs(inputs)))

    @property
    def needs_backward(self) -> bool:
        """True if backward computes any gradient."""
        return any(map(self._has_gradient, self.symbol.list_arguments()))

    def _argument_specs(self, inputs: ArraySpecs) -> ArraySpecs:
        params = {name: (param.shape, param.dtype) for name, param in self.params.items()}
        specs = {**params, **inputs}
        return {name: specs[name] for name in self.symbol.list_arguments()}

    def _largest_array_size(self, inputs: ArraySpecs) -> int:
        """Return the number of elements of the largest array; 0 if it is too large for MXNet."""
        shapes = {name: kind[0] for name, kind in self._argument_specs(inputs).items()}
        largest = max(map(math.prod, self.symbol.get_internals().infer_shape(**shapes)[1]))
        return largest if largest < ARRAY_LIMIT else 0

    def _initial_factor(self, inputs: ArraySpecs) -> int:
        """Return the first factor by which to multiply the number of images for a precise plan."""
        largest, factor = self._largest_array_size(inputs), 1
        while 0 < 4 * largest * factor < PRECISE_MIB * MIB / 4:
            factor *= 4
        return factor

    def _bind(self, inputs: ArraySpecs) -> Any:
        """Bind the graph to arrays without memory, so that MXNet's memory plan can be read."""
        specs = self._argument_specs(inputs)
        arrays = {name: unallocated_array(*kind) for name, kind in specs.items()}
        gradients = {name: array for name, array in arrays.items() if self._has_gradient(name)}
        requests = {name: "write" if name in gradients else "null" for name in arrays}
        state_shapes = self.symbol.infer_shape(**{name: kind[0] for name, kind in specs.items()})[2]
        names = self.symbol.list_auxiliary_states()
        states = {name: unallocated_array(shape) for name, shape in zip(names, state_shapes)}
        return self.symbol.bind(mx.cpu(), arrays, gradients, requests, states)

    def _has_gradient(self, name: str) -> bool:
        if name in self.params:
            return bool(self.params[name].grad_req != "null")
        return name in self.gradient_inputs


def unallocated_array(shape: Tuple[int, ...], dtype: Any = np.float32) -> nd.NDArray:
    """Return an array that allocates its memory only when it is first used."""
    return nd.NDArray(_new_alloc_handle(shape, mx.cpu(), True, dtype))


def measure_scaled_bytes(precise_mib: float, plan_mib: Callable[[int], float]) -> int:
    """Return the bytes in a memory plan, computed from the MiB in a plan for more images.

    MXNet reports only whole MiB. So the number of images is multiplied until the plan has at least
    ``precise_mib`` MiB. ``plan_mib(factor)`` returns the MiB for ``factor`` times as many images.
    """
    factor = 1
    while (mebibytes := plan_mib(factor)) < precise_mib:
        factor *= 4
    return math.ceil(mebibytes * MIB / factor)


def _multiply_images(inputs: ArraySpecs, factor: int) -> ArraySpecs:
    return {name: ((factor * shape[0], *shape[1:]), dtype) for name, (shape, dtype) in inputs.items()}


def _state_sizes(optimizer: mx.optimizer.Optimizer, axes: int, dtype: Any) -> List[Tuple[int, Any]]:
    """Return (elements per weight element, type) for each state array of an optimizer.

    ``axes``: number of the weight's axes. States are as large as their weight, so it is enough to
    create the states of a weight with one element.
    """
    one = nd.zeros([1] * axes, ctx=mx.cpu(), dtype=dtype)
    arrays = flatten_state(optimizer.create_state_multi_precision(0, one))
    return [(int(array.size), array.dtype) for array in arrays]
