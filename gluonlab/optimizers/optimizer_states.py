"""Optimizer states: their file format, and how they are matched to the parameters of a trainer.

A file contains one array for each parameter's state, even if states are in buckets or shards. The
format is MXNet's list of named arrays (`gluonlab.files.array_files`), without pickle:

==================  ====================  ======================================================
name                array                 meaning
==================  ====================  ======================================================
optimizer/KIND      int64 (1,)            KIND: the optimizer's class; value: its ``num_update``,
                                          from which a schedule computes the learning rate
number/ATTRIBUTE    float64 (1,)          a scalar that the optimizer changes: the learning rate
                                          without a schedule, Nadam's ``m_schedule``, LARS's
                                          ``cur_lr`` and ``last_lr``
parameter/NAME      int64 (1 + ndim,)     the parameter's update count, and its shape
state/I/NAME        like the state        array I of the parameter's state, in nested order
former_rate/NAME    float64 (1,)          the learning rate of the parameter's last update, for
                                          optimizers with momentum correction
num_cums/NAME       int64 (1,)            number of gradients that LBSGD has summed
cum_grad/NAME       like the parameter    sum of these gradients
==================  ====================  ======================================================

The file does not contain the learning-rate schedule, momentum, weight decay and other settings,
which the user sets again. The loss scale and the residuals of compressed gradients are not in the
file either.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.engine.fast_invoke import ndarray_from_numpy
from gluonlab.engine.nd_and_np_arrays import nd_semantics
from gluonlab.errors import KVStoreError, warn
from gluonlab.files.array_files import LIST_MAGIC, read_arrays, save_arrays
from gluonlab.optimizers.optimizer_step import ElementRange, flatten_state, update_count
from gluonlab.optimizers.read_gluon_states import GluonStates, read_gluon_states
from gluonlab.optimizers.update_history import (
    SchedulerRewind,
    UpdateHistory,
    history_at,
    set_extra_states,
    set_scalars,
    set_update_counts,
)

ARRAY_FILE_MAGIC = LIST_MAGIC.to_bytes(4, "little")
EXTRA_STATE_NAMES = ("former_rate", "num_cums", "cum_grad")


class ParameterState(NamedTuple):
    """State of a parameter: its state arrays, its update count and its extra state.

    ``arrays``: the arrays of the nested state, in order. ``updates`` and ``shape`` are None if a
    file does not contain them. `gluonlab.optimizers.update_history.read_extra_state` explains
    ``extra_state``.
    """

    name: str
    shape: Optional[Tuple[int, ...]]
    updates: Optional[int]
    arrays: Tuple[nd.NDArray, ...] = ()
    extra_state: Mapping[str, nd.NDArray] = {}

    @property
    def history(self) -> UpdateHistory:
        """The update count and the extra state."""
        return UpdateHistory(self.updates, self.extra_state)


class KeyState(NamedTuple):
    """The state of an optimizer key: its arrays, and the update history of each element range."""

    arrays: Tuple[nd.NDArray, ...]
    histories: Mapping[ElementRange, UpdateHistory]

    def history_at(self, element: int) -> UpdateHistory:
        """Return the update history of an element."""
        return history_at(self.histories, element)

    def to_parameter_state(self, name: str, shape: Optional[Tuple[int, ...]]) -> ParameterState:
        """Return the state of the key's only parameter."""
        history = self.history_at(0)
        return ParameterState(name, shape, history.updates, self.arrays, history.extra_state)


class States(NamedTuple):
    """Content of a file of optimizer states.

    ``named``: False if parameters are identified by position instead of by name, as in
    gluon.Trainer's files. ``optimizer`` and ``num_update`` are None if a file does not contain
    them.
    """

    optimizer: Optional[str]
    num_update: Optional[int]
    scalars: Mapping[str, float]
    parameters: Tuple[ParameterState, ...]
    named: bool = True


def optimizer_class_name(optimizer: mx.optimizer.Optimizer) -> str:
    """Return the name of the MXNet class that the optimizer extends, or else its own class name."""
    kinds = [kind for kind in type(optimizer).__mro__ if kind.__name__ in optimizer_class_names(optimizer)]
    return next((kind for kind in kinds if kind.__module__.startswith("mxnet.")), kinds[0]).__name__


def optimizer_class_names(optimizer: mx.optimizer.Optimizer) -> "set[str]":
    """Return the names of the optimizer's class and its base classes."""
    return {kind.__name__ for kind in type(optimizer).__mro__} - {"Optimizer", "object"}


def states_to_arrays(states: States) -> Dict[str, nd.NDArray]:
    """Return the states as named arrays for a file. State arrays are not copied."""
    arrays = {f"optimizer/{states.optimizer}": _integers(states.num_update or 0)}
    for name, value in states.scalars.items():
        arrays[f"number/{name}"] = ndarray_from_numpy(np.array([value]))
    for param in states.parameters:
        arrays[f"parameter/{param.name}"] = _integers(param.updates or 0, *(param.shape or ()))
        for position, array in enumerate(param.arrays):
            if array.size:
                arrays[f"state/{position}/{param.name}"] = array
        arrays.update({f"{kind}/{param.name}": array for kind, array in param.extra_state.items()})
    return arrays


def states_from_arrays(arrays: Mapping[str, nd.NDArray], source: str = "the dictionary of states") -> States:
    """Return the states that `states_to_arrays` converted to ``arrays``.

    Raises KVStoreError, with a message that starts with ``source``, for other arrays.
    """
    optimizers = [name.partition("/")[2] for name in arrays if name.startswith("optimizer/")]
    if len(optimizers) != 1:
        raise KVStoreError(f"{source} contains {_describe_other_content(arrays)}")
    unprintable = next((name for name in arrays if not name.isprintable()), None)
    if unprintable is not None:
        raise KVStoreError(f"{source}: {unprintable!r} is not a valid parameter name: {LOAD_HINT}")
    parameters: Dict[str, Dict[str, nd.NDArray]] = {}
    scalars = {}
    for name, array in arrays.items():
        kind, _, rest = name.partition("/")
        if kind == "number":
            scalars[rest] = float(_read_values(array, name, source)[0])
        elif kind == "parameter":
            parameters[rest] = {"parameter": array, **parameters.get(rest, {})}
        elif kind == "state":
            position, _, rest = rest.partition("/")
            parameters.setdefault(rest, {})[f"state/{position}"] = array
        elif kind in EXTRA_STATE_NAMES:
            parameters.setdefault(rest, {})[kind] = array
        elif kind != "optimizer":
            raise KVStoreError(f"{source}: the array {name!r} does not belong to optimizer states: {LOAD_HINT}")
    num_update = int(_read_values(arrays[f"optimizer/{optimizers[0]}"], "optimizer", source)[0])
    states = tuple(_parse_parameter(name, param_arrays, source) for name, param_arrays in parameters.items())
    return States(optimizers[0], num_update, scalars, states)


LOAD_HINT = "load a file that save_states wrote"


def _parse_parameter(name: str, arrays: Dict[str, nd.NDArray], source: str) -> ParameterState:
    """Return the state of a parameter. ``arrays``: the parameter's arrays in the file, by kind."""
    count = sum(kind.startswith("state/") for kind in arrays)
    state_names = [f"state/{position}" for position in range(count)]
    if "parameter" not in arrays or any(state_name not in arrays for state_name in state_names):
        raise KVStoreError(f"{source}: arrays of the parameter {name!r} are missing: {LOAD_HINT}")
    updates, *shape = (int(value) for value in _read_values(arrays["parameter"], name, source))
    extra_state = {kind: arrays[kind] for kind in EXTRA_STATE_NAMES if kind in arrays}
    for kind in ("former_rate", "num_cums"):
        if kind in extra_state:
            _read_values(extra_state[kind], f"{kind}/{name}", source)
    state_arrays = tuple(arrays[state_name] for state_name in state_names)
    return ParameterState(name, tuple(shape), updates, state_arrays, extra_state)


def _read_values(array: nd.NDArray, name: str, source: str) -> "np.ndarray[Any, Any]":
    """Return up to 64 finite values as a flat array. Raises KVStoreError for other values."""
    values: "np.ndarray[Any, Any]" = array.asnumpy().reshape(-1)
    if values.size > 64 or not np.isfinite(values).all():
        raise KVStoreError(f"{source}: the values of {name!r} are damaged: {LOAD_HINT}")
    return values


def _describe_other_content(arrays: Mapping[str, nd.NDArray]) -> str:
    """Return text for an error message: what the file contains instead of optimizer states."""
    if any(re.fullmatch(r"\d+/updates", name) for name in arrays):
        return (
            "states of kvstore 'sharded-optimizer' from an earlier version of gluonlab, which split states by device "
            "and bucket: load them with that version, and save only the parameters"
        )
    return f"no optimizer states, only other arrays: {LOAD_HINT}"


def _integers(*values: int) -> nd.NDArray:
    return ndarray_from_numpy(np.array(values, "int64"))


@nd_semantics()
def write_states(fname: "str | bytes | os.PathLike[str]", arrays: Mapping[str, nd.NDArray]) -> None:
    """Write arrays from `states_to_arrays` to a file.

    After an OutputError, an existing file is unchanged.
    """
    save_arrays(Path(os.fsdecode(fname)), arrays, remedy="choose another path")


def read_states(fname: "str | bytes | os.PathLike[str]", max_bytes: Optional[int] = None) -> States:
    """Read the states in a file that `write_states` or gluon.Trainer.save_states wrote.

    Raises KVStoreError for any other file, and for a file of more than ``max_bytes``.
    """
    path = Path(os.fsdecode(fname))
    source = repr(str(path))
    with _explain_errors(path):
        header, size = _read_header(path)
        if max_bytes is not None and size > max_bytes:
            raise KVStoreError(
                f"{source} has {size:,} bytes, but the states of this model's parameters need at most "
                f"{max_bytes:,} bytes: {LOAD_HINT}"
            )
        if header[:1] == b"\x80":  # a pickle
            return _convert_gluon_states(read_gluon_states(path.read_bytes()))
        if header[:4] != ARRAY_FILE_MAGIC:
            raise ValueError("the file is neither a list of arrays nor a pickle")
        return states_from_arrays(read_arrays(path), source)


def is_list_of_arrays(fname: "str | bytes | os.PathLike[str]") -> bool:
    """Return whether a file has the format of `write_states`.

    Raise KVStoreError if the file cannot be read.
    """
    path = Path(os.fsdecode(fname))
    with _explain_errors(path):
        return _read_header(path)[0][:4] == ARRAY_FILE_MAGIC


def _read_header(path: Path) -> "Tuple[bytes, int]":
    """Return a file's first bytes and size. Raise ValueError for pipes, device files and other special files."""
    size = path.stat().st_size
    if not path.is_file() and not path.is_dir():
        raise ValueError("the path is not a regular file")
    with path.open("rb") as file:
        return file.read(8), size


@contextmanager
def _explain_errors(path: Path) -> Iterator[None]:
    """Convert errors in the with block into a KVStoreError that names the path."""
    try:
        yield
    except KVStoreError:
        raise
    except OSError as error:
        fault = f" cannot be read: {error.strerror or error}; {LOAD_HINT}"
    except ValueError as error:
        fault = f" cannot be read as optimizer states ({error}): {LOAD_HINT}"
    except MemoryError:
        fault = f": there is no memory for {path.stat().st_size:,} bytes: {LOAD_HINT}"
    else:
        return
    raise KVStoreError(f"{str(path)!r}{fault}")


def _convert_gluon_states(saved: GluonStates) -> States:
    """Return the states in a gluon.Trainer's file, by position.

    A parameter's shape is that of its first state array.
    """
    default_updates = None if saved.optimizer is None else 0
    parameters = []
    for position in sorted({*saved.arrays, *saved.updates}):
        arrays = saved.arrays.get(position, ())
        updates = saved.updates.get(position, default_updates)
        extra_state = saved.extra_state.get(position, {})
        shape = arrays[0].shape if arrays else None
        parameters.append(ParameterState(str(position), shape, updates, arrays, extra_state))
    return States(saved.optimizer, saved.num_update, saved.scalars, tuple(parameters), named=False)


# Matching of saved states to the parameters of another network, process or trainer.
#
# Gluon numbers its automatic names within a process. The parameter ``dense0_weight`` of one process
# may be ``dense3_weight`` in another process. Four ways are tried in this order:
#
# 1. by name, if both sides have the same names;
# 2. by name without the prefix that all names of a side share: ``resnetv10_``, or a user's prefix;
# 3. by order, if the names differ only in their numbers; ``dense9`` comes before ``dense10``;
# 4. by order, with a warning, because only the shapes show that the parameters correspond.
#
# gluon.Trainer's files contain positions instead of names. The positions refer to this trainer's
# order. If shapes do not match, they refer to the order by number. gluon.Trainer sorts names as
# text, so that ``dense10`` comes before ``dense9``, but ``dense3`` after ``dense2``.

NETWORK_HINT = "use the network that the states were saved with"
# No optimizer of MXNet has more than 4 state arrays. Each has at most 8 bytes per element.
MAX_ARRAYS_PER_STATE = 16
# Files up to this size are always read, so that the error message can name the parameter that does
# not fit.
ALWAYS_READ_BYTES = 2**26
Shape = Optional[Tuple[int, ...]]


class StateTarget(NamedTuple):
    """The parameter to which a saved state is to be assigned.

    Unknown dimensions in ``shape`` are 0 or -1. ``trainable``: whether the parameter is updated.
    """

    name: str
    shape: Shape
    dtype: Any
    trainable: bool


Pairs = List[Tuple[ParameterState, StateTarget]]


def max_states_bytes(targets: Sequence[StateTarget]) -> Optional[int]:
    """Return the largest possible size of a file with these states; None for unknown shapes."""
    shapes = [target.shape for target in targets]
    if any(shape is None or min(shape, default=1) < 0 or 0 in shape for shape in shapes):
        return None
    return ALWAYS_READ_BYTES + 8 * MAX_ARRAYS_PER_STATE * sum(math.prod(shape or ()) for shape in shapes)


def match_states(states: States, targets: Sequence[StateTarget], source: str) -> List[Optional[ParameterState]]:
    """Return the saved state of each parameter in ``targets``, or None if it was never updated.

    Error messages start with ``source``. Raises KVStoreError, which names the first difference, if
    states and targets do not match.
    """
    if not states.named:
        return _match_by_position(states, targets, source)
    saved = states.parameters
    if len(saved) != len(targets):
        difference = _describe_difference(saved, targets)
        raise KVStoreError(
            f"{source} contains the states of {len(saved)} parameters, but this trainer has "
            f"{len(targets)} parameters{difference}: {NETWORK_HINT}"
        )
    pairs = _match_by_name(saved, targets) or _match_by_number(saved, targets)
    if pairs is None:
        pairs = list(zip(_sort_by_name(saved), _sort_by_name(targets)))
        _check_shapes(pairs, source)
        state, target = next(pair for pair in pairs if pair[0].name != pair[1].name)
        warn(
            f"{source} contains other parameter names than this model, but all shapes match, so states are assigned "
            f"by position: {target.name} uses the state of {state.name}"
        )
    _check_shapes(pairs, source)
    states_by_name = {target.name: state for state, target in pairs}
    return [states_by_name[target.name] for target in targets]


def _match_by_name(saved: Sequence[ParameterState], targets: Sequence[StateTarget]) -> Optional[Pairs]:
    """Pair states with targets by full name, or else by name without the common prefixes."""
    removers = (_prefix_remover(saved), _prefix_remover(targets))
    for saved_name, target_name in ((str, str), removers):
        by_name = {saved_name(state.name): state for state in saved}
        names = [target_name(target.name) for target in targets]
        if set(names) == set(by_name):
            return [(by_name[name], target) for name, target in zip(names, targets)]
    return None


def _match_by_number(saved: Sequence[ParameterState], targets: Sequence[StateTarget]) -> Optional[Pairs]:
    """Pair states with targets in order if the names differ only in their numbers."""
    pairs = list(zip(_sort_by_name(saved), _sort_by_name(targets)))
    saved_name, target_name = _prefix_remover(saved), _prefix_remover(targets)
    for state, target in pairs:
        if _mask_numbers(saved_name(state.name)) != _mask_numbers(target_name(target.name)):
            return None
    return pairs if all(shapes_match(state.shape, target.shape) for state, target in pairs) else None


def _prefix_remover(params: Sequence[Any]) -> Callable[[str], str]:
    """Return a function that removes the common prefix of all names, up to an underscore."""
    common = os.path.commonprefix([param.name for param in params])  # noqa: RUF071
    length = common.rfind("_") + 1
    return lambda name: name[length:]


def _mask_numbers(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _sort_by_name(params: Sequence[Any]) -> List[Any]:
    """Sort parameters by name, and by the numerical value of numbers in names."""

    def sort_key(param: Any) -> List[Any]:
        parts = re.split(r"(\d+)", param.name)
        return [int(part) if part.isdecimal() else part for part in parts]

    return sorted(params, key=sort_key)


def _match_by_position(states: States, targets: Sequence[StateTarget], source: str) -> List[Optional[ParameterState]]:
    """Return the state of each target by position, because gluon.Trainer's files have no names."""
    if not states.parameters:  # saved before the first step
        return [None] * len(targets)
    by_position = {int(state.name): state for state in states.parameters}
    for order in (list(targets), _sort_by_name(targets)):
        positions = {position for position, target in enumerate(order) if target.trainable}
        if positions == set(by_position) and all(shapes_match(by_position[i].shape, order[i].shape) for i in positions):
            states_by_name = {order[i].name: by_position[i] for i in positions}
            return [states_by_name.get(target.name) for target in targets]
    for position, state in by_position.items():
        fault = ""
        if position >= len(targets):
            fault = f"this trainer has only {len(targets)} parameters"
        elif not targets[position].trainable:
            fault = f"this trainer does not train {targets[position].name}"
        if fault:
            raise KVStoreError(
                f"{source} contains a state for the parameter at index {position}, but {fault}: {NETWORK_HINT}"
            )
        _check_shapes([(state, targets[position])], source)
    missing = next(
        target.name for position, target in enumerate(targets) if target.trainable and position not in by_position
    )
    raise KVStoreError(f"{source} contains no state for the parameter {missing}: {NETWORK_HINT}")


def state_targets(params: Iterable[Any]) -> List[StateTarget]:
    """Return, for each parameter, the name, shape and type that its state must match."""
    params = list(params)
    return [
        StateTarget(name, param.shape, param.dtype, param.grad_req != "null")
        for name, param in zip(unique_names(params), params)
    ]


def unique_names(params: Iterable[Any]) -> List[str]:
    """Return the names of parameters.

    A second parameter with the same name gets the suffix "#2", a third one "#3", and so on.
    """
    names: List[str] = []
    seen: Counter[str] = Counter()
    for param in params:
        seen[param.name] += 1
        names.append(param.name if seen[param.name] == 1 else f"{param.name}#{seen[param.name]}")
    return names


def shapes_match(saved: Shape, target: Shape) -> bool:
    """Return whether two shapes are equal in all known dimensions."""
    if saved is None or target is None:
        return True
    saved, target = saved or (1,), target or (1,)
    return len(saved) == len(target) and all(a == b or b <= 0 or a <= 0 for a, b in zip(saved, target))


def _check_shapes(pairs: Pairs, source: str) -> None:
    """Raise KVStoreError if the shapes of a saved state and of its parameter differ."""
    for state, target in pairs:
        if not shapes_match(state.shape, target.shape):
            raise KVStoreError(
                f"{source} does not match this model: the saved {state.name} has shape {state.shape}, but "
                f"{target.name} has shape {target.shape}: {NETWORK_HINT}"
            )


def _describe_difference(saved: Sequence[ParameterState], targets: Sequence[StateTarget]) -> str:
    """Name the first parameter that is only in the saved states or only in the trainer.

    Returns "" if there is no such parameter.
    """
    saved_name, target_name = _prefix_remover(saved), _prefix_remover(targets)
    saved_names = {_mask_numbers(saved_name(state.name)) for state in saved}
    target_names = {_mask_numbers(target_name(target.name)) for target in targets}
    for state in saved:
        if _mask_numbers(saved_name(state.name)) not in target_names:
            return f" ({state.name} is only in the saved states)"
    for target in targets:
        if _mask_numbers(target_name(target.name)) not in saved_names:
            return f" ({target.name} is only in the trainer)"
    return ""


def fit_states(
    optimizer: mx.optimizer.Optimizer, states: States, targets: Sequence[StateTarget], source: str
) -> States:
    """Check the states, and return them in the order of ``targets``, with the targets' names.

    A parameter that was never updated has an empty state. A frozen parameter keeps its saved state
    until it is trained again, as in gluon.Trainer. Error messages start with ``source``. Raises
    KVStoreError if the states belong to another optimizer, to other settings of the optimizer, or
    to another network. Warns if a file does not contain the update counts.
    """
    if states.optimizer is not None and states.optimizer not in optimizer_class_names(optimizer):
        raise KVStoreError(
            f"{source} contains the states of the optimizer {states.optimizer}, but this trainer uses "
            f"{optimizer_class_name(optimizer)}: create the trainer with "
            f"{states.optimizer.lower()!r}, or start without saved states"
        )
    saved = match_states(states, targets, source)
    for state, target in zip(saved, targets):
        if state is not None and target.trainable and (state.arrays or state.updates):
            _check_arrays(optimizer, state, target, source)
    if states.num_update is None and states.parameters:
        warn(
            f"{source} does not contain the number of updates, because it was saved without the "
            "optimizer: learning rates and bias corrections continue from this trainer's counts"
        )
    parameters = tuple(
        (state or ParameterState("", None, 0))._replace(name=target.name, shape=target.shape)
        for state, target in zip(saved, targets)
    )
    return states._replace(optimizer=optimizer_class_name(optimizer), parameters=parameters, named=True)


def _check_arrays(optimizer: mx.optimizer.Optimizer, state: ParameterState, target: StateTarget, source: str) -> None:
    """Raise KVStoreError if the number or types of a state's arrays do not match the optimizer."""
    if target.shape is not None and 0 in target.shape and not state.arrays:
        return  # no elements, or an unknown shape
    expected = flatten_state(make_state_template(optimizer, target))
    if len(expected) != len(state.arrays):
        raise KVStoreError(
            f"{source}: the number of state arrays of {target.name} is {len(state.arrays)}, but "
            f"{optimizer_class_name(optimizer)} needs {len(expected)} with the current settings: use "
            "the settings, such as momentum and multi_precision, with which the states were saved"
        )
    for array, template in zip(state.arrays, expected):
        saved_dtype, expected_dtype = np.dtype(array.dtype), np.dtype(template.dtype)
        if saved_dtype != expected_dtype:
            raise KVStoreError(
                f"{source} contains {saved_dtype} states for {target.name}, but "
                f"{optimizer_class_name(optimizer)} needs {expected_dtype} states: cast the network to the "
                "type that it had when the states were saved"
            )


def make_state_template(optimizer: mx.optimizer.Optimizer, target: StateTarget) -> Any:
    """Return a new state for one element, with the target's type and number of dimensions."""
    with warnings.catch_warnings():
        # about float16 without multi_precision, which the real state will also report
        warnings.simplefilter("ignore")
        weight = nd.zeros((1,) * max(1, len(target.shape or ())), dtype=target.dtype)
        return optimizer.create_state_multi_precision(0, weight)


def resume_optimizer(
    optimizer: mx.optimizer.Optimizer,
    key_states: Mapping[Any, KeyState],
    num_update: Optional[int],
    scalars: Mapping[str, float],
    ctxs: Sequence[mx.Context],
    schedule: SchedulerRewind,
) -> None:
    """Set the update counts, extra states and scalars of an optimizer on the devices ``ctxs``.

    If a saved count is None, the optimizer's count stays unchanged. If the elements of a key have
    different histories, the history of the first element is set for the whole key.
    """
    devices = [ctx.device_id for ctx in ctxs]
    histories = {key: state.history_at(0) for key, state in key_states.items()}
    counts = {
        key: update_count(optimizer, key) if history.updates is None else history.updates
        for key, history in histories.items()
    }
    set_update_counts(optimizer, counts, devices)
    extra_states = {key: history.extra_state for key, history in histories.items()}
    set_extra_states(optimizer, extra_states, devices, ctxs[0] if ctxs else mx.cpu())
    set_scalars(optimizer, scalars)
    if num_update is not None:
        optimizer.num_update = num_update
        schedule.rewind_to(num_update)
