"""A kvstore in which every device updates its own part of the weights and keeps its state.

Gradients are summed by a reduce-scatter, the owners update their chunks of the weights, an
all-gather hands these out: the bytes of an allreduce, and one update and one copy of the state
instead of one per device (Rajbhandari, Rasley, Ruwase, He, "ZeRO: memory optimizations toward
training trillion parameter models", 2020, section 5.1).
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
from gluonlab.collectives.schedule_executor import Executor, Owned, ReduceApart
from gluonlab.engine.fast_invoke import arrays_share_memory, flat_view
from gluonlab.engine.np_compatibility import nd_semantics
from gluonlab.errors import KVStoreError
from gluonlab.kvstores.allreduce_store import (
    SHARDED,
    Entry,
    Keys,
    as_list,
    described,
    named,
    same_entries,
)
from gluonlab.kvstores.mxnet_stores import Owner, check_optimizer, no_optimizer
from gluonlab.kvstores.schedule_stores import ScheduleKVStore
from gluonlab.optimizers.optimizer_registry import ELEMENT_WISE, OPTIMIZERS, is_element_wise
from gluonlab.optimizers.optimizer_states import (
    KeyState,
    States,
    StateTarget,
    fitted,
    kind_of,
    most_bytes,
    own_of,
    read,
    resume,
    save,
    to_arrays,
)
from gluonlab.optimizers.optimizer_step import (
    KeyPart,
    KeyUpdate,
    Range,
    Rewinding,
    age_of,
    numbers_of,
    update_spans,
)


class ShardedKVStore(ScheduleKVStore):
    """A store that updates: ``pushpull(key, gradients, out=weights)`` for gluon.Trainer.

    ``gluon.Trainer(..., kvstore=ShardedKVStore())``. ``name``: an algorithm made of a
    reduce-scatter and an all-gather. Without an optimizer it sums as `ScheduleKVStore` does.
    """

    def __init__(self, name: str = "sharded", topology: Optional[str] = None) -> None:
        if name not in HALVES:
            raise KVStoreError(
                f"a sharded optimizer runs between the halves of {', '.join(HALVES)}, "
                f"not of {name!r}"
            )
        super().__init__(name, topology=topology)
        self.optimizer: Optional[mx.optimizer.Optimizer] = None  # what `set_optimizer` was given
        self._updates: Dict[Keys, ShardedUpdate] = {}
        self._loaded: Dict[Any, KeyState] = {}  # of keys that have not been updated since
        self._owner = Owner(self)
        # of optimizers: the states of those that others have replaced, and their schedules
        self._aside: "WeakKeyDictionary[Any, Dict[Any, KeyState]]" = WeakKeyDictionary()
        self._schedules: "WeakKeyDictionary[Any, Rewinding]" = WeakKeyDictionary()

    @staticmethod
    def is_capable(capability: str) -> bool:
        return capability.lower() == "optimizer"

    @property
    def type(self) -> str:
        return SHARDED

    @property
    def transfers_run(self) -> int:
        own = sum(update.transfers_run for update in self._updates.values())
        return super().transfers_run + own

    def set_optimizer(self, optimizer: mx.optimizer.Optimizer) -> None:
        """Give the owners the optimizer that they update with.

        Raises KVStoreError for one that looks at more than one element at a time.

        The optimizer of another Trainer finds no state but what it left here: the former one's is
        put aside until it comes again.
        """
        check_optimizer(self.type, optimizer)
        check_element_wise(type(optimizer))
        self._owner.take(optimizer)
        if self.optimizer is not None and self.optimizer is not optimizer:
            self._aside[self.optimizer] = {key: self.state_of(key) for key in self._own()}
            self.set_states(self._aside.pop(optimizer, {}))
        self.optimizer = optimizer
        self._schedules.setdefault(optimizer, Rewinding(optimizer))

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Sum the gradients ``value`` and update the weights ``out`` on each device.

        The gradients stay as they are, for which each device has memory for the sums that it makes:
        with the algorithm "sharded" for the part that it owns, with a ring for all but one part.
        `update_and_use_up` needs none. Without ``out``, or before `set_optimizer`, sum only. Raises
        KVStoreError, and changes nothing, when the arrays cannot be summed.
        """
        if out is None or self.optimizer is None:
            super().pushpull(key, value, out, priority)
            return
        self._run(self._update(key, value, out, keep=True), priority)

    def update_and_use_up(self, key: Any, grads: Any, weights: Any, priority: int = 0) -> None:
        """``pushpull(key, grads, out=weights)`` that leaves no meaning in ``grads``.

        They hold neither the gradients nor the sum afterwards.
        """
        self._run(self._update(key, grads, weights), priority)

    def _run(self, update: ShardedUpdate, priority: int) -> None:
        update.reduce(priority)
        update.finish(priority, {})

    def reduce_scatter(
        self, key: Any, grads: Any, weights: Any, priority: int = 0, keep: bool = False
    ) -> List[nd.NDArray]:
        """The first half of ``pushpull(key, grads, out=weights)``.

        Returns the owners' parts of the sum, which lie in ``grads``, unless these are to ``keep``
        what they hold. They may be changed before `update` does the rest. Needs `set_optimizer`;
        raises KVStoreError as `pushpull` does.
        """
        update = self._update(key, grads, weights, keep)
        update.reduce(priority)
        return [shard.grad for shards in update.shards.values() for shard in shards]

    def update(
        self, key: Any, priority: int = 0, stale: "Optional[Dict[Any, List[Range]]]" = None
    ) -> None:
        """The second half: the owners update their parts, and all devices get the weights.

        ``key``: the same as in the first half. ``stale``: for some of the keys, the elements that
        stay as they are, with their states and counts of updates.
        """
        self._half_done(key).finish(priority, stale or {})

    @nd_semantics()
    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write the states of all parameters, each whole. Raises OutputError.

        The file is laid out as in `gluonlab.optimizers.optimizer_states`. States are named as the
        optimizer's ``param_dict`` names their keys, which gluon.Trainer fills, or else by their
        keys. The schedule of learning rates is not in the file, so ``dump_optimizer`` changes
        nothing.
        """
        optimizer, own = self._known(), self._own()
        parameters = tuple(
            self.state_of(key).of_parameter(param.name, param.shape) for key, param in own.items()
        )
        states = States(kind_of(optimizer), optimizer.num_update, numbers_of(optimizer), parameters)
        save(fname, to_arrays(states))

    @nd_semantics()
    def load_optimizer_states(self, fname: str) -> None:
        """Read saved states, on any devices.

        They are what `save_optimizer_states`, BucketedTrainer.save_states or
        gluon.Trainer.save_states wrote. Raises KVStoreError, and changes nothing, when the file
        holds something else or does not fit.
        """
        own, optimizer = self._own(), self._known()
        params = list(own.values())
        states = read(fname, most_bytes(params) if own else None)
        if own:
            states = fitted(optimizer, states, params, repr(str(fname)))
        names = [state.name for state in states.parameters]
        keys = list(own) or [int(name) if name.isdecimal() else name for name in names]
        of_keys = {
            key: KeyState(state.arrays, {(0, 0): state.age})
            for key, state in zip(keys, states.parameters)
        }
        self.set_states(of_keys)
        schedule = self._schedules[optimizer]
        resume(optimizer, of_keys, states.num_update, states.numbers, (), schedule)

    def _known(self) -> mx.optimizer.Optimizer:
        """The optimizer. Raises KVStoreError before there is one."""
        if self.optimizer is None:
            raise no_optimizer(self.type)
        return self.optimizer

    def _half_done(self, key: Any) -> ShardedUpdate:
        """The update of these keys, of which `reduce_scatter` is done."""
        self._known()
        keys = tuple(as_list(key))
        if keys not in self._updates:
            raise KVStoreError(
                f"kvstore {self.type!r}: {named(keys)} cannot be updated: call reduce_scatter first"
            )
        return self._updates[keys]

    def _own(self) -> Dict[Any, StateTarget]:
        """The parameters of gluon.Trainer by key, or else the keys that were updated or loaded."""
        known = self._known().param_dict.items()
        params = {key: param for key, param in known if hasattr(param, "name")}
        if params:
            return dict(zip(params, own_of(params.values())))
        own = {}
        for key, state in self._loaded.items():
            shape = state.arrays[0].shape if state.arrays else None
            own[key] = StateTarget(str(key), shape, "float32", True)
        for update in self._updates.values():
            for key, (weight, *_) in zip(update.keys, update.weights):
                own[key] = StateTarget(str(key), weight.shape, weight.dtype, True)
        return own

    def state_of(self, key: Any) -> KeyState:
        """What the optimizer knows about a key, as copies on the CPU.

        They have the shape of the arrays on the devices, or are flat.
        """
        if key in self._loaded:
            return self._loaded[key]
        update = next((update for update in self._updates.values() if key in update.keys), None)
        if update is None:
            return KeyState((), {(0, 0): age_of(self._known(), key)})
        return update.state_of(key)

    def keys_to_update(self, key: Any, stale: Mapping[Any, List[Range]]) -> List[Any]:
        """The optimizer's keys that `update` of ``key`` would update."""
        updates = self._half_done(key).updates
        every = (each.spans(stale.get(name, ())) for name, each in updates.items())
        return [span.key for spans in every for span in spans]

    def set_states(self, of_keys: Mapping[Any, KeyState]) -> None:
        """Set the state that each key gets when it is next updated; other keys begin anew.

        Arrays are those of whole parameters, in their shape or flat.
        """
        self._retired += sum(update.transfers_run for update in self._updates.values())
        self._updates.clear()
        self._loaded = dict(of_keys)

    @property
    def _updater(self) -> "ShardedKVStore":
        return self  # gluon.Trainer.load_states asks it for its ``optimizer``

    def _update(self, key: Any, grads: Any, weights: Any, keep: bool = False) -> ShardedUpdate:
        """The update of these keys, made anew, with its state, when they come with other arrays."""
        self._known()
        entries = self._entries(key, grads, weights)
        keys = tuple(entry.key for entry in entries)
        update = self._updates.get(keys)
        if update is None or not update.serves(entries, keep):
            self._made(keys, partial(check, entries))
            self._check_company(keys)
            states = {key: self.state_of(key) for key in keys}
            order = partial(self._place, [weight.context for weight in entries[0].outs])
            make = partial(ShardedUpdate, self._name, self._made(keys, order).order, self.optimizer)
            update = self._made(keys, partial(make, entries, keep))
            self._made(keys, partial(update.restore, states))
            for key in keys:
                self._loaded.pop(key, None)
            self._retired += self._updates[keys].transfers_run if keys in self._updates else 0
            self._updates[keys] = update
        return update

    def _check_company(self, keys: Keys) -> None:
        """Raise KVStoreError for a key that was updated together with other keys before.

        Its state is cut otherwise.
        """
        for others in self._updates:
            if others != keys and not set(others).isdisjoint(keys):
                raise KVStoreError(
                    f"kvstore {self.type!r}: "
                    f"{named(keys)} cannot be updated after {named(others)}: "
                    "give the same keys in every call"
                )


MXNETS = "mx.optimizer"
OURS = [kind.cls for kind in OPTIMIZERS.values()]


def check_element_wise(optimizer: "type[mx.optimizer.Optimizer]") -> None:
    """Raise KVStoreError for a kind of optimizer that looks at more than one element at a time."""
    if not is_element_wise(optimizer):
        names = sorted({kind.__name__ for kind in ELEMENT_WISE})
        name = optimizer.__name__
        theirs, instead = name, f"choose one of {', '.join(names)}"
        if name in names:  # a class of the same name is meant
            ours = any(kind.__name__ == name for kind in OURS)
            module = optimizer.__module__
            theirs = f"{MXNETS if module.startswith('mxnet.optimizer') else module}.{name}"
            instead = f"give {'gluonlab.optimizers' if ours else MXNETS}.{name}"
        raise KVStoreError(
            f"kvstore {SHARDED!r} cuts parameters anywhere, "
            f"which {theirs} does not allow: {instead}, or another kvstore"
        )


# --- one step of some keys, of which each device owns parts

Arrays = List[List[nd.NDArray]]


class ShardedUpdate:
    """`reduce`, then `finish`: a reduce-scatter of gradients, updates, an all-gather of weights.

    ``name``: of the algorithm. ``order``: which device plays which rank. With ``keep`` the
    gradients stay as they are, and there is memory for their sums; otherwise they are summed in
    place, unless they share memory. Raises ScheduleError for arrays that cannot be summed; what
    else may be wrong is found by `check`.
    """

    def __init__(
        self, name: str, order: Sequence[int], optimizer: Any, entries: Sequence[Entry], keep: bool
    ) -> None:
        self.keys, self.optimizer = tuple(entry.key for entry in entries), optimizer
        self._entries, self._keeps = entries, keep
        self.weights = [entry.outs for entry in entries]
        reduce_scatter, all_gather = (half(len(order)).placed(order) for half in HALVES[name])
        grads, weights = _by_rank([entry.values for entry in entries]), _by_rank(self.weights)
        self._reduce: Union[Executor, ReduceApart]
        if keep or arrays_share_memory([*chain(*grads)]):
            self._reduce = ReduceApart(reduce_scatter, grads)
            owned = self._reduce.owned
        else:
            self._reduce = Executor(reduce_scatter, grads)
            parts = owned_parts(reduce_scatter, [array.size for array in grads[0]])
            owned = [Owned(rank, part, _cut(grads[rank], part)) for rank, part in parts]
        self._gather = Executor(all_gather, weights)
        # which hold the only states
        self.shards: Dict[Any, List[KeyPart]] = {key: [] for key in self.keys}
        for rank, part, grad in owned:
            key, weight = self.keys[part.array], _cut(weights[rank], part)
            state = optimizer.create_state_multi_precision(key, weight)
            self.shards[key].append(KeyPart(part.begin, weight, grad, state))
        self.updates = {key: KeyUpdate(optimizer, key, own) for key, own in self.shards.items()}

    def reduce(self, priority: int) -> None:
        """Queue the sums."""
        self._reduce.run(priority)

    def finish(self, priority: int, stale: Mapping[Any, List[Range]]) -> None:
        """Queue the rest. ``stale``: for some of the keys, the elements that stay as they are."""
        with autograd.pause():
            self._gather.settle()  # before a shard of the weights is written
            spans = [
                span
                for key, update in self.updates.items()
                for span in update.spans(stale.get(key, ()))
            ]
            update_spans(self.optimizer, spans)
        self._gather.run(priority, settled=True)

    @property
    def transfers_run(self) -> int:
        """How many transfers were queued so far; each piece of a chunk counts."""
        return self._reduce.transfers_run + self._gather.transfers_run

    def serves(self, entries: Sequence[Entry], keep: bool) -> bool:
        """Whether it was made for these very arrays."""
        return self._keeps == keep and same_entries(self._entries, entries)

    def state_of(self, key: Any) -> KeyState:
        """The whole arrays of the state: copies on the CPU, of the weight's shape."""
        shards, weight = self.shards[key], self.weights[self.keys.index(key)][0]
        arrays = []
        for parts in zip(*(shard.arrays() for shard in shards)):
            whole = nd.empty((weight.size,), mx.cpu(), parts[0].dtype)
            for shard, part in zip(shards, parts):
                part.copyto(whole[shard.begin : shard.begin + part.size])
            arrays.append(whole.reshape(weight.shape or (1,)))
        return KeyState(tuple(arrays), self.updates[key].ages())

    def restore(self, states: Mapping[Any, KeyState]) -> None:
        """Set the states to these whole ones; a key without arrays begins anew.

        Raises KVStoreError, and changes nothing, when they do not fit.
        """
        for key, weights in zip(self.keys, self.weights):
            arrays = states[key].arrays
            wanted = {len(shard.arrays()) for shard in self.shards[key]} if arrays else set()
            if wanted - {len(arrays)} or any(array.size != weights[0].size for array in arrays):
                raise KVStoreError(
                    f"key {key!r}: the optimizer's state, loaded or made in earlier steps, "
                    f"does not fit {described(weights[0])}: "
                    "keep shapes, types and multi_precision, or begin with a new trainer and store"
                )
        for key, shards in self.shards.items():
            for shard in shards:
                for array, whole in zip(shard.arrays(), states[key].arrays):
                    part = whole.reshape((-1,))[shard.begin : shard.begin + array.size]
                    part.astype(array.dtype).copyto(array)
            self.updates[key].set_ages(states[key].ages)


def check(entries: Sequence[Entry]) -> None:
    """Raise KVStoreError when the weights cannot be updated with these gradients."""
    keys = [entry.key for entry in entries]
    for key, grads, weights in entries:
        if keys.count(key) > 1:
            several = f"key {key!r} comes several times in one call"
            raise KVStoreError(f"{several}: give each parameter a key of its own")
        if len(grads) != len(weights) or not grads:
            counts = f"{len(grads)} arrays and {len(weights)} outputs"
            raise KVStoreError(f"key {key!r}: {counts}: give one for each")
        if len(weights) != len(entries[0].outs):
            first = f"key {keys[0]!r} is on {len(entries[0].outs)} devices"
            both = f"{first}, {key!r} on {len(weights)}"
            raise KVStoreError(f"{both}: give keys of one call the same devices")
        for grad, weight in zip(grads, weights):
            if _kind(grad) != _kind(weight):
                both = f"{described(grad)} cannot be left in {described(weight)}"
                raise KVStoreError(f"key {key!r}: {both}: they must be alike")
    gradients = [grad for entry in entries for grad in entry.values]
    if arrays_share_memory([weight for entry in entries for weight in entry.outs], gradients):
        shared = "weights share memory with other weights or gradients"
        raise KVStoreError(f"{named(keys)}: {shared}: give each its own")


def _kind(array: nd.NDArray) -> Any:
    return array.shape, array.dtype, array.context


def _by_rank(arrays: Arrays) -> Arrays:
    """Per key the array of each device -> per device the array of each key."""
    return [list(of_device) for of_device in zip(*arrays)]


def _cut(arrays: Sequence[nd.NDArray], part: Any) -> nd.NDArray:
    """A view of the elements of ``part``, a `gluonlab.collectives.chunk_layout.ArrayRange`."""
    return flat_view(arrays[part.array])[part.begin : part.end]
