"""Whether what the verdict promises is kept, and what --profile costs, for ``bench verdict``.

Ten trainings are judged, and the best advice of each is taken: both settings run in processes of
their own, in turns. Gains are images/s over those of the settings before.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from mxnet import nd

from gluonlab.bench.harness.interleaved_rounds import Subject, measure_subjects, progress_bar
from gluonlab.bench.harness.measurement_command import (
    INTERRUPTED,
    MeasurementOptions,
    measurement_options,
)
from gluonlab.bench.harness.measurement_record import Series
from gluonlab.bench.harness.table_format import format_table as as_table
from gluonlab.bench.harness.table_format import outcome_line
from gluonlab.bench.worker_main import Job
from gluonlab.cli.command import command
from gluonlab.config import TrainConfig
from gluonlab.study.speedup.diagnosis import diagnose
from gluonlab.study.speedup.measure_step import MeasuredTraining

ROUNDS = 9
KEPT, OF_TEN = 0.8, 8  # of the promised gain, and of ten trainings
MOST_PROFILED = 0.05  # of the steps' time
RECORDED = 20  # steps of a window
UNADVISED = "nothing is advised"
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
OF_PROFILE: Mapping[str, Any] = {"model": "lenet", "batch_size": 64}


def kept(rounds: int) -> List[Series]:
    """Of each training what was promised and, by round, what that brought; and --profile's cost."""
    found = profile_cost(rounds)
    with progress_bar(len(TRAININGS)) as bar:
        for name, own in TRAININGS.items():
            found += _of(name, {**COMMON, **own}, rounds)
            bar.update()
    return found


def _of(name: str, settings: Dict[str, Any], rounds: int) -> List[Series]:
    verdict = diagnose(TrainConfig(**settings))
    if not verdict.advice or verdict.advice[0].gain is None:
        return [Series(f"{PROMISED} {name}", name, "times", (), UNADVISED)]
    best = verdict.advice[0]
    changed = {**settings, **best.candidate.settings}
    both = measure_subjects([_subject("before", settings), _subject("after", changed)], rounds)
    before, after = (one.rates() for one in both)
    reason = both[0].reason or both[1].reason
    gains = tuple(b / a for a, b in zip(before, after)) if reason is None else ()
    promised = (verdict.advice[0].gain.value,)
    return [
        Series(f"{PROMISED} {name}", f"{name}: {best.candidate.option_text}", "times", promised),
        Series(f"{DELIVERED} {name}", name, "times", gains, reason),
    ]


def _subject(name: str, settings: Dict[str, Any]) -> Subject:
    return Subject(name, name, "training", {"settings": settings})


def profile_cost(rounds: int) -> List[Series]:
    """Seconds of a step, in turns: as it is, and while it is recorded."""
    trained = MeasuredTraining(TrainConfig(**COMMON, **OF_PROFILE))
    window = trained.step_window()
    trained.record(2)
    seconds: Dict[str, List[float]] = {PLAIN: [], PROFILED: []}
    for _ in range(rounds):
        seconds[PLAIN].append(window.mean_seconds(RECORDED))
        seconds[PROFILED].append(trained.record(RECORDED).step_s)
        nd.waitall()
    trained.close()
    return [Series(name, name, "s", tuple(values)) for name, values in seconds.items()]


def rows(series: Sequence[Series]) -> List[Tuple[str, Optional[float], Optional[float]]]:
    """(training and advice, promised, delivered) of each; None where there is no such number."""
    found = {one.name: one for one in series}
    made = []
    for name in TRAININGS:
        promised, delivered = (found.get(f"{kind} {name}") for kind in (PROMISED, DELIVERED))
        if promised is not None:
            made.append((promised.label, _middle(promised), _middle(delivered)))
    return made


def _middle(series: Optional[Series]) -> Optional[float]:
    return median(series.values) if series is not None and series.values else None


def is_kept(promised: float, delivered: float) -> bool:
    """Whether enough of the gain that was promised has come."""
    return delivered - 1 >= KEPT * (promised - 1)


def text(series: Sequence[Series]) -> str:
    """The table and both judgements."""
    lines = [f"{'training, and what was advised':<56}{'promised':>10}{'delivered':>11}"]
    good = 0
    made = rows(series)
    for label, promised, delivered in made:
        if promised is None:
            lines.append(f"{label:<56}{UNADVISED:>21}")
            continue
        numbers = ["-" if each is None else f"{each:.2f}x" for each in (promised, delivered)]
        lines.append(f"{label:<56}{numbers[0]:>10}{numbers[1]:>11}")
        good += delivered is not None and is_kept(promised, delivered)
    note = (
        "promised, delivered: images/s with the best advice over those without; delivered: in "
        "processes of their own, the median of the rounds' ratios. A training for which nothing is "
        "advised is none in which a promise is kept."
    )
    claim = f"{KEPT:.0%} of the promised gain in {OF_TEN} of 10".replace("%", " %")
    shown = f"{good} of {len(TRAININGS)}" if made else None
    judged = outcome_line(claim, shown, good >= OF_TEN)
    return f"{as_table(lines, note)}\n\n{judged}\n{_profile_in_words(series)}"


def _profile_in_words(series: Sequence[Series]) -> str:
    found = {one.name: one.values for one in series}
    pairs = list(zip(found.get(PLAIN, ()), found.get(PROFILED, ())))
    longer = median(b / a for a, b in pairs) - 1 if pairs else None
    shown = None if longer is None else f"{longer:.1%}".replace("%", " %")
    claim = f"--profile <= {MOST_PROFILED:.0%} of the steps' time".replace("%", " %")
    return outcome_line(claim, shown, longer is not None and longer <= MOST_PROFILED)


def make(settings: Dict[str, Any]) -> Job:
    """A job that trains as `TrainConfig` has it with these settings; it counts ``images``."""
    trained = MeasuredTraining(TrainConfig(**settings))

    def run(steps: int) -> Dict[str, float]:
        nd.waitall()
        began = time.perf_counter()
        for _ in range(steps):
            trained.step()
        nd.waitall()
        return {"seconds": time.perf_counter() - began, "images": steps * trained.images}

    return run


@command("python tools/benchmarks verdict", INTERRUPTED)
@measurement_options(ROUNDS)
def main(asked: MeasurementOptions) -> None:
    """Take the advice of study speedup, and measure what it brings.

    Does it bring what it promises, in ten trainings? And what does --profile cost the steps that it
    records? Two CPU devices, one thread each; some minutes. A slow result is a result: it does not
    change the exit status.
    """
    _, record = asked.measure_and_record(("verdict", {}), kept, list)
    asked.print_record(record, text(record.series))
