"""Defines buckets: groups of parameters that share one buffer on each device.

A single kvstore call and a single optimizer call then handle all parameters of a bucket.
`group_parameters` decides which parameters share a bucket.
"""

from __future__ import annotations

import math
from typing import AbstractSet, Any, Dict, Iterable, List, Sequence, Set, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import Parameter

from gluonlab.engine.fast_invoke import Attributes, OperatorCall
from gluonlab.engine.nd_and_np_arrays import nd_semantics, np_semantics

ALIGNMENT_BYTES = 64  # a cache line, which oneDNN's vector instructions load fastest
# Default bucket sizes. The size for CPUs fits into a CPU's caches. On GPUs, buckets are larger:
# MXNet waits for the stream after each operation, and small messages do not use the full bandwidth
# of a link. PyTorch's DistributedDataParallel also uses 25 MiB (Li and others, "PyTorch
# Distributed: experiences on accelerating data parallel training", 2020).
CPU_BUCKET_BYTES, GPU_BUCKET_BYTES = 4 * 2**20, 25 * 2**20
ONEDNN_BLOCK_CHANNELS = 8  # oneDNN's blocks have 8 channels, or a multiple of 8


class Bucket:
    """A group of parameters that share one weight array and one gradient array on each device.

    All parameters of a bucket have equal dtype, multipliers and grad_req. Each device has one flat
    array of all weights and one of all gradients. The parameters' arrays become views of these flat
    arrays, aligned to ALIGNMENT_BYTES. A bucket with a single parameter uses the parameter's own
    arrays.
    """

    def __init__(self, params: Sequence[Parameter]) -> None:
        self.params = list(params)
        # An Optimizer reads these attributes from a parameter, and here from the bucket.
        self.lr_mult, self.wd_mult = params[0].lr_mult, params[0].wd_mult
        self.dtype = params[0].dtype
        self.adds_gradients = params[0].grad_req == "add"
        self.offsets, self.size = _aligned_offsets(params)
        if len(params) == 1 and params[0].shape:
            self.weights, self.grads = (as_nd_arrays(params[0].list_data()), as_nd_arrays(params[0].list_grad()))
        else:
            ctxs = params[0].list_ctx()
            self.weights = [nd.zeros((self.size,), ctx=ctx, dtype=self.dtype) for ctx in ctxs]
            self.grads = [nd.zeros((self.size,), ctx=ctx, dtype=self.dtype) for ctx in ctxs]
            for param, begin in zip(self.params, self.offsets):
                self._move_into_buffers(param, begin)
        self._arrays = [(param, param._data, param._grad) for param in self.params]

    def _move_into_buffers(self, param: Parameter, begin: int) -> None:
        """Copy a parameter into the buffers, and replace its arrays with views of the buffers."""
        data, grad = (_parameter_views(self.weights, param, begin), _parameter_views(self.grads, param, begin))
        with autograd.pause():
            for view, array in zip([*data, *grad], [*param.list_data(), *param.list_grad()]):
                array.copyto(view)
        fresh_flags = [array._fresh_grad for array in param.list_data()]
        # private fields of gluon.Parameter 1.9.1, with one array per device
        param._data, param._grad = data, grad
        autograd.mark_variables(data, grad, param.grad_req)
        for array, fresh in zip(data, fresh_flags):  # mark_variables resets the flags
            array._fresh_grad = fresh

    def element_ranges(self, params: "Set[Parameter]") -> List[Tuple[int, int]]:
        """Return the element ranges (begin, end) in this bucket that belong to ``params``.

        Neighboring ranges are merged.
        """
        ranges: List[Tuple[int, int]] = []
        for param, begin, end in zip(self.params, self.offsets, [*self.offsets[1:], self.size]):
            if param in params:
                if ranges and ranges[-1][1] == begin:
                    ranges[-1] = (ranges[-1][0], end)
                else:
                    ranges.append((begin, end))
        return ranges

    def padding_indices(self) -> List[int]:
        """Return the indices of the padding elements between the parameters."""
        ends = [begin + math.prod(param.shape) for param, begin in zip(self.params, self.offsets)]
        return [i for end, begin in zip(ends, self.offsets[1:]) for i in range(end, begin)]

    def zero_grad(self, device: int, params: "Set[Parameter]") -> None:
        """Zero the gradients on one device. Ignore parameters that are not in this bucket."""
        grad = self.grads[device]
        for begin, end in self.element_ranges(params):
            part = grad if (begin, end) == (0, self.size) else grad[begin:end]
            part[:] = 0

    def is_intact(self) -> bool:
        """Return whether the parameters still have the bucket's arrays, lr_mult and wd_mult.

        ``initialize(force_reinit=True)``, ``cast`` and a new ``grad_req`` replace the arrays.
        """
        lr_mult, wd_mult = self.lr_mult, self.wd_mult
        for param, data, grad in self._arrays:
            if param._data is not data or param._grad is not grad:
                return False
            if param.lr_mult != lr_mult or param.wd_mult != wd_mult:
                return False
        return True


def as_nd_arrays(arrays: Sequence[Any]) -> List[nd.NDArray]:
    """Return mx.nd views of arrays.

    Operators of mx.nd reject mx.np arrays, and reshaping an mx.np array copies it.
    """
    return [array.as_nd_ndarray() for array in arrays]


def _parameter_views(buffers: Sequence[nd.NDArray], param: Parameter, begin: int) -> List[Any]:
    """Return a view of the parameter in each buffer.

    The views are mx.np arrays if the parameter's own arrays are, and otherwise mx.nd arrays.
    """
    numpy_like = isinstance(param.list_data()[0], mx.np.ndarray)
    # an array of one element can have shape () in mx.np, but only (1,) in mx.nd
    with np_semantics() if numpy_like else nd_semantics():
        end = begin + math.prod(param.shape)
        views = [buffer[begin:end].reshape(param.shape) for buffer in buffers]
        return [view.as_np_ndarray() for view in views] if numpy_like else views


def group_parameters(
    params: Iterable[Parameter],
    bucket_bytes: int,
    convolved: AbstractSet[Parameter] = frozenset(),
    on_gpus: bool = False,
) -> List[List[Parameter]]:
    """Divide parameters into buckets by dtype, lr_mult, wd_mult, grad_req and size.

    The parameters stay in order. A bucket contains at most ``bucket_bytes`` bytes, but a parameter
    that is larger than this limit gets its own bucket.

    Args:
        params: Initialized parameters.
        bucket_bytes: Size limit of a bucket, in bytes.
        convolved: Parameters that only ordinary convolutions use.
        on_gpus: Whether the parameters are on GPUs, where oneDNN is not used.
    """
    buckets: List[List[Parameter]] = []
    open_buckets: Dict[Any, List[Parameter]] = {}
    room: Dict[Any, int] = {}
    for param in params:
        if not on_gpus and _needs_own_memory(param, convolved):
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


def default_bucket_bytes(ctxs: Sequence[mx.Context]) -> int:
    """Return the default size limit of a bucket."""
    return GPU_BUCKET_BYTES if ctxs[0].device_type == "gpu" else CPU_BUCKET_BYTES


def limit_bucket_bytes(params: Sequence[Parameter], bucket_bytes: int, ctxs: Sequence[mx.Context], store: Any) -> int:
    """Return the size limit of a bucket in bytes, reduced if some GPUs would have no bucket to sum.

    The store "device" sums each bucket on one device, so with fewer buckets than GPUs, some GPUs
    would be idle. For other stores and on CPUs, the limit is ``bucket_bytes``.
    """
    if len(ctxs) < 2 or ctxs[0].device_type != "gpu" or getattr(store, "type", None) != "device":
        return bucket_bytes
    total: int = sum(math.prod(param.shape) * _bytes_per_element(param) for param in params)
    return min(bucket_bytes, max(CPU_BUCKET_BYTES, total // len(ctxs)))


def coalesce_buckets(buckets: Sequence[Bucket], bucket_bytes: int) -> List[Tuple[int, ...]]:
    """Combine neighboring buckets into groups of up to ``bucket_bytes``.

    Return the positions of the buckets in each group.

    A store that accepts several keys in one call can sum a whole group like a single bucket.
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


def _needs_own_memory(param: Parameter, convolved: AbstractSet[Parameter]) -> bool:
    """Return whether this parameter must not be a view, because oneDNN may rearrange its memory."""
    if len(param.shape) < 3:
        return False
    # When a convolution predicts on the CPU, oneDNN stores its weight in blocks of channels, if the
    # number of channels is a multiple of the block size. If the weight is a view, MXNet rearranges
    # the whole buffer instead. A transposed convolution rearranges its weight for any number of
    # channels, and also rearranges its gradient. If that gradient is a view, training crashes.
    in_blocks = any(channels % ONEDNN_BLOCK_CHANNELS == 0 for channels in param.shape[:2])
    return in_blocks or param not in convolved


def _aligned_offsets(params: Sequence[Parameter]) -> Tuple[List[int], int]:
    """Return each parameter's offset in a bucket, and the bucket's length, in elements."""
    alignment = max(1, ALIGNMENT_BYTES // _bytes_per_element(params[0]))
    begins, end = [], 0
    for param in params:
        begins.append(math.ceil(end / alignment) * alignment)
        end = begins[-1] + math.prod(param.shape)
    return begins, end


def _bytes_per_element(param: Parameter) -> int:
    return int(nd.zeros((1,), dtype=param.dtype).asnumpy().itemsize)


class BucketPadding:
    """Clears the elements between the gradients of these buckets, on all devices.

    On GPUs a fused operator stores 2 or 4 numbers at a time, even at the end of an array. So the
    operator writes an eighth number after an array of 7 elements (``store_index`` in the source
    that MXNet 1.9.1 compiles with NVRTC). That number is computed from the memory after the
    operator's inputs, and may be NaN. Because each gradient starts at a multiple of 64 bytes, no
    other gradient is overwritten. But operations on the whole bucket, such as a norm or the
    overflow check, read the number. Clipping and unscaling also write to the padding. If gradients
    are not finite, the padding becomes NaN, and no backward pass overwrites it.
    """

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self._calls = []
        self._fused = any(grad.context.device_type == "gpu" for bucket in buckets for grad in bucket.grads)
        for bucket in buckets:
            padding = bucket.padding_indices()
            for grad in bucket.grads if padding else ():
                indices = nd.array([padding], ctx=grad.context, dtype="int32")
                zeros = nd.zeros((len(padding),), ctx=grad.context, dtype=grad.dtype)
                call = OperatorCall("_scatter_set_nd", [grad, zeros, indices], grad)
                self._calls.append((call, Attributes({"shape": grad.shape})))

    def clear_before_sum(self) -> None:
        """Queue `clear` on GPUs, where fused operators write into the padding."""
        if self._fused:
            self.clear()

    def clear(self) -> None:
        """On each device, queue an operation that clears the padding of each padded bucket."""
        for call, attributes in self._calls:
            call(attributes)


def convolution_parameters(blocks: Iterable[Any]) -> Set[Parameter]:
    """Return the parameters that only ordinary (not transposed) convolutions in ``blocks`` use."""
    convolved: Set[Parameter] = set()
    others: Set[Parameter] = set()
    for block in blocks:
        attributes = vars(block)  # incomplete while the block is being constructed
        owned = others if attributes.get("_op_name") != "Convolution" else convolved
        owned.update(attributes.get("_reg_params", {}).values())
    return convolved - others


def invalidate_cached_ops(params: Iterable[Parameter], blocks: Iterable[gluon.Block]) -> None:
    """Make blocks compile again if they were hybridized with static_shape and use these parameters.

    A network hybridized with static_shape remembers the gradient arrays of its first backward pass.
    If a parameter later has a new gradient array, MXNet still writes to the old array, and even
    replaces the new array with the old one (InitDetached in CachedOp::StaticBackward,
    src/imperative/cached_op.cc). After another compilation, MXNet uses the new array.
    """
    moved = set(params)
    for block in blocks:
        is_hybrid = isinstance(block, gluon.HybridBlock)
        if is_hybrid and _has_static_shape(block) and not moved.isdisjoint(_graph_parameters(block)):
            block._clear_cached_op()


def _has_static_shape(net: gluon.HybridBlock) -> bool:
    """Return whether the block has compiled its graph with ``static_shape``."""
    attributes = vars(net)  # incomplete while the block is being constructed
    if attributes.get("_cached_op") is None:
        return False
    return bool(dict(attributes["_flags"]).get("static_shape"))


def _graph_parameters(net: gluon.HybridBlock) -> Set[Parameter]:
    """Return the parameters that are inputs of the compiled graph."""
    return {argument for is_data, argument in net._cached_op_args if not is_data}
