"""The states of an optimizer in a file: by parameter name, each array whole.

How they lie in memory makes no difference to the file. A file is MXNet's own list of named arrays
(`gluonlab.files.arrays`), without pickle:

==================  ====================  ======================================================
name                array                 meaning
==================  ====================  ======================================================
optimizer/KIND      int64 (1,)            the optimizer's class; its ``num_update``, by which
                                          schedules go
number/ATTRIBUTE    float64 (1,)          a number that the optimizer changes: the learning rate
                                          where no schedule sets it, Nadam's ``m_schedule``,
                                          LARS's ``cur_lr`` and ``last_lr``
parameter/NAME      int64 (1 + ndim,)     the count of the parameter's updates, and its shape
state/I/NAME        of the state          array I of its state, in the optimizer's nested order
former_rate/NAME    float64 (1,)          the learning rate of its last update, where the
                                          momentum goes by it
num_cums/NAME       int64 (1,)            how many gradients LBSGD has gathered
cum_grad/NAME       of the parameter      their sum
==================  ====================  ======================================================

Not in the file, because the user gives it anew: the schedule of the learning rate, momenta, weight
decay and other settings, the scale of the loss, what compressed gradients have left over.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.engine.invoke import from_host
from gluonlab.engine.semantics import nd_semantics
from gluonlab.errors import KVStoreError
from gluonlab.files.arrays import LIST_MAGIC, read_arrays, save_arrays
from gluonlab.optimizers.states.gluon_states import GluonStates, read_gluon_states
from gluonlab.optimizers.updates.counts import Age, Range, age_at

LIST_OF_ARRAYS = LIST_MAGIC.to_bytes(4, "little")
MEMORY = ("former_rate", "num_cums", "cum_grad")


class ParameterState(NamedTuple):
    """What an optimizer knows about a parameter.

    ``updates`` is None where a file does not say it, ``shape`` where it cannot be told.

    ``arrays``: those of the state, each whole, in the order in which they are nested. ``memory``:
    see `counts.memory_of`.
    """

    name: str
    shape: Optional[Tuple[int, ...]]
    updates: Optional[int]
    arrays: Tuple[nd.NDArray, ...] = ()
    memory: Mapping[str, nd.NDArray] = {}

    @property
    def age(self) -> Age:
        """How often the parameter was updated, and what else the optimizer keeps of it."""
        return Age(self.updates, self.memory)


class KeyState(NamedTuple):
    """What an optimizer knows about a key: the arrays of its state, and their ages.

    Each array is whole; the ages are those of ranges of elements.
    """

    arrays: Tuple[nd.NDArray, ...]
    ages: Mapping[Range, Age]

    def age_at(self, place: int) -> Age:
        """The age of the element at this place."""
        return age_at(self.ages, place)

    def of_parameter(self, name: str, shape: Optional[Tuple[int, ...]]) -> ParameterState:
        """The same, of a key that is one parameter's."""
        age = self.age_at(0)
        return ParameterState(name, shape, age.updates, self.arrays, age.memory)


class States(NamedTuple):
    """The whole content of a file.

    ``named`` is False where parameters go by their positions, as in gluon.Trainer's own files.

    ``optimizer``, ``num_update``: None where a file does not say it.
    """

    optimizer: Optional[str]
    num_update: Optional[int]
    numbers: Mapping[str, float]
    parameters: Tuple[ParameterState, ...]
    named: bool = True


def kind_of(optimizer: mx.optimizer.Optimizer) -> str:
    """The name of the optimizer's class, or of that class of MXNet's that it is a kind of."""
    kinds = [kind for kind in type(optimizer).__mro__ if kind.__name__ in kinds_of(optimizer)]
    return next((kind for kind in kinds if kind.__module__.startswith("mxnet.")), kinds[0]).__name__


def kinds_of(optimizer: mx.optimizer.Optimizer) -> "set[str]":
    """The names of the classes that the optimizer is of."""
    return {kind.__name__ for kind in type(optimizer).__mro__} - {"Optimizer", "object"}


def flat(state: Any) -> List[nd.NDArray]:
    """The arrays of a state, which may be None, an array, or a nest of tuples and lists of such."""
    if state is None:
        return []
    if isinstance(state, nd.NDArray):
        return [state]
    return [array for part in state for array in flat(part)]


def like(state: Any, make: Any) -> Any:
    """The same nest with ``make(array)`` in the place of each array."""
    if state is None or isinstance(state, nd.NDArray):
        return state if state is None else make(state)
    return type(state)(like(part, make) for part in state)


def to_arrays(states: States) -> Dict[str, nd.NDArray]:
    """The arrays of a file, by name; those of the states are the same objects."""
    arrays = {f"optimizer/{states.optimizer}": _integers(states.num_update or 0)}
    for name, value in states.numbers.items():
        arrays[f"number/{name}"] = from_host(np.array([value]))
    for param in states.parameters:
        arrays[f"parameter/{param.name}"] = _integers(param.updates or 0, *(param.shape or ()))
        for place, array in enumerate(param.arrays):
            if array.size:
                arrays[f"state/{place}/{param.name}"] = array
        arrays.update({f"{kind}/{param.name}": array for kind, array in param.memory.items()})
    return arrays


def from_arrays(arrays: Mapping[str, nd.NDArray], what: str = "these arrays") -> States:
    """The reverse of `to_arrays`.

    Raises KVStoreError, which begins with ``what``, for arrays that are no states.
    """
    optimizers = [name.partition("/")[2] for name in arrays if name.startswith("optimizer/")]
    if len(optimizers) != 1:
        raise KVStoreError(f"{what} hold{'s' * (what != 'these arrays')} {_other_content(arrays)}")
    odd = next((name for name in arrays if not name.isprintable()), None)
    if odd is not None:
        raise KVStoreError(f"{what}: {odd!r} is no name of a parameter: {SAVE_THEM}")
    parameters: Dict[str, Dict[str, nd.NDArray]] = {}
    numbers = {}
    for name, array in arrays.items():
        kind, _, rest = name.partition("/")
        if kind == "number":
            numbers[rest] = float(_values(array, name, what)[0])
        elif kind == "parameter":
            parameters[rest] = {"parameter": array, **parameters.get(rest, {})}
        elif kind == "state":
            place, _, rest = rest.partition("/")
            parameters.setdefault(rest, {})[f"state/{place}"] = array
        elif kind in MEMORY:
            parameters.setdefault(rest, {})[kind] = array
        elif kind != "optimizer":
            raise KVStoreError(f"{what}: {name!r} is nothing that belongs to states: {SAVE_THEM}")
    num_update = int(_values(arrays[f"optimizer/{optimizers[0]}"], "optimizer", what)[0])
    states = tuple(_parameter(name, own, what) for name, own in parameters.items())
    return States(optimizers[0], num_update, numbers, states)


SAVE_THEM = "load what save_states wrote"


def _parameter(name: str, arrays: Dict[str, nd.NDArray], what: str) -> ParameterState:
    states = sum(kind.startswith("state/") for kind in arrays)
    if "parameter" not in arrays or any(f"state/{place}" not in arrays for place in range(states)):
        raise KVStoreError(f"{what}: arrays of {name!r} are missing: {SAVE_THEM}")
    updates, *shape = (int(value) for value in _values(arrays["parameter"], name, what))
    memory = {kind: arrays[kind] for kind in MEMORY if kind in arrays}
    for kind in ("former_rate", "num_cums"):
        if kind in memory:
            _values(memory[kind], f"{kind}/{name}", what)
    own = tuple(arrays[f"state/{place}"] for place in range(states))
    return ParameterState(name, tuple(shape), updates, own, memory)


def _values(array: nd.NDArray, name: str, what: str) -> "np.ndarray[Any, Any]":
    values: "np.ndarray[Any, Any]" = array.asnumpy().reshape(-1)
    if values.size > 64 or not np.isfinite(values).all():
        raise KVStoreError(f"{what}: {name!r} is damaged: {SAVE_THEM}")
    return values


def _other_content(arrays: Mapping[str, nd.NDArray]) -> str:
    if any(re.fullmatch(r"\d+/updates", name) for name in arrays):
        return (
            "states that an earlier version saved under 'sharded-optimizer', "
            "cut for its devices and buckets: load them there, "
            "and save them as parameters go on without them"
        )
    return f"arrays, but no states of an optimizer: {SAVE_THEM}"


def _integers(*values: int) -> nd.NDArray:
    return from_host(np.array(values, "int64"))


@nd_semantics()
def save(fname: "str | bytes | os.PathLike[str]", arrays: Mapping[str, nd.NDArray]) -> None:
    """Write `to_arrays` to a file, or leave the old one. Raises OutputError."""
    save_arrays(Path(os.fsdecode(fname)), arrays, remedy="choose another place")


def read(fname: "str | bytes | os.PathLike[str]", most_bytes: Optional[int] = None) -> States:
    """The states in a file that `save`, or gluon.Trainer.save_states, wrote.

    Raises KVStoreError for any other.

    ``most_bytes``: what the file may have at most, if that is known; a longer one is not read.
    """
    path = Path(os.fsdecode(fname))
    what = repr(str(path))
    with _explained(path):
        begin, size = _begin_and_size(path)
        if most_bytes is not None and size > most_bytes:
            raise KVStoreError(
                f"{what} has {size:,} bytes, "
                f"and states of these parameters {most_bytes:,} at most: {SAVE_THEM}"
            )
        if begin[:1] == b"\x80":
            return _of_gluon(read_gluon_states(path.read_bytes()))
        if begin[:4] != LIST_OF_ARRAYS:
            raise ValueError("it is neither a list of arrays nor a pickle")
        return from_arrays(read_arrays(path), what)


def is_list_of_arrays(fname: "str | bytes | os.PathLike[str]") -> bool:
    """Whether a file begins as those that `save` writes.

    Raises KVStoreError for what is no file, or cannot be read.
    """
    path = Path(os.fsdecode(fname))
    with _explained(path):
        return _begin_and_size(path)[0][:4] == LIST_OF_ARRAYS


def _begin_and_size(path: Path) -> "Tuple[bytes, int]":
    """The first bytes of a file, and its size.

    Raises ValueError for a pipe, which would be waited for, and for a device, which may never end.
    """
    size = path.stat().st_size
    if not path.is_file() and not path.is_dir():
        raise ValueError("it is no file")
    with path.open("rb") as file:
        return file.read(8), size


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn what fails meanwhile into a KVStoreError that names the file."""
    try:
        yield
    except KVStoreError:
        raise
    except OSError as error:
        fault = f" cannot be read: {error.strerror or error}; {SAVE_THEM}"
    except ValueError as error:
        fault = f" cannot be read as optimizer states ({error}): {SAVE_THEM}"
    except MemoryError:
        fault = f": there is no memory for {path.stat().st_size:,} bytes: {SAVE_THEM}"
    else:
        return
    raise KVStoreError(f"{str(path)!r}{fault}")


def _of_gluon(saved: GluonStates) -> States:
    """A parameter that has no arrays has no shape, either."""
    unsaid = None if saved.optimizer is None else 0
    parameters = []
    for position in sorted({*saved.arrays, *saved.updates}):
        arrays = saved.arrays.get(position, ())
        updates, memory = saved.updates.get(position, unsaid), saved.memory.get(position, {})
        shape = arrays[0].shape if arrays else None
        parameters.append(ParameterState(str(position), shape, updates, arrays, memory))
    return States(saved.optimizer, saved.num_update, saved.numbers, tuple(parameters), named=False)
