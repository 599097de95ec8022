"""Times variants in interleaved rounds, so that a slowdown of the machine affects all variants.

`measure_subjects` runs each subject in its own worker process. In each round, the workers take
turns: one worker runs some steps while the others wait. `time_interleaved` compares calls in this
process, on the same threads.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Protocol, Sequence, Tuple, TypeVar, Union

from tqdm import tqdm

from gluonlab.bench.harness.measurement_record import Series
from gluonlab.bench.harness.worker_processes import Worker, WorkerError, child_environment, end_all
from gluonlab.files.atomic_files import temporary_folder

START_TIMEOUT_S = 90.0
ROUND_TIMEOUT_S = 60.0
# much longer than errors of the clock and the scheduler, much shorter than changes of the load
ROUND_S = 0.7
WARM_UP_STEPS = 10
CALIBRATION_STEPS = 10
_T = TypeVar("_T")


@dataclass(frozen=True)
class Subject:
    """A job of `gluonlab.bench.worker_main` that is measured.

    Attributes:
        name: The name in records.
        label: The name in tables.
        job: The name of the job.
        options: The options of the job.
        variables: The environment variables of the worker.
        missing: Why the job cannot be measured on this machine, if this is known before the start.
        start_timeout_s: The maximum seconds until the first step has ended.
        images: Images per step, for jobs that do not report this number.
        checkout: The checkout of gluonlab whose worker runs the job; None for this checkout.
        pauses: Whether the worker is stopped between requests (see `Worker`).
    """

    name: str
    label: str
    job: str
    options: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    missing: Optional[str] = None
    start_timeout_s: float = START_TIMEOUT_S
    images: int = 0
    checkout: Optional[Path] = None
    pauses: bool = False

    def worker_command(self) -> List[str]:
        """Return the command line of the worker that runs the job."""
        options = json.dumps(dict(self.options))
        return [sys.executable, "-m", "gluonlab.bench.worker_main", self.job, options]


@dataclass
class Measurement:
    """The measurement of a subject.

    ``answers``: the job's numbers in each round. ``reason``: why there are no numbers, or None.
    """

    subject: Subject
    answers: List[Dict[str, float]] = field(default_factory=list)
    steps: int = 0  # per round
    reason: Optional[str] = None
    starts: List[float] = field(default_factory=list)  # seconds to the end of the first step

    def fail(self, reason: str) -> None:
        """Mark the measurement as failed because of ``reason``, and discard its rounds so far.

        An incomplete measurement cannot be compared with complete ones.
        """
        self.reason, self.answers = reason, []

    def numbers_by_round(self, name: str) -> List[float]:
        """Return the number that the job returned under ``name`` in each round."""
        return [answer[name] for answer in self.answers]

    def images_per_second(self) -> Tuple[float, ...]:
        """Return images/s in each round."""
        images = self.subject.images * self.steps
        return tuple(answer.get("images", images) / answer["seconds"] for answer in self.answers)


def image_rates(measurements: Sequence[Measurement]) -> List[Series]:
    """Return each subject's images/s in all rounds, as a series for a record."""
    return [
        Series(item.subject.name, item.subject.label, "images/s", item.images_per_second(), item.reason)
        for item in measurements
    ]


def measure_subjects(
    subjects: Sequence[Subject], rounds: int, restart_every: Optional[int] = None
) -> List[Measurement]:
    """Measure all ``subjects``, interleaved, ``rounds`` times each.

    If a worker dies, fails or does not answer in time, only its own measurement is lost. No worker
    outlives the call. ``restart_every``: the number of rounds after which all workers are replaced;
    None for never.
    """
    # round -> how often the workers were started before; contains only rounds that start workers
    start_of_round = {
        round: start_number for start_number, round in enumerate(range(0, rounds, restart_every or rounds))
    }
    measurements = [Measurement(subject, reason=subject.missing) for subject in subjects]
    with temporary_folder("bench") as folder:
        workers = _InterleavedWorkers(measurements, folder)
        try:
            with progress_bar(len(subjects) * (len(start_of_round) + rounds)) as bar:
                for round in range(rounds):
                    if round in start_of_round:
                        workers.start(start_of_round[round], bar)
                    workers.round(round, bar)
        finally:
            end_all(workers.workers.values())
    return measurements


def rotate(items: Sequence[_T], round: int) -> List[_T]:
    """Return the items in a different order for each round, so that neighbors change."""
    start = round % max(1, len(items))
    return [*items[start:], *items[:start]]


def progress_bar(total: int) -> Any:
    """Return a progress bar on standard error, shown only on a terminal."""
    return tqdm(total=total, disable=None, dynamic_ncols=True, leave=False, file=sys.stderr)


class _InterleavedWorkers:
    """The workers of one measurement. A worker that fails is not used again."""

    def __init__(self, measurements: List[Measurement], folder: Path) -> None:
        self.measurements, self.folder = measurements, folder
        self.workers: Dict[str, Worker] = {}

    def start(self, turn: int, bar: Any) -> None:
        """Start the workers, one at a time so that they do not slow each other's warm-up.

        Existing workers exit first, because memory might not suffice for old and new workers. The
        worker that starts last finds less contiguous memory and is a few percent slower, so the
        order changes with ``turn``, the number of earlier starts.
        """
        end_all(self.workers.values())
        self._run_for_each(self._start, turn, bar, "starting ")

    def round(self, number: int, bar: Any) -> None:
        """Run the steps of a round in every worker that has never failed."""
        self._run_for_each(self._run, number, bar)

    def _run_for_each(
        self, action: Callable[[Measurement], None], round: int, bar: Any, label_prefix: str = ""
    ) -> None:
        """Call ``action`` for each measurement that has not failed. ``round`` rotates the order."""
        for measurement in rotate(self.measurements, round):
            bar.set_description(f"{label_prefix}{measurement.subject.label}")
            if measurement.reason is None:
                try:
                    action(measurement)
                except WorkerError as error:
                    measurement.fail(str(error))
            bar.update()

    def _start(self, measurement: Measurement) -> None:
        """Start and warm up a worker. At its first start, choose the number of steps per round."""
        subject = measurement.subject
        environment = child_environment(subject.variables, self.folder, subject.checkout)
        log = self.folder / f"{subject.name}.log"
        started = time.perf_counter()
        worker = Worker(subject.worker_command(), environment, log, subject.pauses)
        self.workers[subject.name] = worker
        worker.read_answer(subject.start_timeout_s)  # the worker is ready
        worker.ask({"steps": 1}, subject.start_timeout_s)
        measurement.starts.append(time.perf_counter() - started)
        worker.ask({"steps": WARM_UP_STEPS - 1}, subject.start_timeout_s)
        seconds = worker.ask({"steps": CALIBRATION_STEPS}, ROUND_TIMEOUT_S)["seconds"]
        if not measurement.steps:  # the number of steps must be the same in all rounds
            measurement.steps = max(1, round(ROUND_S / (seconds / CALIBRATION_STEPS)))

    def _run(self, measurement: Measurement) -> None:
        worker = self.workers[measurement.subject.name]
        measurement.answers.append(worker.ask({"steps": measurement.steps}, ROUND_TIMEOUT_S))


# --- calls in this process

BLOCK_S = 0.03  # much longer than errors of the clock, and than the wait at the end of a block
WARM_UP_CALLS = 5
# Calls are queued. With a much longer queue, the time for managing the queue would be measured.
MAX_REPEATS = 1000


class RemoteCall(Protocol):
    """A call that other processes run and time."""

    def mean_seconds(self, repeat: int) -> float:
        """Return the mean seconds over ``repeat`` calls."""


Call = Callable[[], object]
TimedCall = Union[Call, RemoteCall]


def call_all(calls: Sequence[Call]) -> Call:
    """Return a function that calls all of ``calls`` in the given order."""

    def run() -> None:
        for call in calls:
            call()

    return run


def time_interleaved(
    calls: Mapping[str, TimedCall],
    rounds: int,
    iters: Optional[int] = None,
    on_round: Callable[[], object] = lambda: None,
    block_s: Optional[float] = None,
    warmup: Optional[int] = None,
) -> Dict[str, List[float]]:
    """Return the seconds per call in each round, by the name of the function that is called.

    A round times one block for each of ``calls``: it calls that function ``iters`` times. Each
    round starts with a different function. The host waits for the devices before and after a block,
    but not within it, so the clock measures how fast the devices finish the queued work.

    Args:
        calls: The functions to time, by name.
        rounds: The number of rounds.
        iters: Calls per block; by default, as many as take ``block_s`` seconds.
        on_round: A function that is called after each round.
        block_s: Seconds per block; BLOCK_S by default.
        warmup: Untimed calls before the first round; by default 2, or 7 if the calls are short.
    """
    repeats = {name: _warm_up(call, iters, block_s or BLOCK_S, warmup) for name, call in calls.items()}
    seconds: Dict[str, List[float]] = {name: [] for name in calls}
    for round in range(rounds):
        for name in rotate(list(calls), round):
            seconds[name].append(time_block(calls[name], repeats[name]))
        on_round()
    return seconds


def time_block(call: TimedCall, repeat: int) -> float:
    """Return the mean seconds per call, over a block of ``repeat`` calls."""
    from mxnet import nd  # imported here, because `measure_subjects` does not need MXNet

    nd.waitall()
    if not callable(call):
        return call.mean_seconds(repeat)
    started = time.perf_counter()
    for _ in range(repeat):
        call()
    nd.waitall()
    return (time.perf_counter() - started) / repeat


def _warm_up(call: TimedCall, iters: Optional[int], block_s: float, warmup: Optional[int]) -> int:
    """Warm up a function, and return the number of calls per block, which is ``iters`` if set."""
    if warmup:
        time_block(call, warmup)
    if warmup is not None and iters:
        return iters
    time_block(call, 1)
    seconds = time_block(call, 1)
    if seconds < block_s / WARM_UP_CALLS:
        seconds = time_block(call, WARM_UP_CALLS)
    return iters or max(1, min(MAX_REPEATS, round(block_s / seconds)))
