"""Allreduce by size and algorithm, beside MXNet's own stores.

Time, bandwidth as nccl-tests counts it, error, price and limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.bench.allreduce.memory import Limit, Speeds, probe
from gluonlab.bench.allreduce.processes import Processes, Sums
from gluonlab.bench.allreduce.variants import Arrays, Variant
from gluonlab.bench.harness.interval import ratio
from gluonlab.bench.harness.machine import require_memory
from gluonlab.bench.harness.rounds import progress
from gluonlab.bench.harness.turns import Call, Timed, time_in_turns
from gluonlab.collectives.bounds import floor_of
from gluonlab.collectives.cost import algbw, bus_factor, price
from gluonlab.collectives.schedule import ALLREDUCE, Schedule
from gluonlab.collectives.topology import Topology
from gluonlab.errors import ConfigError
from gluonlab.gpu.cuda import enable_peer_access
from gluonlab.shares import split_evenly

ROUNDS = 7
DTYPES = ("float32", "float64", "float16", "int32")
LARGEST = 8  # of a contribution: sums over 256 devices are exact even in float16
# how often a size is in memory, roughly: arrays, the limit's, those of MXNet's stores, and the
# check's
REPLICAS = 6


@dataclass(frozen=True)
class Row:
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
        """What --json prints of the row; bandwidths in GB/s, as in the table."""
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
class Report:
    """The rows of one run; ``speeds``: the probed ones that ``topology`` is made of, if any."""

    rows: List[Row]
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
) -> Report:
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
    rows: List[Row] = []
    with progress(len(sizes) * rounds) as bar:
        for count in counts:
            buffers = Buffers(ctxs, count, dtype, arrays)
            rows += _measure_size(buffers, variants, processes, rounds, repeat, on, bar.update)
    return Report(rows, rounds, on, speeds)


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
) -> List[Row]:
    ctxs, count, dtype = buffers.ctxs, buffers.count, buffers.dtype
    calls = {variant.label: variant.make(buffers.arrays) for variant in variants}
    sums = {each.label: Sums(each, count, len(buffers.arrays[0])) for each in processes}
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

    def row(label: str, schedule_for: Optional[Callable[[float], Schedule]]) -> Row:
        schedule = schedule_for(size) if schedule_for and topology else None
        priced_s = price(schedule, topology, size).seconds if schedule and topology else None
        measured = (len(buffers.arrays[0]), tuple(seconds[label]), errors[label])
        return Row(label, len(ctxs), size, count, dtype, *measured, priced_s, limit_s, floor_s)

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
