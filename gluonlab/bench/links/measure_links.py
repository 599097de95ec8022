"""Copies between every two devices, alone and at once, additions on each, and their tables."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, TypeVar

import mxnet as mx
from mxnet import nd

from gluonlab.bench.allreduce.memory_bandwidth import Speeds, probe
from gluonlab.bench.harness.interleaved_rounds import Call, Timed, progress, time_in_turns
from gluonlab.bench.harness.machine_info import require_memory
from gluonlab.bench.harness.table_format import WIDTH, interleaved
from gluonlab.bench.links.infer_topology import (
    DeviceMeasurement,
    Fit,
    at_once,
    fit,
    in_words,
    shared_links,
)
from gluonlab.collectives.topology import Pair, pairs_of
from gluonlab.engine.fast_invoke import AddInto, CopyInto, slice_rows
from gluonlab.gpu.cuda import enable_peer_access
from gluonlab.plain_text import format_size as size_in_words

BLOCK_S = 0.01  # 8 devices are 300 calls in a round
ELEMENT_BYTES = 4  # of float32
_Key = TypeVar("_Key")


@dataclass(frozen=True)
class LinkMeasurement:
    """What was measured; ``speeds``: of CPU devices, whose topology is made of them."""

    measured: DeviceMeasurement
    sizes: Tuple[int, ...]
    rounds: int
    speeds: Optional[Speeds] = None

    def as_json(self) -> Dict[str, Any]:
        """What --json prints; bandwidths in GB/s, as in the table."""
        measured = self.measured
        pairs = [
            {
                "from": src,
                "to": dst,
                "latency_us": fit.latency_s * 1e6,
                "bandwidth": fit.bytes_per_s / 1e9,
                "off": fit.off,
            }
            for (src, dst), fit in measured.pairs.items()
        ]
        together = [
            {"copies": what, "pairs": pairs, "time_us": seconds * 1e6}
            for (what, pairs), seconds in measured.together.items()
        ]
        return {
            "rounds": self.rounds,
            "sizes": list(self.sizes),
            "pairs": pairs,
            "adds": [speed / 1e9 for speed in measured.adds],
            "together": together,
            "speeds": vars(self.speeds) if self.speeds else None,
        }


def measure(ctxs: Sequence[mx.Context], sizes: Sequence[int], rounds: int) -> LinkMeasurement:
    """Measure all pairs of ``ctxs``, two or more, which take turns.

    ``sizes``: two or more, in bytes. Copies are MXNet's, queued as a schedule's executor queues
    them on GPUs, and go from GPU to GPU where CUDA lets them. CPU devices share one memory: what
    several reach at once is measured by the probe that ``bench allreduce`` prices by. Raises
    ConfigError where there is not enough memory.
    """
    world_size, on_cpu = len(ctxs), ctxs[0].device_type == "cpu"
    if on_cpu:
        what = f"{max(sizes):,} bytes for each two of {world_size} devices"
        require_memory((world_size + 1) ** 2 * max(sizes), what, "choose smaller --sizes")
    enable_peer_access(ctxs)
    speeds = probe(ctxs, max(sizes)) if on_cpu else None
    arrays = _CopyBuffers(ctxs, max(sizes))
    pairs, every = pairs_of(world_size), range(world_size)
    with progress(3 * rounds) as bar:
        timed = partial(_timed, rounds=rounds, done=bar.update)
        copies = timed({(pair, size): arrays.copy(pair, size) for pair in pairs for size in sizes})
        adds = timed({(one, size): arrays.add(one, size) for one in every for size in sizes})
        fits = {pair: fit({size: copies[pair, size] for size in sizes}) for pair in pairs}
        groups = [] if on_cpu else at_once(fits)
        together = timed({group: arrays.copies(group[1]) for group in groups})
    measured = DeviceMeasurement(
        world_size,
        fits,
        [fit({size: adds[one, size] for size in sizes}).bytes_per_s for one in every],
        max(sizes),
        {group: median(seconds) for group, seconds in together.items()},
    )
    return LinkMeasurement(measured, tuple(sizes), rounds, speeds)


def _timed(
    calls: Mapping[_Key, Call], rounds: int, done: Callable[[], object]
) -> Dict[_Key, List[float]]:
    """Seconds of each call, by round."""
    named: Dict[str, Timed] = {str(number): call for number, call in enumerate(calls.values())}
    seconds = time_in_turns(named, rounds, done=done, block_s=BLOCK_S)
    return dict(zip(calls, seconds.values()))


class _CopyBuffers:
    """What is copied: on each device a source, and a target for every other one's.

    They have been written to: no measurement is the first to touch a page.
    """

    def __init__(self, ctxs: Sequence[mx.Context], largest_bytes: int) -> None:
        shape = (max(1, largest_bytes // ELEMENT_BYTES),)
        self._sources = [nd.zeros(shape, ctx=ctx) for ctx in ctxs]
        self._targets = {
            (src, dst): nd.zeros(shape, ctx=ctxs[dst]) for src, dst in pairs_of(len(ctxs))
        }

    def copy(self, pair: Pair, size_bytes: int) -> Call:
        """The call that queues a copy of so many bytes."""
        source, target = self._sources[pair[0]], self._targets[pair]
        return partial(CopyInto(_first(target, size_bytes)).copy, _first(source, size_bytes))

    def add(self, device: int, size_bytes: int) -> Call:
        """The call that queues an addition of so many bytes to as many on the same device."""
        target = next(target for pair, target in self._targets.items() if pair[1] == device)
        source = self._sources[device]
        return partial(AddInto(_first(target, size_bytes)).add, _first(source, size_bytes))

    def copies(self, pairs: Sequence[Pair]) -> Call:
        """The call that queues whole copies of all these pairs."""
        calls = [partial(CopyInto(self._targets[a, b]).copy, self._sources[a]) for a, b in pairs]

        def run() -> None:
            for call in calls:
                call()

        return run


def _first(array: nd.NDArray, size_bytes: int) -> nd.NDArray:
    return slice_rows(array, 0, max(1, size_bytes // ELEMENT_BYTES))


# --- the tables

ACROSS = 8  # columns of a matrix that a terminal has room for; of more devices, the rest is below
COLUMN = 8
HOW = (
    "Each pair alone: a copy of n bytes takes the latency and n / bandwidth, fitted to the medians "
    "of {rounds} at {sizes}; the worst of these is {off:.0%} off. GB/s are 10^9 bytes/s. Copies "
    "are queued one after the other, as a schedule's are, so a latency has MXNet's part in it."
)
ON_CPU = (
    "CPU devices share one memory: all together copy {copy} and add {add} GB/s, one alone {one} "
    "and {one_add}, and a transfer without bytes takes {latency} us, by the probe that bench "
    "allreduce prices by. The topology of CPU devices is made of these."
)


def text(found: LinkMeasurement) -> str:
    """The matrices, then what they mean."""
    lines = _matrix(found, "GB/s", lambda fit: f"{fit.bytes_per_s / 1e9:.4g}")
    lines += ["", *_matrix(found, "us", lambda fit: f"{fit.latency_s * 1e6:.1f}")]
    return "\n\n".join(["\n".join(lines), *(textwrap.fill(note, WIDTH) for note in _notes(found))])


def _matrix(found: LinkMeasurement, unit: str, cell: Callable[[Fit], str]) -> List[str]:
    count, lines = found.measured.world_size, []
    for begin in range(0, count, ACROSS):
        columns = range(begin, min(count, begin + ACROSS))
        lines.append(f"{unit + ' to':>10}" + "".join(f"{column:>{COLUMN}}" for column in columns))
        for src in range(count):
            cells = ["-" if src == dst else cell(found.measured.pairs[src, dst]) for dst in columns]
            lines.append(f"{f'from {src}':>10}" + "".join(f"{each:>{COLUMN}}" for each in cells))
    return lines


def _notes(found: LinkMeasurement) -> List[str]:
    fits = found.measured.pairs.values()
    how = HOW.format(
        rounds=interleaved(found.rounds),
        sizes=", ".join(map(size_in_words, found.sizes)),
        off=max(fit.off for fit in fits),
    )
    adds = ", ".join(f"{speed / 1e9:.4g}" for speed in found.measured.adds)
    notes = [how, f"Each device alone adds, in GB/s of what is added: {adds}."]
    if found.speeds is None:
        shared = in_words(shared_links(found.measured))
        sizes = size_in_words(found.measured.size_bytes)
        return [*notes, f"Copies of {sizes}, made at once: {'; '.join(shared)}."]
    speeds = found.speeds
    names = {
        "copy": speeds.copy_bytes_per_s, "add": speeds.add_bytes_per_s,
        "one": speeds.device_copy_bytes_per_s, "one_add": speeds.device_add_bytes_per_s,
    }  # fmt: skip
    shown = {name: f"{speed / 1e9:.4g}" for name, speed in names.items()}
    return [*notes, ON_CPU.format(latency=f"{speeds.latency_s * 1e6:.1f}", **shown)]
