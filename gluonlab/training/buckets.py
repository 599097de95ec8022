"""BucketedTrainer: a gluon.Trainer that moves and updates many small parameters as few large buffers.

gluon.Trainer makes one kvstore call and one optimizer call per parameter, each of which costs more than the transfer of a
small gradient. Here the parameters of a bucket lie side by side in one buffer per device, so one call serves them all; each
parameter's own array becomes a view into the buffer, with which Gluon goes on working (`gluonlab.training.bucket`).
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np
from mxnet import gluon, nd
from mxnet.gluon import Parameter

from gluonlab.errors import KVStoreError, RunError
from gluonlab.kvstores import sgd
from gluonlab.kvstores.counts import Before, Rewinding
from gluonlab.kvstores.schedule import ScheduleKVStore
from gluonlab.kvstores.sharded import ShardedKVStore
from gluonlab.kvstores.states import States, read, save
from gluonlab.optimizers.registry import check_replicas, is_element_wise
from gluonlab.training.bucket import Bucket, group, together
from gluonlab.training.clip import GlobalNormClipping
from gluonlab.training.loss_scale import LossScale, Unscaling
from gluonlab.training.states import gather_states, put_awaited, restore

BUCKET_BYTES = 4 * 2**20


class _Call(NamedTuple):
    """What the store is asked to move at once: a bucket's key and its arrays on all devices, or lists of several buckets'."""

    key: Any
    grads: Any
    weights: Any
    priority: int


class BucketedTrainer(gluon.Trainer):
    """``gluon.Trainer`` with buckets; the same updates, to the bit for one device.

    ``kvstore`` is an instance (`make_kvstore`); it sums the gradients, the optimizer runs on every device (or, for
    "sharded-optimizer", on the store). Buckets hold at most ``bucket_bytes``. The first one holds the last layers, whose gradients
    backward finishes first, so it can travel while backward goes on; a store that spreads its keys has something to spread.
    ``optimizer``: as gluon.Trainer takes it: a plain "sgd" is MXNet's own, to the bit, an instance may be one of
    `gluonlab.optimizers`. One that is not element-wise updates parameter by parameter; its gradients still travel in buckets.
    With ``clip_norm`` the gradient of all parameters, summed and divided by the batch size, has at most this norm.
    With a ``loss_scale`` the gradients are taken for those of a loss that was multiplied by ``loss_scale.value``, and divided by it
    before the update. A step whose summed gradients are not finite changes no parameter and no state of the optimizer on any
    device; it counts for the schedule of the learning rate, as every batch does. To know that, each step waits for its gradients.
    Under a store that compresses them, an overflow would go unnoticed.

    Parameters move into the buckets at once, or, when a shape is still unknown, in the first step; load_parameters and set_data
    then write into the buckets. What had compiled the network with ``hybridize(static_alloc=True, static_shape=True)`` and run it
    before that keeps writing gradients to where they were: this is noticed in the next step, and raises RunError. So does a
    parameter that gets other arrays or multipliers once it is in a bucket.

    Raises ConfigError for an optimizer of MXNet's under which replicas drift apart, KVStoreError for parameters with sparse
    gradients, and for ``clip_norm`` or ``loss_scale`` with gradients that are not
    float32.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: "Dict[str, Any] | None" = None,
        kvstore: Any = None,
        bucket_bytes: int = BUCKET_BYTES,
        clip_norm: Optional[float] = None,
        loss_scale: Optional[LossScale] = None,
    ) -> None:
        super().__init__(params, optimizer, optimizer_params, kvstore=kvstore, update_on_kvstore=False)
        check_replicas(self._optimizer, len(self._contexts))
        if isinstance(kvstore, ShardedKVStore) and len(self._contexts) > 1:
            self._kvstore_params["update_on_kvstore"] = True
        if self._contains_sparse_weight or self._contains_sparse_grad:
            raise KVStoreError("parameters with sparse gradients cannot share buckets: use gluon.Trainer for them")
        if clip_norm is not None:
            _check_float32(f"clip_norm {clip_norm:g}", self._params)
        if loss_scale is not None:
            _check_float32("loss_scale", self._params)
        self.clip_norm, self.loss_scale = clip_norm, loss_scale
        self._clip: Optional[GlobalNormClipping] = None
        self._unscaling: Optional[Unscaling] = None
        self.bucket_bytes = bucket_bytes
        self.buckets: List[Bucket] = []
        self._calls: List[_Call] = []
        self._sgd: "List[sgd.DevicesSGD] | None" = None
        self._frozen: List[Parameter] = []
        self._looks_left = 0
        self._schedule = Rewinding(self._optimizer)
        self._awaited: Optional[States] = None  # states that were loaded before there were buckets
        self._apart = False
        if all(param._data is not None for param in self._params):
            self.prepare()

    def prepare(self) -> None:
        """Make the buckets now, rather than in the first step. Every parameter must have its shape."""
        if not self._kv_initialized:
            self._init_kvstore()
        if self._params_to_init:
            self._init_params()

    def _init_params(self) -> None:
        """Called before the first step, and by ``Parameter.set_data`` under a store that updates: the buckets stay, then."""
        if not self.buckets:
            self._make_buckets()
        if self._sums:
            for key, bucket in enumerate(self.buckets):
                self._kvstore.broadcast(key, bucket.weights[0], bucket.weights)
        self._params_to_init: List[Parameter] = []
        put_awaited(self)

    def _make_buckets(self) -> None:
        trainable = [param for param in self._params if param.grad_req != "null"]
        self._frozen = [param for param in self._params if param.grad_req == "null"]
        self.buckets = [Bucket(params) for params in group(trainable[::-1], self.bucket_bytes)]
        self._calls = self._make_calls()
        self._looks_left = 2
        if not self._update_on_kvstore:
            self._look_at([list(grads) for grads in zip(*(bucket.grads for bucket in self.buckets))])
        if self._by_bucket:  # one key, and so one state, per bucket
            self._optimizer.param_dict = dict(enumerate(self.buckets))

    def _make_calls(self) -> "List[_Call]":
        """Schedules take buckets together that have no more than ``bucket_bytes`` between them; other stores one at a time."""
        if not isinstance(self._kvstore, ScheduleKVStore):
            return [_Call(key, bucket.grads, bucket.weights, -key) for key, bucket in enumerate(self.buckets)]
        return [
            _Call(keys, [self.buckets[key].grads for key in keys], [self.buckets[key].weights for key in keys], -keys[0])
            for keys in together(self.buckets, self.bucket_bytes)
        ]

    def _look_at(self, grads: List[List[nd.NDArray]], parts: bool = False) -> None:
        """``grads[i]``: where device i has the summed gradients, or with ``parts`` its part of them."""
        if self.clip_norm is not None:
            self._clip = GlobalNormClipping(grads, self._contexts, parts)
        if self.loss_scale is not None:
            self._unscaling = Unscaling(grads, parts)

    @property
    def _sums(self) -> bool:
        """Whether there is anything to sum over: one device alone has the whole gradient."""
        return self._kvstore is not None and (len(self._contexts) > 1 or self._distributed)

    def _prepare_gradients(self) -> bool:
        """Once they are summed: divide them by the scale of the loss and clip them; False if the update must be left out."""
        if self.loss_scale is not None and self._unscaling is not None:
            self._optimizer.num_update += 1  # as the update does, if there is one: learning rates go by it
            finite = self._unscaling(self.loss_scale.value)
            self.loss_scale.after(finite)
            if not finite:
                return False
        if self._clip is not None:
            self._clip(self._largest_norm)
        return True

    def zero_grad(self, devices: Sequence[int]) -> None:
        """Set the gradients of these devices (positions in the list of contexts) to zero."""
        for bucket in self.buckets:
            for device in devices:
                bucket.grads[device][:] = 0

    def save_states(self, fname: str) -> None:
        """Write the optimizer's states, by parameter name, each whole, as `gluonlab.kvstores.states` lays them out.

        They can be loaded under any store, bucket size and number of devices. gluon.Trainer cannot read them, but what
        `gluonlab.training.states.export_gluon_states` writes. Raises OutputError, and leaves an old file then.
        """
        save(fname, gather_states(self))

    def load_states(self, fname: str) -> None:
        """Go on from what `save_states`, or gluon.Trainer's own, wrote; before the first step, or later.

        As gluon.Trainer does it, this sets the counts of updates and, where no schedule does, the learning rate; call
        ``set_learning_rate`` afterwards for another. Momenta, weight decay and the schedule are those that this trainer was made
        with, and the schedule goes on where the saved one stopped. Parameters are found by name, or, if names differ, as
        `gluonlab.kvstores.matching` says; those of gluon.Trainer's files by their positions. Of such a file, a pickle, nothing is
        run (`gluonlab.kvstores.gluon_pickle`). Raises KVStoreError, and changes nothing, for a file of anything else, of another
        optimizer or another network.
        """
        restore(self, read(fname), repr(str(fname)))

    @property
    def _by_bucket(self) -> bool:
        """Whether the optimizer may update a bucket at once.

        Not if loaded states have parameters of one bucket that were updated more often than others.
        """
        return is_element_wise(type(self._optimizer)) and not self._apart

    def _allreduce_grads(self) -> None:
        self._check_parameters()
        if self._sums and self._update_on_kvstore and (self.clip_norm is not None or self.loss_scale is not None):
            self._update_in_halves()
        elif self._sums:
            for call in self._calls:
                if self._update_on_kvstore:
                    self._kvstore.update_and_use_up(call.key, call.grads, call.weights, priority=call.priority)
                else:
                    self._kvstore.pushpull(call.key, call.grads, priority=call.priority)

    def _update_in_halves(self) -> None:
        """The store's work: what is known only when the last bucket is summed is needed before the first is updated."""
        shards = [self._kvstore.reduce_scatter(call.key, call.grads, call.weights, priority=call.priority) for call in self._calls]
        if self._clip is None and self._unscaling is None:
            self._look_at(
                [[part for parts in shards for part in parts if part.context == ctx] for ctx in self._contexts], parts=True
            )
        if not self._prepare_gradients():
            return
        for call in self._calls:
            self._kvstore.update(call.key, priority=call.priority)

    @property
    def _largest_norm(self) -> float:
        """That of the sum over the batch, by whose size the optimizer divides later."""
        assert self.clip_norm is not None
        return self.clip_norm / float(self._optimizer.rescale_grad)

    def _check_parameters(self) -> None:
        """Raise RunError when the gradients are not in the buckets, or the parameters should not share them any more."""
        unfrozen = any(param._grad is not None for param in self._frozen)
        if unfrozen or not all(bucket.intact() for bucket in self.buckets):
            raise RunError(
                "parameters were initialised, cast or given another grad_req, lr_mult or wd_mult after they moved into buckets: "
                "make a new BucketedTrainer, with a new kvstore, for them"
            )
        if self._looks_left:
            self._look_for_strays()

    def _look_for_strays(self) -> None:
        """In the first two steps: what is compiled before the parameters move may write gradients to where they were."""
        strays = [total.as_in_context(self._contexts[0]).astype("float32") for bucket in self.buckets for total in bucket.strays()]
        if strays and float(nd.add_n(*strays).asscalar()) != 0:
            for bucket in self.buckets:
                bucket.collect_grads()
            raise RunError(
                "the network still writes gradients to where they were before they moved into buckets, because it was compiled "
                "with static_shape before: call net.hybridize(...) again, or prepare() before the network is first run"
            )
        self._looks_left -= 1  # the first may come before any backward, the second does not
        if not self._looks_left:
            for bucket in self.buckets:
                bucket.former_grads.clear()

    def _update(self, ignore_stale_grad: bool = False) -> None:
        if self._update_on_kvstore:
            return  # done by pushpull
        if not self._prepare_gradients():
            return
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
                sgd.DevicesSGD(self._optimizer, key, bucket.weights, bucket.grads, states[key])
                for key, bucket in enumerate(self.buckets)
            ]
        for bucket in self._sgd:
            bucket.update()

    def _update_buckets(self) -> None:
        """One call of the optimizer per bucket and device, past gluon's Updater, whose checks cost more than the call."""
        for key, bucket in enumerate(self.buckets):
            before = Before(self._optimizer, key)
            for device in range(len(self._contexts)):
                weight, grad, state = bucket.weights[device], bucket.grads[device], self._state(device, key)
                before.restore()
                self._optimizer.update_multi_precision(key, weight, grad, state)

    def _state(self, device: int, key: int) -> Any:
        """The optimizer's state of a bucket on a device, kept where gluon.Trainer keeps its own."""
        updater = self._updaters[device]
        if key not in updater.states:
            updater.states[key] = self._optimizer.create_state_multi_precision(key, self.buckets[key].weights[device])
            updater.states_synced[key] = True
        return updater.states[key]

    def _update_parameters(self) -> None:
        """As gluon.Trainer does it: an optimizer that looks at a whole parameter must be given it."""
        keys = [key for key, param in enumerate(self._params) if param.grad_req != "null"]
        for device, updater in enumerate(self._updaters):
            grads = [self._params[key]._grad[device] for key in keys]
            weights = [self._params[key]._data[device] for key in keys]
            updater(keys, grads, weights)


def _check_float32(what: str, params: Sequence[Parameter]) -> None:
    """Raise KVStoreError when the gradients are not of the type that ``what`` is for."""
    other = next((param for param in params if param.grad_req != "null" and np.dtype(param.dtype) != np.float32), None)
    if other is not None:
        raise KVStoreError(f"{what} is for float32, and {other.name} is {np.dtype(other.dtype)}: leave it out")
