"""Rewrites the graph of a network for a device: the same function, computed correctly and fast.

`rewrites` applies all rewrites in order. The simple ones are in this module. The two others are
`gluonlab.models.wrong_gradients` and `gluonlab.models.channel_padding`. Arguments, outputs and
their names stay what they are. ``shapes`` are those of all arguments, from which all others follow.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import (
    Any,
    Collection,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Tuple,
)

import mxnet as mx
import numpy as np

from gluonlab.models.channel_padding import pad_channels, padding_for
from gluonlab.models.symbol_graph import (
    Add,
    Entry,
    Node,
    Replacement,
    Shape,
    numbers,
    parsed,
    to_symbol,
    types_in,
    with_replaced,
)
from gluonlab.models.wrong_gradients import with_right_gradients

Kinds = Mapping[str, Tuple[Tuple[int, ...], Any]]  # shape and type by name
BLOCK = 16  # channels that oneDNN keeps in a block; on older processors 8


class Rewrite(NamedTuple):
    """A graph after one of the rewrites.

    ``effect``: what this rewrite does to the operators that it changes.
    """

    effect: str
    graph: mx.sym.Symbol


def rewrite(
    graph: mx.sym.Symbol,
    ctx: mx.Context,
    kinds: Kinds,
    learned: Optional[Collection[str]] = None,
    pad: bool = True,
) -> mx.sym.Symbol:
    """Return a graph that computes the same, correctly and fast, on a device.

    Args:
        graph: a network, perhaps with its loss.
        ctx: the device.
        kinds: shapes and types of all arguments.
        learned: the arguments whose gradients are requested; None if that is unknown.
        pad: whether channels may be padded. Auxiliary states then have more of them.
    """
    for step in rewrites(graph, ctx, kinds, learned, pad):
        graph = step.graph
    return graph


def rewrites(
    graph: mx.sym.Symbol,
    ctx: mx.Context,
    kinds: Kinds,
    learned: Optional[Collection[str]] = None,
    pad: bool = True,
) -> Iterator[Rewrite]:
    """Yield the graph after each of the rewrites that `rewrite` makes, in their order."""
    graph = with_right_gradients(graph, learned)
    yield Rewrite("replaced, because MXNet computes a wrong gradient", graph)
    graph = pool_before_relu(graph)
    yield Rewrite("exchanged, so that ReLU follows max pooling", graph)
    if ctx.device_type == "gpu":
        return  # the remaining rewrites are for oneDNN only
    names = graph.list_arguments()
    shapes, types = ({name: kinds[name][place] for name in names} for place in range(2))
    graph = dense_where_one_pixel(graph, shapes)
    yield Rewrite("one pixel computed as a dense layer", graph)
    if pad:
        graph = pad_channels(graph, shapes, types, padding_for(ctx))
        yield Rewrite("padded with zero channels", graph)
    graph = product_where_all_is_averaged(graph, shapes, types)
    yield Rewrite("average over all pixels computed as a matrix product", graph)
    graph = plain_where_channels_are_odd(graph, shapes)
    yield Rewrite("odd numbers of channels joined without oneDNN", graph)


# --- ReLU after max pooling


def pool_before_relu(graph: mx.sym.Symbol) -> mx.sym.Symbol:
    """Exchange each ReLU and the max pooling behind it, if nothing else reads the ReLU.

    The largest number of a window is positive or not, whichever comes first. So function and
    gradient are the same, and ReLU has fewer numbers to read, a quarter for windows of 2x2. Return
    ``graph`` itself if there are none.
    """
    old = parsed(graph)
    nodes: List[Node] = old["nodes"]
    entries = [entry for node in nodes for entry in node["inputs"]] + old["heads"]
    readers = Counter(entry[0] for entry in entries)
    exchanged: Dict[int, int] = {}  # pooling -> ReLU
    for place, node in enumerate(nodes):
        source = node["inputs"][0][0] if node["inputs"] else 0
        if _is_max_pooling(node) and _is_relu(nodes[source]) and readers[source] == 1:
            exchanged[place] = source
    if not exchanged:
        return graph
    relus = set(exchanged.values())
    new: List[Node] = []
    places: Dict[int, int] = {}  # node of the old graph -> its node in the new one

    def moved(some: List[List[Any]]) -> List[List[Any]]:
        return [[places[entry[0]], *entry[1:]] for entry in some]

    for place, node in enumerate(nodes):
        if place in relus:
            continue
        if place in exchanged:
            relu = nodes[exchanged[place]]
            name, inputs = f"{node['name']}_before_relu", moved(relu["inputs"])
            new.append({**node, "name": name, "inputs": inputs})
            new.append({**relu, "name": node["name"], "inputs": [[len(new) - 1, 0, 0]]})
        else:
            new.append({**node, "inputs": moved(node["inputs"])})
        places[place] = len(new) - 1
    return to_symbol(new, moved(old["heads"]), old["attrs"])


def _is_relu(node: Node) -> bool:
    is_activation = node["op"] == "Activation" and node["attrs"]["act_type"] == "relu"
    return bool(is_activation or node["op"] == "relu")


def _is_max_pooling(node: Node) -> bool:
    """Whether it is a max pooling of which every window has a number of the image."""
    attrs = node.get("attrs", {})
    if node["op"] != "Pooling" or attrs.get("pool_type", "max") != "max":
        return False
    if attrs.get("global_pool", "False") in ("True", "1"):
        return True
    if attrs.get("pooling_convention", "valid") == "valid":
        return True
    kernel = numbers(node, "kernel")
    stride = numbers(node, "stride") or (1,) * len(kernel)
    plain = set(numbers(node, "pad")) <= {0}
    return plain and all(step <= side for step, side in zip(stride, kernel))


# --- a convolution with one pixel of output as a dense layer


class WindowOverlap(NamedTuple):
    """(begin, end) along two axes: the pixels under the window, and the weights that meet them.

    ``all_pixels``: whether those are all of the image.
    """

    pixels: List[Tuple[int, int]]
    weights: List[Tuple[int, int]]
    all_pixels: bool


def dense_where_one_pixel(graph: mx.sym.Symbol, shapes: Dict[str, Shape]) -> mx.sym.Symbol:
    """``graph`` with dense layers for convolutions that give one pixel and see padding.

    Networks that were made for large images have little left of small ones in their last layers: of
    32x32 pixels, one in ResNet-18's. A window of 3x3 around it has eight weights of nine that only
    ever meet the padding. oneDNN rearranges and multiplies all nine, in forward and twice in
    backward; the dense layer has but one. The results are the same but for rounding, the gradients
    of the other weights are exactly zero in both.
    """

    def choose(
        node: Node, inputs: List[Optional[Shape]], output: Optional[Shape]
    ) -> Optional[Replacement]:
        seen = _seen(node, inputs[0], output) if inputs else None
        return None if seen is None else partial(_convolution_to_dense, node, seen)

    return with_replaced(graph, shapes, choose)


def _seen(node: Node, image: Optional[Shape], output: Optional[Shape]) -> Optional[WindowOverlap]:
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
    return WindowOverlap(pixels, weights, pixels == [(0, side) for side in image[2:]])


def _convolution_to_dense(node: Node, seen: WindowOverlap, add: Add, entries: List[Entry]) -> None:
    """Append what replaces a convolution."""
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


# --- the average over all pixels as a product with ones


def product_where_all_is_averaged(
    graph: mx.sym.Symbol, shapes: Dict[str, Shape], types: Mapping[str, Any]
) -> mx.sym.Symbol:
    """``graph`` with a product for each average over all pixels of float32 images (n, C, H, W).

    oneDNN goes back through such a pooling in a slow way: a 3x3 convolution of 64 channels and the
    pooling took 26 to 31 ms for 16 images of 16x16, forward and back, on one core of an AMD EPYC
    (Zen 4), and 10 to 11 with the product. Forward alone both took 3 to 4. The results are the same
    but for rounding. ``types``: of all arguments.
    """
    outputs = types_in(graph, types)

    def choose(
        node: Node, inputs: List[Optional[Shape]], _: Optional[Shape]
    ) -> Optional[Replacement]:
        image = inputs[0] if inputs else None
        if image is None or not _averages_all(node, image):
            return None
        is_float = outputs.get(f"{node['name']}_output") == np.float32
        return partial(_append_product, image) if is_float else None

    return with_replaced(graph, shapes, choose)


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
    """Append what replaces a pooling."""
    pixels = image[2] * image[3]
    rows = add("Reshape", "_rows", entries, shape=(-3, -3))
    ones = add("_ones", "_ones", [], shape=(pixels, 1), dtype="float32")
    sums = add("dot", "_sums", [rows, ones])
    average = add("_mul_scalar", "_average", [sums], scalar=1 / pixels)
    add("Reshape", "", [average], shape=(-1, image[1], 1, 1))


# --- odd numbers of channels joined without oneDNN


def plain_where_channels_are_odd(graph: mx.sym.Symbol, shapes: Dict[str, Shape]) -> mx.sym.Symbol:
    """``graph`` with images joined along C as (n, C, H * W), unless every C is a multiple of BLOCK.

    oneDNN keeps images in blocks of up to 16 channels. Where a part of a concatenation does not
    fill its blocks, MXNet's backward through oneDNN ends in "could not construct a sub-memory", or
    in the end of the process, and forward may ask for more memory than there is: it depends on the
    order in which the neighbours have left their images. Of arrays with three axes oneDNN takes
    none.
    """

    def choose(
        node: Node, inputs: List[Optional[Shape]], _: Optional[Shape]
    ) -> Optional[Replacement]:
        odd = _joins_channels(node) and _is_odd(inputs)
        return partial(_append_plain, node) if odd else None

    return with_replaced(graph, shapes, choose)


def _joins_channels(node: Node) -> bool:
    return bool(node["op"] == "Concat" and node.get("attrs", {}).get("dim", "1") in ("1", "-3"))


def _is_odd(parts: List[Optional[Shape]]) -> bool:
    """Whether these are images, and the channels of one do not, or may not, fill its blocks."""
    known = [shape for shape in parts if shape is not None]
    if not known or len(known[0]) != 4:
        return False
    return len(known) < len(parts) or any(shape[1] % BLOCK for shape in known)


def _append_plain(node: Node, add: Add, entries: List[Entry]) -> None:
    """Append what replaces a concatenation."""
    parts = enumerate(entries)
    flat = [add("Reshape", f"_flat{i}", [entry], shape=(0, 0, -1)) for i, entry in parts]
    joined = add("Concat", "_joined", flat, num_args=len(flat), dim=1)
    ends = {"lhs_begin": 2, "lhs_end": 3, "rhs_begin": 2, "rhs_end": 4}
    add("reshape_like", "", [joined, entries[0]], **ends)
