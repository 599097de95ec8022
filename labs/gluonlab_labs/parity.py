"""Check that both languages have the same sections, figures, links, code and formulas."""

from __future__ import annotations

import re
from collections import Counter
from typing import Dict, List, Tuple

from gluonlab_labs.faults import Faults
from gluonlab_labs.outline import CODE_SPAN, EXERCISE, FIGURE, HEADING, REFERENCE, lines_with_fences
from gluonlab_labs.source import Block, Text

LINK = re.compile(r"\]\((?P<target>[^)\s]+)")
ADDRESS = re.compile(r"<(?P<target>https?://[^>]+)>")
FORMULA = re.compile(r"\$\$?(?P<formula>[^$]+)\$\$?")

BlockElements = Dict[str, List[Tuple[int, str]]]  # kind -> (line, what), in the order of the text

ORDERED_KINDS = ("headings", "figures", "fences")
COUNTED_KINDS = ("references", "links")
SET_KINDS = ("code spans", "formulas")  # a language may repeat a name where the other uses a pronoun


def check_parity(text: Text, faults: Faults) -> None:
    """Add to ``faults`` the differences between the two blocks of a pair."""
    english, japanese = (collect_elements(text.blocks[language]) for language in ("en", "ja"))
    line = text.blocks["ja"][0][0] if text.blocks["ja"] else text.line
    for kind in ORDERED_KINDS:
        pairs = (english[kind], japanese[kind])
        if [what for _, what in pairs[0]] != [what for _, what in pairs[1]]:
            difference = _first_difference(*pairs)
            faults.add(
                _line_of(*pairs, otherwise=line), f"{kind} differ: {difference}; write the same in both languages"
            )
    for kind in COUNTED_KINDS + SET_KINDS:
        counts = [Counter(what for _, what in elements[kind]) for elements in (english, japanese)]
        if kind in SET_KINDS:
            counts = [Counter(set(count)) for count in counts]
        for what, other, lines in ((counts[0] - counts[1], "ja", english), (counts[1] - counts[0], "en", japanese)):
            for element in what:
                line_number = next(number for number, text in lines[kind] if text == element)
                faults.add(
                    line_number,
                    f":::{{{other}}} does not contain {element}, but this block contains it "
                    f"{_count_in_words(what[element])}: write the same {kind} in both languages",
                )


def collect_elements(block: Block) -> BlockElements:
    """Return the elements of each kind in a block."""
    elements: BlockElements = {kind: [] for kind in ORDERED_KINDS + COUNTED_KINDS + SET_KINDS}
    fence: List[str] = []
    fence_start = 0
    for number, line, info in lines_with_fences(block):
        if info is not None:
            fence_start = fence_start if fence else number
            # other text may be translated
            fence.append(line.strip() if info.split(" ")[0] in ("sh", "python") else info)
            continue
        elements["fences"] += [(fence_start, "\n".join(fence))] if fence else []
        fence = []
        _collect_from_line(number, line, elements)
    elements["fences"] += [(fence_start, "\n".join(fence))] if fence else []
    return elements


def _collect_from_line(number: int, line: str, elements: BlockElements) -> None:
    heading, figure = HEADING.fullmatch(line), FIGURE.fullmatch(line)
    if heading:
        exercise = EXERCISE.fullmatch(heading["title"])
        label = exercise["id"] if exercise else heading["label"] or ""
        elements["headings"].append((number, " ".join(filter(None, [heading["marks"], label]))))
    if figure:
        elements["figures"].append((number, figure["path"]))
        line = figure["caption"] or ""
    spans = [match["code"] for match in CODE_SPAN.finditer(line)]
    elements["code spans"] += [(number, f"`{code}`") for code in spans if re.search(r"[A-Za-z_]", code)]
    rest = CODE_SPAN.sub("", line)
    elements["references"] += [(number, match[0]) for match in REFERENCE.finditer(rest)]
    elements["links"] += [(number, match["target"]) for pattern in (LINK, ADDRESS) for match in pattern.finditer(rest)]
    elements["formulas"] += [(number, f"${' '.join(match['formula'].split())}$") for match in FORMULA.finditer(rest)]


def _first_difference(english: List[Tuple[int, str]], japanese: List[Tuple[int, str]]) -> str:
    for (_, one), (_, other) in zip(english, japanese):
        if one != other:
            return f"{one!r} in English, {other!r} in Japanese"
    longer, language = (english, "English") if len(english) > len(japanese) else (japanese, "Japanese")
    return f"{longer[min(len(english), len(japanese))][1]!r} only in {language}"


def _line_of(english: List[Tuple[int, str]], japanese: List[Tuple[int, str]], otherwise: int) -> int:
    """Return the line of the first difference, in the language that has an element there."""
    for (_, one), (line, other) in zip(english, japanese):
        if one != other:
            return line
    longer = max(english, japanese, key=len)
    rest = longer[min(len(english), len(japanese)) :]
    return rest[0][0] if rest else otherwise


def _count_in_words(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
