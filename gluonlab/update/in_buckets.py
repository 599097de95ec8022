"""A gluon.Trainer whose parameters lie in buckets: how it is made, and what it consists of.

What a step does with them: `gluonlab.update.trainer`.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Union

from mxnet import gluon, nd
from mxnet.gluon import Parameter

from gluonlab.config.hints import named_arguments
from gluonlab.devices import check_distinct
from gluonlab.engine.living import living
from gluonlab.kvstores.group_store import GroupKVStore
from gluonlab.kvstores.processes import new_keys, sums_over_processes
from gluonlab.kvstores.sharded import ShardedKVStore
from gluonlab.models.shapes import note_shapes
from gluonlab.optimizers.registry import is_element_wise
from gluonlab.optimizers.states.states import States
from gluonlab.optimizers.updates.counts import Rewinding
from gluonlab.update import arguments, compiled
from gluonlab.update.bucket import Bucket, group, spread, usual_bucket_bytes
from gluonlab.update.calls import Call, begin_alike, calls_of
from gluonlab.update.fresh import NOTHING, Freshness
from gluonlab.update.gaps import Gaps
from gluonlab.update.loss_scale import LossScale
from gluonlab.update.on_servers import UpdateOnServers
from gluonlab.update.on_store import UpdateOnStore
from gluonlab.update.owners import of_convolutions
from gluonlab.update.replica_updates import BucketUpdates, ParameterUpdates, has_gradient
from gluonlab.update.states import put_awaited
from gluonlab.update.summed import SummedGradients

_OF_OPTIMIZER = {
    "lr": "learning_rate",
    "weight_decay": "wd",
    **{
        name: name
        for name in (
            "learning_rate", "wd", "momentum", "lr_scheduler", "clip_gradient", "multi_precision",
        )
    },
}  # fmt: skip
_ANSWERS = {
    **{
        theirs: f"give optimizer_params={{{ours!r}: ...}}" for theirs, ours in _OF_OPTIMIZER.items()
    },
    **dict.fromkeys(
        ("ctx", "ctxs", "context", "device", "devices", "gpus"),
        "the devices are those of the parameters, net.initialize(ctx=devices('gpu:0,1'))",
    ),
    "batch_size": "give it to step(batch_size)",
    "compress": "give compression_params={'type': '2bit', 'threshold': 0.5}",
}


class TrainerInBuckets(gluon.Trainer):
    """The part of a BucketedTrainer that is there between two steps."""

    @named_arguments("BucketedTrainer", _ANSWERS)
    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: "Dict[str, Any] | None" = None,
        kvstore: Any = "device",
        compression_params: "Dict[str, Any] | None" = None,
        update_on_kvstore: Optional[bool] = None,
        *,
        bucket_bytes: Optional[int] = None,
        clip_norm: Optional[float] = None,
        loss_scale: Optional[LossScale] = None,
    ) -> None:
        with arguments.left_alone_if_refused(params, optimizer):
            arguments.check_settings(
                params, optimizer, optimizer_params, bucket_bytes, clip_norm, loss_scale
            )
            with arguments.known_optimizer_params(optimizer, optimizer_params):
                super().__init__(params, optimizer, optimizer_params, kvstore=kvstore)
            check_distinct(self._contexts)
            devices = len(self._contexts)
            note_shapes(self._params)
            arguments.check_parameters(self._params, clip_norm, loss_scale)
            self._store = arguments.store_for(kvstore, self._contexts)
            arguments.check_who_updates(self._store, self._optimizer, update_on_kvstore, devices)
            self._compression_params = arguments.compression_for(
                self._store, compression_params, devices, loss_scale
            )
            self.clip_norm, self.loss_scale = clip_norm, loss_scale
            self._on_store: "Union[UpdateOnStore, UpdateOnServers, None]" = None
            self._summed: Optional[SummedGradients] = None
            usual = usual_bucket_bytes(self._contexts)
            self.bucket_bytes = usual if bucket_bytes is None else bucket_bytes
            self._sized = bucket_bytes is not None
            self.buckets: List[Bucket] = []
            self._calls: List[Call] = []
            self._repeats: List[nd.NDArray] = []  # where a sum lies that is to be added to once
            self._updates: "Union[BucketUpdates, ParameterUpdates, None]" = None
            self._frozen: List[Parameter] = []
            self._stale = NOTHING
            self._uneven = False  # whether parameters may have been updated more often than others
            self._schedule = Rewinding(self._optimizer)
            self._awaited: Optional[States] = None  # loaded before there were buckets
            self._init_kvstore()
            if not arguments.unknown_shapes(self._params):
                self.prepare()

    def prepare(self) -> None:
        """Make the buckets now, rather than in the first step.

        Raises RunError for parameters whose shapes are not known.
        """
        if not self._kv_initialized:
            self._init_kvstore()
        if self._params_to_init:
            self._init_params()

    def _init_kvstore(self) -> None:
        """Called by the constructor, and after ``Parameter.set_data`` if the store updates."""
        store: Any = self._store
        self._kvstore = store
        self._on_servers = isinstance(store, GroupKVStore) and store.on_servers
        shards = isinstance(store, ShardedKVStore) and len(self._contexts) > 1
        self._update_on_kvstore = shards or self._on_servers
        self._distributed = sums_over_processes(store)
        if store is not None and self._compression_params:
            store.set_gradient_compression(self._compression_params)
        if shards:
            store.set_optimizer(self._optimizer)
        self._kv_initialized = True

    def _init_params(self) -> None:
        """Called before the first step, and after `_reset_kvstore`: the buckets stay, then."""
        arguments.check_shapes(self._params)
        if not self.buckets:
            note_shapes(self._params)
            self._make_buckets()
        if self._sums:
            frozen = self._frozen if self._distributed else ()
            begin_alike(self._kvstore, self._first_key, self.buckets, frozen)
        if self._on_servers and self._on_store is None:
            self._on_store = UpdateOnServers(
                self._kvstore, self.buckets, self.bucket_bytes, self._optimizer, self._by_bucket
            )
        self._params_to_init: List[Parameter] = []
        put_awaited(self)

    def _make_buckets(self) -> None:
        trainable = [param for param in self._params if has_gradient(param)]
        self._frozen = [param for param in self._params if param.grad_req == "null"]
        blocks, most = living(), self.bucket_bytes
        if not self._sized:
            most = spread(trainable, most, self._contexts, self._store)
        on_gpus = self._contexts[0].device_type == "gpu"
        groups = group(trainable[::-1], most, of_convolutions(blocks), on_gpus)
        self.buckets = [Bucket(params) for params in groups]
        compiled.forget((param for params in groups if len(params) > 1 for param in params), blocks)
        self._freshness = Freshness(trainable, self._contexts)
        self._first_key = new_keys(self._kvstore, len(self.buckets) + len(self._frozen))
        if not self._on_servers:
            self._calls = calls_of(
                self._kvstore, self.buckets, self.bucket_bytes, self._update_on_kvstore,
                self._first_key,
            )  # fmt: skip
        # a bucket is looked at as a whole, with what lies between its parameters
        looks = self.clip_norm is not None or self.loss_scale is not None
        # in 2 bits what is not finite spreads to its neighbours
        looks = looks or (isinstance(self._store, GroupKVStore) and self._store.keeps_rest)
        self._gaps = Gaps(self.buckets if looks else ())
        looked_at = self._contexts, self.clip_norm, self.loss_scale, self._gaps
        if self._on_servers:
            pass  # once all processes have the same weights
        elif self._update_on_kvstore:
            self._on_store = UpdateOnStore(self._kvstore, self._calls, self.buckets, *looked_at)
        else:
            grads = [list(of_device) for of_device in zip(*(each.grads for each in self.buckets))]
            self._summed = SummedGradients(grads, *looked_at)
        if self._sums and not self._update_on_kvstore:
            kept = 1 if not self._distributed or self._kvstore.rank == 0 else 0
            added = [bucket for bucket in self.buckets if bucket.adds]
            self._repeats = [grad for bucket in added for grad in bucket.grads[kept:]]
        if self._by_bucket:  # one key, and so one state, per bucket
            self._optimizer.param_dict = dict(enumerate(self.buckets))

    @property
    def _sums(self) -> bool:
        """Whether there is anything to sum over: one device alone has the whole gradient."""
        return self._kvstore is not None and (len(self._contexts) > 1 or self._distributed)

    @property
    def _by_bucket(self) -> bool:
        """Whether the optimizer may update a bucket at once."""
        return is_element_wise(type(self._optimizer))
