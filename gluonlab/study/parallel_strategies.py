"""``study strategies``: step time, traffic and memory of a model with each parallel strategy.

`gluonlab.bench.measure_splits` makes the measurements. The study stores the measurements of each
round.
"""

from __future__ import annotations

import re
from statistics import median
from typing import Any, Dict, List, Mapping, Optional, Sequence

from gluonlab.bench import splits as bench_splits
from gluonlab.bench.harness.machine_info import cpu_model
from gluonlab.bench.harness.measurement_command import cpu_devices
from gluonlab.bench.harness.measurement_record import Series
from gluonlab.bench.splits import MB, SplitRow, format_megabytes, make_rows
from gluonlab.bench.workloads import Task
from gluonlab.config.command_line import given_settings
from gluonlab.config.option_checks import whole_number_check
from gluonlab.drawing.svg_chart import CURVE_KINDS, Axis, Chart, Curve, format_number
from gluonlab.study.study_report import (
    Findings,
    IntervalEstimate,
    Study,
    StudyReport,
    Table,
    check_options,
    choice_check,
    finite_median_estimate,
    integer_check,
    merge_rounds,
    read_translations,
    series_to_json,
)
from gluonlab.study.sweep import MeasurementStore, Sweep

NAME = "strategies"
_CUT_PATTERN = re.compile(r"[0-9]{1,4}(,[0-9]{1,4})*")
MAX_DEVICES = 8  # devices in the topology with which the times of transfers are estimated


def parse_options(quick: bool, **options: Optional[str]) -> Dict[str, Any]:
    """Return the options of the command as plain values. Raises ConfigError.

    The option ``cuts`` specifies where pipelines are cut into stages. Choosing cuts requires
    measurements, so this function chooses the cuts once for all rounds.
    """
    defaults = {
        "model": "lenet" if quick else "resnet18",
        "num_devices": bench_splits.DEFAULT_DEVICES,
        "microbatches": str(bench_splits.DEFAULT_MICROBATCHES),
        "rounds": 5 if quick else bench_splits.ROUNDS,
    }
    values: Dict[str, Any] = {**defaults, **given_settings({**options})}
    task = bench_splits.find_task(values["model"])
    devices = whole_number_check(2, MAX_DEVICES)("--num-devices", values["num_devices"])
    microbatches = bench_splits.check_microbatches(values["microbatches"], task)
    rounds = whole_number_check(1, 1000)("--rounds", values["rounds"])
    from gluonlab.bench.measure_splits import choose_cuts  # MXNet is loaded here, not for --help

    cuts = choose_cuts(task, cpu_devices(devices), devices, microbatches)
    return {"network": values["model"], "devices": devices, "microbatches": microbatches,
            "rounds": rounds, "cuts": cuts}  # fmt: skip


def load_options(options: Mapping[str, Any]) -> Dict[str, Any]:
    """Check the options in a study's folder. Raises ValueError for invalid options."""
    task = bench_splits.TASKS.get(str(options.get("network")))
    if task is None:
        raise ValueError("network")
    checks = {
        "network": choice_check(bench_splits.TASKS), "devices": integer_check(2, MAX_DEVICES),
        "microbatches": integer_check(1, task.global_batch_size), "rounds": integer_check(1, 1000),
        "cuts": _is_cut_mapping,
    }  # fmt: skip
    check_options(options, checks)
    return {**options}


def _is_cut_mapping(value: Any) -> bool:
    """Return True if the value maps pipelines to cuts, such as ``{"1f1b": "2,5"}``.

    The numbers are the first layers of all stages after the first stage.
    """
    return isinstance(value, dict) and all(
        name in bench_splits.SEPARATELY_CUT and isinstance(cut, str) and bool(_CUT_PATTERN.fullmatch(cut))
        for name, cut in value.items()
    )


def measure(options: Mapping[str, Any], store: MeasurementStore) -> Findings:
    """Measure time, moved bytes and memory of each split in all rounds, and return the findings."""
    from gluonlab.bench.measure_splits import measure_splits  # MXNet is loaded here, not for --help

    task = bench_splits.TASKS[options["network"]]

    def measure_round(settings: Mapping[str, Any], round: int) -> Dict[str, Any]:
        devices = cpu_devices(settings["devices"])
        counts = settings["devices"], settings["microbatches"]
        return series_to_json(measure_splits(task, devices, *counts, rounds=1, cuts=settings["cuts"]))

    point = {name: options[name] for name in ("network", "devices", "microbatches", "cuts")}
    with Sweep(store, measure_round, show_progress=False) as sweep:
        [rounds] = sweep.run([point], range(options["rounds"]))
    series = merge_rounds(rounds)
    return Findings(series_to_json(series), lambda language: build_report(series, task, options, language))


# --- the report


def build_report(series: Sequence[Series], task: Task, options: Mapping[str, Any], language: str) -> StudyReport:
    """Return the study's report, built from the series of all rounds."""
    texts = read_translations(NAME, language)
    rows = make_rows(series)
    measured = [row for row in rows if row.seconds]
    values = {**options, "network": task.title, "batch": task.global_batch_size}
    method = texts["method"].format(**values)
    setting_names = texts["settings"]
    settings = {
        setting_names["devices"]: str(options["devices"]),
        setting_names["rounds"]: str(options["rounds"]),
        setting_names["machine"]: cpu_model(),
    }
    title = texts["title"].format(**values)
    return StudyReport(
        title, _write_sentences(rows, measured, texts),
        _build_charts(measured, options["rounds"], texts),
        [Table(title, texts["heads"], [_table_row(row, texts) for row in measured])], [method],
        settings, language,
    )  # fmt: skip


def _step_milliseconds(row: SplitRow) -> IntervalEstimate:
    return finite_median_estimate([1e3 * seconds for seconds in row.seconds])


def _build_charts(rows: Sequence[SplitRow], rounds: int, texts: Dict[str, Any]) -> Dict[str, Chart]:
    """Return charts by file name, with a point for each split."""
    names = [texts["ways"][row.name] for row in rows]
    x_axis = Axis(texts["x"], names=names)
    times = [_step_milliseconds(row) for row in rows]
    time_curve = Curve(
        texts["measured"].format(rounds=rounds),
        [(index, estimate.value) for index, estimate in enumerate(times)], 0,
        [estimate.ends for estimate in times], joined=False,
    )  # fmt: skip
    moved_curve = Curve(
        texts["planned"], [(index, row.moved_bytes / MB) for index, row in enumerate(rows)], 0, joined=False
    )
    device_count = max(len(row.memory) for row in rows)
    memory_curves = [
        Curve(texts["device"].format(number=device),
              [(index, row.memory[device] / MB) for index, row in enumerate(rows)
               if device < len(row.memory)], device % CURVE_KINDS, joined=False)
        for device in range(device_count)
    ]  # fmt: skip
    charts = {"time": ("ms", [time_curve]), "moved": ("MB", [moved_curve]), "memory": ("MB", memory_curves)}
    return {
        name: Chart(texts["charts"][name], x_axis, Axis(texts[unit], lowest=0), curves)
        for name, (unit, curves) in charts.items()
    }


def _write_sentences(rows: Sequence[SplitRow], measured: Sequence[SplitRow], texts: Dict[str, Any]) -> List[str]:
    """Return sentences about the fastest split, memory, moved bytes, and failed splits."""
    single = next((row for row in measured if row.name == bench_splits.ONE), None)
    several = [row for row in measured if row.name != bench_splits.ONE]
    sentences = []
    if single is not None and several:
        fastest = min(several, key=lambda row: median(row.seconds))
        time = _step_milliseconds(fastest)
        sentences.append(
            texts["fastest"].format(
                way=texts["ways"][fastest.name],
                ms=format_number(time.value),
                ends=time.format_interval(texts, format_number),
                times=f"{fastest.speed or 0:.2f}",
            )
        )
        smallest = min(several, key=lambda row: max(row.memory))
        sentences.append(texts["least"].format(
            way=texts["ways"][smallest.name], mb=format_number(max(smallest.memory) / MB),
            one=format_number(max(single.memory) / MB)))  # fmt: skip
        most_moved, least_moved = (pick(several, key=lambda row: row.moved_bytes) for pick in (max, min))
        sentences.append(texts["moves"].format(
            most=texts["ways"][most_moved.name], mb=format_number(most_moved.moved_bytes / MB),
            least=texts["ways"][least_moved.name],
            few=format_number(least_moved.moved_bytes / MB)))  # fmt: skip
    sentences += [
        texts["missing"].format(way=texts["ways"][row.name], reason=row.reason)
        for row in rows
        if row.reason is not None
    ]
    return sentences


def _table_row(row: SplitRow, texts: Dict[str, Any]) -> List[str]:
    """Return the cells of a split in the table."""
    time = _step_milliseconds(row)
    return [
        texts["ways"][row.name], f"{time.value:.2f}", time.format_range("{:.2f}".format),
        "" if row.speed is None else f"{row.speed:.2f}", f"{row.moved_bytes / MB:.2f}",
        format_megabytes(row.memory),
    ]  # fmt: skip


STUDY = Study(NAME, parse_options, load_options, measure)
