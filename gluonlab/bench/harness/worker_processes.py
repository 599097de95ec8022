"""Child processes that measure: their environment, the parent's end of a worker, and more ranks.

Only here, and in the benchmarks that need another setting, are variables named that tune an engine,
and only for children.
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

from gluonlab.bench.harness.machine_info import HERE
from gluonlab.errors import ConfigError, RunError, unknown
from gluonlab.host.child_processes import die_with_parent

# What changes threads or engine is taken out of every worker's environment; a row that needs some
# gets them back.
TUNING = ("MXNET_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH", "DMLC_", "GLOO_")


def child_environment(
    variables: Mapping[str, str], folder: Path, checkout: Optional[Path] = None
) -> Dict[str, str]:
    """This process's environment without TUNING, and with ``variables``.

    Temporary files go into ``folder``. The child measures this gluonlab, or that of ``checkout``,
    and not another one that is installed.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(TUNING)}
    path = filter(None, [str(checkout or HERE), environment.get("PYTHONPATH")])
    own = {"PYTHONPATH": os.pathsep.join(path), "TMPDIR": str(folder)}
    return {**environment, **own, **variables}


# --- the parent's end of a worker

GOODBYE_S = 3.0  # how long children may take to end by themselves after the end of their input


class WorkerError(RunError):
    """A worker died, reported an error or did not answer in time; the message says which."""


class Worker:
    """A child that speaks the protocol of `gluonlab.bench.worker_main`.

    Its standard error goes to the file ``log``. It leads a process group of its own: Ctrl-C reaches
    the parent only, which then ends the child and all that the child has started, by the group's
    id. One that ``pauses`` is stopped while it has nothing to do, with all that it has started,
    for what computes without having been asked to; it dies with the parent.
    """

    def __init__(
        self, command: List[str], environment: Dict[str, str], log: Path, pauses: bool = False
    ) -> None:
        self.log = log
        self._pauses = pauses
        self._unread = b""
        self._ended = False
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=stderr, start_new_session=True,
                # python -m would prefer a gluonlab in the folder where somebody has started the
                # bench
                cwd=log.parent, preexec_fn=die_with_parent if pauses else None,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """The child's process id, which is its group's id, too."""
        return self._process.pid

    def ask(self, message: Dict[str, Any], timeout_s: float) -> Dict[str, Any]:
        """Send ``message`` and return the answer.

        Raises WorkerError, and the worker is ended then.
        """
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            self._fail(self._last_words())
        return self.answer(timeout_s)

    def answer(self, timeout_s: float) -> Dict[str, Any]:
        """The worker's next line. Raises WorkerError, and the worker is ended then."""
        try:
            answer: Dict[str, Any] = json.loads(self._line(timeout_s))
        except ValueError:
            self._fail("answered something that is not JSON")
        if "error" in answer:
            self._fail(_first_line(answer["error"]))
        self._signal(signal.SIGSTOP)
        return answer

    def _signal(self, number: int) -> None:
        """Stop it, or let it go on, if it pauses."""
        if self._pauses:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def _line(self, timeout_s: float) -> bytes:
        assert self._process.stdout is not None
        pipe, deadline = self._process.stdout.fileno(), time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            readable, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            if not readable:
                self._fail(f"no answer within {timeout_s:g} s")
            said = os.read(pipe, 65536)
            if not said:
                self._fail(self._last_words())
            self._unread += said
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _fail(self, reason: str) -> NoReturn:
        self.end(grace_s=0)
        raise WorkerError(reason)

    def _last_words(self) -> str:
        """How the worker's process ended, and the last line on its standard error."""
        self.end(grace_s=1)
        status = self._process.returncode
        how = f"ended by signal {-status}" if status < 0 else f"ended with status {status}"
        lines = self.log.read_text(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        return _first_line(f"{how}: {last}" if last else how)

    def dismiss(self) -> None:
        """Close the worker's input: it ends when it notices."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        with suppress(OSError):  # it is dead, and had not read everything
            self._process.stdin.close()

    def end(self, grace_s: float) -> None:
        """See that the worker and its own children are gone, after at most ``grace_s``."""
        if self._ended:
            return
        self.dismiss()
        # Not wait(): as long as nobody has waited for the child, its id cannot come to mean
        # somebody else.
        deadline, left = time.monotonic() + grace_s, os.WEXITED | os.WNOHANG | os.WNOWAIT
        while time.monotonic() < deadline and os.waitid(os.P_PID, self.pid, left) is None:
            time.sleep(0.01)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._ended = True


def end_all(workers: Iterable[Worker]) -> None:
    """End these workers, all at the same time."""
    workers = list(workers)
    deadline = time.monotonic() + GOODBYE_S
    for worker in workers:
        worker.dismiss()
    for worker in workers:
        worker.end(max(0.0, deadline - time.monotonic()))


def _first_line(text: str) -> str:
    """The first line that is not empty."""
    return next((line.strip() for line in text.split("\n") if line.strip()), "no reason given")


# --- more ranks of a worker's job


class Rank:
    """Another process of the job; ``words``: what stands behind ``python`` on its command line."""

    def __init__(self, words: List[str], variables: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *words],
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
        )
        atexit.register(self._end)

    def order(self, **words: int) -> None:
        """Have it do what these words ask of its job, while this process does the same."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words).encode() + b"\n")
        self._process.stdin.flush()

    def _end(self) -> None:
        """By its id: a rank whose peers have gone would wait for them."""
        self._process.kill()
        self._process.wait()


def start_rank(job: str, options: Mapping[str, Any], variables: Mapping[str, str]) -> Rank:
    """A rank that runs a job of `gluonlab.bench.worker_main`."""
    return Rank(["-m", "gluonlab.bench.worker_main", job, json.dumps(dict(options))], variables)


def start_group(backend: str, size: int, job: str, options: Mapping[str, Any]) -> List[Rank]:
    """Start the other processes of a group of ``size``, and return the workers among them.

    ``options``: of their ``job``. This process becomes rank 0: its environment says so from now on,
    which has to be before it makes a store.
    """
    from gluonlab.launch.group_processes import RANK_VARIABLE, Site, parts

    loopback = Site("localhost", "127.0.0.1", "lo")
    with socket.socket() as listening:
        listening.bind((loopback.address, 0))
        port: int = listening.getsockname()[1]
    others = []
    for part in parts(backend, [], [0] * size, [0], [loopback], port):
        if not part.is_worker:
            Rank(part.words, part.environment)  # it serves until this process ends
        elif part.environment[RANK_VARIABLE] == "0":
            os.environ.update(part.environment)
        else:
            others.append(start_rank(job, options, part.environment))
    return others


# --- what carries sums between processes

HOROVOD = "horovod"
BACKENDS = ("dist_sync", HOROVOD)
# seconds: a group that pauses (`Worker`) would have lost its peers after 30
PATIENCE = {HOROVOD: {"HOROVOD_GLOO_TIMEOUT_SECONDS": "600"}}
NO_HOROVOD = "Horovod is not installed: make .venv-horovod/.ready compiles it"


def parse_backends(text: str) -> List[str]:
    """Names, separated by commas. Raises ConfigError."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in BACKENDS:
            raise ConfigError(unknown("backend", name, BACKENDS))
    return list(dict.fromkeys(names))


def missing_backend(backend: str) -> Optional[str]:
    """Why it cannot be measured here; None if it can."""
    absent = backend == HOROVOD and importlib.util.find_spec("horovod") is None
    return NO_HOROVOD if absent else None
