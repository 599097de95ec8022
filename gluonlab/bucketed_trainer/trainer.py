"""BucketedTrainer: a gluon.Trainer that keeps weights and gradients in a few large buffers.

gluon.Trainer makes one kvstore call and one optimizer call for each parameter, which takes longer
than transferring a small gradient. Here the parameters of a bucket share one buffer on each device.
Each parameter's array becomes a view of the buffer. A step has four parts:

1. `stale_gradients` finds gradients that backward has not written, and `step` sets them to zero.
   `gluonlab.training` does not need this part, because compiled graphs write every gradient.
2. The kvstore sums the gradients of all devices.
3. `gradient_postprocessing` divides the sums by the loss scale and clips their norm.
4. The optimizer updates the parameters on each device (`update_keys`). Alternatively, the servers
   of a process group perform the update (`server_updates`), or "sharded-optimizer" does parts 2 to
   4.

`sum_and_update` prepares the calls of parts 2 and 4.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from mxnet import autograd, gluon, nd
from mxnet.gluon import Parameter

from gluonlab.bucketed_trainer import trainer_arguments
from gluonlab.bucketed_trainer.buckets import (
    Bucket,
    BucketPadding,
    convolution_parameters,
    default_bucket_bytes,
    group_parameters,
    invalidate_cached_ops,
    limit_bucket_bytes,
)
from gluonlab.bucketed_trainer.gradient_postprocessing import GradientPostprocessor
from gluonlab.bucketed_trainer.loss_scale import LossScale
from gluonlab.bucketed_trainer.stale_gradients import NO_STALE_GRADIENTS, StaleGradients, StaleGradientTracker
from gluonlab.bucketed_trainer.sum_and_update import (
    KVStoreCall,
    ParameterUpdater,
    ShardedUpdater,
    broadcast_parameters,
    has_gradient,
    make_key_updates,
    make_kvstore_calls,
)
from gluonlab.bucketed_trainer.trainer_states import gather_states, load_pending_states, load_states_file
from gluonlab.config.option_hints import check_argument_names
from gluonlab.devices import check_distinct
from gluonlab.engine.mxnet_fixes import live_blocks
from gluonlab.errors import ConfigError, RunError
from gluonlab.kvstores.allreduce_store import is_sharded
from gluonlab.kvstores.mxnet_stores import allocate_keys, sums_over_processes
from gluonlab.kvstores.process_group_store import GroupKVStore
from gluonlab.models.infer_shapes import set_missing_shapes
from gluonlab.optimizers.optimizer_registry import is_element_wise
from gluonlab.optimizers.optimizer_states import States, write_states
from gluonlab.optimizers.optimizer_step import KeyUpdate, update_keys
from gluonlab.optimizers.update_history import SchedulerRewind
from gluonlab.renamed import RenamedMember


class BucketedTrainer(gluon.Trainer):
    """A ``gluon.Trainer`` that reduces gradients and updates parameters in buckets.

    The class has the interface of gluon.Trainer. On one device, its updates are bit-identical to
    those of gluon.Trainer.

    **Buckets.** The first bucket contains the last layers, so the kvstore can reduce their
    gradients during the backward pass. Do not change the arrays or multipliers of a parameter after
    creating the trainer: the next step would raise RunError. An optimizer that is not element-wise
    updates one parameter at a time.

    **Stale gradients.** A gradient that backward has not written since the last step is stale, and
    counts as zero. A device without a shard is idle, and all its gradients count as zero. If a
    gradient is stale for another reason, `step` raises a UserWarning with the parameter's name and
    changes nothing. With ``ignore_stale_grad=True``, all replicas get the same update, and a
    parameter whose gradient is stale on all devices stays unchanged. In such cases, gluon.Trainer
    adds old gradients again or lets its replicas diverge.

    **Gradient accumulation.** With ``grad_req="add"``, the first device keeps the sum of the
    gradients until you set it to zero. With "sharded-optimizer", each device keeps its part of the
    sum.

    Args:
        params: The parameters, as for gluon.Trainer.
        optimizer: The name or instance of an optimizer, as for gluon.Trainer. "sgd" is MXNet's SGD.
            For PyTorch's momentum, pass `gluonlab.optimizers.SGD`.
        optimizer_params: The arguments of an optimizer that you pass by name.
        kvstore: The name or instance of a kvstore, such as ``mx.kv.create("dist_sync")``. The
            kvstore reduces the gradients, and the optimizer runs on every device. With one device,
            the kvstore may be None. "sharded-optimizer" shards the optimizer states (ZeRO-1).
        compression_params: Gradient compression, such as ``{"type": "2bit", "threshold": 0.5}``.
        update_on_kvstore: Accepted for compatibility with gluon.Trainer, but without effect.
        bucket_bytes: The largest size of a bucket, in bytes. The default is 4 MiB on CPU devices
            and 25 MiB on GPUs. With kvstore "device", GPUs may use smaller buckets.
        clip_norm: The largest norm of the gradient, after summing over all devices and dividing by
            the batch size.
        loss_scale: The loss scale for mixed precision. Gradients are divided by
            ``loss_scale.value``. If a gradient is not finite, the step changes nothing except the
            learning rate schedule.

    Raises:
        ConfigError: A setting is invalid, a parameter occurs twice, or replicas would diverge with
            the optimizer.
        DeviceError: A parameter has two replicas on the same device.
        KVStoreError: The kvstore is unknown, cannot keep replicas equal, or does not support a
            setting. This error is also raised if a gradient is sparse, or if ``clip_norm`` or
            ``loss_scale`` is set and a gradient is not float32.
    """

    @check_argument_names("BucketedTrainer", trainer_arguments.ARGUMENT_HINTS)
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
        with trainer_arguments.restore_owners_on_error(params, optimizer):
            trainer_arguments.check_arguments(params, optimizer, optimizer_params, bucket_bytes)
            self._postprocessor = GradientPostprocessor(clip_norm, loss_scale)
            with trainer_arguments.explain_unknown_params(optimizer, optimizer_params):
                super().__init__(params, optimizer, optimizer_params, kvstore=kvstore)
            check_distinct(self._contexts)
            devices = len(self._contexts)
            set_missing_shapes(self._params)
            trainer_arguments.check_dense(self._params)
            self._postprocessor.check_parameters(self._params)
            # gluon.Trainer resets self._kvstore; _init_kvstore sets it to this store again
            self._chosen_kvstore = trainer_arguments.resolve_kvstore(kvstore, self._contexts)
            trainer_arguments.check_update_on_kvstore(self._chosen_kvstore, self._optimizer, update_on_kvstore, devices)
            self._compression_params = trainer_arguments.resolve_compression(
                self._chosen_kvstore, compression_params, devices, loss_scale
            )
            self.loss_scale = loss_scale
            default = default_bucket_bytes(self._contexts)
            self.bucket_bytes = default if bucket_bytes is None else bucket_bytes
            self._bucket_bytes_given = bucket_bytes is not None
            self.buckets: List[Bucket] = []
            self._frozen: List[Parameter] = []
            self._kvstore_calls: List[KVStoreCall] = []
            # Either the devices update after the allreduce, or the store (or its servers) does both
            self._key_updates: List[KeyUpdate] = []  # one for each bucket, made in the first update
            self._parameter_updater: Optional[ParameterUpdater] = None  # for other optimizers
            self._store_updater: Any = None  # ShardedUpdater or ServerUpdater
            self._duplicate_sums: List[nd.NDArray] = []  # to be zeroed under grad_req "add"
            self._stale_gradients = NO_STALE_GRADIENTS
            self._counts_differ = False  # whether some parameters had more updates than others
            self._lr_schedule = SchedulerRewind(self._optimizer)
            self._pending_states: Optional[States] = None  # loaded before there were buckets
            self._init_kvstore()
            if not trainer_arguments.names_without_shape(self._params):
                self.prepare()

    def prepare(self) -> None:
        """Create the buckets now instead of in the first step.

        Raises:
            RunError: If the shape of a parameter is unknown.
        """
        if not self._kv_initialized:
            self._init_kvstore()
        if self._params_to_init:
            self._init_params()

    def step(self, batch_size: float, ignore_stale_grad: bool = False) -> None:
        """Reduce the gradients, and update every replica with the sum divided by ``batch_size``.

        Args:
            batch_size: The number of images on all devices.
            ignore_stale_grad: Whether to leave parameters unchanged if their gradient is stale,
                instead of raising UserWarning.

        Raises:
            UserWarning: A parameter's gradient is stale, and ``ignore_stale_grad`` is false.
            ConfigError: The batch size is invalid.
        """
        with autograd.pause():
            self._set_batch_size(batch_size)
            self._zero_stale_grads(ignore_stale_grad)
            self._allreduce_grads()
            self._update()
            self._mark_grads_used()

    def apply(self, batch_size: float) -> None:
        """Sum gradients and update parameters like `step`, but treat all gradients as fresh.

        Use this method for gradients that an executor has written, because executors do not mark
        gradients as fresh.

        Args:
            batch_size: Number of images on all devices.
        """
        if autograd.is_recording():
            with autograd.pause():  # which costs some microseconds
                self.apply(batch_size)
            return
        for _, queue in self.start_step(batch_size):
            queue()

    def start_step(self, batch_size: float) -> "Tuple[Tuple[str, Callable[[], None]], ...]":
        """Set the batch size, and return the functions that sum gradients and update parameters.

        Args:
            batch_size: Number of images on all devices.

        Returns:
            ("allreduce", function) and ("update", function). Call both functions in this order,
            outside autograd.record.
        """
        self._set_batch_size(batch_size)
        return ("allreduce", self._allreduce_grads), ("update", self._update)

    phases = RenamedMember("start_step")

    def _set_batch_size(self, batch_size: float) -> None:
        """Set the optimizer's ``rescale_grad``, and check that the trainer can run a step."""
        _check_batch_size(batch_size)
        # _scale is gluon.Trainer's: the rescale_grad that the optimizer was created with
        self._optimizer.rescale_grad = self._scale / batch_size
        self._prepare_and_check()

    def _prepare_and_check(self) -> None:
        """Create the buckets if needed.

        Raise RunError if changed parameters or amp prevent a step.
        """
        if self._params_to_init or not self._kv_initialized:
            self.prepare()
        self._check_buckets_intact()
        self._check_amp()

    def _check_buckets_intact(self) -> None:
        """Raise RunError if parameters no longer have the arrays or multipliers of a bucket."""
        still_frozen = all(param._grad is None for param in self._frozen)
        if not (still_frozen and all(bucket.is_intact() for bucket in self.buckets)):
            raise RunError(
                "parameters were changed (by initialize, cast, grad_req, lr_mult, wd_mult or another "
                "BucketedTrainer) after the trainer put them into buckets: create a new BucketedTrainer "
                "with a new kvstore"
            )

    def _zero_stale_grads(self, ignore_stale_grad: bool) -> None:
        """Set stale gradients to zero.

        Parameters whose gradients are stale on all devices are not updated.
        """
        stale = self._stale_tracker.find_stale()
        if self._distributed and ignore_stale_grad:
            stale = self._stale_tracker.stale_to_ignore_in_group(stale, self._kvstore.type)
        self._record_stale_gradients(stale, ignore_stale_grad)
        for device, params in enumerate(stale.on_device):
            for bucket in self.buckets:
                bucket.zero_grad(device, params)

    def _record_stale_gradients(self, stale: StaleGradients, ignore_stale_grad: bool) -> None:
        """Store the stale gradients for the update.

        Raise UserWarning unless stale gradients are ignored.
        """
        self._stale_gradients = stale
        self._counts_differ = self._counts_differ or bool(stale.on_all_devices)
        if not ignore_stale_grad:
            self._stale_tracker.check_fresh(stale)

    def _allreduce_grads(self) -> None:
        """Queue the sums of all gradients.

        If the store updates parameters, queue the updates as well.
        """
        self._padding.clear_before_sum()
        if self._store_updater is not None:
            self._store_updater.sum_and_update(self._optimizer, self._stale_gradients, self._counts_differ)
        elif self._needs_allreduce:
            for call in self._kvstore_calls:
                call.run()  # what the store's prepare_pushpull returned, such as MXNetKVStore's

    def _update(self, ignore_stale_grad: bool = False) -> None:
        """Unscale and clip the gradients, and update the parameters.

        Do nothing if the store has already updated the parameters, or if the step is skipped.

        ``ignore_stale_grad`` is unused, and exists only for compatibility with gluon.Trainer.
        """
        if self._update_on_kvstore or self._amp_skips_step():
            return
        if self._postprocessor.is_needed:
            finite = self._postprocessor.unscale_and_clip([self._optimizer], self._padding)
            if not finite:
                return
        stale = self._stale_gradients.on_all_devices
        if self._parameter_updater is not None:
            self._parameter_updater.update(stale, self._counts_differ)
            return
        if not self._key_updates:
            self._key_updates = make_key_updates(self.buckets, self._optimizer, self._updaters)
        ranges = {key: bucket.element_ranges(stale) for key, bucket in enumerate(self.buckets)} if stale else {}
        update_keys(self._optimizer, self._key_updates, ranges, self._counts_differ)

    def _mark_grads_used(self) -> None:
        """Mark all gradients as stale. With grad_req "add", keep each sum on one device only."""
        for grad in self._duplicate_sums:
            grad[:] = 0
        self._stale_tracker.mark_used()
        self._stale_gradients = NO_STALE_GRADIENTS

    def allreduce_grads(self) -> None:
        """Run the first half of `step`: set stale gradients to zero, and sum all gradients."""
        with autograd.pause():
            self._prepare_and_check()
            self._check_separate_phases("allreduce_grads()")
            self._zero_stale_grads(ignore_stale_grad=True)
            self._allreduce_grads()

    def update(self, batch_size: float, ignore_stale_grad: bool = False) -> None:
        """Run the second half of `step` on gradients that `allreduce_grads` has summed.

        Args:
            batch_size: Number of images on all devices.
            ignore_stale_grad: Whether to leave parameters with a stale gradient unchanged.
        """
        with autograd.pause():
            self._set_batch_size(batch_size)
            self._check_separate_phases("update()")
            self._record_stale_gradients(self._stale_tracker.find_stale(), ignore_stale_grad)
            self._update()
            self._mark_grads_used()

    def _check_separate_phases(self, method: str) -> None:
        """Raise RunError if the store cannot sum gradients without updating parameters.

        ``method``: the method's name in the error message.
        """
        if self._update_on_kvstore:
            raise RunError(
                f"{method}: kvstore {self._kvstore.type!r} sums gradients and updates parameters in one "
                "operation: call step(), or use kvstore='sharded'"
            )

    @property
    def clip_norm(self) -> Optional[float]:
        """The upper limit of the gradient's global norm, or None for no limit."""
        return self._postprocessor.clip_norm

    def zero_grad(self, devices: Sequence[int]) -> None:
        """Set the gradients of some devices to zero.

        Args:
            devices: Positions in the list of contexts.
        """
        for bucket in self.buckets:
            for device in devices:
                bucket.grads[device][:] = 0

    def synchronize(self) -> None:
        """Wait for the other processes, if they train asynchronously.

        Afterwards, all devices of all processes have the servers' weights. In synchronous training,
        nothing changes.
        """
        if self._updates_on_servers and self._store_updater is not None:
            self._store_updater.synchronize()

    meet = RenamedMember("synchronize")

    def save_states(self, fname: str) -> None:
        """Write the optimizer states to a file, in which parameters are identified by name.

        The file can be loaded with any kvstore, bucket size and number of devices. gluon.Trainer
        cannot read this file. To write a file for gluon.Trainer, use
        `gluonlab.bucketed_trainer.gluon_export.export_gluon_states`.

        Args:
            fname: The path of the file.

        Raises:
            OutputError: The file cannot be written. An existing file then stays unchanged.
        """
        self._check_states_are_local()
        write_states(fname, gather_states(self))

    def load_states(self, fname: str) -> None:
        """Load optimizer states that `save_states` or gluon.Trainer wrote.

        Call this method before the first step or during training. Loading also restores the update
        counts, and the learning rate or the position in its schedule. The optimizer's other
        settings are not restored.

        Parameters are matched by name, or by position in files of gluon.Trainer. gluon.Trainer's
        files are pickles, but no code in them is executed.

        Args:
            fname: The path of the file.

        Raises:
            KVStoreError: The file has another format, or belongs to another optimizer or model.
                Nothing changes.
        """
        self._check_states_are_local()
        load_states_file(self, fname)

    def _check_states_are_local(self) -> None:
        """Raise RunError if the optimizer's states are on servers instead of in this process."""
        if self._updates_on_servers:
            raise RunError(
                "optimizer states cannot be saved or loaded if the servers update the parameters: omit "
                "update_on_servers"
            )

    # mxnet.contrib.amp's init_trainer sets a loss scaler as an attribute. gluon.Trainer reads it in
    # each update, and skips steps that overflowed.

    def _check_amp(self) -> None:
        """Raise RunError if the store updates before amp can check for an overflow.

        Also raise RunError if the store keeps part of a skipped gradient for the next step.
        """
        store = self._kvstore
        if getattr(self, "_amp_loss_scaler", None) is None:
            return
        if isinstance(store, GroupKVStore) and store.keeps_residual:
            raise RunError(
                f"amp.init_trainer: kvstore {store.type!r} with compress={store.compress} would keep "
                "residuals of the steps that amp skips: omit compress"
            )
        if self._update_on_kvstore:
            raise RunError(
                f"amp.init_trainer: kvstore {store.type!r} updates the parameters before amp can "
                "check for an overflow: pass loss_scale=LossScale() to the trainer, or use kvstore='sharded'"
            )

    def _amp_skips_step(self) -> bool:
        """Return whether amp skips this step. In that case, amp also changes its loss scale."""
        scaler = getattr(self, "_amp_loss_scaler", None)
        return scaler is not None and bool(scaler.has_overflow(self._params))

    # Buckets and kvstore. The overridden methods and _kvstore, _update_on_kvstore, _distributed,
    # _kv_initialized and _params_to_init are gluon.Trainer's.

    def _init_kvstore(self) -> None:
        """Set up the kvstore.

        If the store updates parameters, gluon calls this method again after ``set_data``.
        """
        store: Any = self._chosen_kvstore
        self._kvstore = store
        self._updates_on_servers = isinstance(store, GroupKVStore) and store.on_servers
        shards = is_sharded(store) and len(self._contexts) > 1
        self._update_on_kvstore = shards or self._updates_on_servers
        self._distributed = sums_over_processes(store)
        if store is not None and self._compression_params:
            store.set_gradient_compression(self._compression_params)
        if shards:
            store.set_optimizer(self._optimizer)
        self._kv_initialized = True

    def _init_params(self) -> None:
        """Create the buckets, unless they exist, and broadcast the parameters."""
        trainer_arguments.check_shapes(self._params)
        if not self.buckets:
            set_missing_shapes(self._params)
            self._make_buckets()
        if self._needs_allreduce:
            frozen = self._frozen if self._distributed else ()
            broadcast_parameters(self._kvstore, self._first_key, self.buckets, frozen)
        if self._updates_on_servers and self._store_updater is None:
            from gluonlab.bucketed_trainer.server_updates import ServerUpdater

            # only now, because all processes must have the same weights
            self._store_updater = ServerUpdater(
                self._kvstore, self.buckets, self.bucket_bytes, self._optimizer, self._updates_buckets
            )
        self._params_to_init: List[Parameter] = []
        load_pending_states(self)

    def _make_buckets(self) -> None:
        """Move the parameters into buckets, and prepare all calls of a step."""
        trainable = [param for param in self._params if has_gradient(param)]
        self._frozen = [param for param in self._params if param.grad_req == "null"]
        blocks, bucket_bytes = live_blocks(), self.bucket_bytes
        if not self._bucket_bytes_given:
            bucket_bytes = limit_bucket_bytes(trainable, bucket_bytes, self._contexts, self._chosen_kvstore)
        on_gpus = self._contexts[0].device_type == "gpu"
        groups = group_parameters(trainable[::-1], bucket_bytes, convolution_parameters(blocks), on_gpus)
        self.buckets = [Bucket(params) for params in groups]
        moved = (param for params in groups if len(params) > 1 for param in params)
        invalidate_cached_ops(moved, blocks)
        self._stale_tracker = StaleGradientTracker(trainable, self._contexts)
        self._first_key = allocate_keys(self._kvstore, len(self.buckets) + len(self._frozen))
        if not self._updates_on_servers:
            self._kvstore_calls = make_kvstore_calls(
                self._kvstore, self.buckets, self.bucket_bytes, self._update_on_kvstore, self._first_key
            )
        # The norm and the check for overflows read a whole bucket, with its padding. Compression to
        # 2 bits spreads values that are not finite to their neighbors.
        reads_padding = self._postprocessor.is_needed or (
            isinstance(self._chosen_kvstore, GroupKVStore) and self._chosen_kvstore.keeps_residual
        )
        self._padding = BucketPadding(self.buckets if reads_padding else ())
        if self._update_on_kvstore and not self._updates_on_servers:
            self._store_updater = ShardedUpdater(
                self._kvstore, self._kvstore_calls, self.buckets, self._contexts, self._postprocessor, self._padding
            )
        elif not self._updates_on_servers:
            grads = list(map(list, zip(*(bucket.grads for bucket in self.buckets))))
            self._postprocessor.add_gradients(grads, self._contexts)
        if self._needs_allreduce and not self._update_on_kvstore:
            # Under grad_req "add" only one device keeps the sum, so that the next sum adds it once.
            keeping_devices = 1 if not self._distributed or self._kvstore.rank == 0 else 0
            self._duplicate_sums = [
                grad for bucket in self.buckets if bucket.adds_gradients for grad in bucket.grads[keeping_devices:]
            ]
        if self._updates_buckets:  # one key, and so one state, per bucket
            self._optimizer.param_dict = dict(enumerate(self.buckets))
        else:
            self._parameter_updater = ParameterUpdater(self._params, self._updaters)

    @property
    def _needs_allreduce(self) -> bool:
        """False for a single device, whose gradient is already the sum."""
        return self._kvstore is not None and (len(self._contexts) > 1 or self._distributed)

    @property
    def _updates_buckets(self) -> bool:
        """True if the optimizer can update a whole bucket in one call."""
        return is_element_wise(type(self._optimizer))


def _check_batch_size(batch_size: Any) -> None:
    """Raise ConfigError for a batch size by which gradients cannot be divided."""
    if not (isinstance(batch_size, Real) and 0 < float(batch_size) < math.inf):
        shown = " ".join(repr(batch_size).split())  # an array's has several lines
        raise ConfigError(
            f"batch_size={shown}: pass the number of images in this step on all devices, which must be above 0"
        )
