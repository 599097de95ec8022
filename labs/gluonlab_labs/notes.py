"""A slide's notes: what the lab itself says where it has the slide's figure, cell or exercise."""

from __future__ import annotations

from typing import Callable, Dict, Iterator, List, NamedTuple, Optional

from gluonlab_labs.deck import Slide, pointed_cell
from gluonlab_labs.outline import EXERCISE, FIGURE, HEADING, with_fences
from gluonlab_labs.source import LANGUAGES, Block, Code, Lab, Text
from gluonlab_labs.text import Writer


class Piece(NamedTuple):
    """The lab's text from one heading, or code cell, to the next."""

    part: int  # of lab.parts
    headings: int  # how many of the second level have begun
    label: str
    exercise: str
    figures: List[str]
    blocks: Dict[str, Block]


def notes(slide: Slide, after: Optional[Slide], lab: Lab, writer: Writer) -> str:
    """Markdown: the slide's own cues, and then the lab's words.

    ``after``: the next slide, whose measurement a slide that asks for a guess prepares.
    """
    language = writer.language
    cues = writer.block(Text({language: slide.cues[language]}, slide.line))
    piece = _piece_of(slide, after, lab)
    if piece is None:
        return cues
    said = writer.block(Text({language: _prose(piece, language)}, slide.line))
    return "\n\n".join(filter(None, [cues, said]))


def goals(lab: Lab, writer: Writer) -> str:
    """Markdown: what the lab is for, which opens it."""
    first = next((piece for piece in _pieces(lab) if piece.headings == 1), None)
    lines = _prose(first, writer.language) if first else []
    return writer.block(Text({writer.language: lines}, 1))


def _piece_of(slide: Slide, after: Optional[Slide], lab: Lab) -> Optional[Piece]:
    pieces, options = list(_pieces(lab)), slide.options

    def first(fits: Callable[[Piece], bool]) -> Optional[Piece]:
        return next(filter(fits, pieces), None)

    if "notes" in options:
        last = max((piece.headings for piece in pieces), default=0)
        place = {"goals": 1, "summary": last - 1}.get(options["notes"])
        return first(
            lambda piece: piece.headings == place if place else piece.label == options["notes"]
        )
    if "figure" in options:
        return first(lambda piece: f"figures/{options['figure']}.svg" in piece.figures)
    if "exercise" in options:
        at = next(
            (i for i, piece in enumerate(pieces) if piece.exercise == options["exercise"]), -1
        )
        while at > 0 and not any(line for _, line in _prose(pieces[at], LANGUAGES[0])):
            at -= 1  # the exercise is described above its heading
        return pieces[at] if at >= 0 else None
    if "output" in options:  # what is said of the result comes after it
        at = _place(lab, pointed_cell(lab, options["output"]))
        return first(lambda piece: piece.part > at)
    cell = options.get("code") or (after.options.get("output") if after else None)
    if cell and ("code" in options or "ask" in options):  # and what leads to it, before
        at = _place(lab, pointed_cell(lab, cell))
        return next((piece for piece in reversed(pieces) if piece.part < at), None)
    return None


def _place(lab: Lab, cell: Code) -> int:
    return next(at for at, part in enumerate(lab.parts) if part is cell)


def _pieces(lab: Lab) -> Iterator[Piece]:
    headings = 0
    for at, part in enumerate(lab.parts):
        if not isinstance(part, Text):
            continue
        cut = [list(_cut(part.blocks[language])) for language in LANGUAGES]
        for both in zip(*cut):
            line = next((line for _, line in both[0] if line.strip()), "")
            heading = HEADING.fullmatch(line)
            exercise = EXERCISE.fullmatch(heading["title"]) if heading else None
            headings += bool(heading and heading["marks"] == "##")
            figures = [match["path"] for match in map(FIGURE.fullmatch, _lines(both[0])) if match]
            yield Piece(
                at,
                headings,
                (heading["label"] or "") if heading else "",
                exercise["id"] if exercise else "",
                figures,
                dict(zip(LANGUAGES, both)),
            )


def _cut(block: Block) -> Iterator[Block]:
    """The block in pieces, each of which begins with a heading, but perhaps the first."""
    piece: Block = []
    for number, line, fence in with_fences(block):
        if fence is None and HEADING.fullmatch(line) and any(line for _, line in piece):
            yield piece
            piece = []
        piece.append((number, line))
    yield piece


def _prose(piece: Piece, language: str) -> Block:
    """What can be said: no headings, figures, tables or code."""
    return [
        (number, line)
        for number, line, fence in with_fences(piece.blocks[language])
        if fence is None
        and not (line.startswith("|") or HEADING.fullmatch(line) or FIGURE.fullmatch(line))
    ]


def _lines(block: Block) -> List[str]:
    return [line for _, line in block]
