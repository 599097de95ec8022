"""Pads the channels of convolutions with zeros, so that oneDNN computes them faster on CPUs.

oneDNN stores images in blocks of 8 or 16 channels; a block fills one vector register. MXNet 1.9.1
uses oneDNN's direct convolutions only if the number of channels is a multiple of the block size.
MXNet computes all other convolutions, such as LeNet's with 20 and 50 channels, as a matrix product
with a rearranged copy of the image. MXNet computes the layers between such convolutions without
vector instructions.

The added channels do not change the result: their weights are zero, and their gradients are
removed. Parameters keep their true shapes. The running statistics of BatchNorm need larger arrays,
because an operator updates them in place. `enlarge_state` allocates these arrays.

The constants below decide when to pad. These constants are based on measurements of forward and
backward passes on one core of an AMD EPYC (Zen 4), both with AVX-512 and limited to AVX2. The
measured networks are 430 random chains of convolutions and ReLU. These networks have 1 to 512
channels, kernels of 1, 3, 5 and 7, images of 5x5 to 56x56 pixels, and batches of 8 to 64. The
speedups below are relative to the same network without padding:

- With kernels of 3 or more and channels padded to a multiple of 8, the median speedup was 1.8. Only
  one case was slower, although padding multiplied the arithmetic by up to 10.
- With kernels of 1 and channels padded to a multiple of 8, networks were faster if padding at most
  doubled the arithmetic. The median speedup was 1.5 with AVX2, and 1.1 with AVX-512. With BatchNorm
  between the convolutions, the speedup was 1.8 to 2.
- With AVX-512, multiples of 16 were faster than multiples of 8 if both needed nearly the same
  arithmetic. They were slower if multiples of 16 needed a third more arithmetic.
- Intel's CPUs are twice as fast with 512-bit vectors as with 256-bit vectors. On these CPUs, LeNet
  was 1.3 to 1.6 times as fast with padding, although padding increased the arithmetic by a factor
  of 1.5.
- With AVX-512, oneDNN uses blocks of 8 and of 16 channels. BatchNorm's backward pass is 50 times
  slower if the images and their gradient are in blocks of different sizes. Compared with no
  padding, a residual network with 12, 20 and 44 channels was half as fast if padded to multiples of
  8, and 1.5 times as fast if padded to multiples of 16.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, Dict, List, Mapping, MutableMapping, NamedTuple, Optional, Sequence, Set, Tuple
from weakref import WeakKeyDictionary

import mxnet as mx
import numpy as np
from mxnet import gluon, nd

from gluonlab.host.resources import cpu_vendor, instruction_set
from gluonlab.models.symbol_graph import (
    Entry,
    Node,
    Shape,
    attribute_numbers,
    make_node,
    node_output_types,
    output_shape,
    output_shapes,
    parse_graph,
    to_symbol,
)

# The multiples to which channels may be padded, by instruction set, the smallest first.
MULTIPLES = {"AVX512_CORE": (8, 16), "AVX2": (8,), "AVX": (8,), "SSE41": (8,)}
# The larger multiple is used if it needs at most this many times the arithmetic of the smaller one.
MAX_RATIO, MAX_RATIO_BY_VENDOR = 1.1, {"GenuineIntel": 1.6}
MAX_RATIO_OF_MIXED = 2.0  # the same limit, if the smaller multiple would mix block sizes
MAX_POINTWISE_RATIO = 2.0  # padding may multiply the arithmetic of a kernel of 1 by at most this
MAX_IMAGE_CHANNELS = 3  # oneDNN's convolutions read images of up to 3 channels without blocks

# Operators that compute each number separately. They map the zeros of the added channels to finite
# numbers, which the zero weights of the next layer then multiply by 0.
POINTWISE_NAMES = """
    Activation BlockGrad abs clip cos erf exp hard_sigmoid negative relu sigmoid sin softsign square
    tanh _copy _div_scalar _maximum_scalar _minimum_scalar _minus_scalar _mul_scalar _plus_scalar
    _rminus_scalar _npi_add_scalar _npi_multiply_scalar _npi_subtract_scalar
    _npi_true_divide_scalar
"""
POINTWISE_OPERATORS = frozenset(POINTWISE_NAMES.split())
LEAKY = ("leaky", "elu", "gelu")  # kinds of LeakyReLU that have no parameters
# Operators on arrays of the same shape.
ELEMENTWISE_NAMES = """
    add_n broadcast_add broadcast_mul broadcast_sub elemwise_add elemwise_mul elemwise_sub _npi_add
    _npi_multiply _npi_subtract
"""
ELEMENTWISE_OPERATORS = frozenset(ELEMENTWISE_NAMES.split())
POOLINGS = ("max", "avg", "sum")
KEEP_CHANNELS = POINTWISE_OPERATORS | ELEMENTWISE_OPERATORS | {"LeakyReLU", "Pooling"}


class ChannelRun(NamedTuple):
    """The number of consecutive network channels, and the number of zero channels after them."""

    channels: int
    zeros: int


Layout = Tuple[ChannelRun, ...]  # of all channels of an image, in order


class Padding(NamedTuple):
    """The multiples to which channels may be padded, smallest first; () means no padding.

    ``max_ratio``: the larger multiple is used if it needs at most this many times as much
    arithmetic as the smaller one.
    """

    multiples: Tuple[int, ...] = ()
    max_ratio: float = MAX_RATIO


def choose_padding(ctx: mx.Context) -> Padding:
    """Choose the multiples to which channels are padded on a device.

    On GPUs, there is no padding.
    """
    if ctx.device_type != "cpu" or not mx.runtime.Features().is_enabled("MKLDNN"):
        return Padding()
    multiples = MULTIPLES.get(instruction_set(), ())
    return Padding(multiples, MAX_RATIO_BY_VENDOR.get(cpu_vendor(), MAX_RATIO))


def pad_channels(
    graph: mx.sym.Symbol, inputs: Mapping[str, Shape], types: Mapping[str, Any], padding: Padding
) -> mx.sym.Symbol:
    """Pad the channels of float32 convolutions (n, C, H, W) if padding should make them faster.

    Arguments, outputs and their names do not change. Auxiliary states may have more channels.
    Returns ``graph`` itself if nothing is padded, for example because MXNet cannot compute the
    padded graph.

    Args:
        graph: The network, optionally with its loss.
        inputs: The shape of each argument, by name. All other shapes are inferred from these.
        types: The type of each argument, by name.
        padding: See `choose_padding`.
    """
    if not _is_supported(graph, dict(inputs)):
        return graph
    plans = [_PaddingPlan(graph, dict(inputs), types, multiple) for multiple in (1, *padding.multiples)]
    chosen = _choose_plan(plans[0], plans[1:], padding.max_ratio)
    return _GraphWriter(chosen).write_graph() if chosen.layouts else graph


def _choose_plan(unpadded: "_PaddingPlan", padded: "Sequence[_PaddingPlan]", max_ratio: float) -> "_PaddingPlan":
    """Return the plan that should be fastest.

    ``padded``: a plan for each multiple, smallest first. A larger multiple is chosen if it needs at
    most ``max_ratio`` times as much arithmetic as the smallest.
    """
    chosen = unpadded
    for plan in padded:
        if plan.mixes_block_sizes and len(padded) > 1 and not unpadded.mixes_block_sizes:
            max_ratio = MAX_RATIO_OF_MIXED
        elif plan.multiply_adds <= max_ratio * padded[0].multiply_adds:
            chosen = plan
    return chosen


def _is_supported(graph: mx.sym.Symbol, inputs: Dict[str, Shape]) -> bool:
    """Return whether MXNet can compute the graph when its convolutions are padded.

    Two kinds of graphs are not supported:

    - Graphs with contrib.foreach, since a compiled block sometimes reads padded biases too early.
    - Graphs that contain a BatchNorm whose axis is not given as 1, or in which a convolution
      follows a BatchNorm of an array without four axes. With oneDNN, such a BatchNorm changes the
      shape of the array. The BatchNorm raises "Check failed: !is_view" if a padded convolution has
      stored the array or the gradient in blocks.
    """
    nodes: List[Node] = parse_graph(graph)["nodes"]
    if any("subgraphs" in node for node in nodes):
        return False
    shapes = output_shapes(graph, inputs)
    reshaped: Set[int] = set()  # BatchNorm without four axes, and all later nodes
    for index, node in enumerate(nodes):
        is_behind = any(entry[0] in reshaped for entry in node["inputs"])
        if is_behind and node["op"] == "Convolution":
            return False
        if node["op"] == "BatchNorm":
            if node.get("attrs", {}).get("axis", "1") != "1":
                return False
            is_behind = is_behind or len(output_shape(node, 0, shapes) or ()) != 4
        if is_behind:
            reshaped.add(index)
    return True


def _is_contiguous(layout: Optional[Layout]) -> bool:
    """Return whether all zero channels come after the network's channels."""
    return layout is None or len(layout) == 1


def _total_channels(layout: Layout) -> int:
    return sum(run.channels + run.zeros for run in layout)


def _concatenate_layouts(layouts: Sequence[Layout]) -> Layout:
    """Return the layout of images that are concatenated along the channels."""
    runs: List[ChannelRun] = []
    for run in itertools.chain.from_iterable(layouts):
        if runs and not runs[-1].zeros:
            run = ChannelRun(runs.pop().channels + run.channels, run.zeros)
        runs.append(run)
    return tuple(runs)


class _Convolution(NamedTuple):
    """A convolution that can be padded."""

    channels_in: int
    channels_out: int
    kernel: Shape
    pixels: int  # of all images of a batch, in the output
    depthwise: bool

    @property
    def is_pointwise(self) -> bool:
        return self.kernel == (1, 1)


class _PaddingPlan:
    """A plan that determines which outputs of a graph are padded to a multiple.

    Attributes:
        layouts: The layout of each node's first output if the output is padded, by index of the
            node.
        padded_inputs: The layout of each convolution's input if an added operator pads the input,
            by index of the convolution.
    """

    def __init__(self, graph: mx.sym.Symbol, inputs: Dict[str, Shape], types: Mapping[str, Any], multiple: int) -> None:
        self.parts = parse_graph(graph)
        self.nodes: List[Node] = self.parts["nodes"]
        self.multiple = multiple
        self._shapes, self._types = output_shapes(graph, inputs), node_output_types(graph, types)
        self.convolutions = {
            index: convolution
            for index, node in enumerate(self.nodes)
            if (convolution := self._make_convolution(node)) is not None
        }
        self._unpadded: Set[int] = set()  # indices of nodes that stay unpadded
        self.layouts: Dict[int, Layout] = {}
        self.padded_inputs: Dict[int, Layout] = {}
        while self._assign_layouts():  # until no more nodes have to stay unpadded
            pass

    def entry_shape(self, entry: Entry) -> Optional[Shape]:
        """Return the shape of an output before padding; None if it is unknown."""
        return output_shape(self.nodes[entry[0]], entry[1], self._shapes)

    def entry_layout(self, entry: Entry) -> Optional[Layout]:
        """Return the layout of an output; None if it is not padded."""
        return self.layouts.get(entry[0]) if entry[1] == 0 else None

    def can_read_padded(self, index: int) -> bool:
        """Return whether a node can read padded images."""
        convolution = self.convolutions.get(index)
        return index in self.layouts or (convolution is not None and not convolution.depthwise)

    @property
    def multiply_adds(self) -> float:
        """Number of multiply-adds in all convolutions, with padding."""
        return sum(self._convolution_multiply_adds(index) for index in self.convolutions)

    def _convolution_multiply_adds(self, index: int) -> float:
        """Return the number of multiply-adds in the convolution at node ``index``, with padding."""
        convolution, (channels_in, channels_out) = (self.convolutions[index], self._padded_channels(index))
        taps = convolution.pixels * math.prod(convolution.kernel)
        return taps * channels_out * (1 if convolution.depthwise else channels_in)

    def _padded_channels(self, index: int) -> Tuple[int, int]:
        """Return the input and output channels of a convolution, with padding."""
        convolution, output = self.convolutions[index], self.layouts.get(index)
        source = self.padded_inputs.get(index) or self.entry_layout(self.nodes[index]["inputs"][0])
        channels_in = _total_channels(source) if source else convolution.channels_in
        return channels_in, _total_channels(output) if output else convolution.channels_out

    @property
    def mixes_block_sizes(self) -> bool:
        """Whether any BatchNorm has images in blocks of 16 channels, but gradients in blocks of 8.

        A convolution uses blocks of 16 if both its input and its output channels are multiples of
        16, and blocks of 8 otherwise.
        """
        for index, convolution in self.convolutions.items():
            channels_in, channels_out = self._padded_channels(index)
            reads_16, writes_8 = channels_in % 16 == 0, channels_out % 16 == 8
            source = self.nodes[index]["inputs"][0][0]
            if reads_16 and writes_8 and not convolution.depthwise and self._follows_batch_norm(source):
                return True
        return False

    def _follows_batch_norm(self, index: int) -> bool:
        """Return whether a node is a BatchNorm, or follows one through KEEP_CHANNELS operators."""
        indices = [index]
        while indices:
            node = self.nodes[indices.pop()]
            if node["op"] == "BatchNorm":
                return True
            if node["op"] in KEEP_CHANNELS:
                indices += [entry[0] for entry in node["inputs"]]
        return False

    def _make_convolution(self, node: Node) -> Optional[_Convolution]:
        """Return the node as a `_Convolution`, or None if it is not a paddable convolution."""
        if node["op"] != "Convolution":
            return None
        attrs = node.get("attrs", {})
        image, weight = (self.entry_shape(entry) for entry in node["inputs"][:2])
        output = output_shape(node, 0, self._shapes)
        dtype = self._types.get(f"{node['name']}_output")
        if image is None or weight is None or output is None or len(image) != 4:
            return None
        if attrs.get("layout", "None") not in ("None", "NCHW") or dtype != np.float32:
            return None
        groups, channels_out = int(attrs.get("num_group", "1")), output[1]
        depthwise = groups == image[1] == channels_out and groups > 1
        if groups > 1 and not depthwise:
            return None  # zero channels would be needed in each group
        pixels = output[0] * output[2] * output[3]
        kernel = attribute_numbers(node, "kernel")
        return _Convolution(image[1], channels_out, kernel, pixels, depthwise)

    def _assign_layouts(self) -> bool:
        """Choose which channels of each padded node are zeros.

        Returns whether more nodes must stay unpadded. If so, the layouts must be assigned again.
        """
        self.layouts, self.padded_inputs = {}, {}
        for index, node in enumerate(self.nodes):
            if index not in self._unpadded:
                layout = self._compute_layout(index, node)
                if layout is not None:
                    self.layouts[index] = layout
        unpadded = self._needlessly_padded_pointwise() | self._batch_norms_with_shared_statistics()
        self._unpadded |= unpadded
        return bool(unpadded)

    def _compute_layout(self, index: int, node: Node) -> Optional[Layout]:
        """Return the layout of a node's first output; None if it is not padded."""
        if index in self.convolutions:
            return self._convolution_layout(index)
        layouts = [self.entry_layout(entry) for entry in node["inputs"]]
        if not any(layouts):
            return None
        op, attrs = node["op"], node.get("attrs", {})
        if op == "Concat":
            return self._concatenation_layout(node, layouts)
        if op == "BatchNorm":
            one_output = attrs.get("output_mean_var", "False") == "False"
            return layouts[0] if one_output and _is_contiguous(layouts[0]) else None
        if op == "Pooling":
            is_supported = attrs.get("layout", "None") in ("None", "NCHW")
            return layouts[0] if is_supported and attrs.get("pool_type", "max") in POOLINGS else None
        if op in ELEMENTWISE_OPERATORS:
            shapes = {self.entry_shape(entry) for entry in node["inputs"]}
            are_equal = len(set(layouts)) == 1 and len(shapes) == 1 and None not in shapes
            return layouts[0] if are_equal else None
        is_leaky = op == "LeakyReLU" and attrs.get("act_type", "leaky") in LEAKY
        return layouts[0] if is_leaky or op in POINTWISE_OPERATORS else None

    def _concatenation_layout(self, node: Node, layouts: List[Optional[Layout]]) -> Optional[Layout]:
        """Return the layout of a concatenation; None if it cannot read padded images."""
        if node.get("attrs", {}).get("dim", "1") not in ("1", "-3"):
            return None
        all_layouts: List[Layout] = []
        for entry, layout in zip(node["inputs"], layouts):
            shape = self.entry_shape(entry)
            if shape is None:
                return None
            all_layouts.append(layout or (ChannelRun(shape[1], 0),))
        if any(_total_channels(layout) % self.multiple for layout in all_layouts):
            return None
        return _concatenate_layouts(all_layouts)

    def _convolution_layout(self, index: int) -> Optional[Layout]:
        """Return the layout of a convolution's output, and decide whether to pad its input."""
        convolution = self.convolutions[index]
        source = self.entry_layout(self.nodes[index]["inputs"][0])
        missing = -convolution.channels_in % self.multiple
        if source is None and missing and (convolution.depthwise or convolution.channels_in > MAX_IMAGE_CHANNELS):
            if convolution.is_pointwise:
                return None
            source = self.padded_inputs[index] = (ChannelRun(convolution.channels_in, missing),)
        if convolution.depthwise:
            return source
        output = (ChannelRun(convolution.channels_out, -convolution.channels_out % self.multiple),)
        if convolution.is_pointwise:
            unpadded_size = convolution.channels_in * convolution.channels_out
            padded_size = (_total_channels(source) if source else convolution.channels_in) * _total_channels(output)
            if padded_size > MAX_POINTWISE_RATIO * unpadded_size:
                return None
        return output if output[0].zeros else None

    def _needlessly_padded_pointwise(self) -> Set[int]:
        """Return the padded 1x1 convolutions whose outputs are read only by unpadded nodes."""
        used = {
            entry[0] for index, node in enumerate(self.nodes) if self.can_read_padded(index) for entry in node["inputs"]
        }
        return {
            index
            for index, convolution in self.convolutions.items()
            if convolution.is_pointwise and index in self.layouts and index not in used
        }

    def _batch_norms_with_shared_statistics(self) -> Set[int]:
        """Return the BatchNorms that share running statistics with a node of different padding."""
        # index of a variable -> numbers of padded channels with which nodes read it; 0: not padded
        widths: Dict[int, Set[int]] = {}
        readers: List[Tuple[int, int]] = []  # indices of a padded BatchNorm and of its variable
        for index, node in enumerate(self.nodes):
            layout = self.layouts.get(index)
            for number, entry in enumerate(node["inputs"]):
                is_state = node["op"] == "BatchNorm" and number >= 3
                width = _total_channels(layout) if layout and is_state else 0
                widths.setdefault(entry[0], set()).add(width)
                if width:
                    readers.append((index, entry[0]))
        for head in self.parts["heads"]:
            widths.setdefault(head[0], set()).add(0)
        return {index for index, state in readers if len(widths[state]) > 1}


class _GraphWriter:
    """Writes the padded graph that a plan describes."""

    def __init__(self, plan: _PaddingPlan) -> None:
        self._plan = plan
        self._nodes: List[Node] = []
        self._new_indices: List[int] = []  # index of a node -> its index in the new graph
        self._unpadded_outputs: Dict[Tuple[int, int], Entry] = {}  # outputs without their zero channels
        self._zeros: Dict[Shape, Entry] = {}
        self._heads = {(head[0], head[1]) for head in plan.parts["heads"]}

    def write_graph(self) -> mx.sym.Symbol:
        """Return the graph with the padding that the plan describes."""
        plan = self._plan
        for index, node in enumerate(plan.nodes):
            if plan.can_read_padded(index):
                self._write_padded(index, node)
            else:
                inputs = [self._unpadded_entry(entry) for entry in node["inputs"]]
                self._nodes.append({**node, "inputs": inputs})
            self._new_indices.append(len(self._nodes) - 1)
        heads = [self._unpadded_entry(head) for head in plan.parts["heads"]]
        return to_symbol(self._nodes, heads, plan.parts["attrs"])

    def _add(self, op: str, name: str, inputs: List[Entry], **attrs: Any) -> Entry:
        self._nodes.append(make_node(op, name, inputs, **attrs))
        return [len(self._nodes) - 1, 0, 0]

    def _new_entry(self, entry: Entry) -> Entry:
        return [self._new_indices[entry[0]], entry[1], entry[2]]

    def _write_padded(self, index: int, node: Node) -> None:
        """Write a node that can read padded images, with padded parameters if necessary."""
        plan, layout = self._plan, self._plan.layouts.get(index)
        inputs, attrs = ([self._new_entry(entry) for entry in node["inputs"]], dict(node.get("attrs", {})))
        if index in plan.convolutions:
            source = plan.entry_layout(node["inputs"][0])
            if index in plan.padded_inputs:
                source = plan.padded_inputs[index]
                inputs[0] = self._pad_image(node, node["inputs"][0], source[0])
            self._pad_convolution(index, node, inputs, attrs, source)
        elif node["op"] == "BatchNorm" and layout is not None:
            for number, part in ((1, "_gamma"), (2, "_beta")):
                inputs[number] = self._padded_vector(node["name"] + part, inputs[number], layout)
        name = node["name"]
        if layout is not None and (index, 0) in self._heads:
            name += "_padded"  # the output without zero channels keeps the original name
        self._nodes.append({**node, "name": name, "inputs": inputs, "attrs": attrs})

    def _pad_convolution(
        self, index: int, node: Node, inputs: List[Entry], attrs: Dict[str, str], source: Optional[Layout]
    ) -> None:
        """Pad the weight and bias of a convolution. Changes ``inputs`` and ``attrs`` in place.

        ``source``: the layout of the convolution's input; None if the input is not padded.
        """
        convolution, layout = self._plan.convolutions[index], self._plan.layouts.get(index)
        if layout is None and source is None:
            return
        output = layout or (ChannelRun(convolution.channels_out, 0),)
        weight_source = (
            (ChannelRun(1, 0),) if convolution.depthwise else source or (ChannelRun(convolution.channels_in, 0),)
        )
        shape = self._plan.entry_shape(node["inputs"][1])
        assert shape is not None
        weight = inputs[1]
        if convolution.depthwise:
            # Prediction stores such weights in blocks, which oneDNN's Reshape does not support.
            weight = self._add("_mul_scalar", f"{node['name']}_copied_weight", [weight], scalar=1.0)
        inputs[1] = self._padded_weight(node["name"], weight, shape, weight_source, output)
        if len(inputs) > 2:
            inputs[2] = self._padded_vector(node["name"] + "_bias", inputs[2], output)
        attrs["num_filter"] = str(_total_channels(output))
        if convolution.depthwise:
            attrs["num_group"] = str(_total_channels(output))

    def _padded_weight(self, name: str, weight: Entry, shape: Shape, source: Layout, output: Layout) -> Entry:
        """Pad a weight (out, in, kernel) with zeros.

        The weight is reshaped to a matrix first, because oneDNN cannot concatenate arrays whose
        channels do not fill its blocks.
        """
        taps = math.prod(shape[2:])
        columns = tuple(ChannelRun(run.channels * taps, run.zeros * taps) for run in source)
        matrix = self._add("Reshape", f"{name}_matrix", [weight], shape=(0, -1))
        matrix = self._with_zeros(f"{name}_columns", matrix, columns, 1, (shape[0], 0))
        matrix = self._with_zeros(f"{name}_rows", matrix, output, 0, (0, _total_channels(columns)))
        padded = (_total_channels(output), _total_channels(source), *shape[2:])
        return self._add("Reshape", f"{name}_padded_weight", [matrix], shape=padded)

    def _padded_vector(self, name: str, vector: Entry, layout: Layout) -> Entry:
        return self._with_zeros(f"{name}_padded", vector, layout, 0, (0,))

    def _with_zeros(self, name: str, array: Entry, layout: Layout, axis: int, shape: Tuple[int, ...]) -> Entry:
        """Insert the zeros of ``layout`` into an array along ``axis``.

        ``shape``: the shape of the zeros, in which the entry for ``axis`` is ignored.
        """
        if not any(run.zeros for run in layout):
            return array
        parts: List[Entry] = []
        begin = 0
        for number, run in enumerate(layout):
            end = begin + run.channels
            part = array
            if len(layout) > 1:
                cut = {"axis": axis, "begin": begin, "end": end}
                part = self._add("slice_axis", f"{name}_{number}", [array], **cut)
            parts.append(part)
            if run.zeros:
                parts.append(self._zeros_entry((*shape[:axis], run.zeros, *shape[axis + 1 :])))
            begin = end
        return self._add("Concat", name, parts, num_args=len(parts), dim=axis)

    def _zeros_entry(self, shape: Shape) -> Entry:
        """Return the entry of an array of zeros. One such array is appended for each shape."""
        if shape not in self._zeros:
            name = f"zeros_{'x'.join(map(str, shape))}"
            self._zeros[shape] = self._add("_zeros", name, [], shape=shape, dtype="float32")
        return self._zeros[shape]

    def _pad_image(self, node: Node, entry: Entry, run: ChannelRun) -> Entry:
        """Append zero channels to images, with operators that work for any number of images."""
        shape = self._plan.entry_shape(entry)
        assert shape is not None
        zeros, name = run.zeros * shape[2] * shape[3], f"{node['name']}_image"
        # Each image becomes one row, because MXNet's Pad cannot pad the channel axis.
        row = self._add("Reshape", f"{name}_rows", [self._unpadded_entry(entry)], shape=(0, 1, 1, -1))
        width = (0, 0, 0, 0, 0, 0, 0, zeros)
        row = self._add("Pad", f"{name}_zeros", [row], mode="constant", pad_width=width)
        return self._add("Reshape", name, [row], shape=(0, sum(run), *shape[2:]))

    def _unpadded_entry(self, entry: Entry) -> Entry:
        """Return the new graph's entry for an output of the old graph, without zero channels."""
        layout = self._plan.entry_layout(entry)
        if layout is None:
            return self._new_entry(entry)
        key = (entry[0], entry[1])
        if key not in self._unpadded_outputs:
            name = self._plan.nodes[entry[0]]["name"] + ("" if key in self._heads else "_unpadded")
            self._unpadded_outputs[key] = self._remove_zeros(name, self._new_entry(entry), layout)
        return self._unpadded_outputs[key]

    def _remove_zeros(self, name: str, image: Entry, layout: Layout) -> Entry:
        """Remove the zero channels of an image."""
        parts: List[Entry] = []
        begin = 0
        for number, run in enumerate(layout):
            cut = {"axis": 1, "begin": begin, "end": begin + run.channels}
            part_name = name if len(layout) == 1 else f"{name}_{number}"
            parts.append(self._add("slice_axis", part_name, [image], **cut))
            begin += run.channels + run.zeros
        if len(parts) == 1:
            return parts[0]
        return self._add("Concat", name, parts, num_args=len(parts), dim=1)


# --- running statistics with memory for padded channels

STATE_MULTIPLE = 16  # the largest of MULTIPLES
# For each parameter and device: the parameter's array, and the larger array whose start it is.
_wide_arrays: MutableMapping[gluon.Parameter, Dict[mx.Context, Tuple[nd.NDArray, nd.NDArray]]] = WeakKeyDictionary()


def enlarge_state(param: gluon.Parameter, ctx: mx.Context) -> None:
    """Move the parameter's array (C,) on a device to the start of a larger array.

    The array object stays the same, but has new memory. Call this function before the array's
    handle is stored anywhere.
    """
    array, enlarged = param.data(ctx), _wide_arrays.setdefault(param, {})
    if len(array.shape) != 1 or array.size % STATE_MULTIPLE == 0:
        return
    if ctx in enlarged and enlarged[ctx][0] is array:
        return
    larger = nd.zeros((-(-array.size // STATE_MULTIPLE) * STATE_MULTIPLE,), ctx, array.dtype)
    view = larger[: array.size]
    view[:] = array.as_nd_ndarray()  # for arrays of mx.np
    array.handle, view.handle = view.handle, array.handle
    enlarged[ctx] = (array, larger)


def padded_state(param: gluon.Parameter, ctx: mx.Context, shape: Tuple[int, ...]) -> nd.NDArray:
    """Return the parameter's array on a device, padded with zeros to ``shape``."""
    array = param.data(ctx)
    if shape == array.shape:
        return array
    enlarge_state(param, ctx)
    _, larger = _wide_arrays[param][ctx]
    return larger[: shape[0]]
