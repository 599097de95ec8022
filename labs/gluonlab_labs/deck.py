"""A lecture deck: slides that show a lab's figures, cells and exercises, written once for both
languages.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

import yaml

from gluonlab.errors import GluonlabError, unknown
from gluonlab_labs.exercises import stubs
from gluonlab_labs.faults import Faults
from gluonlab_labs.outline import EXERCISE, FIGURE, FIGURE_PATH, HEADING, Series, prose
from gluonlab_labs.parity import compare
from gluonlab_labs.players import player
from gluonlab_labs.source import LANGUAGES, Block, Code, Lab, Text, pairs
from gluonlab_labs.text import Writer

SHOWS = ("figure", "player", "exercise", "code", "output")
OPTIONS = (*SHOWS, "ask", "notes")
MOST_POINTS = 5
MOST_ROWS = 20  # of code
MOST_COLUMNS = 92
_POINT = re.compile(r"\s*(?:[-*]|\d+\.)\s")


@dataclass
class Slide:
    """One slide: its text in both languages, and what it shows of the lab."""

    line: int
    titles: Dict[str, str]
    points: Dict[str, Block]  # what stands below the title
    cues: Dict[str, Block]  # what only the speaker sees, before the lab's own text
    options: Dict[str, Any] = field(default_factory=dict)


def read_deck(path: Path, lab: Lab, faults: Faults) -> List[Slide]:
    """The slides of this file: after each ``+++ {figure: name}`` one pair of blocks."""
    made: List[Slide] = []
    for line, options, lines in _pieces(path.read_text(encoding="utf-8"), faults):
        texts = list(pairs(lines, faults))
        if len(texts) != 1:
            faults.add(line, f"a slide with {len(texts)} pairs of blocks: write one after each +++")
            continue
        compare(texts[0], faults)
        slide = _slide(line, options, texts[0], lab, faults)
        if slide:
            made.append(slide)
    return made


def check_deck(slides: List[Slide], lab: Lab, series: Series, faults: Faults) -> None:
    """What a slide refers to and the lab does not have goes to ``faults``."""
    for slide in slides:
        _check_options(slide, lab, series, faults)
        counts = {one: sum(map(_is_point, slide.points[one])) for one in LANGUAGES}
        if len(set(counts.values())) > 1:
            faults.add(
                slide.line,
                f"{counts['en']} lines in English, {counts['ja']} in Japanese: "
                "write the same in both languages",
            )
        if max(counts.values()) > MOST_POINTS:
            faults.add(
                slide.line, f"has {max(counts.values())} lines: {MOST_POINTS} is what people read"
            )
        for language in LANGUAGES:
            writer = Writer(lab, language, series, faults)
            for block in (slide.points[language], slide.cues[language]):
                writer.block(Text({language: block}, slide.line))
    shown = [slide.options.get("figure") for slide in slides]
    for slide in slides:
        name = slide.options.get("figure")
        if name and shown.count(name) > 1:
            faults.add(slide.line, f"figure {name} is on {shown.count(name)} slides: choose one")


def automatic_deck(lab: Lab, series: Series) -> List[Slide]:
    """For a lab without a deck: a slide for each section, each figure and each exercise."""
    slides: List[Slide] = []
    titles = {language: list(_headings(lab, language)) for language in LANGUAGES}
    for (line, shown, english), (_, _, japanese) in zip(titles["en"], titles["ja"]):
        both = dict(zip(LANGUAGES, (english, japanese)))
        nothing: Dict[str, Block] = {language: [] for language in LANGUAGES}
        slides.append(Slide(line, both, nothing, nothing, shown))
    return slides


def find_cell(lab: Lab, text: str) -> Code:
    """The one code cell of the lab that has this text; LookupError says what is wrong."""
    found = [cell for cell in lab.codes() if text in cell.source]
    if len(found) != 1:
        number = "no cell" if not found else f"{len(found)} cells"
        raise LookupError(f"{number} of lab {lab.number} with {text!r}: quote a text of one cell")
    return found[0]


def excerpt(lab: Lab, code: Any) -> str:
    """The code that is meant: that of the cell, or its lines from one text to another.

    ``code: text`` or ``code: {cell: text, from: text, to: text}``; each may be left out. Raises
    LookupError.
    """
    lines = pointed_cell(lab, code).source.splitlines()
    return textwrap.dedent("\n".join(some_lines(lines, code)))


def pointed_cell(lab: Lab, asked: Any) -> Code:
    """The cell that ``code:`` or ``output:`` means. Raises LookupError."""
    if not isinstance(asked, dict):
        return find_cell(lab, str(asked))
    known = {"cell", "from", "to", "only"}
    if not {"cell", "from"} & set(asked) or set(asked) - known:
        raise LookupError(
            f"{asked} is no part of a cell: write {{cell: text, from: text, to: text}}"
        )
    if asked.get("only", "drawn") not in ("drawn", "printed"):
        raise LookupError(f"only: {asked['only']}: write printed or drawn")
    return find_cell(lab, str(asked.get("cell", asked.get("from"))))


def some_lines(lines: List[str], asked: Any) -> List[str]:
    """Those from the one with the text ``from`` to the next one with the text ``to``.

    Raises LookupError.
    """
    begin, end = 0, len(lines)
    if isinstance(asked, dict) and "from" in asked:
        begin = _line_with(str(asked["from"]), lines, 0)
    if isinstance(asked, dict) and "to" in asked:
        end = _line_with(str(asked["to"]), lines, begin) + 1
    return lines[begin:end]


def _line_with(text: str, lines: List[str], begin: int) -> int:
    found = (number for number in range(begin, len(lines)) if text in lines[number])
    number = next(found, None)
    if number is None:
        raise LookupError(f"no line with {text!r} there, or only before the first: quote one")
    return number


def _pieces(text: str, faults: Faults) -> Iterator[Tuple[int, Dict[str, Any], Block]]:
    """(line, options, lines) of each slide."""
    begun: Optional[Tuple[int, Dict[str, Any], Block]] = None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("+++"):
            if begun:
                yield begun
            begun = number, _options(line, number, faults), []
        elif begun:
            begun[2].append((number, line))
        elif line.strip():
            faults.add(number, f"{line[:40]!r} stands before the first +++: begin with that")
    if begun:
        yield begun


def _options(line: str, number: int, faults: Faults) -> Dict[str, Any]:
    """What stands behind +++."""
    try:
        options = yaml.safe_load(line[3:]) or {}
    except yaml.YAMLError as error:
        options = " ".join(str(error).split())
    if not isinstance(options, dict):
        faults.add(number, f"{line!r} cannot be read ({options}): write +++ {{figure: name}}")
        return {}
    return {str(name): value for name, value in options.items()}


def _slide(
    line: int, options: Dict[str, Any], text: Text, lab: Lab, faults: Faults
) -> Optional[Slide]:
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
                faults.add(number, f"{written!r}: a slide has one heading, ## Title")
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
    """The lab's own heading of an exercise; empty if it has none, which `check_deck` reports."""
    for text in lab.texts():
        for _, line in prose(text.blocks[language]):
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
    shown = [name for name in SHOWS if name in options]
    if len(shown) > 1 and shown != ["code", "output"]:
        faults.add(slide.line, f"shows {' and '.join(shown)}: one at a time")
    if "figure" in options and options["figure"] not in outline.figures:
        faults.add(slide.line, unknown("figure", str(options["figure"]), outline.figures))
    if "exercise" in options and options["exercise"] not in stubs(lab):
        faults.add(slide.line, unknown("exercise", str(options["exercise"]), stubs(lab)))
    sections = {**outline.sections, "goals": 1, "summary": 1}
    if "notes" in options and options["notes"] not in sections:
        faults.add(slide.line, unknown("section", str(options["notes"]), sections))
    try:
        if "player" in options:
            player(options["player"], "en")
        if "output" in options:
            pointed_cell(lab, options["output"])
        if "code" in options:
            _check_code(excerpt(lab, options["code"]), slide.line, faults)
    except (LookupError, GluonlabError) as error:
        faults.add(slide.line, str(error.args[0]))


def _check_code(code: str, line: int, faults: Faults) -> None:
    rows, columns = len(code.splitlines()), max(map(len, code.splitlines()))
    if rows > MOST_ROWS or columns > MOST_COLUMNS:
        faults.add(
            line,
            f"code of {rows} lines, {columns} characters wide: people can read "
            f"{MOST_ROWS} lines of {MOST_COLUMNS}; choose some with {{from: text, to: text}}",
        )


def _headings(lab: Lab, language: str) -> Iterator[Tuple[int, Dict[str, Any], str]]:
    """(line, what is shown, title) of what `automatic_deck` makes a slide of."""
    title = ""
    for text in lab.texts():
        for number, line in prose(text.blocks[language]):
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
