"""What a lab's text can refer to: sections, figures, exercises, and other labs."""

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
    """The numbers of a lab's labels, which `parity` makes sure are the same in both languages."""

    sections: Dict[str, int] = field(default_factory=dict)  # label -> number
    figures: Dict[str, int] = field(default_factory=dict)  # name -> number
    exercises: List[str] = field(default_factory=list)


def prose(block: Block) -> Iterator[Tuple[int, str]]:
    """The lines of a block that are no code."""
    return ((number, line) for number, line, fence in with_fences(block) if fence is None)


def with_fences(block: Block) -> Iterator[Tuple[int, str, "str | None"]]:
    """Each line with the info string of the fence around it, or None; fence lines are included."""
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


def outside_code(line: str) -> Iterator[Tuple[str, bool]]:
    """The pieces of a line, and whether they are code."""
    end = 0
    for span in CODE_SPAN.finditer(line):
        yield line[end : span.start()], False
        yield span[0], True
        end = span.end()
    yield line[end:], False


def outline(lab: Lab, language: str = "en") -> Outline:
    """The labels of a lab, numbered in the order of the text."""
    made, section = Outline(), 0
    for text in lab.texts():
        for _, line in prose(text.blocks[language]):
            heading, figure = HEADING.fullmatch(line), FIGURE.fullmatch(line)
            if heading and heading["marks"] == "##":
                section += 1
                if heading["label"]:
                    made.sections[heading["label"]] = section
            exercise = EXERCISE.fullmatch(heading["title"]) if heading else None
            if exercise:
                made.exercises.append(exercise["id"])
            name = FIGURE_PATH.fullmatch(figure["path"]) if figure else None
            if name:
                made.figures.setdefault(name["name"], len(made.figures) + 1)
    return made


@dataclass
class Series:
    """All labs, for references from one to another."""

    labs: Sequence[Lab]

    def __post_init__(self) -> None:
        self.outlines = {lab.number: outline(lab) for lab in self.labs}
        self.by_number = {lab.number: lab for lab in self.labs}
