"""Write the lecture decks as self-contained HTML pages, with an index of both languages."""

from __future__ import annotations

import copy
import html
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from markupsafe import Markup
from tqdm import tqdm

from gluonlab.errors import NotebookError
from gluonlab.files.atomic_files import create_writable_folder, write_text
from gluonlab_labs.build import LabFolders
from gluonlab_labs.deck import Slide, automatic_deck, code_excerpt, find_pointed_cell, read_deck, select_lines
from gluonlab_labs.execute import execute_lab
from gluonlab_labs.exercises import find_stubs
from gluonlab_labs.faults import Faults
from gluonlab_labs.figures import svg_in_language
from gluonlab_labs.handouts import TEMPLATE, template_environment, template_values
from gluonlab_labs.markdown import Renderer, highlight_code
from gluonlab_labs.notebook import make_notebook
from gluonlab_labs.notes import lab_goals, slide_notes
from gluonlab_labs.outline import FIGURE, Series
from gluonlab_labs.outputs import render_outputs
from gluonlab_labs.players import player_page
from gluonlab_labs.source import LANGUAGES, Lab, Text
from gluonlab_labs.text import MarkdownWriter
from gluonlab_labs.words import OTHER, WORDS

# Of a slide, in rem: the width of a line of code, and the height of all code.
CODE_WIDTH, CODE_HEIGHT = 56.5, 26.0
POINT_HEIGHT = 2.2  # of a line of text, which the code below it loses
LETTER_WIDTH = 0.605  # of a monospaced font, relative to its size
LINE_HEIGHT = 1.4


def write_slides(series: Series, folders: LabFolders, root: Path) -> None:
    """Execute the labs whose decks show outputs, and write all decks and the index below ``root``.

    Raises NotebookError, OutputError.
    """
    decks = {lab.number: lab_deck(lab, series, folders) for lab in series.labs}
    notebooks = {
        lab.number: {language: make_notebook(lab, language, series, Faults(lab.path)) for language in LANGUAGES}
        for lab in series.labs
    }
    labs_with_output = [number for number, deck in decks.items() if any("output" in one.options for one in deck)]
    with create_writable_folder(root):
        total = sum(len(notebooks[number]["en"].cells) for number in labs_with_output)
        with tqdm(total=total, unit="cell", desc="slides", dynamic_ncols=True) as bar:
            for lab in series.labs:
                bar.set_postfix_str(lab.name)
                if lab.number in labs_with_output:
                    execute_lab(notebooks[lab.number], on_cell=bar.update)
                write_deck(series, lab, decks[lab.number], notebooks[lab.number], folders, root)
        write_index(series, decks, root)
    print(f"wrote {len(decks)} decks in {len(LANGUAGES)} languages: open {root / 'index.html'}")


def lab_deck(lab: Lab, series: Series, folders: LabFolders) -> List[Slide]:
    """Return the lab's written slides, or automatic slides if there are none."""
    path = folders.slides / lab.path.name
    return read_deck(path, lab, Faults(path)) if path.is_file() else automatic_deck(lab, series)


def write_deck(
    series: Series, lab: Lab, deck: List[Slide], executed: Dict[str, Any], folders: LabFolders, root: Path
) -> None:
    """Write the pages of one lab; ``executed``: {language: notebook with outputs}."""
    for language in LANGUAGES:
        with create_writable_folder(root / language):
            write_text(
                root / language / f"{lab.name}.html", render_deck(series, lab, deck, executed[language], folders)
            )


def write_index(series: Series, decks: Dict[str, List[Slide]], root: Path) -> None:
    """Write index.html, which links to every deck."""
    template = template_environment().get_template("slides_index.html")
    counts = {number: len(deck) + 1 for number, deck in decks.items()}
    write_text(
        root / "index.html",
        template.render(
            labs=series.labs, counts=counts, languages=LANGUAGES, language=LANGUAGES[0], **_template_values()
        ),
    )


def render_deck(series: Series, lab: Lab, deck: List[Slide], executed: Any, folders: LabFolders) -> str:
    """Return the HTML page of one deck, in the language of the notebook."""
    language = executed.metadata.gluonlab.language

    @lru_cache(maxsize=None)
    def picture(name: str) -> str:
        return svg_in_language(folders.figures / f"{name}.svg", language)

    writer = MarkdownWriter(lab, language, series, Faults(lab.path))
    show = _SlideRenderer(lab, writer, executed, picture)
    pairs = zip(deck, [*deck[1:], None])
    shown = [show.render_slide(slide, after, number) for number, (slide, after) in enumerate(pairs, 2)]
    return (
        template_environment()
        .get_template("slides.html")
        .render(
            lab=lab,
            language=language,
            other=OTHER[language],
            slides=shown,
            goals=show.render_markdown(lab_goals(lab, writer)),
            **_template_values(),
        )
    )


class _SlideRenderer:
    """Renders the slides of one deck."""

    def __init__(self, lab: Lab, writer: MarkdownWriter, executed: Any, picture: Callable[[str], str]) -> None:
        self.lab, self.writer, self.language = lab, writer, writer.language
        self.renderer = Renderer(picture)
        self.executed_cells = [cell for cell in executed.cells if cell.cell_type == "code"]

    def render_slide(self, slide: Slide, after: Optional[Slide], number: int) -> Dict[str, Any]:
        """Return the values for the template."""
        options, text = slide.options, self._points_markdown(slide)
        rows = 0 if not text else sum(bool(line.strip()) for line in text.splitlines())
        shown = [
            make(options[kind], number, rows)
            for kind, make in (
                ("figure", self._render_figure),
                ("player", self._render_player),
                ("exercise", self._render_exercise),
                ("code", self._render_code),
            )
            if kind in options
        ]
        if "output" in options:
            shown += self._render_outputs(options["output"], number, rows, options.get("code"))
        kind = "ask" if options.get("ask") else next(iter(options), "text")
        return {
            "number": number,
            "kind": kind if shown or kind == "ask" else "text",
            "title": Markup(self._render_inline(slide.titles[self.language], slide.line)),
            "points": self.render_markdown(text),
            "shown": [Markup(one) for one in shown],
            "notes": self.render_markdown(slide_notes(slide, after, self.lab, self.writer)),
        }

    def render_markdown(self, markdown: str) -> Markup:
        """Return HTML without links to places within a lab, which a deck lacks."""
        html_text = re.sub(r'<a href="#[^"]*">(.*?)</a>', r"\1", self.renderer.render(markdown), flags=re.S)
        return Markup(re.sub(r'(<a href="(?!https?:)[^"#]*)#[^"]*"', r'\1"', html_text))

    def _points_markdown(self, slide: Slide) -> str:
        return self.writer.write_block(Text({self.language: slide.points[self.language]}, slide.line))

    def _render_inline(self, line: str, number: int) -> str:
        written = self.writer.write_block(Text({self.language: [(number, line)]}, number))
        return re.sub(r"</?p>|\n", "", self.render_markdown(written))

    def _render_figure(self, name: str, _: int, __: int) -> str:
        """Return the lab's figure, with its caption and alternative text."""
        for text in self.lab.text_pairs():
            for number, line in text.blocks[self.language]:
                figure = FIGURE.fullmatch(line)
                if figure and figure["path"] == f"figures/{name}.svg":
                    block = Text({self.language: [(number, line)]}, number)
                    return str(self.render_markdown(self.writer.write_block(block)))
        return ""

    def _render_player(self, request: Any, _: int, __: int) -> str:
        source = html.escape(player_page(request, self.language), quote=True)
        title = WORDS[self.language]["player"].format(request)
        return f'<div class="player"><iframe title="{title}" sandbox="allow-scripts" srcdoc="{source}"></iframe></div>'

    def _render_exercise(self, id: str, _: int, rows: int) -> str:
        return _render_code(find_stubs(self.lab)[id].source.strip(), rows)

    def _render_code(self, request: Any, _: int, rows: int) -> str:
        return _render_code(code_excerpt(self.lab, request), rows)

    def _render_outputs(self, reference: Any, number: int, rows: int, code: Optional[Any]) -> List[str]:
        """Return the outputs of the executed cell, in a size that leaves room for its code."""
        cell = copy.deepcopy(self.executed_cells[self.lab.code_cells().index(find_pointed_cell(self.lab, reference))])
        only_kind = reference.get("only") if isinstance(reference, dict) else None
        cell.outputs = [one for one in cell.outputs if only_kind in (None, _output_kind(one))]
        printed = [one for one in cell.outputs if _output_kind(one) == "printed"]
        lines = "\n".join(output.text.strip("\n") for output in printed).splitlines()
        if isinstance(reference, dict) and only_kind != "drawn":
            try:
                lines = select_lines(lines, reference)
            except LookupError as error:
                raise NotebookError(f"slide {number} of lab {self.lab.number}: {error}") from None
            if printed:
                printed[0].text = "\n".join(lines)
            cell.outputs = [output for output in cell.outputs if output not in printed[1:]]
        code_lines = len(code_excerpt(self.lab, code).splitlines()) if code else 0
        size = _font_size(len(lines) + code_lines, max(map(len, lines), default=1), rows)
        shown = "".join(render_outputs(cell, self.language, f"slide-{number}"))
        if not shown:
            raise NotebookError(
                f"slide {number} of lab {self.lab.number}: its cell ({reference}) has no output: choose a cell that "
                "prints or draws"
            )
        return [f'<div class="ran" style="font-size: {size}rem">{shown}</div>']


def _output_kind(output: Any) -> str:
    return "printed" if "text" in output else "drawn"


def _render_code(source: str, rows: int) -> str:
    lines = source.splitlines()
    size = _font_size(len(lines), max(map(len, lines)), rows)
    return f'<pre class="code" tabindex="0" style="font-size: {size}rem"><code>{highlight_code(source)}</code></pre>'


def _font_size(rows: int, columns: int, points: int) -> float:
    """Return the font size in rem of code below this many lines of text."""
    size_by_height = (CODE_HEIGHT - POINT_HEIGHT * points) / (LINE_HEIGHT * max(rows + 1, 1))
    return round(min(1.3, CODE_WIDTH / (LETTER_WIDTH * max(columns, 1)), size_by_height), 3)


def _template_values() -> Dict[str, Any]:
    values = template_values()
    for name, file in (("style", "slides.css"), ("script", "slides.js")):
        values[name] += Markup("\n" + (TEMPLATE / file).read_text(encoding="utf-8"))
    return values
