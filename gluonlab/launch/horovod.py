"""Groups of processes over Horovod."""

from __future__ import annotations

import mxnet as mx
from mxnet import nd

from gluonlab.config import TrainConfig
from gluonlab.engine.neighbours import tell
from gluonlab.errors import EngineError
from gluonlab.kvstores.groups import SummingGroup


class Horovod(SummingGroup):
    """Processes that horovodrun or mpirun has started. Raises EngineError without Horovod."""

    name = "horovod"

    def __init__(self) -> None:
        try:
            import horovod.mxnet as hvd
        except ImportError as error:
            raise EngineError(
                f"--backend horovod: Horovod for MXNet cannot be imported ({error}): "
                "install it, as it is in SageMaker's image"
            ) from None
        hvd.init()
        super().__init__(hvd.rank(), hvd.size())
        self._allreduce = hvd.allreduce_
        self.local_rank = hvd.local_rank()
        tell(hvd.local_size())  # before devices take threads, and decoders start

    def place(self, config: TrainConfig) -> TrainConfig:
        """With the devices of this process, where ``config`` does not name them.

        Of a host's GPUs each process has --gpus, or one, by its number there; without GPUs it has
        one CPU device, unless --gpus says how many.
        """
        if config.devices is not None:
            return config
        if mx.context.num_gpus():
            count = config.gpus or 1
            numbers = range(self.local_rank * count, (self.local_rank + 1) * count)
            return config.replace(gpus=None, devices="gpu:" + ",".join(map(str, numbers)))
        if config.gpus is not None or config.require_gpu:
            return config
        return config.replace(devices="cpu*1")

    def sum_array(self, number: int, array: nd.NDArray, priority: int) -> None:
        # average, and not op, which SageMaker's older Horovod does not have
        self._allreduce(array, average=False, name=f"gluonlab.{number}", priority=priority)
