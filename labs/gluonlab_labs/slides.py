"""The lecture decks as HTML pages that need no other file, and an index of both languages."""

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
from gluonlab_labs.build import Place
from gluonlab_labs.deck import Slide, automatic_deck, excerpt, pointed_cell, read_deck, some_lines
from gluonlab_labs.execute import execute
from gluonlab_labs.exercises import stubs
from gluonlab_labs.faults import Faults
from gluonlab_labs.figures import in_language
from gluonlab_labs.handouts import TEMPLATE, common, environment
from gluonlab_labs.markdown import Renderer, code
from gluonlab_labs.notebook import notebook
from gluonlab_labs.notes import goals, notes
from gluonlab_labs.outline import FIGURE, Series
from gluonlab_labs.outputs import outputs
from gluonlab_labs.players import player
from gluonlab_labs.source import LANGUAGES, Lab, Text
from gluonlab_labs.text import Writer
from gluonlab_labs.words import OTHER, WORDS

# Of a slide, in rem: the width of a line of code, and the height that all code on it shares.
WIDE, HIGH = 56.5, 26.0
POINT = 2.2  # the height that a line of text takes from the code below it
ADVANCE = 0.605  # of a monospaced letter, in its font's size
LEAD = 1.4


def write_slides(series: Series, place: Place, root: Path) -> None:
    """Execute the labs whose decks show outputs, and write all decks and the index below ``root``.

    Raises NotebookError, OutputError.
    """
    decks = {lab.number: deck_of(lab, series, place) for lab in series.labs}
    made = {
        lab.number: {
            language: notebook(lab, language, series, Faults(lab.path)) for language in LANGUAGES
        }
        for lab in series.labs
    }
    asked = [
        number for number, deck in decks.items() if any("output" in one.options for one in deck)
    ]
    with create_writable_folder(root):
        total = sum(len(made[number]["en"].cells) for number in asked)
        with tqdm(total=total, unit="cell", desc="slides", dynamic_ncols=True) as bar:
            for lab in series.labs:
                bar.set_postfix_str(lab.name)
                if lab.number in asked:
                    execute(made[lab.number], on_cell=bar.update)
                write_deck(series, lab, decks[lab.number], made[lab.number], place, root)
        write_index(series, decks, root)
    print(f"{len(decks)} decks in {len(LANGUAGES)} languages: open {root / 'index.html'}")


def deck_of(lab: Lab, series: Series, place: Place) -> List[Slide]:
    """The lab's slides, as they are written, or else as its text gives them."""
    path = place.slides / lab.path.name
    return read_deck(path, lab, Faults(path)) if path.is_file() else automatic_deck(lab, series)


def write_deck(
    series: Series,
    lab: Lab,
    deck: List[Slide],
    executed: Dict[str, Any],
    place: Place,
    root: Path,
) -> None:
    """The pages of one lab; ``executed``: {language: notebook with outputs}."""
    for language in LANGUAGES:
        with create_writable_folder(root / language):
            write_text(
                root / language / f"{lab.name}.html",
                page(series, lab, deck, executed[language], place),
            )


def write_index(series: Series, decks: Dict[str, List[Slide]], root: Path) -> None:
    """index.html, which leads to every deck."""
    template = environment().get_template("slides_index.html")
    counts = {number: len(deck) + 1 for number, deck in decks.items()}
    write_text(
        root / "index.html",
        template.render(
            labs=series.labs, counts=counts, languages=LANGUAGES, language=LANGUAGES[0], **_common()
        ),
    )


def page(series: Series, lab: Lab, deck: List[Slide], executed: Any, place: Place) -> str:
    """One deck in the language of the notebook."""
    language = executed.metadata.gluonlab.language

    @lru_cache(maxsize=None)
    def picture(name: str) -> str:
        return in_language(place.figures / f"{name}.svg", language)

    writer = Writer(lab, language, series, Faults(lab.path))
    show = _Show(lab, writer, executed, picture)
    pairs = zip(deck, [*deck[1:], None])
    shown = [show.slide(slide, after, number) for number, (slide, after) in enumerate(pairs, 2)]
    return (
        environment()
        .get_template("slides.html")
        .render(
            lab=lab,
            language=language,
            other=OTHER[language],
            slides=shown,
            goals=show.html(goals(lab, writer)),
            **_common(),
        )
    )


class _Show:
    """Makes the HTML of one deck's slides."""

    def __init__(
        self, lab: Lab, writer: Writer, executed: Any, picture: Callable[[str], str]
    ) -> None:
        self.lab, self.writer, self.language = lab, writer, writer.language
        self.renderer = Renderer(picture)
        self.ran = [cell for cell in executed.cells if cell.cell_type == "code"]

    def slide(self, slide: Slide, after: Optional[Slide], number: int) -> Dict[str, Any]:
        """What the template shows."""
        options, text = slide.options, self._written(slide)
        rows = 0 if not text else sum(bool(line.strip()) for line in text.splitlines())
        shown = [
            make(options[kind], number, rows)
            for kind, make in (
                ("figure", self._figure),
                ("player", self._player),
                ("exercise", self._exercise),
                ("code", self._code),
            )
            if kind in options
        ]
        if "output" in options:
            shown += self._outputs(options["output"], number, rows, options.get("code"))
        kind = "ask" if options.get("ask") else next(iter(options), "text")
        return {
            "number": number,
            "kind": kind if shown or kind == "ask" else "text",
            "title": Markup(self._inline(slide.titles[self.language], slide.line)),
            "points": self.html(text),
            "shown": [Markup(one) for one in shown],
            "notes": self.html(notes(slide, after, self.lab, self.writer)),
        }

    def html(self, markdown: str) -> Markup:
        """Links to places of the lab lose their place, which a deck does not have."""
        made = re.sub(
            r'<a href="#[^"]*">(.*?)</a>', r"\1", self.renderer.render(markdown), flags=re.S
        )
        return Markup(re.sub(r'(<a href="(?!https?:)[^"#]*)#[^"]*"', r'\1"', made))

    def _written(self, slide: Slide) -> str:
        return self.writer.block(Text({self.language: slide.points[self.language]}, slide.line))

    def _inline(self, line: str, number: int) -> str:
        written = self.writer.block(Text({self.language: [(number, line)]}, number))
        return re.sub(r"</?p>|\n", "", self.html(written))

    def _figure(self, name: str, _: int, __: int) -> str:
        """The lab's figure, with its caption and alternative text."""
        for text in self.lab.texts():
            for number, line in text.blocks[self.language]:
                figure = FIGURE.fullmatch(line)
                if figure and figure["path"] == f"figures/{name}.svg":
                    block = Text({self.language: [(number, line)]}, number)
                    return str(self.html(self.writer.block(block)))
        return ""

    def _player(self, asked: Any, _: int, __: int) -> str:
        source = html.escape(player(asked, self.language), quote=True)
        title = WORDS[self.language]["player"].format(asked)
        return (
            f'<div class="player"><iframe title="{title}" sandbox="allow-scripts" '
            f'srcdoc="{source}"></iframe></div>'
        )

    def _exercise(self, id: str, _: int, rows: int) -> str:
        return _shown_code(stubs(self.lab)[id].source.strip(), rows)

    def _code(self, asked: Any, _: int, rows: int) -> str:
        return _shown_code(excerpt(self.lab, asked), rows)

    def _outputs(self, asked: Any, number: int, rows: int, code: Optional[Any]) -> List[str]:
        """What the cell put out when it ran, which leaves room for the code above it."""
        cell = copy.deepcopy(self.ran[self.lab.codes().index(pointed_cell(self.lab, asked))])
        only = asked.get("only") if isinstance(asked, dict) else None
        cell.outputs = [one for one in cell.outputs if only in (None, _kind(one))]
        printed = [one for one in cell.outputs if _kind(one) == "printed"]
        lines = "\n".join(output.text.strip("\n") for output in printed).splitlines()
        if isinstance(asked, dict) and only != "drawn":
            try:
                lines = some_lines(lines, asked)
            except LookupError as error:
                raise NotebookError(f"slide {number} of lab {self.lab.number}: {error}") from None
            if printed:
                printed[0].text = "\n".join(lines)
            cell.outputs = [output for output in cell.outputs if output not in printed[1:]]
        above = len(excerpt(self.lab, code).splitlines()) if code else 0
        size = _size(len(lines) + above, max(map(len, lines), default=1), rows)
        shown = "".join(outputs(cell, self.language, f"slide-{number}"))
        if not shown:
            raise NotebookError(
                f"slide {number} of lab {self.lab.number}: its cell ({asked}) has put out nothing: "
                "choose the one that prints or draws"
            )
        return [f'<div class="ran" style="font-size: {size}rem">{shown}</div>']


def _kind(output: Any) -> str:
    return "printed" if "text" in output else "drawn"


def _shown_code(source: str, rows: int) -> str:
    lines = source.splitlines()
    size = _size(len(lines), max(map(len, lines)), rows)
    return (
        f'<pre class="code" tabindex="0" style="font-size: {size}rem">'
        f"<code>{code(source)}</code></pre>"
    )


def _size(rows: int, columns: int, points: int) -> float:
    """The size in rem in which so much code can stand below so many lines of text."""
    high = (HIGH - POINT * points) / (LEAD * max(rows + 1, 1))
    return round(min(1.3, WIDE / (ADVANCE * max(columns, 1)), high), 3)


def _common() -> Dict[str, Any]:
    made = common()
    for name, file in (("style", "slides.css"), ("script", "slides.js")):
        made[name] += Markup("\n" + (TEMPLATE / file).read_text(encoding="utf-8"))
    return made
