"""Joins channels without oneDNN where it cannot cut them apart again.

oneDNN keeps images in blocks of up to 16 channels. Where a part of a concatenation does not fill
its blocks, MXNet's backward through oneDNN ends in "could not construct a sub-memory", or in the
end of the process, and forward may ask for more memory than there is: it depends on the order in
which the neighbours have left their images. Of arrays with three axes oneDNN takes none.
"""

from __future__ import annotations

from functools import partial
from typing import Dict, List, Optional

import mxnet as mx

from gluonlab.models.graphs import Add, Entry, Node, Replacement, Shape, with_replaced

BLOCK = 16  # channels; on older processors 8


def plain_where_channels_are_odd(graph: mx.sym.Symbol, inputs: Dict[str, Shape]) -> mx.sym.Symbol:
    """``graph`` with images joined along C as (n, C, H * W), unless every C is a multiple of BLOCK.

    Those are (n, C, H, W). ``inputs``: shapes from which all others follow. Arguments, outputs and
    their names stay what they are.
    """
    return with_replaced(graph, inputs, _choose)


def _choose(node: Node, inputs: List[Optional[Shape]], _: Optional[Shape]) -> Optional[Replacement]:
    return partial(_append_plain, node) if _joins_channels(node) and _is_odd(inputs) else None


def _joins_channels(node: Node) -> bool:
    return bool(node["op"] == "Concat" and node.get("attrs", {}).get("dim", "1") in ("1", "-3"))


def _is_odd(parts: List[Optional[Shape]]) -> bool:
    """Whether these are images, and the channels of one do not, or may not, fill its blocks."""
    known = [shape for shape in parts if shape is not None]
    if not known or len(known[0]) != 4:
        return False
    return len(known) < len(parts) or any(shape[1] % BLOCK for shape in known)


def _append_plain(node: Node, add: Add, entries: List[Entry]) -> None:
    """What replaces a concatenation."""
    parts = enumerate(entries)
    flat = [add("Reshape", f"_flat{i}", [entry], shape=(0, 0, -1)) for i, entry in parts]
    joined = add("Concat", "_joined", flat, num_args=len(flat), dim=1)
    ends = {"lhs_begin": 2, "lhs_end": 3, "rhs_begin": 2, "rhs_end": 4}
    add("reshape_like", "", [joined, entries[0]], **ends)
