"""BucketedTrainer: a gluon.Trainer that moves and updates its parameters in a few large buffers.

gluon.Trainer makes one kvstore call and one optimizer call per parameter, each of which costs more
than the transfer of a small gradient. Here the parameters of a bucket lie side by side in one
buffer per device, so one call serves them all; each parameter's own array becomes a view into the
buffer, with which Gluon goes on working (`gluonlab.bucketed_trainer.buckets`).

A step: `step` finds stale gradients (`gluonlab.bucketed_trainer.stale_gradients`), the kvstore sums
(`gluonlab.bucketed_trainer.sum_and_update`), the sums are unscaled and clipped
(`gluonlab.bucketed_trainer.gradient_postprocessing`), and
every device's optimizer updates its replica (`gluonlab.bucketed_trainer.sum_and_update`), unless
the store or its servers have done so.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

from mxnet import autograd, gluon, nd
from mxnet.gluon import Parameter

from gluonlab.bucketed_trainer import trainer_arguments
from gluonlab.bucketed_trainer.buckets import (
    Bucket,
    Gaps,
    forget_compiled,
    group,
    params_of_convolutions,
    spread,
    usual_bucket_bytes,
)
from gluonlab.bucketed_trainer.gradient_postprocessing import Postprocess, SummedGradients
from gluonlab.bucketed_trainer.loss_scale import LossScale
from gluonlab.bucketed_trainer.stale_gradients import NOTHING, Freshness
from gluonlab.bucketed_trainer.sum_and_update import (
    BucketUpdates,
    Call,
    ParameterUpdates,
    UpdateOnStore,
    broadcast_parameters,
    calls_of,
    has_gradient,
)
from gluonlab.bucketed_trainer.trainer_states import gather_states, load, put_awaited
from gluonlab.config.option_hints import check_argument_names
from gluonlab.devices import check_distinct
from gluonlab.engine.mxnet_fixes import live_blocks
from gluonlab.errors import ConfigError, RunError
from gluonlab.kvstores.allreduce_store import is_sharded
from gluonlab.kvstores.mxnet_stores import new_keys, sums_over_processes
from gluonlab.kvstores.process_group_store import GroupKVStore
from gluonlab.models.infer_shapes import note_shapes
from gluonlab.optimizers.optimizer_registry import is_element_wise
from gluonlab.optimizers.optimizer_states import States, save
from gluonlab.optimizers.optimizer_step import Rewinding

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


class BucketedTrainer(gluon.Trainer):
    """``gluon.Trainer`` with buckets: the same arguments and updates, on one device the same bits.

    ``kvstore`` is a name (`make_kvstore`) or an instance, such as ``mx.kv.create("dist_sync")``; it
    sums the gradients, the optimizer runs on every device (or, for "sharded-optimizer", on the
    store: ``update_on_kvstore`` cannot choose otherwise). None is for one device.
    ``compression_params``: for stores that compress, ``{"type": "2bit", "threshold": 0.5}``.
    ``optimizer``: as gluon.Trainer takes it: a plain "sgd" is MXNet's own, to the bit, an instance
    may be one of `gluonlab.optimizers`. One that is not element-wise updates parameter by
    parameter; its gradients still travel in buckets.

    Buckets hold at most ``bucket_bytes``; the first one the last layers, whose gradients can travel
    while backward goes on. The default is 4 MiB on CPU devices, 25 MiB on GPUs. There "device",
    which sums a bucket on one of them, has one for each, if large. With ``clip_norm`` the gradient
    of all parameters, summed and divided by the batch size, has at most this norm. With a
    ``loss_scale`` the gradients are taken for those of a loss that was multiplied by
    ``loss_scale.value``, and divided by it before the update. A step whose summed gradients are not
    finite changes no parameter and no state of the optimizer on any device; it counts for the
    schedule of the learning rate, as every batch does. To know that, each step waits for its
    gradients before it updates.

    A gradient that backward has not written since the last step is stale, and counts as zero. A
    device on which all are, such as one without a shard of the last batch, is idle. A parameter
    without a fresh gradient on another device (or on none) raises a UserWarning that names it,
    before anything has changed. With ``step(..., ignore_stale_grad=True)`` the fresh gradients are
    summed, all replicas get the same update, and a parameter that is fresh on no device stays, with
    its state and count of updates. All have the step's rate, the schedule's for the most updates
    that any has seen, this one included. gluon.Trainer differs: on several devices, where its store
    updates, it adds a stale gradient once more without a word (only in its first step it complains,
    when all is updated); with ``ignore_stale_grad=True``, without updates on the store, replicas
    part; and it has an earlier rate for parameters before (with SGD: four or more before) the one
    with the most updates.

    With grad_req "add", gradients that nobody sets to zero after a step go on adding up, as they do
    on one device: the first device keeps their sum (under "sharded-optimizer" each its own part).

    Parameters move into the buckets at once, or, when a shape is still unknown, in the first step;
    load_parameters and set_data then write into the buckets. Networks that were compiled with
    static_shape before that compile anew in their next call. A parameter that gets other arrays or
    multipliers once it is in a bucket raises RunError in the next step.

    Raises ConfigError for a setting that is none, for parameters that come twice, and for an
    optimizer of MXNet's under which replicas drift apart; DeviceError for parameters with two
    replicas on one device, of which backward writes one; and KVStoreError for a store that is
    unknown or could not keep replicas alike, for parameters with sparse gradients, for
    ``clip_norm`` or ``loss_scale`` with gradients that are not float32, and for what a store cannot
    do. The parameters are then as they were before.
    """

    @check_argument_names("BucketedTrainer", _ANSWERS)
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
        with trainer_arguments.left_alone_if_refused(params, optimizer):
            trainer_arguments.check_settings(params, optimizer, optimizer_params, bucket_bytes)
            self._postprocess = Postprocess(clip_norm, loss_scale)
            self._postprocess.check()
            with trainer_arguments.known_optimizer_params(optimizer, optimizer_params):
                super().__init__(params, optimizer, optimizer_params, kvstore=kvstore)
            check_distinct(self._contexts)
            devices = len(self._contexts)
            note_shapes(self._params)
            trainer_arguments.check_dense(self._params)
            self._postprocess.check_parameters(self._params)
            self._store = trainer_arguments.store_for(kvstore, self._contexts)
            trainer_arguments.check_who_updates(
                self._store, self._optimizer, update_on_kvstore, devices
            )
            self._compression_params = trainer_arguments.compression_for(
                self._store, compression_params, devices, loss_scale
            )
            self.clip_norm, self.loss_scale = clip_norm, loss_scale
            self._on_store: Any = None  # what updates in place of the devices: store, or servers
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
            if not trainer_arguments.unknown_shapes(self._params):
                self.prepare()

    def prepare(self) -> None:
        """Make the buckets now, rather than in the first step.

        Raises RunError for parameters whose shapes are not known.
        """
        if not self._kv_initialized:
            self._init_kvstore()
        if self._params_to_init:
            self._init_params()

    def step(self, batch_size: float, ignore_stale_grad: bool = False) -> None:
        """Sum the gradients, and update every replica with the sum divided by ``batch_size``.

        ``batch_size``: the images of all devices. Raises UserWarning for a parameter without a
        fresh gradient, unless ``ignore_stale_grad``; ConfigError for no batch size.
        """
        with autograd.pause():
            self._begin(batch_size)
            self._silence(ignore_stale_grad)
            self._allreduce_grads()
            self._update()
            self._used()

    def apply(self, batch_size: float) -> None:
        """`step` for gradients that an executor, say, has written: all count, none is stale."""
        if autograd.is_recording():
            with autograd.pause():  # which costs some microseconds
                self.apply(batch_size)
            return
        for _, queue in self.phases(batch_size):
            queue()

    def phases(self, batch_size: float) -> "Tuple[Tuple[str, Callable[[], None]], ...]":
        """The two halves of `apply`, each of which is to be called, outside of autograd.record."""
        self._begin(batch_size)
        return ("allreduce", self._allreduce_grads), ("update", self._update)

    def allreduce_grads(self) -> None:
        """The first half of `step`: stale gradients become zero, and all are summed."""
        with autograd.pause():
            self._ready()
            self._refuse_half("allreduce_grads()")
            self._silence(ignore_stale_grad=True)
            self._allreduce_grads()

    def update(self, batch_size: float, ignore_stale_grad: bool = False) -> None:
        """The second half of `step`, with gradients that are summed, and changed if need be."""
        with autograd.pause():
            self._begin(batch_size)
            self._refuse_half("update()")
            self._stale = self._freshness.look()
            self._uneven = self._uneven or bool(self._stale.parameters)
            if not ignore_stale_grad:
                self._freshness.require(self._stale)
            self._update()
            self._used()

    def _begin(self, batch_size: float) -> None:
        _check_batch_size(batch_size)
        self._optimizer.rescale_grad = self._scale / batch_size
        self._ready()

    def _ready(self) -> None:
        if self._params_to_init or not self._kv_initialized:
            self.prepare()
        self._check_still_there()
        self._check_amp()

    def _check_still_there(self) -> None:
        """Raise RunError if gradients have left the buckets, or should not share them any more."""
        still_frozen = all(param._grad is None for param in self._frozen)
        if not (still_frozen and all(bucket.intact() for bucket in self.buckets)):
            raise RunError(
                "parameters were initialised, cast, given another grad_req, lr_mult or wd_mult, "
                "or to another BucketedTrainer after they moved into buckets: "
                "make a new BucketedTrainer, with a new kvstore, for them"
            )

    def _refuse_half(self, what: str) -> None:
        if self._update_on_kvstore:
            raise RunError(
                f"{what}: kvstore {self._kvstore.type!r} sums and updates at once: "
                "call step(), or choose kvstore='sharded'"
            )

    def _silence(self, ignore_stale_grad: bool) -> None:
        """Let stale gradients count as zero, and parameters without a fresh one stay."""
        stale = self._freshness.look()
        if self._distributed and ignore_stale_grad:
            stale = self._freshness.of_a_process(stale, self._kvstore.type)
        self._stale, self._uneven = stale, self._uneven or bool(stale.parameters)
        if not ignore_stale_grad:
            self._freshness.require(stale)
        for device, params in enumerate(stale.on_device):
            for bucket in self.buckets:
                bucket.zero_grad(device, params)

    def _used(self) -> None:
        for grad in self._repeats:
            grad[:] = 0
        self._freshness.reset()
        self._stale = NOTHING

    def zero_grad(self, devices: Sequence[int]) -> None:
        """Set the gradients of these devices (positions in the list of contexts) to zero."""
        for bucket in self.buckets:
            for device in devices:
                bucket.grads[device][:] = 0

    def meet(self) -> None:
        """Wait for the other processes where they do not wait for each other in each step.

        All devices of all processes then have the servers' weights; nothing else changes.
        """
        if self._on_servers and self._on_store is not None:
            self._on_store.meet()

    def save_states(self, fname: str) -> None:
        """Write the optimizer's states by parameter name, each whole.

        They can be loaded under any store, bucket size and number of devices. The format:
        `gluonlab.optimizers.optimizer_states`. gluon.Trainer cannot read it, but what
        `gluonlab.bucketed_trainer.gluon_export.export_gluon_states` writes. Raises OutputError, and
        leaves an old file then.
        """
        self._refuse_states()
        save(fname, gather_states(self))

    def load_states(self, fname: str) -> None:
        """Go on from what `save_states`, or gluon.Trainer's own, wrote; at any time.

        As gluon.Trainer does it, this sets the counts of updates and, where no schedule does, the
        learning rate; call ``set_learning_rate`` afterwards for another. Momenta, weight decay and
        the schedule are those that this trainer was made with, and the schedule goes on where the
        saved one stopped. Parameters are found by name, or, if names differ, as
        `gluonlab.optimizers.optimizer_states` says; those of gluon.Trainer's files by their
        positions. Of such a file, a pickle, nothing is run
        (`gluonlab.optimizers.gluon_state_files`). Raises KVStoreError, and changes nothing, for a
        file of anything else, of another optimizer or another network.
        """
        self._refuse_states()
        load(self, fname)

    def _refuse_states(self) -> None:
        if self._on_servers:
            raise RunError(
                "the optimizer's states are on the servers, which do not give them away: "
                "update on the workers to save or load them"
            )

    def _allreduce_grads(self) -> None:
        self._gaps.before_sum()
        if self._on_store is not None:
            self._on_store.run(self._optimizer, self._stale, self._uneven)
        elif self._sums:
            for call in self._calls:
                call.run()

    def _update(self, ignore_stale_grad: bool = False) -> None:
        if self._update_on_kvstore or self._amp_overflows():
            return  # pushpull has done it, or nobody does
        if self._summed is not None and not self._summed.prepare(self._optimizer):
            return
        if self._updates is None:
            self._updates = self._make_updates()
        self._updates.update(self._stale, self._uneven)

    def _make_updates(self) -> "Union[BucketUpdates, ParameterUpdates]":
        if not self._by_bucket:
            return ParameterUpdates(self._params, self._updaters)
        return BucketUpdates(self.buckets, self._optimizer, self._updaters)

    # mxnet.contrib.amp's init_trainer sets a loss scaler as an attribute, at which gluon.Trainer
    # looks in each update: steps that overflowed are left out.

    def _check_amp(self) -> None:
        """Raise RunError if the store has updated before anybody could look at the gradients.

        And if it keeps, for the next step, a part of those that are left out.
        """
        store = self._kvstore
        if getattr(self, "_amp_loss_scaler", None) is None:
            return
        if isinstance(store, GroupKVStore) and store.keeps_rest:
            raise RunError(
                f"amp.init_trainer: kvstore {store.type!r} with compress {store.compress} would "
                "keep a part of the steps that amp leaves out: leave compress out"
            )
        if self._update_on_kvstore:
            raise RunError(
                f"amp.init_trainer: kvstore {store.type!r} updates before amp can look for "
                "an overflow: give the trainer loss_scale=LossScale(), or choose kvstore='sharded'"
            )

    def _amp_overflows(self) -> bool:
        """Whether amp leaves this step out; it changes its scale of the loss accordingly."""
        scaler = getattr(self, "_amp_loss_scaler", None)
        return scaler is not None and bool(scaler.has_overflow(self._params))

    # The buckets, and the store's part in them

    def _init_kvstore(self) -> None:
        """Called by the constructor, and after ``Parameter.set_data`` if the store updates."""
        store: Any = self._store
        self._kvstore = store
        self._on_servers = isinstance(store, GroupKVStore) and store.on_servers
        shards = is_sharded(store) and len(self._contexts) > 1
        self._update_on_kvstore = shards or self._on_servers
        self._distributed = sums_over_processes(store)
        if store is not None and self._compression_params:
            store.set_gradient_compression(self._compression_params)
        if shards:
            store.set_optimizer(self._optimizer)
        self._kv_initialized = True

    def _init_params(self) -> None:
        """Called before the first step, and after `_reset_kvstore`: the buckets stay, then."""
        trainer_arguments.check_shapes(self._params)
        if not self.buckets:
            note_shapes(self._params)
            self._make_buckets()
        if self._sums:
            frozen = self._frozen if self._distributed else ()
            broadcast_parameters(self._kvstore, self._first_key, self.buckets, frozen)
        if self._on_servers and self._on_store is None:
            from gluonlab.bucketed_trainer.server_updates import UpdateOnServers

            self._on_store = UpdateOnServers(
                self._kvstore, self.buckets, self.bucket_bytes, self._optimizer, self._by_bucket
            )
        self._params_to_init: List[Parameter] = []
        put_awaited(self)

    def _make_buckets(self) -> None:
        trainable = [param for param in self._params if has_gradient(param)]
        self._frozen = [param for param in self._params if param.grad_req == "null"]
        blocks, most = live_blocks(), self.bucket_bytes
        if not self._sized:
            most = spread(trainable, most, self._contexts, self._store)
        on_gpus = self._contexts[0].device_type == "gpu"
        groups = group(trainable[::-1], most, params_of_convolutions(blocks), on_gpus)
        self.buckets = [Bucket(params) for params in groups]
        forget_compiled((param for params in groups if len(params) > 1 for param in params), blocks)
        self._freshness = Freshness(trainable, self._contexts)
        self._first_key = new_keys(self._kvstore, len(self.buckets) + len(self._frozen))
        if not self._on_servers:
            self._calls = calls_of(
                self._kvstore, self.buckets, self.bucket_bytes, self._update_on_kvstore,
                self._first_key,
            )  # fmt: skip
        # a bucket is looked at as a whole, with what lies between its parameters
        looks = self._postprocess.is_needed
        # in 2 bits what is not finite spreads to its neighbours
        looks = looks or (isinstance(self._store, GroupKVStore) and self._store.keeps_rest)
        self._gaps = Gaps(self.buckets if looks else ())
        summed = SummedGradients(self._postprocess, self._gaps)
        if self._on_servers:
            pass  # once all processes have the same weights
        elif self._update_on_kvstore:
            ctxs = self._contexts
            self._on_store = UpdateOnStore(self._kvstore, self._calls, self.buckets, ctxs, summed)
        else:
            grads = [list(of_device) for of_device in zip(*(each.grads for each in self.buckets))]
            self._summed = (
                summed.add(grads, self._contexts) if self._postprocess.is_needed else None
            )
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


def _check_batch_size(batch_size: Any) -> None:
    """Raise ConfigError for what gradients cannot be divided by."""
    if not (isinstance(batch_size, Real) and 0 < float(batch_size) < math.inf):
        shown = " ".join(repr(batch_size).split())  # an array's has several lines
        raise ConfigError(
            f"batch_size {shown}: give a number above 0: the images of this step on all devices"
        )
