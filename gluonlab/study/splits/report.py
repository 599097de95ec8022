"""The figures, the table and the sentences of the study, in a language. Does not import MXNet."""

from __future__ import annotations

from statistics import median
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from gluonlab.bench.harness.interval import bootstrap
from gluonlab.bench.harness.machine import cpu_model
from gluonlab.bench.harness.record import Series
from gluonlab.bench.splits import MB, ONE, Row, in_megabytes, make_rows
from gluonlab.bench.tasks import Task
from gluonlab.drawing.chart import KINDS, Axis, Chart, Curve, number
from gluonlab.study.page import Report, Table, words


def report(
    series: Sequence[Series], task: Task, options: Mapping[str, Any], language: str
) -> Report:
    """What the study says of the series of bench splits; ``options`` are the study's."""
    said = words(__file__, language)
    rows = make_rows(series)
    there = [row for row in rows if row.seconds]
    fill = {**options, "network": task.title, "batch": task.global_batch_size}
    method = said["method"].format(**fill)
    named = said["settings"]
    settings = {
        named["devices"]: str(options["devices"]),
        named["rounds"]: str(options["rounds"]),
        named["machine"]: cpu_model(),
    }
    title = said["title"].format(**fill)
    return Report(
        title, _sentences(rows, there, said), _charts(there, options["rounds"], said),
        [Table(title, said["heads"], [_cells(row, said) for row in there])], [method], settings,
        language,
    )  # fmt: skip


def _ms(row: Row) -> Tuple[float, Optional[Tuple[float, float]]]:
    values = [1e3 * seconds for seconds in row.seconds]
    return median(values), bootstrap([values], lambda groups: median(groups[0]))


def _charts(rows: Sequence[Row], rounds: int, said: Dict[str, Any]) -> Dict[str, Chart]:
    names = [said["ways"][row.name] for row in rows]
    across = Axis(said["x"], names=names)
    times = [_ms(row) for row in rows]
    time = Curve(
        said["measured"].format(rounds=rounds),
        [(place, value) for place, (value, _) in enumerate(times)], 0,
        [ends for _, ends in times], joined=False,
    )  # fmt: skip
    moved = Curve(
        said["planned"], [(n, row.moved / MB) for n, row in enumerate(rows)], 0, joined=False
    )
    most = max(len(row.memory) for row in rows)
    memory = [
        Curve(said["device"].format(number=device),
              [(n, row.memory[device] / MB) for n, row in enumerate(rows)
               if device < len(row.memory)], device % KINDS, joined=False)
        for device in range(most)
    ]  # fmt: skip
    of = {"time": ("ms", [time]), "moved": ("MB", [moved]), "memory": ("MB", memory)}
    return {
        name: Chart(said["charts"][name], across, Axis(said[unit], lowest=0), curves)
        for name, (unit, curves) in of.items()
    }


def _sentences(rows: Sequence[Row], there: Sequence[Row], said: Dict[str, Any]) -> List[str]:
    one = next((row for row in there if row.name == ONE), None)
    several = [row for row in there if row.name != ONE]
    lines = []
    if one is not None and several:
        fast = min(several, key=lambda row: median(row.seconds))
        value, ends = _ms(fast)
        between = "" if ends is None else said["ends"].format(
            low=number(ends[0]), high=number(ends[1]))  # fmt: skip
        lines.append(said["fastest"].format(
            way=said["ways"][fast.name], ms=number(value), ends=between,
            times=f"{fast.speed or 0:.2f}"))  # fmt: skip
        small = min(several, key=lambda row: max(row.memory))
        lines.append(said["least"].format(
            way=said["ways"][small.name], mb=number(max(small.memory) / MB),
            one=number(max(one.memory) / MB)))  # fmt: skip
        most, least = (pick(several, key=lambda row: row.moved) for pick in (max, min))
        lines.append(said["moves"].format(
            most=said["ways"][most.name], mb=number(most.moved / MB),
            least=said["ways"][least.name], few=number(least.moved / MB)))  # fmt: skip
    lines += [
        said["missing"].format(way=said["ways"][row.name], reason=row.reason)
        for row in rows
        if row.reason is not None
    ]
    return lines


def _cells(row: Row, said: Dict[str, Any]) -> List[str]:
    value, ends = _ms(row)
    return [
        said["ways"][row.name],
        f"{value:.2f}",
        "" if ends is None else f"{ends[0]:.2f}..{ends[1]:.2f}",
        "" if row.speed is None else f"{row.speed:.2f}",
        f"{row.moved / MB:.2f}",
        in_megabytes(row.memory),
    ]
