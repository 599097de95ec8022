"""Run a lab once for both languages; only cells whose output depends on the language run again."""

from __future__ import annotations

import ast
import copy
import os
from pathlib import Path
from typing import Any, Callable, Dict, Optional

from gluonlab.errors import NotebookError
from gluonlab.exercises.guesses import HANDOUT_VARIABLE
from gluonlab.files.atomic_files import temporary_folder
from gluonlab_labs.kernel import Kernel, start
from gluonlab_labs.source import LANGUAGES

SECONDS = 600.0  # for one lab; they take less than 120 on two cores
REPOSITORY = Path(__file__).resolve().parent.parent.parent
_SPEAK = {"because", "check", "predict", "setup", "surprises"}
_OF_A_LANGUAGE = {"language", "play"}  # attributes: here.language, PUZZLES["10-1"].play(function)
# leaves no name behind
_SAY = '__import__("gluonlab.exercises", fromlist=["language"]).language("{}")'


def execute(
    notebooks: Dict[str, Any],
    on_cell: Optional[Callable[[], None]] = None,
    finish: Optional[Callable[[Kernel], None]] = None,
    seconds: float = SECONDS,
) -> None:
    """Give the notebooks of one lab, {language: notebook}, their outputs; their code runs once.

    ``finish``: called with the kernel after the last cell. Raises NotebookError, which names the
    lab.
    """
    first, others = LANGUAGES[0], LANGUAGES[1:]
    notebook = notebooks[first]
    with temporary_folder("lab") as folder:
        place = folder / first
        place.mkdir()
        path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        try:
            with start(
                notebook, place, seconds, PYTHONPATH=path, **{HANDOUT_VARIABLE: "1"}
            ) as kernel:
                for index in range(len(notebook.cells)):
                    kernel.run(index)
                    for language in others:
                        notebooks[language].cells[index] = _other(
                            kernel, index, notebook, notebooks[language], language
                        )
                    if on_cell:
                        on_cell()
                if finish:
                    finish(kernel)
        except NotebookError as error:
            raise NotebookError(f"lab {notebook.metadata.gluonlab.lab}: {error}") from None


def _other(kernel: Kernel, index: int, notebook: Any, other: Any, language: str) -> Any:
    """The cell of the other language with its outputs."""
    cell, own = notebook.cells[index], other.cells[index]
    if cell.cell_type != "code":
        return own
    if not speaks(cell.source):
        return copy.deepcopy(cell)
    kernel.ask(_SAY.format(language))
    said = kernel.again(index)
    kernel.ask(_SAY.format(LANGUAGES[0]))
    return said


def speaks(source: str) -> bool:
    """Whether the output of a cell depends on the notebook's language."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # %time and the like
        return False
    called = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    asked = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return bool(_OF_A_LANGUAGE & asked) or any(
        isinstance(function, ast.Name) and function.id in _SPEAK for function in called
    )
