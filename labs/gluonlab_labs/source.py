"""Read a source file as cells: text in both languages, and code."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple, Union

import yaml

from gluonlab_labs.faults import Faults

LANGUAGES = ("en", "ja")
FILE = re.compile(r"(?P<number>\d\d)-(?P<slug>[a-z0-9-]+)\.md")
_OPEN, _CLOSE = re.compile(r":::\{(\w+)\}\s*"), re.compile(r":::\s*")
_FENCE = re.compile(r"\s*(`{3,}|~{3,})")

Block = List[Tuple[int, str]]  # (line of the source, text)


@dataclass
class Text:
    """A pair of blocks: the same text in both languages."""

    blocks: Dict[str, Block]
    line: int


@dataclass
class Break:
    """A line ``+++``: the next text starts a cell."""


@dataclass
class Code:
    """A code cell, for both languages."""

    source: str
    line: int
    metadata: Dict[str, Any]

    @property
    def tags(self) -> List[str]:
        """The cell's tags, such as ``exercise-02-1``."""
        tags = self.metadata.get("tags", [])
        return list(tags) if isinstance(tags, list) else [str(tags)]


@dataclass
class Lab:
    """A lab: the values of its front matter, and its parts in order."""

    path: Path
    number: str
    slug: str
    title: Dict[str, str]
    minutes: int
    needs: List[str]
    parts: List[Union[Text, Break, Code]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of the lab's notebooks and pages, such as ``02-by-hand``."""
        return f"{self.number}-{self.slug}"

    def code_cells(self) -> List[Code]:
        """Return the code cells in order."""
        return [part for part in self.parts if isinstance(part, Code)]

    def text_pairs(self) -> List[Text]:
        """Return the pairs of blocks in order."""
        return [part for part in self.parts if isinstance(part, Text)]


def read_lab(path: Path, faults: Faults) -> Lab:
    """Read the lab in a file; add errors in its form to ``faults``."""
    from jupytext.myst import MystMetadataParsingError, myst_to_notebook

    text = path.read_text(encoding="utf-8")
    name = FILE.fullmatch(path.name)
    if not name:
        faults.add(1, "its name is not of the form NN-name.md: use two digits, a dash and lowercase letters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # cells of different languages
            front_matter, body = _split_front_matter(text)
            notebook = myst_to_notebook(body, add_source_map=True)
    except (MystMetadataParsingError, UserWarning, yaml.YAMLError) as error:
        faults.add(1, f"cannot be read as MyST: {' '.join(str(error).split())}")
        return Lab(path, path.name[:2], "unreadable", dict.fromkeys(LANGUAGES, ""), 0, [])
    lab = _make_lab(path, front_matter, faults)
    lines = body.splitlines()
    for cell, start in zip(notebook.cells, notebook.metadata["source_map"]):
        if cell.cell_type == "code":
            lab.parts.append(Code(cell.source.strip("\n"), start, dict(cell.metadata)))
        elif cell.cell_type == "markdown":
            lab.parts += [Break()] if _follows_break(lines, start) else []
            lab.parts += read_text_pairs(_number_lines(cell.source, lines, start), faults)
        else:
            faults.add(start, f"a {cell.cell_type} cell is not allowed: write text or a code-cell")
    return lab


def _split_front_matter(text: str) -> Tuple[Dict[str, Any], str]:
    """Return the front matter, between two lines of ``---``, and the text with blank lines instead.

    jupytext would refuse a title in two languages.
    """
    match = re.match(r"---\n(.*?\n)---\n", text, re.S)
    front_matter, end = (yaml.safe_load(match[1]), match.end()) if match else ({}, 0)
    body = "\n" * text.count("\n", 0, end) + text[end:]
    return front_matter if isinstance(front_matter, dict) else {}, body


def _make_lab(path: Path, front_matter: Dict[str, Any], faults: Faults) -> Lab:
    title, minutes, needs = (front_matter.get("title"), front_matter.get("minutes"), front_matter.get("needs"))
    if not isinstance(title, dict) or not all(isinstance(title.get(one), str) for one in LANGUAGES):
        faults.add(1, 'the front matter has no title in both languages: add title: {en: "...", ja: "..."}')
        title = dict.fromkeys(LANGUAGES, "")
    if not isinstance(minutes, int) or isinstance(minutes, bool) or minutes <= 0:
        faults.add(1, "the front matter has no learning time: add minutes: 40")
        minutes = 0
    if not isinstance(needs, list):
        faults.add(1, 'the front matter has no list of required labs: add needs: [] or needs: ["01", "02"]')
        needs = []
    number, slug = path.stem[:2], path.stem[3:]
    # YAML reads 01 as a number and 08 as a text
    return Lab(path, number, slug, dict(title), minutes, [f"{int(one):02d}" for one in needs if str(one).isdigit()])


def _follows_break(lines: List[str], start: int) -> bool:
    return start > 0 and lines[start - 1].startswith("+++")


def _number_lines(source: str, lines: List[str], start: int) -> Block:
    """Return a cell's lines with their line numbers in the file."""
    while not lines[start].strip():
        start += 1
    return [(start + 1 + offset, line) for offset, line in enumerate(source.splitlines())]


def read_text_pairs(lines: Block, faults: Faults) -> Iterator[Text]:
    """Yield the pairs of English and Japanese blocks in a piece of text."""
    blocks = list(_read_blocks(lines, faults))
    while blocks:
        language, line, block = blocks.pop(0)
        other = blocks[0][0] if blocks else ""
        if (language, other) != LANGUAGES:
            problem = f"followed by :::{{{other}}}" if other else "and nothing follows"
            faults.add(line, f":::{{{language}}} {problem}: blocks come in pairs, :::{{en}} and then :::{{ja}}")
            continue
        yield Text({language: block, other: blocks.pop(0)[2]}, line)


def _read_blocks(lines: Block, faults: Faults) -> Iterator[Tuple[str, int, Block]]:
    """Yield (language, line, content) of each block from ``:::{...}`` to ``:::``."""
    language, opened, fence = "", 0, ""
    block: Block = []
    for number, line in lines:
        mark = _FENCE.match(line)
        if language and mark:
            fence = "" if fence and line.strip().startswith(fence) else fence or mark[1]
        opening = None if fence else _OPEN.fullmatch(line)
        if opening and language:
            faults.add(
                number, f"{line.strip()} is inside :::{{{language}}} of line {opened}: close that block with ::: first"
            )
        if opening:
            language, opened, block = opening[1], number, []
            if language not in LANGUAGES:
                faults.add(number, f"{line.strip()} is not a language: write :::{{en}} or :::{{ja}}")
        elif not fence and _CLOSE.fullmatch(line) and language:
            yield language, opened, block
            language = ""
        elif language:
            block.append((number, line))
        elif line.strip():
            faults.add(
                number, f"{line.strip()[:40]!r} is outside of any block: put it between :::{{en}} or :::{{ja}} and :::"
            )
    if language:
        faults.add(
            opened, f":::{{{language}}} is not closed: write ::: below it" + (", and close the fence" if fence else "")
        )
