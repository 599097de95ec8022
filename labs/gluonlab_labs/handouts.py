"""Write the labs as executed, self-contained HTML pages, with an index of both languages."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, Dict

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup
from tqdm import tqdm

import gluonlab
from gluonlab.exercises.guesses import find_guess
from gluonlab.files.atomic_files import create_writable_folder, write_text
from gluonlab_labs import dark
from gluonlab_labs.build import LabFolders
from gluonlab_labs.execute import execute_lab
from gluonlab_labs.faults import Faults
from gluonlab_labs.figures import svg_in_language
from gluonlab_labs.guesses import guess_ids
from gluonlab_labs.markdown import Renderer, code_style, highlight_code
from gluonlab_labs.notebook import make_notebook
from gluonlab_labs.outline import Series
from gluonlab_labs.outputs import render_outputs
from gluonlab_labs.source import LANGUAGES, Lab
from gluonlab_labs.words import OTHER, WORDS

TEMPLATE = Path(__file__).resolve().parent / "template"


def write_handouts(series: Series, folders: LabFolders, root: Path, solutions: bool = False) -> None:
    """Execute every lab, and write its pages and the index below ``root``.

    Raises NotebookError, OutputError.
    """
    notebooks = {
        lab.number: {
            language: make_notebook(lab, language, series, Faults(lab.path), folders.solutions if solutions else None)
            for language in LANGUAGES
        }
        for lab in series.labs
    }
    with create_writable_folder(root):
        total = sum(len(lab_notebooks["en"].cells) for lab_notebooks in notebooks.values())
        with tqdm(total=total, unit="cell", desc="handouts", dynamic_ncols=True) as bar:
            for lab in series.labs:
                bar.set_postfix_str(lab.name)
                execute_lab(notebooks[lab.number], on_cell=bar.update)
                write_pages(series, lab, notebooks[lab.number], folders, root)
        write_index(series, root)
    print(f"wrote {len(series.labs)} labs in {len(LANGUAGES)} languages: open {root / 'index.html'}")


def write_pages(series: Series, lab: Lab, executed: Dict[str, Any], folders: LabFolders, root: Path) -> None:
    """Write the pages of one lab; ``executed``: {language: notebook with outputs}."""
    for language in LANGUAGES:
        with create_writable_folder(root / language):
            write_text(root / language / f"{lab.name}.html", render_page(series, lab, executed[language], folders))


def write_index(series: Series, root: Path) -> None:
    """Write index.html, which links to every page."""
    template = template_environment().get_template("index.html")
    write_text(
        root / "index.html",
        template.render(labs=series.labs, languages=LANGUAGES, language=LANGUAGES[0], **template_values()),
    )


def render_page(series: Series, lab: Lab, executed: Any, folders: LabFolders) -> str:
    """Return the HTML page of one notebook."""
    language = executed.metadata.gluonlab.language

    @lru_cache(maxsize=None)
    def picture(name: str) -> str:
        return svg_in_language(folders.figures / f"{name}.svg", language)

    renderer = Renderer(picture)
    cells = [_render_cell(cell, renderer, language, f"cell-{number}") for number, cell in enumerate(executed.cells)]
    index = list(series.labs).index(lab)
    return (
        template_environment()
        .get_template("page.html")
        .render(
            lab=lab,
            language=language,
            other=OTHER[language],
            cells=cells,
            headings=[(heading.id, Markup(heading.title)) for heading in renderer.headings],
            before=series.labs[index - 1] if index else None,
            after=series.labs[index + 1] if index + 1 < len(series.labs) else None,
            **template_values(),
        )
    )


def _render_cell(cell: Any, renderer: Renderer, language: str, id: str) -> Dict[str, Any]:
    if cell.cell_type == "markdown":
        return {"kind": "text", "html": Markup(renderer.render(cell.source))}
    tags = cell.metadata.get("tags", [])
    return {
        "kind": "code",
        "html": Markup(highlight_code(cell.source)),
        "outputs": [Markup(output) for output in render_outputs(cell, language, id)],
        "exercise": next((tag[9:] for tag in tags if tag.startswith("exercise-")), None),
        "question": " ".join(find_guess(guess).question[language] for guess in guess_ids(cell.source, "observe")),
    }


def template_values() -> Dict[str, Any]:
    """Return the values that all templates get."""
    style = (TEMPLATE / "style.css").read_text(encoding="utf-8") + dark.dark_style()
    script = (TEMPLATE / "page.js").read_text(encoding="utf-8")
    return {
        "style": Markup(style + code_style()),
        "script": Markup(script),
        "words": WORDS,
        "version": gluonlab.__version__,
    }


def template_environment() -> Environment:
    """Return the Jinja environment of the templates."""
    return Environment(loader=FileSystemLoader(TEMPLATE), autoescape=True, trim_blocks=True, lstrip_blocks=True)
