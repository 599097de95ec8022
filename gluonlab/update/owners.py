"""Whose a parameter is: it does not know the blocks that it is in."""

from __future__ import annotations

from typing import Any, Iterable, Set

from mxnet.gluon import Parameter


def of_convolutions(blocks: Iterable[Any]) -> Set[Parameter]:
    """The parameters that ordinary convolutions have, and no other of these blocks.

    A transposed convolution is another block.
    """
    convolved: Set[Parameter] = set()
    others: Set[Parameter] = set()
    for block in blocks:
        inside = vars(block)  # of one that is being made, not all is there
        owned = others if inside.get("_op_name") != "Convolution" else convolved
        owned.update(inside.get("_reg_params", {}).values())
    return convolved - others
