"""Benchmark of the advice of ``study speedup``, and of the cost of --profile (``bench advice``).

Ten trainings are diagnosed. The best advice of each is measured in separate worker processes,
interleaved with the settings before. Gains are images/s over those of the settings before.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from mxnet import nd

from gluonlab.bench.harness.interleaved_rounds import Subject, measure_subjects, progress_bar
from gluonlab.bench.harness.measurement_command import INTERRUPTED, OLD_NAMES, MeasurementOptions, measurement_options
from gluonlab.bench.harness.measurement_record import Series
from gluonlab.bench.harness.table_format import format_table as as_table
from gluonlab.bench.harness.table_format import outcome_line
from gluonlab.bench.worker_main import Job
from gluonlab.cli.command import command
from gluonlab.config import TrainConfig
from gluonlab.study.speedup.diagnosis import diagnose
from gluonlab.study.speedup.measure_step import MeasuredTraining

ROUNDS = 9
MIN_GAIN_SHARE, MIN_KEPT_TRAININGS = 0.8, 8  # of the promised gain, and of ten trainings
MAX_PROFILE_COST = 0.05  # of the steps' time
RECORDED = 20  # steps of a window
UNADVISED = "no advice"
PROMISED, DELIVERED, PLAIN, PROFILED = "promised", "delivered", "plain", "profiled"
COMMON: Mapping[str, Any] = {"devices": "cpu*2", "threads": 1, "dataset": "synthetic", "seed": 0}
TRAININGS: Mapping[str, Mapping[str, Any]] = {
    "mlp, 1 image": {"model": "mlp", "batch_size": 1},
    "mlp, 4 images": {"model": "mlp", "batch_size": 4},
    "mlp, 8 images, adam": {"model": "mlp", "batch_size": 8, "optimizer": "adam"},
    "mlp, 8 in all": {"model": "mlp", "global_batch_size": 8},
    "mlp, 16 images in 8 parts": {"model": "mlp", "batch_size": 16, "microbatches": 8},
    "mlp, 8 images, ring": {"model": "mlp", "batch_size": 8, "kvstore": "ring"},
    "lenet, 1 image": {"model": "lenet", "batch_size": 1},
    "lenet, 1 image, adam": {"model": "lenet", "batch_size": 1, "optimizer": "adam"},
    "lenet, 2 images, star": {"model": "lenet", "batch_size": 2, "kvstore": "star"},
    "resnet8, 1 image": {"model": "resnet8", "batch_size": 1},
}
PROFILED_TRAINING: Mapping[str, Any] = {"model": "lenet", "batch_size": 64}


def measure_advice(rounds: int) -> List[Series]:
    """Return the predicted and measured gain of each training's advice, and --profile's cost."""
    series = profile_cost(rounds)
    with progress_bar(len(TRAININGS)) as bar:
        for name, training_settings in TRAININGS.items():
            series += _measure_training_advice(name, {**COMMON, **training_settings}, rounds)
            bar.update()
    return series


def _measure_training_advice(name: str, settings: Dict[str, Any], rounds: int) -> List[Series]:
    diagnosis = diagnose(TrainConfig(**settings))
    if not diagnosis.advice or diagnosis.advice[0].gain is None:
        return [Series(f"{PROMISED} {name}", name, "times", (), UNADVISED)]
    best = diagnosis.advice[0]
    advised_settings = {**settings, **best.candidate.settings}
    measurements = measure_subjects([_subject("before", settings), _subject("after", advised_settings)], rounds)
    rates_before, rates_after = (measurement.images_per_second() for measurement in measurements)
    reason = measurements[0].reason or measurements[1].reason
    gains = tuple(b / a for a, b in zip(rates_before, rates_after)) if reason is None else ()
    promised = (diagnosis.advice[0].gain.value,)
    return [
        Series(f"{PROMISED} {name}", f"{name}: {best.candidate.option_text}", "times", promised),
        Series(f"{DELIVERED} {name}", name, "times", gains, reason),
    ]


def _subject(name: str, settings: Dict[str, Any]) -> Subject:
    return Subject(name, name, "training", {"settings": settings})


def profile_cost(rounds: int) -> List[Series]:
    """Return seconds of a step with and without recording, interleaved."""
    training = MeasuredTraining(TrainConfig(**COMMON, **PROFILED_TRAINING))
    window = training.step_window()
    training.record(2)
    seconds: Dict[str, List[float]] = {PLAIN: [], PROFILED: []}
    for _ in range(rounds):
        seconds[PLAIN].append(window.mean_seconds(RECORDED))
        seconds[PROFILED].append(training.record(RECORDED).step_s)
        nd.waitall()
    training.close()
    return [Series(name, name, "s", tuple(values)) for name, values in seconds.items()]


def make_rows(series: Sequence[Series]) -> List[Tuple[str, Optional[float], Optional[float]]]:
    """Return (training and advice, promised, delivered) of each training; None if not measured."""
    series_by_name = {item.name: item for item in series}
    rows = []
    for name in TRAININGS:
        promised, delivered = (series_by_name.get(f"{kind} {name}") for kind in (PROMISED, DELIVERED))
        if promised is not None:
            rows.append((promised.label, _median_or_none(promised), _median_or_none(delivered)))
    return rows


def _median_or_none(series: Optional[Series]) -> Optional[float]:
    return median(series.values) if series is not None and series.values else None


def is_gain_reached(promised: float, delivered: float) -> bool:
    """Return whether enough of the promised gain was measured."""
    return delivered - 1 >= MIN_GAIN_SHARE * (promised - 1)


def format_results(series: Sequence[Series]) -> str:
    """Return the table and whether both targets are reached."""
    lines = [f"{'training, and the advice':<56}{'promised':>10}{'delivered':>11}"]
    kept_count = 0
    rows = make_rows(series)
    for label, promised, delivered in rows:
        if promised is None:
            lines.append(f"{label:<56}{UNADVISED:>21}")
            continue
        numbers = ["-" if gain is None else f"{gain:.2f}x" for gain in (promised, delivered)]
        lines.append(f"{label:<56}{numbers[0]:>10}{numbers[1]:>11}")
        kept_count += delivered is not None and is_gain_reached(promised, delivered)
    note = (
        "promised, delivered: speed-up of images/s with the best advice; promised is measured by "
        "study speedup, and delivered in separate processes, as the median of the rounds' "
        "ratios. A training without advice counts as missed."
    )
    claim = f"{MIN_GAIN_SHARE:.0%} of the promised gain in {MIN_KEPT_TRAININGS} of 10".replace("%", " %")
    shown = f"{kept_count} of {len(TRAININGS)}" if rows else None
    judged = outcome_line(claim, shown, kept_count >= MIN_KEPT_TRAININGS)
    return f"{as_table(lines, note)}\n\n{judged}\n{_describe_profile_cost(series)}"


def _describe_profile_cost(series: Sequence[Series]) -> str:
    values_by_name = {item.name: item.values for item in series}
    pairs = list(zip(values_by_name.get(PLAIN, ()), values_by_name.get(PROFILED, ())))
    overhead = median(b / a for a, b in pairs) - 1 if pairs else None
    overhead_text = None if overhead is None else f"{overhead:.1%}".replace("%", " %")
    claim = f"--profile <= {MAX_PROFILE_COST:.0%} of the steps' time".replace("%", " %")
    return outcome_line(claim, overhead_text, overhead is not None and overhead <= MAX_PROFILE_COST)


def make(settings: Dict[str, Any]) -> Job:
    """Return a job that trains with these settings of `TrainConfig`; it counts ``images``."""
    training = MeasuredTraining(TrainConfig(**settings))

    def run(steps: int) -> Dict[str, float]:
        nd.waitall()
        started = time.perf_counter()
        for _ in range(steps):
            training.step()
        nd.waitall()
        return {"seconds": time.perf_counter() - started, "images": steps * training.images}

    return run


@command("python tools/benchmarks advice", INTERRUPTED, renamed=OLD_NAMES)
@measurement_options(ROUNDS)
def main(run_options: MeasurementOptions) -> None:
    """Measure whether the advice of study speedup helps, and the cost of --profile.

    Ten trainings run on two CPU devices with one thread each, for some minutes. Missed targets are
    reported, and do not change the exit status.
    """
    _, record = run_options.measure_and_record(("verdict", {}), measure_advice, list)
    run_options.print_record(record, format_results(record.series))
