"""What all studies share: options that can be read back, numbers with intervals, and a page.

A study is a module with a `Study`. Its command is in `gluonlab.study.__main__`, its measurements
are kept by `gluonlab.study.sweep`, and its sentences are in ``words/NAME.json``, in both languages.
No study loads MXNet or numpy before it measures.
"""

from __future__ import annotations

import base64
import math
import textwrap
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import (
    Any,
    Callable,
    Collection,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import gluonlab
from gluonlab.bench.harness.confidence_interval import bootstrap
from gluonlab.bench.harness.measurement_record import Series
from gluonlab.bench.harness.table_format import WIDTH
from gluonlab.drawing.page_template import template_environment
from gluonlab.drawing.svg_chart import Chart, as_svg
from gluonlab.drawing.translations import load_words, select_language
from gluonlab.study.sweep import InMemory, StudyFolder

PAGE = "study.html"
LANGUAGES = ("en", "ja")
WORDS = Path(__file__).parent / "words"


class Study(NamedTuple):
    """A question about training that many measurements answer.

    ``choose(quick, **options)`` makes the study's options of those of its command, which are text,
    and raises ConfigError; ``read`` makes them of the plain values in a study's folder, and raises
    ValueError. ``measure`` takes these options, and where measurements are kept.
    """

    name: str
    choose: Callable[..., Any]
    read: Callable[[Mapping[str, Any]], Any]
    measure: Callable[[Any, InMemory], "Findings"]


class Findings(NamedTuple):
    """The answer of a study: plain values, and a report in a language.

    ``failure``: what to say where the question has no answer; ``rest``: the answer of the part that
    has one nevertheless.
    """

    values: Dict[str, Any]
    report: Callable[[str], "StudyReport"]
    failure: str = ""
    rest: Optional["Findings"] = None


class Table(NamedTuple):
    """``heads`` of columns, and rows of cells; the first column is a name."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


class StudyReport(NamedTuple):
    """What a study says. ``charts``: by the name of their file, without its ending."""

    title: str
    sentences: Sequence[str]
    charts: Mapping[str, Chart]
    tables: Sequence[Table]
    method: Sequence[str]
    settings: Mapping[str, str]
    language: str


def read_words(name: str, language: str) -> Dict[str, Any]:
    """The words of a study. Raises ConfigError, with the choices, for another language."""
    return dict(select_language(load_words(WORDS / f"{name}.json"), language))


def in_terminal(sentences: Sequence[str]) -> str:
    """Sentences for a terminal of 80 columns; the last names a folder, which stays in one piece."""
    *told, where = sentences
    return "\n".join([*(textwrap.fill(each, WIDTH) for each in told), where])


def write(folder: StudyFolder, report: StudyReport) -> None:
    """Write the charts, and PAGE."""
    pictures = {f"{name}.svg": as_svg(chart) for name, chart in report.charts.items()}
    for name, picture in pictures.items():
        folder.write(name, picture)
    folder.write(PAGE, as_page(report, list(pictures.values())))


def as_page(report: StudyReport, pictures: Sequence[str]) -> str:
    """The page, which needs no other file and no network."""
    shown = [
        {
            "source": base64.b64encode(picture.encode()).decode(),
            "told": " ".join([chart.title, *chart.notes]),
        }
        for picture, chart in zip(pictures, report.charts.values())
    ]
    text = (
        template_environment("gluonlab.study")
        .get_template("study.html")
        .render(
            report=report,
            pictures=shown,
            words=read_words("page", report.language),
            version=gluonlab.__version__,
        )
    )
    return f"{text}\n"


# --- numbers


class IntervalEstimate(NamedTuple):
    """A number and its bootstrap interval of 95 % confidence, if it has one."""

    value: float
    ends: Optional[Tuple[float, float]] = None

    def scaled(self, factor: float) -> "IntervalEstimate":
        """Both in another unit."""
        ends = self.ends
        return IntervalEstimate(
            self.value * factor, None if ends is None else (ends[0] * factor, ends[1] * factor)
        )

    def range(self, form: Callable[[float], str]) -> str:
        """``low..high`` for a table; nothing without an interval."""
        return "" if self.ends is None else "..".join(map(form, self.ends))

    def interval(self, said: Mapping[str, Any], form: Callable[[float], Any]) -> str:
        """The interval in words; nothing without one."""
        if self.ends is None:
            return ""
        low, high = map(form, self.ends)
        return str(said["ends"].format(low=low, high=high))


def middle(values: Sequence[float]) -> Optional[IntervalEstimate]:
    """The median over seeds or rounds; None where that is not finite."""
    if not values or not math.isfinite(median(values)):
        return None

    def drawn(groups: List[List[float]]) -> Optional[float]:
        value = median(groups[0])
        return value if math.isfinite(value) else None

    return IntervalEstimate(median(values), bootstrap([values], drawn))


def difference(above: Sequence[float], below: Sequence[float]) -> IntervalEstimate:
    """The median of the differences above - below of pairs, such as seeds."""
    values = [one - other for one, other in zip(above, below)]
    return IntervalEstimate(median(values), bootstrap([values], lambda groups: median(groups[0])))


def as_plain(value: Any) -> Any:
    """Named tuples, and what holds them, for JSON."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: as_plain(each) for name, each in value.items()}
    return [as_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


# --- measurements of bench, each round by itself


def as_values(series: Iterable[Series]) -> Dict[str, Any]:
    """Plain values of what a round of a measurement gave."""
    return {"series": [{**asdict(one), "values": list(one.values)} for one in series]}


def together(rounds: Sequence[Mapping[str, Any]]) -> List[Series]:
    """The series of all rounds; what failed in one has no values, but that one's reason."""
    found: Dict[str, Series] = {}
    for of_round in rounds:
        for plain in of_round["series"]:
            one = Series(**{**plain, "values": tuple(plain["values"])})
            before = found.get(one.name)
            if before is not None:
                reason = before.reason or one.reason
                values = () if reason else before.values + one.values
                one = replace(one, values=values, reason=reason)
            found[one.name] = one
    return list(found.values())


# --- options as study.json has them

Fits = Callable[[Any], bool]
LARGEST = 2**31  # of any number of things


def check_options(options: Mapping[str, Any], fits: Mapping[str, Fits]) -> None:
    """Raise ValueError unless the options have these names, and each value fits."""
    if set(options) != set(fits):
        raise ValueError(f"not {', '.join(fits)}")
    for name, value in options.items():
        if not fits[name](value):
            raise ValueError(name)


def whole_number(least: int, most: int = LARGEST) -> Fits:
    """A whole number within these bounds."""
    return lambda value: type(value) is int and least <= value <= most


def positive(most: float = math.inf) -> Fits:
    """A finite number above 0, of ``most`` at most."""
    return lambda value: type(value) is float and 0 < value <= most and math.isfinite(value)


def one_of(names: Collection[str]) -> Fits:
    """One of these names."""
    return lambda value: isinstance(value, str) and value in names


def ascending(each: Fits, count: int = 1) -> Fits:
    """A list of ``count`` or more, none twice, in ascending order."""
    return lambda value: (
        isinstance(value, list) and all(map(each, value)) and sorted({*value}) == value
        and len(value) >= count
    )  # fmt: skip


def some_of(names: Collection[str], count: int = 1) -> Fits:
    """A list of ``count`` or more of these names, none twice."""
    fits = one_of(names)
    return lambda value: (
        isinstance(value, list) and all(map(fits, value)) and len({*value}) == len(value)
        and len(value) >= count
    )  # fmt: skip
