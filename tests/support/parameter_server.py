"""MXNet's parameter server on this machine: a scheduler, a server, and workers that run a piece of
Python.
"""

import socket
import subprocess
import sys
from contextlib import contextmanager

from support.processes import clean_environment


@contextmanager
def parameter_server(count, code, *arguments, **variables):
    """``count`` workers that run ``code``, with scheduler and server: the workers' processes.

    All end with the block.
    """
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    shared = {
        "DMLC_NUM_WORKER": str(count),
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(port),
    }
    started = []

    def start(role, code, *arguments):
        environ = clean_environment(DMLC_ROLE=role, **shared, **variables)
        command = [sys.executable, "-c", code, *arguments]
        started.append(
            subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, encoding="utf-8")
        )
        return started[-1]

    try:
        for role in ("scheduler", "server"):
            start(role, "import gluonlab, mxnet")
        yield [start("worker", code, *arguments) for _ in range(count)]
    finally:
        for process in started:
            process.kill()
            process.wait()
