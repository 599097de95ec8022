"""python -m gluonlab.launch by several processes on this machine, over either backend."""

import subprocess
import sys
import time
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import pytest
from mxnet import nd

from gluonlab.runs import run_schema
from support.parameter_server import kill_processes, start_servers
from support.processes import clean_environment


class FinishedProcess(NamedTuple):
    """A process that has come to its end."""

    status: int
    out: str
    err: str


@contextmanager
def horovod_environments(count):
    """What Horovod's own launcher gives its processes, with Gloo on the loopback device."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer()
    port = server.start()
    server.init(get_host_assignments(parse_hosts(f"localhost:{count}"), count))
    shared = {
        "HOROVOD_SIZE": str(count),
        "HOROVOD_LOCAL_SIZE": str(count),
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_HOSTNAME": "localhost",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_GLOO_IFACE": "lo",
    }
    try:
        yield (
            [
                clean_environment(HOROVOD_RANK=str(rank), HOROVOD_LOCAL_RANK=str(rank), **shared)
                for rank in range(count)
            ],
            None,
        )
    finally:
        server.stop()


BACKENDS = {
    "dist_sync": start_servers,
    "dist_device_sync": start_servers,
    "dist_async": start_servers,
    "horovod": horovod_environments,
}
each_backend = pytest.mark.parametrize(
    "backend",
    [
        "dist_sync",
        pytest.param("dist_device_sync", marks=pytest.mark.long),
        pytest.param("horovod", marks=pytest.mark.horovod),
    ],
)
# what takes servers, which are slow to start, as long: make check-launch has it over Horovod
each_slow_backend = pytest.mark.parametrize(
    "backend",
    [
        pytest.param("dist_sync", marks=pytest.mark.long),
        pytest.param("horovod", marks=pytest.mark.horovod),
    ],
)


def run_launches(
    backend, folder, *options, count=2, of_rank=None, timeout=600, meanwhile=None, **how
):
    """How ``count`` processes with these options have ended, each in ``folder``.

    ``of_rank``: more options for the process that is started at this place. ``meanwhile``: is
    called with the processes once they are started. ``how``: more for `start_servers`.
    """
    started, until = [], time.monotonic() + timeout
    with BACKENDS[backend](count, **how) as (environments, _):
        try:
            for place, environment in enumerate(environments):
                more = (of_rank or {}).get(place, ())
                command = [sys.executable, "-m", "gluonlab.launch", "--backend", backend]
                said = [(folder / f"{name}-{place}").open("w+") for name in ("out", "err")]
                process = subprocess.Popen(
                    [*command, *map(str, (*options, *more))],
                    env=environment, cwd=folder, stdout=said[0], stderr=said[1],
                )  # fmt: skip
                started.append((process, said))
            if meanwhile is not None:
                meanwhile([process for process, _ in started])
            for process, _ in started:
                process.wait(until - time.monotonic())
        finally:
            kill_processes([process for process, _ in started])
    ended = []
    for process, said in started:
        for file in said:
            file.seek(0)
        ended.append(FinishedProcess(process.returncode, *(file.read() for file in said)))
        for file in said:
            file.close()
    return ended


def option_words(**options):
    """The options as a command line has them."""
    return [
        word
        for name, value in options.items()
        for word in ([f"--{name.replace('_', '-')}"] + [str(value)] * (value is not True))
    ]


def parameter_vectors(folder):
    """What is learned, as one vector (a shift of BatchNorm's may be next to zero, and then is
    rounding errors of its gradient's sum), and each of the running statistics.
    """
    arrays = {
        name: array.asnumpy()
        for name, array in nd.load(str(folder / run_schema.PARAMETERS)).items()
    }
    running = [name for name in sorted(arrays) if "running" in name]
    learned = [arrays[name].ravel() for name in sorted(set(arrays) - set(running))]
    return [np.concatenate(learned), *(arrays[name] for name in running)]
