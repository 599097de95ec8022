"""Starts the worker processes of measurements, sets their environment, and sends them requests.

Environment variables that tune MXNet or other libraries are set only for child processes. Only this
module, and benchmarks that need special settings, refer to such variables.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, NoReturn, Optional

from gluonlab.bench.harness.machine_info import CHECKOUT
from gluonlab.engine.parameter_server_role import has_parameter_server
from gluonlab.errors import ConfigError, RunError, unknown
from gluonlab.host.child_processes import die_with_parent, signal_group

# Variables with these prefixes change threads or engines. They are removed from the environment of
# every worker. A row of a table that needs some of them sets them again.
TUNING_PREFIXES = (
    "MXNET_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH", "DMLC_", "GLOO_",
)  # fmt: skip


def child_environment(variables: Mapping[str, str], folder: Path, checkout: Optional[Path] = None) -> Dict[str, str]:
    """Return the environment variables of a child process.

    The result contains ``variables`` and this process's variables, except variables that start with
    one of TUNING_PREFIXES. The child writes temporary files to ``folder``. The child imports
    gluonlab from ``checkout``. The default is the checkout from which this process imported
    gluonlab, even if another gluonlab is installed.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(TUNING_PREFIXES)}
    path = filter(None, [str(checkout or CHECKOUT), environment.get("PYTHONPATH")])
    paths = {"PYTHONPATH": os.pathsep.join(path), "TMPDIR": str(folder)}
    return {**environment, **paths, **variables}


# --- a worker, as its parent uses it

EXIT_GRACE_S = 3.0  # children that have not exited so long after the end of their input are killed


class WorkerError(RunError):
    """Error for a worker that died, reported an error, or did not answer in time."""


class Worker:
    """A child process that speaks the protocol of `gluonlab.bench.worker_main`.

    The worker's standard error is written to the file ``log``. The worker leads its own process
    group. Ctrl-C reaches only the parent, which then kills the whole group.

    Some jobs also compute between requests. If ``pauses`` is true, the worker and its children are
    stopped (SIGSTOP) between requests, and the kernel kills the worker when the parent dies.
    """

    def __init__(self, command: List[str], environment: Dict[str, str], log: Path, pauses: bool = False) -> None:
        self.log = log
        self._pauses = pauses
        self._unread = b""
        self._ended = False
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=stderr, start_new_session=True,
                # python -m would prefer a gluonlab in the current folder of the user
                cwd=log.parent, preexec_fn=die_with_parent if pauses else None,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """Return the process id of the child, which is also the id of its process group."""
        return self._process.pid

    def ask(self, message: Dict[str, Any], timeout_s: float) -> Dict[str, Any]:
        """Send ``message``, and return the answer.

        If the worker fails, end it and raise WorkerError.
        """
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            self._raise_failure(self._exit_reason())
        return self.read_answer(timeout_s)

    def read_answer(self, timeout_s: float) -> Dict[str, Any]:
        """Return the worker's next answer. If the worker fails, end it and raise WorkerError."""
        try:
            answer: Dict[str, Any] = json.loads(self._read_line(timeout_s))
        except ValueError:
            self._raise_failure("sent invalid JSON")
        if "error" in answer:
            self._raise_failure(_first_line(answer["error"]))
        self._signal(signal.SIGSTOP)
        return answer

    def _signal(self, number: int) -> None:
        """Send SIGSTOP or SIGCONT to the worker's process group, if ``pauses`` is true."""
        if self._pauses:
            signal_group(self.pid, number)

    def _read_line(self, timeout_s: float) -> bytes:
        """Return the next line of the worker's output.

        If no line arrives in time, end the worker and raise WorkerError.
        """
        assert self._process.stdout is not None
        pipe, deadline = self._process.stdout.fileno(), time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            readable, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            if not readable:
                self._raise_failure(f"did not answer within {timeout_s:g} s")
            received = os.read(pipe, 65536)
            if not received:
                self._raise_failure(self._exit_reason())
            self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _raise_failure(self, reason: str) -> NoReturn:
        self.end(grace_s=0)
        raise WorkerError(reason)

    def _exit_reason(self) -> str:
        """Return how the worker's process ended, and the last line of its standard error."""
        self.end(grace_s=1)
        status = self._process.returncode
        status_text = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
        lines = self.log.read_text(errors="replace").split("\n")
        last_line = next((line for line in reversed(lines) if line.strip()), "")
        return _first_line(f"{status_text}: {last_line}" if last_line else status_text)

    def close_input(self) -> None:
        """Close the worker's input, so that the worker exits."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        with suppress(OSError):  # the worker died before it had read everything
            self._process.stdin.close()

    def end(self, grace_s: float) -> None:
        """Wait up to ``grace_s`` for the worker to exit, then kill the worker and its children."""
        if self._ended:
            return
        self.close_input()
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline and not self._has_exited():
            time.sleep(0.01)
        signal_group(self.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._ended = True

    def _has_exited(self) -> bool:
        """Check if the worker has exited.

        The check does not wait for the worker, because the kernel could then assign the worker's id
        to another process. Without waitid, as on macOS before Python 3.13, it has to.
        """
        if not hasattr(os, "waitid"):
            return self._process.poll() is not None
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def end_all(workers: Iterable[Worker]) -> None:
    """End all workers, and wait at most EXIT_GRACE_S for all of them together."""
    workers = list(workers)
    deadline = time.monotonic() + EXIT_GRACE_S
    for worker in workers:
        worker.close_input()
    for worker in workers:
        worker.end(max(0.0, deadline - time.monotonic()))


def _first_line(text: str) -> str:
    """Return the first line that is not empty."""
    return next((line.strip() for line in text.split("\n") if line.strip()), "no reason given")


# --- further processes of a worker's job


class RankProcess:
    """An additional process for a job that several processes run together.

    ``arguments``: arguments for ``python``. ``variables``: additional environment variables.
    """

    def __init__(self, arguments: List[str], variables: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *arguments], env={**os.environ, **variables}, stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL, preexec_fn=die_with_parent,
        )  # fmt: skip
        atexit.register(self._kill)

    def send(self, **request: int) -> None:
        """Send a request to the process. The caller then runs the same request itself."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()

    def _kill(self) -> None:
        """Kill the process, which would otherwise wait for processes that have ended."""
        self._process.kill()
        self._process.wait()


def start_rank(job: str, options: Mapping[str, Any], variables: Mapping[str, str]) -> RankProcess:
    """Start one process in a group that runs a job from `gluonlab.bench.worker_main`."""
    return RankProcess(["-m", "gluonlab.bench.worker_main", job, json.dumps(dict(options))], variables)


def start_group(backend: str, size: int, job: str, options: Mapping[str, Any]) -> List[RankProcess]:
    """Start the other workers of a group of ``size`` processes, and return these workers.

    ``job`` and ``options``: the job that these workers run. This process becomes rank 0, and the
    function changes its environment, so call the function before you create a kvstore.
    """
    from gluonlab.launch.group_processes import RANK_VARIABLE, Site, parts
    from gluonlab.launch.ports_and_addresses import ipv4_addresses

    address = "127.0.0.1"
    loopback = Site("localhost", address, ipv4_addresses().get(address, ""))  # the interface lo, or lo0 on macOS
    with socket.socket() as listening:
        listening.bind((loopback.address, 0))
        port: int = listening.getsockname()[1]
    others = []
    for part in parts(backend, [], [0] * size, [0], [loopback], port):
        if not part.is_worker:
            RankProcess(part.words, part.environment)  # serves until this process ends
        elif part.environment[RANK_VARIABLE] == "0":
            os.environ.update(part.environment)
        else:
            others.append(start_rank(job, options, part.environment))
    return others


# --- backends, which sum over processes

HOROVOD = "horovod"
BACKENDS = ("dist_sync", HOROVOD)
# After the default of 30 seconds, a process of a group that pauses (`Worker`) would report that it
# has lost the others.
BACKEND_VARIABLES = {HOROVOD: {"HOROVOD_GLOO_TIMEOUT_SECONDS": "600"}}
NO_SERVER = "MXNet's wheel has no parameter server"  # short, for tables
NO_HOROVOD = "Horovod is not installed: run make .venv-horovod/.ready to compile it"


def parse_backends(text: str) -> List[str]:
    """Parse comma-separated names of backends. Raises ConfigError for unknown names."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in BACKENDS:
            raise ConfigError(unknown("backend", name, BACKENDS))
    return list(dict.fromkeys(names))


def missing_backend_reason(backend: str) -> Optional[str]:
    """Return why a backend cannot be measured on this machine, or None."""
    if backend == HOROVOD:
        return NO_HOROVOD if importlib.util.find_spec("horovod") is None else None
    return None if not backend or has_parameter_server() else NO_SERVER
