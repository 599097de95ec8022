"""The verdict for a terminal of 80 columns: sentences, and a table of the parts."""

from __future__ import annotations

import textwrap
from typing import Iterator, List

from gluonlab.bench.harness.table import WIDTH
from gluonlab.study.speedup.verdict import Verdict
from gluonlab.study.speedup.words import (
    ENGLISH,
    WORDS,
    between,
    milliseconds,
    percent,
    sentences,
)

LABEL = 34
MORE = "Often asked about several devices, and answered: gluonlab's docs/faq.md."


def as_text(verdict: Verdict) -> str:
    """Sentences, the parts of a step by both measurements, and each device's categories."""
    told = [line for sentence in sentences(verdict) for line in textwrap.wrap(sentence, WIDTH)]
    return "\n".join([*told, "", *_parts(verdict), "", *_categories(verdict), "", MORE])


def _parts(verdict: Verdict) -> Iterator[str]:
    words = WORDS[ENGLISH]
    step = words["step"].format(images=verdict.images, time=milliseconds(verdict.step_s.value))
    yield f"{step:<{LABEL}}{words['measured']:>9}{words['interval']:>18}{words['by_trace']:>14}"
    for name in verdict.shares:
        share = verdict.shares[name]
        cells = f"{percent(share.value):>9}{between(share, percent, words):>18}"
        yield f"{words['parts'][name]:<{LABEL}}{cells}{percent(verdict.trace.shares[name]):>14}"
    total = f"{percent(verdict.total.value):>9}{between(verdict.total, percent, words):>18}"
    traced = percent(sum(verdict.trace.shares.values()))
    yield f"{words['together']:<{LABEL}}{total}{traced:>14}"


def _categories(verdict: Verdict) -> Iterator[str]:
    first, *names = WORDS[ENGLISH]["categories"]
    widths: List[int] = [len(name) + 2 for name in names]
    yield f"{first:<9}" + "".join(f"{name:>{width}}" for name, width in zip(names, widths))
    for row, shares in verdict.trace.categories.items():
        cells = (f"{percent(share):>{width}}" for share, width in zip(shares, widths))
        yield f"{row:<9}" + "".join(cells)
