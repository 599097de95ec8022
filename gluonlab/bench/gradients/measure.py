"""Gradients of a real network's size: allreduce alone, and allreduce with update."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby
from typing import Iterator, List, Optional, Sequence

from gluonlab.bench.allreduce import measure as allreduce
from gluonlab.bench.allreduce import table as allreduce_table
from gluonlab.bench.allreduce.measure import Report
from gluonlab.bench.allreduce.plans import make_plans
from gluonlab.bench.allreduce.variants import make_variants
from gluonlab.bench.gradients import steps, verdicts
from gluonlab.bench.gradients.steps import GLUON, STORES, Shape, StepRow, step_name
from gluonlab.bench.harness.interval import ratio
from gluonlab.bench.harness.measured_on import MeasuredOn
from gluonlab.bench.harness.record import Series
from gluonlab.bench.harness.rounds import Measurement, Subject
from gluonlab.bench.harness.text import interleaved, table
from gluonlab.config.values import whole
from gluonlab.devices import MOST_CPU_DEVICES, devices
from gluonlab.errors import ConfigError, KVStoreError, unknown
from gluonlab.kvstores import KVSTORES

ARRAYS = (16, 1)
WORLD_SIZES = (2, 4)


@dataclass(frozen=True)
class Findings:
    """All of ``python -m gluonlab.bench gradients``."""

    allreduces: List[Report]
    steps: List[StepRow]
    shapes: List[Shape]
    rounds: int

    def verdicts(self) -> List[verdicts.Verdict]:
        """What our best reached, for every allreduce and number of devices."""
        found = [one for report in self.allreduces for one in verdicts.of_allreduce(report.rows)]
        for world_size in sorted({row.world_size for row in self.steps}):
            found += verdicts.of_steps(self.steps, world_size)
        return found

    def wrong(self) -> List[str]:
        """What did not compute exact sums."""
        sums = [name for report in self.allreduces for name in allreduce_table.wrong(report.rows)]
        updates = [f"{row.store} ({row.trainer})" for row in self.steps if row.error != 0]
        return list(dict.fromkeys([*sums, *updates]))

    def series(self) -> List[Series]:
        """Seconds of every allreduce and step, and of the memory limit, by round."""
        return [*self._allreduces(), *self._steps()]

    def _allreduces(self) -> Iterator[Series]:
        for rows in (report.rows for report in self.allreduces):
            for row in rows:
                name = allreduce_name(row.world_size, row.arrays, row.algorithm)
                yield Series(name, row.algorithm, "s", row.seconds)
            if rows and rows[0].limit_s:
                name = allreduce_name(rows[0].world_size, rows[0].arrays, verdicts.LIMIT)
                yield Series(name, verdicts.LIMIT, "s", rows[0].limit_s)

    def _steps(self) -> Iterator[Series]:
        for row in self.steps:
            name = step_name(row.world_size, row.trainer, row.store)
            yield Series(name, f"{row.store}, {row.trainer}", "s", row.seconds)


def allreduce_name(world_size: int, arrays: int, algorithm: str) -> str:
    """``allreduce 2 16 ring``: that of the series of 2 devices and 16 arrays."""
    return f"allreduce {world_size} {arrays} {algorithm}"


def ours(
    on: MeasuredOn, stores: Sequence[str], world_sizes: Sequence[int], size_bytes: int
) -> List[Subject]:
    """The subjects that run gluonlab's code, as jobs of workers."""
    same = {"size_bytes": size_bytes, "stores": list(stores)}
    options = [{"world_size": n, **same, **on.options(n)} for n in world_sizes]
    return [
        Subject(f"gradients-{n}", f"{n} devices", "gradients", own)
        for n, own in zip(world_sizes, options)
    ]


def job_series(measurements: Sequence[Measurement]) -> List[Series]:
    """Seconds of every call of the jobs, by round."""
    found = []
    for one in measurements:
        names = [name for name in (one.answers or [{}])[0] if name != "seconds"]
        found += [Series(name, name, "s", tuple(one.column(name))) for name in names]
        if one.reason:
            found.append(Series(one.subject.name, one.subject.label, "s", (), one.reason))
    return found


def parse_stores(text: str, on_gpus: bool = False) -> List[str]:
    """The kvstores in ``text``, separated by commas, or all that sum over such devices.

    Raises KVStoreError, with the choices.
    """
    names, choices = [name.strip() for name in text.split(",")], KVSTORES if on_gpus else STORES
    if names == ["all"]:
        return list(choices)
    for name in names:
        if name not in choices:
            raise KVStoreError(unknown("kvstore", name, ["all", *choices]))
    return list(dict.fromkeys(names))


def parse_world_sizes(text: Optional[str], on: MeasuredOn) -> List[int]:
    """Numbers of devices, separated by commas; by default 2 and 4, and all that --devices names.

    Raises ConfigError.
    """
    if text is None:
        found = on.counts(WORLD_SIZES) if on.asked else list(WORLD_SIZES)
    else:
        check = whole(2, len(on.numbers) if on.asked else MOST_CPU_DEVICES)
        found = list(dict.fromkeys(check("--world-sizes", part) for part in text.split(",")))
    if min(found) < 2:
        raise ConfigError(
            f"--devices {on.first(1)}: one device has no other to sum with: name two or more"
        )
    return found


def gradients(
    stores: Sequence[str],
    world_sizes: Sequence[int],
    size_bytes: int,
    rounds: int,
    on: MeasuredOn,
) -> Findings:
    """Allreduces of ``size_bytes`` in one array and in 16, then steps on ResNet-18's gradients.

    Each on ``world_sizes`` of the devices ``on``.
    """
    found = Findings([], [], steps.resnet18_shapes(), rounds)
    for world_size in world_sizes:
        ctxs = devices(on.first(world_size))
        for arrays in ARRAYS:
            variants = make_variants(None, make_plans(None, world_size), ctxs, arrays)
            report = allreduce.measure([size_bytes], variants, ctxs, arrays=arrays, rounds=rounds)
            found.allreduces.append(report)
        found.steps.extend(steps.measure_steps(found.shapes, stores, ctxs, rounds))
    return found


def steps_table(findings: Findings) -> str:
    """The steps as text."""
    columns = f"{'ms':>8}  {'lowest..highest':>16}{'error':>8}{'device /':>9}"
    heading = f"  {'':<16}{'kvstore':<19}{columns}"
    lines: List[str] = []
    for world_size, same in groupby(findings.steps, key=lambda row: row.world_size):
        own = list(same)
        beside = [row.seconds for row in own if (row.trainer, row.store) == (GLUON, "device")]
        what = f"{len(findings.shapes)} gradients, {sum(map(math.prod, findings.shapes)):,} numbers"
        lines += [
            *[""] * bool(lines),
            f"allreduce and update of {what}, on {world_size} devices",
            heading,
            *(_step_line(row, beside) for row in own),
        ]
    note = (
        f"ms: of a step of SGD with momentum, the median of {interleaved(findings.rounds)}. "
        "error: the largest difference of the first step's weights from the exact ones. "
        "device /: the time of gluon.Trainer's step with device over this one's, "
        "the median of the rounds' ratios."
    )
    return table(lines, note)


def _step_line(row: StepRow, beside: Sequence[Sequence[float]]) -> str:
    extent = f"{min(row.seconds) * 1e3:.2f}..{max(row.seconds) * 1e3:.2f}"
    error = "0" if row.error == 0 else f"{row.error:.1e}"
    times = f"{ratio(beside[0], row.seconds):.2f}x" if beside else "-"
    name = f"  {row.trainer:<16}{row.store:<19}{row.time_s * 1e3:>8.2f}"
    return f"{name}  {extent:>16}{error:>8}{times:>9}"


def report(findings: Findings) -> str:
    """All tables, and the verdicts."""
    rows = [row for each in findings.allreduces for row in each.rows]
    explained = allreduce_table.explain(findings.allreduces[-1])
    judged = "\n".join(verdicts.lines(findings.verdicts()))
    return "\n\n".join([allreduce_table.rows_table(rows), explained, steps_table(findings), judged])
