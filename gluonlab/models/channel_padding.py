"""Pads the channels of convolutions with zeros, to a multiple that oneDNN computes fast.

oneDNN keeps images in blocks of 8 or 16 channels, one vector register each. MXNet 1.9.1 uses its
direct convolutions only if the channels fill these blocks. All other convolutions, such as LeNet's
with 20 and 50 channels, are computed as a matrix product of a rearranged copy of the image, and the
layers between them by operators without vector instructions.

Zero channels up to the next multiple change nothing in the result: their weights are zero, and
their gradients are cut off again. Parameters keep their true shapes, except the running statistics
of BatchNorm, which an operator changes in place: `make_room` allocates larger arrays for them.

Padding pays by these rules. They were measured for chains of convolutions and ReLU, forward and
backward, on one core of an AMD EPYC (Zen 4), with AVX-512 and limited to AVX2: 430 draws of 1 to
512 channels, kernels of 1, 3, 5 and 7, images of 5x5 to 56x56, batches of 8 to 64.

- With kernels of 3 and more, padding to 8 was 1.8 times as fast in the median, and at least as fast
  in all but one draw, even with 10 times the arithmetic.
- With kernels of 1 it paid if the arithmetic was at most doubled: 1.5 times as fast in the median
  with AVX2, and 1.1 with AVX-512, where BatchNorm between the convolutions makes it 1.8 to 2.
- With AVX-512, padding to 16 was faster than to 8 if the arithmetic was nearly the same, and slower
  from a third more on. Intel's CPUs compute twice as much with 512 bits as with 256: there LeNet
  with half as much arithmetic again was 1.3 to 1.6 times as fast as without padding.
- With AVX-512, oneDNN has blocks of 8 and of 16 channels. The backward of BatchNorm takes 50 times
  as long if its image lies in the one and its gradient in the other. A residual network with 12,
  20 and 44 channels was half as fast with multiples of 8 as without padding, and 1.5 times as fast
  with multiples of 16.
"""

from __future__ import annotations

import itertools
import math
from typing import (
    Any,
    Dict,
    List,
    Mapping,
    MutableMapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)
from weakref import WeakKeyDictionary

import mxnet as mx
import numpy as np
from mxnet import gluon, nd

from gluonlab.host.resources import cpu_vendor, instruction_set
from gluonlab.models.symbol_graph import (
    Entry,
    Node,
    Shape,
    new_node,
    numbers,
    parsed,
    shape_of,
    shapes_in,
    to_symbol,
    types_in,
)

# Multiples of channels by instruction set, the smallest first.
MULTIPLES = {"AVX512_CORE": (8, 16), "AVX2": (8,), "AVX": (8,), "SSE41": (8,)}
# The larger multiple may cost so many times the arithmetic of the smaller one.
MAX_RATIO, MAX_RATIO_BY_VENDOR = 1.1, {"GenuineIntel": 1.6}
MAX_RATIO_OF_MIXED = 2.0  # so many times, if the smaller one would mix blocks
MAX_POINTWISE_RATIO = 2.0  # padding may multiply the arithmetic of a kernel of 1 by at most this
MAX_IMAGE_CHANNELS = 3  # channels of images that oneDNN's convolutions read without blocks

# Operators on each number for itself. The results and derivatives at the added channels, which are
# 0 at first, stay finite. The zero weights that follow multiply them by 0.
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
    """Channels of the network, and the zero channels behind them."""

    channels: int
    zeros: int


Layout = Tuple[ChannelRun, ...]  # of all channels of an image, in order


class Padding(NamedTuple):
    """The multiples of channels to pad to, the smallest first; () does not pad.

    ``larger``: the larger multiple may cost so many times the arithmetic of the smaller one.
    """

    multiples: Tuple[int, ...] = ()
    larger: float = MAX_RATIO


def padding_for(ctx: mx.Context) -> Padding:
    """Return the padding that is fast on a device."""
    if ctx.device_type != "cpu" or not mx.runtime.Features().is_enabled("MKLDNN"):
        return Padding()
    multiples = MULTIPLES.get(instruction_set(), ())
    return Padding(multiples, MAX_RATIO_BY_VENDOR.get(cpu_vendor(), MAX_RATIO))


def pad_channels(
    graph: mx.sym.Symbol,
    inputs: Mapping[str, Shape],
    types: Mapping[str, Any],
    padding: Padding,
) -> mx.sym.Symbol:
    """Pad the channels of float32 convolutions (n, C, H, W) where that makes them faster.

    Return ``graph`` itself if there are none, or if MXNet fails on it when it is padded. Arguments,
    outputs and their names stay as they are. Auxiliary states may get more channels.

    Args:
        graph: the network, perhaps with its loss.
        inputs: shapes from which all others follow.
        types: the types of all arguments.
        padding: see `padding_for`.
    """
    if not _is_supported(graph, dict(inputs)):
        return graph
    plans = [_Plan(graph, dict(inputs), types, each) for each in (1, *padding.multiples)]
    chosen = _choose(plans[0], plans[1:], padding.larger)
    return _Writer(chosen).write() if chosen.layouts else graph


def _choose(plain: "_Plan", padded: "Sequence[_Plan]", larger: float) -> "_Plan":
    """Return the plan that is fastest, ``plain`` if that is to leave the graph as it is."""
    chosen = plain
    for plan in padded:
        if plan.mixes_blocks and len(padded) > 1 and not plain.mixes_blocks:
            larger = MAX_RATIO_OF_MIXED
        elif plan.work <= larger * padded[0].work:
            chosen = plan
    return chosen


def _is_supported(graph: mx.sym.Symbol, inputs: Dict[str, Shape]) -> bool:
    """Whether MXNet can compute the graph when its convolutions are padded.

    With contrib.foreach in it, a compiled block now and then reads padded biases too early.

    MXNet's BatchNorm through oneDNN gives an array another shape, unless the axis is written as 1
    and the array has four axes. It raises "Check failed: !is_view" if a convolution, which writes
    blocks when it is padded, has left the array or its gradient in blocks.
    """
    nodes: List[Node] = parsed(graph)["nodes"]
    if any("subgraphs" in node for node in nodes):
        return False
    shapes = shapes_in(graph, inputs)
    reshaped: Set[int] = set()  # BatchNorm without four axes, and all nodes behind it
    for place, node in enumerate(nodes):
        is_behind = any(entry[0] in reshaped for entry in node["inputs"])
        if is_behind and node["op"] == "Convolution":
            return False
        if node["op"] == "BatchNorm":
            if node.get("attrs", {}).get("axis", "1") != "1":
                return False
            is_behind = is_behind or len(shape_of(node, 0, shapes) or ()) != 4
        if is_behind:
            reshaped.add(place)
    return True


def _is_contiguous(layout: Optional[Layout]) -> bool:
    """Whether the zero channels, if there are any, are behind all others."""
    return layout is None or len(layout) == 1


def _width(layout: Layout) -> int:
    return sum(run.channels + run.zeros for run in layout)


def _concatenate(layouts: Sequence[Layout]) -> Layout:
    """The layout of concatenated images."""
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


class _Plan:
    """Decides which outputs of a graph are padded.

    ``layouts``: by number of the node, that of its first output if it is padded. ``widened``: the
    convolutions whose input is padded by an operator of its own, with its layout.
    """

    def __init__(
        self,
        graph: mx.sym.Symbol,
        inputs: Dict[str, Shape],
        types: Mapping[str, Any],
        multiple: int,
    ) -> None:
        self.parts = parsed(graph)
        self.nodes: List[Node] = self.parts["nodes"]
        self.multiple = multiple
        self._shapes, self._types = shapes_in(graph, inputs), types_in(graph, types)
        self.convolutions = {
            place: convolution
            for place, node in enumerate(self.nodes)
            if (convolution := self._convolution(node)) is not None
        }
        self._unpadded: Set[int] = set()  # nodes that are left as they are
        self.layouts: Dict[int, Layout] = {}
        self.widened: Dict[int, Layout] = {}
        while self._assign():
            pass

    def shape(self, entry: Entry) -> Optional[Shape]:
        """The shape of an output before padding; None if it is not known."""
        return shape_of(self.nodes[entry[0]], entry[1], self._shapes)

    def layout(self, entry: Entry) -> Optional[Layout]:
        """The layout of an output; None if it is not padded."""
        return self.layouts.get(entry[0]) if entry[1] == 0 else None

    def reads_padded(self, place: int) -> bool:
        """Whether a node reads padded images as they are."""
        each = self.convolutions.get(place)
        return place in self.layouts or (each is not None and not each.depthwise)

    @property
    def work(self) -> float:
        """Multiply-adds of the convolutions, the added ones included."""
        return sum(self._work(place) for place in self.convolutions)

    def _work(self, place: int) -> float:
        each, (channels_in, channels_out) = self.convolutions[place], self._widths(place)
        taps = each.pixels * math.prod(each.kernel)
        return taps * channels_out * (1 if each.depthwise else channels_in)

    def _widths(self, place: int) -> Tuple[int, int]:
        """The channels that a convolution reads and writes, the added ones included."""
        each, output = self.convolutions[place], self.layouts.get(place)
        source = self.widened.get(place) or self.layout(self.nodes[place]["inputs"][0])
        channels_in = _width(source) if source else each.channels_in
        return channels_in, _width(output) if output else each.channels_out

    @property
    def mixes_blocks(self) -> bool:
        """Whether BatchNorm in blocks of 16 channels gets a gradient in blocks of 8.

        Convolutions use blocks of 16 if they read and write multiples of 16, and else blocks of 8.
        """
        for place, each in self.convolutions.items():
            channels_in, channels_out = self._widths(place)
            reads_16, writes_8 = channels_in % 16 == 0, channels_out % 16 == 8
            source = self.nodes[place]["inputs"][0][0]
            if reads_16 and writes_8 and not each.depthwise and self._follows_batch_norm(source):
                return True
        return False

    def _follows_batch_norm(self, place: int) -> bool:
        """Whether BatchNorm computes an output, or what operators that keep channels make it of."""
        places = [place]
        while places:
            node = self.nodes[places.pop()]
            if node["op"] == "BatchNorm":
                return True
            if node["op"] in KEEP_CHANNELS:
                places += [entry[0] for entry in node["inputs"]]
        return False

    def _convolution(self, node: Node) -> Optional[_Convolution]:
        if node["op"] != "Convolution":
            return None
        attrs = node.get("attrs", {})
        image, weight = (self.shape(entry) for entry in node["inputs"][:2])
        output = shape_of(node, 0, self._shapes)
        dtype = self._types.get(f"{node['name']}_output")
        if image is None or weight is None or output is None or len(image) != 4:
            return None
        if attrs.get("layout", "None") not in ("None", "NCHW") or dtype != np.float32:
            return None
        groups, channels_out = int(attrs.get("num_group", "1")), output[1]
        depthwise = groups == image[1] == channels_out and groups > 1
        if groups > 1 and not depthwise:
            return None  # the zero channels would have to lie between the groups
        pixels = output[0] * output[2] * output[3]
        kernel = numbers(node, "kernel")
        return _Convolution(image[1], channels_out, kernel, pixels, depthwise)

    def _assign(self) -> bool:
        """Assign layouts to all nodes that are not left out; return whether more have to be."""
        self.layouts, self.widened = {}, {}
        for place, node in enumerate(self.nodes):
            if place not in self._unpadded:
                layout = self._output_layout(place, node)
                if layout is not None:
                    self.layouts[place] = layout
        more = self._without_use() | self._shared_statistics()
        self._unpadded |= more
        return bool(more)

    def _output_layout(self, place: int, node: Node) -> Optional[Layout]:
        if place in self.convolutions:
            return self._convolved(place)
        layouts = [self.layout(entry) for entry in node["inputs"]]
        if not any(layouts):
            return None
        op, attrs = node["op"], node.get("attrs", {})
        if op == "Concat":
            return self._concatenated(node, layouts)
        if op == "BatchNorm":
            one_output = attrs.get("output_mean_var", "False") == "False"
            return layouts[0] if one_output and _is_contiguous(layouts[0]) else None
        if op == "Pooling":
            usual = attrs.get("layout", "None") in ("None", "NCHW")
            return layouts[0] if usual and attrs.get("pool_type", "max") in POOLINGS else None
        if op in ELEMENTWISE_OPERATORS:
            shapes = {self.shape(entry) for entry in node["inputs"]}
            alike = len(set(layouts)) == 1 and len(shapes) == 1 and None not in shapes
            return layouts[0] if alike else None
        leaky = op == "LeakyReLU" and attrs.get("act_type", "leaky") in LEAKY
        return layouts[0] if leaky or op in POINTWISE_OPERATORS else None

    def _concatenated(self, node: Node, layouts: List[Optional[Layout]]) -> Optional[Layout]:
        if node.get("attrs", {}).get("dim", "1") not in ("1", "-3"):
            return None
        whole: List[Layout] = []
        for entry, layout in zip(node["inputs"], layouts):
            shape = self.shape(entry)
            if shape is None:
                return None
            whole.append(layout or (ChannelRun(shape[1], 0),))
        if any(_width(layout) % self.multiple for layout in whole):
            return None
        return _concatenate(whole)

    def _convolved(self, place: int) -> Optional[Layout]:
        each = self.convolutions[place]
        source = self.layout(self.nodes[place]["inputs"][0])
        more_in = -each.channels_in % self.multiple
        if source is None and more_in and (each.depthwise or each.channels_in > MAX_IMAGE_CHANNELS):
            if each.is_pointwise:
                return None
            source = self.widened[place] = (ChannelRun(each.channels_in, more_in),)
        if each.depthwise:
            return source
        output = (ChannelRun(each.channels_out, -each.channels_out % self.multiple),)
        if each.is_pointwise:
            before = each.channels_in * each.channels_out
            after = (_width(source) if source else each.channels_in) * _width(output)
            if after > MAX_POINTWISE_RATIO * before:
                return None
        return output if output[0].zeros else None

    def _without_use(self) -> Set[int]:
        """Padded kernels of 1 whose output nothing reads as it is."""
        used = {
            entry[0]
            for place, node in enumerate(self.nodes)
            if self.reads_padded(place)
            for entry in node["inputs"]
        }
        return {
            place
            for place, each in self.convolutions.items()
            if each.is_pointwise and place in self.layouts and place not in used
        }

    def _shared_statistics(self) -> Set[int]:
        """BatchNorm layers whose running statistics have readers of another width."""
        widths: Dict[int, Set[int]] = {}  # of the readers, by variable; 0 if they are not padded
        readers: List[Tuple[int, int]] = []  # BatchNorm layer and variable
        for place, node in enumerate(self.nodes):
            layout = self.layouts.get(place)
            for number, entry in enumerate(node["inputs"]):
                is_state = node["op"] == "BatchNorm" and number >= 3
                width = _width(layout) if layout and is_state else 0
                widths.setdefault(entry[0], set()).add(width)
                if width:
                    readers.append((place, entry[0]))
        for head in self.parts["heads"]:
            widths.setdefault(head[0], set()).add(0)
        return {place for place, state in readers if len(widths[state]) > 1}


class _Writer:
    """Writes the graph of a plan."""

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan
        self._nodes: List[Node] = []
        self._places: List[int] = []  # node of the old graph -> its node in the new one
        self._cut_outputs: Dict[Tuple[int, int], Entry] = {}  # outputs without their zero channels
        self._zeros: Dict[Shape, Entry] = {}
        self._heads = {(head[0], head[1]) for head in plan.parts["heads"]}

    def write(self) -> mx.sym.Symbol:
        """Return the new graph."""
        plan = self._plan
        for place, node in enumerate(plan.nodes):
            if plan.reads_padded(place):
                self._write_padded(place, node)
            else:
                inputs = [self._true_channels(entry) for entry in node["inputs"]]
                self._nodes.append({**node, "inputs": inputs})
            self._places.append(len(self._nodes) - 1)
        heads = [self._true_channels(head) for head in plan.parts["heads"]]
        return to_symbol(self._nodes, heads, plan.parts["attrs"])

    def _add(self, op: str, name: str, inputs: List[Entry], **attrs: Any) -> Entry:
        self._nodes.append(new_node(op, name, inputs, **attrs))
        return [len(self._nodes) - 1, 0, 0]

    def _entry(self, entry: Entry) -> Entry:
        return [self._places[entry[0]], entry[1], entry[2]]

    def _write_padded(self, place: int, node: Node) -> None:
        plan, layout = self._plan, self._plan.layouts.get(place)
        inputs, attrs = (
            [self._entry(entry) for entry in node["inputs"]],
            dict(node.get("attrs", {})),
        )
        if place in plan.convolutions:
            source = plan.layout(node["inputs"][0])
            if place in plan.widened:
                source = plan.widened[place]
                inputs[0] = self._pad_image(node, node["inputs"][0], source[0])
            self._pad_convolution(place, node, inputs, attrs, source)
        elif node["op"] == "BatchNorm" and layout is not None:
            for number, part in ((1, "_gamma"), (2, "_beta")):
                inputs[number] = self._padded_vector(node["name"] + part, inputs[number], layout)
        name = node["name"]
        if layout is not None and (place, 0) in self._heads:
            name += "_padded"  # the output without zeros has the name
        self._nodes.append({**node, "name": name, "inputs": inputs, "attrs": attrs})

    def _pad_convolution(
        self,
        place: int,
        node: Node,
        inputs: List[Entry],
        attrs: Dict[str, str],
        source: Optional[Layout],
    ) -> None:
        each, layout = self._plan.convolutions[place], self._plan.layouts.get(place)
        if layout is None and source is None:
            return
        output = layout or (ChannelRun(each.channels_out, 0),)
        own_source = (
            (ChannelRun(1, 0),) if each.depthwise else source or (ChannelRun(each.channels_in, 0),)
        )
        shape = self._plan.shape(node["inputs"][1])
        assert shape is not None
        weight = inputs[1]
        if each.depthwise:
            # Prediction leaves such weights in blocks, of which oneDNN's Reshape takes none.
            weight = self._add("_mul_scalar", f"{node['name']}_copied_weight", [weight], scalar=1.0)
        inputs[1] = self._padded_weight(node["name"], weight, shape, own_source, output)
        if len(inputs) > 2:
            inputs[2] = self._padded_vector(node["name"] + "_bias", inputs[2], output)
        attrs["num_filter"] = str(_width(output))
        if each.depthwise:
            attrs["num_group"] = str(_width(output))

    def _padded_weight(
        self, name: str, weight: Entry, shape: Shape, source: Layout, output: Layout
    ) -> Entry:
        """(out, in, kernel) with zeros; as a matrix, since oneDNN joins no odd channels."""
        taps = math.prod(shape[2:])
        columns = tuple(ChannelRun(run.channels * taps, run.zeros * taps) for run in source)
        matrix = self._add("Reshape", f"{name}_matrix", [weight], shape=(0, -1))
        matrix = self._with_zeros(f"{name}_columns", matrix, columns, 1, (shape[0], 0))
        matrix = self._with_zeros(f"{name}_rows", matrix, output, 0, (0, _width(columns)))
        padded = (_width(output), _width(source), *shape[2:])
        return self._add("Reshape", f"{name}_padded_weight", [matrix], shape=padded)

    def _padded_vector(self, name: str, vector: Entry, layout: Layout) -> Entry:
        return self._with_zeros(f"{name}_padded", vector, layout, 0, (0,))

    def _with_zeros(
        self, name: str, array: Entry, layout: Layout, axis: int, shape: Tuple[int, ...]
    ) -> Entry:
        """The array with zeros along ``axis``; ``shape``: theirs, but for this axis."""
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
                parts.append(self._zero((*shape[:axis], run.zeros, *shape[axis + 1 :])))
            begin = end
        return self._add("Concat", name, parts, num_args=len(parts), dim=axis)

    def _zero(self, shape: Shape) -> Entry:
        if shape not in self._zeros:
            name = f"zeros_{'x'.join(map(str, shape))}"
            self._zeros[shape] = self._add("_zeros", name, [], shape=shape, dtype="float32")
        return self._zeros[shape]

    def _pad_image(self, node: Node, entry: Entry, run: ChannelRun) -> Entry:
        """An image with zero channels behind its own, for any number of images."""
        shape = self._plan.shape(entry)
        assert shape is not None
        zeros, name = run.zeros * shape[2] * shape[3], f"{node['name']}_image"
        # as rows, since MXNet pads no channels
        row = self._add(
            "Reshape", f"{name}_rows", [self._true_channels(entry)], shape=(0, 1, 1, -1)
        )
        width = (0, 0, 0, 0, 0, 0, 0, zeros)
        row = self._add("Pad", f"{name}_zeros", [row], mode="constant", pad_width=width)
        return self._add("Reshape", name, [row], shape=(0, sum(run), *shape[2:]))

    def _true_channels(self, entry: Entry) -> Entry:
        """An output of the old graph in the new one, without zero channels."""
        layout = self._plan.layout(entry)
        if layout is None:
            return self._entry(entry)
        key = (entry[0], entry[1])
        if key not in self._cut_outputs:
            name = self._plan.nodes[entry[0]]["name"] + ("" if key in self._heads else "_unpadded")
            self._cut_outputs[key] = self._cut(name, self._entry(entry), layout)
        return self._cut_outputs[key]

    def _cut(self, name: str, image: Entry, layout: Layout) -> Entry:
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


# --- running statistics with room for padded channels

ROOM = 16  # room up to the next multiple, the largest of MULTIPLES
# the parameter's own array, which is the beginning of the larger one, and the larger one
_wide_arrays: MutableMapping[gluon.Parameter, Dict[mx.Context, Tuple[nd.NDArray, nd.NDArray]]] = (
    WeakKeyDictionary()
)


def make_room(param: gluon.Parameter, ctx: mx.Context) -> None:
    """Let the parameter's array (C,) on a device be the beginning of a larger one.

    The array object stays the same; only its memory is another. So this comes before anything keeps
    the handle of the array.
    """
    array, known = param.data(ctx), _wide_arrays.setdefault(param, {})
    if len(array.shape) != 1 or array.size % ROOM == 0:
        return
    if ctx in known and known[ctx][0] is array:
        return
    wide = nd.zeros((-(-array.size // ROOM) * ROOM,), ctx, array.dtype)
    view = wide[: array.size]
    view[:] = array.as_nd_ndarray()  # which mx.np's arrays need
    array.handle, view.handle = view.handle, array.handle
    known[ctx] = (array, wide)


def widened(param: gluon.Parameter, ctx: mx.Context, shape: Tuple[int, ...]) -> nd.NDArray:
    """Return the parameter's array on a device, with room for as many channels as ``shape`` has.

    The added numbers are zero.
    """
    array = param.data(ctx)
    if shape == array.shape:
        return array
    make_room(param, ctx)
    _, wide = _wide_arrays[param][ctx]
    return wide[: shape[0]]
