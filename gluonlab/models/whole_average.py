"""Computes the average over all pixels as a product with ones.

oneDNN goes back through such a pooling in a slow way: a 3x3 convolution of 64 channels and the
pooling took 26 to 31 ms for 16 images of 16x16, forward and back, on one core of an AMD EPYC (Zen
4), and 10 to 11 with the product. Forward alone both took 3 to 4. The results are the same but for
rounding.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Dict, List, Mapping, Optional

import mxnet as mx
import numpy as np

from gluonlab.models.graphs import (
    Add,
    Entry,
    Node,
    Replacement,
    Shape,
    numbers,
    types_in,
    with_replaced,
)


def product_where_all_is_averaged(
    graph: mx.sym.Symbol, inputs: Dict[str, Shape], types: Mapping[str, Any]
) -> mx.sym.Symbol:
    """``graph`` with a product for each average over all pixels of float32 images.

    Images are (n, C, H, W). ``inputs``: shapes from which all others follow. ``types``: of all
    arguments. Arguments, outputs and their names stay what they are.
    """
    return with_replaced(graph, inputs, partial(_choose, types_in(graph, types)))


def _choose(
    types: Dict[str, Any], node: Node, inputs: List[Optional[Shape]], output: Optional[Shape]
) -> Optional[Replacement]:
    image = inputs[0] if inputs else None
    if image is None or not _averages_all(node, image):
        return None
    dtype = types.get(f"{node['name']}_output")
    return partial(_append_product, image) if dtype == np.float32 else None


def _averages_all(node: Node, image: Shape) -> bool:
    attrs = node.get("attrs", {})
    if node["op"] != "Pooling" or attrs.get("pool_type") != "avg":
        return False
    if (
        len(image) != 4
        or image[2:] == (1, 1)
        or attrs.get("layout", "None") not in ("None", "NCHW")
    ):
        return False
    if attrs.get("global_pool", "False") in ("True", "1"):
        return True
    return numbers(node, "kernel") == image[2:] and set(numbers(node, "pad")) <= {0}


def _append_product(image: Shape, add: Add, entries: List[Entry]) -> None:
    """What replaces a pooling."""
    pixels = image[2] * image[3]
    rows = add("Reshape", "_rows", entries, shape=(-3, -3))
    ones = add("_ones", "_ones", [], shape=(pixels, 1), dtype="float32")
    sums = add("dot", "_sums", [rows, ones])
    average = add("_mul_scalar", "_average", [sums], scalar=1 / pixels)
    add("Reshape", "", [average], shape=(-1, image[1], 1, 1))
