"""Report of a speedup diagnosis (`gluonlab.study.speedup.diagnosis`): text, and an HTML page."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

from markupsafe import Markup

import gluonlab
from gluonlab.bench.harness.confidence_interval import Estimate
from gluonlab.bench.harness.machine_info import BUSY_CORES
from gluonlab.bench.harness.table_format import WIDTH
from gluonlab.drawing.page_template import template_environment
from gluonlab.drawing.translations import load_words, select_language
from gluonlab.errors import ConfigError
from gluonlab.files.atomic_files import check_new_path, new_file
from gluonlab.study.speedup.diagnosis import (
    AGREEMENT_TOLERANCE,
    CORES,
    MIN_ACCOUNTED_SHARE,
    MIN_CAUSE_SHARE,
    Cause,
    Diagnosis,
    TriedAdvice,
)
from gluonlab.study.study_report import TRANSLATIONS_FOLDER
from gluonlab.timeline.timeline_svg import as_svg

TRANSLATIONS: Dict[str, Dict[str, Any]] = load_words(TRANSLATIONS_FOLDER / "speedup.json")
ENGLISH = "en"
LABEL_WIDTH = 34  # of the column with the names of a step's parts, in characters
FAQ_LINE = "For common questions about several devices, see docs/faq.md."
HIGH_EFFICIENCY = 0.8  # share of the ideal speedup from which a training counts as efficient


def check_page_options(out_file: Optional[str], language: Optional[str]) -> None:
    """Check --out-file and --language. Raises ConfigError, or OutputError if the file exists."""
    if language is not None:
        select_language(TRANSLATIONS, language)
    if out_file is None:
        return
    if Path(out_file).suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--out-file {out_file}: must end in .html")
    check_new_path("--out-file", Path(out_file))


def diagnosis_sentences(diagnosis: Diagnosis, language: str = ENGLISH) -> List[str]:
    """Return the sentences of a diagnosis, the most important first."""
    return list(_iterate_sentences(diagnosis, select_language(TRANSLATIONS, language)))


def _iterate_sentences(diagnosis: Diagnosis, texts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sentences of a diagnosis, the most important first."""
    count = len(diagnosis.devices)
    devices = texts["device"][count != 1].format(count=count)
    yield texts["headline"].format(
        devices=devices,
        speed=format_factor(diagnosis.speed_up.value),
        interval=format_interval(diagnosis.speed_up, format_factor, texts),
        why=_main_cause_phrase(diagnosis, texts),
    )
    for index in range(1, len(diagnosis.causes)):
        yield _cause_sentence(index, "further", diagnosis, texts)
    yield texts["efficiency"].format(
        efficiency=format_percent(diagnosis.efficiency.value),
        interval=format_interval(diagnosis.efficiency, format_percent, texts),
    )
    if _has_too_few_cores(diagnosis):
        yield texts["few_cores"].format(threads=diagnosis.threads, cores=diagnosis.cores)
    elif diagnosis.other_busy_cores > BUSY_CORES and diagnosis.on_cpu:
        yield texts["busy"].format(busy=f"{diagnosis.other_busy_cores:.1f}", cores=diagnosis.cores)
    if diagnosis.host_waits:
        yield texts["waits"]
    yield " ".join(_break_even_sentences(diagnosis, devices, texts))
    for advice in diagnosis.tried_advice:
        if advice.speed_up is not None and advice.expected is not None:
            yield texts["larger"].format(
                images=advice.candidate.images_per_copy,
                per=_batch_unit(diagnosis, texts),
                devices=devices,
                speed=format_factor(advice.speed_up.value),
                expected=format_factor(advice.expected),
                interval=format_interval(advice.speed_up, format_factor, texts),
            )
    yield from _advice_sentences(diagnosis, texts)
    yield from _trust_sentences(diagnosis, texts)


def _main_cause_phrase(diagnosis: Diagnosis, texts: Mapping[str, Any]) -> str:
    """Return a phrase that names the largest cause, or rates the efficiency if there is none."""
    if not diagnosis.causes:
        text_name = "efficient" if diagnosis.efficiency.value >= HIGH_EFFICIENCY else "unsure"
        return str(texts[text_name].format(least=format_percent(MIN_CAUSE_SHARE)))
    return _cause_sentence(0, "joined", diagnosis, texts)


def _cause_sentence(index: int, text_name: str, diagnosis: Diagnosis, texts: Mapping[str, Any]) -> str:
    """Return a sentence about cause number ``index`` and its fraction of a step.

    ``text_name``: key of the sentence's template in ``texts``.
    """
    share = diagnosis.cause_shares[index]
    return str(
        texts[text_name].format(
            share=format_percent(share.value),
            interval=format_interval(share, format_percent, texts),
            cause=_cause_phrase(diagnosis.causes[index], diagnosis, texts),
        )
    )


def _cause_phrase(cause: Cause, diagnosis: Diagnosis, texts: Mapping[str, Any]) -> str:
    device = diagnosis.devices[cause.device] if cause.device is not None else "?"
    return str(texts["causes"][cause.name].format(device=device, per=_batch_unit(diagnosis, texts)))


def _batch_unit(diagnosis: Diagnosis, texts: Mapping[str, Any]) -> str:
    """Return the unit for which --batch-size counts images: a device, or a copy of the network."""
    return str(texts["per"][diagnosis.copies < len(diagnosis.devices)])


def _has_too_few_cores(diagnosis: Diagnosis) -> bool:
    """Return True if too few cores are a cause, and the devices have more threads than cores."""
    is_cause = any(cause.name == CORES for cause in diagnosis.causes)
    return diagnosis.on_cpu and diagnosis.threads > diagnosis.cores and is_cause


def _break_even_sentences(diagnosis: Diagnosis, devices: str, texts: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences about the batch sizes and networks for which several devices help."""
    largest = diagnosis.largest_gradient_bytes
    devices_per_copy = len(diagnosis.devices) / diagnosis.copies
    images_per_copy = Estimate(*(max(1.0, value * devices_per_copy) for value in diagnosis.break_even))
    if math.isinf(images_per_copy.value):
        yield texts["pays_never"].format(devices=devices)
    elif images_per_copy.value <= 1:
        yield texts["pays_always"].format(devices=devices)
    else:
        yield texts["pays"].format(
            devices=devices, images=f"{images_per_copy.value:,.0f}", per=_batch_unit(diagnosis, texts)
        )
    if images_per_copy.lowest <= 1 and math.isinf(images_per_copy.highest):
        yield texts["pays_unknown"]
    elif images_per_copy.lowest < images_per_copy.highest:
        low, high = (f"{value:,.0f}" for value in (images_per_copy.lowest, images_per_copy.highest))
        text_name = "at_least" if math.isinf(images_per_copy.highest) else "to"
        yield texts["pays_between"].format(interval=texts[text_name].format(low=low, high=high))
    gradient_size = format_bytes(diagnosis.gradient_bytes)
    if largest is None:
        yield texts["network_any"].format(now=gradient_size)
    elif largest > 0:
        yield texts["network"].format(size=format_bytes(largest), now=gradient_size)


def _advice_sentences(diagnosis: Diagnosis, texts: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences about which settings helped, if any, and which were not tried."""
    measured_advice = [advice for advice in diagnosis.tried_advice if advice.gain is not None]
    if diagnosis.advice:
        options = texts["or"].join(_option_phrase(advice, texts) for advice in diagnosis.advice)
        yield texts["try"].format(options=options)
        if any(advice.candidate.images_per_copy for advice in diagnosis.advice):
            yield texts["rates"]
    elif measured_advice:
        yield texts["no_help"].format(options=", ".join(_option_phrase(advice, texts) for advice in measured_advice))
    else:
        yield texts["nothing_tried"]
    for advice in diagnosis.tried_advice:
        if advice.reason is not None:
            yield texts["not_tried"].format(option=advice.candidate.option_text, reason=advice.reason)


def _option_phrase(advice: TriedAdvice, texts: Mapping[str, Any]) -> str:
    """Return a phrase with a tried setting and its measured gain."""
    assert advice.gain is not None
    return str(
        texts["option"].format(
            option=advice.candidate.option_text, gain=format_factor(advice.gain.value),
            interval=format_interval(advice.gain, format_factor, texts),
        )
    )  # fmt: skip


def _trust_sentences(diagnosis: Diagnosis, texts: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences about whether the parts add up to the step and whether the trace agrees."""
    if abs(diagnosis.parts_total.value - 1) > AGREEMENT_TOLERANCE:
        yield texts["apart"].format(
            total=format_percent(diagnosis.parts_total.value), limit=format_percent(AGREEMENT_TOLERANCE)
        )
    if diagnosis.trace.unseen:
        yield texts["unseen"].format(devices=", ".join(diagnosis.trace.unseen))
    elif diagnosis.disagreements:
        yield texts["disagree"].format(
            parts=", ".join(
                texts["disagreeing"].format(
                    part=texts["parts"][name], first=format_percent(first), second=format_percent(second)
                )
                for name, (first, second) in diagnosis.disagreements.items()
            )
        )
    else:
        yield texts["agree"].format(limit=format_percent(AGREEMENT_TOLERANCE))
    text_name = "accounted" if diagnosis.accounted_share >= MIN_ACCOUNTED_SHARE else "unaccounted"
    yield texts[text_name].format(
        share=format_percent(diagnosis.accounted_share), limit=format_percent(MIN_ACCOUNTED_SHARE)
    )


def format_interval(estimate: Estimate, format_value: Any, texts: Mapping[str, Any]) -> str:
    """Format an interval as ``1.01x to 1.05x``."""
    return str(texts["to"].format(low=format_value(estimate.lowest), high=format_value(estimate.highest)))


def format_factor(value: float) -> str:
    """Format a factor as ``1.03x``."""
    return f"{value:.2f}x"


def format_percent(share: float) -> str:
    """Format a fraction as ``61 %``."""
    return f"{100 * share:.0f} %"


def format_bytes(size: float) -> str:
    """Format a size in bytes as ``46.2 MB``."""
    for unit, unit_bytes in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= unit_bytes:
            return f"{size / unit_bytes:.3g} {unit}"
    return f"{size:.0f} B"


def format_milliseconds(seconds: float) -> str:
    """Format seconds as ``12.3 ms``."""
    return f"{seconds * 1e3:.3g} ms"


# --- on a terminal


def as_text(diagnosis: Diagnosis) -> str:
    """Return the report for a terminal.

    The report contains the sentences, a table of a step's parts according to both measurements, and
    a table of each device's time by category.
    """
    lines = [line for sentence in diagnosis_sentences(diagnosis) for line in textwrap.wrap(sentence, WIDTH)]
    return "\n".join([*lines, "", *_part_lines(diagnosis), "", *_category_lines(diagnosis), "", FAQ_LINE])


def _part_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the table of the parts of a step: measured fractions, and fractions in the trace."""
    texts = TRANSLATIONS[ENGLISH]
    step = texts["step"].format(images=diagnosis.images, time=format_milliseconds(diagnosis.step_s.value))
    columns = f"{texts['measured']:>9}{texts['interval']:>18}{texts['by_trace']:>14}"
    yield f"{step:<{LABEL_WIDTH}}{columns}"
    rows = [row[1:] for row in _part_rows(diagnosis, texts)]
    for label, measured, interval, traced in [*rows, (texts["together"], *_total_cells(diagnosis, texts))]:
        yield f"{label:<{LABEL_WIDTH}}{measured:>9}{interval:>18}{traced:>14}"


def _part_rows(diagnosis: Diagnosis, texts: Mapping[str, Any]) -> Iterator[Tuple[str, str, str, str, str]]:
    """Yield (key, label, measured fraction, its interval, fraction in the trace) for each part."""
    for name, share in diagnosis.shares.items():
        interval = format_interval(share, format_percent, texts)
        traced = format_percent(diagnosis.trace.shares[name])
        yield name, texts["parts"][name], format_percent(share.value), interval, traced


def _total_cells(diagnosis: Diagnosis, texts: Mapping[str, Any]) -> Tuple[str, str, str]:
    """Return the sum of all parts: measured fraction, its interval, and fraction in the trace."""
    total, traced = diagnosis.parts_total, sum(diagnosis.trace.shares.values())
    return format_percent(total.value), format_interval(total, format_percent, texts), format_percent(traced)


def _category_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield a table of each device's time by category, according to the trace."""
    first, *names = TRANSLATIONS[ENGLISH]["categories"]
    widths: List[int] = [len(name) + 2 for name in names]
    yield f"{first:<9}" + "".join(f"{name:>{width}}" for name, width in zip(names, widths))
    for row, shares in diagnosis.trace.categories.items():
        cells = (f"{format_percent(share):>{width}}" for share, width in zip(shares, widths))
        yield f"{row:<9}" + "".join(cells)


# --- the page


def write_page(diagnosis: Diagnosis, path: Path, language: str) -> None:
    """Write the page of `render_page` to a new file. Raises OutputError."""
    page = render_page(diagnosis, language)
    with new_file("--out-file", path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def render_page(diagnosis: Diagnosis, language: str) -> str:
    """Return the diagnosis as self-contained HTML."""
    texts = select_language(TRANSLATIONS, language)
    templates = template_environment("gluonlab.study", trim_blocks=True)
    count = len(diagnosis.devices)
    devices = texts["device"][count != 1].format(count=count)
    return templates.get_template("verdict.html").render(
        language=language,
        words=texts,
        title=texts["title"].format(devices=devices),
        sentences=diagnosis_sentences(diagnosis, language),
        step=texts["step"].format(images=diagnosis.images, time=format_milliseconds(diagnosis.step_s.value)),
        parts=list(_part_rows(diagnosis, texts)),
        together=_total_cells(diagnosis, texts),
        categories=[[row, *map(format_percent, shares)] for row, shares in diagnosis.trace.categories.items()],
        tried=[
            (
                advice.candidate.option_text,
                "-" if advice.gain is None else format_factor(advice.gain.value),
                "-" if advice.gain is None else format_interval(advice.gain, format_factor, texts),
                texts["yes" if advice.is_advised else "no"],
            )
            for advice in diagnosis.tried_advice
        ],
        # SVG from this package, in which every text has been escaped
        picture=Markup(as_svg(diagnosis.timeline, texts["timeline"], language)),
        version=gluonlab.__version__,
    )
