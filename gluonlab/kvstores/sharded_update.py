"""One step of some keys, of which each device owns parts.

The gradients are summed, the owners update their parts, and the weights are handed out.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, Dict, List, Mapping, Sequence, Union

import mxnet as mx
from mxnet import autograd, nd

from gluonlab.collectives.algorithms import HALVES
from gluonlab.collectives.executor import Executor
from gluonlab.collectives.partition import owned_parts
from gluonlab.engine.invoke import flattened, share_memory
from gluonlab.errors import KVStoreError
from gluonlab.kvstores.reduce_apart import Owned, ReduceApart
from gluonlab.kvstores.summing import named
from gluonlab.kvstores.sums import Entry, described, same_entries
from gluonlab.optimizers.states import KeyState
from gluonlab.optimizers.updates import KeyPart, KeyUpdate, Range, update_spans

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
        if keep or share_memory([*chain(*grads)]):
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
    if share_memory([weight for entry in entries for weight in entry.outs], gradients):
        shared = "weights share memory with other weights or gradients"
        raise KVStoreError(f"{named(keys)}: {shared}: give each its own")


def _kind(array: nd.NDArray) -> Any:
    return array.shape, array.dtype, array.context


def _by_rank(arrays: Arrays) -> Arrays:
    """Per key the array of each device -> per device the array of each key."""
    return [list(of_device) for of_device in zip(*arrays)]


def _cut(arrays: Sequence[nd.NDArray], part: Any) -> nd.NDArray:
    """A view of the elements of ``part``, a `gluonlab.collectives.partition.Part`."""
    return flattened(arrays[part.array])[part.begin : part.end]
