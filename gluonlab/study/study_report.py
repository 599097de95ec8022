"""Code that all studies share: checks of stored options, estimates with intervals, and the page.

A study is a module that defines a `Study`. Other files contain the rest:

- `gluonlab.study.__main__`: the command,
- `gluonlab.study.sweep`: the stored measurements,
- ``words/NAME.json``: the sentences in both languages.

A study loads MXNet and numpy only when it measures, so that --help is fast.
"""

from __future__ import annotations

import base64
import math
import textwrap
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any, Callable, Collection, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import gluonlab
from gluonlab.bench.harness.confidence_interval import bootstrap_interval
from gluonlab.bench.harness.measurement_record import Series
from gluonlab.bench.harness.table_format import WIDTH
from gluonlab.config.option_checks import whole_number_check
from gluonlab.drawing.page_template import template_environment
from gluonlab.drawing.svg_chart import Chart, as_svg
from gluonlab.drawing.translations import load_words, select_language
from gluonlab.errors import ConfigError
from gluonlab.study.sweep import MeasurementStore, StudyFolder

PAGE = "study.html"
LANGUAGES = ("en", "ja")
TRANSLATIONS_FOLDER = Path(__file__).parent / "words"


class Study(NamedTuple):
    """A question about training that many measurements answer.

    Attributes:
        name: The study's name on the command line.
        parse_options: A function ``(quick, **options)`` that converts the command's options from
            text. Raises ConfigError.
        load_options: A function that converts the options stored in a study's folder as plain
            values. Raises ValueError.
        measure: A function that takes the options and the store of measurements, and returns the
            answer.
    """

    name: str
    parse_options: Callable[..., Any]
    load_options: Callable[[Mapping[str, Any]], Any]
    measure: Callable[[Any, MeasurementStore], "Findings"]


class Findings(NamedTuple):
    """The answer that a study has found.

    Attributes:
        values: The answer as plain values.
        report: A function that returns the report in a language.
        failure: The message if the study has no answer.
        partial: If the study has no answer for some workloads, the answers for the other workloads.
    """

    values: Dict[str, Any]
    report: Callable[[str], "StudyReport"]
    failure: str = ""
    partial: Optional["Findings"] = None


class Table(NamedTuple):
    """A table of a report. The first cell of each row is the row's name.

    ``heads``: titles of the columns.
    """

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


class StudyReport(NamedTuple):
    """The text, charts and tables of a study in one language.

    ``charts``: the charts by file name, without the suffix.
    """

    title: str
    sentences: Sequence[str]
    charts: Mapping[str, Chart]
    tables: Sequence[Table]
    method: Sequence[str]
    settings: Mapping[str, str]
    language: str


def read_translations(name: str, language: str) -> Dict[str, Any]:
    """Return the texts of a study in a language. Raises ConfigError for an unknown language."""
    return dict(select_language(load_words(TRANSLATIONS_FOLDER / f"{name}.json"), language))


def wrap_for_terminal(sentences: Sequence[str]) -> str:
    """Wrap all sentences except the last, which contains a folder's path and must stay intact."""
    *wrapped, last = sentences
    return "\n".join([*(textwrap.fill(sentence, WIDTH) for sentence in wrapped), last])


def write_report(folder: StudyFolder, report: StudyReport) -> None:
    """Write the report into the study's folder: the charts as SVG files, and the page."""
    svg_files = {f"{name}.svg": as_svg(chart) for name, chart in report.charts.items()}
    for name, svg in svg_files.items():
        folder.write(name, svg)
    folder.write(PAGE, render_page(report, list(svg_files.values())))


def render_page(report: StudyReport, pictures: Sequence[str]) -> str:
    """Return the page as HTML that embeds ``pictures``, which are the charts as SVG."""
    images = [
        {"source": base64.b64encode(picture.encode()).decode(), "told": " ".join([chart.title, *chart.notes])}
        for picture, chart in zip(pictures, report.charts.values())
    ]
    template = template_environment("gluonlab.study").get_template("study.html")
    words = read_translations("page", report.language)
    return f"{template.render(report=report, pictures=images, words=words, version=gluonlab.__version__)}\n"


# --- numbers


class IntervalEstimate(NamedTuple):
    """A number, and the ends of its 95 % bootstrap confidence interval or None."""

    value: float
    ends: Optional[Tuple[float, float]] = None

    def scale(self, factor: float) -> "IntervalEstimate":
        """Return the estimate, with all numbers multiplied by ``factor``."""
        ends = self.ends
        return IntervalEstimate(self.value * factor, None if ends is None else (ends[0] * factor, ends[1] * factor))

    def format_range(self, format_value: Callable[[float], str]) -> str:
        """Return ``low..high`` for a table, or "" if there is no interval."""
        return "" if self.ends is None else "..".join(map(format_value, self.ends))

    def format_interval(self, texts: Mapping[str, Any], format_value: Callable[[float], Any]) -> str:
        """Return the interval as a phrase, or "" if there is no interval."""
        if self.ends is None:
            return ""
        low, high = map(format_value, self.ends)
        return str(texts["ends"].format(low=low, high=high))


def median_estimate(values: Sequence[float]) -> Optional[IntervalEstimate]:
    """Return the median over seeds or rounds, or None if it is not finite."""
    if not values or not math.isfinite(median(values)):
        return None

    def finite_median(groups: List[List[float]]) -> Optional[float]:
        value = median(groups[0])
        return value if math.isfinite(value) else None

    return IntervalEstimate(median(values), bootstrap_interval([values], finite_median))


def finite_median_estimate(values: Sequence[float]) -> IntervalEstimate:
    """Return the median of values that must be finite, such as times."""
    estimate = median_estimate(values)
    assert estimate is not None
    return estimate


def paired_difference(above: Sequence[float], below: Sequence[float]) -> IntervalEstimate:
    """Return the median of the paired differences ``above - below``, for example by seed."""
    values = [minuend - subtrahend for minuend, subtrahend in zip(above, below)]
    return IntervalEstimate(median(values), bootstrap_interval([values], lambda groups: median(groups[0])))


def to_plain_values(value: Any) -> Any:
    """Convert named tuples, including nested ones, to values for JSON."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: to_plain_values(item) for name, item in value.items()}
    return [to_plain_values(item) for item in value] if isinstance(value, (list, tuple)) else value


# --- series of measurements of gluonlab.bench, stored round by round


def series_to_json(series: Iterable[Series]) -> Dict[str, Any]:
    """Convert the series of one round to plain values."""
    return {"series": [{**asdict(item), "values": list(item.values)} for item in series]}


def merge_rounds(rounds: Sequence[Mapping[str, Any]]) -> List[Series]:
    """Join the series of all rounds by name.

    If a series failed in a round, only the reason is kept, and no values.
    """
    merged: Dict[str, Series] = {}
    for round_values in rounds:
        for plain in round_values["series"]:
            current = Series(**{**plain, "values": tuple(plain["values"])})
            previous = merged.get(current.name)
            if previous is not None:
                reason = previous.reason or current.reason
                values = () if reason else previous.values + current.values
                current = replace(current, values=values, reason=reason)
            merged[current.name] = current
    return list(merged.values())


# --- checks of the options in study.json

Check = Callable[[Any], bool]
MAX_COUNT = 2**31  # default limit of whole numbers


def check_options(options: Mapping[str, Any], checks: Mapping[str, Check]) -> None:
    """Raise ValueError unless ``options`` have the names of ``checks`` and all values are valid."""
    if set(options) != set(checks):
        raise ValueError(f"the options must be {', '.join(checks)}")
    for name, value in options.items():
        if not checks[name](value):
            raise ValueError(name)


def integer_check(minimum: int, maximum: int = MAX_COUNT) -> Check:
    """Return a check for a whole number from ``minimum`` to ``maximum``."""
    return lambda value: type(value) is int and minimum <= value <= maximum


def positive_check(maximum: float = math.inf) -> Check:
    """Return a check for a finite number above 0, up to ``maximum``."""
    return lambda value: type(value) is float and 0 < value <= maximum and math.isfinite(value)


def parse_integer_list(option: str, text: str, maximum: int, noun: str, example: str) -> List[int]:
    """Parse comma-separated text as at least two different numbers, and sort them.

    Raises a ConfigError that names the ``option``.
    """
    parse = whole_number_check(1, maximum)
    values = sorted({parse(option, part.strip()) for part in text.split(",")})
    if len(values) < 2:
        raise ConfigError(f"{option} {text}: pass at least two {noun}, such as {example}")
    return values


def choice_check(names: Collection[str]) -> Check:
    """Return a check for a text that is one of ``names``."""
    return lambda value: isinstance(value, str) and value in names


def ascending_list_check(item_check: Check, count: int = 1) -> Check:
    """Return a check for a list of at least ``count`` different items in ascending order."""
    return lambda value: (
        isinstance(value, list) and all(map(item_check, value)) and sorted({*value}) == value and len(value) >= count
    )


def choice_list_check(names: Collection[str], count: int = 1) -> Check:
    """Return a check for a list of at least ``count`` different names from ``names``."""
    name_check = choice_check(names)
    return lambda value: (
        isinstance(value, list) and all(map(name_check, value)) and len({*value}) == len(value) and len(value) >= count
    )
