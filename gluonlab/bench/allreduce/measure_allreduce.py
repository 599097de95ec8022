"""Measures how long an allreduce takes, for each algorithm and each size.

For comparison, the module also measures MXNet's kvstores, and the loop from the chapter "Training
on Multiple GPUs" in Dive into Deep Learning (row "chapter"). Optionally, it also measures sums
across processes that have one device each. A row of the result contains the time, the bandwidth as
in nccl-tests, the error, the time predicted by the cost model, and the memory limit.
"""

from __future__ import annotations

import json
import sys
import textwrap
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.bench.allreduce.candidate_schedules import NamedSchedule, make_auto_plan, make_plans, parse_algorithms
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
from gluonlab.collectives.cost_model import algbw, bus_factor, estimate_cost
from gluonlab.collectives.lower_bounds import find_lower_bound
from gluonlab.collectives.named_topologies import Topology, resolve_topology
from gluonlab.collectives.schedule import ALLREDUCE, Schedule
from gluonlab.collectives.schedule_executor import Executor
from gluonlab.collectives.topology_aware import AUTO, MAX_AUTO_DEVICES, TOPOLOGY_AWARE, SchedulesBySize
from gluonlab.config import option_name
from gluonlab.config.option_checks import whole_number_check
from gluonlab.devices import devices
from gluonlab.engine.parameter_server_role import explain_missing_parameter_server, has_parameter_server
from gluonlab.errors import ConfigError, KVStoreError, RunError, unknown
from gluonlab.files.atomic_files import temporary_folder
from gluonlab.gpu.cuda import enable_peer_access
from gluonlab.kvstores import make_kvstore
from gluonlab.kvstores.allreduce_store import total_bytes
from gluonlab.kvstores.schedule_stores import TopologyAwareKVStore
from gluonlab.plain_text import json_text
from gluonlab.renamed import rename_argument
from gluonlab.scratch.data_parallel import allreduce as chapters_allreduce

CHAPTER, SHARDED_WHOLE = "chapter", "sharded-whole"
NATIVE = ("local", "device", "nccl")
PEERS = (CHAPTER, *NATIVE)
CHOICES = (*PEERS, SHARDED_WHOLE, *TOPOLOGY_AWARE, *ALGORITHMS)

Arrays = List[List[nd.NDArray]]  # [rank][number of the array]


@dataclass(frozen=True)
class Variant:
    """One way to sum arrays, which is measured in one row of the table.

    ``make(arrays)`` returns a function that queues the sum of ``arrays`` over the ranks.
    ``schedule_for(size_bytes)`` returns the schedule that this function runs, for the cost model.
    ``schedule_for`` is None if the variant does not run a schedule.
    """

    label: str
    make: Callable[[Arrays], Callable[[], None]]
    schedule_for: Optional[Callable[[float], Schedule]] = None


def make_variants(
    names: Optional[Sequence[str]], plans: Sequence[NamedSchedule], ctxs: Sequence[mx.Context], array_count: int
) -> List[Variant]:
    """Return the variants to measure: those of PEERS, such as MXNet's kvstores, and ``plans``.

    ``names``: the requested algorithms and kvstores. None selects all kvstores that work on
    ``ctxs``, and sharded-whole if ``array_count`` is above 1. ``sharded-whole`` sums each array on
    one device, without dividing the array. Raises KVStoreError if a requested kvstore does not work
    on ``ctxs``.
    """
    variants = []
    for name in PEERS if names is None else [name for name in PEERS if name in names]:
        if name == CHAPTER:
            variants.append(Variant(CHAPTER, _make_chapter_allreduce))
        elif names is not None or _is_store_usable(name, ctxs):
            make_kvstore(name, ctxs)  # raises errors before anything is measured
            variants.append(Variant(name, _prepare_native_allreduce(name, ctxs)))
    if (names is None and array_count > 1) or SHARDED_WHOLE in (names or ()):
        by_owner = NamedSchedule(SHARDED_WHOLE, sharded(len(ctxs)))
        variants.append(Variant(SHARDED_WHOLE, _execute_plan(by_owner, whole=True), by_owner.schedule_for))
    return variants + [Variant(plan.label, _execute_plan(plan), plan.schedule_for) for plan in plans]


def _is_store_usable(name: str, ctxs: Sequence[mx.Context]) -> bool:
    """Return whether MXNet's kvstore ``name`` can be created for these devices."""
    try:
        make_kvstore(name, ctxs)
    except KVStoreError:
        return False
    return True


def _execute_plan(plan: NamedSchedule, whole: bool = False) -> Callable[[Arrays], Callable[[], None]]:
    """Return the function ``make`` of a `Variant` that runs the plan's schedule.

    ``whole``: whether to sum each array without dividing it.
    """
    return lambda arrays: Executor(plan.schedule_for(total_bytes(arrays[0])), arrays, whole).run


def _make_chapter_allreduce(arrays: Arrays) -> Callable[[], None]:
    """Return a function that sums arrays with the code from the chapter (`gluonlab.scratch`)."""

    def run() -> None:
        for replicas in zip(*arrays):
            chapters_allreduce(list(replicas))

    return run


def _prepare_native_allreduce(name: str, ctxs: Sequence[mx.Context]) -> Callable[[Arrays], Callable[[], None]]:
    """Return the function ``make`` of a `Variant` that sums arrays with an MXNet kvstore."""

    def make(arrays: Arrays) -> Callable[[], None]:
        store = make_kvstore(name, ctxs)
        keys = [list(replicas) for replicas in zip(*arrays)]
        for key, replicas in enumerate(keys):
            store.broadcast(key, replicas[0], replicas)

        # as in gluon.Trainer: a key for each array, and the highest priority for the first
        def run() -> None:
            for key, replicas in enumerate(keys):
                store.pushpull(key, replicas, priority=-key)

        return run

    return make


# --- sums over processes


class ProcessGroupWorker:
    """A group of processes that sum arrays through ``backend``.

    ``worker``: the first process. ``label``: the name of the table row.
    """

    def __init__(self, backend: str, worker: Worker) -> None:
        self.label = f"{backend}, processes"
        self._worker = worker

    def ask(self, steps: int, count: int, arrays: int) -> "dict[str, float]":
        """Sum arrays ``steps`` times in the processes, and return the seconds.

        If ``steps`` is 0, return the error of a sum instead.

        ``arrays``: the number of arrays. ``count``: the total number of elements in all arrays.
        Raises RunError if a process fails.
        """
        request = {"steps": steps, "count": count, "arrays": arrays}
        try:
            return self._worker.ask(request, ROUND_TIMEOUT_S)
        except WorkerError as error:
            raise RunError(f"{self.label}: {error}") from None


class MultiprocessAllreduce:
    """A sum across processes of ``arrays`` arrays, which have ``count`` elements in total.

    The processes measure the time.
    """

    def __init__(self, processes: ProcessGroupWorker, count: int, arrays: int) -> None:
        self._processes, self._size = processes, (count, arrays)

    def measure_error(self) -> float:
        """Sum random whole numbers, and return the largest error in any process."""
        return self._processes.ask(0, *self._size)["difference"]

    def mean_seconds(self, repeat: int) -> float:
        """Return the mean seconds per sum, over ``repeat`` sums."""
        return self._processes.ask(repeat, *self._size)["seconds"] / repeat


@contextmanager
def start_process_groups(backends: Sequence[str], size: int) -> Iterator[List[ProcessGroupWorker]]:
    """Start ``size`` processes for each backend, and stop them at the end of the with block.

    Raises RunError if Horovod is not installed, if MXNet lacks the parameter server, or if a process
    does not start.
    """
    for name in backends:
        if name != HOROVOD and not has_parameter_server():
            instead = "choose --processes horovod, omit --processes"
            raise RunError(explain_missing_parameter_server(f"--processes {name}", instead))
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
MAX_CONTRIBUTION = 8  # largest element of a device: sums over 256 devices are exact even in float16
# About how many buffers of a size are in memory: those of the sums, of the memory limit, of MXNet's
# stores, and of the check.
MEMORY_REPLICAS = 6


@dataclass(frozen=True)
class AllreduceRow:
    """The measurement of one variant at one size.

    Attributes:
        algorithm: the name of the variant.
        world_size: the number of devices.
        size_bytes: bytes per device.
        count: elements per device.
        dtype: the type of the elements.
        arrays: the number of arrays over which the elements are split.
        seconds: seconds per allreduce in each round.
        error: the largest difference from the exact sum on any device.
        predicted_s: how many seconds the schedule takes according to the cost model.
        limit_s: the seconds of the memory limit (`MemoryLimit`) in each round.
        lower_bound_s: a lower bound on the predicted time of any schedule.
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
    lower_bound_s: Optional[float] = None

    @property
    def time_s(self) -> float:
        """Return the median seconds over the rounds."""
        return median(self.seconds)

    @property
    def algbw(self) -> float:
        """Return the algorithm bandwidth, size / time, in bytes/s."""
        return algbw(self.size_bytes, self.time_s)

    @property
    def busbw(self) -> float:
        """Return the bus bandwidth, algbw * 2 (n-1) / n for n devices, in bytes/s."""
        return self.algbw * bus_factor(ALLREDUCE, self.world_size)

    @property
    def of_limit(self) -> Optional[float]:
        """Return the speed relative to the memory limit's speed: the median ratio over rounds."""
        return median_ratio(self.limit_s, self.seconds) if self.limit_s else None

    def as_json(self) -> Dict[str, Any]:
        """Return the row in the format of --json, with bandwidths in GB/s."""
        names = ("algorithm", "size_bytes", "count", "dtype", "arrays")
        return {
            **{name: getattr(self, name) for name in names}, "time_us": self.time_s * 1e6,
            "lowest_us": min(self.seconds) * 1e6, "highest_us": max(self.seconds) * 1e6,
            "algbw": self.algbw / 1e9, "busbw": self.busbw / 1e9,
            "error": None if np.isnan(self.error) else self.error,
            "predicted_us": None if self.predicted_s is None else self.predicted_s * 1e6,
            "floor_us": None if self.lower_bound_s is None else self.lower_bound_s * 1e6,
            "limit_us": None if self.limit_s is None else median(self.limit_s) * 1e6,
            "of_limit": self.of_limit,
        }  # fmt: skip


@dataclass(frozen=True)
class AllreduceReport:
    """The rows of a measurement.

    ``topology``: the links with which the cost model predicts times, or None. ``speeds``: the
    measured speeds from which ``topology`` was made, or None.
    """

    rows: List[AllreduceRow]
    rounds: int
    topology: Optional[Topology] = None
    speeds: Optional[MemorySpeeds] = None


@rename_argument("repeat", "iters")
def measure(
    sizes: Sequence[int],
    variants: Sequence[Variant],
    ctxs: Sequence[mx.Context],
    dtype: str = "float32",
    arrays: int = 1,
    rounds: int = ROUNDS,
    iters: Optional[int] = None,
    topology: Optional[Topology] = None,
    processes: Sequence[ProcessGroupWorker] = (),
    warmup: Optional[int] = None,
) -> AllreduceReport:
    """Measure every variant at every size, and return the rows for a table.

    Args:
        sizes: Bytes per device.
        variants: The rows, from `make_variants`.
        ctxs: The devices.
        dtype: Type of the elements.
        arrays: Number of arrays over which each size is split.
        rounds: Number of measurements per row.
        iters: Allreduces per measurement; None for as many as take about 30 ms.
        topology: Links for the cost model. If None, the cost model uses measured speeds if the
            devices are CPU devices.
        processes: Groups of processes that are also measured, always with float32. Each group has
            as many processes as there are devices.
        warmup: Allreduces before the first measurement; see `time_interleaved`.

    Returns:
        The rows for all sizes.

    Raises:
        ConfigError: The sizes are incompatible with the type, the arrays or the memory.
    """
    counts = [_count_elements(size, dtype, arrays) for size in sizes]
    on_cpu = ctxs[0].device_type == "cpu"
    if on_cpu:
        description = f"measuring {max(sizes):,} bytes on each of {len(ctxs)} devices"
        remedy = "use smaller sizes (--bytes) or fewer devices (--devices)"
        require_memory(MEMORY_REPLICAS * len(ctxs) * max(sizes), description, remedy)
    speeds = probe_speeds(ctxs, max(sizes)) if topology is None and on_cpu and len(ctxs) > 1 else None
    cost_topology = speeds.topology(len(ctxs)) if speeds else topology
    rows: List[AllreduceRow] = []
    with progress_bar(len(sizes) * rounds) as bar:
        for count in counts:
            buffers = AllreduceBuffers(ctxs, count, dtype, arrays)
            rows += _measure_size(buffers, variants, processes, rounds, (iters, warmup), cost_topology, bar.update)
    return AllreduceReport(rows, rounds, cost_topology, speeds)


def _count_elements(size_bytes: int, dtype: str, arrays: int) -> int:
    """Return the number of elements in ``size_bytes``.

    Raises ConfigError if an array would be empty.
    """
    count = size_bytes // np.dtype(dtype).itemsize
    if count < arrays:
        raise ConfigError(
            f"--bytes {size_bytes}B contains only {count} {dtype} element{'s' * (count != 1)}, which is too "
            f"few for --arrays {arrays}: use a larger size or fewer arrays"
        )
    return count


def _measure_size(
    buffers: AllreduceBuffers,
    variants: Sequence[Variant],
    processes: Sequence[ProcessGroupWorker],
    rounds: int,
    calls_per_row: Tuple[Optional[int], Optional[int]],
    topology: Optional[Topology],
    on_round: Callable[[], object],
) -> List[AllreduceRow]:
    """Measure all variants at one size, and return their rows, with process groups first.

    ``calls_per_row``: the number of calls per measurement and the number of warm-up calls (see
    `time_interleaved`). ``topology``: the links for the cost model. ``on_round`` is called after
    each round.
    """
    ctxs, count, dtype = buffers.ctxs, buffers.count, buffers.dtype
    calls = {variant.label: variant.make(buffers.arrays) for variant in variants}
    process_sums = {item.label: MultiprocessAllreduce(item, count, len(buffers.arrays[0])) for item in processes}
    errors = {label: buffers.check(call) for label, call in calls.items()}
    errors.update({label: item.measure_error() for label, item in process_sums.items()})
    buffers.clear()
    size = count * np.dtype(dtype).itemsize
    # a single device has no other device's data to read, so its sum has no limit
    on_cpus = ctxs[0].device_type == "cpu" and len(ctxs) > 1
    limit = MemoryLimit(ctxs, size, dtype) if on_cpus else None
    timed: Dict[str, TimedCall] = {**process_sums, **calls, **(limit.calls if limit else {})}
    iters, warmup = calls_per_row
    seconds = time_interleaved(timed, rounds, iters, on_round, warmup=warmup)
    limit_s = limit.seconds(seconds) if limit else None
    lower_bound_s = find_lower_bound(topology).seconds(size) if topology else None

    def make_row(label: str, schedule_for: Optional[Callable[[float], Schedule]]) -> AllreduceRow:
        """Return the row named ``label``, with a predicted time if the variant has a schedule."""
        schedule = schedule_for(size) if schedule_for and topology else None
        priced_s = estimate_cost(schedule, topology, size).seconds if schedule and topology else None
        measured = (len(buffers.arrays[0]), tuple(seconds[label]), errors[label])
        return AllreduceRow(label, len(ctxs), size, count, dtype, *measured, priced_s, limit_s, lower_bound_s)

    schedules = {**dict.fromkeys(process_sums), **{item.label: item.schedule_for for item in variants}}
    return [make_row(label, schedule_for) for label, schedule_for in schedules.items()]


class AllreduceBuffers:
    """The arrays that all variants sum, and the numbers that are needed to check the sums.

    The arrays are filled with zeros when they are created, so no measurement includes a page fault.

    ``count``: the number of elements on each device, split over ``arrays`` arrays. The devices
    ``ctxs`` have the ranks from ``first_rank`` upward, out of ``world_size`` ranks. By default,
    there are no other ranks.
    """

    def __init__(
        self,
        ctxs: Sequence[mx.Context],
        count: int,
        dtype: str,
        arrays: int,
        first_rank: int = 0,
        world_size: Optional[int] = None,
    ) -> None:
        enable_peer_access(ctxs)  # at the start, so that results do not depend on the rows' order
        self.ctxs, self.count, self.dtype = ctxs, count, dtype
        self._ends = split_evenly(count, arrays)
        self.arrays: Arrays = [
            [nd.zeros((end - start,), ctx=ctx, dtype=dtype) for start, end in self._ends] for ctx in ctxs
        ]
        # whole numbers, so that the sum is exact in any order
        contributions = [_random_contribution(rank, count) for rank in range(world_size or len(ctxs))]
        self._contributions = contributions[first_rank : first_rank + len(ctxs)]
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
        return float(np.max(differences))  # unlike max, np.max returns NaN if any number is NaN

    def clear(self) -> None:
        """Set all arrays to zero, and free the memory that the checks used.

        Repeatedly summing nonzero numbers would overflow.
        """
        for array in [array for rank_arrays in self.arrays for array in rank_arrays]:
            array[:] = 0
        self._contributions, self._sum = [], np.zeros(0)
        nd.waitall()


def _random_contribution(rank: int, count: int) -> "np.ndarray[Any, np.dtype[np.int8]]":
    return np.random.RandomState(rank).randint(-MAX_CONTRIBUTION, MAX_CONTRIBUTION + 1, count, dtype=np.int8)


def _max_difference(actual: "np.ndarray[Any, Any]", expected: "np.ndarray[Any, Any]") -> float:
    if np.array_equal(actual, expected):
        return 0.0
    return float(np.max(np.abs(actual.astype(np.float64) - expected)))


# --- measurement by the command's options

CommandOptions = Mapping[str, Any]


class AllreduceMeasurement(NamedTuple):
    """A finished measurement.

    ``plans``: the schedules that were measured. ``auto``: the schedules that auto chooses from, if
    auto was measured.
    """

    ctxs: Sequence[mx.Context]
    topology: Optional[Topology]
    plans: List[NamedSchedule]
    report: AllreduceReport
    auto: Optional[SchedulesBySize]

    @property
    def failure(self) -> Optional[str]:
        """Return a message that names the variants with wrong sums, or None."""
        names = ", ".join(inexact_algorithms(self.report.rows))
        return f"wrong results from {names}: see column error" if names else None

    def as_json(self, content: Mapping[str, Any]) -> str:
        """Return JSON with the machine, devices, rounds, and the keys of ``content``."""
        speeds = vars(self.report.speeds) if self.report.speeds else None
        head: Dict[str, Any] = {
            "machine": describe_machine(), "devices": [str(ctx) for ctx in self.ctxs],
            "on": describe_devices(self.ctxs), "rounds": self.report.rounds, "speeds": speeds,
        }  # fmt: skip
        return json_text({**head, **content})

    def as_text(self, tables: str) -> str:
        """Return a description of the machine and the devices, followed by ``tables``."""
        device_lines = textwrap.fill(f"devices: {describe_devices(self.ctxs)}", WIDTH)
        return "\n".join([describe_machine(), device_lines, "", tables])


def measure_by_options(options: CommandOptions, schedules_alone: bool = False) -> AllreduceMeasurement:
    """Run the measurement with the command's options. Raises a UsageError for invalid options.

    ``schedules_alone``: whether to measure only auto and the schedules of all algorithms, without
    MXNet's kvstores.
    """
    sizes = parse_sizes(options.get("bytes", DEFAULT_SIZES))
    minimums = {"arrays": 1, "iters": 1, "rounds": 1, "warmup": 0}
    numbers = {
        name: whole_number_check(minimum)(option_name(name), options[name])
        for name, minimum in minimums.items()
        if name in options
    }
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
    plan_topology = auto.topology if auto and schedules_alone else topology
    plans = make_plans(scheduled, len(ctxs), options.get("chunks"), options.get("groups"), plan_topology)
    plans += [make_auto_plan(auto)] if auto else []
    others = [] if schedules_alone else names
    variants = make_variants(others, plans, ctxs, numbers.get("arrays", 1))
    backends = _parse_processes(options, ctxs, dtype)
    session = MeasurementSession()
    with start_process_groups(backends, len(ctxs)) as processes:
        report = measure(sizes, variants, ctxs, dtype, topology=topology, processes=processes, **numbers)
    session.warn_if_busy()
    return AllreduceMeasurement(ctxs, topology, plans, report, auto)


def _parse_processes(options: CommandOptions, ctxs: Sequence[Any], dtype: str) -> List[str]:
    """Return the backends that --processes names.

    Raises ConfigError if other options do not support sums across processes.
    """
    if "processes" not in options:
        return []
    names = parse_backends(options["processes"])
    if dtype != "float32" or ctxs[0].device_type != "cpu" or len(ctxs) < 2:
        raise ConfigError(
            f"--processes {options['processes']} requires float32 and at least two CPU devices, one for "
            "each process: use --devices cpu*N with N >= 2, and omit --dtype"
        )
    return names


def inexact_algorithms(rows: Sequence[AllreduceRow]) -> List[str]:
    """Return the algorithms whose sums were not exact."""
    return list(dict.fromkeys(row.algorithm for row in rows if row.error != 0))
