"""Check that both languages have the same sections, figures, links, code and formulas."""

from __future__ import annotations

import re
from collections import Counter
from typing import Dict, List, Tuple

from gluonlab_labs.faults import Faults
from gluonlab_labs.outline import CODE_SPAN, EXERCISE, FIGURE, HEADING, REFERENCE, with_fences
from gluonlab_labs.source import Block, Text

LINK = re.compile(r"\]\((?P<target>[^)\s]+)")
ADDRESS = re.compile(r"<(?P<target>https?://[^>]+)>")
FORMULA = re.compile(r"\$\$?(?P<formula>[^$]+)\$\$?")

Found = Dict[str, List[Tuple[int, str]]]  # kind -> (line, what), in the order of the text

IN_ORDER = ("headings", "figures", "fences")
COUNTED = ("references", "links")
ONCE = ("code spans", "formulas")  # one language may name a thing twice where the other says "it"


def compare(text: Text, faults: Faults) -> None:
    """What the two blocks of a pair do not have in common goes to ``faults``."""
    english, japanese = (collect(text.blocks[language]) for language in ("en", "ja"))
    line = text.blocks["ja"][0][0] if text.blocks["ja"] else text.line
    for kind in IN_ORDER:
        pairs = (english[kind], japanese[kind])
        if [what for _, what in pairs[0]] != [what for _, what in pairs[1]]:
            difference = _first_difference(*pairs)
            faults.add(
                _line_of(*pairs, otherwise=line),
                f"{kind} differ: {difference}; write the same in both languages",
            )
    for kind in COUNTED + ONCE:
        counts = [Counter(what for _, what in found[kind]) for found in (english, japanese)]
        if kind in ONCE:
            counts = [Counter(set(count)) for count in counts]
        for what, other, lines in (
            (counts[0] - counts[1], "ja", english),
            (counts[1] - counts[0], "en", japanese),
        ):
            for one in what:
                place = next(number for number, found in lines[kind] if found == one)
                faults.add(
                    place,
                    f"{one} stands here {_times(what[one])}, and not in :::{{{other}}}: "
                    f"both need the same {kind}",
                )


def collect(block: Block) -> Found:
    """What a block has of each kind."""
    found: Found = {kind: [] for kind in IN_ORDER + COUNTED + ONCE}
    fence: List[str] = []
    begun = 0
    for number, line, info in with_fences(block):
        if info is not None:
            begun = begun if fence else number
            # other text may be translated
            fence.append(line.strip() if info.split(" ")[0] in ("sh", "python") else info)
            continue
        found["fences"] += [(begun, "\n".join(fence))] if fence else []
        fence = []
        _collect_from(number, line, found)
    found["fences"] += [(begun, "\n".join(fence))] if fence else []
    return found


def _collect_from(number: int, line: str, found: Found) -> None:
    heading, figure = HEADING.fullmatch(line), FIGURE.fullmatch(line)
    if heading:
        exercise = EXERCISE.fullmatch(heading["title"])
        label = exercise["id"] if exercise else heading["label"] or ""
        found["headings"].append((number, " ".join(filter(None, [heading["marks"], label]))))
    if figure:
        found["figures"].append((number, figure["path"]))
        line = figure["caption"] or ""
    spans = [match["code"] for match in CODE_SPAN.finditer(line)]
    found["code spans"] += [
        (number, f"`{code}`") for code in spans if re.search(r"[A-Za-z_]", code)
    ]
    rest = CODE_SPAN.sub("", line)
    found["references"] += [(number, match[0]) for match in REFERENCE.finditer(rest)]
    found["links"] += [
        (number, match["target"]) for pattern in (LINK, ADDRESS) for match in pattern.finditer(rest)
    ]
    found["formulas"] += [
        (number, f"${' '.join(match['formula'].split())}$") for match in FORMULA.finditer(rest)
    ]


def _first_difference(english: List[Tuple[int, str]], japanese: List[Tuple[int, str]]) -> str:
    for (_, one), (_, other) in zip(english, japanese):
        if one != other:
            return f"{one!r} in English, {other!r} in Japanese"
    longer, language = (
        (english, "English") if len(english) > len(japanese) else (japanese, "Japanese")
    )
    return f"{longer[min(len(english), len(japanese))][1]!r} only in {language}"


def _line_of(
    english: List[Tuple[int, str]], japanese: List[Tuple[int, str]], otherwise: int
) -> int:
    """The line of the first difference, in the language that has something there."""
    for (_, one), (line, other) in zip(english, japanese):
        if one != other:
            return line
    longer = max(english, japanese, key=len)
    rest = longer[min(len(english), len(japanese)) :]
    return rest[0][0] if rest else otherwise


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
