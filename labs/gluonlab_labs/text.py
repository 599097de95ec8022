"""A source's block as a notebook's Markdown: headings get numbers, references become links."""

from __future__ import annotations

import re
from typing import Dict

from gluonlab.errors import unknown
from gluonlab_labs.faults import Faults
from gluonlab_labs.outline import (
    EXERCISE,
    FIGURE,
    FIGURE_PATH,
    HEADING,
    REFERENCE,
    Series,
    outside_code,
    with_fences,
)
from gluonlab_labs.source import Lab, Text
from gluonlab_labs.words import OTHER, WORDS

WRITTEN_FIGURE = re.compile(
    r'<a id="fig-(?P<name>[a-z0-9-]+)"></a>\n!\[(?P<alt>[^\]]*)\]\((?P<path>[^\s")]+)\)\n\n'
    r"\*\*(?P<number>[^*]+)\*\* *(?P<caption>.*)"
)


_KANA_OR_KANJI = "\u3000-\u30ff\u4e00-\u9fff\uff00-\uffef"
# no heading, table, figure or fence
JAPANESE_END = re.compile(rf"(^|\n)(?![#|>!`]|\*\*図)[^\n]*[{_KANA_OR_KANJI}]\n\Z")
JAPANESE_START = re.compile(rf"\s*[{_KANA_OR_KANJI}]")


class Writer:
    """Writes the blocks of one lab in one language, from its first to its last."""

    def __init__(self, lab: Lab, language: str, series: Series, faults: Faults) -> None:
        self.lab, self.language, self.series, self.faults = lab, language, series, faults
        self.words, self.outline = WORDS[language], series.outlines[lab.number]
        self.section = 0

    def title(self) -> str:
        """The first cell: the lab, its minutes, what it needs, a link to the other language."""
        words, other = self.words, OTHER[self.language]
        needs = (
            words["comma"].join(self._lab(number, 1) for number in self.lab.needs)
            or words["nothing"]
        )
        facts = [
            f"**{words['time']}** {words['minutes'].format(self.lab.minutes)}",
            f"**{words['needs']}** {needs}",
            f"[{WORDS[other]['language']}](../{other}/{self.lab.name}.ipynb)",
        ]
        return (
            f"# {words['lab'].format(self.lab.number)}: {self.lab.title[self.language]}\n\n"
            f"{' · '.join(facts)}"
        )

    def block(self, text: Text) -> str:
        """One block as the notebook has it; Japanese lines are joined, as there are no spaces."""
        made = ""
        for number, line, fence in with_fences(text.blocks[self.language]):
            written = line if fence is not None else self._line(number, line)
            if fence is None and JAPANESE_END.search(made) and JAPANESE_START.match(written):
                made = made[:-1] + written.lstrip()
            else:
                made += written
            made += "\n"
        return made.strip("\n")

    def _line(self, number: int, line: str) -> str:
        heading, figure = HEADING.fullmatch(line), FIGURE.fullmatch(line)
        if heading:
            return self._heading(number, heading)
        if figure:
            return self._figure(number, figure)
        return self._references(number, line)

    def _heading(self, number: int, heading: "re.Match[str]") -> str:
        marks, title, label = (
            heading["marks"],
            self._references(number, heading["title"]),
            heading["label"],
        )
        if marks == "#":
            self.faults.add(
                number,
                "a heading of the first level: the title is in the front matter; begin with ##",
            )
        if marks == "##":
            self.section += 1
            anchor = f'<a id="{label}"></a>' if label else ""
            return f"## {anchor}{self.section}. {title}"
        exercise = EXERCISE.fullmatch(heading["title"])
        if exercise:
            name = self.words["exercise"].format(exercise["id"])
            return (
                f'{marks} <a id="exercise-{exercise["id"]}"></a>{name}: '
                f"{self._references(number, exercise['title'])}"
            )
        anchor = f'<a id="{label}"></a>' if label else ""
        return f"{marks} {anchor}{title}"

    def _figure(self, number: int, figure: "re.Match[str]") -> str:
        name = FIGURE_PATH.fullmatch(figure["path"])
        if not name:
            self.faults.add(
                number,
                f"{figure['path']}: figures are figures/NAME.svg, NAME of small letters, "
                "digits and dashes",
            )
            return ""
        if not figure["alt"].strip():
            self.faults.add(
                number, f"{figure['path']} has no alternative text: say what is seen, ![here](...)"
            )
        if not (figure["caption"] or "").strip():
            self.faults.add(
                number, f'{figure["path"]} has no caption: ![...]({figure["path"]} "here")'
            )
        title = self.words["figure"].format(self.outline.figures.get(name["name"], 0))
        caption = self._references(number, figure["caption"] or "")
        # the form that WRITTEN_FIGURE reads again
        return (
            f'<a id="fig-{name["name"]}"></a>\n![{figure["alt"]}]({figure["path"]})\n\n'
            f"**{title}** {caption}"
        )

    def _references(self, number: int, line: str) -> str:
        return "".join(
            piece
            if is_code
            else REFERENCE.sub(
                lambda match: self._reference(number, match["kind"], match["target"]), piece
            )
            for piece, is_code in outside_code(line)
        )

    def _reference(self, number: int, kind: str, target: str) -> str:
        kinds = {
            "sec": self._section,
            "fig": self._figure_reference,
            "ex": self._exercise,
            "lab": self._lab,
        }
        if kind not in kinds:
            self.faults.add(
                number, unknown("cross-reference", kind, kinds) + f": {{{kind}:{target}}}"
            )
            return ""
        return kinds[kind](target, number)

    def _section(self, label: str, number: int) -> str:
        found = self._known("section", label, self.outline.sections, number)
        return f"[{self.words['section'].format(found)}](#{label})"

    def _figure_reference(self, name: str, number: int) -> str:
        found = self._known("figure", name, self.outline.figures, number)
        return f"[{self.words['figure'].format(found)}](#fig-{name})"

    def _exercise(self, id: str, number: int) -> str:
        exercises = {
            one: lab for lab, outline in self.series.outlines.items() for one in outline.exercises
        }
        lab = self._known("exercise", id, exercises, number)
        page = (
            "" if lab in (self.lab.number, 0) else f"{self.series.by_number[str(lab)].name}.ipynb"
        )
        return f"[{self.words['exercise'].format(id)}]({page}#exercise-{id})"

    def _lab(self, number_of_lab: str, number: int) -> str:
        names = {one: lab.name for one, lab in self.series.by_number.items()}
        name = self._known("lab", number_of_lab, names, number)
        return f"[{self.words['lab'].format(number_of_lab)}]({name}.ipynb)"

    def _known(
        self, kind: str, label: str, known: "Dict[str, int] | Dict[str, str]", number: int
    ) -> "int | str":
        if label not in known:
            self.faults.add(
                number,
                unknown(kind, label, known)
                if known
                else f"unknown {kind} {label!r}: there is none here",
            )
        return known.get(label, 0)
