"""Groups of processes over Horovod."""

from __future__ import annotations

import atexit
from contextlib import suppress
from typing import Optional

import mxnet as mx
from mxnet import nd

from gluonlab.engine.neighbours import tell
from gluonlab.errors import EngineError
from gluonlab.kvstores.groups import SummingGroup
from gluonlab.launch.horovod_settings import settle_environment
from gluonlab.launch.own_name import check_own_name
from gluonlab.launch.same_host import gpus_of


class Horovod(SummingGroup):
    """Processes that horovodrun or mpirun has started. Raises EngineError without Horovod."""

    name = "horovod"
    sums_float16 = True

    def __init__(self) -> None:
        try:
            import horovod.mxnet as hvd
        except ImportError as error:
            raise EngineError(
                f"--backend horovod: Horovod for MXNet cannot be imported ({error}): "
                "compile it as docs/launch.md says, or choose --backend dist_sync"
            ) from None
        settle_environment()
        check_own_name()
        atexit.register(_forget_failures)  # before init's own, and so after that at the end
        hvd.init()
        super().__init__(hvd.rank(), hvd.size())
        self._allreduce = hvd.allreduce_
        self.local_rank = hvd.local_rank()
        tell(hvd.local_size())  # before devices take threads, and decoders start

    def own_devices(self, gpus: Optional[int] = None) -> Optional[str]:
        """As `Group` says.

        Of a host's GPUs each process has ``gpus``, or one, by its number there; without GPUs it has
        one CPU device, unless ``gpus`` says how many.
        """
        if mx.context.num_gpus():
            return gpus_of(self.local_rank, gpus)
        return "cpu*1" if gpus is None else None

    def sum_array(self, number: int, array: nd.NDArray, priority: int) -> None:
        # average, and not op, which SageMaker's older Horovod does not have
        self._allreduce(array, average=False, name=f"gluonlab.{number}", priority=priority)


def _forget_failures() -> None:
    """Take the errors of sums that could not end, as another process had died.

    MXNet, which keeps them, would raise one as Python ends, and so print a trace behind the line
    that says why this process does.
    """
    with suppress(mx.base.MXNetError):
        nd.waitall()
