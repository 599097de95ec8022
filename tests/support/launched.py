"""Runs of gluonlab launch by several processes on this machine."""

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
    """The exit status and output of a process."""

    status: int
    out: str
    err: str


@contextmanager
def horovod_environments(count):
    """Yield the environments that Horovod's launcher sets, with Gloo on the loopback device."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer()
    port = server.start()
    server.init(get_host_assignments(parse_hosts(f"localhost:{count}"), count))
    shared = {
        "HOROVOD_SIZE": str(count), "HOROVOD_LOCAL_SIZE": str(count), "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1", "HOROVOD_HOSTNAME": "localhost", "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port), "HOROVOD_GLOO_IFACE": "lo",
    }  # fmt: skip
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
# Parameter servers start slowly, so these tests are long; make check-launch runs them on Horovod.
each_slow_backend = pytest.mark.parametrize(
    "backend", [pytest.param("dist_sync", marks=pytest.mark.long), pytest.param("horovod", marks=pytest.mark.horovod)]
)


def run_launches(backend, folder, *options, count=2, of_rank=None, timeout=600, meanwhile=None, **how):
    """Run ``count`` processes in ``folder``; return a FinishedProcess for each.

    Args:
        backend: the backend.
        folder: the working folder.
        options: the options of all processes.
        count: the number of processes.
        of_rank: {rank: more options}.
        timeout: seconds for all processes.
        meanwhile: called with the started processes.
        how: more arguments of `start_servers`.
    """
    started, deadline = [], time.monotonic() + timeout
    with BACKENDS[backend](count, **how) as (environments, _):
        try:
            for rank, environment in enumerate(environments):
                more = (of_rank or {}).get(rank, ())
                command = [sys.executable, "-m", "gluonlab.launch", "--backend", backend]
                outputs = [(folder / f"{name}-{rank}").open("w+") for name in ("out", "err")]
                process = subprocess.Popen(
                    [*command, *map(str, (*options, *more))],
                    env=environment, cwd=folder, stdout=outputs[0], stderr=outputs[1],
                )  # fmt: skip
                started.append((process, outputs))
            if meanwhile is not None:
                meanwhile([process for process, _ in started])
            for process, _ in started:
                process.wait(deadline - time.monotonic())
        finally:
            kill_processes([process for process, _ in started])
    finished = []
    for process, outputs in started:
        for file in outputs:
            file.seek(0)
        finished.append(FinishedProcess(process.returncode, *(file.read() for file in outputs)))
        for file in outputs:
            file.close()
    return finished


def option_words(**options):
    """Return options as words of a command line."""
    return [
        word
        for name, value in options.items()
        for word in ([f"--{name.replace('_', '-')}"] + [str(value)] * (value is not True))
    ]


def parameter_vectors(folder):
    """Return the learned parameters of a run as one vector, and each of the running statistics."""
    # One vector: a shift of BatchNorm near zero consists of the rounding errors of its gradient.
    arrays = {name: array.asnumpy() for name, array in nd.load(str(folder / run_schema.PARAMETERS)).items()}
    running = [name for name in sorted(arrays) if "running" in name]
    learned = [arrays[name].ravel() for name in sorted(set(arrays) - set(running))]
    return [np.concatenate(learned), *(arrays[name] for name in running)]
