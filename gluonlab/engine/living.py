"""The blocks of Gluon that live in this process: each is noted when it is made.

To ask Python's collector for them would take some 10 ms each time, and more the more a process has
loaded, as it looks at every object that it knows.
"""

from __future__ import annotations

import gc
import sys
from typing import Any, Dict, List, Set
from weakref import ref

_noted: "Dict[int, ref[Any]]" = {}  # by id: a block may compare, or hash, as it likes


def install(came_first: bool) -> None:
    """Note every block of Gluon that is made from now on; if MXNet came first, older ones, too.

    MXNet must have been imported.
    """
    module = sys.modules.get("mxnet.gluon.block")
    if module is None or module.Block.__new__ is noting:
        return
    module.Block.__new__ = noting
    for block in _known_to_the_collector(module.Block) if came_first else ():
        _note(block)


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


def _known_to_the_collector(base: type) -> List[Any]:
    """The blocks of somebody who imported MXNet long before gluonlab.

    From Python 3.9 on an object refers to its class. Before, all objects have to be looked at,
    among them tuples that other threads are making: with a second owner these end in a SystemError.
    """
    if sys.version_info >= (3, 9):
        found = gc.get_referrers(*_kinds(base))
    else:
        found = gc.get_objects()
    return [thing for thing in found if issubclass(type(thing), base)]


def _kinds(kind: type) -> Set[type]:
    """The class and all that are made of it."""
    return {kind}.union(*map(_kinds, kind.__subclasses__()))
