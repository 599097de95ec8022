"""Gradients of a real network's size, and what the project wants to be true of them: allreduce
alone, and allreduce with update.
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from itertools import groupby
from typing import List, Optional, Sequence

from gluonlab.bench.allreduce import measure as allreduce
from gluonlab.bench.allreduce import table as allreduce_text
from gluonlab.bench.allreduce.measure import Report, Row, ratio
from gluonlab.bench.allreduce.plans import make_plans
from gluonlab.bench.allreduce.sizes import in_words
from gluonlab.bench.allreduce.variants import CHAPTER, PEERS, make_variants
from gluonlab.bench.gradients.steps import (
    BUCKETED,
    GLUON,
    STORES,
    Shape,
    StepRow,
    measure_steps,
    resnet18_shapes,
)
from gluonlab.bench.harness.measured_on import MeasuredOn, cpu_devices
from gluonlab.bench.harness.record import Series
from gluonlab.bench.harness.rounds import Measurement, Subject
from gluonlab.config.values import whole
from gluonlab.devices import MOST_CPU_DEVICES, devices
from gluonlab.errors import ConfigError, KVStoreError, unknown
from gluonlab.kvstores import KVSTORES

ROUNDS = 9
SIZE_BYTES = 46_000_000  # ResNet-18's gradients
ARRAYS = (16, 1)
WORLD_SIZES = (2, 4)
JUDGED = 2  # devices, of the targets
AT_LEAST_ALLREDUCE, AT_LEAST_STEP, AT_LEAST_OF_LIMIT = 1.6, 1.5, 0.5
LIMIT = "of the memory limit"


@dataclass(frozen=True)
class Verdict:
    """What our best reached beside something else: how many times its speed, or which part of the
    memory limit's.

    ``at_least``: the target, where there is one; ``found`` is None when it was not measured.
    """

    best: str
    beside: str
    found: Optional[float]
    at_least: Optional[float]

    @property
    def reached(self) -> Optional[bool]:
        """None when there is nothing to reach, or nothing was measured."""
        return None if self.at_least is None or self.found is None else self.found >= self.at_least

    def __str__(self) -> str:
        claim = (
            self.beside
            if self.at_least is None
            else f">= {self._number(self.at_least)} {self.beside}"
        )
        outcome = "" if self.reached is None else " reached" if self.reached else " not reached"
        return (
            f"{claim}: "
            f"{'not measured' if self.found is None else self._number(self.found)}{outcome}"
        )

    def _number(self, value: float) -> str:
        if self.beside == LIMIT:
            return f"{value:.0%}"
        return f"{value:g}x" if value == self.at_least else f"{value:.2f}x"


@dataclass(frozen=True)
class Findings:
    """All of ``python -m gluonlab.bench gradients``."""

    allreduces: List[Report]
    steps: List[StepRow]
    shapes: List[Shape]
    rounds: int

    def verdicts(self) -> List[Verdict]:
        """What our best reached, for every allreduce and number of devices."""
        allreduces = [
            verdict for each in self.allreduces for verdict in allreduce_verdicts(each.rows)
        ]
        world_sizes = sorted({row.world_size for row in self.steps})
        return allreduces + [
            verdict
            for world_size in world_sizes
            for verdict in step_verdicts(self.steps, world_size)
        ]

    def wrong(self) -> List[str]:
        """What did not compute exact sums."""
        names = [
            row.algorithm for report in self.allreduces for row in report.rows if row.error != 0
        ]
        return list(
            dict.fromkeys(
                [*names, *[f"{row.store} ({row.trainer})" for row in self.steps if row.error != 0]]
            )
        )

    def series(self) -> List[Series]:
        """Seconds of every allreduce and step, and of the memory limit, by round."""
        found = []
        for report in self.allreduces:
            for row in report.rows:
                found.append(
                    Series(
                        allreduce_name(row.world_size, row.arrays, row.algorithm),
                        row.algorithm,
                        "s",
                        row.seconds,
                    )
                )
            if report.rows and report.rows[0].limit_s:
                first = report.rows[0]
                found.append(
                    Series(
                        allreduce_name(first.world_size, first.arrays, LIMIT),
                        LIMIT,
                        "s",
                        first.limit_s or (),
                    )
                )
        return found + [
            Series(row.name, f"{row.store}, {row.trainer}", "s", row.seconds) for row in self.steps
        ]


def allreduce_name(world_size: int, arrays: int, algorithm: str) -> str:
    """``allreduce 2 16 ring``: that of the series of 2 devices and 16 arrays."""
    return f"allreduce {world_size} {arrays} {algorithm}"


def ours(
    on: MeasuredOn, stores: Sequence[str], world_sizes: Sequence[int], size_bytes: int
) -> List[Subject]:
    """What a change of gluonlab changes, as jobs of workers."""
    return [
        Subject(
            f"gradients-{n}",
            f"{n} devices",
            "gradients",
            {"world_size": n, "size_bytes": size_bytes, "stores": list(stores), **on.options(n)},
        )
        for n in world_sizes
    ]


def job_series(measurements: Sequence[Measurement]) -> List[Series]:
    """Seconds of every call of the jobs, by round."""
    found = []
    for measurement in measurements:
        names = [name for name in (measurement.answers or [{}])[0] if name != "seconds"]
        found += [Series(name, name, "s", tuple(measurement.column(name))) for name in names]
        if measurement.reason:
            found.append(
                Series(
                    measurement.subject.name, measurement.subject.label, "s", (), measurement.reason
                )
            )
    return found


def parse_stores(text: str, on_gpus: bool = False) -> List[str]:
    """The kvstores in ``text``, separated by commas, or all that sum over such devices.

    Raises KVStoreError, with the choices.
    """
    names, choices = (
        [name.strip() for name in text.split(",")],
        tuple(KVSTORES) if on_gpus else STORES,
    )
    if names == ["all"]:
        return list(choices)
    for name in names:
        if name not in choices:
            raise KVStoreError(unknown("kvstore", name, ["all", *choices]))
    return list(dict.fromkeys(names))


def parse_world_sizes(text: Optional[str], on: MeasuredOn) -> List[int]:
    """Numbers of devices, separated by commas; by default 2 and 4, and of those that --devices
    names all. Raises ConfigError.
    """
    if text is None:
        found = on.counts(WORLD_SIZES) if on.asked else list(WORLD_SIZES)
    else:
        check = whole(2, len(on.numbers) if on.asked else MOST_CPU_DEVICES)
        found = list(dict.fromkeys(check("--world-sizes", part) for part in text.split(",")))
    if min(found) < 2:
        raise ConfigError(
            f"--devices {on.first(1)}: one device has nobody to sum with: name two or more"
        )
    return found


def gradients(
    stores: Sequence[str] = STORES,
    world_sizes: Sequence[int] = WORLD_SIZES,
    size_bytes: int = SIZE_BYTES,
    rounds: int = ROUNDS,
    shapes: Optional[Sequence[Shape]] = None,
    on: Optional[MeasuredOn] = None,
) -> Findings:
    """Allreduces of ``size_bytes`` in one array and in 16, then steps on ``shapes`` (ResNet-18's).

    On so many of the devices ``on``, by default of CPU devices.
    """
    shapes = resnet18_shapes() if shapes is None else shapes
    allreduces, steps = [], []
    on = on or cpu_devices(max(world_sizes))
    for world_size in world_sizes:
        ctxs = devices(on.first(world_size))
        for arrays in ARRAYS:
            variants = make_variants(None, make_plans(None, world_size), ctxs, arrays)
            allreduces.append(
                allreduce.measure([size_bytes], variants, ctxs, arrays=arrays, rounds=rounds)
            )
        steps += measure_steps(shapes, stores, ctxs, rounds)
    return Findings(allreduces, steps, list(shapes), rounds)


def allreduce_verdicts(rows: Sequence[Row]) -> List[Verdict]:
    """The best schedule beside MXNet's store, the chapter's allreduce and the memory limit;
    ``rows`` are of one size.
    """
    ours = [row for row in rows if row.algorithm not in PEERS]
    best = min(ours, key=lambda row: row.time_s)
    judged = best.world_size == JUDGED
    arrays = f"{best.arrays} arrays" if best.arrays > 1 else "one array"
    what = (
        f"{in_words(best.size_bytes)} in {arrays}, {best.world_size} devices, our best: "
        f"{best.algorithm}"
    )
    verdicts = []
    for peer, name in (("device", "MXNet's device"), (CHAPTER, "the chapter's allreduce")):
        found = [ratio(row.seconds, best.seconds) for row in rows if row.algorithm == peer]
        verdicts.append(
            Verdict(what, name, found[0] if found else None, AT_LEAST_ALLREDUCE if judged else None)
        )
    return [*verdicts, Verdict(what, LIMIT, best.of_limit, AT_LEAST_OF_LIMIT if judged else None)]


def step_verdicts(rows: Sequence[StepRow], world_size: int) -> List[Verdict]:
    """The best of our stores beside MXNet's ``device``, under gluon.Trainer and under
    BucketedTrainer.
    """
    own = [row for row in rows if row.world_size == world_size]
    ours = [row for row in own if row.store not in PEERS]
    if not ours:
        return []
    best = min(ours, key=lambda row: row.time_s)
    what = f"allreduce and update, {world_size} devices, our best: {best.store}, {best.trainer}"
    at_least = AT_LEAST_STEP if world_size == JUDGED else None
    verdicts = []
    for trainer in (GLUON, BUCKETED):
        found = [
            ratio(row.seconds, best.seconds)
            for row in own
            if (row.trainer, row.store) == (trainer, "device")
        ]
        verdicts.append(
            Verdict(what, f"MXNet's device under {trainer}", found[0] if found else None, at_least)
        )
    return verdicts


def verdict_lines(verdicts: Sequence[Verdict]) -> List[str]:
    """In words: what our best is, and a line for each thing that it is compared with."""
    lines = []
    for best, same in groupby(verdicts, key=lambda verdict: verdict.best):
        lines += [best, *(f"  {verdict}" for verdict in same)]
    return lines


def steps_table(findings: Findings, width: int = 80) -> str:
    """The steps as text, at most ``width`` columns wide."""
    heading = (
        f"  {'':<16}{'kvstore':<19}{'ms':>8}  {'lowest..highest':>16}{'error':>8}{'device /':>9}"
    )
    lines = []
    for world_size, same in groupby(findings.steps, key=lambda row: row.world_size):
        own = list(same)
        reference = next(
            (row for row in own if (row.trainer, row.store) == (GLUON, "device")), None
        )
        numbers = sum(map(math.prod, findings.shapes))
        title = (
            f"allreduce and update of {len(findings.shapes)} gradients, {numbers:,} numbers, "
            f"on {world_size} devices"
        )
        lines += [title, heading, *(_step_line(row, reference) for row in own), ""]
    rounds = f"{findings.rounds} interleaved round{'s' * (findings.rounds > 1)}"
    note = (
        f"ms: of a step, the median of {rounds}, SGD with momentum. error: "
        "of the first step's weights, from the exact ones. device /: "
        "gluon.Trainer's step with device over this one's, the median of the rounds' ratios."
    )
    return "\n".join([*lines, textwrap.fill(note, width)])


def _step_line(row: StepRow, reference: Optional[StepRow]) -> str:
    extent = f"{min(row.seconds) * 1e3:.2f}..{max(row.seconds) * 1e3:.2f}"
    error = "0" if row.error == 0 else f"{row.error:.1e}"
    times = "-" if reference is None else f"{ratio(reference.seconds, row.seconds):.2f}x"
    return (
        f"  {row.trainer:<16}{row.store:<19}{row.time_s * 1e3:>8.2f}  "
        f"{extent:>16}{error:>8}{times:>9}"
    )


def report(findings: Findings) -> str:
    """All tables, and the verdicts."""
    rows = [row for each in findings.allreduces for row in each.rows]
    allreduces = (
        f"{allreduce_text.rows_table(rows)}\n\n{allreduce_text.explain(findings.allreduces[-1])}"
    )
    return "\n\n".join(
        [allreduces, steps_table(findings), "\n".join(verdict_lines(findings.verdicts()))]
    )
