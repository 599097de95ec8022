"""A study on one page: sentences, figures and tables, complete in itself, in both languages."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence

import gluonlab
from gluonlab.drawing.chart import Chart, as_svg
from gluonlab.drawing.templates import environment
from gluonlab.drawing.words import in_language
from gluonlab.study.sweep.folder import StudyFolder

PAGE = "study.html"
LANGUAGES = ("en", "ja")


class Table(NamedTuple):
    """``heads`` of columns, and rows of cells; the first column is a name."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


class Report(NamedTuple):
    """What a study says. ``charts``: by the name of their file, without its ending."""

    title: str
    sentences: Sequence[str]
    charts: Mapping[str, Chart]
    tables: Sequence[Table]
    method: Sequence[str]
    settings: Mapping[str, str]
    language: str


def words(of: str, language: str) -> Dict[str, Any]:
    """The words of the package of this name, from its words.json.

    Raises ConfigError, with the choices, for another language.
    """
    own = Path(of).parent / "words.json"
    return dict(in_language(json.loads(own.read_text(encoding="utf-8")), language))


def write(folder: StudyFolder, report: Report) -> List[str]:
    """Write figures and page; their names."""
    pictures = {f"{name}.svg": as_svg(chart) for name, chart in report.charts.items()}
    for name, picture in pictures.items():
        folder.write(name, picture)
    folder.write(PAGE, as_page(report, list(pictures.values())))
    return [*pictures, PAGE]


def as_page(report: Report, pictures: Sequence[str]) -> str:
    """The page, which needs no other file and no network."""
    templates = environment("gluonlab.study")
    shown = [
        {
            "source": base64.b64encode(picture.encode()).decode(),
            "told": " ".join([chart.title, *chart.notes]),
        }
        for picture, chart in zip(pictures, report.charts.values())
    ]
    text = templates.get_template("study.html").render(
        report=report,
        pictures=shown,
        words=words(__file__, report.language),
        version=gluonlab.__version__,
    )
    return f"{text}\n"
