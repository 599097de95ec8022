"""Measuring in turns: what slows the machine for a while slows all that is compared.

`measure` runs each subject in a worker process of its own: one after another runs some steps while
the others wait. `time_in_turns` compares calls in this process, on the same threads.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import (
    Any,
    Callable,
    Dict,
    List,
    Mapping,
    Optional,
    Protocol,
    Sequence,
    Tuple,
    TypeVar,
    Union,
)

from tqdm import tqdm

from gluonlab.bench.harness.measurement_record import Series
from gluonlab.bench.harness.worker_processes import Worker, WorkerError, child_environment, end_all
from gluonlab.files.atomic_files import temporary_folder

START_TIMEOUT_S = 90.0
ROUND_TIMEOUT_S = 60.0
CHUNK_S = 0.7  # long beside the clock and the scheduler, short beside what a machine's load does
WARM_UP_STEPS = 10
CALIBRATION_STEPS = 10
_T = TypeVar("_T")


@dataclass(frozen=True)
class Subject:
    """What is measured: a job of `gluonlab.bench.worker_main`, its options and environment
    variables.

    ``images``: those of a step, for jobs that do not count them themselves. ``checkout``: the
    folder with the gluonlab whose worker runs the job; None is this one. ``pauses``: see `Worker`.
    """

    name: str
    label: str
    job: str
    options: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    missing: Optional[str] = None  # why it cannot be measured here, when that is known beforehand
    start_timeout_s: float = START_TIMEOUT_S
    images: int = 0
    checkout: Optional[Path] = None
    pauses: bool = False

    def command(self) -> List[str]:
        """The command line of its worker."""
        options = json.dumps(dict(self.options))
        return [sys.executable, "-m", "gluonlab.bench.worker_main", self.job, options]


@dataclass
class Measurement:
    """A subject's result: the job's numbers of each round, or the reason why there are none."""

    subject: Subject
    answers: List[Dict[str, float]] = field(default_factory=list)
    steps: int = 0  # per round
    reason: Optional[str] = None
    starts: List[float] = field(default_factory=list)  # seconds to the end of the first step

    def fail(self, reason: str) -> None:
        """Drop what was measured before: half a measurement cannot be compared with whole ones."""
        self.reason, self.answers = reason, []

    def column(self, name: str) -> List[float]:
        """One of the job's numbers, by round."""
        return [answer[name] for answer in self.answers]

    def rates(self) -> Tuple[float, ...]:
        """Images/s, by round."""
        images = self.subject.images * self.steps
        return tuple(answer.get("images", images) / answer["seconds"] for answer in self.answers)


def image_rates(measurements: Sequence[Measurement]) -> List[Series]:
    """Images/s of each subject, by round."""
    return [
        Series(one.subject.name, one.subject.label, "images/s", one.rates(), one.reason)
        for one in measurements
    ]


def measure(
    subjects: Sequence[Subject], rounds: int, restart_every: Optional[int] = None
) -> List[Measurement]:
    """Measure all ``subjects``, interleaved, ``rounds`` times each.

    A worker that dies, fails or does not answer in time costs its own measurement only, and none
    outlives the call. ``restart_every``: the rounds after which all workers end and new ones are
    started; None: never.
    """
    starts = {at: turn for turn, at in enumerate(range(0, rounds, restart_every or rounds))}
    measurements = [Measurement(subject, reason=subject.missing) for subject in subjects]
    with temporary_folder("bench") as folder:
        bench = _Bench(measurements, folder)
        try:
            with progress(len(subjects) * (len(starts) + rounds)) as bar:
                for number in range(rounds):
                    if number in starts:
                        bench.start(starts[number], bar)
                    bench.round(number, bar)
        finally:
            end_all(bench.workers.values())
    return measurements


def rotated(items: Sequence[_T], by: int) -> List[_T]:
    """The same items, beginning with another one in every round, so that neighbours change."""
    begin = by % max(1, len(items))
    return [*items[begin:], *items[:begin]]


def progress(total: int) -> Any:
    """A progress bar on standard error, where that is a terminal."""
    return tqdm(total=total, disable=None, dynamic_ncols=True, leave=False, file=sys.stderr)


class _Bench:
    """The workers of one measurement; one that fails is out for good."""

    def __init__(self, measurements: List[Measurement], folder: Path) -> None:
        self.measurements, self.folder = measurements, folder
        self.workers: Dict[str, Worker] = {}

    def start(self, turn: int, bar: Any) -> None:
        """Start the workers, one at a time so that they do not slow each other's warm-up.

        Those that are there end first: old and new ones need not fit into the memory together. Who
        starts later finds less of it in one piece, and is some percent slower: so each time another
        one starts first.
        """
        end_all(self.workers.values())
        self._each(self._start, turn, bar, "starting ")

    def round(self, number: int, bar: Any) -> None:
        """Every worker that still lives runs its steps once."""
        self._each(self._run, number, bar)

    def _each(
        self, act: Callable[[Measurement], None], number: int, bar: Any, what: str = ""
    ) -> None:
        for measurement in rotated(self.measurements, number):
            bar.set_description(f"{what}{measurement.subject.label}")
            if measurement.reason is None:
                try:
                    act(measurement)
                except WorkerError as error:
                    measurement.fail(str(error))
            bar.update()

    def _start(self, measurement: Measurement) -> None:
        """Start a worker, and find out how many steps it makes in CHUNK_S."""
        subject = measurement.subject
        environment = child_environment(subject.variables, self.folder, subject.checkout)
        log = self.folder / f"{subject.name}.log"
        began = time.perf_counter()
        worker = Worker(subject.command(), environment, log, subject.pauses)
        self.workers[subject.name] = worker
        worker.answer(subject.start_timeout_s)  # it is ready
        worker.ask({"steps": 1}, subject.start_timeout_s)
        measurement.starts.append(time.perf_counter() - began)
        worker.ask({"steps": WARM_UP_STEPS - 1}, subject.start_timeout_s)
        seconds = worker.ask({"steps": CALIBRATION_STEPS}, ROUND_TIMEOUT_S)["seconds"]
        if not measurement.steps:  # a rate is of all rounds' steps alike
            measurement.steps = max(1, round(CHUNK_S / (seconds / CALIBRATION_STEPS)))

    def _run(self, measurement: Measurement) -> None:
        worker = self.workers[measurement.subject.name]
        measurement.answers.append(worker.ask({"steps": measurement.steps}, ROUND_TIMEOUT_S))


# --- calls in this process

BLOCK_S = 0.03  # long beside the clock and the wait at its end
WARM_UP = 5
# calls are queued: an engine with far more waiting is measured in keeping its queue
MOST_REPEATS = 1000


class Elsewhere(Protocol):
    """A call in other processes, which time it themselves."""

    def seconds(self, repeat: int) -> float:
        """Seconds that it takes, the mean over ``repeat`` calls."""


Call = Callable[[], object]
Timed = Union[Call, Elsewhere]


def time_in_turns(
    calls: Mapping[str, Timed],
    rounds: int,
    repeat: Optional[int] = None,
    done: Callable[[], object] = lambda: None,
    block_s: Optional[float] = None,
) -> Dict[str, List[float]]:
    """Seconds that each call takes, by round; each round begins with another call.

    A round times a block of each: ``repeat`` calls, by default as many as take ``block_s``, or
    BLOCK_S. The host waits before and after a block, and not in between: the clock shows how fast
    the devices finish what is queued for them. ``done`` is called after each round.
    """
    repeats = {name: _warm_up(call, repeat, block_s or BLOCK_S) for name, call in calls.items()}
    seconds: Dict[str, List[float]] = {name: [] for name in calls}
    for number in range(rounds):
        for name in rotated(list(calls), number):
            seconds[name].append(time_block(calls[name], repeats[name]))
        done()
    return seconds


def time_block(call: Timed, repeat: int) -> float:
    """Seconds that ``call`` takes, the mean over a block of ``repeat`` calls."""
    from mxnet import nd  # subjects in processes need none here

    nd.waitall()
    if not callable(call):
        return call.seconds(repeat)
    began = time.perf_counter()
    for _ in range(repeat):
        call()
    nd.waitall()
    return (time.perf_counter() - began) / repeat


def _warm_up(call: Timed, repeat: Optional[int], block_s: float) -> int:
    """Call it until it is as fast as it gets; how often it will be called in a block."""
    time_block(call, 1)
    seconds = time_block(call, 1)
    if seconds < block_s / WARM_UP:
        seconds = time_block(call, WARM_UP)
    return repeat or max(1, min(MOST_REPEATS, round(block_s / seconds)))
