"""Safely reads optimizer state files written by gluon.Trainer in MXNet 1.9.1.

Such a file is a pickle of ``(states, optimizer)``, or of only ``states`` if a kvstore's
``save_optimizer_states`` wrote it. Both kinds of files identify parameters by position, not by
name. gluon.Trainer sorts a ParameterDict alphabetically, with ``dense10`` before ``dense9``.

A pickle is a program, which can call any function. Even if `Unpickler.find_class` forbids such
calls, a few bytes can allocate gigabytes, run forever, or overflow the stack. So this module itself
executes the two to three dozen kinds of instructions in such files (protocols 3 to 5, see
pickletools). Nothing is imported or called. The result needs as much memory as the file, and at
most a hundred megabytes more.
"""

from __future__ import annotations

import math
from io import BytesIO
from pickletools import opcodes
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np
from mxnet import nd

from gluonlab.engine.fast_invoke import ndarray_from_numpy
from gluonlab.files.array_files import parse_array
from gluonlab.optimizers.update_history import SCALAR_ATTRIBUTES

NDARRAY_NAMES = {("mxnet.ndarray.ndarray", "NDArray"), ("mxnet.numpy.multiarray", "ndarray")}
BYTEARRAY_NAME = ("builtins", "bytearray")
# NumPy scalars, such as computed learning rates, under the names of NumPy 1 and 2
DTYPE_NAME = ("numpy", "dtype")
SCALAR_NAMES = {("numpy.core.multiarray", "scalar"), ("numpy._core.multiarray", "scalar")}
MAX_INSTRUCTIONS = 2**20  # about 50 per parameter state; each may allocate about 100 bytes
SCALAR_TYPES = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")


class InvalidPickle(ValueError):
    """Error for a pickle that is damaged, or that gluon.Trainer did not write."""


class GlobalName(NamedTuple):
    """Module and name of a class or function in a pickle."""

    module: str
    name: str

    def __str__(self) -> str:
        return ascii(".".join(part[:60] for part in self))


class ArrayBytes:
    """The bytes of an NDArray, as written by NDArray::Save; None until they are read."""

    content: "bytes | None" = None


class UnpickledObject:
    """The class name and attributes of an object of any other class."""

    def __init__(self, kind: GlobalName) -> None:
        self.kind = kind
        self.attributes: Dict[Any, Any] = {}


class _Dtype(NamedTuple):
    name: str


class Unpickler:
    """Unpickles simple values, `ArrayBytes` and `UnpickledObject`, and rejects anything else."""

    def __init__(self, content: bytes) -> None:
        self._content = BytesIO(content)
        self._stack: List[Any] = []
        self._marked: List[List[Any]] = []  # the stacks below the marks
        self._memo: Dict[int, Any] = {}

    def load(self) -> Any:
        """Execute all instructions, and return the object that remains on the stack."""
        for _ in range(MAX_INSTRUCTIONS):
            code = self._content.read(1).decode("latin-1")
            if code == ".":
                _refuse_unless(len(self._stack) == 1 and not self._marked and not self._content.read(1))
                return self._stack[0]
            opcode = _OPCODES.get(code)
            if opcode is None:
                fault = f"contains the instruction {code!r}, which gluon.Trainer does not write"
                raise InvalidPickle(f"the pickle {fault if code else 'is cut off'}")
            try:
                reader = _READERS.get(opcode.name) or getattr(opcode.arg, "reader", None)
                argument = reader(self._content) if reader is not None else None
            except ValueError:
                raise InvalidPickle("the pickle is cut off or damaged") from None
            _INSTRUCTIONS[opcode.name](self, argument)
        raise InvalidPickle(f"the pickle contains more than {MAX_INSTRUCTIONS:,} instructions")

    # --- the instructions and their helpers

    def _check_frame(self, length: int) -> None:
        _refuse_unless(length <= self._content.getbuffer().nbytes - self._content.tell())

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop(self) -> Any:
        _refuse_unless(self._stack)
        return self._stack.pop()

    def _mark(self) -> None:
        self._marked.append(self._stack)
        self._stack = []

    def _pop_to_mark(self) -> List[Any]:
        _refuse_unless(self._marked)
        values, self._stack = self._stack, self._marked.pop()
        return values

    def _push_tuple(self, length: int) -> None:
        self._push(tuple(reversed([self._pop() for _ in range(length)])))

    def _memoize(self, index: Optional[int]) -> None:
        _refuse_unless(self._stack)
        self._memo[len(self._memo) if index is None else index] = self._stack[-1]

    def _push_memo(self, index: int) -> None:
        _refuse_unless(index in self._memo)
        self._push(self._memo[index])

    def _set_items(self, values: List[Any]) -> None:
        """Add items to the dict on top of the stack. ``values``: key, value, key, value, ..."""
        _refuse_unless(self._stack and type(self._stack[-1]) is dict)
        if len(values) % 2 or not all(type(key) in (int, str, float, bool, type(None)) for key in values[::2]):
            raise InvalidPickle("the pickle contains a dict whose keys are neither numbers nor strings")
        self._stack[-1].update(zip(values[::2], values[1::2]))

    def _append(self, values: List[Any]) -> None:
        _refuse_unless(self._stack and type(self._stack[-1]) is list)
        self._stack[-1].extend(values)

    def _name_from_stack(self) -> None:
        name, module = self._pop(), self._pop()
        _refuse_unless(type(name) is str and type(module) is str)
        self._push(GlobalName(module, name))

    def _call(self) -> None:
        """Emulate a call of a function that creates an NDArray or a number."""
        arguments, function = self._pop(), self._pop()
        _refuse_unless(type(function) is GlobalName and type(arguments) is tuple)
        self._push(_emulate_call(function, arguments))

    def _new_object(self) -> None:
        arguments, kind = self._pop(), self._pop()
        _refuse_unless(type(kind) is GlobalName and arguments == ())
        self._push(UnpickledObject(kind))

    def _build(self) -> None:
        """Emulate the instruction BUILD, which sets the attributes of an object."""
        state = self._pop()
        target = self._stack[-1] if self._stack else None
        attributes = state if type(state) is dict else {}
        if type(target) is ArrayBytes and type(attributes.get("handle")) is bytes:
            target.content = attributes["handle"]
        elif type(target) is UnpickledObject and attributes is state:
            target.attributes = attributes
        elif type(target) is not _Dtype:  # the state of a dtype contains nothing new
            raise InvalidPickle("the pickle contains objects that gluon.Trainer does not write")


def _name_in_two_lines(content: BytesIO) -> GlobalName:
    module, name = content.readline(), content.readline()
    _refuse_unless(name.endswith(b"\n"))
    return GlobalName(module[:-1].decode(), name[:-1].decode())


def _refuse_unless(condition: Any) -> None:
    if not condition:
        raise InvalidPickle("the pickle is damaged")


def _emulate_call(function: GlobalName, arguments: Tuple[Any, ...]) -> Any:
    """Return the result of a function in the table of known functions, without calling the function.

    Raise InvalidPickle for other functions.
    """
    kinds = [type(argument) for argument in arguments]
    if function in NDARRAY_NAMES and arguments == (None,):
        return ArrayBytes()
    if function == BYTEARRAY_NAME and kinds in ([bytes], []):
        return bytes(*arguments)
    if function == DTYPE_NAME and kinds[:1] == [str] and arguments[0] in SCALAR_TYPES:
        return _Dtype(arguments[0])
    if function in SCALAR_NAMES and kinds == [_Dtype, bytes]:
        dtype, content = np.dtype(arguments[0].name), arguments[1]
        if len(content) == dtype.itemsize:
            return np.frombuffer(content, dtype.newbyteorder("<"))[0].item()
    raise InvalidPickle(f"the pickle calls {function}, which gluon.Trainer does not call")


# Replaces the standard library's reader for GLOBAL, which wrongly reads backslashes as escapes.
_READERS: Dict[str, Callable[[BytesIO], Any]] = {"GLOBAL": _name_in_two_lines}

# instructions that push their argument
_PUSH_OPCODES = (
    "NONE", "BININT1", "BININT2", "BININT", "LONG1", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE",
    "SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "GLOBAL",
)  # fmt: skip
# The instructions, by their names in pickletools. Each function is called with the unpickler and
# the instruction's argument.
_INSTRUCTIONS: Dict[str, Callable[[Unpickler, Any], Any]] = {
    **dict.fromkeys(_PUSH_OPCODES, Unpickler._push),
    **dict.fromkeys(("MEMOIZE", "BINPUT", "LONG_BINPUT"), Unpickler._memoize),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), Unpickler._push_memo),
    "PROTO": lambda unpickler, _: None,
    "FRAME": Unpickler._check_frame,
    "NEWTRUE": lambda unpickler, _: unpickler._push(True),
    "NEWFALSE": lambda unpickler, _: unpickler._push(False),
    "BYTEARRAY8": lambda unpickler, content: unpickler._push(bytes(content)),
    "EMPTY_DICT": lambda unpickler, _: unpickler._push({}),
    "EMPTY_LIST": lambda unpickler, _: unpickler._push([]),
    "EMPTY_TUPLE": lambda unpickler, _: unpickler._push(()),
    "MARK": lambda unpickler, _: unpickler._mark(),
    "TUPLE": lambda unpickler, _: unpickler._push(tuple(unpickler._pop_to_mark())),
    "TUPLE1": lambda unpickler, _: unpickler._push_tuple(1),
    "TUPLE2": lambda unpickler, _: unpickler._push_tuple(2),
    "TUPLE3": lambda unpickler, _: unpickler._push_tuple(3),
    "SETITEM": lambda unpickler, _: unpickler._set_items([unpickler._pop(), unpickler._pop()][::-1]),
    "SETITEMS": lambda unpickler, _: unpickler._set_items(unpickler._pop_to_mark()),
    "APPEND": lambda unpickler, _: unpickler._append([unpickler._pop()]),
    "APPENDS": lambda unpickler, _: unpickler._append(unpickler._pop_to_mark()),
    "STACK_GLOBAL": lambda unpickler, _: unpickler._name_from_stack(),
    "REDUCE": lambda unpickler, _: unpickler._call(),
    "NEWOBJ": lambda unpickler, _: unpickler._new_object(),
    "BUILD": lambda unpickler, _: unpickler._build(),
}
_OPCODES = {opcode.code: opcode for opcode in opcodes if opcode.name in _INSTRUCTIONS}

MAX_ARRAYS = 16  # per parameter; no optimizer of MXNet has more than 4
MAX_DEPTH = 4  # (master copy, (mean, variance)) has depth 2
MAX_COUNT = 2**62  # limit of positions and counts


class GluonStates(NamedTuple):
    """Content of a state file. If the file does not contain the optimizer, only ``arrays`` is set.

    Attributes:
        arrays: State arrays, by the parameter's position.
        optimizer: Name of the optimizer's class, or None.
        num_update: Largest update count of all parameters, or None.
        updates: Update counts, by the parameter's position.
        extra_state: Extra states, by the parameter's position (`read_extra_state`).
        scalars: Attributes of the optimizer such as the learning rate (`read_scalars`).
    """

    arrays: Dict[int, Tuple[nd.NDArray, ...]]
    optimizer: Optional[str]
    num_update: Optional[int]
    updates: Dict[int, int]
    extra_state: Dict[int, Dict[str, nd.NDArray]]
    scalars: Dict[str, float]


def read_gluon_states(content: bytes) -> GluonStates:
    """Parse a state file of gluon.Trainer without executing it.

    Raise ValueError for other content.
    """
    saved = Unpickler(content).load()
    states, optimizer = saved if type(saved) is tuple and len(saved) == 2 else (saved, None)
    if type(states) is not dict or not all(_is_count(position) for position in states):
        raise InvalidPickle("the pickle does not contain states by parameter position")
    if optimizer is not None and type(optimizer) is not UnpickledObject:
        raise InvalidPickle("the pickle contains an invalid optimizer")
    arrays = _ArrayFactory(len(content))
    state_arrays = {position: arrays.make_state_arrays(state) for position, state in states.items()}
    if optimizer is None:
        return GluonStates(state_arrays, None, None, {}, {}, {})
    if not optimizer.kind.name.isidentifier():
        raise InvalidPickle("the optimizer in the pickle has no valid name")
    attributes = optimizer.attributes
    num_update, counts = _check_count(attributes.get("num_update")), _read_update_counts(attributes)
    extra_states, scalars = _read_extra_states(attributes, arrays), _read_scalars(attributes)
    return GluonStates(state_arrays, optimizer.kind.name, num_update, counts, extra_states, scalars)


class _ArrayFactory:
    """Creates NDArrays with a limit: in total, they are no larger than the file.

    Without the limit, a small pickle could refer to one array many times.
    """

    def __init__(self, max_bytes: int) -> None:
        self._bytes_left = max_bytes

    def make_state_arrays(self, state: Any) -> Tuple[nd.NDArray, ...]:
        """Return the arrays of a nested state in order, without empty arrays."""
        parts: List[ArrayBytes] = []
        _flatten(state, parts, 0)
        return tuple(array for array in map(self.make_array, parts) if array is not None)

    def make_array(self, array: ArrayBytes) -> "nd.NDArray | None":
        """Parse an array. Raise InvalidPickle if all arrays have more bytes than allowed."""
        content = array.content or b""
        self._bytes_left -= len(content)
        if self._bytes_left < 0:
            raise InvalidPickle("the pickle contains an array twice")
        return parse_array(content)


def _flatten(state: Any, arrays: List[ArrayBytes], depth: int) -> None:
    """Append the arrays in a nested state to ``arrays``. Raise InvalidPickle for other content."""
    if type(state) is ArrayBytes and len(arrays) < MAX_ARRAYS:
        arrays.append(state)
    elif type(state) in (tuple, list) and len(state) <= MAX_ARRAYS and depth < MAX_DEPTH:
        for part in state:
            _flatten(part, arrays, depth + 1)
    elif state is not None:
        raise InvalidPickle("the pickle contains states that are not arrays")


def _read_update_counts(attributes: Mapping[Any, Any]) -> Dict[int, int]:
    """Return the largest update count over all devices for each parameter, by position."""
    updates: Dict[int, int] = {}
    for counts in _check_dict(attributes.get("_all_index_update_counts")).values():
        for position, count in _check_dict(counts).items():
            if not _is_count(position):
                raise InvalidPickle("the pickle contains an update count for an invalid parameter position")
            updates[position] = max(updates.get(position, 0), _check_count(count))
    return updates


def _read_extra_states(attributes: Mapping[Any, Any], arrays: _ArrayFactory) -> Dict[int, Dict[str, nd.NDArray]]:
    """Return extra states by position (`gluonlab.optimizers.update_history.read_extra_state`)."""
    extra_states: Dict[int, Dict[str, nd.NDArray]] = {}
    rates = _check_dict(attributes.get("_all_former_rates")) or {0: attributes.get("former_rates")}
    for device_rates in rates.values():
        for position, rate in _check_dict(device_rates).items():
            array = np.array([_check_number(rate)], "float64")
            extra_states.setdefault(position, {})["former_rate"] = ndarray_from_numpy(array)
    for position, sums in _check_dict(attributes.get("cumgrads")).items():
        extra_state = extra_states.setdefault(position, {})
        total = _check_dict(sums).get("cum_grad")
        count = np.array([_check_count(_check_dict(sums).get("num_cums"))], "int64")
        extra_state["num_cums"] = ndarray_from_numpy(count)
        if type(total) is ArrayBytes:
            extra_state["cum_grad"] = arrays.make_array(total)
    return extra_states


def _read_scalars(attributes: Mapping[Any, Any]) -> Dict[str, float]:
    names = SCALAR_ATTRIBUTES if attributes.get("lr_scheduler") is not None else (*SCALAR_ATTRIBUTES, "lr")
    return {name: _check_number(attributes[name]) for name in names if attributes.get(name) is not None}


def _check_dict(value: Any) -> Dict[Any, Any]:
    if value is not None and type(value) is not dict:
        raise InvalidPickle("the optimizer in the pickle is not one of MXNet's optimizers")
    return value or {}


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < MAX_COUNT


def _check_count(value: Any) -> int:
    if not _is_count(value):
        raise InvalidPickle("the optimizer in the pickle has an invalid update count")
    return int(value)


def _check_number(value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) < MAX_COUNT or not math.isfinite(value):
        raise InvalidPickle("the optimizer in the pickle has an invalid learning rate or momentum schedule")
    return float(value)
