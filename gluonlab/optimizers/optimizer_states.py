"""The states of an optimizer: in a file, by parameter name, and matched to parameters again.

Each array is whole: how they lie in memory makes no difference to the file. A file is MXNet's own
list of named arrays (`gluonlab.files.array_files`), without pickle:

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
decay and other settings, the scale of the loss, what compressed gradients have left over."""

from __future__ import annotations

import math
import os
import re
import warnings
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.engine.fast_invoke import ndarray_from_numpy
from gluonlab.engine.np_compatibility import nd_semantics
from gluonlab.errors import KVStoreError, warn
from gluonlab.files.array_files import LIST_MAGIC, read_arrays, save_arrays
from gluonlab.optimizers.gluon_state_files import GluonStates, read_gluon_states
from gluonlab.optimizers.optimizer_step import (
    Age,
    Range,
    Rewinding,
    age_at,
    flat,
    set_memory,
    set_numbers,
    set_updates,
    updates_of,
)

LIST_OF_ARRAYS = LIST_MAGIC.to_bytes(4, "little")
MEMORY = ("former_rate", "num_cums", "cum_grad")


class ParameterState(NamedTuple):
    """What an optimizer knows about a parameter.

    ``updates`` is None where a file does not say it, ``shape`` where it cannot be told.

    ``arrays``: those of the state, each whole, in the order in which they are nested. ``memory``:
    see `memory_of`.
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


def to_arrays(states: States) -> Dict[str, nd.NDArray]:
    """The arrays of a file, by name; those of the states are the same objects."""
    arrays = {f"optimizer/{states.optimizer}": _integers(states.num_update or 0)}
    for name, value in states.numbers.items():
        arrays[f"number/{name}"] = ndarray_from_numpy(np.array([value]))
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
    return ndarray_from_numpy(np.array(values, "int64"))


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


# Finds which parameter a saved state belongs to in another network, process or trainer.
#
# Gluon numbers its automatic names through a process: what is ``dense0_weight`` where it was saved
# may be ``dense3_weight`` where it is loaded. Four ways are tried, in this order, and the first by
# which every shape fits is taken:
#
# 1. by name, where both have the same names;
# 2. by name without the beginning that all names have in common, on either side: ``resnetv10_``,
#    or a prefix of the user's;
# 3. by order, if the names differ in their numbers alone; numbers are ordered as numbers, so
#    ``dense9`` comes before ``dense10``;
# 4. by order, with a warning: nothing but the shapes says then that they belong together.
#
# gluon.Trainer's files have positions in place of names. Those are positions in this trainer's own
# order or, where shapes fit by it alone, in the order by number: gluon.Trainer sorts names as text,
# which puts ``dense10`` before ``dense9`` in the one process and ``dense3`` after ``dense2`` in the
# other.

LOAD = "load it into the network that it was saved with"
# no optimizer of MXNet's has more than 4; each of 8 bytes an element, at most
ARRAYS_OF_A_STATE = 16
# bytes of a file that is always read, so that a message can say what does not fit
LOOKED_AT = 2**26
Shape = Optional[Tuple[int, ...]]


class StateTarget(NamedTuple):
    """A parameter to be given a state.

    Dimensions that are not known yet are 0 or -1; ``trainable``: whether it is updated.
    """

    name: str
    shape: Shape
    dtype: Any
    trainable: bool


Pairs = List[Tuple[ParameterState, StateTarget]]


def most_bytes(own: Sequence[StateTarget]) -> Optional[int]:
    """The largest possible file of these states; None if a shape is not known yet."""
    shapes = [param.shape for param in own]
    if any(shape is None or min(shape, default=1) < 0 or 0 in shape for shape in shapes):
        return None
    return LOOKED_AT + 8 * ARRAYS_OF_A_STATE * sum(math.prod(shape or ()) for shape in shapes)


def matched(
    states: States, own: Sequence[StateTarget], what: str
) -> List[Optional[ParameterState]]:
    """For each parameter its state, or None for one that has never been updated.

    ``what`` begins every message.

    Raises KVStoreError, which names the first difference, when they do not belong together.
    """
    if not states.named:
        return _by_position(states, own, what)
    saved = states.parameters
    if len(saved) != len(own):
        more = f"{len(saved)} parameters, and this trainer has {len(own)}"
        raise KVStoreError(f"{what} holds the states of {more}{_first_odd(saved, own)}: {LOAD}")
    pairs = _by_name(saved, own) or _by_number(saved, own)
    if pairs is None:
        pairs = list(zip(_in_order(saved), _in_order(own)))
        _check_shapes(pairs, what)
        state, param = next(pair for pair in pairs if pair[0].name != pair[1].name)
        warn(
            f"{what} has other names of parameters: taken in order, since all shapes fit, "
            f"so that {param.name} goes on as {state.name}"
        )
    _check_shapes(pairs, what)
    states_of = {param.name: state for state, param in pairs}
    return [states_of[param.name] for param in own]


def _by_name(saved: Sequence[ParameterState], own: Sequence[StateTarget]) -> Optional[Pairs]:
    """Match by whole names, or else by names without their common beginnings."""
    for name_saved, name_own in ((str, str), (_relative(saved), _relative(own))):
        by_name = {name_saved(state.name): state for state in saved}
        names = [name_own(param.name) for param in own]
        if set(names) == set(by_name):
            return [(by_name[name], param) for name, param in zip(names, own)]
    return None


def _by_number(saved: Sequence[ParameterState], own: Sequence[StateTarget]) -> Optional[Pairs]:
    """Match Gluon's automatic names in order, where only their numbers differ."""
    pairs = list(zip(_in_order(saved), _in_order(own)))
    of_saved, of_own = _relative(saved), _relative(own)
    for state, param in pairs:
        if _unnumbered(of_saved(state.name)) != _unnumbered(of_own(param.name)):
            return None
    return pairs if all(fits(state.shape, param.shape) for state, param in pairs) else None


def _relative(params: Sequence[Any]) -> Callable[[str], str]:
    """A function that cuts off what all these names begin with, up to an underscore."""
    common = os.path.commonprefix([param.name for param in params])  # noqa: RUF071
    begin = common.rfind("_") + 1
    return lambda name: name[begin:]


def _unnumbered(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _in_order(params: Sequence[Any]) -> List[Any]:
    def key(param: Any) -> List[Any]:
        parts = re.split(r"(\d+)", param.name)
        return [int(part) if part.isdecimal() else part for part in parts]

    return sorted(params, key=key)


def _by_position(
    states: States, own: Sequence[StateTarget], what: str
) -> List[Optional[ParameterState]]:
    if not states.parameters:  # saved before the first step
        return [None] * len(own)
    by_position = {int(state.name): state for state in states.parameters}
    for order in (list(own), _in_order(own)):
        positions = {position for position, param in enumerate(order) if param.trainable}
        if positions == set(by_position) and all(
            fits(by_position[place].shape, order[place].shape) for place in positions
        ):
            states_of = {order[place].name: by_position[place] for place in positions}
            return [states_of.get(param.name) for param in own]
    for position, state in by_position.items():
        fault = ""
        if position >= len(own):
            fault = f"this trainer has {len(own)}"
        elif not own[position].trainable:
            fault = f"{own[position].name} is not trained here"
        if fault:
            raise KVStoreError(
                f"{what} holds a state of parameter {position}, counted from 0, and {fault}: {LOAD}"
            )
        _check_shapes([(state, own[position])], what)
    trained = {place: param.name for place, param in enumerate(own) if param.trainable}
    missing = next(name for place, name in trained.items() if place not in by_position)
    raise KVStoreError(f"{what} holds no state of {missing}: {LOAD}")


def own_of(params: Iterable[Any]) -> List[StateTarget]:
    """What `matched` needs to know of a trainer's parameters."""
    params = list(params)
    return [
        StateTarget(name, param.shape, param.dtype, param.grad_req != "null")
        for name, param in zip(unique(params), params)
    ]


def unique(params: Iterable[Any]) -> List[str]:
    """The names of parameters; of equal names the second ends in #2, and so on."""
    names: List[str] = []
    seen: Counter[str] = Counter()
    for param in params:
        seen[param.name] += 1
        names.append(param.name if seen[param.name] == 1 else f"{param.name}#{seen[param.name]}")
    return names


def fits(saved: Shape, own: Shape) -> bool:
    """Whether they are the same as far as they are known."""
    if saved is None or own is None:
        return True
    saved, own = saved or (1,), own or (1,)
    return len(saved) == len(own) and all(a == b or b <= 0 or a <= 0 for a, b in zip(saved, own))


def _check_shapes(pairs: Pairs, what: str) -> None:
    for state, param in pairs:
        if not fits(state.shape, param.shape):
            raise KVStoreError(
                f"{what} does not fit: {state.name} is {state.shape} there, "
                f"{param.name} {param.shape} here: {LOAD}"
            )


def _first_odd(saved: Sequence[ParameterState], own: Sequence[StateTarget]) -> str:
    """The first parameter, by relative name, that only one side has; else an empty text."""
    of_saved, of_own = _relative(saved), _relative(own)
    there = {_unnumbered(of_saved(state.name)) for state in saved}
    here = {_unnumbered(of_own(param.name)) for param in own}
    for params, others, where in ((saved, here, "there"), (own, there, "here")):
        relative = of_saved if params is saved else of_own
        for param in params:
            if _unnumbered(relative(param.name)) not in others:
                return f", {param.name} only {where}"
    return ""


def fitted(
    optimizer: mx.optimizer.Optimizer, states: States, own: Sequence[StateTarget], what: str
) -> States:
    """The same states under the names of ``own``, in their order, checked to fit the optimizer.

    A parameter that was never updated has none. A parameter that is frozen here keeps its own for
    the time when it is trained again, as with gluon.Trainer. ``what`` begins every message. Raises
    KVStoreError for states of another optimizer, other settings of it, or another network. Warns
    where a file does not say how often parameters have been updated.
    """
    if states.optimizer is not None and states.optimizer not in kinds_of(optimizer):
        raise KVStoreError(
            f"{what} holds the states of {states.optimizer}, "
            f"and the optimizer here is {kind_of(optimizer)}: "
            f"make the trainer with {states.optimizer.lower()!r}, or begin without states"
        )
    saved = matched(states, own, what)
    for state, param in zip(saved, own):
        if state is not None and param.trainable and (state.arrays or state.updates):
            _check_arrays(optimizer, state, param, what)
    if states.num_update is None and states.parameters:
        warn(
            f"{what} does not say how often parameters were updated: "
            "it was saved without the optimizer; "
            "learning rates and corrections of bias go on from this trainer's counts"
        )
    parameters = tuple(
        (state or ParameterState("", None, 0))._replace(name=param.name, shape=param.shape)
        for state, param in zip(saved, own)
    )
    return states._replace(optimizer=kind_of(optimizer), parameters=parameters, named=True)


def _check_arrays(
    optimizer: mx.optimizer.Optimizer, state: ParameterState, param: StateTarget, what: str
) -> None:
    if param.shape is not None and 0 in param.shape and not state.arrays:
        return  # no elements, or not known yet
    wanted = flat(nest(optimizer, param))
    if len(wanted) != len(state.arrays):
        raise KVStoreError(
            f"{what} holds {len(state.arrays)} arrays for {param.name}, "
            f"and {kind_of(optimizer)} as it is set here keeps {len(wanted)}: "
            "give it the momentum, multi_precision and other settings that it was saved with"
        )
    for array, like in zip(state.arrays, wanted):
        given, kept = np.dtype(array.dtype), np.dtype(like.dtype)
        if given != kept:
            raise KVStoreError(
                f"{what} holds {given} for {param.name}, "
                f"and {kind_of(optimizer)} keeps {kept} here: "
                "cast the network to the type that it was saved with"
            )


def nest(optimizer: mx.optimizer.Optimizer, param: StateTarget) -> Any:
    """A new state for one element of a parameter with the same type and number of dimensions."""
    with warnings.catch_warnings():
        # float16 without multi_precision: the real state will say so
        warnings.simplefilter("ignore")
        weight = nd.zeros((1,) * max(1, len(param.shape or ())), dtype=param.dtype)
        return optimizer.create_state_multi_precision(0, weight)


def resume(
    optimizer: mx.optimizer.Optimizer,
    of_keys: Mapping[Any, KeyState],
    num_update: Optional[int],
    numbers: Mapping[str, float],
    ctxs: Sequence[mx.Context],
    schedule: Rewinding,
) -> None:
    """Have the optimizer go on, on any of these devices, with the ages in ``of_keys`` alone.

    A count that is None stays as it is. A key with elements of several ages has that of the first
    of them.
    """
    devices = [ctx.device_id for ctx in ctxs]
    ages = {key: state.age_at(0) for key, state in of_keys.items()}
    counts = {
        key: updates_of(optimizer, key) if age.updates is None else age.updates
        for key, age in ages.items()
    }
    set_updates(optimizer, counts, devices)
    memory = {key: age.memory for key, age in ages.items()}
    set_memory(optimizer, memory, devices, ctxs[0] if ctxs else mx.cpu())
    set_numbers(optimizer, numbers)
    if num_update is not None:
        optimizer.num_update = num_update
        schedule.to(num_update)
