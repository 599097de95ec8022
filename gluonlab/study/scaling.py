"""``study scaling``: speedups (strong and weak scaling) and start times, by number of devices.

For each kvstore and split, the study uses ``gluonlab.bench`` to measure images/s and the seconds
until the end of the first step. Each round uses new processes. This module does not import MXNet.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from gluonlab.bench.harness.confidence_interval import bootstrap_interval, median_ratio
from gluonlab.bench.harness.interleaved_rounds import Subject, image_rates
from gluonlab.bench.harness.interleaved_rounds import measure_subjects as measure_rounds
from gluonlab.bench.harness.machine_info import cpu_model
from gluonlab.bench.harness.measurement_record import Series
from gluonlab.bench.scaling import (
    MAX_COUNT,
    MODELS,
    ONE_PROCESS,
    STRONG,
    WEAK,
    ProcessLayout,
    check_model,
    default_batch,
    make_layouts,
    make_subjects,
    parse_counts,
)
from gluonlab.bench.splits import ALLREDUCE_STORE, CHANNELS, DEFAULT_MICROBATCHES, LAYERS, PIPELINES, run_options
from gluonlab.bench.workloads import TASKS
from gluonlab.config.command_line import given_settings
from gluonlab.config.option_checks import whole_number_check
from gluonlab.config.renamed_settings import RENAMED_KVSTORES
from gluonlab.drawing.svg_chart import CURVE_KINDS, Axis, Chart, Curve, format_number
from gluonlab.errors import ConfigError, RunError, unknown
from gluonlab.host import resources
from gluonlab.study.study_report import (
    Findings,
    IntervalEstimate,
    Study,
    StudyReport,
    Table,
    ascending_list_check,
    check_options,
    choice_check,
    choice_list_check,
    finite_median_estimate,
    integer_check,
    merge_rounds,
    paired_difference,
    read_translations,
    series_to_json,
)
from gluonlab.study.sweep import MeasurementStore, Sweep

NAME = "scaling"
NONE, DEFAULT_SPLITS, QUICK_SPLITS = "none", "layers,tensor,1f1b", "layers"
SPLITS = (LAYERS, CHANNELS, *PIPELINES)
TENSOR = "tensor"  # name of CHANNELS on the command line; study.json contains the old name
STRATEGIES = (LAYERS, TENSOR, *PIPELINES)
STRATEGY_NAMES = {CHANNELS: TENSOR}
DEVICE_STORE = "device"  # MXNet's kvstore; also the name for one device, which needs no kvstore


def parse_options(quick: bool, **options: Optional[str]) -> Dict[str, Any]:
    """Return the options of the command as plain values. Raises ConfigError and KVStoreError."""
    defaults = {
        "model": MODELS[0], "device_counts": "2" if quick else "2,4", "rounds": 5 if quick else 7,
        "kvstores": DEVICE_STORE if quick else f"{DEVICE_STORE},local,ring",
        "strategies": QUICK_SPLITS if quick else DEFAULT_SPLITS,
    }  # fmt: skip
    values: Dict[str, Any] = {**defaults, **given_settings({**options})}
    model = check_model(values["model"])
    counts = parse_counts("--device-counts", values["device_counts"])
    rounds = whole_number_check(1, 1000)("--rounds", values["rounds"])
    names = _parse_names(values["kvstores"])
    from gluonlab.kvstores import check_kvstore  # MXNet is loaded here, not for --help

    for name in names:
        check_kvstore(name)
    splits = _parse_splits(values["strategies"])
    return {"network": model, "devices": sorted({1, *counts}), "stores": names,
            "splits": splits, "kinds": [WEAK, STRONG], "rounds": rounds}  # fmt: skip


def _parse_splits(text: str) -> List[str]:
    """Return the names of splits. Raises ConfigError for unknown names."""
    names = [] if text == NONE else _parse_names(text)
    for name in names:
        if name not in (*STRATEGIES, CHANNELS):
            raise ConfigError(unknown("--strategies", name, STRATEGIES if NONE in names else (*STRATEGIES, NONE)))
    return [CHANNELS if name == TENSOR else name for name in names]


def _parse_names(text: str) -> List[str]:
    """Return the comma-separated names without duplicates."""
    return list(dict.fromkeys(name.strip() for name in text.split(",")))


def load_options(options: Mapping[str, Any]) -> Dict[str, Any]:
    """Check the options in a study's folder. Raises ValueError for invalid options."""
    from gluonlab.kvstores import KVSTORES  # MXNet is loaded here, not for --help

    checks = {
        "network": choice_check(MODELS),
        "devices": ascending_list_check(integer_check(1, MAX_COUNT)),
        "stores": choice_list_check(KVSTORES),
        "splits": choice_list_check(SPLITS, 0),
        "kinds": choice_list_check((WEAK, STRONG)),
        "rounds": integer_check(1, 1000),
    }
    stores = options.get("stores")
    if isinstance(stores, list):  # older versions recorded old names
        options = {**options, "stores": [RENAMED_KVSTORES.get(str(name), name) for name in stores]}
    check_options(options, checks)
    return {**options}


# --- measurements


def measure(options: Mapping[str, Any], store: MeasurementStore) -> Findings:
    """Measure images/s and start times in all rounds, and return the findings."""
    point = {name: options[name] for name in ("network", "devices", "stores", "splits", "kinds")}
    with Sweep(store, measure_round, show_progress=False) as sweep:
        [rounds] = sweep.run([point], range(options["rounds"]))
    series = merge_rounds(rounds)
    if not any(item.values for item in series):
        raise RunError(f"no measurement succeeded: {series[0].reason}")
    return Findings(series_to_json(series), lambda language: build_report(series, options, language))


class ScalingCase(NamedTuple):
    """A measurement of the study: a process layout, and the kvstore or split of its devices.

    ``store_or_split``: the kvstore that sums gradients, or one of SPLITS, which divides one copy of
    the network among the devices.
    """

    store_or_split: str
    kind: str
    layout: ProcessLayout

    @property
    def name(self) -> str:
        """Return the name of the series of images/s."""
        return f"{self.kind} {self.store_or_split} {self.layout.devices}"


def list_cases(options: Mapping[str, Any]) -> List[ScalingCase]:
    """Return the cases to measure for each kind of scaling, strong or weak.

    One device is measured once per kind of scaling. Several devices are measured with each kvstore
    and split.
    """
    names = stores_and_splits(options)
    return [
        ScalingCase(name, kind, layout)
        for kind in options["kinds"]
        for layout in make_layouts(options["network"], kind, [1], options["devices"], [])
        for name in names
        if layout.backend == ONE_PROCESS and (layout.devices > 1 or name == names[0])
    ]


def stores_and_splits(options: Mapping[str, Any]) -> List[str]:
    """Return the names of the kvstores (at least one) and of the splits."""
    return [*options["stores"], *options["splits"]]


def measure_round(settings: Mapping[str, Any], round: int) -> Dict[str, Any]:
    """Measure images/s and start time of each `ScalingCase`, in one round."""
    cases = list_cases(settings)
    measurements = measure_rounds([_make_subject(case, settings["network"]) for case in cases], rounds=1)
    series = image_rates(measurements)
    starts = (
        Series(f"start {item.name}", item.name, "s", tuple(measurement.starts) if item.values else (), item.reason)
        for item, measurement in zip(series, measurements)
    )
    return series_to_json([*series, *starts])


def _make_subject(case: ScalingCase, network: str) -> Subject:
    """Convert a case of this study to a `Subject`, which gluonlab.bench can measure."""
    [subject] = make_subjects(network, [case.layout])
    options = {**subject.options, "kvstore": case.store_or_split}
    if case.store_or_split in SPLITS:
        options["kvstore"] = ALLREDUCE_STORE
        options["split"] = run_options(case.store_or_split, DEFAULT_MICROBATCHES)
    name = case.name.replace(" ", "-")  # also the name of a file
    return replace(subject, name=name, label=name, options=options)


def list_kinds(cases: List[ScalingCase]) -> List[str]:
    """Return the kinds of scaling of these cases, weak before strong."""
    return sorted({case.kind for case in cases}, key=lambda kind: kind != WEAK)


# --- the report


def build_report(series: Sequence[Series], options: Mapping[str, Any], language: str) -> StudyReport:
    """Return the study's report for the series of all rounds."""
    return _ScalingReport(series, options, read_translations(NAME, language)).build(language)


class _ScalingReport:
    """Builder of the study's report in one language, from the series of all rounds."""

    def __init__(self, series: Sequence[Series], options: Mapping[str, Any], texts: Dict[str, Any]) -> None:
        self.series = {item.name: item for item in series}
        self.options, self.texts, self.cases = options, texts, list_cases(options)
        self.measured_cases = [case for case in self.cases if self._values(case)]
        batch = default_batch(options["network"])
        self.values = {**options, "network": TASKS[options["network"]].title, "batch": batch,
                     "both": 2 * batch, "most": options["devices"][-1],
                     "microbatches": DEFAULT_MICROBATCHES}  # fmt: skip

    def _values(self, case: ScalingCase, prefix: str = "") -> Tuple[float, ...]:
        return self.series[f"{prefix}{case.name.replace(' ', '-')}"].values

    def _sharing_label(self, store_or_split: str) -> str:
        if store_or_split not in SPLITS:
            return store_or_split
        return str(self.texts["split"].format(name=STRATEGY_NAMES.get(store_or_split, store_or_split)))

    def _single_device_case(self, kind: str) -> Optional[ScalingCase]:
        matches = (case for case in self.measured_cases if case.kind == kind and case.layout.devices == 1)
        return next(matches, None)

    def estimate_speedup(self, case: ScalingCase) -> Optional[IntervalEstimate]:
        """Return the images/s of a case divided by the images/s of one device in the same round."""
        single = self._single_device_case(case.kind)
        if single is None:
            return None
        rates = [self._values(case), self._values(single)]
        return IntervalEstimate(
            median_ratio(*rates),
            bootstrap_interval(rates, lambda groups: median_ratio(groups[0], groups[1]), paired=True),
        )

    def build(self, language: str) -> StudyReport:
        """Return the report."""
        charts = {kind: self._speedup_chart(kind) for kind in list_kinds(self.measured_cases)}
        if self.measured_cases:
            charts["start"] = self._start_times_chart()
        setting_names = self.texts["settings"]
        settings = {
            setting_names["devices"]: ", ".join(map(str, self.options["devices"])),
            setting_names["rounds"]: str(self.options["rounds"]),
            setting_names["machine"]: cpu_model(),
        }
        return StudyReport(
            self.texts["title"].format(**self.values), self._write_sentences(), charts,
            self._build_tables(), [self.texts["method"].format(**self.values)], settings,
            language,
        )  # fmt: skip

    def _speedup_chart(self, kind: str) -> Chart:
        """Return a chart of the speedup by number of devices, for a kind of scaling."""
        devices, curves = self.options["devices"], []
        for index, name in enumerate(stores_and_splits(self.options)):
            speedups = [
                (case.layout.devices, estimate)
                for case in self.measured_cases
                if case.kind == kind and (case.store_or_split == name or case.layout.devices == 1)
                for estimate in [self.estimate_speedup(case)]
                if estimate is not None
            ]
            points = [(float(count), estimate.value) for count, estimate in speedups]
            if points:
                ends = [speedup.ends for _, speedup in speedups]
                curves.append(Curve(self._sharing_label(name), points, index % CURVE_KINDS, ends))
        curves.append(Curve(self.texts["ideal"], [(n, n) for n in devices], None, dashed=True))
        return Chart(
            self.texts["charts"][kind], Axis(self.texts["x"], log=True, ticks=devices),
            Axis(self.texts["y"], log=True, ticks=devices, lowest=0.5), curves,
            notes=[self.texts["kinds"][kind].format(**self.values), *self._core_limit_notes()],
        )  # fmt: skip

    def _core_limit_notes(self) -> List[str]:
        devices, cores = self.options["devices"][-1], resources.available_cores()
        return [self.texts["cores"].format(count=devices, here=cores)] if devices > cores else []

    def _start_times(self) -> List[Tuple[ScalingCase, IntervalEstimate]]:
        kind = list_kinds(self.measured_cases)[0]
        cases = [case for case in self.measured_cases if case.kind == kind]
        return [(case, finite_median_estimate(self._values(case, "start "))) for case in cases]

    def _start_times_chart(self) -> Chart:
        """Return a chart of the start times, by number of devices."""
        first_name = stores_and_splits(self.options)[0]
        starts = [(case, start) for case, start in self._start_times() if case.store_or_split == first_name]
        points = [(float(case.layout.devices), start.value) for case, start in starts]
        curve = Curve(self.texts["start"], points, 0, [start.ends for _, start in starts])
        x_axis = Axis(self.texts["x"], log=True, ticks=self.options["devices"])
        return Chart(self.texts["charts"]["start"], x_axis, Axis(self.texts["s"], lowest=0), [curve])

    def _write_sentences(self) -> List[str]:
        """Return sentences about speedups, start times, and cases that failed."""
        sentences = []
        for case in self.measured_cases:
            speedup = self.estimate_speedup(case)
            if case.layout.devices == self.options["devices"][-1] and speedup is not None:
                kind = self.texts["kinds"][case.kind].format(**self.values)
                sentences.append(self.texts["told"].format(
                    how=self._sharing_label(case.store_or_split), kind=kind,
                    count=case.layout.devices, times=f"{speedup.value:.2f}",
                    ends=speedup.format_interval(self.texts, _round_to_hundredths),
                ))  # fmt: skip
        first_name = stores_and_splits(self.options)[0]
        cases = [case for case in self.measured_cases if case.store_or_split == first_name]
        cases = [case for case in cases if case.kind == cases[0].kind]
        if len(cases) > 1:
            first_starts, last_starts = (self._values(case, "start ") for case in (cases[0], cases[-1]))
            delay = paired_difference(last_starts, first_starts)
            sentences.append(self.texts["begins"].format(
                first=f"{median(first_starts):.2f}", last=f"{median(last_starts):.2f}",
                count=cases[-1].layout.devices, more=_round_to_hundredths(delay.value),
                ends=delay.format_interval(self.texts, _round_to_hundredths),
            ))  # fmt: skip
        sentences += self._core_limit_notes()
        sentences += [
            self.texts["missing"].format(name=item.name, reason=item.reason)
            for item in self.series.values()
            if item.reason and not item.name.startswith("start ")
        ]
        return sentences

    def _build_tables(self) -> List[Table]:
        """Return the tables of speedups and of start times."""
        rows = [self._speedup_row(case) for case in self.measured_cases]
        starts = [
            [self._sharing_label(case.store_or_split), format_number(case.layout.devices), f"{start.value:.2f}",
             start.format_range("{:.2f}".format)]
            for case, start in (self._start_times() if self.measured_cases else [])
        ]  # fmt: skip
        title = self.texts["title"].format(**self.values)
        return [
            Table(title, self.texts["heads"], rows),
            Table(self.texts["charts"]["start"], self.texts["heads-start"], starts),
        ]

    def _speedup_row(self, case: ScalingCase) -> List[str]:
        """Return the row of the table for a case."""
        speedup, layout = self.estimate_speedup(case), case.layout
        cells = ["", "", ""]
        if speedup is not None:
            efficiency = f"{speedup.value / layout.devices:.0%}"
            cells = [f"{speedup.value:.2f}", speedup.format_range("{:.2f}".format), efficiency]
        return [
            self._sharing_label(case.store_or_split), case.kind, format_number(layout.devices),
            format_number(layout.global_batch_size), f"{median(self._values(case)):,.0f}", *cells,
        ]  # fmt: skip


def _round_to_hundredths(value: float) -> float:
    """Round to hundredths, and return 0 instead of -0."""
    return round(value, 2) + 0.0


STUDY = Study(NAME, parse_options, load_options, measure)
