"""Allreduce over processes, each of which has one of the devices, beside those in one process."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack, contextmanager
from typing import Iterator, List, Sequence

from gluonlab.bench.harness.rounds import ROUND_TIMEOUT_S, START_TIMEOUT_S
from gluonlab.bench.harness.workers import (
    HOROVOD,
    PATIENCE,
    Worker,
    WorkerError,
    child_environment,
    end_all,
    missing_backend,
)
from gluonlab.errors import RunError
from gluonlab.files.temporary import temporary_folder


class Processes:
    """Processes that sum over ``backend``; ``label``: of their row."""

    def __init__(self, backend: str, worker: Worker) -> None:
        self.label = f"{backend}, processes"
        self._worker = worker

    def ask(self, steps: int, count: int, arrays: int) -> "dict[str, float]":
        """What the job answers, see `gluonlab.bench.allreduce.member`. Raises RunError."""
        words = {"steps": steps, "count": count, "arrays": arrays}
        try:
            return self._worker.ask(words, ROUND_TIMEOUT_S)
        except WorkerError as error:
            raise RunError(f"{self.label}: {error}") from None


class Sums:
    """The sums of so many elements in so many arrays, which the processes time themselves."""

    def __init__(self, processes: Processes, count: int, arrays: int) -> None:
        self._processes, self._of = processes, (count, arrays)

    def error(self) -> float:
        """The largest error of a sum of random whole numbers, in any process."""
        return self._processes.ask(0, *self._of)["difference"]

    def seconds(self, repeat: int) -> float:
        """As `gluonlab.bench.harness.rounds.Elsewhere` says."""
        return self._processes.ask(repeat, *self._of)["seconds"] / repeat


@contextmanager
def started(backends: Sequence[str], size: int) -> Iterator[List[Processes]]:
    """So many processes for each of the backends, within the block.

    Raises RunError for Horovod where it is not installed, and for what does not start.
    """
    for name in backends:
        reason = missing_backend(name)
        if reason is not None:
            raise RunError(f"--processes {name}: {reason}")
    with temporary_folder("bench") as folder, ExitStack() as stack:
        workers: List[Worker] = []
        stack.callback(lambda: end_all(workers))
        found = []
        for name in backends:
            options = json.dumps({"backend": name, "processes": size})
            command = [sys.executable, "-m", "gluonlab.bench.worker", "sum", options]
            environment = child_environment(PATIENCE.get(name, {}), folder)
            log = folder / f"{name}.log"
            workers.append(Worker(command, environment, log, name == HOROVOD))
            try:
                workers[-1].answer(START_TIMEOUT_S)
            except WorkerError as error:
                raise RunError(f"--processes {name}: {error}") from None
            found.append(Processes(name, workers[-1]))
        yield found
