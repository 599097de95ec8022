"""The blocks that live in this process: a parameter does not know the networks that it is in."""

from __future__ import annotations

import gc
from typing import Iterable, List, Set

from mxnet import gluon
from mxnet.gluon import Parameter

from gluonlab.engine import living


def living_blocks() -> List[gluon.Block]:
    """All of them. Python's collector looks at every object that it knows, which takes some 10 ms.

    On Python 3.8 those that have been made since gluonlab was imported: `gluonlab.engine.living`.
    """
    found = living.living() if living.NEEDED else gc.get_referrers(*_kinds(gluon.Block))
    return [thing for thing in found if issubclass(type(thing), gluon.Block)]


def _kinds(kind: type) -> Set[type]:
    """The class and all that are made of it."""
    return {kind}.union(*map(_kinds, kind.__subclasses__()))


def of_convolutions(blocks: Iterable[gluon.Block]) -> Set[Parameter]:
    """The parameters that ordinary convolutions have, and no other block.

    A transposed convolution is another block.
    """
    convolved: Set[Parameter] = set()
    others: Set[Parameter] = set()
    for block in blocks:
        inside = vars(block)  # of one that is being made, not all is there
        owned = others if inside.get("_op_name") != "Convolution" else convolved
        owned.update(inside.get("_reg_params", {}).values())
    return convolved - others
