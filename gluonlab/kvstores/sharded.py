"""A kvstore in which every device updates the part of the weights that it owns, and keeps the optimizer's state for that part only.

Gradients are summed by a reduce-scatter, the owners update their chunks of the weights, an all-gather hands these out: the bytes of
an allreduce, and one update and one copy of the state instead of one per device (Rajbhandari, Rasley, Ruwase, He, "ZeRO: memory
optimizations toward training trillion parameter models", 2020, section 5.1).
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence
from weakref import WeakKeyDictionary

import mxnet as mx
from mxnet import autograd, nd

from gluonlab.arrays import save_arrays
from gluonlab.collectives.algorithms import HALVES
from gluonlab.collectives.executor import Executor
from gluonlab.collectives.partition import partition
from gluonlab.errors import KVStoreError
from gluonlab.invoke import CopyInto, share_memory
from gluonlab.kvstores import sgd
from gluonlab.kvstores.owner import Owner
from gluonlab.kvstores.schedule import Keys, ScheduleKVStore, named
from gluonlab.kvstores.sums import Call, Entry, described, same
from gluonlab.optimizers.registry import ELEMENT_WISE, is_element_wise

Arrays = List[List[nd.NDArray]]  # of each key, those of each device

SHARDED = "sharded-optimizer"
UPDATES = "updates"  # beside a key's states: how many updates they have seen


class ShardedKVStore(ScheduleKVStore):
    """``gluon.Trainer(..., kvstore=ShardedKVStore())`` updates on the store: ``pushpull(key, gradients, out=weights)``.

    ``name``: an algorithm made of a reduce-scatter and an all-gather. Without an optimizer it sums as `ScheduleKVStore` does.
    """

    def __init__(self, name: str = "sharded") -> None:
        if name not in HALVES:
            raise KVStoreError(f"a sharded optimizer runs between the halves of {', '.join(HALVES)}, not of {name!r}")
        super().__init__(name)
        self._optimizer: Optional[mx.optimizer.Optimizer] = None
        self._updates: Dict[Keys, _ShardedUpdate] = {}
        self._loaded: Dict[str, nd.NDArray] = {}
        self._owner = Owner(self)
        self._aside: "WeakKeyDictionary[mx.optimizer.Optimizer, Dict[str, nd.NDArray]]" = WeakKeyDictionary()

    @staticmethod
    def is_capable(capability: str) -> bool:
        return capability.lower() == "optimizer"

    @property
    def type(self) -> str:
        return SHARDED

    @property
    def transfers_run(self) -> int:
        return super().transfers_run + sum(update.transfers_run for update in self._updates.values())

    def set_optimizer(self, optimizer: mx.optimizer.Optimizer) -> None:
        """What the owners update with. Raises KVStoreError for one that looks at more than one element at a time.

        The optimizer of another Trainer finds no state but what it left here: the former one's is put aside until it comes again.
        """
        check_element_wise(type(optimizer))
        self._owner.take(optimizer)
        if self._optimizer is not None and self._optimizer is not optimizer:
            self._aside[self._optimizer] = self._states()
            self._retired += sum(update.transfers_run for update in self._updates.values())
            self._updates, self._loaded = {}, self._aside.pop(optimizer, {})
        self._optimizer = optimizer

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Sum the gradients ``value`` and update the weights ``out`` with them, on each of the devices.

        The gradients stay as they are, for which each device has memory for another copy of them; `update_and_use_up` needs none.
        Without ``out``, or before `set_optimizer`, sum only. Raises KVStoreError, and changes nothing, when the arrays cannot be
        summed.
        """
        if out is None or self._optimizer is None:
            super().pushpull(key, value, out, priority)
            return
        self._run(self._update(key, value, out, keep=True), priority)

    def update_and_use_up(self, key: Any, grads: Any, weights: Any, priority: int = 0) -> None:
        """``pushpull(key, grads, out=weights)``, but what ``grads`` hold afterwards is neither their own nor the sum."""
        self._run(self._update(key, grads, weights), priority)

    def _run(self, update: "_ShardedUpdate", priority: int) -> None:
        update.reduce(priority)
        update.finish(priority)

    def reduce_scatter(self, key: Any, grads: Any, weights: Any, priority: int = 0) -> List[nd.NDArray]:
        """The first half of ``pushpull(key, grads, out=weights)``: the owners' parts of the sum, which lie in ``grads``.

        They may be changed before `update` does the rest. Needs `set_optimizer`; raises KVStoreError as `pushpull` does.
        """
        update = self._update(key, grads, weights)
        update.reduce(priority)
        return [shard.grad for shards in update.shards.values() for shard in shards]

    def update(self, key: Any, priority: int = 0) -> None:
        """The second half, for the same ``key``: the owners update their parts of the weights, and all devices get them."""
        self._updates[tuple(key) if isinstance(key, (list, tuple)) else (key,)].finish(priority)

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write every shard's state and the counts of updates, in MXNet's own format for arrays. Raises OutputError."""
        save_arrays(Path(fname), self._states(), remedy="choose another place")

    def load_optimizer_states(self, fname: str) -> None:
        """Read what `save_optimizer_states` wrote, for as many devices as there were then.

        Raises KVStoreError, and changes nothing, when the file holds something else or does not fit.
        """
        arrays = _read_states(fname)
        for update in self._updates.values():
            update.check_fit(arrays)
        for update in self._updates.values():
            update.restore(arrays)
        used = tuple(f"{key}/" for update in self._updates.values() for key in update.keys)
        self._loaded = {name: array for name, array in arrays.items() if not name.startswith(used)}

    def _states(self) -> Dict[str, nd.NDArray]:
        """Those of all keys, and of those that were loaded and have not come yet."""
        arrays = dict(self._loaded)
        for update in self._updates.values():
            arrays.update(update.state())
        return arrays

    @property
    def _updater(self) -> "ShardedKVStore":
        return self  # gluon.Trainer.load_states asks it for its ``optimizer``

    @property
    def optimizer(self) -> Optional[mx.optimizer.Optimizer]:
        """What `set_optimizer` was given."""
        return self._optimizer

    def _update(self, key: Any, grads: Any, weights: Any, keep: bool = False) -> "_ShardedUpdate":
        """The update of these keys; made anew, with its state, when they come with other arrays."""
        entries = self._entries(key, grads, weights)
        keys = tuple(entry.key for entry in entries)
        update = self._updates.get(keys)
        if update is None or not update.serves(entries, keep):
            self._made(keys, partial(_check, entries))
            self._check_company(keys)
            state = self._loaded if update is None else update.state()
            update = self._made(keys, partial(_ShardedUpdate, self._name, self._optimizer, entries, keep))
            if any(f"{key}/{UPDATES}" in state for key in keys):
                update.check_fit(state)
                update.restore(state)
            used = tuple(f"{key}/" for key in keys)
            self._loaded = {name: array for name, array in self._loaded.items() if not name.startswith(used)}
            self._retired += self._updates[keys].transfers_run if keys in self._updates else 0
            self._updates[keys] = update
        return update

    def _check_company(self, keys: Keys) -> None:
        """Raise KVStoreError when a key has been updated together with others than these: its state is cut otherwise."""
        for others in self._updates:
            if others != keys and not set(others).isdisjoint(keys):
                both = f"{named(keys)} cannot be updated after {named(others)}"
                raise KVStoreError(f"kvstore {self.type!r}: {both}: give the same keys in every call")


def _check(entries: Sequence[Entry]) -> None:
    """Raise KVStoreError when the weights cannot be updated with these gradients."""
    keys = [entry.key for entry in entries]
    for key, grads, weights in entries:
        if keys.count(key) > 1:
            raise KVStoreError(f"key {key!r} comes several times in one call: give each parameter a key of its own")
        if len(grads) != len(weights) or not grads:
            raise KVStoreError(f"key {key!r}: {len(grads)} arrays and {len(weights)} outputs: give one for each")
        if len(weights) != len(entries[0].outs):
            both = f"key {keys[0]!r} is on {len(entries[0].outs)} devices, {key!r} on {len(weights)}"
            raise KVStoreError(f"{both}: give keys of one call the same devices")
        for grad, weight in zip(grads, weights):
            if (grad.shape, grad.dtype, grad.context) != (weight.shape, weight.dtype, weight.context):
                raise KVStoreError(f"key {key!r}: {described(grad)} cannot be left in {described(weight)}: they must be alike")
    gradients = [grad for entry in entries for grad in entry.values]
    if share_memory([weight for entry in entries for weight in entry.outs], gradients):
        raise KVStoreError(f"{named(keys)}: weights share memory with other weights or gradients: give each its own")


def check_element_wise(optimizer: "type[mx.optimizer.Optimizer]") -> None:
    """Raise KVStoreError for a kind of optimizer that looks at more than one element at a time."""
    if not is_element_wise(optimizer):
        names = ", ".join(sorted({kind.__name__ for kind in ELEMENT_WISE}))
        raise KVStoreError(
            f"kvstore {SHARDED!r} cuts parameters anywhere, which {optimizer.__name__} does not allow: "
            f"choose one of {names}, or another kvstore"
        )


def _read_states(fname: str) -> Dict[str, nd.NDArray]:
    try:
        arrays = nd.load(fname)
    except mx.MXNetError as error:
        reason = str(error).strip().splitlines()[-1]
        raise KVStoreError(f"{fname!r} cannot be read as optimizer states: {reason}") from error
    if not isinstance(arrays, dict) or not any(name.endswith(f"/{UPDATES}") for name in arrays):
        raise KVStoreError(f"{fname!r} holds no states of a sharded optimizer: load what save_states wrote under this kvstore")
    return arrays


class _Shard:
    """What one rank owns of a parameter: its part of weight and gradient, and the only copy of the optimizer's state for it."""

    def __init__(self, name: str, optimizer: Any, key: Any, weight: nd.NDArray, grad: nd.NDArray) -> None:
        self.name, self.weight, self.grad = name, weight, grad
        self.state = optimizer.create_state_multi_precision(key, weight)

    def arrays(self) -> List[nd.NDArray]:
        return _flat(self.state)


class _ShardedUpdate:
    """The three phases for some keys: reduce-scatter of the gradients, update by the owners, all-gather of the weights."""

    def __init__(self, name: str, optimizer: Any, entries: Sequence[Entry], keep: bool) -> None:
        self.keys, self.optimizer = tuple(entry.key for entry in entries), optimizer
        self._arrays = [(entry.values, entry.outs) for entry in entries]
        self.weights = [entry.outs for entry in entries]
        reduce_scatter, all_gather = (half(len(self.weights[0])) for half in HALVES[name])
        self._copies: List[Call] = []
        self._keeps, grads = keep, [entry.values for entry in entries]
        if keep or share_memory([*chain(*grads)]):
            grads = self._copied(grads)
        self.reduce_scatter = Executor(reduce_scatter, _by_rank(grads))
        self.all_gather = Executor(all_gather, _by_rank(self.weights))
        self.shards: Dict[Any, List[_Shard]] = {key: [] for key in self.keys}
        parts = partition([of_key[0].size for of_key in self.weights], reduce_scatter.chunks)
        for chunk, owner in enumerate(reduce_scatter.owner):
            for place, begin, end in parts[chunk]:
                key = self.keys[place]
                weight, grad = (_part(arrays[place][owner], begin, end) for arrays in (self.weights, grads))
                self.shards[key].append(_Shard(f"{key}/{chunk}", optimizer, key, weight, grad))
        self._sgd = [self._devices_sgd(key) for key in self.keys] if sgd.applies(optimizer) else None

    def _copied(self, grads: Arrays) -> Arrays:
        """Where copies of the gradients are used up in each update, instead of them."""
        copies = [[grad.copy() for grad in of_key] for of_key in grads]
        for copy, grad in zip(chain(*copies), chain(*grads)):
            self._copies.append(partial(CopyInto(copy).copy, grad))
        return copies

    def _devices_sgd(self, key: Any) -> sgd.DevicesSGD:
        shards = self.shards[key]
        weights, grads = [shard.weight for shard in shards], [shard.grad for shard in shards]
        return sgd.DevicesSGD(self.optimizer, key, weights, grads, [shard.state for shard in shards])

    def reduce(self, priority: int) -> None:
        with autograd.pause():
            for call in self._copies:
                call()
        self.reduce_scatter.run(priority)

    def finish(self, priority: int) -> None:
        with autograd.pause():
            self.all_gather.settle()  # before a shard of the weights is written
            if self._sgd is not None:
                for update in self._sgd:
                    update.update()
            else:
                self._update_shards()
        self.all_gather.run(priority)

    def _update_shards(self) -> None:
        for key, shards in self.shards.items():
            for shard in shards:
                self.optimizer._set_current_context(shard.weight.context.device_id)  # it counts each device's updates for itself
                self.optimizer.update_multi_precision(key, shard.weight, shard.grad, shard.state)

    @property
    def transfers_run(self) -> int:
        return self.reduce_scatter.transfers_run + self.all_gather.transfers_run

    def serves(self, entries: Sequence[Entry], keep: bool) -> bool:
        return self._keeps == keep and all(
            same(grads, entry.values) and same(weights, entry.outs) for (grads, weights), entry in zip(self._arrays, entries)
        )

    def state(self) -> Dict[str, nd.NDArray]:
        counts = {f"{key}/{UPDATES}": nd.array([self._updates_so_far(key)], dtype="int64") for key in self.keys}
        return {**self._named_arrays(), **counts}

    def check_fit(self, state: Dict[str, nd.NDArray]) -> None:
        """Raise KVStoreError when ``state`` is not that of such shards."""
        own = self._named_arrays()
        missing = any(f"{key}/{UPDATES}" not in state for key in self.keys)
        if missing or any(name not in state or state[name].shape != array.shape for name, array in own.items()):
            raise KVStoreError(
                f"this optimizer state does not fit {named(self.keys)} on {len(self.weights[0])} devices: "
                "load it with the optimizer, the network and the number of devices that it was saved with"
            )

    def restore(self, state: Dict[str, nd.NDArray]) -> None:
        for name, array in self._named_arrays().items():
            state[name].copyto(array)
        for key in self.keys:
            self._count(key, int(state[f"{key}/{UPDATES}"].asscalar()))

    def _named_arrays(self) -> Dict[str, nd.NDArray]:
        return {
            f"{shard.name}/{place}": array
            for shards in self.shards.values()
            for shard in shards
            for place, array in enumerate(shard.arrays())
        }

    def _updates_so_far(self, key: Any) -> int:
        counts = self.optimizer._all_index_update_counts.values()
        return max((count.get(key, 0) for count in counts), default=0)

    def _count(self, key: Any, updates: int) -> None:
        for shard in self.shards[key]:
            self.optimizer._set_current_context(shard.weight.context.device_id)
            self.optimizer._index_update_count[key] = updates
        self.optimizer.num_update = max(self.optimizer.num_update, updates)


def _by_rank(arrays: Arrays) -> Arrays:
    """Per key the array of each device -> per device the array of each key."""
    return [list(of_device) for of_device in zip(*arrays)]


def _part(array: nd.NDArray, begin: int, end: int) -> nd.NDArray:
    """A view; reshape of an mx.np array would copy it."""
    return array.as_nd_ndarray().reshape((-1,))[begin:end]


def _flat(state: Any) -> List[nd.NDArray]:
    if state is None:
        return []
    return [state] if isinstance(state, nd.NDArray) else [array for part in state for array in _flat(part)]
