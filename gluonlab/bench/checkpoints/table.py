"""What ``bench checkpoints`` prints, made from the series of `gluonlab.bench.checkpoints.measure`.

Does not import MXNet.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import List, Optional, Sequence

from gluonlab.bench.checkpoints.names import (
    CHECKPOINTS,
    CHECKS,
    DEVICES,
    EVERY,
    FILES,
    JUDGED,
    NONE,
    TASKS,
    check_name,
)
from gluonlab.bench.harness.interval import Ratio, of_pairs
from gluonlab.bench.harness.record import Series
from gluonlab.bench.harness.text import interleaved, missing, outcome
from gluonlab.bench.harness.text import table as as_table
from gluonlab.bench.splits.names import Task

MOST = 0.03  # of the steps' time
LABELS = {
    NONE: "nothing is kept",
    CHECKPOINTS: f"--checkpoint-every {EVERY}",
    FILES: f"files in the loop, every {EVERY} steps",
    **{check_name(every): f"--check-replicas {every}" for every in CHECKS},
}


@dataclass(frozen=True)
class Row:
    """A way: ``step_s``, the median seconds of a step, and how many times those of NONE it is."""

    name: str
    step_s: Optional[float] = None
    ratio: Optional[Ratio] = None

    @property
    def longer(self) -> Optional[float]:
        """How much longer than in NONE a step is: 0.02 is 2 %."""
        return None if self.ratio is None else self.ratio.value - 1

    @property
    def interval(self) -> str:
        """``0.8..2.9 %``, the interval of that; empty where there is none."""
        if self.ratio is None or self.ratio.lowest is None or self.ratio.highest is None:
            return ""
        return f"{self.ratio.lowest * 100 - 100:.1f}..{self.ratio.highest * 100 - 100:.1f} %"


def make_rows(series: Sequence[Series]) -> List[Row]:
    """All ways, in their order."""
    found = {one.name: one.values for one in series}
    none = found.get(NONE, ())
    return [_row(name, found.get(name, ()), none) for name in LABELS]


def _row(name: str, values: Sequence[float], none: Sequence[float]) -> Row:
    if not values:
        return Row(name)
    compared = name != NONE and none
    return Row(name, median(values), of_pairs(values, none) if compared else None)


def text(series: Sequence[Series], task: Task, devices: int, rounds: int) -> str:
    """The table and the verdict."""
    rows = make_rows(series)
    head = f"{task.title}, batches of {task.global_batch_size}, {devices} devices"
    lines = [f"{head:<41}{'ms':>9}{'longer':>9}{'95 %':>16}", *map(_line, rows)]
    note = (
        f"ms: of a step of SGD with momentum, the median of {interleaved(rounds)}. longer: than "
        "where nothing is kept, with its 95 % interval. files in the loop: net.save_parameters "
        "and trainer.save_states. "
        "All that is written is waited for, and counts."
    )
    return f"{as_table(lines, note)}\n\n{verdict(rows, task, devices)}"


def _line(row: Row) -> str:
    label = f"{LABELS[row.name]:<41}"
    if row.step_s is None:
        return missing(label, None)
    return f"{label}{row.step_s * 1e3:>9.2f}{percent(row.longer):>9}{row.interval:>16}".rstrip()


def percent(share: Optional[float]) -> str:
    """``2.1 %``; nothing for None."""
    return "" if share is None else f"{share:.1%}".replace("%", " %")


def verdict(rows: Sequence[Row], task: Task, devices: int) -> str:
    """Whether a checkpoint costs as little as promised, which is judged for JUDGED on DEVICES."""
    [longer] = [row.longer for row in rows if row.name == CHECKPOINTS]
    shown = None if longer is None else percent(longer)
    claim = f"a checkpoint every {EVERY} steps"
    if (task.title, devices) != (TASKS[JUDGED].title, DEVICES):
        return f"{claim}: {shown or 'not measured'} of the steps' time"
    return outcome(
        f"{claim} <= {MOST:.0%} of the steps' time", shown, longer is not None and longer <= MOST
    )
