"""What ``bench links`` prints: matrices of GB/s and of microseconds, and what is shared."""

from __future__ import annotations

import textwrap
from typing import Callable, List

from gluonlab.bench.harness.text import WIDTH, interleaved
from gluonlab.bench.links import infer
from gluonlab.bench.links.fit import Fit
from gluonlab.bench.links.measure import Found
from gluonlab.plain import in_words as size_in_words

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


def text(found: Found) -> str:
    """The matrices, then what they mean."""
    lines = _matrix(found, "GB/s", lambda fit: f"{fit.bytes_per_s / 1e9:.4g}")
    lines += ["", *_matrix(found, "us", lambda fit: f"{fit.latency_s * 1e6:.1f}")]
    return "\n\n".join(["\n".join(lines), *(textwrap.fill(note, WIDTH) for note in _notes(found))])


def _matrix(found: Found, unit: str, cell: Callable[[Fit], str]) -> List[str]:
    count, lines = found.measured.world_size, []
    for begin in range(0, count, ACROSS):
        columns = range(begin, min(count, begin + ACROSS))
        lines.append(f"{unit + ' to':>10}" + "".join(f"{column:>{COLUMN}}" for column in columns))
        for src in range(count):
            cells = ["-" if src == dst else cell(found.measured.pairs[src, dst]) for dst in columns]
            lines.append(f"{f'from {src}':>10}" + "".join(f"{each:>{COLUMN}}" for each in cells))
    return lines


def _notes(found: Found) -> List[str]:
    fits = found.measured.pairs.values()
    how = HOW.format(
        rounds=interleaved(found.rounds),
        sizes=", ".join(map(size_in_words, found.sizes)),
        off=max(fit.off for fit in fits),
    )
    adds = ", ".join(f"{speed / 1e9:.4g}" for speed in found.measured.adds)
    notes = [how, f"Each device alone adds, in GB/s of what is added: {adds}."]
    if found.speeds is None:
        shared = infer.in_words(infer.shared_links(found.measured))
        sizes = size_in_words(found.measured.size_bytes)
        return [*notes, f"Copies of {sizes}, made at once: {'; '.join(shared)}."]
    speeds = found.speeds
    names = {
        "copy": speeds.copy_bytes_per_s, "add": speeds.add_bytes_per_s,
        "one": speeds.device_copy_bytes_per_s, "one_add": speeds.device_add_bytes_per_s,
    }  # fmt: skip
    shown = {name: f"{speed / 1e9:.4g}" for name, speed in names.items()}
    return [*notes, ON_CPU.format(latency=f"{speeds.latency_s * 1e6:.1f}", **shown)]
