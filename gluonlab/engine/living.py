"""The blocks of Gluon that live in this process, where Python itself cannot find them: Python 3.8.

From 3.9 on an object refers to its class, so the collector finds a class's objects. Before, it
would have to give us all objects, among them tuples that other threads are making: these must not
have a second owner, and the other thread's ``tuple(...)`` would end in a SystemError. So each block
is noted there when it is made.
"""

from __future__ import annotations

import gc
import sys
from typing import Any, Dict, List
from weakref import ref

NEEDED = sys.version_info < (3, 9)
_noted: "Dict[int, ref[Any]]" = {}  # by id: a block may compare, or hash, as it likes


def install() -> None:
    """Note every block of Gluon that is made from now on, where that is NEEDED.

    MXNet must have been imported.
    """
    module = sys.modules.get("mxnet.gluon.block")
    if not NEEDED or module is None or module.Block.__new__ is noting:
        return
    module.Block.__new__ = noting
    for thing in gc.get_objects():  # this once: MXNet may have been imported long before gluonlab
        if issubclass(type(thing), module.Block):
            _note(thing)


def living() -> List[Any]:
    """The blocks that were noted and are still there."""
    blocks = [noted() for noted in list(_noted.values())]
    return [block for block in blocks if block is not None]


def noting(kind: type, *_: Any, **__: Any) -> Any:
    """``Block.__new__``."""
    block: Any = object.__new__(kind)
    _note(block)
    return block


def _note(block: Any) -> None:
    number = id(block)
    _noted[number] = ref(block, lambda _: _noted.pop(number, None))
