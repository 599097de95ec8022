"""Rewrites a network's graph for a device, so that MXNet computes it correctly and faster.

`iterate_rewrites` applies all rewrites in order. Two of the rewrites have their own modules,
`gluonlab.models.replace_wrong_gradients` and `gluonlab.models.cpu_channel_padding`. The computed function,
the arguments, the outputs and their names do not change.

In every function, ``shapes`` maps the name of each argument to its shape. All other shapes are
inferred from these.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any, Collection, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

import mxnet as mx
import numpy as np

from gluonlab.models.cpu_channel_padding import choose_padding, pad_channels
from gluonlab.models.replace_wrong_gradients import replace_wrong_gradients
from gluonlab.models.symbol_graph import (
    Add,
    Entry,
    Node,
    Replacement,
    Shape,
    attribute_numbers,
    node_output_types,
    parse_graph,
    replace_nodes,
    to_symbol,
)

ShapesAndTypes = Mapping[str, Tuple[Tuple[int, ...], Any]]  # shape and type by name
BLOCK_CHANNELS = 16  # channels in a block of oneDNN; 8 on older processors


class Rewrite(NamedTuple):
    """The graph after one of the rewrites.

    ``effect``: a description of what the rewrite does to the operators that it changes.
    """

    effect: str
    graph: mx.sym.Symbol


def rewrite_graph(
    graph: mx.sym.Symbol,
    ctx: mx.Context,
    arguments: ShapesAndTypes,
    trained: Optional[Collection[str]] = None,
    pad: bool = True,
) -> mx.sym.Symbol:
    """Return a graph that computes the same function, but correctly and faster, on a device.

    Args:
        graph: A network, optionally with its loss.
        ctx: The device.
        arguments: Shapes and types of all arguments.
        trained: The names of the arguments whose gradients are requested; None if unknown.
        pad: Whether channels may be padded. Padding may add channels to auxiliary states.
    """
    for step in iterate_rewrites(graph, ctx, arguments, trained, pad):
        graph = step.graph
    return graph


def iterate_rewrites(
    graph: mx.sym.Symbol,
    ctx: mx.Context,
    arguments: ShapesAndTypes,
    trained: Optional[Collection[str]] = None,
    pad: bool = True,
) -> Iterator[Rewrite]:
    """Yield the graph after each rewrite of `rewrite_graph`, in order."""
    graph = replace_wrong_gradients(graph, trained)
    yield Rewrite("replaced, because MXNet computes a wrong gradient", graph)
    graph = move_relu_after_pooling(graph)
    yield Rewrite("swapped, so that ReLU follows max pooling", graph)
    if ctx.device_type == "gpu":
        return  # the remaining rewrites are for oneDNN only
    names = graph.list_arguments()
    shapes, types = ({name: arguments[name][field] for name in names} for field in range(2))
    graph = convert_one_pixel_convolutions(graph, shapes)
    yield Rewrite("single pixel computed as a dense layer", graph)
    if pad:
        graph = pad_channels(graph, shapes, types, choose_padding(ctx))
        yield Rewrite("padded with zero channels", graph)
    graph = convert_global_average_pooling(graph, shapes, types)
    yield Rewrite("average of all pixels computed as a matrix product", graph)
    graph = convert_odd_concatenations(graph, shapes)
    yield Rewrite("odd numbers of channels concatenated without oneDNN", graph)


# --- ReLU after max pooling


def move_relu_after_pooling(graph: mx.sym.Symbol) -> mx.sym.Symbol:
    """Move each ReLU after the max pooling that reads it, unless something else reads the ReLU.

    Results and gradients stay the same. ReLU then reads fewer numbers: a quarter as many for
    windows of 2x2. Returns ``graph`` itself if there is no such ReLU.
    """
    parts = parse_graph(graph)
    nodes: List[Node] = parts["nodes"]
    entries = [entry for node in nodes for entry in node["inputs"]] + parts["heads"]
    readers = Counter(entry[0] for entry in entries)
    exchanged: Dict[int, int] = {}  # pooling -> ReLU
    for index, node in enumerate(nodes):
        source = node["inputs"][0][0] if node["inputs"] else 0
        if _is_max_pooling(node) and _is_relu(nodes[source]) and readers[source] == 1:
            exchanged[index] = source
    if not exchanged:
        return graph
    relus = set(exchanged.values())
    new_nodes: List[Node] = []
    new_indices: Dict[int, int] = {}  # index of a node -> its index in the new graph

    def move_entries(entries: List[List[Any]]) -> List[List[Any]]:
        return [[new_indices[entry[0]], *entry[1:]] for entry in entries]

    for index, node in enumerate(nodes):
        if index in relus:
            continue
        if index in exchanged:
            relu = nodes[exchanged[index]]
            name, inputs = f"{node['name']}_before_relu", move_entries(relu["inputs"])
            new_nodes.append({**node, "name": name, "inputs": inputs})
            new_nodes.append({**relu, "name": node["name"], "inputs": [[len(new_nodes) - 1, 0, 0]]})
        else:
            new_nodes.append({**node, "inputs": move_entries(node["inputs"])})
        new_indices[index] = len(new_nodes) - 1
    return to_symbol(new_nodes, move_entries(parts["heads"]), parts["attrs"])


def _is_relu(node: Node) -> bool:
    is_activation = node["op"] == "Activation" and node["attrs"]["act_type"] == "relu"
    return bool(is_activation or node["op"] == "relu")


def _is_max_pooling(node: Node) -> bool:
    """Return whether every window of a max-pooling node covers at least one pixel, not only padding."""
    attrs = node.get("attrs", {})
    if node["op"] != "Pooling" or attrs.get("pool_type", "max") != "max":
        return False
    if attrs.get("global_pool", "False") in ("True", "1"):
        return True
    if attrs.get("pooling_convention", "valid") == "valid":
        return True
    kernel = attribute_numbers(node, "kernel")
    stride = attribute_numbers(node, "stride") or (1,) * len(kernel)
    has_no_padding = set(attribute_numbers(node, "pad")) <= {0}
    return has_no_padding and all(step <= side for step, side in zip(stride, kernel))


# --- a convolution with one pixel of output as a dense layer


class WindowOverlap(NamedTuple):
    """The overlap of a convolution's window and the image.

    ``pixels``: (begin, end) of the pixels under the window, along both axes. ``weights``: (begin,
    end) of the weights over these pixels. ``all_pixels``: whether the window covers the whole
    image.
    """

    pixels: List[Tuple[int, int]]
    weights: List[Tuple[int, int]]
    all_pixels: bool


def convert_one_pixel_convolutions(graph: mx.sym.Symbol, shapes: Dict[str, Shape]) -> mx.sym.Symbol:
    """Convert a convolution to a dense layer if it computes one pixel from a partly padded window.

    For example, images of 32x32 pixels shrink to one pixel in the last layers of ResNet-18. Then
    eight of the nine weights of a 3x3 window only multiply padding. oneDNN would rearrange and
    multiply all nine weights, once in the forward pass and twice in the backward pass. The dense
    layer uses only the one weight over the pixel. The results are the same except for rounding. The
    gradients of the other weights are exactly zero in both cases.
    """

    def choose_replacement(node: Node, inputs: List[Optional[Shape]], output: Optional[Shape]) -> Optional[Replacement]:
        overlap = _window_overlap(node, inputs[0], output) if inputs else None
        return None if overlap is None else partial(_append_dense, node, overlap)

    return replace_nodes(graph, shapes, choose_replacement)


def _window_overlap(node: Node, image: Optional[Shape], output: Optional[Shape]) -> Optional[WindowOverlap]:
    """Return the part of the kernel window that lies on the image, or None.

    The result is None unless the node is a convolution that can become a dense layer.
    """
    attrs = node.get("attrs", {})
    if node["op"] != "Convolution" or image is None or output is None:
        return None
    if len(image) != 4 or output[2:] != (1, 1):
        return None
    kernel, pad, dilate = (attribute_numbers(node, name) for name in ("kernel", "pad", "dilate"))
    is_dense = set(dilate) <= {1} and attrs.get("num_group", "1") == "1"
    is_supported = is_dense and attrs.get("layout", "None") in ("None", "NCHW")
    begins = [-padding for padding in pad or (0, 0)]  # position of the window on the image
    sides = zip(image[2:], begins, kernel)
    pixels = [(max(0, begin), min(side, begin + width)) for side, begin, width in sides]
    weights = [(first - begin, last - begin) for (first, last), begin in zip(pixels, begins)]
    # with a large stride, the window may be outside the image
    is_outside = any(first >= last for first, last in pixels)
    if not is_supported or is_outside or weights == [(0, width) for width in kernel]:
        return None  # nothing to gain: the dense layer would use all weights
    return WindowOverlap(pixels, weights, pixels == [(0, side) for side in image[2:]])


def _append_dense(node: Node, overlap: WindowOverlap, add: Add, entries: List[Entry]) -> None:
    """Append the dense layer that replaces a convolution."""
    image, weight, *bias = entries
    if not overlap.all_pixels:
        image = add("slice", "_pixels", [image], **_slice_attributes(overlap.pixels))
    weight = add("slice", "_weights", [weight], **_slice_attributes(overlap.weights))
    weight = add("Reshape", "_matrix", [weight], shape=(0, -1))
    attrs = {"num_hidden": node["attrs"]["num_filter"], "no_bias": not bias}
    dense = add("FullyConnected", "_dense", [image, weight, *bias], **attrs)
    add("Reshape", "", [dense], shape=(0, -1, 1, 1))


def _slice_attributes(bounds: List[Tuple[int, int]]) -> Dict[str, Shape]:
    """Return the attributes of a slice from begin to end along the last two of four axes."""
    begin, end = zip(*bounds)
    return {"begin": (None, None, *begin), "end": (None, None, *end)}


# --- the average over all pixels as a product with ones


def convert_global_average_pooling(
    graph: mx.sym.Symbol, shapes: Dict[str, Shape], types: Mapping[str, Any]
) -> mx.sym.Symbol:
    """Convert average pooling over all pixels of float32 images (n, C, H, W) into matrix products.

    oneDNN computes the backward pass of such a pooling slowly. As an example, a 3x3 convolution of
    64 channels followed by pooling was measured on one core of an AMD EPYC (Zen 4), with 16 images
    of 16x16 pixels. The forward and backward passes took 26 to 31 ms with the pooling, and 10 to 11
    ms with the product. The forward pass alone took 3 to 4 ms in both cases. The results are the
    same except for rounding.

    ``types``: the type of each argument, by name.
    """
    outputs = node_output_types(graph, types)

    def choose_replacement(node: Node, inputs: List[Optional[Shape]], _: Optional[Shape]) -> Optional[Replacement]:
        """Return a replacement for a global average of float32 images; otherwise None."""
        image = inputs[0] if inputs else None
        if image is None or not _is_global_average(node, image):
            return None
        is_float = outputs.get(f"{node['name']}_output") == np.float32
        return partial(_append_averaging_product, image) if is_float else None

    return replace_nodes(graph, shapes, choose_replacement)


def _is_global_average(node: Node, image: Shape) -> bool:
    """Return whether a node averages all pixels of images (n, C, H, W)."""
    attrs = node.get("attrs", {})
    if node["op"] != "Pooling" or attrs.get("pool_type") != "avg":
        return False
    if len(image) != 4 or image[2:] == (1, 1) or attrs.get("layout", "None") not in ("None", "NCHW"):
        return False
    if attrs.get("global_pool", "False") in ("True", "1"):
        return True
    return attribute_numbers(node, "kernel") == image[2:] and set(attribute_numbers(node, "pad")) <= {0}


def _append_averaging_product(image: Shape, add: Add, entries: List[Entry]) -> None:
    """Append the matrix product that replaces a global average pooling."""
    pixels = image[2] * image[3]
    rows = add("Reshape", "_rows", entries, shape=(-3, -3))
    ones = add("_ones", "_ones", [], shape=(pixels, 1), dtype="float32")
    sums = add("dot", "_sums", [rows, ones])
    average = add("_mul_scalar", "_average", [sums], scalar=1 / pixels)
    add("Reshape", "", [average], shape=(-1, image[1], 1, 1))


# --- odd numbers of channels joined without oneDNN


def convert_odd_concatenations(graph: mx.sym.Symbol, shapes: Dict[str, Shape]) -> mx.sym.Symbol:
    """Concatenate images as (n, C, H * W), unless every C is a multiple of BLOCK_CHANNELS.

    oneDNN stores images in blocks of up to 16 channels. If an input of a concatenation does not
    fill its blocks, the backward pass can fail with "could not construct a sub-memory" or kill the
    process. The forward pass can allocate far too much memory. Whether these errors occur depends
    on the memory layout that the neighboring operators chose. MXNet does not use oneDNN for arrays
    with three axes.
    """

    def choose_replacement(node: Node, inputs: List[Optional[Shape]], _: Optional[Shape]) -> Optional[Replacement]:
        is_odd = _is_channel_concatenation(node) and _has_partial_blocks(inputs)
        return partial(_append_flat_concatenation, node) if is_odd else None

    return replace_nodes(graph, shapes, choose_replacement)


def _is_channel_concatenation(node: Node) -> bool:
    return bool(node["op"] == "Concat" and node.get("attrs", {}).get("dim", "1") in ("1", "-3"))


def _has_partial_blocks(parts: List[Optional[Shape]]) -> bool:
    """Return whether the parts are images with channel counts that do not fill whole blocks.

    A block has BLOCK_CHANNELS channels. Unknown counts are assumed not to fill blocks. ``parts``:
    the shapes of the concatenated arrays, or None.
    """
    known = [shape for shape in parts if shape is not None]
    if not known or len(known[0]) != 4:
        return False
    return len(known) < len(parts) or any(shape[1] % BLOCK_CHANNELS for shape in known)


def _append_flat_concatenation(node: Node, add: Add, entries: List[Entry]) -> None:
    """Append the operators that replace a concatenation."""
    parts = enumerate(entries)
    flat = [add("Reshape", f"_flat{i}", [entry], shape=(0, 0, -1)) for i, entry in parts]
    joined = add("Concat", "_joined", flat, num_args=len(flat), dim=1)
    ends = {"lhs_begin": 2, "lhs_end": 3, "rhs_begin": 2, "rhs_end": 4}
    add("reshape_like", "", [joined, entries[0]], **ends)
