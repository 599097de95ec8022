"""The blocks that live in this process: a parameter does not know the networks that it is in."""

from __future__ import annotations

import gc
from typing import Iterable, List, Set

from mxnet import gluon
from mxnet.gluon import Parameter


def living_blocks() -> List[gluon.Block]:
    """All of them. It looks at every object that Python's collector knows, which takes some 10 ms."""
    return [thing for thing in gc.get_objects() if issubclass(type(thing), gluon.Block)]


def of_convolutions(blocks: Iterable[gluon.Block]) -> Set[Parameter]:
    """The parameters that ordinary convolutions have, and no other block, such as a transposed convolution."""
    convolved: Set[Parameter] = set()
    others: Set[Parameter] = set()
    for block in blocks:
        inside = vars(block)  # of one that is being made, not all is there
        owned = others if inside.get("_op_name") != "Convolution" else convolved
        owned.update(inside.get("_reg_params", {}).values())
    return convolved - others
