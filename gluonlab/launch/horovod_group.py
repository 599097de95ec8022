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
from gluonlab.launch.group_processes import gpus_of_local_rank
from gluonlab.launch.horovod_settings import set_horovod_defaults
from gluonlab.launch.network_addresses import ipv4_addresses, is_loopback


class Horovod(SummingGroup):
    """A group of processes that horovodrun or mpirun has started. Raises EngineError without
    Horovod.
    """

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
        set_horovod_defaults()
        _check_hostname_address()
        # Registered before init's own handler, and so called after that.
        atexit.register(_consume_failed_sums)
        hvd.init()
        super().__init__(hvd.rank(), hvd.size())
        self._allreduce = hvd.allreduce_
        self.local_rank = hvd.local_rank()
        set_local_process_count(hvd.local_size())  # before devices take threads, and decoders start

    def own_devices(self, gpus: Optional[int] = None) -> Optional[str]:
        """Return this process's devices: ``gpus`` GPUs of the host, or one, by the local rank.

        Without GPUs, return one CPU device, or None if ``gpus`` is given.
        """
        if mx.context.num_gpus():
            return gpus_of_local_rank(self.local_rank, gpus)
        return "cpu*1" if gpus is None else None

    def sum_array(self, number: int, array: nd.NDArray, priority: int) -> None:
        # `average` instead of `op`, which SageMaker's older Horovod lacks
        self._allreduce(array, average=False, name=f"gluonlab.{number}", priority=priority)


def _consume_failed_sums() -> None:
    """Consume the errors of sums that failed because another process died.

    Otherwise MXNet raises one of them when Python exits, and prints a traceback after the error
    message of this process.
    """
    with suppress(mx.base.MXNetError):
        nd.waitall()


def _check_hostname_address() -> None:
    """Raise ConfigError if other hosts cannot reach this one by Horovod's address of it.

    Horovod 0.28.1 sums over a gloo device that ignores the configured interface
    (GlooContext::InitializeForProcessSet). gloo binds the first possible address of gethostname().
    On many hosts /etc/hosts maps that name to 127.0.1.1, where the others would reach themselves.

    Checks only groups over gloo on several hosts, set up by `gluonlab.launch.group_processes` or
    horovodrun.
    """
    getenv = os.environ.get
    rendezvous, interface = getenv("HOROVOD_GLOO_RENDEZVOUS_ADDR"), getenv("HOROVOD_GLOO_IFACE")
    if (
        rendezvous is None
        or getenv("HOROVOD_LOCAL_SIZE") == getenv("HOROVOD_SIZE")
        or is_loopback(rendezvous)
    ):
        return
    name = socket.gethostname()
    address = _first_local_address(name)
    if address is None or is_loopback(address):
        candidates = [
            own for own, its_interface in ipv4_addresses().items() if its_interface == interface
        ]
        target = "to no address of it" if address is None else f"to {address}"
        raise ConfigError(
            f"the name of this host, {name}, leads {target}, which "
            "Horovod would tell the other hosts: let it lead to "
            f"{candidates[0] if candidates else 'one that they reach'}, in its /etc/hosts"
        )


def _first_local_address(name: str) -> Optional[str]:
    """Return the first address of a name that this host can bind; None without one."""
    try:
        candidates = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return None
    for family, kind, protocol, _, address in candidates:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
        except OSError:
            continue
        return str(address[0])
    return None
