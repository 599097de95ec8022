"""Allreduce by size and algorithm, beside MXNet's own stores and the chapter's five lines.

Time, bandwidth as nccl-tests counts it, error, price and limit; on request also by processes, each
of which has one of the devices.
"""

from __future__ import annotations

import json
import sys
import textwrap
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.bench.allreduce.candidate_schedules import (
    NamedSchedule,
    auto_plan,
    make_plans,
    parse_algorithms,
)
from gluonlab.bench.allreduce.memory_bandwidth import Limit, Speeds, probe
from gluonlab.bench.allreduce.message_sizes import DEVICES, SIZES, parse_sizes
from gluonlab.bench.harness.confidence_interval import ratio
from gluonlab.bench.harness.interleaved_rounds import (
    ROUND_TIMEOUT_S,
    START_TIMEOUT_S,
    Call,
    Timed,
    progress,
    time_in_turns,
)
from gluonlab.bench.harness.machine_info import describe_machine, require_memory
from gluonlab.bench.harness.measurement_command import Session, in_words
from gluonlab.bench.harness.table_format import WIDTH
from gluonlab.bench.harness.worker_processes import (
    HOROVOD,
    PATIENCE,
    Worker,
    WorkerError,
    child_environment,
    end_all,
    missing_backend,
    parse_backends,
)
from gluonlab.collectives.algorithms import ALGORITHMS, sharded
from gluonlab.collectives.chunk_layout import split_evenly
from gluonlab.collectives.cost_model import algbw, bus_factor, price
from gluonlab.collectives.lower_bounds import floor_of
from gluonlab.collectives.named_topologies import Topology, ground_of
from gluonlab.collectives.schedule import ALLREDUCE, Schedule
from gluonlab.collectives.schedule_executor import Executor
from gluonlab.collectives.topology_aware import AUTO, FOR_LINKS, MOST_DEVICES, ForLinks
from gluonlab.config import option_name
from gluonlab.config.option_types import whole_number_check
from gluonlab.devices import devices
from gluonlab.errors import ConfigError, KVStoreError, RunError, unknown
from gluonlab.files.atomic_files import temporary_folder
from gluonlab.gpu.cuda import enable_peer_access
from gluonlab.kvstores import make_kvstore
from gluonlab.kvstores.allreduce_store import size_of
from gluonlab.kvstores.schedule_stores import ForLinksKVStore
from gluonlab.plain_text import json_text
from gluonlab.scratch.data_parallel import allreduce as chapters_allreduce

CHAPTER, WHOLE = "chapter", "sharded-whole"
NATIVE = ("local", "device", "nccl")
PEERS = (CHAPTER, *NATIVE)
CHOICES = (*PEERS, WHOLE, *FOR_LINKS, *ALGORITHMS)

Arrays = List[List[nd.NDArray]]  # [rank][number]


@dataclass(frozen=True)
class Variant:
    """A row of the table: ``make(arrays)`` gives the call that queues their sum over the ranks.

    ``schedule_for(size_bytes)``: what it runs, if that is a schedule; it has a price then.
    """

    label: str
    make: Callable[[Arrays], Callable[[], None]]
    schedule_for: Optional[Callable[[float], Schedule]] = None


def make_variants(
    names: Optional[Sequence[str]],
    plans: Sequence[NamedSchedule],
    ctxs: Sequence[mx.Context],
    array_count: int,
) -> List[Variant]:
    """The peers among ``names``, or all that work on these devices (None), then the schedules.

    ``sharded-whole`` gives whole arrays to owners, which is of use when there are several. Raises
    KVStoreError for a store that was asked for and does not work here.
    """
    found = []
    for name in PEERS if names is None else [name for name in PEERS if name in names]:
        if name == CHAPTER:
            found.append(Variant(CHAPTER, _chapter))
        elif names is not None or _works(name, ctxs):
            make_kvstore(name, ctxs)  # now, rather than when half of the table has been measured
            found.append(Variant(name, _native(name, ctxs)))
    if (names is None and array_count > 1) or WHOLE in (names or ()):
        by_owner = NamedSchedule(WHOLE, sharded(len(ctxs)))
        found.append(Variant(WHOLE, _executed(by_owner, whole=True), by_owner.schedule_for))
    return found + [Variant(plan.label, _executed(plan), plan.schedule_for) for plan in plans]


def _works(name: str, ctxs: Sequence[mx.Context]) -> bool:
    try:
        make_kvstore(name, ctxs)
    except KVStoreError:
        return False
    return True


def _executed(plan: NamedSchedule, whole: bool = False) -> Callable[[Arrays], Callable[[], None]]:
    return lambda arrays: Executor(plan.schedule_for(size_of(arrays[0])), arrays, whole).run


def _chapter(arrays: Arrays) -> Callable[[], None]:
    def run() -> None:
        for same in zip(*arrays):
            chapters_allreduce(list(same))

    return run


def _native(name: str, ctxs: Sequence[mx.Context]) -> Callable[[Arrays], Callable[[], None]]:
    def make(arrays: Arrays) -> Callable[[], None]:
        store = make_kvstore(name, ctxs)
        keys = [list(same) for same in zip(*arrays)]
        for key, same in enumerate(keys):
            store.broadcast(key, same[0], same)

        # as gluon.Trainer does it: a key for each array, the first the most urgent
        def run() -> None:
            for key, same in enumerate(keys):
                store.pushpull(key, same, priority=-key)

        return run

    return make


# --- sums over processes


class Processes:
    """Processes that sum over ``backend``; ``label``: of their row."""

    def __init__(self, backend: str, worker: Worker) -> None:
        self.label = f"{backend}, processes"
        self._worker = worker

    def ask(self, steps: int, count: int, arrays: int) -> "dict[str, float]":
        """Ask the job, see `gluonlab.bench.allreduce.multiprocess`. Raises RunError."""
        words = {"steps": steps, "count": count, "arrays": arrays}
        try:
            return self._worker.ask(words, ROUND_TIMEOUT_S)
        except WorkerError as error:
            raise RunError(f"{self.label}: {error}") from None


class ProcessSums:
    """The sums of so many elements in so many arrays, which the processes time themselves."""

    def __init__(self, processes: Processes, count: int, arrays: int) -> None:
        self._processes, self._of = processes, (count, arrays)

    def error(self) -> float:
        """The largest error of a sum of random whole numbers, in any process."""
        return self._processes.ask(0, *self._of)["difference"]

    def seconds(self, repeat: int) -> float:
        """As `gluonlab.bench.harness.interleaved_rounds.Elsewhere` says."""
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
            command = [sys.executable, "-m", "gluonlab.bench.worker_main", "sum", options]
            environment = child_environment(PATIENCE.get(name, {}), folder)
            log = folder / f"{name}.log"
            workers.append(Worker(command, environment, log, name == HOROVOD))
            try:
                workers[-1].answer(START_TIMEOUT_S)
            except WorkerError as error:
                raise RunError(f"--processes {name}: {error}") from None
            found.append(Processes(name, workers[-1]))
        yield found


# --- rows

ROUNDS = 7
DTYPES = ("float32", "float64", "float16", "int32")
LARGEST = 8  # of a contribution: sums over 256 devices are exact even in float16
# how often a size is in memory, roughly: arrays, the limit's, those of MXNet's stores, and the
# check's
REPLICAS = 6


@dataclass(frozen=True)
class AllreduceRow:
    """One variant at one size.

    ``seconds``: of an allreduce, by round; ``limit_s``: the memory limit in these rounds.
    ``error``: the largest difference of any element on any device from the exact sum;
    ``predicted_s``: the schedule's price; ``floor_s``: below which no schedule's price can be.
    """

    algorithm: str
    world_size: int
    size_bytes: int
    count: int
    dtype: str
    arrays: int
    seconds: Tuple[float, ...]
    error: float
    predicted_s: Optional[float] = None
    limit_s: Optional[Tuple[float, ...]] = None
    floor_s: Optional[float] = None

    @property
    def time_s(self) -> float:
        """The median over the rounds."""
        return median(self.seconds)

    @property
    def algbw(self) -> float:
        """bytes/s: size by time."""
        return algbw(self.size_bytes, self.time_s)

    @property
    def busbw(self) -> float:
        """bytes/s: algbw * 2 (n-1) / n."""
        return self.algbw * bus_factor(ALLREDUCE, self.world_size)

    @property
    def of_limit(self) -> Optional[float]:
        """The share of the memory limit's speed: the median of the rounds' ratios."""
        return ratio(self.limit_s, self.seconds) if self.limit_s else None

    def as_json(self) -> Dict[str, Any]:
        """Return the row as --json prints it; bandwidths in GB/s, as in the table."""
        names = ("algorithm", "size_bytes", "count", "dtype", "arrays")
        return {
            **{name: getattr(self, name) for name in names},
            "time_us": self.time_s * 1e6,
            "lowest_us": min(self.seconds) * 1e6,
            "highest_us": max(self.seconds) * 1e6,
            "algbw": self.algbw / 1e9,
            "busbw": self.busbw / 1e9,
            "error": None if np.isnan(self.error) else self.error,
            "predicted_us": None if self.predicted_s is None else self.predicted_s * 1e6,
            "floor_us": None if self.floor_s is None else self.floor_s * 1e6,
            "limit_us": None if self.limit_s is None else median(self.limit_s) * 1e6,
            "of_limit": self.of_limit,
        }


@dataclass(frozen=True)
class AllreduceReport:
    """The rows of one run; ``speeds``: the probed ones that ``topology`` is made of, if any."""

    rows: List[AllreduceRow]
    rounds: int
    topology: Optional[Topology] = None
    speeds: Optional[Speeds] = None


def measure(
    sizes: Sequence[int],
    variants: Sequence[Variant],
    ctxs: Sequence[mx.Context],
    dtype: str = "float32",
    arrays: int = 1,
    rounds: int = ROUNDS,
    repeat: Optional[int] = None,
    topology: Optional[Topology] = None,
    processes: Sequence[Processes] = (),
) -> AllreduceReport:
    """Every variant at every size, ``sizes`` in bytes per device, which lie in ``arrays`` arrays.

    Schedules are priced on ``topology``; without it, CPU devices on what a probe measures of this
    machine. ``processes`` sum float32 over as many processes as there are devices. Raises
    ConfigError for sizes that do not fit the type, the arrays or the memory.
    """
    counts = [_elements(size, dtype, arrays) for size in sizes]
    on_cpu = ctxs[0].device_type == "cpu"
    if on_cpu:
        what = f"{max(sizes):,} bytes on each of {len(ctxs)} devices"
        remedy = "choose smaller --sizes or fewer --devices"
        require_memory(REPLICAS * len(ctxs) * max(sizes), what, remedy)
    speeds = probe(ctxs, max(sizes)) if topology is None and on_cpu and len(ctxs) > 1 else None
    on = speeds.topology(len(ctxs)) if speeds else topology
    rows: List[AllreduceRow] = []
    with progress(len(sizes) * rounds) as bar:
        for count in counts:
            buffers = Buffers(ctxs, count, dtype, arrays)
            rows += _measure_size(buffers, variants, processes, rounds, repeat, on, bar.update)
    return AllreduceReport(rows, rounds, on, speeds)


def _elements(size_bytes: int, dtype: str, arrays: int) -> int:
    count = size_bytes // np.dtype(dtype).itemsize
    if count < arrays:
        raise ConfigError(
            f"--sizes {size_bytes}B are {count} elements of {dtype}, and --arrays is {arrays}: "
            "give each array at least one"
        )
    return count


def _measure_size(
    buffers: Buffers,
    variants: Sequence[Variant],
    processes: Sequence[Processes],
    rounds: int,
    repeat: Optional[int],
    topology: Optional[Topology],
    done: Callable[[], object],
) -> List[AllreduceRow]:
    ctxs, count, dtype = buffers.ctxs, buffers.count, buffers.dtype
    calls = {variant.label: variant.make(buffers.arrays) for variant in variants}
    sums = {each.label: ProcessSums(each, count, len(buffers.arrays[0])) for each in processes}
    errors = {label: buffers.check(call) for label, call in calls.items()}
    errors.update({label: each.error() for label, each in sums.items()})
    buffers.clear()
    size = count * np.dtype(dtype).itemsize
    # one alone has nothing to read or write
    on_cpus = ctxs[0].device_type == "cpu" and len(ctxs) > 1
    limit = Limit(ctxs, size, dtype) if on_cpus else None
    timed: Dict[str, Timed] = {**sums, **calls, **(limit.calls if limit else {})}
    seconds = time_in_turns(timed, rounds, repeat, done)
    limit_s = limit.seconds(seconds) if limit else None
    floor_s = floor_of(topology).seconds(size) if topology else None

    def row(label: str, schedule_for: Optional[Callable[[float], Schedule]]) -> AllreduceRow:
        schedule = schedule_for(size) if schedule_for and topology else None
        priced_s = price(schedule, topology, size).seconds if schedule and topology else None
        measured = (len(buffers.arrays[0]), tuple(seconds[label]), errors[label])
        return AllreduceRow(
            label, len(ctxs), size, count, dtype, *measured, priced_s, limit_s, floor_s
        )

    schedules = {**dict.fromkeys(sums), **{each.label: each.schedule_for for each in variants}}
    return [row(label, schedule_for) for label, schedule_for in schedules.items()]


class Buffers:
    """The arrays of all variants, the same for each.

    They have been written to: no measurement is the first to touch a page. ``first``, ``of``: the
    devices are those from this rank on of so many; all, without.
    """

    def __init__(
        self,
        ctxs: Sequence[mx.Context],
        count: int,
        dtype: str,
        arrays: int,
        first: int = 0,
        of: Optional[int] = None,
    ) -> None:
        enable_peer_access(ctxs)  # before the first row, so that none depends on the order of rows
        self.ctxs, self.count, self.dtype = ctxs, count, dtype
        self._ends = split_evenly(count, arrays)
        self.arrays: Arrays = [
            [nd.zeros((end - begin,), ctx=ctx, dtype=dtype) for begin, end in self._ends]
            for ctx in ctxs
        ]
        # whole numbers, so that the sum is exact in any order
        everyones = [_random(rank, count) for rank in range(of or len(ctxs))]
        self._contributions = everyones[first : first + len(ctxs)]
        self._sum = np.sum(everyones, axis=0, dtype=np.int32).astype(dtype)

    def check(self, call: Call) -> float:
        """Run an allreduce of random whole numbers; the largest error of any sum on any device."""
        for own, contribution in zip(self.arrays, self._contributions):
            for array, (begin, end) in zip(own, self._ends):
                array[:] = nd.array(contribution[begin:end], dtype=self.dtype)
        call()
        differences = [
            _difference(array.asnumpy(), self._sum[begin:end])
            for own in self.arrays
            for array, (begin, end) in zip(own, self._ends)
        ]
        return float(np.max(differences))  # unlike max, NaN if one is

    def clear(self) -> None:
        """Set all to zero, as sums of sums would become infinite; free what only checks need."""
        for array in [array for own in self.arrays for array in own]:
            array[:] = 0
        self._contributions, self._sum = [], np.zeros(0)
        nd.waitall()


def _random(rank: int, count: int) -> "np.ndarray[Any, np.dtype[np.int8]]":
    return np.random.RandomState(rank).randint(-LARGEST, LARGEST + 1, count, dtype=np.int8)


def _difference(found: "np.ndarray[Any, Any]", expected: "np.ndarray[Any, Any]") -> float:
    if np.array_equal(found, expected):
        return 0.0
    return float(np.max(np.abs(found.astype(np.float64) - expected)))


# --- by options of the command

Asked = Mapping[str, Any]


class AllreduceMeasurement(NamedTuple):
    """A finished measurement: its plans and rows; ``auto``: what auto chose from, if it was run."""

    ctxs: Sequence[mx.Context]
    topology: Optional[Topology]
    plans: List[NamedSchedule]
    report: AllreduceReport
    auto: Optional[ForLinks]

    @property
    def failure(self) -> Optional[str]:
        """Which rows had wrong sums, if any."""
        names = ", ".join(wrong(self.report.rows))
        return f"wrong sums by {names}: see the column error" if names else None

    def as_json(self, content: Mapping[str, Any]) -> str:
        """``content`` after what was measured, and on what."""
        speeds = vars(self.report.speeds) if self.report.speeds else None
        head: Dict[str, Any] = {
            "machine": describe_machine(),
            "devices": [str(ctx) for ctx in self.ctxs],
            "on": in_words(self.ctxs),
            "rounds": self.report.rounds,
            "speeds": speeds,
        }
        return json_text({**head, **content})

    def as_text(self, tables: str) -> str:
        """``tables`` after a line on the machine, and one on its devices."""
        on = textwrap.fill(f"devices: {in_words(self.ctxs)}", WIDTH)
        return "\n".join([describe_machine(), on, "", tables])


def measured(asked: Asked, schedules_alone: bool = False) -> AllreduceMeasurement:
    """Run all that the options ask for. Raises a UsageError for what is impossible.

    ``schedules_alone``: auto, and beside it every algorithm as it is by default, and those that are
    made for the links; nothing of MXNet's.
    """
    sizes = parse_sizes(asked.get("sizes", SIZES))
    counts = [name for name in ("arrays", "repeat", "rounds") if name in asked]
    numbers = {name: whole_number_check(1)(option_name(name), asked[name]) for name in counts}
    names = parse_algorithms(asked.get("algorithms", "all"), CHOICES)
    dtype = asked.get("dtype", DTYPES[0])
    if dtype not in DTYPES:
        raise ConfigError(unknown("dtype", dtype, DTYPES))
    ctxs = devices(asked.get("devices", DEVICES))
    topology = ground_of(ctxs, asked.get("topology")).topology
    auto = None
    if AUTO in (names or ([AUTO] if schedules_alone or len(ctxs) <= MOST_DEVICES else [])):
        auto = ForLinksKVStore(AUTO, asked.get("topology")).schedules(ctxs)
    known = (*FOR_LINKS, *ALGORITHMS)
    scheduled = None if names is None else [name for name in names if name in known]
    on = auto.topology if auto and schedules_alone else topology
    plans = make_plans(scheduled, len(ctxs), asked.get("chunks"), asked.get("groups"), on)
    plans += [auto_plan(auto)] if auto else []
    others = [] if schedules_alone else names
    variants = make_variants(others, plans, ctxs, numbers.get("arrays", 1))
    backends = _backends(asked, ctxs, dtype)
    session = Session()
    with started(backends, len(ctxs)) as processes:
        report = measure(
            sizes, variants, ctxs, dtype, topology=topology, processes=processes, **numbers
        )
    session.warn_if_busy()
    return AllreduceMeasurement(ctxs, topology, plans, report, auto)


def _backends(asked: Asked, ctxs: Sequence[Any], dtype: str) -> List[str]:
    """Read --processes, if given. Raises ConfigError for what processes cannot do."""
    if "processes" not in asked:
        return []
    names = parse_backends(asked["processes"])
    if dtype != "float32" or ctxs[0].device_type != "cpu" or len(ctxs) < 2:
        raise ConfigError(
            f"--processes {asked['processes']}: processes sum float32 on CPU devices, one in each: "
            "give two or more with --devices cpu*N, and leave --dtype out"
        )
    return names


def wrong(rows: Sequence[AllreduceRow]) -> List[str]:
    """The algorithms whose sums were not exact, each once."""
    return list(dict.fromkeys(row.algorithm for row in rows if row.error != 0))
