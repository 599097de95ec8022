"""A worker's process group over MXNet's parameter server, and weights that the servers update.

`ParameterServer` is the process group of a worker. `ServedWeights` are weights that the servers
keep and update. A flat array holds several parameters, one after another. This module does not
start servers: see `gluonlab.launch.group_processes`.
"""

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
from gluonlab.engine.parameter_server_role import (
    explain_missing_parameter_server,
    has_parameter_server,
    parameter_server_count,
)
from gluonlab.errors import EngineError, RunError
from gluonlab.kvstores.mxnet_stores import allocate_keys
from gluonlab.kvstores.process_groups import ProcessGroup, SummingGroup
from gluonlab.launch.group_processes import LOCAL_RANK_VARIABLE, LOCAL_SIZE_VARIABLE, RANK_VARIABLE, gpus_of_local_rank
from gluonlab.optimizers.server_optimizer import (
    STALENESS_REPORT_SIZE,
    FlatLayout,
    ServerOptimizer,
    assigned_server,
    initial_staleness_report,
)

SYNC, DEVICE_SYNC, ASYNC = "dist_sync", "dist_device_sync", "dist_async"
NAMES = (SYNC, DEVICE_SYNC, ASYNC)
HOST_NUMBER_BYTES = 6  # float64 stores whole numbers of up to 53 bits exactly
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
RULE_NOT_LOADED = (
    "the servers have loaded mxnet without gluonlab, so they cannot run its optimizers: start "
    "them with python -c 'import gluonlab, mxnet', or use --backend dist_sync without "
    "--update-on-servers"
)


class ParameterServer(SummingGroup):
    """A worker's process group that communicates over MXNet's parameter server.

    The environment variable DMLC_PS_ROOT_URI contains the scheduler's address. By default, the
    servers sum gradients, and the workers update the weights. After `start_serving_weights`, the
    servers update the weights with an optimizer that is sent to them as a pickle.

    - ``dist_sync`` and ``dist_device_sync`` are equivalent here. In MXNet they differ only in the
      device on which a process adds its own arrays, but here each process passes a single array.
    - ``dist_async``: `ServedWeights.update` does not wait for other workers. All other methods
      return the same results as with ``dist_sync``.

    Raises EngineError if no scheduler is set, and RunError if the servers cannot load gluonlab's
    optimizers.
    """

    def __init__(self, name: str = SYNC) -> None:
        """Join the group. ``name``: the name of MXNet's kvstore, one of `NAMES`."""
        self.name, self.is_synchronous = name, name != ASYNC
        try:
            self._store = mx.kv.create(name)
        except mx.base.MXNetError:
            if not has_parameter_server():
                raise EngineError(explain_missing_parameter_server(f"--backend {name}")) from None
            raise EngineError(
                f"--backend {name}: the environment contains no scheduler address: start this "
                "program with gluonlab launch -n 2 -- python YOUR_PROGRAM.py, or, on SageMaker, "
                "set sagemaker_parameter_server_enabled"
            ) from None
        # MXNet's scheduler numbers the workers in order of arrival
        rank = int(os.environ.get(RANK_VARIABLE, self._store.rank))
        super().__init__(rank, self._store.num_workers)
        self.servers = parameter_server_count()
        self._keys: Dict[int, int] = {}  # the first key in the kvstore, by the number of the sum
        self._served: Optional[ServedWeights] = None
        if not self.is_synchronous:
            _install_storing_rule(self._store, self.servers)
        # The threads of devices and the number of decoders, which are set later, depend on this.
        set_local_process_count(_count_local_processes(self))

    def leave(self, together: bool) -> None:
        """Free the kvstore now, because MXNet would drop the kvstore's queued operations at exit.

        ``together``: whether all workers leave the group. If so, they wait for each other at exit.
        A worker that fails on its own must not wait.
        """
        if not together:
            check_call(_LIB.MXKVStoreSetBarrierBeforeExit(self._store.handle, 0))
        self._served = None
        del self._store

    def start_serving_weights(
        self, optimizer: Any, flats: Sequence[FlatLayout], weights: Sequence[nd.NDArray]
    ) -> ServedWeights:
        """Make the servers update weights with ``optimizer``, starting from rank 0's weights.

        In asynchronous groups, the servers also keep a separate copy of the weights for each
        worker.

        Args:
            optimizer: the optimizer, which is sent to the servers as a pickle
            flats: the layout of each flat array of parameters
            weights: the flat arrays of initial weights, one for each layout
        """
        if self._served is not None:
            raise RunError("the servers already store the weights of another trainer: create a new process group")
        self._served = ServedWeights(
            self._store, not self.is_synchronous, optimizer, flats, weights, is_rank_0=self.rank == 0
        )
        return self._served

    def staleness(self) -> Optional[List[int]]:
        """Return a histogram of how stale the updates were; None in synchronous groups.

        Element n counts the updates whose worker had missed n updates by other workers since it
        last received the weights.
        """
        return None if self._served is None or self.is_synchronous else self._served.staleness

    def own_devices(self, gpus: Optional[int] = None) -> Optional[str]:
        """Return this process's GPUs, such as ``gpu:2,3``, based on its local rank.

        ``gpus``: number of GPUs per process; None for one. Returns None on a host without GPUs, or
        if the launcher has not started several processes on this host.
        """
        shared = int(os.environ.get(LOCAL_SIZE_VARIABLE, 1)) > 1 and LOCAL_RANK_VARIABLE in os.environ
        if shared and mx.context.num_gpus():
            return gpus_of_local_rank(int(os.environ[LOCAL_RANK_VARIABLE]), gpus)
        return None

    def sum_array(self, number: int, array: nd.NDArray, priority: int) -> None:
        """Queue the sum of ``array`` over the processes. The sum replaces the values of ``array``.

        The first call with a ``number`` waits until all processes have made a call with this
        number. In asynchronous groups, every call waits for the sum.
        """
        key_count = 1 if self.is_synchronous else self.size
        if number not in self._keys:
            self._keys[number] = allocate_keys(self._store, key_count)
            for key in range(self._keys[number], self._keys[number] + key_count):
                self._store.init(key, nd.zeros(array.shape, dtype=array.dtype))
        if self.is_synchronous:
            # one push-and-pull, because a busy server may answer a separate pull with later pushes
            self._store.pushpull(self._keys[number], array, priority=priority)
        else:
            self._sum_over_servers(self._keys[number], array)

    def _sum_over_servers(self, first_key: int, array: nd.NDArray) -> None:
        """Sum the arrays of all processes into ``array``.

        The servers store each process's array under the key ``first_key`` + rank. Each process then
        reads and adds all of these arrays.
        """
        self._store.pushpull(first_key + self.rank, array)
        array.wait_to_read()  # the server has the array once it has answered
        self._store._barrier()
        parts = [nd.empty(array.shape, array.context, array.dtype) for _ in range(self.size)]
        for rank, part in enumerate(parts):
            self._store.pull(first_key + rank, part)
        array[:] = 0
        for part in parts:  # the same order in all processes, for bit-identical sums
            array += part
        array.wait_to_read()
        self._store._barrier()  # no process sends its next array before all have this sum


def _host_number() -> int:
    """Return a hash of this host's name and boot ID, from 1 to 2**48, which identifies the host."""
    try:
        started = BOOT_ID.read_text()
    except OSError:
        started = ""
    digest = hashlib.sha256(f"{socket.gethostname()}\n{started}".encode()).digest()
    return 1 + int.from_bytes(digest[:HOST_NUMBER_BYTES], "big")


def _count_local_processes(group: ProcessGroup) -> int:
    """Return how many of the group's processes are on this host.

    All processes must call this function.
    """
    number = np.array([_host_number()])
    return int((group.all_gather(number) == number).sum())


# --- Weights that the servers keep and update
#
# The "rule" of a server is the optimizer that it calls with each pushed array. It is sent to the
# server as a pickle.


def _install_rule(store: Any, rule: mx.optimizer.Optimizer) -> None:
    """Install the optimizer ``rule`` on all servers.

    Wait until all workers have called this function.
    """
    if store.rank == 0:
        store.set_optimizer(rule)  # waits until each server has loaded it or failed
    store._barrier()


def _install_storing_rule(store: Any, servers: int) -> None:
    """Make asynchronous servers replace the stored array with each pushed array.

    Raises RunError in all processes if the servers cannot load gluonlab's optimizers.
    """
    # A server without any rule crashes at the first push, and its workers hang. So MXNet's own rule
    # "test" is installed first. Every server can load this rule, which adds pushed arrays.
    _install_rule(store, mx.optimizer.create("test"))
    _install_rule(store, ServerOptimizer())
    first_key = allocate_keys(store, servers)
    # Test of all servers: pushed zeros replace the ones, unless a server still has the adding rule.
    # Each array is on one server, or divided over all servers.
    arrays = [nd.zeros((servers,)) for _ in range(servers)]
    for key, array in enumerate(arrays, start=first_key):
        store.init(key, nd.ones((servers,)))
        store.pushpull(key, array)
    if any(array.asnumpy().any() for array in arrays):
        raise RunError(RULE_NOT_LOADED)


class ServedWeights:
    """Weights that the parameter servers keep and update.

    In synchronous groups all workers push gradients to the same key. The server updates the weights
    once it has the gradients of all workers. In asynchronous groups each worker pushes to its own
    key, which stands for its own copy of the weights. The server then updates the weights at once,
    and returns the new weights.

    A "report" is an array on each server in which the server reports two things: whether it could
    unpickle the optimizer, and how stale the updates were.
    """

    def __init__(
        self,
        store: Any,
        copies: bool,
        optimizer: Any,
        flats: Sequence[FlatLayout],
        weights: Sequence[nd.NDArray],
        is_rank_0: bool,
    ) -> None:
        """Install the optimizer and the initial weights on the servers.

        Args:
            store: MXNet's kvstore
            copies: whether each worker pushes to the key of its own copy, as in asynchronous groups
            optimizer: the optimizer that the servers run
            flats: the layout of each flat array of parameters
            weights: the flat arrays of initial weights, one for each layout
            is_rank_0: whether this worker is rank 0. MXNet's store numbers the workers differently,
                in their order of arrival.
        """
        self._store, self._has_copies = store, copies
        self._reads_notes = is_rank_0 or not copies
        self.staleness: Optional[List[int]] = None
        servers, workers = flats[0].servers, store.num_workers
        first_key = allocate_keys(store, len(flats))
        self._weights = range(first_key, first_key + len(flats))
        # (the key of the weights, the worker's rank) by the key of the worker's copy
        worker_copies: Dict[int, Tuple[int, int]] = {}
        for key in self._weights if copies else ():
            # MXNet chooses the server of a small array by its key modulo the number of servers. So
            # these keys put the copies on the same server as their weights.
            copy_key = allocate_keys(store, servers * (workers + 1))
            copy_key += (key - copy_key) % servers
            worker_copies.update({copy_key + servers * rank: (key, rank) for rank in range(workers)})
        first_key = allocate_keys(store, servers)
        self._report_keys = range(first_key, first_key + servers)
        server_by_key = {key: assigned_server(key, servers) for key in self._report_keys}
        _install_rule(store, ServerOptimizer(optimizer, dict(zip(self._weights, flats)), worker_copies, server_by_key))
        for key in self._report_keys:
            store.init(key, nd.array(initial_staleness_report(servers)).reshape((-1,)))
        self._exchange_staleness_reports()
        arrays = dict(zip(self._weights, weights))
        for key, array in arrays.items():
            store.init(key, array)
        for key, (weights_key, _) in worker_copies.items():
            store.init(key, arrays[weights_key])
        self._targets = list(self._weights)
        if copies:
            self._targets = [key for key, (_, rank) in worker_copies.items() if rank == store.rank]
            self._register(arrays)

    def _register(self, arrays: Dict[int, nd.NDArray]) -> None:
        """Push the initial weights once, from rank 0. Then wait for all workers."""
        for key, array in arrays.items() if self._store.rank == 0 else ():
            self._store.pushpull(key, array.copy())
        nd.waitall()
        self._store._barrier()

    def update(self, index: int, array: nd.NDArray, priority: int = 0) -> None:
        """Queue the update of flat array number ``index``.

        ``array`` contains the gradient. The new weights replace the gradient in ``array``.
        """
        self._store.pushpull(self._targets[index], array, priority=priority)

    def synchronize(self, arrays: Sequence[nd.NDArray]) -> None:
        """Wait for all processes. In asynchronous groups, copy the current weights to ``arrays``.

        These weights are the same in all processes.
        """
        nd.waitall()  # for the answers to all pushes of this process
        if not self._has_copies:
            return
        self._store._barrier()
        for key, array in zip(self._weights, arrays):
            self._store.pull(key, array)
        nd.waitall()
        self._store._barrier()
        self._exchange_staleness_reports()

    def _exchange_staleness_reports(self) -> None:
        """Read each server's report, and set ``staleness`` from the reports.

        In asynchronous groups, only rank 0 reads the reports. Raises RunError if a server could not
        unpickle the optimizer.
        """
        servers = len(self._report_keys)
        reports = [nd.zeros((servers * STALENESS_REPORT_SIZE,)) for _ in self._report_keys]
        for key, report in zip(self._report_keys, reports):
            if self._reads_notes:
                self._store.pushpull(key, report)
        if self._reads_notes:
            values = sum(report.asnumpy().reshape((servers, STALENESS_REPORT_SIZE)) for report in reports)
            if not values[:, 1].all():
                raise RunError(RULE_NOT_LOADED)
            counts = values[:, 2:].sum(axis=0).astype(int)
            self.staleness = counts[: np.flatnonzero(counts).max(initial=0) + 1].tolist()
        self._store._barrier()
