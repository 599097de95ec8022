"""A process group that communicates over Horovod."""

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
from gluonlab.launch.horovod_settings import explain_missing_horovod, set_horovod_defaults
from gluonlab.launch.ports_and_addresses import ipv4_addresses, is_loopback


class Horovod(SummingGroup):
    """A process group over Horovod. gluonlab, horovodrun or mpirun has started its processes.

    Raises EngineError if Horovod cannot be imported.
    """

    name = "horovod"
    sums_float16 = True

    def __init__(self) -> None:
        try:
            import horovod.mxnet as hvd
        except ImportError as error:
            raise EngineError(explain_missing_horovod(error)) from None
        set_horovod_defaults()
        _check_hostname_address()
        # Exit handlers run in reverse order. So this handler runs after that of hvd.init.
        atexit.register(_consume_failed_sums)
        hvd.init()
        super().__init__(hvd.rank(), hvd.size())
        self._allreduce = hvd.allreduce_
        self.local_rank = hvd.local_rank()
        # The threads of devices and the number of decoders, which are set later, depend on this.
        set_local_process_count(hvd.local_size())

    def own_devices(self, gpus: Optional[int] = None) -> Optional[str]:
        """Return this process's devices, such as ``gpu:2,3``, based on its local rank.

        ``gpus``: number of GPUs per process; None for one. On a host without GPUs, return one CPU
        device, or None if ``gpus`` is given.
        """
        if mx.context.num_gpus():
            return gpus_of_local_rank(self.local_rank, gpus)
        return "cpu*1" if gpus is None else None

    def sum_array(self, number: int, array: nd.NDArray, priority: int) -> None:
        # `average` instead of `op`, which SageMaker's older Horovod lacks
        self._allreduce(array, average=False, name=f"gluonlab.{number}", priority=priority)


def _consume_failed_sums() -> None:
    """Ignore the errors of sums that failed because another process died.

    Otherwise MXNet would raise such an error when Python exits, and print a traceback after this
    process's error message.
    """
    with suppress(mx.base.MXNetError):
        nd.waitall()


def _check_hostname_address() -> None:
    """Raise ConfigError if other hosts cannot reach this host at the address that Horovod uses.

    Horovod 0.28.1 uses a gloo device that ignores the configured interface
    (GlooContext::InitializeForProcessSet). gloo uses the first address of the hostname that it can
    bind. On many hosts /etc/hosts maps the hostname to 127.0.1.1. At this address, another host
    would reach itself.

    Only groups over gloo on several hosts are checked. `gluonlab.launch.group_processes` or
    horovodrun sets up such groups.
    """
    getenv = os.environ.get
    rendezvous, interface = getenv("HOROVOD_GLOO_RENDEZVOUS_ADDR"), getenv("HOROVOD_GLOO_IFACE")
    if rendezvous is None or getenv("HOROVOD_LOCAL_SIZE") == getenv("HOROVOD_SIZE") or is_loopback(rendezvous):
        return
    name = socket.gethostname()
    address = _first_local_address(name)
    if address is None or is_loopback(address):
        candidates = [own for own, its_interface in ipv4_addresses().items() if its_interface == interface]
        target = "does not resolve to one of its addresses" if address is None else f"resolves to {address}"
        raise ConfigError(
            f"the name of this host, {name}, {target}, so Horovod on the other hosts cannot reach this host: "
            f"map the name to {candidates[0] if candidates else 'a reachable address'} in "
            "/etc/hosts"
        )


def _first_local_address(name: str) -> Optional[str]:
    """Return the first address of a hostname that this host can bind; None if there is none."""
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
