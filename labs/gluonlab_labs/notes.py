"""Speaker notes of slides: the lab's text at the slide's figure, cell or exercise."""

from __future__ import annotations

from typing import Callable, Dict, Iterator, List, NamedTuple, Optional

from gluonlab_labs.deck import Slide, find_pointed_cell
from gluonlab_labs.outline import EXERCISE, FIGURE, HEADING, lines_with_fences
from gluonlab_labs.source import LANGUAGES, Block, Code, Lab, Text
from gluonlab_labs.text import MarkdownWriter


class LabSection(NamedTuple):
    """The lab's text from one heading or code cell to the next."""

    part: int  # of lab.parts
    headings: int  # how many of the second level have begun
    label: str
    exercise: str
    figures: List[str]
    blocks: Dict[str, Block]


def slide_notes(slide: Slide, after: Optional[Slide], lab: Lab, writer: MarkdownWriter) -> str:
    """Return the notes in Markdown: the slide's cues, and then the lab's text.

    ``after``: the next slide, whose measurement a slide with a guess prepares.
    """
    language = writer.language
    cues = writer.write_block(Text({language: slide.cues[language]}, slide.line))
    section = _find_section(slide, after, lab)
    if section is None:
        return cues
    lab_text = writer.write_block(Text({language: _prose_lines(section, language)}, slide.line))
    return "\n\n".join(filter(None, [cues, lab_text]))


def lab_goals(lab: Lab, writer: MarkdownWriter) -> str:
    """Return the goals of the lab in Markdown, its first section."""
    first = next((piece for piece in _lab_sections(lab) if piece.headings == 1), None)
    lines = _prose_lines(first, writer.language) if first else []
    return writer.write_block(Text({writer.language: lines}, 1))


def _find_section(slide: Slide, after: Optional[Slide], lab: Lab) -> Optional[LabSection]:
    sections, options = list(_lab_sections(lab)), slide.options

    def first_section(fits: Callable[[LabSection], bool]) -> Optional[LabSection]:
        return next(filter(fits, sections), None)

    if "notes" in options:
        last = max((piece.headings for piece in sections), default=0)
        section_number = {"goals": 1, "summary": last - 1}.get(options["notes"])
        return first_section(
            lambda piece: piece.headings == section_number if section_number else piece.label == options["notes"]
        )
    if "figure" in options:
        return first_section(lambda piece: f"figures/{options['figure']}.svg" in piece.figures)
    if "exercise" in options:
        index = next((i for i, piece in enumerate(sections) if piece.exercise == options["exercise"]), -1)
        while index > 0 and not any(line for _, line in _prose_lines(sections[index], LANGUAGES[0])):
            index -= 1  # the text above the heading describes the exercise
        return sections[index] if index >= 0 else None
    if "output" in options:  # the text after the cell describes its result
        index = _part_index(lab, find_pointed_cell(lab, options["output"]))
        return first_section(lambda piece: piece.part > index)
    cell = options.get("code") or (after.options.get("output") if after else None)
    if cell and ("code" in options or "ask" in options):  # the text before the cell leads to it
        index = _part_index(lab, find_pointed_cell(lab, cell))
        return next((piece for piece in reversed(sections) if piece.part < index), None)
    return None


def _part_index(lab: Lab, cell: Code) -> int:
    return next(at for at, part in enumerate(lab.parts) if part is cell)


def _lab_sections(lab: Lab) -> Iterator[LabSection]:
    headings = 0
    for index, part in enumerate(lab.parts):
        if not isinstance(part, Text):
            continue
        pieces_by_language = [list(_split_at_headings(part.blocks[language])) for language in LANGUAGES]
        for piece_pair in zip(*pieces_by_language):
            line = next((line for _, line in piece_pair[0] if line.strip()), "")
            heading = HEADING.fullmatch(line)
            exercise = EXERCISE.fullmatch(heading["title"]) if heading else None
            headings += bool(heading and heading["marks"] == "##")
            figures = [match["path"] for match in map(FIGURE.fullmatch, _block_lines(piece_pair[0])) if match]
            yield LabSection(
                index,
                headings,
                (heading["label"] or "") if heading else "",
                exercise["id"] if exercise else "",
                figures,
                dict(zip(LANGUAGES, piece_pair)),
            )


def _split_at_headings(block: Block) -> Iterator[Block]:
    """Yield the pieces of the block; every piece but the first starts with a heading."""
    piece: Block = []
    for number, line, fence in lines_with_fences(block):
        if fence is None and HEADING.fullmatch(line) and any(line for _, line in piece):
            yield piece
            piece = []
        piece.append((number, line))
    yield piece


def _prose_lines(piece: LabSection, language: str) -> Block:
    """Return the lines for speaking: no headings, figures, tables or code."""
    return [
        (number, line)
        for number, line, fence in lines_with_fences(piece.blocks[language])
        if fence is None and not (line.startswith("|") or HEADING.fullmatch(line) or FIGURE.fullmatch(line))
    ]


def _block_lines(block: Block) -> List[str]:
    return [line for _, line in block]
