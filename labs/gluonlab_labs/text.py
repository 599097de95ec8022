"""Write a source's blocks as a notebook's Markdown, with numbered headings and links."""

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
    lines_with_fences,
    split_code_spans,
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


class MarkdownWriter:
    """Writes the blocks of one lab in one language, in order."""

    def __init__(self, lab: Lab, language: str, series: Series, faults: Faults) -> None:
        self.lab, self.language, self.series, self.faults = lab, language, series, faults
        self.words, self.outline = WORDS[language], series.outlines[lab.number]
        self.section = 0

    def write_title(self) -> str:
        """Return the first cell: the lab, its minutes, its needs, a link to the other language."""
        words, other = self.words, OTHER[self.language]
        needs = words["comma"].join(self._lab_link(number, 1) for number in self.lab.needs) or words["nothing"]
        facts = [
            f"**{words['time']}** {words['minutes'].format(self.lab.minutes)}",
            f"**{words['needs']}** {needs}",
            f"[{WORDS[other]['language']}](../{other}/{self.lab.name}.ipynb)",
        ]
        return f"# {words['lab'].format(self.lab.number)}: {self.lab.title[self.language]}\n\n{' · '.join(facts)}"

    def write_block(self, text: Text) -> str:
        """Return the Markdown of a block; join Japanese lines, which have no spaces between."""
        markdown = ""
        for number, line, fence in lines_with_fences(text.blocks[self.language]):
            written = line if fence is not None else self._write_line(number, line)
            if fence is None and JAPANESE_END.search(markdown) and JAPANESE_START.match(written):
                markdown = markdown[:-1] + written.lstrip()
            else:
                markdown += written
            markdown += "\n"
        return markdown.strip("\n")

    def _write_line(self, number: int, line: str) -> str:
        heading, figure = HEADING.fullmatch(line), FIGURE.fullmatch(line)
        if heading:
            return self._write_heading(number, heading)
        if figure:
            return self._write_figure(number, figure)
        return self._resolve_references(number, line)

    def _write_heading(self, number: int, heading: "re.Match[str]") -> str:
        marks, title, label = (heading["marks"], self._resolve_references(number, heading["title"]), heading["label"])
        if marks == "#":
            self.faults.add(
                number, "a heading of level 1 is not allowed, because the title is in the front matter: start with ##"
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
                f"{self._resolve_references(number, exercise['title'])}"
            )
        anchor = f'<a id="{label}"></a>' if label else ""
        return f"{marks} {anchor}{title}"

    def _write_figure(self, number: int, figure: "re.Match[str]") -> str:
        name = FIGURE_PATH.fullmatch(figure["path"])
        if not name:
            self.faults.add(
                number,
                f"{figure['path']}: name a figure figures/NAME.svg, with lowercase letters, digits and dashes in NAME",
            )
            return ""
        if not figure["alt"].strip():
            self.faults.add(number, f"{figure['path']} has no alternative text: describe the figure, ![here](...)")
        if not (figure["caption"] or "").strip():
            self.faults.add(number, f'{figure["path"]} has no caption: write one, ![...]({figure["path"]} "here")')
        title = self.words["figure"].format(self.outline.figures.get(name["name"], 0))
        caption = self._resolve_references(number, figure["caption"] or "")
        # the form that WRITTEN_FIGURE reads again
        return f'<a id="fig-{name["name"]}"></a>\n![{figure["alt"]}]({figure["path"]})\n\n**{title}** {caption}'

    def _resolve_references(self, number: int, line: str) -> str:
        return "".join(
            piece
            if is_code
            else REFERENCE.sub(lambda match: self._resolve_reference(number, match["kind"], match["target"]), piece)
            for piece, is_code in split_code_spans(line)
        )

    def _resolve_reference(self, number: int, kind: str, target: str) -> str:
        kinds = {"sec": self._section_link, "fig": self._figure_link, "ex": self._exercise_link, "lab": self._lab_link}
        if kind not in kinds:
            self.faults.add(number, unknown("cross-reference", kind, kinds) + f": {{{kind}:{target}}}")
            return ""
        return kinds[kind](target, number)

    def _section_link(self, label: str, number: int) -> str:
        section_number = self._look_up("section", label, self.outline.sections, number)
        return f"[{self.words['section'].format(section_number)}](#{label})"

    def _figure_link(self, name: str, number: int) -> str:
        figure_number = self._look_up("figure", name, self.outline.figures, number)
        return f"[{self.words['figure'].format(figure_number)}](#fig-{name})"

    def _exercise_link(self, id: str, number: int) -> str:
        exercises = {one: lab for lab, outline in self.series.outlines.items() for one in outline.exercises}
        lab = self._look_up("exercise", id, exercises, number)
        page = "" if lab in (self.lab.number, 0) else f"{self.series.by_number[str(lab)].name}.ipynb"
        return f"[{self.words['exercise'].format(id)}]({page}#exercise-{id})"

    def _lab_link(self, number_of_lab: str, number: int) -> str:
        names = {one: lab.name for one, lab in self.series.by_number.items()}
        name = self._look_up("lab", number_of_lab, names, number)
        return f"[{self.words['lab'].format(number_of_lab)}]({name}.ipynb)"

    def _look_up(self, kind: str, label: str, known: "Dict[str, int] | Dict[str, str]", number: int) -> "int | str":
        if label not in known:
            self.faults.add(
                number,
                unknown(kind, label, known) if known else f"unknown {kind} {label!r}: use one that this lab contains",
            )
        return known.get(label, 0)
