"""MXNet's parameter server on this machine, with a scheduler, servers and workers."""

import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from gluonlab.engine.parameter_server_role import NO_PARAMETER_SERVER, has_parameter_server
from support.processes import clean_environment


def require_parameter_server():
    """Skip the test on a platform whose MXNet has no parameter server."""
    if not has_parameter_server():
        pytest.skip(NO_PARAMETER_SERVER)


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


@contextmanager
def start_servers(count, servers=1, serve="import gluonlab, mxnet", **variables):
    """Start a scheduler and servers until the block ends.

    Yield the environments of ``count`` workers, and a server process. ``serve``: the code of a
    server.
    """
    require_parameter_server()
    shared = {
        "DMLC_NUM_WORKER": str(count),
        "DMLC_NUM_SERVER": str(servers),
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
    }
    environments = {
        role: clean_environment(DMLC_ROLE=role, **shared, **variables) for role in ("scheduler", "server", "worker")
    }
    started = []
    try:
        for role in ("scheduler", *["server"] * servers):
            command = [sys.executable, "-c", serve]
            started.append(subprocess.Popen(command, env=environments[role]))
        yield [environments["worker"]] * count, started[-1]
    finally:
        kill_processes(started)


@contextmanager
def start_workers(count, code, *arguments, **variables):
    """Start workers that run ``code``, with their servers, until the block ends.

    Yield the processes of the workers.
    """
    started = []
    with start_servers(count, **variables) as (environments, _):
        try:
            for environment in environments:
                command = [sys.executable, "-c", code, *arguments]
                started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, encoding="utf-8"))
            yield started
        finally:
            kill_processes(started)


def kill_processes(processes):
    for process in processes:
        process.kill()
        process.wait()
