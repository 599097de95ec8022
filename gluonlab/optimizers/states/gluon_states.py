"""Reads the files of gluon.Trainer 1.9.1's save_states.

Such a file is a pickle of ``(states, optimizer)``, or, where ``save_optimizer_states`` of a kvstore
wrote it, of the states alone. ``states`` has, by the parameter's position in the trainer, the nest
of arrays that the optimizer made for it, from the first of the devices or from the store; the
optimizer has its counts of updates by position. Names and shapes of parameters are not in it, nor
those of parameters without states. gluon.Trainer sorts a ParameterDict by name as text, ``dense10``
before ``dense9``.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np
from mxnet import nd

from gluonlab.engine.invoke import from_host
from gluonlab.files.arrays import array_of
from gluonlab.optimizers.states.gluon_pickle import ArrayBytes, Record, Refused, Unpickler
from gluonlab.optimizers.updates.counts import NUMBERS

MOST_ARRAYS = 16  # of a parameter's state; no optimizer of MXNet's has more than 4
DEEPEST = 4  # (master copy, (mean, variance)) is 2
LARGEST = 2**62  # of a position or a count


class GluonStates(NamedTuple):
    """``arrays``, ``updates``, ``memory`` are by position; the first has all that have states.

    ``optimizer``, ``num_update``: None when the optimizer is not in the file, nor are counts then.
    """

    arrays: Dict[int, Tuple[nd.NDArray, ...]]
    optimizer: Optional[str]
    num_update: Optional[int]
    updates: Dict[int, int]
    memory: Dict[int, Dict[str, nd.NDArray]]
    numbers: Dict[str, float]


def read_gluon_states(content: bytes) -> GluonStates:
    """What is in a file of gluon.Trainer.

    Raises ValueError for anything else; nothing in it is imported or called.
    """
    saved = Unpickler(content).load()
    states, optimizer = saved if type(saved) is tuple and len(saved) == 2 else (saved, None)
    if type(states) is not dict or not all(_is_count(position) for position in states):
        raise Refused("a pickle, but not of states by the positions of parameters")
    if optimizer is not None and type(optimizer) is not Record:
        raise Refused("a pickle of states and of something that is no optimizer")
    arrays = _Arrays(len(content))
    of_positions = {position: arrays.of_state(state) for position, state in states.items()}
    if optimizer is None:
        return GluonStates(of_positions, None, None, {}, {}, {})
    if not optimizer.kind.name.isidentifier():
        raise Refused("a pickle of an optimizer without a name")
    attributes = optimizer.attributes
    return GluonStates(
        of_positions, optimizer.kind.name, _count(attributes.get("num_update")),
        _updates(attributes), _memory(attributes, arrays), _numbers(attributes),
    )  # fmt: skip


class _Arrays:
    """Makes NDArrays, together no larger than the file.

    An array may stand in a file once and be named a million times.
    """

    def __init__(self, room: int) -> None:
        self._room = room

    def of_state(self, state: Any) -> Tuple[nd.NDArray, ...]:
        """The arrays of a nested state, in order; those without elements are left out."""
        parts: List[ArrayBytes] = []
        _flatten(state, parts, 0)
        return tuple(array for array in map(self.make, parts) if array is not None)

    def make(self, array: ArrayBytes) -> "nd.NDArray | None":
        content = array.content or b""
        self._room -= len(content)
        if self._room < 0:
            raise Refused("a pickle that has an array twice")
        return array_of(content)


def _flatten(state: Any, arrays: List[ArrayBytes], depth: int) -> None:
    if type(state) is ArrayBytes and len(arrays) < MOST_ARRAYS:
        arrays.append(state)
    elif type(state) in (tuple, list) and len(state) <= MOST_ARRAYS and depth < DEEPEST:
        for part in state:
            _flatten(part, arrays, depth + 1)
    elif state is not None:
        raise Refused("a pickle whose states are no arrays")


def _updates(attributes: Mapping[Any, Any]) -> Dict[int, int]:
    """By position, the highest of the counts that the optimizer keeps for each device."""
    updates: Dict[int, int] = {}
    for of_device in _dict(attributes.get("_all_index_update_counts")).values():
        for position, count in _dict(of_device).items():
            if not _is_count(position):
                raise Refused("counts that are not those of positions")
            updates[position] = max(updates.get(position, 0), _count(count))
    return updates


def _memory(attributes: Mapping[Any, Any], arrays: _Arrays) -> Dict[int, Dict[str, nd.NDArray]]:
    """As `counts.memory_of` has it."""
    memory: Dict[int, Dict[str, nd.NDArray]] = {}
    rates = _dict(attributes.get("_all_former_rates")) or {0: attributes.get("former_rates")}
    for of_device in rates.values():
        for position, rate in _dict(of_device).items():
            array = np.array([_number(rate)], "float64")
            memory.setdefault(position, {})["former_rate"] = from_host(array)
    for position, sums in _dict(attributes.get("cumgrads")).items():
        of_position, total = memory.setdefault(position, {}), _dict(sums).get("cum_grad")
        count = np.array([_count(_dict(sums).get("num_cums"))], "int64")
        of_position["num_cums"] = from_host(count)
        if type(total) is ArrayBytes:
            of_position["cum_grad"] = arrays.make(total)
    return memory


def _numbers(attributes: Mapping[Any, Any]) -> Dict[str, float]:
    names = NUMBERS if attributes.get("lr_scheduler") is not None else (*NUMBERS, "lr")
    return {name: _number(attributes[name]) for name in names if attributes.get(name) is not None}


def _dict(value: Any) -> Dict[Any, Any]:
    if value is not None and type(value) is not dict:
        raise Refused("a pickle of an optimizer that is not MXNet's")
    return value or {}


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < LARGEST


def _count(value: Any) -> int:
    if not _is_count(value):
        raise Refused("a pickle of an optimizer with a count of updates that is none")
    return int(value)


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) < LARGEST or not math.isfinite(value):
        raise Refused("a pickle of an optimizer with a learning rate that is none")
    return float(value)
