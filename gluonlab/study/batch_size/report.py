"""The figures, tables and sentences of the study, in a language."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

from gluonlab.bench.harness.machine import cpu_model
from gluonlab.drawing.chart import Axis, Chart, Curve, Region, number
from gluonlab.study.batch_size.findings import Found, Row
from gluonlab.study.batch_size.names import EPOCHS, PANELS, STEPS, Options
from gluonlab.study.batch_size.regimes import REGIMES
from gluonlab.study.numbers import Number
from gluonlab.study.page import Report, Table, words


def report(found: Dict[str, Found], options: Options, language: str) -> Report:
    """What the study says of its panels."""
    said = words(__file__, language)
    charts: Dict[str, Chart] = {}
    sentences: List[str] = []
    tables: List[Table] = []
    method: List[str] = []
    for name, panel in found.items():
        one = _Panel(name, panel, options, said)
        charts.update(one.charts())
        sentences += one.sentences()
        tables.append(one.table())
        method.append(one.method())
    settings = {
        said["settings"]["seeds"]: str(options.seeds),
        said["settings"]["devices"]: str(options.gpus or 1),
        said["settings"]["machine"]: cpu_model(),
    }
    method.append(said["rule"])
    return Report(said["title"], sentences, charts, tables, method, settings, language)


class _Panel:
    def __init__(self, name: str, found: Found, options: Options, said: Dict[str, Any]) -> None:
        self.name, self.found, self.said = name, found, said
        self.panel, self.options = PANELS[name], options
        self.fill = {
            "panel": said["panels"][name],
            "target": f"{options.panels[name]['target']:.1%}".replace(".0%", "%").replace(
                "%", " %"
            ),
            "steps": self.panel.equal_steps,
            "epochs": self.panel.equal_epochs,
        }
        self.reached = [row for row in found.rows if row.steps is not None]

    def charts(self) -> Dict[str, Chart]:
        """By the names of their files; those of a target that was never reached are left out."""
        made = {}
        if self.reached:
            for which in ("steps", "epochs", "seconds"):
                made[f"{self.name}-{which}"] = self._to_target(which)
        for which in (STEPS, EPOCHS):
            made[f"{self.name}-equal-{which}"] = self._errors(which)
        return made

    def _to_target(self, which: str) -> Chart:
        points = [(row.size, getattr(row, which)) for row in self.reached]
        curves = [_curve(self.said["measured"].format(seeds=self.options.seeds), points, 0)]
        if which == "steps":
            first, fewest = points[0][0], points[0][1].value
            lowest = min(each.value for _, each in points) / 3
            last = min(points[-1][0], first * fewest / lowest)
            ends = [(first, fewest), (last, fewest * first / last)]
            curves.append(Curve(self.said["ideal"], ends, None, dashed=True))
        regions = [
            Region(self.said["regimes"][part.regime], part.left, part.right,
                   REGIMES.index(part.regime))
            for part in self.found.regimes
        ]  # fmt: skip
        notes = [*self._regimes(), self.said["rule"]] if which == "steps" else []
        return Chart(
            self.said["charts"][which].format(**self.fill),
            self._sizes(),
            Axis(self.said["axes"][which], log=True),
            curves,
            regions,
            notes,
        )

    def _sizes(self) -> Axis:
        sizes = [row.size for row in self.found.rows]
        return Axis(self.said["size"], log=True, ticks=sizes)

    def _errors(self, which: str) -> Chart:
        parts = []
        for place, name in enumerate(("test", "train")):
            pairs = [(row.size, row.errors[which]) for row in self.found.rows]
            points = [(size, _percent(pair[1 - place])) for size, pair in pairs if pair is not None]
            parts.append(_curve(self.said[name], points, place, dashed=name == "train"))
        title = self.said["charts"][f"equal-{which}"].format(**self.fill)
        return Chart(title, self._sizes(), Axis(self.said["axes"]["errors"], lowest=0), parts)

    def _regimes(self) -> List[str]:
        """What regimes there are, and where they end."""
        if not self.found.regimes:
            return []
        told = [
            self.said["between"].format(
                regime=self.said["regimes"][part.regime],
                left=number(part.left),
                right=number(part.right),
            )
            for part in self.found.regimes
        ]
        comma = "、" if self.said["all"].endswith("。") else "; "
        lines = [self.said["all"].format(parts=comma.join(told), **self.fill)]
        for which, at in (("perfect", self.found.perfect), ("stagnant", self.found.stagnant)):
            if at is not None:
                ends = self._ends(at)
                lines.append(self.said[which].format(size=number(at.value), ends=ends))
        return lines

    def _ends(self, value: Number) -> str:
        if value.ends is None:
            return ""
        low, high = map(number, value.ends)
        return str(self.said["ends"].format(low=low, high=high))

    def sentences(self) -> List[str]:
        """What the figures show."""
        lines = self._regimes()
        few = min(self.reached, key=lambda row: _value(row.epochs), default=None)
        if few is not None and few is not self.reached[-1]:
            last = self.reached[-1]
            lines.append(self.said["cost"].format(
                few=number(_value(few.epochs)), small=number(few.size), large=number(last.size),
                many=number(_value(last.epochs)),
                times=f"{_value(last.epochs) / _value(few.epochs):.1f}",
            ))  # fmt: skip
        first, last = self.found.rows[0], self.found.rows[-1]
        ends = [row.errors[which] for which in (STEPS, EPOCHS) for row in (first, last)]
        if all(each is not None for each in ends):
            tested = [100 * each[1].value for each in ends if each is not None]
            lines.append(self.said["equal"].format(
                step_high=tested[0], step_low=tested[1], epoch_low=tested[2], epoch_high=tested[3],
                small=number(first.size), large=number(last.size), **self.fill,
            ))  # fmt: skip
        return [*lines, *self.missed()]

    def missed(self) -> List[str]:
        """A line for each batch size with which a seed did not reach the target."""
        return [
            self.said["missed"].format(
                size=number(row.size), reached=row.reached, seeds=row.seeds, limit=row.limit,
                rate=number(row.rate), best=f"{row.best:.1%}".replace("%", " %"),
                target=self.fill["target"],
            )
            for row in self.found.rows
            if row.reached < row.seeds
        ]  # fmt: skip

    def table(self) -> Table:
        """A row for each batch size."""
        rows = [self._row(row) for row in self.found.rows]
        return Table(str(self.fill["panel"]), self.said["heads"], rows)

    def _row(self, row: Row) -> List[str]:
        never = self.said["never"] if row.steps is None else ""
        return [
            number(row.size),
            number(row.rate),
            never or number(_value(row.steps)),
            _range(row.steps),
            "" if never else number(_value(row.epochs)),
            "" if never else f"{_value(row.seconds):.2f}",
            _range(row.seconds),
            *(_shares(row.errors[which]) for which in (STEPS, EPOCHS)),
        ]

    def method(self) -> str:
        """How it was measured."""
        momentum = self.panel.momentum
        return str(self.said["method"].format(
            momentum=self.said["momentum"].format(momentum=momentum) if momentum else "",
            tuning=self.options.tuning_seeds, seeds=self.options.seeds,
            resolution=self.panel.resolution, target=self.fill["target"],
        ))  # fmt: skip


def _value(value: Optional[Number]) -> float:
    assert value is not None
    return value.value


def _curve(
    name: str, points: Sequence[Tuple[int, Number]], kind: int, dashed: bool = False
) -> Curve:
    places = [(float(size), each.value) for size, each in points]
    return Curve(name, places, kind, [each.ends for _, each in points], dashed)


def _percent(share: Number) -> Number:
    ends = None if share.ends is None else (100 * share.ends[0], 100 * share.ends[1])
    return Number(100 * share.value, ends)


def _range(value: Optional[Number]) -> str:
    if value is None or value.ends is None:
        return ""
    return "..".join(map(number, value.ends))


def _shares(pair: Optional[Tuple[Number, Number]]) -> str:
    return "" if pair is None else ", ".join(f"{100 * each.value:.1f} %" for each in pair)
