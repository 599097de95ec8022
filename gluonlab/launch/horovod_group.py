"""Groups of processes over Horovod."""

from __future__ import annotations

import atexit
import os
import socket
from contextlib import suppress
from typing import Optional

import mxnet as mx
from mxnet import nd

from gluonlab.engine.local_processes import set_local_process_count
from gluonlab.errors import ConfigError, EngineError
from gluonlab.kvstores.process_groups import SummingGroup
from gluonlab.launch.group_processes import gpus_of
from gluonlab.launch.horovod_settings import settle_environment
from gluonlab.launch.network_addresses import addresses, is_loop


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
        _check_own_name()
        atexit.register(_forget_failures)  # before init's own, and so after that at the end
        hvd.init()
        super().__init__(hvd.rank(), hvd.size())
        self._allreduce = hvd.allreduce_
        self.local_rank = hvd.local_rank()
        set_local_process_count(hvd.local_size())  # before devices take threads, and decoders start

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


def _check_own_name() -> None:
    """Raise ConfigError where other hosts could not reach this one by what Horovod tells them.

    Horovod 0.28.1 makes the sums of its process set over a device of its own, for which it forgets
    the interface that it was told (GlooContext::InitializeForProcessSet), so that gloo takes the
    first address of gethostname() that can be bound. On many a host /etc/hosts says 127.0.1.1, and
    the others would look for it on themselves.

    Only for what `gluonlab.launch.group_processes` or horovodrun has set up over gloo, on several
    hosts.
    """
    told = os.environ.get
    meeting, interface = told("HOROVOD_GLOO_RENDEZVOUS_ADDR"), told("HOROVOD_GLOO_IFACE")
    if meeting is None or told("HOROVOD_LOCAL_SIZE") == told("HOROVOD_SIZE") or is_loop(meeting):
        return
    name = socket.gethostname()
    taken = _address_of(name)
    if taken is None or is_loop(taken):
        own = [address for address, its in addresses().items() if its == interface]
        leads = "to no address of it" if taken is None else f"to {taken}"
        raise ConfigError(
            f"the name of this host, {name}, leads {leads}, which "
            "Horovod would tell the other hosts: let it lead to "
            f"{own[0] if own else 'one that they reach'}, in its /etc/hosts"
        )


def _address_of(name: str) -> Optional[str]:
    """The first address that a name leads to and that is one of this host's."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return None
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as trial:
                trial.bind(address)
        except OSError:
            continue
        return str(address[0])
    return None
