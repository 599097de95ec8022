"""BucketedTrainer: a gluon.Trainer that moves and updates many small parameters as few large buffers.

gluon.Trainer makes one kvstore call and one optimizer call per parameter, each of which costs more than the transfer of a
small gradient. Here the parameters of a bucket lie side by side in one buffer per device, so one call serves them all; each
parameter's own array becomes a view into the buffer, and everything else in Gluon goes on working with it.
"""

from __future__ import annotations

import math
from typing import Any, Dict, Iterable, List, Sequence, Tuple

from mxnet import autograd, gluon, nd
from mxnet.gluon import Parameter

from gluonlab.errors import KVStoreError, RunError
from gluonlab.kvstores.sharded import ELEMENT_WISE, ShardedKVStore
from gluonlab.training import sgd

BUCKET_BYTES = 4 * 2**20
ALIGNMENT_BYTES = 64  # a cache line, and what oneDNN's vector loads like best


class Bucket:
    """Some parameters of equal type and multipliers, side by side: per device one buffer of weights and one of gradients."""

    def __init__(self, params: Sequence[Parameter]) -> None:
        self.params = list(params)
        self.lr_mult, self.wd_mult = params[0].lr_mult, params[0].wd_mult  # what an Optimizer asks of a parameter
        self.ctxs = params[0].list_ctx()
        self.dtype = params[0].dtype
        self.begins, size = _layout(params)
        self.weights = [nd.zeros((size,), ctx=ctx, dtype=self.dtype) for ctx in self.ctxs]
        self.grads = [nd.zeros((size,), ctx=ctx, dtype=self.dtype) for ctx in self.ctxs]
        self._lists: List[List[nd.NDArray]] = []  # the lists of views that the parameters were given
        for param, begin in zip(self.params, self.begins):
            self._adopt(param, begin)

    def _adopt(self, param: Parameter, begin: int) -> None:
        """Copy the parameter's values into the buffers and make its arrays views of them."""
        part = slice(begin, begin + math.prod(param.shape))
        data = [buffer[part].reshape(param.shape) for buffer in self.weights]
        grad = [buffer[part].reshape(param.shape) for buffer in self.grads]
        for view, old in zip(data, param.list_data()):
            old.copyto(view)
        for view, old in zip(grad, param.list_grad()):
            old.copyto(view)
        param._data, param._grad = data, grad  # what gluon.Parameter 1.9.1 keeps, one array per device
        self._lists.append(data)
        autograd.mark_variables(data, grad, param.grad_req)

    def intact(self) -> bool:
        """Whether the parameters still lie here: initialize(force_reinit=True) and cast() give them other arrays."""
        return all(param._data is views for param, views in zip(self.params, self._lists))


def _layout(params: Sequence[Parameter]) -> Tuple[List[int], int]:
    """Where each parameter begins in a bucket's buffer, and the buffer's length, in elements."""
    step = max(1, ALIGNMENT_BYTES // _bytes_per_element(params[0]))
    begins, end = [], 0
    for param in params:
        begins.append(end)
        end += math.ceil(math.prod(param.shape) / step) * step
    return begins, end


def _bytes_per_element(param: Parameter) -> int:
    return int(nd.zeros((1,), dtype=param.dtype).asnumpy().itemsize)


def group(params: Iterable[Parameter], bucket_bytes: int) -> List[List[Parameter]]:
    """Parameters of equal type and multipliers, in order, as lists of at most ``bucket_bytes`` (or one parameter)."""
    groups: Dict[Any, List[List[Parameter]]] = {}
    room: Dict[Any, int] = {}
    for param in params:
        kind = (param.dtype, param.lr_mult, param.wd_mult, param.grad_req)
        size = math.prod(param.shape) * _bytes_per_element(param)
        if kind not in groups or room[kind] < size:
            groups.setdefault(kind, []).append([])
            room[kind] = bucket_bytes
        groups[kind][-1].append(param)
        room[kind] -= size
    return [bucket for buckets in groups.values() for bucket in buckets]


class BucketedTrainer(gluon.Trainer):
    """``gluon.Trainer`` with buckets; the same updates, to the bit for one device.

    ``kvstore`` is an instance (`make_kvstore`); it sums the gradients, the optimizer runs on every device (or, for
    "sharded-optimizer", on the store). Buckets hold at most ``bucket_bytes``. The first one holds the last layers, whose gradients
    backward finishes first, so it can travel while backward goes on; a store that spreads its keys has something to spread.
    An optimizer that is not in ELEMENT_WISE updates parameter by parameter; its gradients still travel in buckets.
    Parameters live in the buckets from the first step on: load_parameters and set_data write into them.

    Raises KVStoreError for parameters with sparse gradients.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: "Dict[str, Any] | None" = None,
        kvstore: Any = None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        super().__init__(params, optimizer, optimizer_params, kvstore=kvstore, update_on_kvstore=False)
        if isinstance(kvstore, ShardedKVStore) and len(self._contexts) > 1:
            self._kvstore_params["update_on_kvstore"] = True
        if self._contains_sparse_weight or self._contains_sparse_grad:
            raise KVStoreError("parameters with sparse gradients cannot share buckets: use gluon.Trainer for them")
        self.bucket_bytes = bucket_bytes
        self.buckets: List[Bucket] = []
        self._sgd: "List[sgd.BucketSGD] | None" = None

    def prepare(self) -> None:
        """Make the buckets now, rather than in the first step. Every parameter must have its shape."""
        if not self._kv_initialized:
            self._init_kvstore()
        if not self.buckets:
            self._init_params()

    def _init_params(self) -> None:
        trainable = [param for param in self._params if param.grad_req != "null"]
        self.buckets = [Bucket(params) for params in group(trainable[::-1], self.bucket_bytes)]
        if self._by_bucket:  # one key, and so one state, per bucket
            self._optimizer.param_dict = dict(enumerate(self.buckets))
        if self._sums:
            for key, bucket in enumerate(self.buckets):
                self._kvstore.broadcast(key, bucket.weights[0], bucket.weights)
        self._params_to_init: List[Parameter] = []

    @property
    def _sums(self) -> bool:
        """Whether there is anything to sum over: one device alone has the whole gradient."""
        return self._kvstore is not None and (len(self._contexts) > 1 or self._distributed)

    def zero_grad(self, devices: Sequence[int]) -> None:
        """Set the gradients of these devices (positions in the list of contexts) to zero."""
        for bucket in self.buckets:
            for device in devices:
                bucket.grads[device][:] = 0

    def load_states(self, fname: str) -> None:
        """Read what `save_states` wrote; everything that was made from the old states is made anew."""
        super().load_states(fname)
        self._sgd = None
        if self._by_bucket:
            self._optimizer.param_dict = dict(enumerate(self.buckets))

    @property
    def _by_bucket(self) -> bool:
        """Whether the optimizer may update a bucket at once; not a subclass of those that may, it could do anything."""
        return type(self._optimizer) in ELEMENT_WISE

    def _allreduce_grads(self) -> None:
        if not all(bucket.intact() for bucket in self.buckets):
            raise RunError("parameters were initialised or cast after the first step: make a new BucketedTrainer for them")
        if self._sums:
            for key, bucket in enumerate(self.buckets):
                if self._update_on_kvstore:
                    self._kvstore.pushpull(key, bucket.grads, out=bucket.weights, priority=-key)
                else:
                    self._kvstore.pushpull(key, bucket.grads, priority=-key)

    def _update(self, ignore_stale_grad: bool = False) -> None:
        if self._update_on_kvstore:
            return  # done by pushpull
        if not self._by_bucket:
            self._update_parameters()
        elif sgd.applies(self._optimizer):
            self._update_by_sgd()
        else:
            self._update_buckets()

    def _update_by_sgd(self) -> None:
        if self._sgd is None:
            states = [[self._state(device, key) for device in range(len(self._contexts))] for key in range(len(self.buckets))]
            self._sgd = [
                sgd.BucketSGD(self._optimizer, key, bucket.weights, bucket.grads, states[key])
                for key, bucket in enumerate(self.buckets)
            ]
        for bucket in self._sgd:
            bucket.update()

    def _update_buckets(self) -> None:
        """One call of the optimizer per bucket and device, past gluon's Updater, whose checks cost more than the call."""
        for device, ctx in enumerate(self._contexts):
            self._optimizer._set_current_context(ctx.device_id)  # it counts each device's updates for itself
            for key, bucket in enumerate(self.buckets):
                weight, grad, state = bucket.weights[device], bucket.grads[device], self._state(device, key)
                self._optimizer.update_multi_precision(key, weight, grad, state)

    def _state(self, device: int, key: int) -> Any:
        """The optimizer's state of a bucket on a device, kept where gluon.Trainer keeps its own."""
        updater = self._updaters[device]
        if key not in updater.states:
            updater.states[key] = self._optimizer.create_state_multi_precision(key, self.buckets[key].weights[device])
            updater.states_synced[key] = True
        elif not updater.states_synced[key]:  # loaded from a file, and so not yet on this device
            updater.states[key] = updater.sync_state_context(updater.states[key], self._contexts[device])
            updater.states_synced[key] = True
        return updater.states[key]

    def _update_parameters(self) -> None:
        """As gluon.Trainer does it: an optimizer that looks at a whole parameter must be given it."""
        keys = [key for key, param in enumerate(self._params) if param.grad_req != "null"]
        for device, updater in enumerate(self._updaters):
            grads = [self._params[key]._grad[device] for key in keys]
            weights = [self._params[key]._data[device] for key in keys]
            updater(keys, grads, weights)
