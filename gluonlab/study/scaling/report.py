"""The figures, the tables and the sentences of the study, in a language. Does not import MXNet."""

from __future__ import annotations

from statistics import median
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from gluonlab.bench.harness.interval import bootstrap, ratio
from gluonlab.bench.harness.machine import cpu_model
from gluonlab.bench.harness.record import Series
from gluonlab.bench.scaling import usual_batch
from gluonlab.bench.splits import MICROBATCHES
from gluonlab.bench.tasks import TASKS
from gluonlab.drawing.chart import KINDS, Axis, Chart, Curve, number
from gluonlab.host import resources
from gluonlab.study.numbers import Number, difference
from gluonlab.study.page import Report, Table, words
from gluonlab.study.scaling.measure import SPLITS, Case, cases, hows, kinds_of


def report(series: Sequence[Series], options: Mapping[str, Any], language: str) -> Report:
    """What the study says of the series of all rounds; ``options`` are the study's."""
    return _Study(series, options, words(__file__, language)).report(language)


class _Study:
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

    def _values(self, case: Case, what: str = "") -> Tuple[float, ...]:
        return self.found[f"{what}{case.name.replace(' ', '-')}"].values

    def _named(self, how: str) -> str:
        return str(self.said["split"].format(name=how)) if how in SPLITS else how

    def _alone(self, kind: str) -> Optional[Case]:
        found = (case for case in self.there if case.kind == kind and case.way.devices == 1)
        return next(found, None)

    def speedup(self, case: Case) -> Optional[Number]:
        """Of its images/s over those of one device in the same round."""
        alone = self._alone(case.kind)
        if alone is None:
            return None
        both = [self._values(case), self._values(alone)]
        return Number(
            ratio(*both), bootstrap(both, lambda drawn: ratio(drawn[0], drawn[1]), paired=True)
        )

    def report(self, language: str) -> Report:
        charts = {kind: self._chart(kind) for kind in kinds_of(self.there)}
        if self.there:
            charts["start"] = self._start_chart()
        named = self.said["settings"]
        settings = {
            named["devices"]: ", ".join(map(str, self.options["devices"])),
            named["rounds"]: str(self.options["rounds"]),
            named["machine"]: cpu_model(),
        }
        return Report(
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

    def _starts(self) -> List[Tuple[Case, Number]]:
        kind = next(kinds_of(self.there))
        own = [case for case in self.there if case.kind == kind]
        return [(case, _middle(self._values(case, "start "))) for case in own]

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
                    count=case.way.devices, times=f"{speed.value:.2f}", ends=self._ends(speed),
                ))  # fmt: skip
        first = hows(self.options)[0]
        own = [case for case in self.there if case.how == first]
        own = [case for case in own if case.kind == own[0].kind]
        if len(own) > 1:
            begin, last = (self._values(case, "start ") for case in (own[0], own[-1]))
            more = difference(last, begin)
            lines.append(self.said["begins"].format(
                first=f"{median(begin):.2f}", last=f"{median(last):.2f}",
                count=own[-1].way.devices, more=_rounded(more.value), ends=self._ends(more),
            ))  # fmt: skip
        lines += self._cores()
        lines += [
            self.said["missing"].format(name=one.name, reason=one.reason)
            for one in self.found.values()
            if one.reason and not one.name.startswith("start ")
        ]
        return lines

    def _ends(self, value: Number) -> str:
        if value.ends is None:
            return ""
        return str(
            self.said["ends"].format(low=_rounded(value.ends[0]), high=_rounded(value.ends[1]))
        )

    def _tables(self) -> List[Table]:
        rows = [self._row(case) for case in self.there]
        starts = [
            [self._named(case.how), number(case.way.devices), f"{start.value:.2f}", _range(start)]
            for case, start in (self._starts() if self.there else [])
        ]
        title = self.said["title"].format(**self.fill)
        return [
            Table(title, self.said["heads"], rows),
            Table(self.said["charts"]["start"], self.said["heads-start"], starts),
        ]

    def _row(self, case: Case) -> List[str]:
        speed, way = self.speedup(case), case.way
        shown = ["", "", ""]
        if speed is not None:
            shown = [f"{speed.value:.2f}", _range(speed), f"{speed.value / way.devices:.0%}"]
        return [
            self._named(case.how), case.kind, number(way.devices), number(way.global_batch_size),
            f"{median(self._values(case)):,.0f}", *shown,
        ]  # fmt: skip


def _middle(values: Sequence[float]) -> Number:
    return Number(median(values), bootstrap([values], lambda drawn: median(drawn[0])))


def _rounded(value: float) -> float:
    """To hundredths, and never -0."""
    return round(value, 2) + 0.0


def _range(value: Number) -> str:
    return "" if value.ends is None else f"{value.ends[0]:.2f}..{value.ends[1]:.2f}"
