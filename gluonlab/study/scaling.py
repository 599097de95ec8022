"""``study scaling``: strong and weak scaling over devices, stores and splits, and start-up.

It is the measurement of bench scaling: images/s, and seconds to the end of the first step. Each
round has processes of its own, and is kept at once. Does not import MXNet.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from gluonlab.bench.harness.confidence_interval import bootstrap, ratio
from gluonlab.bench.harness.interleaved_rounds import Subject, image_rates
from gluonlab.bench.harness.interleaved_rounds import measure as measure_rounds
from gluonlab.bench.harness.machine_info import cpu_model
from gluonlab.bench.harness.measurement_record import Series
from gluonlab.bench.scaling import (
    MOST,
    NETWORKS,
    ONE_PROCESS,
    STRONG,
    WEAK,
    ProcessLayout,
    check_network,
    make_ways,
    parse_counts,
    subjects,
    usual_batch,
)
from gluonlab.bench.splits import (
    CHANNELS,
    LAYERS,
    MICROBATCHES,
    PIPELINES,
    SUMS,
    run_options,
)
from gluonlab.bench.workloads import TASKS
from gluonlab.config.command_line import given_settings
from gluonlab.config.option_types import whole_number_check
from gluonlab.drawing.svg_chart import KINDS, Axis, Chart, Curve, number
from gluonlab.errors import ConfigError, RunError, unknown
from gluonlab.host import resources
from gluonlab.study.study import (
    Findings,
    IntervalEstimate,
    Study,
    StudyReport,
    Table,
    as_values,
    ascending,
    check_options,
    difference,
    middle,
    one_of,
    read_words,
    some_of,
    together,
    whole_number,
)
from gluonlab.study.sweep import InMemory, Sweep

NAME = "scaling"
NONE, USUAL_SPLITS, QUICK_SPLITS = "none", "layers,channels,1f1b", "layers"
SPLITS = (LAYERS, CHANNELS, *PIPELINES)
DEVICE = "device"  # MXNet's store, which also stands for one device: it calls none


def choose(quick: bool, **own: Optional[str]) -> Dict[str, Any]:
    """The options as plain values. Raises ConfigError and KVStoreError."""
    usual = {
        "network": NETWORKS[0], "devices": "2" if quick else "2,4", "rounds": 5 if quick else 7,
        "stores": DEVICE if quick else f"{DEVICE},local,ring",
        "splits": QUICK_SPLITS if quick else USUAL_SPLITS,
    }  # fmt: skip
    wanted: Dict[str, Any] = {**usual, **given_settings({**own})}
    network = check_network(wanted["network"])
    counts = parse_counts("--devices", wanted["devices"])
    rounds = whole_number_check(1, 1000)("--rounds", wanted["rounds"])
    names = _names(wanted["stores"])
    from gluonlab.kvstores import check_kvstore  # MXNet is loaded here, not for --help

    for name in names:
        check_kvstore(name)
    splits = _splits(wanted["splits"])
    return {"network": network, "devices": sorted({1, *counts}), "stores": names,
            "splits": splits, "kinds": [WEAK, STRONG], "rounds": rounds}  # fmt: skip


def _splits(text: str) -> List[str]:
    """Their names. Raises ConfigError for others."""
    names = [] if text == NONE else _names(text)
    for name in names:
        if name not in SPLITS:
            raise ConfigError(
                unknown("--splits", name, SPLITS if NONE in names else (*SPLITS, NONE))
            )
    return names


def _names(text: str) -> List[str]:
    """Each once."""
    return list(dict.fromkeys(each.strip() for each in text.split(",")))


def read(options: Mapping[str, Any]) -> Dict[str, Any]:
    """The options as a folder has them. Raises ValueError for anything else."""
    from gluonlab.kvstores import KVSTORES  # MXNet is loaded here, not for --help

    fits = {
        "network": one_of(NETWORKS), "devices": ascending(whole_number(1, MOST)),
        "stores": some_of(KVSTORES), "splits": some_of(SPLITS, 0), "kinds": some_of((WEAK, STRONG)),
        "rounds": whole_number(1, 1000),
    }  # fmt: skip
    check_options(options, fits)
    return {**options}


# --- measurements


def measure(options: Mapping[str, Any], store: InMemory) -> Findings:
    """Measure all rounds, and find the answer."""
    point = {name: options[name] for name in ("network", "devices", "stores", "splits", "kinds")}
    with Sweep(store, one_round, shown=False) as sweep:
        [found] = sweep.run([point], range(options["rounds"]))
    series = together(found)
    if not any(one.values for one in series):
        raise RunError(f"nothing could be measured: {series[0].reason}")
    return Findings(as_values(series), lambda language: report(series, options, language))


class ScalingCase(NamedTuple):
    """A way of `gluonlab.bench.scaling`, and ``how`` its process's devices share the work.

    ``how``: the store that sums their gradients, or one of SPLITS, which spreads one copy of the
    network over them.
    """

    how: str
    kind: str
    way: ProcessLayout

    @property
    def name(self) -> str:
        """Of its series of images/s."""
        return f"{self.kind} {self.how} {self.way.devices}"


def cases(options: Mapping[str, Any]) -> List[ScalingCase]:
    """One device once for each kind, then each store and each split with several."""
    ways = hows(options)
    return [
        ScalingCase(how, kind, way)
        for kind in options["kinds"]
        for way in make_ways(options["network"], kind, [1], options["devices"], [])
        for how in ways
        if way.backend == ONE_PROCESS and (way.devices > 1 or how == ways[0])
    ]


def hows(options: Mapping[str, Any]) -> List[str]:
    """The stores, of which there is one at least, and the splits."""
    return [*options["stores"], *options["splits"]]


def one_round(settings: Mapping[str, Any], number: int) -> Dict[str, Any]:
    """Images/s of every case, and its start: one round of bench's measurement."""
    wanted = cases(settings)
    found = measure_rounds([_subject(case, settings["network"]) for case in wanted], rounds=1)
    series = image_rates(found)
    starts = (
        Series(f"start {one.name}", one.name, "s", tuple(each.starts) if one.values else (),
               one.reason)
        for one, each in zip(series, found)
    )  # fmt: skip
    return as_values([*series, *starts])


def _subject(case: ScalingCase, network: str) -> Subject:
    [subject] = subjects(network, [case.way])
    if case.how in SPLITS:
        options = {**subject.options, "split": run_options(case.how, MICROBATCHES), "kvstore": SUMS}
    else:
        options = {**subject.options, "kvstore": case.how}
    name = case.name.replace(" ", "-")  # of a file, too
    return replace(subject, name=name, label=name, options=options)


def kinds_of(wanted: List[ScalingCase]) -> Iterator[str]:
    """Weak before strong."""
    yield from sorted({case.kind for case in wanted}, key=lambda kind: kind != WEAK)


# --- the report


def report(series: Sequence[Series], options: Mapping[str, Any], language: str) -> StudyReport:
    """What the study says of the series of all rounds; ``options`` are the study's."""
    return _ScalingReport(series, options, read_words(NAME, language)).report(language)


class _ScalingReport:
    def __init__(
        self, series: Sequence[Series], options: Mapping[str, Any], said: Dict[str, Any]
    ) -> None:
        self.found = {one.name: one for one in series}
        self.options, self.said, self.cases = options, said, cases(options)
        self.there = [case for case in self.cases if self._values(case)]
        batch = usual_batch(options["network"])
        self.fill = {**options, "network": TASKS[options["network"]].title, "batch": batch,
                     "both": 2 * batch, "most": options["devices"][-1],
                     "microbatches": MICROBATCHES}  # fmt: skip

    def _values(self, case: ScalingCase, what: str = "") -> Tuple[float, ...]:
        return self.found[f"{what}{case.name.replace(' ', '-')}"].values

    def _named(self, how: str) -> str:
        return str(self.said["split"].format(name=how)) if how in SPLITS else how

    def _alone(self, kind: str) -> Optional[ScalingCase]:
        found = (case for case in self.there if case.kind == kind and case.way.devices == 1)
        return next(found, None)

    def speedup(self, case: ScalingCase) -> Optional[IntervalEstimate]:
        """Of its images/s over those of one device in the same round."""
        alone = self._alone(case.kind)
        if alone is None:
            return None
        both = [self._values(case), self._values(alone)]
        return IntervalEstimate(
            ratio(*both), bootstrap(both, lambda drawn: ratio(drawn[0], drawn[1]), paired=True)
        )

    def report(self, language: str) -> StudyReport:
        charts = {kind: self._chart(kind) for kind in kinds_of(self.there)}
        if self.there:
            charts["start"] = self._start_chart()
        named = self.said["settings"]
        settings = {
            named["devices"]: ", ".join(map(str, self.options["devices"])),
            named["rounds"]: str(self.options["rounds"]),
            named["machine"]: cpu_model(),
        }
        return StudyReport(
            self.said["title"].format(**self.fill), self._sentences(), charts, self._tables(),
            [self.said["method"].format(**self.fill)], settings, language,
        )  # fmt: skip

    def _chart(self, kind: str) -> Chart:
        devices, curves = self.options["devices"], []
        for place, how in enumerate(hows(self.options)):
            own = [
                (case.way.devices, speed)
                for case in self.there
                if case.kind == kind and (case.how == how or case.way.devices == 1)
                for speed in [self.speedup(case)]
                if speed is not None
            ]
            points = [(float(count), speed.value) for count, speed in own]
            if points:
                curves.append(
                    Curve(self._named(how), points, place % KINDS, [each.ends for _, each in own])
                )
        curves.append(Curve(self.said["ideal"], [(n, n) for n in devices], None, dashed=True))
        return Chart(
            self.said["charts"][kind], Axis(self.said["x"], log=True, ticks=devices),
            Axis(self.said["y"], log=True, ticks=devices, lowest=0.5), curves,
            notes=[self.said["kinds"][kind].format(**self.fill), *self._cores()],
        )  # fmt: skip

    def _cores(self) -> List[str]:
        most, here = self.options["devices"][-1], resources.available_cores()
        return [self.said["cores"].format(count=most, here=here)] if most > here else []

    def _starts(self) -> List[Tuple[ScalingCase, IntervalEstimate]]:
        kind = next(kinds_of(self.there))
        own = [case for case in self.there if case.kind == kind]
        return [(case, _median(self._values(case, "start "))) for case in own]

    def _start_chart(self) -> Chart:
        first = hows(self.options)[0]
        own = [(case, start) for case, start in self._starts() if case.how == first]
        points = [(float(case.way.devices), start.value) for case, start in own]
        curve = Curve(self.said["start"], points, 0, [start.ends for _, start in own])
        across = Axis(self.said["x"], log=True, ticks=self.options["devices"])
        return Chart(self.said["charts"]["start"], across, Axis(self.said["s"], lowest=0), [curve])

    def _sentences(self) -> List[str]:
        lines = []
        for case in self.there:
            speed = self.speedup(case)
            if case.way.devices == self.options["devices"][-1] and speed is not None:
                kind = self.said["kinds"][case.kind].format(**self.fill)
                lines.append(self.said["told"].format(
                    how=self._named(case.how), kind=kind,
                    count=case.way.devices, times=f"{speed.value:.2f}",
                    ends=speed.interval(self.said, _rounded),
                ))  # fmt: skip
        first = hows(self.options)[0]
        own = [case for case in self.there if case.how == first]
        own = [case for case in own if case.kind == own[0].kind]
        if len(own) > 1:
            begin, last = (self._values(case, "start ") for case in (own[0], own[-1]))
            more = difference(last, begin)
            lines.append(self.said["begins"].format(
                first=f"{median(begin):.2f}", last=f"{median(last):.2f}",
                count=own[-1].way.devices, more=_rounded(more.value),
                ends=more.interval(self.said, _rounded),
            ))  # fmt: skip
        lines += self._cores()
        lines += [
            self.said["missing"].format(name=one.name, reason=one.reason)
            for one in self.found.values()
            if one.reason and not one.name.startswith("start ")
        ]
        return lines

    def _tables(self) -> List[Table]:
        rows = [self._row(case) for case in self.there]
        starts = [
            [
                self._named(case.how),
                number(case.way.devices),
                f"{start.value:.2f}",
                start.range("{:.2f}".format),
            ]
            for case, start in (self._starts() if self.there else [])
        ]
        title = self.said["title"].format(**self.fill)
        return [
            Table(title, self.said["heads"], rows),
            Table(self.said["charts"]["start"], self.said["heads-start"], starts),
        ]

    def _row(self, case: ScalingCase) -> List[str]:
        speed, way = self.speedup(case), case.way
        shown = ["", "", ""]
        if speed is not None:
            shown = [
                f"{speed.value:.2f}",
                speed.range("{:.2f}".format),
                f"{speed.value / way.devices:.0%}",
            ]
        return [
            self._named(case.how), case.kind, number(way.devices), number(way.global_batch_size),
            f"{median(self._values(case)):,.0f}", *shown,
        ]  # fmt: skip


def _median(values: Sequence[float]) -> IntervalEstimate:
    found = middle(values)
    assert found is not None  # times are finite
    return found


def _rounded(value: float) -> float:
    """To hundredths, and never -0."""
    return round(value, 2) + 0.0


STUDY = Study(NAME, choose, read, measure)
