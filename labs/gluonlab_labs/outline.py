"""Number a lab's sections, figures and exercises, to which texts refer."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, Iterator, List, Sequence, Tuple

from gluonlab_labs.source import Block, Lab

HEADING = re.compile(r"(?P<marks>#{1,6})\s+(?P<title>.*?)(?:\s*\{#(?P<label>[a-z0-9-]+)\})?\s*")
EXERCISE = re.compile(r"(?:Exercise|演習) (?P<id>\d\d-\d+)(?P<colon>[:\uff1a]\s*)(?P<title>.+)")
FIGURE = re.compile(r'!\[(?P<alt>[^\]]*)\]\((?P<path>[^\s")]+)(?:\s+"(?P<caption>.*)")?\)\s*')
FIGURE_PATH = re.compile(r"figures/(?P<name>[a-z0-9-]+)\.svg")
REFERENCE = re.compile(r"\{(?P<kind>[a-z]+):(?P<target>[\w-]+)\}")
FENCE = re.compile(r"\s*(?P<mark>`{3,}|~{3,})(?P<info>.*)")
CODE_SPAN = re.compile(r"(?P<ticks>`+)(?P<code>.+?)(?P=ticks)(?!`)")


@dataclass
class Outline:
    """The numbers of a lab's labels; `parity` checks that both languages have the same."""

    sections: Dict[str, int] = field(default_factory=dict)  # label -> number
    figures: Dict[str, int] = field(default_factory=dict)  # name -> number
    exercises: List[str] = field(default_factory=list)


def prose_lines(block: Block) -> Iterator[Tuple[int, str]]:
    """Yield the lines of a block that are not code."""
    return ((number, line) for number, line, fence in lines_with_fences(block) if fence is None)


def lines_with_fences(block: Block) -> Iterator[Tuple[int, str, "str | None"]]:
    """Yield each line with the info string of the fence around it, or None.

    The lines of the fences are included.
    """
    mark, info = "", None
    for number, line in block:
        fence = FENCE.match(line)
        if fence and not mark:
            mark, info = fence["mark"], fence["info"].strip()
            yield number, line, info
        elif fence and fence["mark"].startswith(mark) and not fence["info"].strip():
            yield number, line, info
            mark, info = "", None
        else:
            yield number, line, info


def split_code_spans(line: str) -> Iterator[Tuple[str, bool]]:
    """Yield the pieces of a line, with True for code."""
    end = 0
    for span in CODE_SPAN.finditer(line):
        yield line[end : span.start()], False
        yield span[0], True
        end = span.end()
    yield line[end:], False


def make_outline(lab: Lab) -> Outline:
    """Number the labels of a lab in the order of the text."""
    numbered, section = Outline(), 0
    for text in lab.text_pairs():
        for _, line in prose_lines(text.blocks["en"]):
            heading, figure = HEADING.fullmatch(line), FIGURE.fullmatch(line)
            if heading and heading["marks"] == "##":
                section += 1
                if heading["label"]:
                    numbered.sections[heading["label"]] = section
            exercise = EXERCISE.fullmatch(heading["title"]) if heading else None
            if exercise:
                numbered.exercises.append(exercise["id"])
            name = FIGURE_PATH.fullmatch(figure["path"]) if figure else None
            if name:
                numbered.figures.setdefault(name["name"], len(numbered.figures) + 1)
    return numbered


@dataclass
class Series:
    """All labs, for references from one lab to another."""

    labs: Sequence[Lab]

    def __post_init__(self) -> None:
        self.outlines = {lab.number: make_outline(lab) for lab in self.labs}
        self.by_number = {lab.number: lab for lab in self.labs}
