"""Weights that MXNet's servers keep and update; the optimizer travels to them as a pickle."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.errors import RunError
from gluonlab.kvstores.processes import new_keys
from gluonlab.optimizers.served import NOTE, Flat, ServerRule, first_note, server_of

NOT_TAKEN = (
    "the servers have loaded mxnet without gluonlab, and cannot take its optimizers: start them as "
    "python -c 'import gluonlab, mxnet', or leave the update to the workers, with --backend "
    "dist_sync and without --update-on-servers"
)


def install(store: Any, rule: mx.optimizer.Optimizer) -> None:
    """Give all servers the rule; waits for all processes."""
    if store.rank == 0:
        store.set_optimizer(rule)  # waits until each server has it, or has failed to load it
    store._barrier()


def install_keeping(store: Any, servers: int) -> None:
    """Give ``servers`` servers, whose workers do not wait, a rule that keeps what is pushed.

    Without any, such a server dies of the first push, and its workers wait for ever: so the first
    is MXNet's own, which adds, and which every server can load. Raises RunError, in all processes,
    for servers that cannot load gluonlab's.
    """
    install(store, mx.optimizer.create("test"))
    install(store, ServerRule())
    first = new_keys(store, servers)
    kept = [nd.zeros((servers,)) for _ in range(servers)]  # whole on one server, or cut over all
    for key, array in enumerate(kept, start=first):
        store.init(key, nd.ones((servers,)))
        store.pushpull(key, array)
    if any(array.asnumpy().any() for array in kept):
        raise RunError(NOT_TAKEN)


class ServedWeights:
    """Weights on the servers of ``store``, which ``optimizer`` updates there; see `Group.serve`.

    With ``copies`` each worker pushes to a copy of its own and gets the weights as they are then;
    otherwise all workers push to one, and the server updates it once it has all of their gradients.
    """

    def __init__(
        self,
        store: Any,
        copies: bool,
        optimizer: Any,
        flats: Sequence[Flat],
        weights: Sequence[nd.NDArray],
        told: bool,
    ) -> None:
        """``told``: whether this worker, alone of all, is to learn the staleness."""
        self._store, self._copies = store, copies
        # no matter of the store's own rank: MXNet numbers the workers as they come
        self._asks = told or not copies
        self.staleness: Optional[List[int]] = None
        servers, workers = flats[0].servers, store.num_workers
        first = new_keys(store, len(flats))
        self._weights = range(first, first + len(flats))
        of_worker: Dict[int, Tuple[int, int]] = {}
        for key in self._weights if copies else ():
            # on the server that has the weights, where they are whole on one
            begin = new_keys(store, servers * (workers + 1))
            begin += (key - begin) % servers
            of_worker.update({begin + servers * rank: (key, rank) for rank in range(workers)})
        first = new_keys(store, servers)
        self._notes = range(first, first + servers)
        places = {key: server_of(key, servers) for key in self._notes}
        install(store, ServerRule(optimizer, dict(zip(self._weights, flats)), of_worker, places))
        for key in self._notes:
            store.init(key, nd.array(first_note(servers)).reshape((-1,)))
        self._exchange_notes()
        arrays = dict(zip(self._weights, weights))
        for key, array in arrays.items():
            store.init(key, array)
        for key, (of, _) in of_worker.items():
            store.init(key, arrays[of])
        self._targets = list(self._weights)
        if copies:
            self._targets = [key for key, (_, rank) in of_worker.items() if rank == store.rank]
            self._register(arrays)

    def _register(self, arrays: Dict[int, nd.NDArray]) -> None:
        """Show the servers the weights that stand behind the copies."""
        for key, array in arrays.items() if self._store.rank == 0 else ():
            self._store.pushpull(key, array.copy())
        nd.waitall()
        self._store._barrier()

    def update(self, place: int, array: nd.NDArray, priority: int = 0) -> None:
        """Queue: the gradient ``array``, of the weights at ``place``, becomes the new weights."""
        self._store.pushpull(self._targets[place], array, priority=priority)

    def meet(self, arrays: Sequence[nd.NDArray]) -> None:
        """Wait for all processes, and put the weights into ``arrays``, the same in all of them."""
        nd.waitall()  # every push of this process has been answered
        if not self._copies:
            return
        self._store._barrier()
        for key, array in zip(self._weights, arrays):
            self._store.pull(key, array)
        nd.waitall()
        self._store._barrier()
        self._exchange_notes()

    def _exchange_notes(self) -> None:
        """Rank 0, or where the servers wait for all, each worker, asks each server for its note.

        Raises RunError for servers that could not unpickle the optimizer.
        """
        servers = len(self._notes)
        notes = [nd.zeros((servers * NOTE,)) for _ in self._notes]
        for key, note in zip(self._notes, notes):
            if self._asks:
                self._store.pushpull(key, note)
        if self._asks:
            told = sum(note.asnumpy().reshape((servers, NOTE)) for note in notes)
            if not told[:, 1].all():
                raise RunError(NOT_TAKEN)
            counts = told[:, 2:].sum(axis=0).astype(int)
            self.staleness = counts[: np.flatnonzero(counts).max(initial=0) + 1].tolist()
        self._store._barrier()
