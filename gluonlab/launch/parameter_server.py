"""Groups of processes over MXNet's parameter server."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Sequence

import mxnet as mx
from mxnet import nd
from mxnet.base import _LIB, check_call

from gluonlab.engine.neighbours import tell
from gluonlab.engine.parameter_server import parameter_servers
from gluonlab.errors import EngineError, RunError
from gluonlab.kvstores.groups import SummingGroup
from gluonlab.kvstores.processes import new_keys
from gluonlab.launch.parts import LOCAL_RANK, LOCAL_SIZE, RANK
from gluonlab.launch.same_host import gpus_of, processes_here
from gluonlab.launch.served_weights import ServedWeights, install_keeping
from gluonlab.optimizers.served import Flat

SYNC, DEVICE_SYNC, ASYNC = "dist_sync", "dist_device_sync", "dist_async"
NAMES = (SYNC, DEVICE_SYNC, ASYNC)


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
        self.servers = parameter_servers()
        self._keys: Dict[int, int] = {}  # by the number of the sum
        self._served: Optional[ServedWeights] = None
        if not self.waits:
            install_keeping(self._store, self.servers)
        tell(processes_here(self))  # before devices take threads, and decoders start

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
