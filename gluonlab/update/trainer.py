"""BucketedTrainer: a gluon.Trainer that moves and updates its parameters in a few large buffers.

gluon.Trainer makes one kvstore call and one optimizer call per parameter, each of which costs more
than the transfer of a small gradient. Here the parameters of a bucket lie side by side in one
buffer per device, so one call serves them all; each parameter's own array becomes a view into the
buffer, with which Gluon goes on working (`gluonlab.update.bucket`).
"""

from __future__ import annotations

from typing import Callable, Sequence, Tuple, Union

from mxnet import autograd

from gluonlab.errors import RunError
from gluonlab.optimizers.states.states import save
from gluonlab.update import amp, arguments
from gluonlab.update.fresh import NOTHING
from gluonlab.update.in_buckets import TrainerInBuckets
from gluonlab.update.on_servers import UpdateOnServers
from gluonlab.update.replica_updates import BucketUpdates, ParameterUpdates
from gluonlab.update.states import gather_states, load


class BucketedTrainer(TrainerInBuckets):
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
        arguments.check_batch_size(batch_size)
        self._optimizer.rescale_grad = self._scale / batch_size
        self._ready()

    def _ready(self) -> None:
        if self._params_to_init or not self._kv_initialized:
            self.prepare()
        arguments.check_still_there(self.buckets, self._frozen)
        amp.check(self, self._update_on_kvstore)

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
        if isinstance(self._on_store, UpdateOnServers):
            self._on_store.meet()

    def save_states(self, fname: str) -> None:
        """Write the optimizer's states by parameter name, each whole.

        They can be loaded under any store, bucket size and number of devices. The format:
        `gluonlab.optimizers.states.states`. gluon.Trainer cannot read it, but what
        `gluonlab.update.gluon_export.export_gluon_states` writes. Raises OutputError, and leaves an
        old file then.
        """
        self._refuse_states()
        save(fname, gather_states(self))

    def load_states(self, fname: str) -> None:
        """Go on from what `save_states`, or gluon.Trainer's own, wrote; at any time.

        As gluon.Trainer does it, this sets the counts of updates and, where no schedule does, the
        learning rate; call ``set_learning_rate`` afterwards for another. Momenta, weight decay and
        the schedule are those that this trainer was made with, and the schedule goes on where the
        saved one stopped. Parameters are found by name, or, if names differ, as
        `gluonlab.optimizers.states.matching` says; those of gluon.Trainer's files by their
        positions. Of such a file, a pickle, nothing is run
        (`gluonlab.optimizers.states.gluon_pickle`). Raises KVStoreError, and changes nothing, for a
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
        if self._update_on_kvstore or amp.overflows(self):
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
