"""The verdict in sentences, on a terminal and as a page, in each language.

The same numbers have the same sentences.
"""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional

from markupsafe import Markup

import gluonlab
from gluonlab.bench.harness.confidence_interval import Estimate
from gluonlab.bench.harness.machine_info import BUSY_CORES
from gluonlab.bench.harness.table_format import WIDTH
from gluonlab.drawing.page_template import template_environment
from gluonlab.drawing.translations import load_words, select_language
from gluonlab.errors import ConfigError
from gluonlab.files.atomic_files import check_new, new_file
from gluonlab.study.speedup.diagnosis import (
    ACCOUNTED,
    AGREE,
    CORES,
    LEAST,
    Cause,
    Diagnosis,
    TriedAdvice,
)
from gluonlab.study.study import WORDS as FOLDER
from gluonlab.timeline.timeline_svg import as_svg

WORDS: Dict[str, Dict[str, Any]] = load_words(FOLDER / "speedup.json")
ENGLISH = "en"
LABEL = 34  # columns of a part
MORE = "Often asked about several devices, and answered: gluonlab's docs/faq.md."
EFFICIENT = 0.8  # of as many times one device: what nobody asks about


def check_page(out: Optional[str], language: Optional[str]) -> None:
    """Raise ConfigError or OutputError for a page that cannot be written."""
    if language is not None:
        select_language(WORDS, language)
    if out is None:
        return
    if Path(out).suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--out {out} is to be a page: give a name that ends in .html")
    check_new("--out", Path(out))


def sentences(verdict: Diagnosis, language: str = ENGLISH) -> List[str]:
    """What the verdict says, most important first."""
    return list(_sentences(verdict, select_language(WORDS, language)))


def _sentences(verdict: Diagnosis, words: Mapping[str, Any]) -> Iterator[str]:
    count = len(verdict.devices)
    devices = words["device"][count != 1].format(count=count)
    yield words["headline"].format(
        devices=devices, speed=times(verdict.speed_up.value),
        interval=between(verdict.speed_up, times, words), why=_why(verdict, words),
    )  # fmt: skip
    for place in range(1, len(verdict.causes)):
        yield _share(place, "further", verdict, words)
    yield words["efficiency"].format(
        efficiency=percent(verdict.efficiency.value),
        interval=between(verdict.efficiency, percent, words),
    )
    if _short_of_cores(verdict):
        yield words["few_cores"].format(threads=verdict.threads, cores=verdict.cores)
    elif verdict.others > BUSY_CORES and verdict.on_cpu:
        yield words["busy"].format(busy=f"{verdict.others:.1f}", cores=verdict.cores)
    if verdict.waits:
        yield words["waits"]
    yield " ".join(_pays(verdict, devices, words))
    for each in verdict.tried:
        if each.speed_up is not None and each.expected is not None:
            yield words["larger"].format(
                images=each.candidate.each, per=_per(verdict, words), devices=devices,
                speed=times(each.speed_up.value), expected=times(each.expected),
                interval=between(each.speed_up, times, words),
            )  # fmt: skip
    yield from _advice(verdict, words)
    yield from _trusted(verdict, words)


def _why(verdict: Diagnosis, words: Mapping[str, Any]) -> str:
    if not verdict.causes:
        how = "efficient" if verdict.efficiency.value >= EFFICIENT else "unsure"
        return str(words[how].format(least=percent(LEAST)))
    return _share(0, "joined", verdict, words)


def _share(place: int, how: str, verdict: Diagnosis, words: Mapping[str, Any]) -> str:
    """What a cause takes of a step."""
    share = verdict.cause_shares[place]
    return str(
        words[how].format(
            share=percent(share.value),
            interval=between(share, percent, words),
            cause=_named(verdict.causes[place], verdict, words),
        )
    )


def _named(cause: Cause, verdict: Diagnosis, words: Mapping[str, Any]) -> str:
    device = verdict.devices[cause.device] if cause.device is not None else "?"
    return str(words["causes"][cause.name].format(device=device, per=_per(verdict, words)))


def _per(verdict: Diagnosis, words: Mapping[str, Any]) -> str:
    """Of what --batch-size counts the images: of a device, or of several with one copy."""
    return str(words["per"][verdict.copies < len(verdict.devices)])


def _short_of_cores(verdict: Diagnosis) -> bool:
    """Whether the devices' threads are more than the cores, and that is felt."""
    named = any(cause.name == CORES for cause in verdict.causes)
    return verdict.on_cpu and verdict.threads > verdict.cores and named


def _pays(verdict: Diagnosis, devices: str, words: Mapping[str, Any]) -> Iterator[str]:
    """From which batch and for which network the devices are faster than one."""
    largest = verdict.largest_gradient_bytes
    of_copy = len(verdict.devices) / verdict.copies
    found = Estimate(*(max(1.0, each * of_copy) for each in verdict.pays))
    if math.isinf(found.value):
        yield words["pays_never"].format(devices=devices)
    elif found.value <= 1:
        yield words["pays_always"].format(devices=devices)
    else:
        yield words["pays"].format(
            devices=devices, images=f"{found.value:,.0f}", per=_per(verdict, words)
        )
    if found.lowest < found.highest:
        low, high = (f"{each:,.0f}" for each in (found.lowest, found.highest))
        how = "at_least" if math.isinf(found.highest) else "to"
        yield words["pays_between"].format(interval=words[how].format(low=low, high=high))
    now = size(verdict.gradient_bytes)
    if largest is None:
        yield words["network_any"].format(now=now)
    elif largest > 0:
        yield words["network"].format(size=size(largest), now=now)


def _advice(verdict: Diagnosis, words: Mapping[str, Any]) -> Iterator[str]:
    measured = [each for each in verdict.tried if each.gain is not None]
    if verdict.advice:
        options = words["or"].join(_option(each, words) for each in verdict.advice)
        yield words["try"].format(options=options)
        if any(each.candidate.each for each in verdict.advice):
            yield words["rates"]
    elif measured:
        yield words["no_help"].format(options=", ".join(_option(each, words) for each in measured))
    else:
        yield words["nothing_tried"]
    for each in verdict.tried:
        if each.reason is not None:
            yield words["not_tried"].format(option=each.candidate.words, reason=each.reason)


def _option(tried: TriedAdvice, words: Mapping[str, Any]) -> str:
    assert tried.gain is not None
    return str(
        words["option"].format(
            option=tried.candidate.words, gain=times(tried.gain.value),
            interval=between(tried.gain, times, words),
        )
    )  # fmt: skip


def _trusted(verdict: Diagnosis, words: Mapping[str, Any]) -> Iterator[str]:
    """Whether the parts make up the step, and the two measurements agree."""
    if abs(verdict.total.value - 1) > AGREE:
        yield words["apart"].format(total=percent(verdict.total.value), limit=percent(AGREE))
    if verdict.trace.unseen:
        yield words["unseen"].format(devices=", ".join(verdict.trace.unseen))
    elif verdict.disagrees:
        yield words["disagree"].format(
            parts=", ".join(
                words["disagreeing"].format(
                    part=words["parts"][name], first=percent(first), second=percent(second),
                )
                for name, (first, second) in verdict.disagrees.items()
            )
        )  # fmt: skip
    else:
        yield words["agree"].format(limit=percent(AGREE))
    how = "accounted" if verdict.accounted >= ACCOUNTED else "unaccounted"
    yield words[how].format(share=percent(verdict.accounted), limit=percent(ACCOUNTED))


def between(estimate: Estimate, shown: Any, words: Mapping[str, Any]) -> str:
    """``1.01x to 1.05x``."""
    return str(words["to"].format(low=shown(estimate.lowest), high=shown(estimate.highest)))


def times(value: float) -> str:
    """``1.03x``."""
    return f"{value:.2f}x"


def percent(share: float) -> str:
    """``61 %``."""
    return f"{100 * share:.0f} %"


def size(count: float) -> str:
    """``46.2 MB``."""
    for unit, of in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= of:
            return f"{count / of:.3g} {unit}"
    return f"{count:.0f} B"


def milliseconds(seconds: float) -> str:
    """``12.3 ms``."""
    return f"{seconds * 1e3:.3g} ms"


# --- on a terminal


def as_text(verdict: Diagnosis) -> str:
    """Sentences, the parts of a step by both measurements, and each device's categories."""
    told = [line for sentence in sentences(verdict) for line in textwrap.wrap(sentence, WIDTH)]
    return "\n".join([*told, "", *_parts(verdict), "", *_categories(verdict), "", MORE])


def _parts(verdict: Diagnosis) -> Iterator[str]:
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


def _categories(verdict: Diagnosis) -> Iterator[str]:
    first, *names = WORDS[ENGLISH]["categories"]
    widths: List[int] = [len(name) + 2 for name in names]
    yield f"{first:<9}" + "".join(f"{name:>{width}}" for name, width in zip(names, widths))
    for row, shares in verdict.trace.categories.items():
        cells = (f"{percent(share):>{width}}" for share, width in zip(shares, widths))
        yield f"{row:<9}" + "".join(cells)


# --- the page


def write_page(verdict: Diagnosis, path: Path, language: str) -> None:
    """Write `as_page` into a new file. Raises OutputError."""
    page = as_page(verdict, language)
    with new_file("--out", path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def as_page(verdict: Diagnosis, language: str) -> str:
    """HTML that needs no other file and no network."""
    words = select_language(WORDS, language)
    templates = template_environment("gluonlab.study", trim_blocks=True)
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
