"""The verdict as a page of its own, with the timeline's picture."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

import gluonlab
from gluonlab.drawing.templates import environment
from gluonlab.drawing.words import in_language
from gluonlab.files.whole import new_file
from gluonlab.study.speedup.verdict import Verdict
from gluonlab.study.speedup.words import (
    WORDS,
    between,
    milliseconds,
    percent,
    sentences,
    times,
)
from gluonlab.timeline.picture import as_svg


def write_page(verdict: Verdict, path: Path, language: str) -> None:
    """Write `as_page` into a new file. Raises OutputError."""
    page = as_page(verdict, language)
    with new_file("--out", path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def as_page(verdict: Verdict, language: str) -> str:
    """HTML that needs no other file and no network."""
    words = in_language(WORDS, language)
    templates = environment("gluonlab.study.speedup", trim_blocks=True)
    count = len(verdict.devices)
    devices = words["device"][count != 1].format(count=count)
    return templates.get_template("verdict.html").render(
        language=language,
        words=words,
        title=words["title"].format(devices=devices),
        sentences=sentences(verdict, language),
        step=words["step"].format(images=verdict.images, time=milliseconds(verdict.step_s.value)),
        parts=[
            (
                name,
                words["parts"][name],
                percent(verdict.shares[name].value),
                between(verdict.shares[name], percent, words),
                percent(verdict.trace.shares[name]),
            )
            for name in verdict.shares
        ],
        together=(
            percent(verdict.total.value),
            between(verdict.total, percent, words),
            percent(sum(verdict.trace.shares.values())),
        ),
        categories=[
            [row, *map(percent, shares)] for row, shares in verdict.trace.categories.items()
        ],
        tried=[
            (
                each.candidate.words,
                "-" if each.gain is None else times(each.gain.value),
                "-" if each.gain is None else between(each.gain, times, words),
                words["yes" if each.given else "no"],
            )
            for each in verdict.tried
        ],
        # our own XML, in which every text has been escaped
        picture=Markup(as_svg(verdict.timeline, words["timeline"], language)),
        version=gluonlab.__version__,
    )
