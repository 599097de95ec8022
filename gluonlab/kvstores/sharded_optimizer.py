"""A kvstore in which every device updates its own part of the weights (a sharded optimizer).

A reduce-scatter sums the gradients. Each device updates the part of the weights that it owns, and
keeps the optimizer state only for this part. An all-gather then distributes the weights. Together,
the reduce-scatter and the all-gather move as many bytes as an allreduce. But each weight is
updated, and its state stored, on one device instead of on all devices (Rajbhandari, Rasley, Ruwase,
He, "ZeRO: memory optimizations toward training trillion parameter models", 2020, section 5.1).
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union
from weakref import WeakKeyDictionary

import mxnet as mx
from mxnet import autograd, nd

from gluonlab.collectives.algorithms import HALVES
from gluonlab.collectives.chunk_layout import owned_parts
from gluonlab.collectives.schedule_executor import Executor, OutOfPlaceReduceScatter, OwnedSum
from gluonlab.engine.fast_invoke import arrays_share_memory, flat_view
from gluonlab.engine.nd_and_np_arrays import nd_semantics
from gluonlab.errors import KVStoreError
from gluonlab.kvstores.allreduce_store import (
    SHARDED,
    Keys,
    PushPullEntry,
    as_list,
    format_array,
    format_keys,
    have_same_arrays,
)
from gluonlab.kvstores.mxnet_stores import StoreTrainerRef, check_optimizer, no_optimizer_error
from gluonlab.kvstores.schedule_stores import ScheduleKVStore
from gluonlab.optimizers.optimizer_registry import ELEMENT_WISE, OPTIMIZERS, is_element_wise
from gluonlab.optimizers.optimizer_states import (
    KeyState,
    States,
    StateTarget,
    fit_states,
    max_states_bytes,
    optimizer_class_name,
    read_states,
    resume_optimizer,
    state_targets,
    states_to_arrays,
    write_states,
)
from gluonlab.optimizers.optimizer_step import ElementRange, KeyPart, KeyUpdate, update_keys
from gluonlab.optimizers.update_history import (
    SchedulerRewind,
    read_key_histories,
    read_scalars,
    set_key_histories,
    update_history,
)


class ShardedKVStore(ScheduleKVStore):
    """A store that sums gradients and updates weights: ``pushpull(key, gradients, out=weights)``.

    Example: ``gluon.Trainer(..., kvstore=ShardedKVStore())``. ``name``: an algorithm that consists
    of a reduce-scatter and an all-gather. Without an optimizer the store only sums arrays, like
    `ScheduleKVStore`.
    """

    def __init__(self, name: str = "sharded", topology: Optional[str] = None) -> None:
        if name not in HALVES:
            raise KVStoreError(
                f"the algorithm {name!r} cannot be combined with optimizer-state sharding: choose {', '.join(HALVES)}"
            )
        super().__init__(name, topology=topology)
        self.optimizer: Optional[mx.optimizer.Optimizer] = None  # set by `set_optimizer`
        self._updates: Dict[Keys, ShardedUpdate] = {}
        self._loaded: Dict[Any, KeyState] = {}  # states of keys that were not updated since loading
        self._trainer_of_store = StoreTrainerRef(self)
        # the states of former optimizers, and the schedules of all optimizers
        self._states_by_optimizer: "WeakKeyDictionary[Any, Dict[Any, KeyState]]" = WeakKeyDictionary()
        self._schedules: "WeakKeyDictionary[Any, SchedulerRewind]" = WeakKeyDictionary()

    @staticmethod
    def is_capable(capability: str) -> bool:
        return capability.lower() == "optimizer"

    @property
    def type(self) -> str:
        return SHARDED

    @property
    def transfers_run(self) -> int:
        update_transfers = sum(update.transfers_run for update in self._updates.values())
        return super().transfers_run + update_transfers

    def set_optimizer(self, optimizer: mx.optimizer.Optimizer) -> None:
        """Use this optimizer from now on, with its previous states or, if it has none, new states.

        The states of the previous optimizer are kept until that optimizer is set again. Raises
        KVStoreError for an optimizer that is not element-wise.
        """
        check_optimizer(self.type, optimizer)
        check_element_wise(type(optimizer))
        self._trainer_of_store.assign(optimizer)
        if self.optimizer is not None and self.optimizer is not optimizer:
            self._states_by_optimizer[self.optimizer] = {
                key: self.get_key_state(key) for key in self._parameters_by_key()
            }
            self.set_key_states(self._states_by_optimizer.pop(optimizer, {}))
        self.optimizer = optimizer
        self._schedules.setdefault(optimizer, SchedulerRewind(optimizer))

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Sum the gradients ``value`` and update the weights ``out`` on each device.

        The gradients are not changed, so each device needs memory for the sums that it computes.
        With the algorithm "sharded", a device computes only the sums of its own part. With "ring",
        it computes the sums of all parts except one. `update_overwriting_gradients` does not need
        this memory. Without ``out``, or before `set_optimizer`, the call only sums the gradients.
        Raises KVStoreError, and changes nothing, if the arrays cannot be summed.
        """
        if out is None or self.optimizer is None:
            super().pushpull(key, value, out, priority)
            return
        self._run_update(self._find_or_make_update(key, value, out, keep=True), priority)

    def update_overwriting_gradients(self, key: Any, grads: Any, weights: Any, priority: int = 0) -> None:
        """Run ``pushpull(key, grads, out=weights)``, using ``grads`` as scratch memory."""
        self._run_update(self._find_or_make_update(key, grads, weights), priority)

    def _run_update(self, update: ShardedUpdate, priority: int) -> None:
        update.reduce_gradients(priority)
        update.update_and_gather(priority, {})

    def reduce_scatter(
        self, key: Any, grads: Any, weights: Any, priority: int = 0, keep: bool = False
    ) -> List[nd.NDArray]:
        """Queue the first half of ``pushpull(key, grads, out=weights)``: the reduce-scatter.

        Returns the parts of the sum, each on the device that owns it. The caller may change the
        parts before `update` runs the second half. If ``keep`` is true, ``grads`` stay unchanged.
        Otherwise, the parts are views of ``grads``. Call `set_optimizer` first. Raises KVStoreError
        like `pushpull`.
        """
        update = self._find_or_make_update(key, grads, weights, keep)
        update.reduce_gradients(priority)
        return [shard.grad for shards in update.shards.values() for shard in shards]

    def update(self, key: Any, priority: int = 0, stale: "Optional[Dict[Any, List[ElementRange]]]" = None) -> None:
        """Queue the second half of `pushpull`: devices update their parts and gather all weights.

        ``key``: as in `reduce_scatter`. ``stale``: for each key, ranges of elements that keep their
        values, states and update counts.
        """
        self._find_reduced_update(key).update_and_gather(priority, stale or {})

    @nd_semantics()
    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write all states, joined from the devices, to the file ``fname``.

        Raise OutputError on failure.

        `gluonlab.optimizers.optimizer_states` defines the file's layout. States have the names of
        the parameters in the optimizer's ``param_dict``, which gluon.Trainer fills. Without
        parameter names, states are named by their keys. ``dump_optimizer`` is ignored: the file
        never contains the learning-rate schedule.
        """
        optimizer, parameters_by_key = self._require_optimizer(), self._parameters_by_key()
        parameters = tuple(
            self.get_key_state(key).to_parameter_state(param.name, param.shape)
            for key, param in parameters_by_key.items()
        )
        states = States(optimizer_class_name(optimizer), optimizer.num_update, read_scalars(optimizer), parameters)
        write_states(fname, states_to_arrays(states))

    @nd_semantics()
    def load_optimizer_states(self, fname: str) -> None:
        """Load saved states, which may have been saved with a different number of devices.

        The file must have been written by `save_optimizer_states`, BucketedTrainer.save_states or
        gluon.Trainer.save_states. Raises KVStoreError, and changes nothing, if the file contains
        something else or does not match the weights.
        """
        parameters_by_key, optimizer = self._parameters_by_key(), self._require_optimizer()
        params = list(parameters_by_key.values())
        states = read_states(fname, max_states_bytes(params) if parameters_by_key else None)
        if parameters_by_key:
            states = fit_states(optimizer, states, params, repr(str(fname)))
        names = [state.name for state in states.parameters]
        keys = list(parameters_by_key) or [int(name) if name.isdecimal() else name for name in names]
        states_by_key = {
            key: KeyState(state.arrays, {(0, 0): state.history}) for key, state in zip(keys, states.parameters)
        }
        self.set_key_states(states_by_key)
        schedule = self._schedules[optimizer]
        resume_optimizer(optimizer, states_by_key, states.num_update, states.scalars, (), schedule)

    def _require_optimizer(self) -> mx.optimizer.Optimizer:
        """Return the optimizer. Raise KVStoreError if no optimizer has been set."""
        if self.optimizer is None:
            raise no_optimizer_error(self.type)
        return self.optimizer

    def _find_reduced_update(self, key: Any) -> ShardedUpdate:
        """Return the update of these keys whose second half has not run yet.

        Raises KVStoreError if `reduce_scatter` has not been called for these keys.
        """
        self._require_optimizer()
        keys = tuple(as_list(key))
        if keys not in self._updates:
            raise KVStoreError(
                f"kvstore {self.type!r}: {format_keys(keys)} cannot be updated: call reduce_scatter first"
            )
        return self._updates[keys]

    def _parameters_by_key(self) -> Dict[Any, StateTarget]:
        """Return the name, shape and type of each key's parameter.

        Without a gluon.Trainer, the names are the keys that were updated or loaded.
        """
        items = self._require_optimizer().param_dict.items()
        params = {key: param for key, param in items if hasattr(param, "name")}
        if params:
            return dict(zip(params, state_targets(params.values())))
        targets = {}
        for key, state in self._loaded.items():
            shape = state.arrays[0].shape if state.arrays else None
            targets[key] = StateTarget(str(key), shape, "float32", True)
        for update in self._updates.values():
            for key, (weight, *_) in zip(update.keys, update.weights):
                targets[key] = StateTarget(str(key), weight.shape, weight.dtype, True)
        return targets

    def get_key_state(self, key: Any) -> KeyState:
        """Return CPU copies of a key's state, flat or with the shape of the weights."""
        if key in self._loaded:
            return self._loaded[key]
        update = next((update for update in self._updates.values() if key in update.keys), None)
        if update is None:
            return KeyState((), {(0, 0): update_history(self._require_optimizer(), key)})
        return update.get_key_state(key)

    def keys_to_update(self, key: Any, stale: Mapping[Any, List[ElementRange]]) -> List[Any]:
        """Return the optimizer's keys that a call of `update` for ``key`` would update."""
        updates = self._find_reduced_update(key).updates
        spans_by_key = (key_update.fresh_spans(stale.get(name, ())) for name, key_update in updates.items())
        return [span.key for spans in spans_by_key for span in spans]

    def set_key_states(self, states_by_key: Mapping[Any, KeyState]) -> None:
        """Replace the states of all keys. Keys missing in ``states_by_key`` get new states."""
        self._replaced_transfers += sum(update.transfers_run for update in self._updates.values())
        self._updates.clear()
        self._loaded = dict(states_by_key)

    @property
    def _updater(self) -> "ShardedKVStore":
        return self  # gluon.Trainer.load_states reads its ``optimizer``

    def _find_or_make_update(self, key: Any, grads: Any, weights: Any, keep: bool = False) -> ShardedUpdate:
        """Return the `ShardedUpdate` of these keys: the previous one if it matches, else a new one.

        A new update continues with the same optimizer state. ``keep``: whether the gradients stay
        unchanged.
        """
        self._require_optimizer()
        entries = self._make_entries(key, grads, weights)
        keys = tuple(entry.key for entry in entries)
        update = self._updates.get(keys)
        if update is None or not update.matches(entries, keep):
            self._prefix_errors(keys, partial(check_update_arrays, entries))
            self._check_same_keys(keys)
            states = {key: self.get_key_state(key) for key in keys}
            order = partial(self._find_placement, [weight.context for weight in entries[0].outs])
            make = partial(ShardedUpdate, self._name, self._prefix_errors(keys, order).order, self.optimizer)
            update = self._prefix_errors(keys, partial(make, entries, keep))
            self._prefix_errors(keys, partial(update.restore_states, states))
            for key in keys:
                self._loaded.pop(key, None)
            if keys in self._updates:
                self._replaced_transfers += self._updates[keys].transfers_run
            self._updates[keys] = update
        return update

    def _check_same_keys(self, keys: Keys) -> None:
        """Raise KVStoreError for a key that was previously updated together with different keys.

        With other keys, the boundaries between the devices' parts of its state would move.
        """
        for others in self._updates:
            if others != keys and not set(others).isdisjoint(keys):
                raise KVStoreError(
                    f"kvstore {self.type!r}: {format_keys(keys)} cannot be updated, because an earlier call "
                    f"updated {format_keys(others)}: pass the same keys in every call"
                )


MXNET_MODULE = "mx.optimizer"
OPTIMIZER_CLASSES = [kind.cls for kind in OPTIMIZERS.values()]


def check_element_wise(optimizer: "type[mx.optimizer.Optimizer]") -> None:
    """Raise KVStoreError if the class of ``optimizer`` is not element-wise."""
    if not is_element_wise(optimizer):
        names = sorted({kind.__name__ for kind in ELEMENT_WISE})
        name = optimizer.__name__
        described, advice = name, f"choose one of the optimizers {', '.join(names)}"
        if name in names:  # a class of the same name is element-wise
            is_own = any(kind.__name__ == name for kind in OPTIMIZER_CLASSES)
            module = optimizer.__module__
            described = f"{MXNET_MODULE if module.startswith('mxnet.optimizer') else module}.{name}"
            advice = f"use {'gluonlab.optimizers' if is_own else MXNET_MODULE}.{name}"
        raise KVStoreError(
            f"kvstore {SHARDED!r} may split a parameter at any element, but {described} needs whole "
            f"parameters: {advice}, or another kvstore"
        )


# --- one step of some keys; each device owns parts of them

Arrays = List[List[nd.NDArray]]


class ShardedUpdate:
    """An update of some keys: a reduce-scatter of gradients, updates, and an all-gather of weights.

    ``name``: the algorithm. ``order``: the device number of each rank. ``keep``: whether the
    gradients stay unchanged, so that their sums need separate memory. Otherwise gradients are
    summed in place, unless they share memory. Raises ScheduleError for arrays that cannot be
    summed. `check_update_arrays` finds all other errors.
    """

    def __init__(
        self, name: str, order: Sequence[int], optimizer: Any, entries: Sequence[PushPullEntry], keep: bool
    ) -> None:
        self.keys, self.optimizer = tuple(entry.key for entry in entries), optimizer
        self._entries, self._keeps_gradients = entries, keep
        self.weights = [entry.outs for entry in entries]
        reduce_scatter, all_gather = (half(len(order)).placed(order) for half in HALVES[name])
        grads, weights = _transpose([entry.values for entry in entries]), _transpose(self.weights)
        self._reduce_scatter: Union[Executor, OutOfPlaceReduceScatter]
        if keep or arrays_share_memory([*chain(*grads)]):
            self._reduce_scatter = OutOfPlaceReduceScatter(reduce_scatter, grads)
            owned = self._reduce_scatter.owned
        else:
            self._reduce_scatter = Executor(reduce_scatter, grads)
            parts = owned_parts(reduce_scatter, [array.size for array in grads[0]])
            owned = [OwnedSum(rank, part, _view_part(grads[rank], part)) for rank, part in parts]
        self._all_gather = Executor(all_gather, weights)
        # each shard holds the only copy of its optimizer state
        self.shards: Dict[Any, List[KeyPart]] = {key: [] for key in self.keys}
        for rank, part, grad in owned:
            key, weight = self.keys[part.array], _view_part(weights[rank], part)
            state = optimizer.create_state_multi_precision(key, weight)
            self.shards[key].append(KeyPart(part.begin, weight, grad, state))
        self.updates = {key: KeyUpdate(optimizer, key, own) for key, own in self.shards.items()}

    def reduce_gradients(self, priority: int) -> None:
        """Queue the reduce-scatter of the gradients."""
        self._reduce_scatter.run(priority)

    def update_and_gather(self, priority: int, stale: Mapping[Any, List[ElementRange]]) -> None:
        """Queue the update and the all-gather.

        ``stale``: for each key, the ranges of elements that the update leaves unchanged.
        """
        with autograd.pause():
            self._all_gather.make_row_major()  # must come before a shard of the weights is written
            update_keys(self.optimizer, self.updates.values(), stale)
        self._all_gather.run(priority, is_row_major=True)

    @property
    def transfers_run(self) -> int:
        """Return the number of transfers queued so far.

        A chunk that is moved in several pieces counts several times.
        """
        return self._reduce_scatter.transfers_run + self._all_gather.transfers_run

    def matches(self, entries: Sequence[PushPullEntry], keep: bool) -> bool:
        """Return whether the update was made for exactly these array objects and this ``keep``."""
        return self._keeps_gradients == keep and have_same_arrays(self._entries, entries)

    def get_key_state(self, key: Any) -> KeyState:
        """Join a key's state from the devices. Return CPU copies in the shape of the weights."""
        shards, weight = self.shards[key], self.weights[self.keys.index(key)][0]
        arrays = []
        for parts in zip(*(shard.state_arrays() for shard in shards)):
            whole = nd.empty((weight.size,), mx.cpu(), parts[0].dtype)
            for shard, part in zip(shards, parts):
                part.copyto(whole[shard.begin : shard.begin + part.size])
            arrays.append(whole.reshape(weight.shape or (1,)))
        return KeyState(tuple(arrays), read_key_histories(self.updates[key]))

    def restore_states(self, states: Mapping[Any, KeyState]) -> None:
        """Divide the arrays of saved states among the devices.

        A key without arrays gets a new state.

        Raises KVStoreError, and changes nothing, if the arrays do not match the weights.
        """
        for key, weights in zip(self.keys, self.weights):
            arrays = states[key].arrays
            counts = {len(shard.state_arrays()) for shard in self.shards[key]} if arrays else set()
            if counts - {len(arrays)} or any(array.size != weights[0].size for array in arrays):
                raise KVStoreError(
                    f"key {key!r}: the optimizer state does not match the weight, {format_array(weights[0])}: "
                    "use the shapes, types and multi_precision of the saved state, or create a new trainer and kvstore"
                )
        for key, shards in self.shards.items():
            for shard in shards:
                for array, whole in zip(shard.state_arrays(), states[key].arrays):
                    part = whole.reshape((-1,))[shard.begin : shard.begin + array.size]
                    part.astype(array.dtype).copyto(array)
            set_key_histories(self.updates[key], states[key].histories)


def check_update_arrays(entries: Sequence[PushPullEntry]) -> None:
    """Raise KVStoreError if the weights cannot be updated with these gradients."""
    keys = [entry.key for entry in entries]
    for key, grads, weights in entries:
        if keys.count(key) > 1:
            several = f"key {key!r} appears several times in one call"
            raise KVStoreError(f"{several}: use a different key for each parameter")
        if len(grads) != len(weights) or not grads:
            counts = f"there are {len(grads)} arrays and {len(weights)} outputs"
            raise KVStoreError(f"key {key!r}: {counts}: pass one array and one output for each device")
        if len(weights) != len(entries[0].outs):
            first = f"key {keys[0]!r} is on {len(entries[0].outs)} devices"
            mismatch = f"{first}, but key {key!r} is on {len(weights)}"
            raise KVStoreError(f"{mismatch}: use the same devices for all keys of a call")
        for grad, weight in zip(grads, weights):
            if _array_kind(grad) != _array_kind(weight):
                mismatch = f"{format_array(grad)} cannot be written to {format_array(weight)}"
                raise KVStoreError(f"key {key!r}: {mismatch}: use the same shape, type and device")
    gradients = [grad for entry in entries for grad in entry.values]
    if arrays_share_memory([weight for entry in entries for weight in entry.outs], gradients):
        shared = "the weights share memory with other weights or gradients"
        raise KVStoreError(f"{format_keys(keys)}: {shared}: use separate arrays")


def _array_kind(array: nd.NDArray) -> Any:
    return array.shape, array.dtype, array.context


def _transpose(arrays: Arrays) -> Arrays:
    """Convert ``arrays[key][device]`` to ``arrays[device][key]``."""
    return [list(of_device) for of_device in zip(*arrays)]


def _view_part(arrays: Sequence[nd.NDArray], part: Any) -> nd.NDArray:
    """Return a view of ``part``, a `gluonlab.collectives.chunk_layout.ArrayRange`."""
    return flat_view(arrays[part.array])[part.begin : part.end]
