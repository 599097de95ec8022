"""Computes a convolution whose output is a single pixel as a dense layer.

Networks that were made for large images have little left of small ones in their last layers: of
32x32 pixels, one in ResNet-18's. A window of 3x3 around it has eight weights of nine that only ever
meet the padding. oneDNN rearranges and multiplies all nine, in forward and twice in backward; the
dense layer has but one. The results are the same but for rounding, the gradients of the other
weights are exactly zero in both.
"""

from __future__ import annotations

from functools import partial
from typing import Dict, List, NamedTuple, Optional, Tuple

import mxnet as mx

from gluonlab.models.graphs import Add, Entry, Node, Replacement, Shape, numbers, with_replaced


class Seen(NamedTuple):
    """(begin, end) along two axes: the pixels under the window, and the weights that meet them.

    ``all_pixels``: whether those are all of the image.
    """

    pixels: List[Tuple[int, int]]
    weights: List[Tuple[int, int]]
    all_pixels: bool


def dense_where_one_pixel(graph: mx.sym.Symbol, inputs: Dict[str, Shape]) -> mx.sym.Symbol:
    """``graph`` with dense layers for convolutions that give one pixel and see padding.

    Each of these has weights that meet nothing but the padding. ``inputs``: shapes from which all
    others follow. Arguments, outputs and their names stay what they are.
    """
    return with_replaced(graph, inputs, _choose)


def _choose(
    node: Node, inputs: List[Optional[Shape]], output: Optional[Shape]
) -> Optional[Replacement]:
    seen = _seen(node, inputs[0], output) if inputs else None
    return None if seen is None else partial(_append_dense, node, seen)


def _seen(node: Node, image: Optional[Shape], output: Optional[Shape]) -> Optional[Seen]:
    """What a node sees, if it is a convolution to be replaced; else None."""
    attrs = node.get("attrs", {})
    if node["op"] != "Convolution" or image is None or output is None:
        return None
    if len(image) != 4 or output[2:] != (1, 1):
        return None
    kernel, pad, dilate = (numbers(node, name) for name in ("kernel", "pad", "dilate"))
    whole = set(dilate) <= {1} and attrs.get("num_group", "1") == "1"
    usual = whole and attrs.get("layout", "None") in ("None", "NCHW")
    begins = [-padding for padding in pad or (0, 0)]  # where the window lies on the image
    sides = zip(image[2:], begins, kernel)
    pixels = [(max(0, begin), min(side, begin + width)) for side, begin, width in sides]
    weights = [(first - begin, last - begin) for (first, last), begin in zip(pixels, begins)]
    # a stride over the whole image may leave the window beside it
    blind = any(first >= last for first, last in pixels)
    if not usual or blind or weights == [(0, width) for width in kernel]:
        return None  # with all of its weights the dense layer would rearrange as much
    return Seen(pixels, weights, pixels == [(0, side) for side in image[2:]])


def _append_dense(node: Node, seen: Seen, add: Add, entries: List[Entry]) -> None:
    """What replaces a convolution."""
    image, weight, *bias = entries
    if not seen.all_pixels:
        image = add("slice", "_pixels", [image], **_slice(seen.pixels))
    weight = add("slice", "_weights", [weight], **_slice(seen.weights))
    weight = add("Reshape", "_matrix", [weight], shape=(0, -1))
    attrs = {"num_hidden": node["attrs"]["num_filter"], "no_bias": not bias}
    dense = add("FullyConnected", "_dense", [image, weight, *bias], **attrs)
    add("Reshape", "", [dense], shape=(0, -1, 1, 1))


def _slice(bounds: List[Tuple[int, int]]) -> Dict[str, Shape]:
    """The operator's attributes for (begin, end) along the last two of four axes."""
    begin, end = zip(*bounds)
    return {"begin": (None, None, *begin), "end": (None, None, *end)}
