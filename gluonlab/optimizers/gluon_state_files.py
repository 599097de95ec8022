"""Reads the files of gluon.Trainer 1.9.1's save_states.

Such a file is a pickle of ``(states, optimizer)``, or, where ``save_optimizer_states`` of a kvstore
wrote it, of the states alone. ``states`` has, by the parameter's position in the trainer, the nest
of arrays that the optimizer made for it, from the first of the devices or from the store; the
optimizer has its counts of updates by position. Names and shapes of parameters are not in it, nor
those of parameters without states. gluon.Trainer sorts a ParameterDict by name as text, ``dense10``
before ``dense9``.

A pickle is a program. Python's own machine imports what it names and calls it, and even where
`Unpickler.find_class` forbids that, a few bytes make it take gigabytes (a memo's index), go on for
ever (a key of tuples that hold each other), or end the process (a key of a million nested tuples
overflows the stack, because hash does not count how deep it is). So its instructions are carried
out here: the two to three dozen that occur in such files, as Python 3 writes them (protocols 3 to
5; the standard library's pickletools documents them). What is made takes the length of the file,
and a hundred megabytes at most besides. Nothing that a pickle names is imported or called: an
NDArray becomes an `ArrayBytes`, any other object a `UnpickledObject` of its attributes.
"""

from __future__ import annotations

import math
from io import BytesIO
from pickletools import opcodes
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np
from mxnet import nd

from gluonlab.engine.fast_invoke import ndarray_from_numpy
from gluonlab.files.array_files import array_of
from gluonlab.optimizers.optimizer_step import NUMBERS

NDARRAYS = {("mxnet.ndarray.ndarray", "NDArray"), ("mxnet.numpy.multiarray", "ndarray")}
BYTEARRAY = ("builtins", "bytearray")
# What learning rates that NumPy has computed are made of; under the names of NumPy 1 and 2.
DTYPE = ("numpy", "dtype")
SCALARS = {("numpy.core.multiarray", "scalar"), ("numpy._core.multiarray", "scalar")}
MOST_INSTRUCTIONS = 2**20  # some 50 make a parameter's state; each may leave about 100 bytes
SCALAR_TYPES = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")


class Refused(ValueError):
    """The pickle is damaged, or asks for something that gluon.Trainer's files do not need."""


class Name(NamedTuple):
    """A class or function that a pickle names by its module."""

    module: str
    name: str

    def __str__(self) -> str:
        return ascii(".".join(part[:60] for part in self))


class ArrayBytes:
    """An NDArray: ``content`` as NDArray::Save wrote it, or None before it is known."""

    content: "bytes | None" = None


class UnpickledObject:
    """An object of any class, of which only the name and the attributes are known."""

    def __init__(self, kind: Name) -> None:
        self.kind = kind
        self.attributes: Dict[Any, Any] = {}


class _Dtype(NamedTuple):
    name: str


class Unpickler:
    """Reads a pickle into dicts, lists, tuples, numbers, texts, `ArrayBytes` and `UnpickledObject`.

    ``Unpickler(content).load()`` raises `Refused` for anything else.
    """

    def __init__(self, content: bytes) -> None:
        self._content = BytesIO(content)
        self._stack: List[Any] = []
        self._marked: List[List[Any]] = []  # the stacks below the marks
        self._memo: Dict[int, Any] = {}

    def load(self) -> Any:
        """Carry out the program to its end, and return what it leaves."""
        for _ in range(MOST_INSTRUCTIONS):
            code = self._content.read(1).decode("latin-1")
            if code == ".":
                _need(len(self._stack) == 1 and not self._marked and not self._content.read(1))
                return self._stack[0]
            opcode = _OPCODES.get(code)
            if opcode is None:
                fault = f"with the instruction {code!r}, which gluon.Trainer does not write"
                raise Refused(f"a pickle {fault if code else 'that is cut off'}")
            try:
                reader = _READERS.get(opcode.name) or getattr(opcode.arg, "reader", None)
                argument = reader(self._content) if reader is not None else None
            except ValueError:
                raise Refused("a pickle that is cut off, or damaged") from None
            _INSTRUCTIONS[opcode.name](self, argument)
        raise Refused(f"a pickle of more than {MOST_INSTRUCTIONS:,} instructions")

    # --- the instructions, and what they are made of

    def _frame(self, length: int) -> None:
        _need(length <= self._content.getbuffer().nbytes - self._content.tell())

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop(self) -> Any:
        _need(self._stack)
        return self._stack.pop()

    def _mark(self) -> None:
        self._marked.append(self._stack)
        self._stack = []

    def _pop_to_mark(self) -> List[Any]:
        _need(self._marked)
        values, self._stack = self._stack, self._marked.pop()
        return values

    def _push_tuple(self, length: int) -> None:
        self._push(tuple(reversed([self._pop() for _ in range(length)])))

    def _memoize(self, index: Optional[int]) -> None:
        _need(self._stack)
        self._memo[len(self._memo) if index is None else index] = self._stack[-1]

    def _recall(self, index: int) -> None:
        _need(index in self._memo)
        self._push(self._memo[index])

    def _set_items(self, values: List[Any]) -> None:
        _need(self._stack and type(self._stack[-1]) is dict)
        if len(values) % 2 or not all(
            type(key) in (int, str, float, bool, type(None)) for key in values[::2]
        ):
            raise Refused("a dict whose keys are neither numbers nor texts")
        self._stack[-1].update(zip(values[::2], values[1::2]))

    def _append(self, values: List[Any]) -> None:
        _need(self._stack and type(self._stack[-1]) is list)
        self._stack[-1].extend(values)

    def _name_from_stack(self) -> None:
        name, module = self._pop(), self._pop()
        _need(type(name) is str and type(module) is str)
        self._push(Name(module, name))

    def _call(self) -> None:
        """Stand in for the call of a function: only for those that make NDArrays and numbers."""
        arguments, function = self._pop(), self._pop()
        _need(type(function) is Name and type(arguments) is tuple)
        self._push(_made(function, arguments))

    def _new_object(self) -> None:
        arguments, kind = self._pop(), self._pop()
        _need(type(kind) is Name and arguments == ())
        self._push(UnpickledObject(kind))

    def _build(self) -> None:
        state = self._pop()
        target = self._stack[-1] if self._stack else None
        attributes = state if type(state) is dict else {}
        if type(target) is ArrayBytes and type(attributes.get("handle")) is bytes:
            target.content = attributes["handle"]
        elif type(target) is UnpickledObject and attributes is state:
            target.attributes = attributes
        elif type(target) is not _Dtype:  # the state of a type of numbers says nothing new
            raise Refused("a pickle of objects that gluon.Trainer does not write")


def _name_in_two_lines(content: BytesIO) -> Name:
    module, name = content.readline(), content.readline()
    _need(name.endswith(b"\n"))
    return Name(module[:-1].decode(), name[:-1].decode())


def _need(sound: Any) -> None:
    if not sound:
        raise Refused("a damaged pickle")


def _made(function: Name, arguments: Tuple[Any, ...]) -> Any:
    """What the call of a function stands for.

    Raises Refused for any function but these.
    """
    kinds = [type(argument) for argument in arguments]
    if function in NDARRAYS and arguments == (None,):
        return ArrayBytes()
    if function == BYTEARRAY and kinds in ([bytes], []):
        return bytes(*arguments)
    if function == DTYPE and kinds[:1] == [str] and arguments[0] in SCALAR_TYPES:
        return _Dtype(arguments[0])
    if function in SCALARS and kinds == [_Dtype, bytes]:
        dtype, content = np.dtype(arguments[0].name), arguments[1]
        if len(content) == dtype.itemsize:
            return np.frombuffer(content, dtype.newbyteorder("<"))[0].item()
    raise Refused(f"a pickle that calls {function}")


# the standard library's reader takes backslashes for escapes, which they are not here
_READERS: Dict[str, Callable[[BytesIO], Any]] = {"GLOBAL": _name_in_two_lines}

# what pushes its argument
_PUSHING = (
    "NONE", "BININT1", "BININT2", "BININT", "LONG1", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE",
    "SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "GLOBAL",
)  # fmt: skip
# by the standard library's names; each gets the machine and the instruction's argument
_INSTRUCTIONS: Dict[str, Callable[[Unpickler, Any], Any]] = {
    **dict.fromkeys(_PUSHING, Unpickler._push),
    **dict.fromkeys(("MEMOIZE", "BINPUT", "LONG_BINPUT"), Unpickler._memoize),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), Unpickler._recall),
    "PROTO": lambda machine, _: None,
    "FRAME": Unpickler._frame,
    "NEWTRUE": lambda machine, _: machine._push(True),
    "NEWFALSE": lambda machine, _: machine._push(False),
    "BYTEARRAY8": lambda machine, content: machine._push(bytes(content)),
    "EMPTY_DICT": lambda machine, _: machine._push({}),
    "EMPTY_LIST": lambda machine, _: machine._push([]),
    "EMPTY_TUPLE": lambda machine, _: machine._push(()),
    "MARK": lambda machine, _: machine._mark(),
    "TUPLE": lambda machine, _: machine._push(tuple(machine._pop_to_mark())),
    "TUPLE1": lambda machine, _: machine._push_tuple(1),
    "TUPLE2": lambda machine, _: machine._push_tuple(2),
    "TUPLE3": lambda machine, _: machine._push_tuple(3),
    "SETITEM": lambda machine, _: machine._set_items([machine._pop(), machine._pop()][::-1]),
    "SETITEMS": lambda machine, _: machine._set_items(machine._pop_to_mark()),
    "APPEND": lambda machine, _: machine._append([machine._pop()]),
    "APPENDS": lambda machine, _: machine._append(machine._pop_to_mark()),
    "STACK_GLOBAL": lambda machine, _: machine._name_from_stack(),
    "REDUCE": lambda machine, _: machine._call(),
    "NEWOBJ": lambda machine, _: machine._new_object(),
    "BUILD": lambda machine, _: machine._build(),
}
_OPCODES = {opcode.code: opcode for opcode in opcodes if opcode.name in _INSTRUCTIONS}

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
    if optimizer is not None and type(optimizer) is not UnpickledObject:
        raise Refused("a pickle of states and of something that is no optimizer")
    arrays = _ArrayFactory(len(content))
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


class _ArrayFactory:
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


def _memory(
    attributes: Mapping[Any, Any], arrays: _ArrayFactory
) -> Dict[int, Dict[str, nd.NDArray]]:
    """As `gluonlab.optimizers.optimizer_step.memory_of` has it."""
    memory: Dict[int, Dict[str, nd.NDArray]] = {}
    rates = _dict(attributes.get("_all_former_rates")) or {0: attributes.get("former_rates")}
    for of_device in rates.values():
        for position, rate in _dict(of_device).items():
            array = np.array([_number(rate)], "float64")
            memory.setdefault(position, {})["former_rate"] = ndarray_from_numpy(array)
    for position, sums in _dict(attributes.get("cumgrads")).items():
        of_position, total = memory.setdefault(position, {}), _dict(sums).get("cum_grad")
        count = np.array([_count(_dict(sums).get("num_cums"))], "int64")
        of_position["num_cums"] = ndarray_from_numpy(count)
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
