"""A checkpoint of several processes: its parts brought together, and given to all again."""

from __future__ import annotations

import io
import json
import math
from typing import Any, Dict, Mapping, NamedTuple, Optional

import mxnet as mx
from mxnet import nd

from gluonlab.engine.invoke import CopyInto
from gluonlab.files.arrays import arrays_of, write_arrays
from gluonlab.kvstores.groups import Group
from gluonlab.runs.checkpoint import Arrays, Checkpoint


class Gathered(NamedTuple):
    """Arrays on the CPU, which may still be computed, and plain values, of all processes."""

    arrays: Arrays
    counts: Mapping[str, Any]


class Gathering:
    """Unites what each process's devices have of their own, under different names.

    The hosts wait for each other, and not for the devices: arrays travel as a sum, queued behind
    what computes them, to which each process gives zeros where others have theirs.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._flat: Dict[int, nd.NDArray] = {}  # by size: a group keeps the arrays that it sums

    def __call__(self, arrays: Arrays, counts: Mapping[str, Any]) -> Gathered:
        """``arrays``: float32, on the CPU. Every process gets all of them."""
        if self._group.size == 1:
            return Gathered(arrays, counts)
        shapes = {name: array.shape for name, array in arrays.items()}
        told = json.dumps({"shapes": shapes, "counts": dict(counts)}).encode()
        everyones = [json.loads(each) for each in self._group.everyones_bytes(told)]
        all_shapes = {name: shape for each in everyones for name, shape in each["shapes"].items()}
        together = self._summed(arrays, all_shapes)
        return Gathered(together, {k: v for each in everyones for k, v in each["counts"].items()})

    def _summed(self, own: Arrays, shapes: Mapping[str, Any]) -> Dict[str, nd.NDArray]:
        flat = self._zeros(sum(map(math.prod, shapes.values())))
        for name, part in _parts(flat, shapes).items():
            if name in own:
                CopyInto(part).copy(own[name])
        self._group.allreduce([flat])
        return _parts(flat.copyto(mx.cpu()), shapes)  # the next one overwrites the sum

    def _zeros(self, size: int) -> nd.NDArray:
        size = 2 ** max(8, (size - 1).bit_length())  # few different ones
        if size not in self._flat:
            self._flat[size] = nd.empty((size,), mx.cpu())
        self._flat[size][:] = 0
        return self._flat[size]


def _parts(flat: nd.NDArray, shapes: Mapping[str, Any]) -> Dict[str, nd.NDArray]:
    """Views of one array, by name."""
    parts, begin = {}, 0
    for name, shape in shapes.items():
        end = begin + math.prod(shape)
        parts[name], begin = flat[begin:end].reshape(tuple(shape)), end
    return parts


def checkpoint_of_first(checkpoint: Optional[Checkpoint], group: Group) -> Checkpoint:
    """The checkpoint that rank 0 has, in every process."""
    if group.size == 1 and checkpoint is not None:
        return checkpoint
    own = Checkpoint({}, {}, {}, {}) if checkpoint is None else checkpoint
    parameters, optimizer, devices = (arrays_of_first(arrays, group) for arrays in own[:3])
    state = json.loads(group.bytes_of_first(json.dumps(own.state).encode()))
    return Checkpoint(parameters, optimizer, devices, state)


def arrays_of_first(arrays: Arrays, group: Group) -> Arrays:
    """The arrays that rank 0 gives, in every process, on the CPU."""
    if group.size == 1:
        return arrays
    file = io.BytesIO()
    write_arrays(file, arrays)
    return arrays_of(io.BytesIO(group.bytes_of_first(file.getvalue())))
