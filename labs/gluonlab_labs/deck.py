"""Read lecture decks: slides with a lab's figures, cells and exercises, in both languages."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

import yaml

from gluonlab.errors import GluonlabError, unknown
from gluonlab_labs.exercises import find_stubs
from gluonlab_labs.faults import Faults
from gluonlab_labs.outline import EXERCISE, FIGURE, FIGURE_PATH, HEADING, Series, prose_lines
from gluonlab_labs.parity import check_parity
from gluonlab_labs.players import player_page
from gluonlab_labs.source import LANGUAGES, Block, Code, Lab, Text, read_text_pairs
from gluonlab_labs.text import MarkdownWriter

CONTENT_OPTIONS = ("figure", "player", "exercise", "code", "output")
OPTIONS = (*CONTENT_OPTIONS, "ask", "notes")
MAX_POINTS = 5
MAX_CODE_LINES = 20  # of code
MAX_CODE_COLUMNS = 92
_POINT = re.compile(r"\s*(?:[-*]|\d+\.)\s")


@dataclass
class Slide:
    """A slide: its text in both languages, and the part of the lab that it shows."""

    line: int
    titles: Dict[str, str]
    points: Dict[str, Block]  # what stands below the title
    cues: Dict[str, Block]  # what only the speaker sees, before the lab's own text
    options: Dict[str, Any] = field(default_factory=dict)


def read_deck(path: Path, lab: Lab, faults: Faults) -> List[Slide]:
    """Read the slides of a file: after each ``+++ {figure: name}`` a pair of blocks."""
    slides: List[Slide] = []
    for line, options, lines in _split_slides(path.read_text(encoding="utf-8"), faults):
        texts = list(read_text_pairs(lines, faults))
        if len(texts) != 1:
            faults.add(line, f"a slide with {len(texts)} pairs of blocks: write one after each +++")
            continue
        check_parity(texts[0], faults)
        slide = _make_slide(line, options, texts[0], lab, faults)
        if slide:
            slides.append(slide)
    return slides


def check_deck(slides: List[Slide], lab: Lab, series: Series, faults: Faults) -> None:
    """Add to ``faults`` the references of slides that the lab does not have."""
    for slide in slides:
        _check_options(slide, lab, series, faults)
        counts = {one: sum(map(_is_point, slide.points[one])) for one in LANGUAGES}
        if len(set(counts.values())) > 1:
            faults.add(
                slide.line,
                f"{counts['en']} lines in English, {counts['ja']} in Japanese: write the same in both languages",
            )
        if max(counts.values()) > MAX_POINTS:
            faults.add(slide.line, f"has {max(counts.values())} lines: write at most {MAX_POINTS}")
        for language in LANGUAGES:
            writer = MarkdownWriter(lab, language, series, faults)
            for block in (slide.points[language], slide.cues[language]):
                writer.write_block(Text({language: block}, slide.line))
    shown = [slide.options.get("figure") for slide in slides]
    for slide in slides:
        name = slide.options.get("figure")
        if name and shown.count(name) > 1:
            faults.add(slide.line, f"figure {name} is on {shown.count(name)} slides: choose one")


def automatic_deck(lab: Lab, series: Series) -> List[Slide]:
    """Return slides for a lab without a deck: one per section, figure and exercise."""
    slides: List[Slide] = []
    titles = {language: list(_automatic_titles(lab, language)) for language in LANGUAGES}
    for (line, options, english), (_, _, japanese) in zip(titles["en"], titles["ja"]):
        slide_titles = dict(zip(LANGUAGES, (english, japanese)))
        no_text: Dict[str, Block] = {language: [] for language in LANGUAGES}
        slides.append(Slide(line, slide_titles, no_text, no_text, options))
    return slides


def find_cell(lab: Lab, text: str) -> Code:
    """Return the only code cell of the lab with this text. Raises LookupError."""
    cells = [cell for cell in lab.code_cells() if text in cell.source]
    if len(cells) != 1:
        number = "no cell" if not cells else f"{len(cells)} cells"
        raise LookupError(f"{number} of lab {lab.number} with {text!r}: quote text that exactly one cell contains")
    return cells[0]


def code_excerpt(lab: Lab, code: Any) -> str:
    """Return the code of a cell, or its lines from one text to another. Raises LookupError.

    ``code``: a text of the cell, or ``{cell: text, from: text, to: text}`` with any of these keys.
    """
    lines = find_pointed_cell(lab, code).source.splitlines()
    return textwrap.dedent("\n".join(select_lines(lines, code)))


def find_pointed_cell(lab: Lab, reference: Any) -> Code:
    """Return the cell that ``code:`` or ``output:`` refers to. Raises LookupError."""
    if not isinstance(reference, dict):
        return find_cell(lab, str(reference))
    known_keys = {"cell", "from", "to", "only"}
    if not {"cell", "from"} & set(reference) or set(reference) - known_keys:
        raise LookupError(f"{reference} is not a valid part of a cell: write {{cell: text, from: text, to: text}}")
    if reference.get("only", "drawn") not in ("drawn", "printed"):
        raise LookupError(f"only: {reference['only']}: write printed or drawn")
    return find_cell(lab, str(reference.get("cell", reference.get("from"))))


def select_lines(lines: List[str], reference: Any) -> List[str]:
    """Return the lines from the text ``from`` to the next text ``to``. Raises LookupError."""
    begin, end = 0, len(lines)
    if isinstance(reference, dict) and "from" in reference:
        begin = _find_line(str(reference["from"]), lines, 0)
    if isinstance(reference, dict) and "to" in reference:
        end = _find_line(str(reference["to"]), lines, begin) + 1
    return lines[begin:end]


def _find_line(text: str, lines: List[str], begin: int) -> int:
    matching = (number for number in range(begin, len(lines)) if text in lines[number])
    number = next(matching, None)
    if number is None:
        raise LookupError(f"no line with {text!r} there, or only before the first line: quote a later line")
    return number


def _split_slides(text: str, faults: Faults) -> Iterator[Tuple[int, Dict[str, Any], Block]]:
    """Yield (line, options, lines) of each slide."""
    current: Optional[Tuple[int, Dict[str, Any], Block]] = None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("+++"):
            if current:
                yield current
            current = number, _read_options(line, number, faults), []
        elif current:
            current[2].append((number, line))
        elif line.strip():
            faults.add(number, f"{line[:40]!r} comes before the first +++: start the deck with +++")
    if current:
        yield current


def _read_options(line: str, number: int, faults: Faults) -> Dict[str, Any]:
    """Parse the options after ``+++``."""
    try:
        options = yaml.safe_load(line[3:]) or {}
    except yaml.YAMLError as error:
        options = " ".join(str(error).split())
    if not isinstance(options, dict):
        faults.add(number, f"{line!r} is not valid ({options}): write +++ {{figure: name}}")
        return {}
    return {str(name): value for name, value in options.items()}


def _make_slide(line: int, options: Dict[str, Any], text: Text, lab: Lab, faults: Faults) -> Optional[Slide]:
    titles: Dict[str, str] = {}
    points: Dict[str, Block] = {}
    cues: Dict[str, Block] = {}
    for language, block in text.blocks.items():
        points[language], cues[language] = [], []
        for number, written in block:
            heading = HEADING.fullmatch(written)
            if heading and heading["marks"] == "##" and language not in titles:
                titles[language] = heading["title"]
            elif heading:
                faults.add(number, f"{written!r}: write one heading per slide, ## Title")
            elif written.startswith(">"):
                cues[language].append((number, written[1:].strip()))
            else:
                points[language].append((number, written))
        if language not in titles and "exercise" in options:
            titles[language] = _exercise_title(lab, str(options["exercise"]), language)
        if language not in titles:
            faults.add(line, f"a slide without a title in :::{{{language}}}: write ## Title")
            return None
    return Slide(line, titles, points, cues, options)


def _exercise_title(lab: Lab, id: str, language: str) -> str:
    """Return the lab's heading of an exercise; empty if it has none, which `check_deck` reports."""
    for text in lab.text_pairs():
        for _, line in prose_lines(text.blocks[language]):
            heading = HEADING.fullmatch(line)
            exercise = EXERCISE.fullmatch(heading["title"]) if heading else None
            if heading and exercise and exercise["id"] == id:
                return heading["title"]
    return ""


def _check_options(slide: Slide, lab: Lab, series: Series, faults: Faults) -> None:
    options, outline = slide.options, series.outlines[lab.number]
    for name in options:
        if name not in OPTIONS:
            faults.add(slide.line, unknown("option of a slide", name, OPTIONS))
    shown = [name for name in CONTENT_OPTIONS if name in options]
    if len(shown) > 1 and shown != ["code", "output"]:
        faults.add(slide.line, f"shows {' and '.join(shown)}: choose one of them")
    if "figure" in options and options["figure"] not in outline.figures:
        faults.add(slide.line, unknown("figure", str(options["figure"]), outline.figures))
    if "exercise" in options and options["exercise"] not in find_stubs(lab):
        faults.add(slide.line, unknown("exercise", str(options["exercise"]), find_stubs(lab)))
    sections = {**outline.sections, "goals": 1, "summary": 1}
    if "notes" in options and options["notes"] not in sections:
        faults.add(slide.line, unknown("section", str(options["notes"]), sections))
    try:
        if "player" in options:
            player_page(options["player"], "en")
        if "output" in options:
            find_pointed_cell(lab, options["output"])
        if "code" in options:
            _check_code(code_excerpt(lab, options["code"]), slide.line, faults)
    except (LookupError, GluonlabError) as error:
        faults.add(slide.line, str(error.args[0]))


def _check_code(code: str, line: int, faults: Faults) -> None:
    rows, columns = len(code.splitlines()), max(map(len, code.splitlines()))
    if rows > MAX_CODE_LINES or columns > MAX_CODE_COLUMNS:
        faults.add(
            line,
            f"code of {rows} lines, {columns} characters wide: show at most {MAX_CODE_LINES} lines of "
            f"{MAX_CODE_COLUMNS} characters: choose some with {{from: text, to: text}}",
        )


def _automatic_titles(lab: Lab, language: str) -> Iterator[Tuple[int, Dict[str, Any], str]]:
    """Yield (line, options, title) of each slide of an automatic deck."""
    title = ""
    for text in lab.text_pairs():
        for number, line in prose_lines(text.blocks[language]):
            heading, figure = HEADING.fullmatch(line), FIGURE.fullmatch(line)
            exercise = EXERCISE.fullmatch(heading["title"]) if heading else None
            name = FIGURE_PATH.fullmatch(figure["path"]) if figure else None
            if heading and exercise:
                yield number, {"exercise": exercise["id"]}, heading["title"]
            elif heading and heading["marks"] == "##":
                title = heading["title"]
                if heading["label"]:
                    yield number, {"notes": heading["label"]}, title
            elif name:
                yield number, {"figure": name["name"]}, title


def _is_point(line: Tuple[int, str]) -> bool:
    return bool(_POINT.match(line[1]))
