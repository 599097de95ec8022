"""Groups of processes over MXNet's parameter server: its servers sum, the processes update."""

from __future__ import annotations

from typing import Dict

import mxnet as mx
from mxnet import nd
from mxnet.base import _LIB, check_call

from gluonlab.config import TrainConfig
from gluonlab.engine.neighbours import tell
from gluonlab.errors import EngineError
from gluonlab.kvstores.groups import SummingGroup
from gluonlab.kvstores.processes import new_keys
from gluonlab.launch.same_host import processes_here


class ParameterServer(SummingGroup):
    """Workers of MXNet's parameter server, whose scheduler the environment names.

    What travels is numbers, never an optimizer as a pickle. Each sum is one push-and-pull of its
    own key: a busy server takes the latest message first, and so may answer a plain pull with what
    was pushed after it. Raises EngineError where the environment names no scheduler.
    """

    name = "parameter-server"

    def __init__(self) -> None:
        try:
            self._store = mx.kv.create("dist_sync")
        except mx.base.MXNetError:
            raise EngineError(
                "--backend parameter-server: this process's environment names no scheduler: "
                "start it with MXNet's launch.py, "
                "or on SageMaker with sagemaker_parameter_server_enabled"
            ) from None
        super().__init__(self._store.rank, self._store.num_workers)
        self._keys: Dict[int, int] = {}  # by the number of the sum
        tell(processes_here(self))  # before devices take threads, and decoders start

    def place(self, config: TrainConfig) -> TrainConfig:
        """As it is: each worker has the devices that its options name."""
        return config

    def leave(self, together: bool) -> None:
        """Free the store before MXNet shuts down, which drops what is queued.

        The workers wait for each other there, unless this one fails alone.
        """
        if not together:
            check_call(_LIB.MXKVStoreSetBarrierBeforeExit(self._store.handle, 0))
        del self._store

    def sum_array(self, number: int, array: nd.NDArray, priority: int) -> None:
        """Queue the sum; a new number waits until all processes have come with it."""
        if number not in self._keys:
            self._keys[number] = new_keys(self._store, 1)
            self._store.init(self._keys[number], nd.zeros(array.shape, dtype=array.dtype))
        self._store.pushpull(self._keys[number], array, priority=priority)
