"""A machine for the pickles that gluon.Trainer.save_states writes: it makes plain data of them, and
can do nothing else.

A pickle is a program. Python's own machine imports what it names and calls it, and even where
`Unpickler.find_class` forbids that, a few bytes make it take gigabytes (a memo's index), go on for
ever (a key of tuples that hold each other), or end the process (a key of a million nested tuples
overflows the stack, because hash does not count how deep it is). So its instructions are carried
out here: the two to three dozen that occur in such files, as Python 3 writes them (protocols 3 to
5; the standard library's pickletools documents them). What is made takes the length of the file,
and a hundred megabytes at most besides. Nothing that a pickle names is imported or called: an
NDArray becomes an `ArrayBytes`, any other object a `Record` of its attributes.
"""

from __future__ import annotations

import struct
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

import numpy as np

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
    """What a pickle calls by module and name."""

    module: str
    name: str

    def __str__(self) -> str:
        return ascii(".".join(part[:60] for part in self))


class ArrayBytes:
    """An NDArray: ``content`` as NDArray::Save wrote it, or None before it is known."""

    content: "bytes | None" = None


class Record:
    """An object of any class, which is only named: its attributes."""

    def __init__(self, kind: Name) -> None:
        self.kind = kind
        self.attributes: Dict[Any, Any] = {}


class _Dtype(NamedTuple):
    name: str


class Unpickler:
    """``Unpickler(content).load()``: dicts, lists, tuples, numbers, texts, `ArrayBytes` and
    `Record`. Raises `Refused`.
    """

    def __init__(self, content: bytes) -> None:
        self._content, self._place = content, 0
        self._stack: List[Any] = []
        self._marked: List[List[Any]] = []  # the stacks below the marks
        self._memo: Dict[int, Any] = {}

    def load(self) -> Any:
        """Carry out the program to its end: what it leaves."""
        for _ in range(MOST_INSTRUCTIONS):
            code = self._take(1)[0]
            if code == _STOP:
                if len(self._stack) != 1 or self._marked or self._place != len(self._content):
                    raise Refused("a damaged pickle")
                return self._stack[0]
            instruction = _INSTRUCTIONS.get(code)
            if instruction is None:
                raise Refused(
                    f"a pickle with the instruction {bytes([code])!r}, "
                    "which gluon.Trainer does not write"
                )
            instruction(self)
        raise Refused(f"a pickle of more than {MOST_INSTRUCTIONS:,} instructions")

    def find_class(self, module: str, name: str) -> Name:
        """What stands for a class or a function: its name, whatever it is."""
        return Name(module, name)

    # --- what instructions are made of

    def _take(self, length: int) -> bytes:
        begin, self._place = self._place, self._place + length
        if self._place > len(self._content):
            raise Refused("a pickle that is cut off")
        return self._content[begin : self._place]

    def _unpacked(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _line(self) -> str:
        end = self._content.find(b"\n", self._place)
        if end < 0:
            raise Refused("a pickle that is cut off")
        return self._take(end + 1 - self._place)[:-1].decode()

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop(self) -> Any:
        if not self._stack:
            raise Refused("a damaged pickle")
        return self._stack.pop()

    def _top(self, kind: type) -> Any:
        if not self._stack or type(self._stack[-1]) is not kind:
            raise Refused("a damaged pickle")
        return self._stack[-1]

    def _mark(self) -> None:
        self._marked.append(self._stack)
        self._stack = []

    def _pop_to_mark(self) -> List[Any]:
        if not self._marked:
            raise Refused("a damaged pickle")
        values, self._stack = self._stack, self._marked.pop()
        return values

    # --- the instructions that are more than a line

    def _frame(self) -> None:
        if self._unpacked("<Q") > len(self._content) - self._place:
            raise Refused("a pickle that is cut off")

    def _push_text(self, form: str) -> None:
        self._push(self._take(self._unpacked(form)).decode("utf-8", "surrogatepass"))

    def _push_bytes(self, form: str) -> None:
        self._push(self._take(self._unpacked(form)))

    def _push_tuple(self, length: int) -> None:
        self._push(tuple(reversed([self._pop() for _ in range(length)])))

    def _memoize(self, index: int) -> None:
        if not self._stack:
            raise Refused("a damaged pickle")
        self._memo[index] = self._stack[-1]

    def _recall(self, index: int) -> None:
        if index not in self._memo:
            raise Refused("a damaged pickle")
        self._push(self._memo[index])

    def _set_items(self, values: List[Any]) -> None:
        target = self._top(dict)
        if len(values) % 2 or not all(
            type(key) in (int, str, float, bool, type(None)) for key in values[::2]
        ):
            raise Refused("a dict whose keys are neither numbers nor texts")
        target.update(zip(values[::2], values[1::2]))

    def _append(self, values: List[Any]) -> None:
        self._top(list).extend(values)

    def _name(self) -> None:
        self._push(self.find_class(self._line(), self._line()))

    def _name_from_stack(self) -> None:
        name, module = self._pop(), self._pop()
        if type(name) is not str or type(module) is not str:
            raise Refused("a damaged pickle")
        self._push(self.find_class(module, name))

    def _call(self) -> None:
        """A function that is called: only those that make NDArrays and numbers, and not the
        functions themselves.
        """
        arguments, function = self._pop(), self._pop()
        if type(function) is not Name or type(arguments) is not tuple:
            raise Refused("a damaged pickle")
        self._push(_made(function, arguments))

    def _new_object(self) -> None:
        arguments, kind = self._pop(), self._pop()
        if type(kind) is not Name or arguments != ():
            raise Refused("a damaged pickle")
        self._push(Record(kind))

    def _build(self) -> None:
        state = self._pop()
        target = self._stack[-1] if self._stack else None
        if (
            type(target) is ArrayBytes
            and type(state) is dict
            and type(state.get("handle")) is bytes
        ):
            target.content = state["handle"]
        elif type(target) is Record and type(state) is dict:
            target.attributes = state
        elif type(target) is not _Dtype:  # the state of a type of numbers says nothing new
            raise Refused("a pickle of objects that gluon.Trainer does not write")


def _made(function: Name, arguments: Tuple[Any, ...]) -> Any:
    """What the call of a function stands for. Raises Refused for any function but these."""
    kinds = [type(argument) for argument in arguments]
    if function in NDARRAYS and arguments == (None,):
        return ArrayBytes()
    if function == BYTEARRAY and kinds in ([bytes], []):
        return bytes(*arguments)
    if function == DTYPE and kinds[:1] == [str] and arguments[0] in SCALAR_TYPES:
        return _Dtype(arguments[0])
    if (
        function in SCALARS
        and kinds == [_Dtype, bytes]
        and len(arguments[1]) == np.dtype(arguments[0].name).itemsize
    ):
        return np.frombuffer(arguments[1], f"<{arguments[0].name}")[0].item()
    raise Refused(f"a pickle that calls {function}")


_STOP = ord(".")
_INSTRUCTIONS: Dict[int, Callable[[Unpickler], Any]] = {
    code[0]: instruction
    for code, instruction in {
        b"\x80": lambda of: of._take(1),  # the protocol
        b"\x95": lambda of: of._frame(),
        b"\x94": lambda of: of._memoize(len(of._memo)),
        b"q": lambda of: of._memoize(of._unpacked("<B")),
        b"r": lambda of: of._memoize(of._unpacked("<I")),
        b"h": lambda of: of._recall(of._unpacked("<B")),
        b"j": lambda of: of._recall(of._unpacked("<I")),
        b"N": lambda of: of._push(None),
        b"\x88": lambda of: of._push(True),
        b"\x89": lambda of: of._push(False),
        b"K": lambda of: of._push(of._unpacked("<B")),
        b"M": lambda of: of._push(of._unpacked("<H")),
        b"J": lambda of: of._push(of._unpacked("<i")),
        b"\x8a": lambda of: of._push(
            int.from_bytes(of._take(of._unpacked("<B")), "little", signed=True)
        ),
        b"G": lambda of: of._push(of._unpacked(">d")),
        b"\x8c": lambda of: of._push_text("<B"),
        b"X": lambda of: of._push_text("<I"),
        b"C": lambda of: of._push_bytes("<B"),
        b"B": lambda of: of._push_bytes("<I"),
        b"\x8e": lambda of: of._push_bytes("<Q"),
        b"\x96": lambda of: of._push_bytes("<Q"),  # a bytearray
        b"}": lambda of: of._push({}),
        b"]": lambda of: of._push([]),
        b")": lambda of: of._push(()),
        b"(": lambda of: of._mark(),
        b"t": lambda of: of._push(tuple(of._pop_to_mark())),
        b"\x85": lambda of: of._push_tuple(1),
        b"\x86": lambda of: of._push_tuple(2),
        b"\x87": lambda of: of._push_tuple(3),
        b"s": lambda of: of._set_items([of._pop(), of._pop()][::-1]),
        b"u": lambda of: of._set_items(of._pop_to_mark()),
        b"a": lambda of: of._append([of._pop()]),
        b"e": lambda of: of._append(of._pop_to_mark()),
        b"c": lambda of: of._name(),
        b"\x93": lambda of: of._name_from_stack(),
        b"R": lambda of: of._call(),
        b"\x81": lambda of: of._new_object(),
        b"b": lambda of: of._build(),
    }.items()
}
