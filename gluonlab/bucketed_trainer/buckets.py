"""A bucket: parameters side by side in one buffer per device, moved and updated by one call.

Which parameters share one (`group`), what lies between them (`Gaps`), and what has to forget where
they were (`forget_compiled`).
"""

from __future__ import annotations

import math
from typing import AbstractSet, Any, Dict, Iterable, List, Sequence, Set, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import Parameter

from gluonlab.engine.fast_invoke import Attributes, OperatorCall
from gluonlab.engine.np_compatibility import nd_semantics, np_semantics

ALIGNMENT_BYTES = 64  # a cache line, and what oneDNN's vector loads like best
# Of buckets that nobody has sized. A CPU's caches hold the small ones. On GPUs MXNet waits for the
# stream after each operation, and a message must be large to fill a link: PyTorch's
# DistributedDataParallel has 25 MiB, too (Li and others, "PyTorch Distributed: experiences on
# accelerating data parallel training", 2020).
CPU_BUCKET_BYTES, GPU_BUCKET_BYTES = 4 * 2**20, 25 * 2**20
CHANNELS_OF_A_BLOCK = 8  # oneDNN's blocks have 8 channels, or a multiple of it


class Bucket:
    """Parameters alike in type, multipliers and grad_req: an array of weights and one of gradients.

    Each device has these two. Several parameters lie side by side, each of them aligned, and their
    own arrays become views. One parameter keeps its arrays.
    """

    def __init__(self, params: Sequence[Parameter]) -> None:
        self.params = list(params)
        # what an Optimizer asks of a parameter
        self.lr_mult, self.wd_mult = params[0].lr_mult, params[0].wd_mult
        self.dtype = params[0].dtype
        self.adds = params[0].grad_req == "add"
        self.begins, self.size = _layout(params)
        if len(params) == 1 and params[0].shape:
            self.weights, self.grads = as_nd(params[0].list_data()), as_nd(params[0].list_grad())
        else:
            ctxs = params[0].list_ctx()
            self.weights = [nd.zeros((self.size,), ctx=ctx, dtype=self.dtype) for ctx in ctxs]
            self.grads = [nd.zeros((self.size,), ctx=ctx, dtype=self.dtype) for ctx in ctxs]
            for param, begin in zip(self.params, self.begins):
                self._adopt(param, begin)
        self._arrays = [(param, param._data, param._grad) for param in self.params]

    def _adopt(self, param: Parameter, begin: int) -> None:
        """Copy a parameter into the buffers; views of these, which backward writes, replace it."""
        data, grad = _views(self.weights, param, begin), _views(self.grads, param, begin)
        with autograd.pause():
            for view, old in zip([*data, *grad], [*param.list_data(), *param.list_grad()]):
                old.copyto(view)
        fresh = [array._fresh_grad for array in param.list_data()]
        # what gluon.Parameter 1.9.1 keeps, one array per device
        param._data, param._grad = data, grad
        autograd.mark_variables(data, grad, param.grad_req)
        for array, state in zip(data, fresh):
            array._fresh_grad = state

    def ranges(self, params: "Set[Parameter]") -> List[Tuple[int, int]]:
        """The (begin, end) of those of ``params`` that are in this bucket, neighbours as one."""
        found: List[Tuple[int, int]] = []
        for param, begin, end in zip(self.params, self.begins, [*self.begins[1:], self.size]):
            if param in params:
                joined = bool(found) and found[-1][1] == begin
                found[-1:] = [(found[-1][0], end)] if joined else [*found[-1:], (begin, end)]
        return found

    def gaps(self) -> List[int]:
        """The elements that no parameter has, in front of each that begins where a boundary is."""
        ends = [begin + math.prod(param.shape) for param, begin in zip(self.params, self.begins)]
        return [i for end, begin in zip(ends, self.begins[1:]) for i in range(end, begin)]

    def zero_grad(self, device: int, params: "Set[Parameter]") -> None:
        """Set the gradients of ``params`` that are in this bucket to zero on one device."""
        grad = self.grads[device]
        for begin, end in self.ranges(params):
            part = grad if (begin, end) == (0, self.size) else grad[begin:end]
            part[:] = 0

    def intact(self) -> bool:
        """Whether the parameters still lie here, and still belong together.

        ``initialize(force_reinit=True)``, ``cast`` and a new ``grad_req`` give them other arrays;
        multipliers may change, too.
        """
        lr_mult, wd_mult = self.lr_mult, self.wd_mult
        for param, data, grad in self._arrays:
            if param._data is not data or param._grad is not grad:
                return False
            if param.lr_mult != lr_mult or param.wd_mult != wd_mult:
                return False
        return True


def as_nd(arrays: Sequence[Any]) -> List[nd.NDArray]:
    """The same memory as mx.nd arrays: operators refuse mx.np's, whose reshape is a copy."""
    return [array.as_nd_ndarray() for array in arrays]


def _views(buffers: Sequence[nd.NDArray], param: Parameter, begin: int) -> List[Any]:
    """A parameter's part of each device's buffer, as mx.nd or mx.np array, like the parameter's."""
    numpy_like = isinstance(param.list_data()[0], mx.np.ndarray)
    # mx.np has shape () for one element, for which mx.nd has (1,) alone
    with np_semantics() if numpy_like else nd_semantics():
        end = begin + math.prod(param.shape)
        views = [buffer[begin:end].reshape(param.shape) for buffer in buffers]
        return [view.as_np_ndarray() for view in views] if numpy_like else views


def group(
    params: Iterable[Parameter],
    bucket_bytes: int,
    convolved: AbstractSet[Parameter] = frozenset(),
    on_gpus: bool = False,
) -> List[List[Parameter]]:
    """Parameters of equal type and multipliers, in order, in lists of at most ``bucket_bytes``.

    A larger parameter is a list of its own.
    ``convolved``: those that only ordinary convolutions use. ``on_gpus``: whether the parameters
    lie there, where oneDNN rearranges nothing.
    """
    buckets: List[List[Parameter]] = []
    open_buckets: Dict[Any, List[Parameter]] = {}
    room: Dict[Any, int] = {}
    for param in params:
        if not on_gpus and _may_be_rearranged(param, convolved):
            buckets.append([param])
            continue
        # Gluon's convolutions have the type numpy.float32, and its dense layers "float32"
        kind = (np.dtype(param.dtype), param.lr_mult, param.wd_mult, param.grad_req)
        size = math.prod(param.shape) * _bytes_per_element(param)
        if kind not in open_buckets or room[kind] < size:
            open_buckets[kind], room[kind] = [], bucket_bytes
            buckets.append(open_buckets[kind])
        open_buckets[kind].append(param)
        room[kind] -= size
    return buckets


def usual_bucket_bytes(ctxs: Sequence[mx.Context]) -> int:
    """The default of the largest bucket."""
    return GPU_BUCKET_BYTES if ctxs[0].device_type == "gpu" else CPU_BUCKET_BYTES


def spread(
    params: Sequence[Parameter], bucket_bytes: int, ctxs: Sequence[mx.Context], store: Any
) -> int:
    """The bucket size with which the store "device" on GPUs has a bucket for each of them.

    It sums a whole bucket on one of the devices, so that only as many of them work as there are
    buckets. At most ``bucket_bytes``, which it is for other stores and on CPUs.
    """
    if len(ctxs) < 2 or ctxs[0].device_type != "gpu" or getattr(store, "type", None) != "device":
        return bucket_bytes
    total: int = sum(math.prod(param.shape) * _bytes_per_element(param) for param in params)
    return min(bucket_bytes, max(CPU_BUCKET_BYTES, total // len(ctxs)))


def together(buckets: Sequence[Bucket], bucket_bytes: int) -> List[Tuple[int, ...]]:
    """The positions of neighbouring buckets that have at most ``bucket_bytes`` together.

    A store that takes several keys at once moves them as one bucket, wherever they lie.
    """
    groups: List[Tuple[int, ...]] = []
    room = 0
    for position, bucket in enumerate(buckets):
        size = bucket.weights[0].size * _bytes_per_element(bucket.params[0])
        if room < size or not groups:
            groups.append(())
            room = bucket_bytes
        groups[-1] += (position,)
        room -= size
    return groups


def _may_be_rearranged(param: Parameter, convolved: AbstractSet[Parameter]) -> bool:
    """Whether nothing else may share this parameter's memory, nor may it be a view of any.

    When a convolution predicts on the CPU, oneDNN leaves its weight behind in blocks of channels,
    where these divide evenly. MXNet keeps account of that for a whole piece of memory, and
    rearranges it from its beginning, whatever lies there. A transposed convolution does it with any
    number of channels, and with its gradient, too: where that is a view, training ends in a crash.
    """
    if len(param.shape) < 3:
        return False
    in_blocks = any(channels % CHANNELS_OF_A_BLOCK == 0 for channels in param.shape[:2])
    return in_blocks or param not in convolved


def _layout(params: Sequence[Parameter]) -> Tuple[List[int], int]:
    """Where each parameter begins in a bucket's buffer, and the buffer's length, in elements."""
    step = max(1, ALIGNMENT_BYTES // _bytes_per_element(params[0]))
    begins, end = [], 0
    for param in params:
        begins.append(math.ceil(end / step) * step)
        end = begins[-1] + math.prod(param.shape)
    return begins, end


def _bytes_per_element(param: Parameter) -> int:
    return int(nd.zeros((1,), dtype=param.dtype).asnumpy().itemsize)


class Gaps:
    """Zeros between the gradients of these buckets, on all devices.

    On GPUs a fused operator stores 2 or 4 numbers at a time, the last ones too: an array of 7 gets
    an eighth (``store_index`` in the source that MXNet 1.9.1 gives NVRTC). That number is made of
    whatever lies behind the operator's inputs, NaN as well. Each gradient begins on a boundary of
    64 bytes, so that no other is reached; but who takes a bucket as one array, to look for an
    overflow or for its norm, would find it. So it is cleared before gradients are summed, in one
    launch for each bucket with gaps. On all devices clipping multiplies what lies there as well: by
    NaN, where gradients are not finite, and no backward would overwrite that.
    """

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self._calls = []
        self._fused = any(
            grad.context.device_type == "gpu" for bucket in buckets for grad in bucket.grads
        )
        for bucket in buckets:
            places = bucket.gaps()
            for grad in bucket.grads if places else ():
                indices = nd.array([places], ctx=grad.context, dtype="int32")
                zeros = nd.zeros((len(places),), ctx=grad.context, dtype=grad.dtype)
                call = OperatorCall("_scatter_set_nd", [grad, zeros, indices], grad)
                self._calls.append((call, Attributes({"shape": grad.shape})))

    def before_sum(self) -> None:
        """Clear them where fused operators write; nothing waits."""
        if self._fused:
            self.clear()

    def clear(self) -> None:
        """Queue it; nothing waits."""
        for call, attributes in self._calls:
            call(attributes)


def params_of_convolutions(blocks: Iterable[Any]) -> Set[Parameter]:
    """The parameters that ordinary convolutions have, and no other of these blocks.

    A parameter does not know the blocks that it is in. A transposed convolution is another block.
    """
    convolved: Set[Parameter] = set()
    others: Set[Parameter] = set()
    for block in blocks:
        inside = vars(block)  # of one that is being made, not all is there
        owned = others if inside.get("_op_name") != "Convolution" else convolved
        owned.update(inside.get("_reg_params", {}).values())
    return convolved - others


def forget_compiled(params: Iterable[Parameter], blocks: Iterable[gluon.Block]) -> None:
    """Have those of ``blocks`` with one of these parameters compile anew in their next call.

    A network hybridized with static_shape keeps the arrays that its backward wrote to. When a
    parameter is marked with another array of gradients, MXNet goes on with the old one, and even
    puts that back in the place of the new one (CachedOp::StaticBackward of
    src/imperative/cached_op.cc: InitDetached). It takes a new array when the network is compiled
    again. Other blocks need no such thing.
    """
    moved = set(params)
    for block in blocks:
        is_hybrid = isinstance(block, gluon.HybridBlock)
        if is_hybrid and _has_static_shape(block) and not moved.isdisjoint(_parameters_of(block)):
            block._clear_cached_op()


def _has_static_shape(net: gluon.HybridBlock) -> bool:
    inside = vars(net)  # of one that is being made, not all is there
    return inside.get("_cached_op") is not None and bool(dict(inside["_flags"]).get("static_shape"))


def _parameters_of(net: gluon.HybridBlock) -> Set[Parameter]:
    """Those that the compiled graph takes."""
    return {argument for is_data, argument in net._cached_op_args if not is_data}
