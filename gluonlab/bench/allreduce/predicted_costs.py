"""Predicts with the cost model how long allreduces take, and formats the results as tables.

The floor is a lower bound on the time of any schedule. There are tables by buffer size and by
number of ranks, and tables of synthesized schedules and of the schedules that auto chooses. No
allreduce is run, and MXNet is not imported.
"""

from __future__ import annotations

import math
import sys
import textwrap
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, DefaultDict, Dict, List, Optional, Protocol, Sequence, Tuple

from tqdm import tqdm

from gluonlab.bench.allreduce.candidate_schedules import NamedSchedule, make_plans, synthesized_label
from gluonlab.bench.harness.table_format import WIDTH, format_factor, format_microseconds, format_table
from gluonlab.collectives.cost_model import ScheduleCost, estimate_cost, estimate_costs
from gluonlab.collectives.lower_bounds import find_lower_bound
from gluonlab.collectives.named_topologies import MAX_HOSTS, Topology, make_topology
from gluonlab.collectives.schedule import Schedule
from gluonlab.collectives.synthesis.schedule_search import SynthesizedSchedule, synthesize
from gluonlab.collectives.topology_aware import AUTO, ScheduleFromSize, SchedulesBySize
from gluonlab.collectives.topology_file import schedules_file_text
from gluonlab.config.option_checks import whole_number_check
from gluonlab.engine.mxnet_and_cuda_libraries import pip_install_command
from gluonlab.errors import ConfigError, ScheduleError
from gluonlab.files.atomic_files import new_file
from gluonlab.plain_text import format_size

COLUMN_NOTES = (
    "Predictions of the cost model, not measurements. Each message costs its latency, and its "
    "bytes on every link of its route; messages share links, and a barrier ends each step. "
    "algbw: size / time; busbw: algbw * 2(n-1)/n for n devices; both in GB/s, 10^9 bytes. x "
    "bound: the time as a multiple of the lower bound of all schedules, which follows from the "
    "messages in turn, the bytes on all links, and the additions. bottleneck: the link that the "
    "steps wait for longest. *: the fastest of several."
)
CHEAPEST_NOTE = (
    "The fastest algorithm for each size, and its time as a multiple of the lower bound of all "
    "schedules. --all prints every algorithm for every size, and explains the columns."
)
NUMBER_HEADING = f"  {'algorithm':<25}{'time us':>12}{'algbw':>8}{'busbw':>8}{'x bound':>9}"
HEADING = f"{NUMBER_HEADING}  bottleneck"
ADDITIONS = "additions"


@dataclass(frozen=True)
class PredictedRow:
    """A schedule's predicted time for one buffer size, and the lower bound for all schedules.

    ``bottleneck``: the link that delays the steps most in total, or ``additions``.
    """

    algorithm: str
    cost: ScheduleCost
    bottleneck: str
    lower_bound_s: float
    time_s: ClassVar[None] = None  # not measured; `plot_bandwidth` reads this attribute
    limit_s: ClassVar[None] = None

    @property
    def size_bytes(self) -> int:
        """Return the size of the buffer on each device, in bytes."""
        return int(self.cost.size_bytes)

    @property
    def predicted_s(self) -> float:
        """Return the predicted time of the allreduce, in seconds."""
        return self.cost.seconds

    @property
    def times_floor(self) -> Optional[float]:
        """Return the predicted time divided by the lower bound, or None if no bytes are sent."""
        return self.cost.seconds / self.lower_bound_s if self.lower_bound_s else None

    def bandwidths(self) -> List[Optional[float]]:
        """Return the algorithm and bus bandwidths in GB/s; both are None if no bytes are sent."""
        values = (self.cost.algbw / 1e9, self.cost.busbw / 1e9)
        return [value if math.isfinite(value) else None for value in values]

    def as_json(self) -> Dict[str, Any]:
        """Return the row as --json prints it, with bandwidths in GB/s."""
        algbw, busbw = self.bandwidths()
        return {
            "algorithm": self.algorithm, "size_bytes": self.cost.size_bytes,
            "time_us": self.cost.seconds * 1e6, "algbw": algbw, "busbw": busbw,
            "floor_us": self.lower_bound_s * 1e6, "times_floor": self.times_floor,
            "bottleneck": self.bottleneck,
        }  # fmt: skip


def predict_costs(topology: Topology, plans: Sequence[NamedSchedule], sizes: Sequence[int]) -> List[PredictedRow]:
    """Return one row for each schedule at each of ``sizes`` (in bytes)."""
    lower_bound = find_lower_bound(topology)
    rows_by_plan = [
        [
            PredictedRow(plan.label, cost, find_bottleneck(cost), lower_bound.seconds(cost.size_bytes))
            for cost in _predict_plan_costs(plan, topology, sizes)
        ]
        for plan in plans
    ]
    return [row for rows_of_size in zip(*rows_by_plan) for row in rows_of_size]


def _predict_plan_costs(plan: NamedSchedule, topology: Topology, sizes: Sequence[int]) -> List[ScheduleCost]:
    if plan.by_size is None:
        return estimate_costs(plan.schedule, topology, sizes)
    return [estimate_cost(plan.schedule_for(size), topology, size) for size in sizes]


def find_bottleneck(priced: ScheduleCost) -> str:
    """Return the link that delays the steps most in total, or ``additions``.

    Return "" if no bytes are sent.
    """
    waiting_s: DefaultDict[str, float] = defaultdict(float)
    for step in priced.steps:
        waiting_s[step.bottleneck] += step.transfer_s
        waiting_s[ADDITIONS] += step.reduce_s
    return max(waiting_s, key=lambda name: waiting_s[name], default="")


def cost_table(rows: Sequence[PredictedRow], topology: Topology, notes: Sequence[str] = ()) -> str:
    """Return the rows as text, followed by an explanation of the columns, and ``notes``."""
    lines = [f"{topology.name}, {topology.world_size} devices", "", f"{'size B':>15}", HEADING]
    for size, same_size in groupby(rows, key=lambda row: row.size_bytes):
        rows_of_size = list(same_size)
        lines += ["", f"{size:>15,}  {format_size(size)}", *format_cost_lines(rows_of_size)]
    return format_table(lines, COLUMN_NOTES, *notes, *_topology_notes(topology))


def cheapest_table(rows: Sequence[PredictedRow], topology: Topology) -> str:
    """Return a table with the fastest row for each size."""
    lines = [f"{topology.name}, {topology.world_size} devices", "", f"{'size':>9}{NUMBER_HEADING}"]
    for size, same_size in groupby(rows, key=lambda row: row.size_bytes):
        lowest = min(same_size, key=lambda row: row.predicted_s)
        lines.append(f"{format_size(size):>9}{_cost_columns(lowest)}")
    return format_table(lines, CHEAPEST_NOTE)


def _topology_notes(topology: Topology) -> List[str]:
    """Return the topology's note, if it has one."""
    return [f"{topology.name}: {topology.note}."] if topology.note else []


def format_cost_lines(rows: Sequence[PredictedRow]) -> List[str]:
    """Return a line for each row, and a last line with the lower bound.

    All rows must have the same lower bound. The fastest row is marked.
    """
    lowest = min(row.predicted_s for row in rows) if len(rows) > 1 else None
    lines = [_cost_line(row, "*" if row.predicted_s == lowest else "") for row in rows]
    return [*lines, f"  {'(lower bound)':<25}{format_microseconds(rows[0].lower_bound_s):>12}"]


def _cost_line(row: PredictedRow, mark: str) -> str:
    line = f"{_cost_columns(row, mark)}  "
    return (line + textwrap.shorten(row.bottleneck, WIDTH - len(line), placeholder="...")).rstrip()


def _cost_columns(row: PredictedRow, mark: str = "") -> str:
    """Return the text of a row for all columns in HEADING except the last column."""
    cells = ("-" if value is None else f"{value:.2f}" for value in row.bandwidths())
    columns = "".join(f"{cell:>8}" for cell in cells)
    name_and_time = f"{mark:<2}{row.algorithm:<25}{format_microseconds(row.predicted_s):>12}"
    return f"{name_and_time}{columns}{format_factor(row.times_floor):>9}"


# --- allreduce simulate --hosts: predicted times by number of ranks

HOSTS_FACTOR = 2


def parse_host_counts(text: str) -> List[int]:
    """Parse numbers of hosts: ``1,3,8``, or ``1:128``, which means 1, 2, 4, ... 128.

    Raises ConfigError for other text.
    """
    option, counts = "--hosts", set()
    count = whole_number_check(1, MAX_HOSTS)
    for part in text.split(","):
        first, colon, last = part.partition(":")
        hosts, end = count(option, first), count(option, last if colon else first)
        if end < hosts:
            raise ConfigError(f"{option} {text}: the smaller number must come first: use {last}:{first}")
        while hosts <= end:
            counts.add(hosts)
            hosts *= HOSTS_FACTOR
    return sorted(counts)


def predict_costs_by_hosts(
    machine: str, hosts: Sequence[int], names: Optional[Sequence[str]], size: int
) -> Tuple[List[PredictedRow], Topology]:
    """Return the predicted rows for each number of hosts, and the topology for the last number.

    ``hosts``: the numbers of hosts. ``names``: algorithms, or None for all. ``size``: the buffer
    size in bytes. The function shows a progress bar.
    """
    rows: List[PredictedRow] = []
    with tqdm(hosts, unit="topology", file=sys.stderr, disable=None, leave=False) as bar:
        for count in bar:
            topology = make_topology(machine if count == 1 else f"{machine}*{count}")
            rows += predict_costs(topology, _available_plans(names, topology), [size])
    if not rows:
        raise ConfigError(
            f"--algorithms {','.join(names or [])}: none of these algorithms supports so many hosts of "
            f"{machine}: choose other algorithms, or a smaller number of hosts (--hosts)"
        )
    return rows, topology


def _available_plans(names: Optional[Sequence[str]], topology: Topology) -> List[NamedSchedule]:
    """Return schedules for the algorithms that support the topology."""
    plans: List[NamedSchedule] = []
    for group in [None] if names is None else [[name] for name in names]:
        with suppress(ScheduleError):
            plans += make_plans(group, topology.world_size, topology=topology)
    return plans


def ranks_table(rows: Sequence[PredictedRow], topology: Topology) -> str:
    """Return the rows as text, with a heading for each number of ranks."""
    size = format_size(rows[0].size_bytes)
    lines = [f"{size} on each device, hosts like those of {topology.name}", "", HEADING]
    for ranks, same_ranks in groupby(rows, key=lambda row: row.cost.world_size):
        lines += ["", f"{ranks:>6} ranks", *format_cost_lines(list(same_ranks))]
    return format_table(lines, COLUMN_NOTES, *_topology_notes(topology))


# --- allreduce solve: search for schedules

DEFAULT_SECONDS = 60  # for each number of steps
SYNTHESIS_NOTE = (
    "rounds: of the busiest link, summed over the steps, for chunks of one part in n of the "
    "buffer on n devices; bound: the lower bound of the rounds of all schedules with as many "
    "steps that only use the fast links, each for one message in a step, and reduce every chunk "
    "on a tree before they copy it; optimal: the rounds are equal to the bound."
)


def search_schedules(topology: Topology, seconds: int, workers: int, out: Optional[str]) -> List[SynthesizedSchedule]:
    """Search for schedules for ``topology`` that are Pareto-optimal in steps and bytes.

    Args:
        topology: The links.
        seconds: The maximum search time for each number of steps.
        workers: Number of search threads.
        out: A new file for the schedules, or None.

    The function shows its progress on standard error. Raises ConfigError if OR-tools is not
    installed.
    """
    try:
        import ortools  # noqa: F401
    except ImportError:
        raise ConfigError(
            f"allreduce solve requires OR-tools, which is not installed: {pip_install_command('synthesis')}"
        ) from None
    started = time.monotonic()
    with tqdm(bar_format="{desc} [{elapsed}]", file=sys.stderr, disable=None) as bar:
        front = synthesize(topology, seconds, workers, bar.set_description_str)
        bar.set_description_str(f"{len(front)} found in {time.monotonic() - started:.0f} s")
    if out is not None:
        with new_file("--out-file", Path(out)) as temporary:
            Path(temporary).write_text(schedules_file_text(topology, front), encoding="utf-8")
    return front


def make_synthesized_plans(front: Sequence[SynthesizedSchedule]) -> List[NamedSchedule]:
    """Return each schedule with the name of its row in the table."""
    return [NamedSchedule(synthesized_label(synthesized.schedule), synthesized.schedule) for synthesized in front]


def synthesis_text(
    topology: Topology, front: Sequence[SynthesizedSchedule], sizes: Sequence[int], out: Optional[str]
) -> str:
    """Return a table of the schedules and their times, and a command that uses the file ``out``."""
    lines = [f"  {'steps':>5}{'chunks':>8}{'rounds':>9}{'bound':>9}  status"]
    for synthesized in front:
        numbers = f"{synthesized.rounds:>9.4f}{synthesized.bound:>9.4f}"
        steps = f"  {len(synthesized.schedule.steps):>5}{synthesized.schedule.chunks:>8}"
        lines.append(f"{steps}{numbers}  {optimality_text(synthesized)}")
    priced = cost_table(predict_costs(topology, make_synthesized_plans(front), sizes), topology, [SYNTHESIS_NOTE])
    run = f"gluonlab run --gpus {topology.world_size} --kvstore synthesized"
    written = [] if out is None else ["", f"written to {out}:", f"{run} --topology {out}"]
    return "\n".join([*lines, "", priced, *written])


def optimality_text(synthesized: SynthesizedSchedule) -> str:
    """Return ``optimal``, or ``best found`` with the lower bound on the rounds."""
    return "optimal" if synthesized.is_optimal else f"best found, lower bound {synthesized.bound:.4f}"


def synthesis_to_json(front: Sequence[SynthesizedSchedule]) -> List[Dict[str, Any]]:
    """Return the facts that --json prints about the schedules, except their times."""
    return [
        {
            "steps": len(synthesized.schedule.steps), "chunks": synthesized.schedule.chunks,
            "rounds": synthesized.rounds, "bound": synthesized.bound, "optimal": synthesized.is_optimal,
        }
        for synthesized in front
    ]  # fmt: skip


# --- allreduce choose: which schedule auto chooses

AUTO_NOTE = (
    "auto reduces a buffer with the schedule that has the lowest predicted time for its size. It "
    "chooses from all algorithms, with several numbers of chunks, and from the schedules made "
    "for the links. x bound: this time as a multiple of the lower bound of all schedules."
)
REGRET_NOTE = (
    "best: the fastest of auto, all algorithms with their defaults, and the schedules made for "
    "the links, all measured in the same rounds. regret: auto's median time divided by the best "
    "one's: {median:.2f} for the median size, {worst:.2f} at worst."
)


class TimedRow(Protocol):
    """Interface of a measured row in the table."""

    @property
    def algorithm(self) -> str:
        """Return the row's name."""

    @property
    def size_bytes(self) -> int:
        """Return the size of the buffer on each device, in bytes."""

    @property
    def time_s(self) -> float:
        """Return the median seconds."""


@dataclass(frozen=True)
class AlgorithmChoice:
    """The schedule that auto chooses for ``size_bytes``, with its predicted time and lower bound.

    ``time_s``: auto's measured time, or None. ``best``: the name of the fastest measured row.
    ``best_s``: the measured time of that row.
    """

    size_bytes: int
    schedule: Schedule
    predicted_s: float
    lower_bound_s: float
    time_s: Optional[float] = None
    best: Optional[str] = None
    best_s: Optional[float] = None

    @property
    def regret(self) -> Optional[float]:
        """Return auto's time divided by the fastest row's time. The best possible value is 1."""
        return self.time_s / self.best_s if self.time_s and self.best_s else None

    def as_json(self) -> Dict[str, Any]:
        """Return the choice in the format of --json, with times in microseconds."""
        return {
            "size_bytes": self.size_bytes, **_schedule_to_json(self.schedule),
            "predicted_us": self.predicted_s * 1e6, "floor_us": self.lower_bound_s * 1e6,
            "time_us": None if self.time_s is None else self.time_s * 1e6, "best": self.best,
            "best_us": None if self.best_s is None else self.best_s * 1e6, "regret": self.regret,
        }  # fmt: skip


def choose_algorithms(
    schedules: SchedulesBySize, sizes: Sequence[int], rows: Sequence[TimedRow] = ()
) -> List[AlgorithmChoice]:
    """Return the schedule that the algorithm ``auto`` chooses for each size.

    ``rows``: measured rows, if any. If there are rows, the choice is compared with the fastest row.
    """
    lower_bound, choices = find_lower_bound(schedules.topology), []
    for size in sizes:
        schedule = schedules.cheapest(size)
        predicted_s = estimate_cost(schedule, schedules.topology, size).seconds
        at_size = {row.algorithm: row.time_s for row in rows if row.size_bytes == size}
        best = min(at_size, key=lambda label: at_size[label]) if at_size else None
        measured = (at_size[AUTO], best, at_size[best]) if best else ()
        choices.append(AlgorithmChoice(size, schedule, predicted_s, lower_bound.seconds(size), *measured))
    return choices


def choices_text(schedules: SchedulesBySize, choices: Sequence[AlgorithmChoice]) -> str:
    """Return a table of auto's schedules, and a table of the choice for each size.

    If times were measured, the second table compares auto with the fastest algorithm.
    """
    lines = [f"auto on {schedules.topology.name}, {schedules.topology.world_size} devices", ""]
    columns = f"{'schedule':<22}{'steps':>6}{'chunks':>8}"
    lines += [f"  {'from':>8}  {columns}", *map(_table_line, schedules.size_thresholds())]
    regrets = [choice.regret for choice in choices if choice.regret is not None]
    regret_columns = f"{'time us':>9}{'best us':>9}{'regret':>8}  best" if regrets else ""
    heading = f"  {'size':>8}{'pred. us':>9}{'x bound':>8}{regret_columns}"
    notes = [REGRET_NOTE.format(median=median(regrets), worst=max(regrets))] if regrets else []
    notes += _topology_notes(schedules.topology)
    return format_table([*lines, "", heading, *map(_choice_line, choices)], AUTO_NOTE, *notes)


def choices_to_json(schedules: SchedulesBySize, choices: Sequence[AlgorithmChoice]) -> Dict[str, Any]:
    """Return auto's schedules, and its choice for each size, in the format of --json."""
    topology, rows = schedules.topology, schedules.size_thresholds()
    return {
        "topology": topology.name, "world_size": topology.world_size, "note": topology.note,
        "table": [{"from_bytes": row.size_bytes, **_schedule_to_json(row.schedule)} for row in rows],
        "choices": [choice.as_json() for choice in choices],
    }  # fmt: skip


def _schedule_to_json(schedule: Schedule) -> Dict[str, Any]:
    return {"schedule": schedule.name, "steps": len(schedule.steps), "chunks": schedule.chunks}


def _table_line(row: ScheduleFromSize) -> str:
    schedule = row.schedule
    cut = f"{len(schedule.steps):>6}{schedule.chunks:>8}"
    return f"  {format_size(row.size_bytes):>8}  {schedule.name:<22}{cut}"


def _choice_line(choice: AlgorithmChoice) -> str:
    """Return the table line for one choice, with the measured columns if there are any."""
    factor = format_factor(choice.predicted_s / choice.lower_bound_s if choice.lower_bound_s else None)
    line = f"  {format_size(choice.size_bytes):>8}{format_microseconds(choice.predicted_s):>9}{factor:>8}"
    if choice.regret is None:
        return line
    measured = f"{format_microseconds(choice.time_s):>9}{format_microseconds(choice.best_s):>9}"
    return f"{line}{measured}{choice.regret:>8.2f}  {choice.best}"
