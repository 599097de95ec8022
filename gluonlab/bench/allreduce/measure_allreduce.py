"""Allreduce measured by size and algorithm, with MXNet's stores and the chapter's loop for
comparison.

Time, bandwidth as in nccl-tests, error, price and limit; on request also by processes with one
device each.
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
    make_auto_plan,
    make_plans,
    parse_algorithms,
)
from gluonlab.bench.allreduce.memory_bandwidth import MemoryLimit, MemorySpeeds, probe_speeds
from gluonlab.bench.allreduce.message_sizes import DEFAULT_DEVICES, DEFAULT_SIZES, parse_sizes
from gluonlab.bench.harness.confidence_interval import median_ratio
from gluonlab.bench.harness.interleaved_rounds import (
    ROUND_TIMEOUT_S,
    START_TIMEOUT_S,
    Call,
    TimedCall,
    progress_bar,
    time_interleaved,
)
from gluonlab.bench.harness.machine_info import describe_machine, require_memory
from gluonlab.bench.harness.measurement_command import MeasurementSession, describe_devices
from gluonlab.bench.harness.table_format import WIDTH
from gluonlab.bench.harness.worker_processes import (
    BACKEND_VARIABLES,
    HOROVOD,
    Worker,
    WorkerError,
    child_environment,
    end_all,
    missing_backend_reason,
    parse_backends,
)
from gluonlab.collectives.algorithms import ALGORITHMS, sharded
from gluonlab.collectives.chunk_layout import split_evenly
from gluonlab.collectives.cost_model import algbw, bus_factor, price
from gluonlab.collectives.lower_bounds import floor_of
from gluonlab.collectives.named_topologies import Topology, resolve_topology
from gluonlab.collectives.schedule import ALLREDUCE, Schedule
from gluonlab.collectives.schedule_executor import Executor
from gluonlab.collectives.topology_aware import (
    AUTO,
    MAX_AUTO_DEVICES,
    TOPOLOGY_AWARE,
    SchedulesBySize,
)
from gluonlab.config import option_name
from gluonlab.config.option_types import whole_number_check
from gluonlab.devices import devices
from gluonlab.errors import ConfigError, KVStoreError, RunError, unknown
from gluonlab.files.atomic_files import temporary_folder
from gluonlab.gpu.cuda import enable_peer_access
from gluonlab.kvstores import make_kvstore
from gluonlab.kvstores.allreduce_store import total_bytes
from gluonlab.kvstores.schedule_stores import TopologyAwareKVStore
from gluonlab.plain_text import json_text
from gluonlab.scratch.data_parallel import allreduce as chapters_allreduce

CHAPTER, SHARDED_WHOLE = "chapter", "sharded-whole"
NATIVE = ("local", "device", "nccl")
PEERS = (CHAPTER, *NATIVE)
CHOICES = (*PEERS, SHARDED_WHOLE, *TOPOLOGY_AWARE, *ALGORITHMS)

Arrays = List[List[nd.NDArray]]  # [rank][number]


@dataclass(frozen=True)
class Variant:
    """A row of the table: ``make(arrays)`` returns the call that queues their sum over the ranks.

    ``schedule_for(size_bytes)``: the schedule that it runs, if any, from which its price follows.
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
    """Return the peers among ``names``, or all usable ones (None), then the schedules.

    ``sharded-whole`` assigns whole arrays to owners, which matters if there are several. Raises
    KVStoreError for a requested store that does not work here.
    """
    variants = []
    for name in PEERS if names is None else [name for name in PEERS if name in names]:
        if name == CHAPTER:
            variants.append(Variant(CHAPTER, _make_chapter_allreduce))
        elif names is not None or _is_usable(name, ctxs):
            make_kvstore(name, ctxs)  # now, rather than when half of the table has been measured
            variants.append(Variant(name, _use_native_store(name, ctxs)))
    if (names is None and array_count > 1) or SHARDED_WHOLE in (names or ()):
        by_owner = NamedSchedule(SHARDED_WHOLE, sharded(len(ctxs)))
        variants.append(
            Variant(SHARDED_WHOLE, _execute_plan(by_owner, whole=True), by_owner.schedule_for)
        )
    return variants + [
        Variant(plan.label, _execute_plan(plan), plan.schedule_for) for plan in plans
    ]


def _is_usable(name: str, ctxs: Sequence[mx.Context]) -> bool:
    try:
        make_kvstore(name, ctxs)
    except KVStoreError:
        return False
    return True


def _execute_plan(
    plan: NamedSchedule, whole: bool = False
) -> Callable[[Arrays], Callable[[], None]]:
    return lambda arrays: Executor(plan.schedule_for(total_bytes(arrays[0])), arrays, whole).run


def _make_chapter_allreduce(arrays: Arrays) -> Callable[[], None]:
    def run() -> None:
        for replicas in zip(*arrays):
            chapters_allreduce(list(replicas))

    return run


def _use_native_store(
    name: str, ctxs: Sequence[mx.Context]
) -> Callable[[Arrays], Callable[[], None]]:
    def make(arrays: Arrays) -> Callable[[], None]:
        store = make_kvstore(name, ctxs)
        keys = [list(replicas) for replicas in zip(*arrays)]
        for key, replicas in enumerate(keys):
            store.broadcast(key, replicas[0], replicas)

        # as gluon.Trainer does it: a key for each array, the first the most urgent
        def run() -> None:
            for key, replicas in enumerate(keys):
                store.pushpull(key, replicas, priority=-key)

        return run

    return make


# --- sums over processes


class ProcessGroupWorker:
    """A group of processes that sum over ``backend``; ``label``: of their row."""

    def __init__(self, backend: str, worker: Worker) -> None:
        self.label = f"{backend}, processes"
        self._worker = worker

    def ask(self, steps: int, count: int, arrays: int) -> "dict[str, float]":
        """Send a request to the job, see `gluonlab.bench.allreduce.multiprocess`. Raises
        RunError.
        """
        request = {"steps": steps, "count": count, "arrays": arrays}
        try:
            return self._worker.ask(request, ROUND_TIMEOUT_S)
        except WorkerError as error:
            raise RunError(f"{self.label}: {error}") from None


class MultiprocessAllreduce:
    """The sum of ``count`` elements in ``arrays`` arrays, timed by the processes that
    compute it.
    """

    def __init__(self, processes: ProcessGroupWorker, count: int, arrays: int) -> None:
        self._processes, self._of = processes, (count, arrays)

    def measure_error(self) -> float:
        """Return the largest error of a sum of random whole numbers, in any process."""
        return self._processes.ask(0, *self._of)["difference"]

    def mean_seconds(self, repeat: int) -> float:
        """Return the mean seconds of ``repeat`` sums."""
        return self._processes.ask(repeat, *self._of)["seconds"] / repeat


@contextmanager
def start_process_groups(backends: Sequence[str], size: int) -> Iterator[List[ProcessGroupWorker]]:
    """Start ``size`` processes for each backend, and stop them at the end of the block.

    Raises RunError if Horovod is not installed, or if a process does not start.
    """
    for name in backends:
        reason = missing_backend_reason(name)
        if reason is not None:
            raise RunError(f"--processes {name}: {reason}")
    with temporary_folder("bench") as folder, ExitStack() as stack:
        workers: List[Worker] = []
        stack.callback(lambda: end_all(workers))
        groups = []
        for name in backends:
            options = json.dumps({"backend": name, "processes": size})
            command = [sys.executable, "-m", "gluonlab.bench.worker_main", "sum", options]
            environment = child_environment(BACKEND_VARIABLES.get(name, {}), folder)
            log = folder / f"{name}.log"
            workers.append(Worker(command, environment, log, name == HOROVOD))
            try:
                workers[-1].read_answer(START_TIMEOUT_S)
            except WorkerError as error:
                raise RunError(f"--processes {name}: {error}") from None
            groups.append(ProcessGroupWorker(name, workers[-1]))
        yield groups


# --- rows

ROUNDS = 7
DTYPES = ("float32", "float64", "float16", "int32")
MAX_CONTRIBUTION = 8  # of a contribution: sums over 256 devices are exact even in float16
# how often a size is in memory, roughly: arrays, the limit's, those of MXNet's stores, and the
# check's
MEMORY_REPLICAS = 6


@dataclass(frozen=True)
class AllreduceRow:
    """The measurement of one variant at one size.

    ``seconds``: of an allreduce, by round; ``limit_s``: the memory limit in these rounds.
    ``error``: the largest difference from the exact sum on any device; ``predicted_s``: the
    schedule's price; ``floor_s``: the lower bound of all prices.
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
        """Return the median seconds over the rounds."""
        return median(self.seconds)

    @property
    def algbw(self) -> float:
        """Return size / time in bytes/s."""
        return algbw(self.size_bytes, self.time_s)

    @property
    def busbw(self) -> float:
        """Return algbw * 2 (n-1) / n in bytes/s."""
        return self.algbw * bus_factor(ALLREDUCE, self.world_size)

    @property
    def of_limit(self) -> Optional[float]:
        """Return the share of the memory limit's speed: the median of the rounds' ratios."""
        return median_ratio(self.limit_s, self.seconds) if self.limit_s else None

    def as_json(self) -> Dict[str, Any]:
        """Return the row as --json prints it; bandwidths in GB/s, as in the table."""
        names = ("algorithm", "size_bytes", "count", "dtype", "arrays")
        return {
            **{name: getattr(self, name) for name in names}, "time_us": self.time_s * 1e6,
            "lowest_us": min(self.seconds) * 1e6, "highest_us": max(self.seconds) * 1e6,
            "algbw": self.algbw / 1e9, "busbw": self.busbw / 1e9,
            "error": None if np.isnan(self.error) else self.error,
            "predicted_us": None if self.predicted_s is None else self.predicted_s * 1e6,
            "floor_us": None if self.floor_s is None else self.floor_s * 1e6,
            "limit_us": None if self.limit_s is None else median(self.limit_s) * 1e6,
            "of_limit": self.of_limit,
        }  # fmt: skip


@dataclass(frozen=True)
class AllreduceReport:
    """The rows of one run; ``speeds``: those measured for ``topology``, if any."""

    rows: List[AllreduceRow]
    rounds: int
    topology: Optional[Topology] = None
    speeds: Optional[MemorySpeeds] = None


def measure(
    sizes: Sequence[int],
    variants: Sequence[Variant],
    ctxs: Sequence[mx.Context],
    dtype: str = "float32",
    arrays: int = 1,
    rounds: int = ROUNDS,
    repeat: Optional[int] = None,
    topology: Optional[Topology] = None,
    processes: Sequence[ProcessGroupWorker] = (),
) -> AllreduceReport:
    """Measure every variant at every size.

    Args:
        sizes: Bytes per device.
        variants: The rows, from `make_variants`.
        ctxs: The devices.
        dtype: Type of the elements.
        arrays: Number of arrays over which each size is split.
        rounds: Measurements of each row.
        repeat: Allreduces per measurement, or None for as many as need 30 ms.
        topology: Links for the prices. Without it, CPU devices are priced on measured speeds.
        processes: Groups of processes that also sum, as many processes as devices, in float32.

    Returns:
        The rows of all sizes.

    Raises:
        ConfigError: The sizes do not fit the type, the arrays or the memory.
    """
    counts = [_count_elements(size, dtype, arrays) for size in sizes]
    on_cpu = ctxs[0].device_type == "cpu"
    if on_cpu:
        description = f"{max(sizes):,} bytes on each of {len(ctxs)} devices"
        remedy = "choose smaller --sizes or fewer --devices"
        require_memory(MEMORY_REPLICAS * len(ctxs) * max(sizes), description, remedy)
    speeds = (
        probe_speeds(ctxs, max(sizes)) if topology is None and on_cpu and len(ctxs) > 1 else None
    )
    on = speeds.topology(len(ctxs)) if speeds else topology
    rows: List[AllreduceRow] = []
    with progress_bar(len(sizes) * rounds) as bar:
        for count in counts:
            buffers = AllreduceBuffers(ctxs, count, dtype, arrays)
            rows += _measure_size(buffers, variants, processes, rounds, repeat, on, bar.update)
    return AllreduceReport(rows, rounds, on, speeds)


def _count_elements(size_bytes: int, dtype: str, arrays: int) -> int:
    count = size_bytes // np.dtype(dtype).itemsize
    if count < arrays:
        raise ConfigError(
            f"--sizes {size_bytes}B are {count} elements of {dtype}, and --arrays is {arrays}: "
            "give each array at least one"
        )
    return count


def _measure_size(
    buffers: AllreduceBuffers,
    variants: Sequence[Variant],
    processes: Sequence[ProcessGroupWorker],
    rounds: int,
    repeat: Optional[int],
    topology: Optional[Topology],
    on_round: Callable[[], object],
) -> List[AllreduceRow]:
    ctxs, count, dtype = buffers.ctxs, buffers.count, buffers.dtype
    calls = {variant.label: variant.make(buffers.arrays) for variant in variants}
    process_sums = {
        item.label: MultiprocessAllreduce(item, count, len(buffers.arrays[0])) for item in processes
    }
    errors = {label: buffers.check(call) for label, call in calls.items()}
    errors.update({label: item.measure_error() for label, item in process_sums.items()})
    buffers.clear()
    size = count * np.dtype(dtype).itemsize
    # one alone has nothing to read or write
    on_cpus = ctxs[0].device_type == "cpu" and len(ctxs) > 1
    limit = MemoryLimit(ctxs, size, dtype) if on_cpus else None
    timed: Dict[str, TimedCall] = {**process_sums, **calls, **(limit.calls if limit else {})}
    seconds = time_interleaved(timed, rounds, repeat, on_round)
    limit_s = limit.seconds(seconds) if limit else None
    floor_s = floor_of(topology).seconds(size) if topology else None

    def make_row(label: str, schedule_for: Optional[Callable[[float], Schedule]]) -> AllreduceRow:
        schedule = schedule_for(size) if schedule_for and topology else None
        priced_s = price(schedule, topology, size).seconds if schedule and topology else None
        measured = (len(buffers.arrays[0]), tuple(seconds[label]), errors[label])
        return AllreduceRow(
            label, len(ctxs), size, count, dtype, *measured, priced_s, limit_s, floor_s
        )

    schedules = {
        **dict.fromkeys(process_sums),
        **{item.label: item.schedule_for for item in variants},
    }
    return [make_row(label, schedule_for) for label, schedule_for in schedules.items()]


class AllreduceBuffers:
    """The arrays of all variants, the same for each.

    They have been written to, so that no measurement is the first to touch a page. ``first``,
    ``of``: the devices are the ranks from ``first`` on of ``of`` ranks. By default they are all
    ranks.
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
            [nd.zeros((end - start,), ctx=ctx, dtype=dtype) for start, end in self._ends]
            for ctx in ctxs
        ]
        # whole numbers, so that the sum is exact in any order
        contributions = [_random_contribution(rank, count) for rank in range(of or len(ctxs))]
        self._contributions = contributions[first : first + len(ctxs)]
        self._sum = np.sum(contributions, axis=0, dtype=np.int32).astype(dtype)

    def check(self, call: Call) -> float:
        """Run an allreduce of random whole numbers, and return the largest error on any device."""
        for rank_arrays, contribution in zip(self.arrays, self._contributions):
            for array, (start, end) in zip(rank_arrays, self._ends):
                array[:] = nd.array(contribution[start:end], dtype=self.dtype)
        call()
        differences = [
            _max_difference(array.asnumpy(), self._sum[start:end])
            for rank_arrays in self.arrays
            for array, (start, end) in zip(rank_arrays, self._ends)
        ]
        return float(np.max(differences))  # unlike max, NaN if one is

    def clear(self) -> None:
        """Set all arrays to zero, as sums of sums would overflow, and free the memory of checks."""
        for array in [array for rank_arrays in self.arrays for array in rank_arrays]:
            array[:] = 0
        self._contributions, self._sum = [], np.zeros(0)
        nd.waitall()


def _random_contribution(rank: int, count: int) -> "np.ndarray[Any, np.dtype[np.int8]]":
    return np.random.RandomState(rank).randint(
        -MAX_CONTRIBUTION, MAX_CONTRIBUTION + 1, count, dtype=np.int8
    )


def _max_difference(actual: "np.ndarray[Any, Any]", expected: "np.ndarray[Any, Any]") -> float:
    if np.array_equal(actual, expected):
        return 0.0
    return float(np.max(np.abs(actual.astype(np.float64) - expected)))


# --- by options of the command

CommandOptions = Mapping[str, Any]


class AllreduceMeasurement(NamedTuple):
    """A finished measurement: its plans and rows; ``auto``: the schedules of auto, if it
    was run.
    """

    ctxs: Sequence[mx.Context]
    topology: Optional[Topology]
    plans: List[NamedSchedule]
    report: AllreduceReport
    auto: Optional[SchedulesBySize]

    @property
    def failure(self) -> Optional[str]:
        """Return a message on the rows with wrong sums, or None."""
        names = ", ".join(inexact_algorithms(self.report.rows))
        return f"wrong sums by {names}: see the column error" if names else None

    def as_json(self, content: Mapping[str, Any]) -> str:
        """Return ``content`` after the machine, devices and rounds."""
        speeds = vars(self.report.speeds) if self.report.speeds else None
        head: Dict[str, Any] = {
            "machine": describe_machine(), "devices": [str(ctx) for ctx in self.ctxs],
            "on": describe_devices(self.ctxs), "rounds": self.report.rounds, "speeds": speeds,
        }  # fmt: skip
        return json_text({**head, **content})

    def as_text(self, tables: str) -> str:
        """Return ``tables`` after a line on the machine, and one on its devices."""
        on = textwrap.fill(f"devices: {describe_devices(self.ctxs)}", WIDTH)
        return "\n".join([describe_machine(), on, "", tables])


def measure_by_options(
    options: CommandOptions, schedules_alone: bool = False
) -> AllreduceMeasurement:
    """Run the measurement that the options request. Raises a UsageError for impossible ones.

    ``schedules_alone``: measure only auto, every algorithm with its defaults, and those made for
    the links, without MXNet's stores.
    """
    sizes = parse_sizes(options.get("sizes", DEFAULT_SIZES))
    counts = [name for name in ("arrays", "repeat", "rounds") if name in options]
    numbers = {name: whole_number_check(1)(option_name(name), options[name]) for name in counts}
    names = parse_algorithms(options.get("algorithms", "all"), CHOICES)
    dtype = options.get("dtype", DTYPES[0])
    if dtype not in DTYPES:
        raise ConfigError(unknown("dtype", dtype, DTYPES))
    ctxs = devices(options.get("devices", DEFAULT_DEVICES))
    topology = resolve_topology(ctxs, options.get("topology")).topology
    auto = None
    if AUTO in (names or ([AUTO] if schedules_alone or len(ctxs) <= MAX_AUTO_DEVICES else [])):
        auto = TopologyAwareKVStore(AUTO, options.get("topology")).schedules(ctxs)
    known = (*TOPOLOGY_AWARE, *ALGORITHMS)
    scheduled = None if names is None else [name for name in names if name in known]
    on = auto.topology if auto and schedules_alone else topology
    plans = make_plans(scheduled, len(ctxs), options.get("chunks"), options.get("groups"), on)
    plans += [make_auto_plan(auto)] if auto else []
    others = [] if schedules_alone else names
    variants = make_variants(others, plans, ctxs, numbers.get("arrays", 1))
    backends = _parse_processes(options, ctxs, dtype)
    session = MeasurementSession()
    with start_process_groups(backends, len(ctxs)) as processes:
        report = measure(
            sizes, variants, ctxs, dtype, topology=topology, processes=processes, **numbers
        )
    session.warn_if_busy()
    return AllreduceMeasurement(ctxs, topology, plans, report, auto)


def _parse_processes(options: CommandOptions, ctxs: Sequence[Any], dtype: str) -> List[str]:
    """Return the backends of --processes. Raises ConfigError for options that processes do not
    support.
    """
    if "processes" not in options:
        return []
    names = parse_backends(options["processes"])
    if dtype != "float32" or ctxs[0].device_type != "cpu" or len(ctxs) < 2:
        raise ConfigError(
            f"--processes {options['processes']}: processes sum float32 on CPU devices, "
            "one in each: give two or more with --devices cpu*N, and leave --dtype out"
        )
    return names


def inexact_algorithms(rows: Sequence[AllreduceRow]) -> List[str]:
    """Return the algorithms whose sums were not exact."""
    return list(dict.fromkeys(row.algorithm for row in rows if row.error != 0))
