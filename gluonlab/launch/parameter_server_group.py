"""Groups of processes over MXNet's parameter server, and the weights that its servers update."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd
from mxnet.base import _LIB, check_call

from gluonlab.engine.local_processes import set_local_process_count
from gluonlab.engine.parameter_server_environment import parameter_server_count
from gluonlab.errors import EngineError, RunError
from gluonlab.kvstores.mxnet_stores import new_keys
from gluonlab.kvstores.process_groups import Group, SummingGroup
from gluonlab.launch.group_processes import LOCAL_RANK, LOCAL_SIZE, RANK, gpus_of
from gluonlab.optimizers.server_optimizer import NOTE, Flat, ServerRule, first_note, server_of

SYNC, DEVICE_SYNC, ASYNC = "dist_sync", "dist_device_sync", "dist_async"
NAMES = (SYNC, DEVICE_SYNC, ASYNC)
BYTES = 6  # float64 holds whole numbers of 53 bits
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NOT_TAKEN = (
    "the servers have loaded mxnet without gluonlab, and cannot take its optimizers: start them as "
    "python -c 'import gluonlab, mxnet', or leave the update to the workers, with --backend "
    "dist_sync and without --update-on-servers"
)


class ParameterServer(SummingGroup):
    """Workers of MXNet's parameter server, whose scheduler the environment names.

    Its servers sum, and the workers update with numbers that travel; or, after `serve`, the servers
    update, with an optimizer that travels as a pickle. Each sum is one push-and-pull of its own
    key: a busy server takes the latest message first, and so may answer a plain pull with what was
    pushed after it. ``dist_device_sync`` adds up a process's own arrays on its devices, where
    ``dist_sync`` does on the CPU; a group gives it one array of each, so both do the same here.
    With ``dist_async`` nobody waits in `ServedWeights.update`; everything else is as exact as with
    the others. Raises EngineError where the environment names no scheduler, and RunError where
    its servers have to take a rule and cannot.
    """

    def __init__(self, name: str = SYNC) -> None:
        """``name``: what MXNet's store is made by, one of `NAMES`."""
        self.name, self.waits = name, name != ASYNC
        try:
            self._store = mx.kv.create(name)
        except mx.base.MXNetError:
            raise EngineError(
                f"--backend {name}: this process's environment names no scheduler: "
                "start it with gluonlab launch -n 2 -- python YOUR_PROGRAM.py, "
                "or on SageMaker with sagemaker_parameter_server_enabled"
            ) from None
        # MXNet's scheduler numbers the workers as they come
        rank = int(os.environ.get(RANK, self._store.rank))
        super().__init__(rank, self._store.num_workers)
        self.servers = parameter_server_count()
        self._keys: Dict[int, int] = {}  # by the number of the sum
        self._served: Optional[ServedWeights] = None
        if not self.waits:
            _install_keeping(self._store, self.servers)
        set_local_process_count(
            _processes_here(self)
        )  # before devices take threads, and decoders start

    def leave(self, together: bool) -> None:
        """Free the store before MXNet shuts down, which drops what is queued.

        The workers wait for each other there, unless this one fails alone.
        """
        if not together:
            check_call(_LIB.MXKVStoreSetBarrierBeforeExit(self._store.handle, 0))
        self._served = None
        del self._store

    def serve(
        self, optimizer: Any, flats: Sequence[Flat], weights: Sequence[nd.NDArray]
    ) -> ServedWeights:
        """As `Group` says. Where processes do not wait, each has a copy of them on the servers."""
        if self._served is not None:
            raise RunError("the servers keep the weights of another trainer: make a new group")
        self._served = ServedWeights(
            self._store, not self.waits, optimizer, flats, weights, told=self.rank == 0
        )
        return self._served

    def staleness(self) -> Optional[List[int]]:
        """As `Group` says."""
        return None if self._served is None or self.waits else self._served.staleness

    def own_devices(self, gpus: Optional[int] = None) -> Optional[str]:
        """As `Group` says.

        Where the launcher has started several processes on a host, each has ``gpus`` of its GPUs,
        or one, by its number there.
        """
        shared = int(os.environ.get(LOCAL_SIZE, 1)) > 1 and LOCAL_RANK in os.environ
        if shared and mx.context.num_gpus():
            return gpus_of(int(os.environ[LOCAL_RANK]), gpus)
        return None

    def sum_array(self, number: int, array: nd.NDArray, priority: int) -> None:
        """Queue the sum; a new number waits until all processes have come with it.

        Where processes do not wait for each other's gradients, this waits for the sum.
        """
        each = 1 if self.waits else self.size
        if number not in self._keys:
            self._keys[number] = new_keys(self._store, each)
            for key in range(self._keys[number], self._keys[number] + each):
                self._store.init(key, nd.zeros(array.shape, dtype=array.dtype))
        if self.waits:
            self._store.pushpull(self._keys[number], array, priority=priority)
        else:
            self._sum_of_all(self._keys[number], array)

    def _sum_of_all(self, first: int, array: nd.NDArray) -> None:
        """The servers keep what they are sent: of each process under a key of its own."""
        self._store.pushpull(first + self.rank, array)
        array.wait_to_read()  # the answer: it is there
        self._store._barrier()
        parts = [nd.empty(array.shape, array.context, array.dtype) for _ in range(self.size)]
        for place, part in enumerate(parts):
            self._store.pull(first + place, part)
        array[:] = 0
        for part in parts:  # in one order, so that all have the same bits
            array += part
        array.wait_to_read()
        self._store._barrier()  # nobody sends the next before all have this one


def _host_number() -> int:
    """A number for this host, 1 or more: another has the same once in 2^48 cases."""
    try:
        started = BOOT_ID.read_text()
    except OSError:
        started = ""
    digest = hashlib.sha256(f"{socket.gethostname()}\n{started}".encode()).digest()
    return 1 + int.from_bytes(digest[:BYTES], "big")


def _processes_here(group: Group) -> int:
    """How many processes of ``group`` are on this one's host, itself included; all must call it."""
    own = np.array([_host_number()])
    return int((group.everyones(own) == own).sum())


# --- Weights that the servers keep and update; the optimizer travels to them as a pickle


def _install(store: Any, rule: mx.optimizer.Optimizer) -> None:
    """Give all servers the rule; waits for all processes."""
    if store.rank == 0:
        store.set_optimizer(rule)  # waits until each server has it, or has failed to load it
    store._barrier()


def _install_keeping(store: Any, servers: int) -> None:
    """Give ``servers`` servers, whose workers do not wait, a rule that keeps what is pushed.

    Without any, such a server dies of the first push, and its workers wait for ever: so the first
    is MXNet's own, which adds, and which every server can load. Raises RunError, in all processes,
    for servers that cannot load gluonlab's.
    """
    _install(store, mx.optimizer.create("test"))
    _install(store, ServerRule())
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
        _install(store, ServerRule(optimizer, dict(zip(self._weights, flats)), of_worker, places))
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
