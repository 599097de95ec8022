"""``bench processes``: measures how training speed scales with devices and processes of a host."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from gluonlab.bench.harness.confidence_interval import median_ratio
from gluonlab.bench.harness.interleaved_rounds import Subject
from gluonlab.bench.harness.measurement_record import Series
from gluonlab.bench.harness.table_format import format_table, missing_row, outcome_line, rounds_text
from gluonlab.bench.harness.worker_processes import BACKEND_VARIABLES, HOROVOD, missing_backend_reason, parse_backends
from gluonlab.bench.workloads import TASKS
from gluonlab.config.option_checks import whole_number_check
from gluonlab.errors import ConfigError, unknown
from gluonlab.host import resources

MODELS = ("lenet", "resnet18")
WEAK, STRONG = "weak", "strong"
PROCESSES, DEVICE_COUNTS = "1,2", "1,2"
ROUNDS = 7
MAX_COUNT = 64  # the maximum number of processes, and of devices of each process
ONE_PROCESS = ""  # the backend of a single process


class ProcessLayout(NamedTuple):
    """The processes of a training run, and the devices of each process.

    ``backend``: the backend that sums the gradients across processes. ``global_batch_size``: images
    per step in all processes together.
    """

    processes: int
    devices: int
    backend: str
    global_batch_size: int

    @property
    def name(self) -> str:
        """Return a name such as ``2x1 dist_sync``, or ``1x2`` for a single process."""
        return f"{self.processes}x{self.devices} {self.backend}".strip()

    @property
    def all_devices(self) -> int:
        """Return the total number of devices in all processes."""
        return self.processes * self.devices


def check_model(name: str) -> str:
    """Return ``name``. If the model is unknown, raises a ConfigError that lists the choices."""
    if name not in MODELS:
        raise ConfigError(unknown("model", name, MODELS))
    return name


def parse_counts(option: str, text: str) -> List[int]:
    """Parse comma-separated numbers, and sort them in ascending order. Raises ConfigError."""
    check = whole_number_check(1, MAX_COUNT)
    return sorted({check(option, part.strip()) for part in text.split(",")})


def default_batch(model: str) -> int:
    """Return the number of images per device for weak scaling.

    With this number, the batch of two devices is the task's global batch, as in
    ``bench frameworks``.
    """
    return TASKS[model].global_batch_size // 2


def make_layouts(
    model: str, kind: str, processes: Sequence[int], devices: Sequence[int], backends: Sequence[str]
) -> List[ProcessLayout]:
    """Return the combinations of processes and devices to measure, by increasing device count.

    The first layout has a single device. For each layout with several processes, there is also a
    layout with the same number of devices in one process. With ``WEAK`` scaling, each device has
    the default batch. With ``STRONG`` scaling, all devices share the default batch of two devices.
    """
    per_device = default_batch(model)

    def make_layout(process_count: int, device_count: int, backend: str) -> ProcessLayout:
        batch = per_device * (process_count * device_count if kind == WEAK else 2)
        return ProcessLayout(process_count, device_count, backend, batch)

    multiprocess = [
        make_layout(process_count, device_count, backend)
        for process_count in processes
        for device_count in devices
        for backend in backends
        if process_count > 1
    ]
    single_process_devices = {1, *(devices if 1 in processes else ()), *(layout.all_devices for layout in multiprocess)}
    layouts = [*(make_layout(1, count, ONE_PROCESS) for count in sorted(single_process_devices)), *multiprocess]
    return sorted(layouts, key=lambda layout: (layout.all_devices, layout.processes, layout.backend))


def parse_layouts(model: str, scaling: str, processes: str, device_counts: str, backends: str) -> List[ProcessLayout]:
    """Return the layouts to measure for the command's options. Raises ConfigError."""
    check_model(model)
    if scaling not in (WEAK, STRONG):
        raise ConfigError(unknown("scaling", scaling, (WEAK, STRONG)))
    return make_layouts(
        model,
        scaling,
        parse_counts("--processes", processes),
        parse_counts("--device-counts", device_counts),
        parse_backends(backends),
    )


def make_subjects(model: str, layouts: Sequence[ProcessLayout]) -> List[Subject]:
    """Return a `Subject` for each layout: a training job on CPU devices with one thread each."""
    return [_make_subject(model, layout) for layout in layouts]


def _make_subject(model: str, layout: ProcessLayout) -> Subject:
    """Return the subject to measure: training of ``model`` in a worker with this layout."""
    options: Dict[str, Any] = {"task": model, "device_count": layout.devices, "threads": 1}
    options["global_batch_size"] = layout.global_batch_size
    job = "gluonlab"
    if layout.processes > 1:
        job, options = "member", {**options, "backend": layout.backend, "processes": layout.processes}
    images, reason = layout.global_batch_size, missing_backend_reason(layout.backend)
    variables = BACKEND_VARIABLES.get(layout.backend, {})
    # Horovod's processes communicate all the time, also between measurements
    pauses = layout.backend == HOROVOD
    return Subject(layout.name, layout.name, job, options, variables, reason, images=images, pauses=pauses)


# --- the table

# least images/s of two processes with one device each / images/s of one process with two devices
TARGETS = {
    ("lenet", "dist_sync"): 0.88,
    ("lenet", "horovod"): 0.65,
    ("resnet18", "dist_sync"): 0.6,
    ("resnet18", "horovod"): 0.6,
}


@dataclass(frozen=True)
class ScalingRow:
    """A layout's images/s, and medians of the rounds' ratios.

    Attributes:
        layout: the processes and their devices.
        images_per_second: images/s of all devices together.
        speedup: images/s divided by the images/s of one device.
        efficiency: the speedup per device.
        one_process_ratio: images/s divided by the images/s of one process with as many devices.
        reason: why the layout was not measured, or None.
    """

    layout: ProcessLayout
    images_per_second: Optional[float] = None
    speedup: Optional[float] = None
    efficiency: Optional[float] = None
    one_process_ratio: Optional[float] = None
    reason: Optional[str] = None


def make_rows(layouts: Sequence[ProcessLayout], series: Sequence[Series]) -> List[ScalingRow]:
    """Return a table row for each layout, in order. The first layout must have a single device."""
    series_by_name = {item.name: item for item in series}
    single_process = {
        layout.all_devices: series_by_name[layout.name].values for layout in layouts if layout.processes == 1
    }
    rows = []
    for layout in layouts:
        item = series_by_name[layout.name]
        if not item.values:
            rows.append(ScalingRow(layout, reason=item.reason))
            continue
        speedup, one_process_ratio = (
            median_ratio(item.values, single_process[devices]) if single_process[devices] else None
            for devices in (1, layout.all_devices)
        )
        efficiency = None if speedup is None else speedup / layout.all_devices
        rows.append(ScalingRow(layout, median(item.values), speedup, efficiency, one_process_ratio))
    return rows


def format_results(
    model: str, kind: str, layouts: Sequence[ProcessLayout], series: Sequence[Series], rounds: int
) -> str:
    """Return the table of results and, for weak scaling, a line for each target."""
    rows = make_rows(layouts, series)
    heading = f"{'processes':<21}{'devices':>8}{'batch':>7}{'images/s':>10}"
    heading += f"{'speed-up':>10}{'efficiency':>12}{'vs 1':>9}"
    batch_rule = {WEAK: "constant batch per device", STRONG: "constant global batch"}
    note = (
        f"{TASKS[model].title}, {kind} scaling: {batch_rule[kind]}. images/s: the median of "
        f"{rounds_text(rounds)}. speed-up: images/s relative to one device; efficiency: speed-up "
        "per device. vs 1: images/s relative to one process with as many devices. All processes "
        f"run on this host, on {resources.available_cores()} cores, each device with one thread; "
        "dist_sync also runs a server and a scheduler." + _core_limit_note(rows)
    )
    table = format_table([heading, *map(_row_line, rows)], note)
    outcomes = judge_targets(model, rows) if kind == WEAK else []
    return "\n".join([table, "", *outcomes]) if outcomes else table


def _core_limit_note(rows: Sequence[ScalingRow]) -> str:
    """Return a note that devices share cores, or "" if there are enough cores."""
    cores, devices = resources.available_cores(), max(row.layout.all_devices for row in rows)
    if cores >= devices:
        return ""
    limit = f"their efficiency is at most {cores / devices:.0%}"
    return f" {devices} devices share {cores} cores: {limit}."


def _row_line(row: ScalingRow) -> str:
    """Return the table line for one layout."""
    layout = row.layout
    name = f"{layout.processes} {layout.backend}".rstrip()
    label = f"{name:<21}{layout.all_devices:>8}{layout.global_batch_size:>7}"
    if row.images_per_second is None:
        return missing_row(f"{label}  ", row.reason)
    cells = f"{row.images_per_second:>10,.0f}{_format_factor(row.speedup):>10}"
    efficiency = "-" if row.efficiency is None else f"{row.efficiency:.0%}"
    versus_one = "" if layout.backend == ONE_PROCESS else _format_factor(row.one_process_ratio)
    return f"{label}{cells}{efficiency:>12}{versus_one:>9}".rstrip()


def _format_factor(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:.2f}x"


def judge_targets(model: str, rows: Sequence[ScalingRow]) -> List[str]:
    """Return a line for each target: reached, not reached, or not measured."""
    lines = []
    for (target_model, backend), target in TARGETS.items():
        ratios = [row.one_process_ratio for row in rows if row.layout[:3] == (2, 1, backend)]
        if target_model == model and ratios:
            ratio_text = None if ratios[0] is None else f"{ratios[0]:.2f}x"
            claim = f"2 processes over {backend} >= {target:g}x one with 2 devices"
            lines.append(outcome_line(claim, ratio_text, (ratios[0] or 0) >= target))
    return lines
