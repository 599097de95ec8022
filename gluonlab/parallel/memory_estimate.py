"""What a network's parts take on a device, told before anything is allocated.

Activations are taken from MXNet's own plan: graphs are bound to arrays that have shapes but no
memory, as training binds them, and tell how much they would allocate."""

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
from gluonlab.models.rewrite_network import rewrite
from gluonlab.optimizers.optimizer_step import flatten_state
from gluonlab.parallel.compiled_graph import Kind, Kinds, bytes_of
from gluonlab.parallel.data.replica import IMAGES, LABELS

MIB = 2**20
PRECISE_MIB = 256  # MXNet tells whole MiB: of a plan as large as this they are precise enough


class ShardSizes(NamedTuple):
    """How many images a copy of the network gets at once: of batches to train on, and to score.

    ``trained``: of a whole batch first, then of an epoch's last one, if that is smaller.
    """

    trained: Tuple[int, ...]
    scored: Tuple[int, ...] = ()


class Taken(NamedTuple):
    """What one device takes, in bytes. ``inputs``: where graphs have their images and labels."""

    parameters: int
    gradients: int
    optimizer_state: int
    activations: int
    inputs: int


def input_kinds(
    images: int, image_shape: Sequence[int], columns: int, dtype: str = "uint8"
) -> Kinds:
    """Shapes and types of images and labels as they go into the network; mixtures are floats.

    ``columns``: `gluonlab.parallel.training_loss.label_columns` of the loss; mixtures have 3 or
    more.
    """
    shape = (images, *image_shape)
    pixels = np.dtype(np.float32 if columns >= 3 else dtype)
    if columns:
        return {IMAGES: (shape, pixels), LABELS: ((images, columns), np.float32)}
    return {IMAGES: (shape, pixels), LABELS: ((images,), np.int32)}


def allocated_mib(executor: Any) -> int:
    """What MXNet says that a graph's plan allocates; it leaves fractions of a MiB out."""
    [mebibytes] = re.findall(r"Total (\d+) MB allocated", executor.debug_str())
    return int(mebibytes)


def of_parameters(
    params: Iterable[gluon.Parameter], optimizer: mx.optimizer.Optimizer, kvstore: Any, copies: int
) -> Tuple[int, int, int]:
    """Bytes of such parameters, of their gradients, and of the optimizer's states for them.

    ``copies``: how many devices have them; of ``sharded-optimizer`` each keeps its part of states.
    """
    every = list(params)
    trained = [param for param in every if param.grad_req != "null"]
    states = {
        kind: _states_of_one(optimizer, *kind)
        for kind in {(len(param.shape), np.dtype(param.dtype)) for param in trained}
    }
    state = sum(
        count * bytes_of((param.shape, dtype))
        for param in trained
        for count, dtype in states[len(param.shape), np.dtype(param.dtype)]
    )
    if is_sharded(kvstore):
        state //= copies
    parameters, gradients = (
        sum(bytes_of((param.shape, param.dtype)) for param in some) for some in (every, trained)
    )
    return parameters, gradients, state


class Graph(NamedTuple):
    """A graph as in `gluonlab.parallel.compiled_graph.CompiledGraph`, of parameters that may lie
    anywhere.
    """

    symbol: mx.sym.Symbol
    params: Mapping[str, gluon.Parameter]
    wants: Sequence[str] = ()

    def outputs(self, inputs: Kinds) -> List[Kind]:
        """Shapes and types of what it gives for these inputs."""
        kinds = self._arguments(inputs)
        _, shapes, _ = self.symbol.infer_shape(**{name: kind[0] for name, kind in kinds.items()})
        _, types, _ = self.symbol.infer_type(**{name: kind[1] for name, kind in kinds.items()})
        return list(zip(shapes, types))

    def activations(self, inputs: Kinds) -> int:
        """Bytes of the memory that MXNet plans, which graphs of a slot share.

        Where MiB are too coarse to tell it, those for many times as many images, divided.
        """
        kinds = self._arguments(inputs)
        learned = set(filter(self._has_gradient, kinds))
        fit = self._replace(symbol=rewrite(self.symbol, mx.cpu(), kinds, learned))
        times = self._times(inputs)
        while True:
            mebibytes = allocated_mib(fit._bind(_multiplied(inputs, times)))
            if mebibytes >= PRECISE_MIB or self._largest(_multiplied(inputs, 4 * times)) == 0:
                return math.ceil(mebibytes * MIB / times)
            times *= 4

    def own(self, inputs: Kinds) -> int:
        """Bytes of what each binding has to itself, besides its inputs.

        These are the gradients of the inputs that are wanted, and those of the outputs, with which
        backward begins: twice, since MXNet copies them to arrays of its own.
        """
        wanted = sum(bytes_of(inputs[name]) for name in self.wants)
        return wanted + (1 + self.learns) * sum(map(bytes_of, self.outputs(inputs)))

    @property
    def learns(self) -> bool:
        """Whether backward has anything to do."""
        return any(map(self._has_gradient, self.symbol.list_arguments()))

    def _arguments(self, inputs: Kinds) -> Kinds:
        own = {name: (param.shape, param.dtype) for name, param in self.params.items()}
        kinds = {**own, **inputs}
        return {name: kinds[name] for name in self.symbol.list_arguments()}

    def _largest(self, inputs: Kinds) -> int:
        """The elements of the largest array in the graph; 0 if that is more than there can be."""
        shapes = {name: kind[0] for name, kind in self._arguments(inputs).items()}
        sizes = map(math.prod, self.symbol.get_internals().infer_shape(**shapes)[1])
        largest = max(sizes)
        return largest if largest < ARRAY_LIMIT else 0

    def _times(self, inputs: Kinds) -> int:
        """About how many times as many images make a plan that is precise, to begin with."""
        largest, times = self._largest(inputs), 1
        while 0 < 4 * largest * times < PRECISE_MIB * MIB / 4:
            times *= 4
        return times

    def _bind(self, inputs: Kinds) -> Any:
        kinds = self._arguments(inputs)
        arrays = {name: without_memory(*kind) for name, kind in kinds.items()}
        asked = {name: array for name, array in arrays.items() if self._has_gradient(name)}
        requests = {name: "write" if name in asked else "null" for name in arrays}
        of_states = self.symbol.infer_shape(**{name: kind[0] for name, kind in kinds.items()})[2]
        names = self.symbol.list_auxiliary_states()
        states = {name: without_memory(shape) for name, shape in zip(names, of_states)}
        return self.symbol.bind(mx.cpu(), arrays, asked, requests, states)

    def _has_gradient(self, name: str) -> bool:
        if name in self.params:
            return bool(self.params[name].grad_req != "null")
        return name in self.wants


def without_memory(shape: Tuple[int, ...], dtype: Any = np.float32) -> nd.NDArray:
    """An array that takes its memory when it is first used."""
    return nd.NDArray(_new_alloc_handle(shape, mx.cpu(), True, dtype))


def divided(precise_mib: float, told: Callable[[int], float]) -> int:
    """Bytes of what ``told(times)`` gives in MiB, so many times that it is precise."""
    times = 1
    while (mebibytes := told(times)) < precise_mib:
        times *= 4
    return math.ceil(mebibytes * MIB / times)


def _multiplied(inputs: Kinds, times: int) -> Kinds:
    return {name: ((times * shape[0], *shape[1:]), kind) for name, (shape, kind) in inputs.items()}


def _states_of_one(
    optimizer: mx.optimizer.Optimizer, axes: int, dtype: Any
) -> List[Tuple[int, Any]]:
    """Number and type of the states of each number of a weight: they are as large as the weight."""
    one = nd.zeros([1] * axes, ctx=mx.cpu(), dtype=dtype)
    arrays = flatten_state(optimizer.create_state_multi_precision(0, one))
    return [(int(array.size), array.dtype) for array in arrays]
