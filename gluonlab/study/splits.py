"""``study splits``: one network under every split: time, bytes and memory.

It is the measurement of bench splits, with each round kept.
"""

from __future__ import annotations

import re
from statistics import median
from typing import Any, Dict, List, Mapping, Optional, Sequence

from gluonlab.bench import splits as _names
from gluonlab.bench.harness.machine_info import cpu_model
from gluonlab.bench.harness.measurement_command import cpu_devices
from gluonlab.bench.harness.measurement_record import Series
from gluonlab.bench.splits import MB, SplitRow, in_megabytes, make_rows
from gluonlab.bench.workloads import Task
from gluonlab.config.command_line import given_settings
from gluonlab.config.option_types import whole_number_check
from gluonlab.drawing.svg_chart import KINDS, Axis, Chart, Curve, number
from gluonlab.study.study import (
    Findings,
    IntervalEstimate,
    Study,
    StudyReport,
    Table,
    as_values,
    check_options,
    middle,
    one_of,
    read_words,
    together,
    whole_number,
)
from gluonlab.study.sweep import InMemory, Sweep

NAME = "splits"
_CUT = re.compile(r"[0-9]{1,4}(,[0-9]{1,4})*")
MOST_DEVICES = 8  # that the links have, on which transfers are priced


def choose(quick: bool, **own: Optional[str]) -> Dict[str, Any]:
    """The options as plain values. Raises ConfigError.

    ``cuts``: where pipelines are cut, once: in each round it could be elsewhere.
    """
    usual = {
        "network": "lenet" if quick else "resnet18", "devices": _names.DEVICES,
        "microbatches": str(_names.MICROBATCHES), "rounds": 5 if quick else _names.ROUNDS,
    }  # fmt: skip
    wanted: Dict[str, Any] = {**usual, **given_settings({**own})}
    task = _names.check_network(wanted["network"])
    devices = whole_number_check(2, MOST_DEVICES)("--devices", wanted["devices"])
    microbatches = _names.check_microbatches(wanted["microbatches"], task)
    rounds = whole_number_check(1, 1000)("--rounds", wanted["rounds"])
    from gluonlab.bench.measure_splits import cuts_of  # MXNet is loaded here, not for --help

    cuts = cuts_of(task, cpu_devices(devices), devices, microbatches)
    return {"network": wanted["network"], "devices": devices, "microbatches": microbatches,
            "rounds": rounds, "cuts": cuts}  # fmt: skip


def read(options: Mapping[str, Any]) -> Dict[str, Any]:
    """The options as a folder has them. Raises ValueError for anything else."""
    task = _names.TASKS.get(str(options.get("network")))
    if task is None:
        raise ValueError("network")
    fits = {
        "network": one_of(_names.TASKS), "devices": whole_number(2, MOST_DEVICES),
        "microbatches": whole_number(1, task.global_batch_size), "rounds": whole_number(1, 1000),
        "cuts": _are_cuts,
    }  # fmt: skip
    check_options(options, fits)
    return {**options}


def _are_cuts(value: Any) -> bool:
    """The layers with which stages begin, by a pipeline's name: ``{"1f1b": "2,5"}``."""
    return isinstance(value, dict) and all(
        name in _names.CUT_APART and isinstance(cut, str) and bool(_CUT.fullmatch(cut))
        for name, cut in value.items()
    )


def measure(options: Mapping[str, Any], store: InMemory) -> Findings:
    """Measure all rounds, and find the answer."""
    from gluonlab.bench.measure_splits import splits  # MXNet is loaded here, not for --help

    task = _names.TASKS[options["network"]]

    def one_round(settings: Mapping[str, Any], number: int) -> Dict[str, Any]:
        on = cpu_devices(settings["devices"])
        size = settings["devices"], settings["microbatches"]
        return as_values(splits(task, on, *size, rounds=1, cuts=settings["cuts"]))

    point = {name: options[name] for name in ("network", "devices", "microbatches", "cuts")}
    with Sweep(store, one_round, shown=False) as sweep:
        [found] = sweep.run([point], range(options["rounds"]))
    series = together(found)
    return Findings(as_values(series), lambda language: report(series, task, options, language))


# --- the report


def report(
    series: Sequence[Series], task: Task, options: Mapping[str, Any], language: str
) -> StudyReport:
    """What the study says of the series of bench splits; ``options`` are the study's."""
    said = read_words(NAME, language)
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
    return StudyReport(
        title, _sentences(rows, there, said), _charts(there, options["rounds"], said),
        [Table(title, said["heads"], [_cells(row, said) for row in there])], [method], settings,
        language,
    )  # fmt: skip


def _milliseconds(row: SplitRow) -> IntervalEstimate:
    found = middle([1e3 * seconds for seconds in row.seconds])
    assert found is not None  # times are finite
    return found


def _charts(rows: Sequence[SplitRow], rounds: int, said: Dict[str, Any]) -> Dict[str, Chart]:
    names = [said["ways"][row.name] for row in rows]
    across = Axis(said["x"], names=names)
    times = [_milliseconds(row) for row in rows]
    time = Curve(
        said["measured"].format(rounds=rounds),
        [(place, each.value) for place, each in enumerate(times)], 0,
        [each.ends for each in times], joined=False,
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


def _sentences(
    rows: Sequence[SplitRow], there: Sequence[SplitRow], said: Dict[str, Any]
) -> List[str]:
    one = next((row for row in there if row.name == _names.ONE), None)
    several = [row for row in there if row.name != _names.ONE]
    lines = []
    if one is not None and several:
        fast = min(several, key=lambda row: median(row.seconds))
        time = _milliseconds(fast)
        lines.append(said["fastest"].format(
            way=said["ways"][fast.name], ms=number(time.value), ends=time.interval(said, number),
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


def _cells(row: SplitRow, said: Dict[str, Any]) -> List[str]:
    time = _milliseconds(row)
    return [
        said["ways"][row.name],
        f"{time.value:.2f}",
        time.range("{:.2f}".format),
        "" if row.speed is None else f"{row.speed:.2f}",
        f"{row.moved / MB:.2f}",
        in_megabytes(row.memory),
    ]


STUDY = Study(NAME, choose, read, measure)
