"""Measures copies between all pairs of devices, and additions on each device.

Copies are measured both one at a time and several at the same time.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, TypeVar

import mxnet as mx
from mxnet import nd

from gluonlab.bench.allreduce.memory_bandwidth import MemorySpeeds, probe_speeds
from gluonlab.bench.harness.interleaved_rounds import Call, TimedCall, call_all, progress_bar, time_interleaved
from gluonlab.bench.harness.machine_info import require_memory
from gluonlab.bench.harness.table_format import WIDTH, rounds_text
from gluonlab.bench.links.infer_topology import (
    DeviceMeasurement,
    LinkFit,
    describe_shared_links,
    find_shared_links,
    fit_link,
    list_simultaneous_groups,
)
from gluonlab.collectives.topology import Pair, all_pairs
from gluonlab.engine.fast_invoke import AddInto, CopyInto, slice_rows
from gluonlab.gpu.cuda import enable_peer_access
from gluonlab.plain_text import format_size

BLOCK_S = 0.01  # seconds per call and round; short, because 8 devices need 300 calls per round
ELEMENT_BYTES = 4  # of float32
_Key = TypeVar("_Key")


@dataclass(frozen=True)
class LinkMeasurement:
    """The measurement of all links between devices.

    ``sizes``: the sizes of copies in bytes. ``speeds``: for CPU devices, the speeds of their shared
    memory, from which their topology is made; None for GPUs.
    """

    measured: DeviceMeasurement
    sizes: Tuple[int, ...]
    rounds: int
    speeds: Optional[MemorySpeeds] = None

    def as_json(self) -> Dict[str, Any]:
        """Return the measurement in the format of --json, with bandwidths in GB/s."""
        measured = self.measured
        pairs = [
            {
                "from": src, "to": dst, "latency_us": fit.latency_s * 1e6, "bandwidth": fit.bytes_per_s / 1e9,
                "off": fit.worst_error,
            }
            for (src, dst), fit in measured.pairs.items()
        ]  # fmt: skip
        together = [
            {"copies": kind, "pairs": pairs, "time_us": seconds * 1e6}
            for (kind, pairs), seconds in measured.together.items()
        ]
        return {
            "rounds": self.rounds, "sizes": list(self.sizes), "pairs": pairs,
            "adds": [speed / 1e9 for speed in measured.adds], "together": together,
            "speeds": vars(self.speeds) if self.speeds else None,
        }  # fmt: skip


def measure_links(ctxs: Sequence[mx.Context], sizes: Sequence[int], rounds: int) -> LinkMeasurement:
    """Measure the copies between all pairs of ``ctxs``, in interleaved rounds.

    ``ctxs``: two or more devices. ``sizes``: two or more sizes of copies, in bytes.

    MXNet copies directly between GPUs if CUDA supports direct copies. The copies are queued in the
    same way as the schedule executor queues copies on GPUs. CPU devices share one memory, so their
    simultaneous copies are measured by `probe_speeds` instead. Raises ConfigError if there is not
    enough memory.
    """
    world_size, on_cpu = len(ctxs), ctxs[0].device_type == "cpu"
    if on_cpu:
        description = f"measuring {max(sizes):,} bytes for each pair of {world_size} devices"
        require_memory((world_size + 1) ** 2 * max(sizes), description, "use smaller sizes (--bytes)")
    enable_peer_access(ctxs)
    speeds = probe_speeds(ctxs, max(sizes)) if on_cpu else None
    arrays = _CopyBuffers(ctxs, max(sizes))
    pairs, devices = all_pairs(world_size), range(world_size)
    with progress_bar(3 * rounds) as bar:
        time_calls = partial(_time_calls, rounds=rounds, on_round=bar.update)
        copies = time_calls({(pair, size): arrays.copy(pair, size) for pair in pairs for size in sizes})
        adds = time_calls({(device, size): arrays.add(device, size) for device in devices for size in sizes})
        fits = {pair: fit_link({size: copies[pair, size] for size in sizes}) for pair in pairs}
        groups = [] if on_cpu else list_simultaneous_groups(fits)
        together = time_calls({group: arrays.copy_all(group.pairs) for group in groups})
    measured = DeviceMeasurement(
        world_size,
        fits,
        [fit_link({size: adds[device, size] for size in sizes}).bytes_per_s for device in devices],
        max(sizes),
        {group: median(seconds) for group, seconds in together.items()},
    )
    return LinkMeasurement(measured, tuple(sizes), rounds, speeds)


def _time_calls(calls: Mapping[_Key, Call], rounds: int, on_round: Callable[[], object]) -> Dict[_Key, List[float]]:
    """Return the seconds of each call in each round. ``on_round`` is called after each round."""
    named: Dict[str, TimedCall] = {str(number): call for number, call in enumerate(calls.values())}
    seconds = time_interleaved(named, rounds, on_round=on_round, block_s=BLOCK_S)
    return dict(zip(calls, seconds.values()))


class _CopyBuffers:
    """Buffers for copies: each device has a source, and a target for every other device's source.

    The buffers are filled with zeros when they are created, so no measurement includes a page
    fault.
    """

    def __init__(self, ctxs: Sequence[mx.Context], largest_bytes: int) -> None:
        shape = (max(1, largest_bytes // ELEMENT_BYTES),)
        self._sources = [nd.zeros(shape, ctx=ctx) for ctx in ctxs]
        self._targets = {(src, dst): nd.zeros(shape, ctx=ctxs[dst]) for src, dst in all_pairs(len(ctxs))}

    def copy(self, pair: Pair, size_bytes: int) -> Call:
        """Return a function that queues a copy of ``size_bytes`` for the pair (source, target)."""
        source, target = self._sources[pair[0]], self._targets[pair]
        return partial(CopyInto(_leading_bytes(target, size_bytes)).copy, _leading_bytes(source, size_bytes))

    def add(self, device: int, size_bytes: int) -> Call:
        """Return a function that queues an addition of ``size_bytes`` on one device."""
        target = next(target for pair, target in self._targets.items() if pair[1] == device)
        source = self._sources[device]
        return partial(AddInto(_leading_bytes(target, size_bytes)).add, _leading_bytes(source, size_bytes))

    def copy_all(self, pairs: Sequence[Pair]) -> Call:
        """Return a function that queues a copy of the whole source for every pair of devices."""
        return call_all([partial(CopyInto(self._targets[a, b]).copy, self._sources[a]) for a, b in pairs])


def _leading_bytes(array: nd.NDArray, size_bytes: int) -> nd.NDArray:
    return slice_rows(array, 0, max(1, size_bytes // ELEMENT_BYTES))


# --- the tables

MATRIX_COLUMNS = 8  # columns of a matrix that a terminal has room for; of more devices, the rest is below
COLUMN_WIDTH = 8
FIT_NOTE = (
    "Each pair on its own: a copy of n bytes takes the latency and n / bandwidth, fitted to the "
    "medians of {rounds} at {sizes}. The largest error of the fit is {off:.0%}. GB/s are 10^9 "
    "bytes/s. Copies are queued one after the other, as in a schedule, so latencies include "
    "MXNet's overhead."
)
CPU_NOTE = (
    "CPU devices share one memory: all together copy {copy} and add {add} GB/s, and a single "
    "device {one} and {one_add} GB/s. A transfer without bytes takes {latency} us. allreduce "
    "bench measures the same values, and the topology of CPU devices is based on them."
)


def format_measurement(measurement: LinkMeasurement) -> str:
    """Return the matrices of bandwidths and latencies, followed by an explanation."""
    lines = _matrix_lines(measurement, "GB/s", lambda fit: f"{fit.bytes_per_s / 1e9:.4g}")
    lines += ["", *_matrix_lines(measurement, "us", lambda fit: f"{fit.latency_s * 1e6:.1f}")]
    return "\n\n".join(["\n".join(lines), *(textwrap.fill(note, WIDTH) for note in _measurement_notes(measurement))])


def _matrix_lines(measurement: LinkMeasurement, unit: str, cell: Callable[[LinkFit], str]) -> List[str]:
    """Return a matrix of all pairs as lines; ``cell`` formats the value of a pair."""
    count, lines = measurement.measured.world_size, []
    for first_column in range(0, count, MATRIX_COLUMNS):
        columns = range(first_column, min(count, first_column + MATRIX_COLUMNS))
        lines.append(f"{unit + ' to':>10}" + "".join(f"{column:>{COLUMN_WIDTH}}" for column in columns))
        for src in range(count):
            cells = ["-" if src == dst else cell(measurement.measured.pairs[src, dst]) for dst in columns]
            lines.append(f"{f'from {src}':>10}" + "".join(f"{text:>{COLUMN_WIDTH}}" for text in cells))
    return lines


def _measurement_notes(measurement: LinkMeasurement) -> List[str]:
    """Return the notes below the matrices.

    The notes contain the error of the fit and the speeds of additions, followed by the shared links
    between GPUs or the memory speeds of CPU devices.
    """
    fits = measurement.measured.pairs.values()
    fit_note = FIT_NOTE.format(
        rounds=rounds_text(measurement.rounds),
        sizes=", ".join(map(format_size, measurement.sizes)),
        off=max(fit.worst_error for fit in fits),
    )
    adds = ", ".join(f"{speed / 1e9:.4g}" for speed in measurement.measured.adds)
    notes = [fit_note, f"Each device on its own adds, in GB/s of the summands: {adds}."]
    if measurement.speeds is None:
        shared = describe_shared_links(find_shared_links(measurement.measured))
        sizes = format_size(measurement.measured.size_bytes)
        return [*notes, f"Simultaneous copies of {sizes}: {'; '.join(shared)}."]
    speeds = measurement.speeds
    names = {
        "copy": speeds.copy_bytes_per_s, "add": speeds.add_bytes_per_s,
        "one": speeds.device_copy_bytes_per_s, "one_add": speeds.device_add_bytes_per_s,
    }  # fmt: skip
    values = {name: f"{speed / 1e9:.4g}" for name, speed in names.items()}
    return [*notes, CPU_NOTE.format(latency=f"{speeds.latency_s * 1e6:.1f}", **values)]
