"""Execute a lab once for both languages; repeat only cells whose output depends on the language."""

from __future__ import annotations

import ast
import copy
import os
from pathlib import Path
from typing import Any, Callable, Dict, Optional

from gluonlab.errors import NotebookError
from gluonlab.exercises.guesses import HANDOUT_VARIABLE
from gluonlab.files.atomic_files import temporary_folder
from gluonlab_labs.kernel import Kernel, start_kernel
from gluonlab_labs.source import LANGUAGES

LAB_SECONDS = 600.0  # for one lab; they take less than 120 on two cores
REPOSITORY = Path(__file__).resolve().parent.parent.parent
_LANGUAGE_FUNCTIONS = {"because", "check", "predict", "setup", "surprises"}
_LANGUAGE_ATTRIBUTES = {"language", "play"}  # attributes: here.language, PUZZLES["10-1"].play(function)
# an expression, which defines no name in the notebook
_SET_LANGUAGE = '__import__("gluonlab.exercises", fromlist=["language"]).language("{}")'


def execute_lab(
    notebooks: Dict[str, Any],
    on_cell: Optional[Callable[[], None]] = None,
    finish: Optional[Callable[[Kernel], None]] = None,
) -> None:
    """Execute the notebooks of one lab, {language: notebook}, in place; their code runs once.

    ``finish``: called with the kernel after the last cell. Raises NotebookError, which names the
    lab.
    """
    first, others = LANGUAGES[0], LANGUAGES[1:]
    notebook = notebooks[first]
    with temporary_folder("lab") as folder:
        notebook_folder = folder / first
        notebook_folder.mkdir()
        path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        try:
            with start_kernel(
                notebook, notebook_folder, LAB_SECONDS, PYTHONPATH=path, **{HANDOUT_VARIABLE: "1"}
            ) as kernel:
                for index in range(len(notebook.cells)):
                    kernel.run(index)
                    for language in others:
                        notebooks[language].cells[index] = _translated_cell(
                            kernel, index, notebook, notebooks[language], language
                        )
                    if on_cell:
                        on_cell()
                if finish:
                    finish(kernel)
        except NotebookError as error:
            raise NotebookError(f"lab {notebook.metadata.gluonlab.lab}: {error}") from None


def _translated_cell(kernel: Kernel, index: int, notebook: Any, other: Any, language: str) -> Any:
    """Return the cell of the other language with its outputs."""
    cell, other_cell = notebook.cells[index], other.cells[index]
    if cell.cell_type != "code":
        return other_cell
    if not depends_on_language(cell.source):
        return copy.deepcopy(cell)
    kernel.evaluate(_SET_LANGUAGE.format(language))
    executed = kernel.rerun(index)
    kernel.evaluate(_SET_LANGUAGE.format(LANGUAGES[0]))
    return executed


def depends_on_language(source: str) -> bool:
    """Return whether the output of a cell depends on the notebook's language."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # %time and the like
        return False
    called_functions = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return bool(_LANGUAGE_ATTRIBUTES & attributes) or any(
        isinstance(function, ast.Name) and function.id in _LANGUAGE_FUNCTIONS for function in called_functions
    )
