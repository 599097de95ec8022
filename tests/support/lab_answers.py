"""The exercises of the labs, and answers to them: solutions, other right ones, and mistakes."""

import ast
import dataclasses
import importlib.util
import json
import re
from functools import lru_cache
from pathlib import Path

from made_up_clock import run_on_a_made_up_clock

from gluonlab.exercises.checkers import (
    PASSED,
    TOO_SLOW,
    UNWRITTEN,
    find_exercise,
    judge_answer,
    lab_numbers,
)
from support.waiting import LIMIT_S

REPOSITORY = Path(__file__).resolve().parents[2]
JAPANESE = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")


@lru_cache(maxsize=None)
def load_answers(lab):
    """tests/labs/answers/labNN.py as a module: WRONG, and RIGHT where there is more than one."""
    path = REPOSITORY / "tests" / "labs" / "answers" / f"lab{lab}.py"
    spec = importlib.util.spec_from_file_location(f"answers_lab{lab}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lab_mistakes():
    """id -> its mistakes: (answer, what is said of it in English, and in Japanese)."""
    return {id: some for lab in lab_numbers() for id, some in load_answers(lab).WRONG.items()}


def alternative_answers():
    """id -> its right answers of another kind than the solution."""
    right = (getattr(load_answers(lab), "RIGHT", {}) for lab in lab_numbers())
    return {id: some for of_lab in right for id, some in of_lab.items()}


def judge_lab_answer(id, answer):
    """The verdict, however long this machine takes; 01-2 is about a clock, which is made up."""
    exercise = find_exercise(id)._replace(seconds=LIMIT_S)
    if id == "01-2":
        with run_on_a_made_up_clock():
            return judge_answer(exercise, answer)
    return judge_answer(exercise, answer)


def verdict_texts(verdict):
    """Return the sentence that a student reads, by language."""
    return {
        language: repr(dataclasses.replace(verdict, language=language)) for language in ("en", "ja")
    }


def find_verdict_fault(id, number):
    """What is wrong with the verdict on a mistake; empty where it is named in both languages."""
    answer, english, japanese = load_answers(id[:2]).WRONG[id][number]
    verdict = judge_lab_answer(id, answer)
    said_en, said_ja = verdict.texts["en"], verdict.texts["ja"]
    if verdict.status in (PASSED, TOO_SLOW, UNWRITTEN):
        return f"mistake {number} is {verdict.status}: {said_en!r}"
    if not re.search(english, said_en, re.M) or JAPANESE.search(said_en):
        return f"mistake {number}: {said_en!r} is not as {english!r}"
    if not re.search(japanese, said_ja, re.M) or not JAPANESE.search(said_ja):
        return f"mistake {number}: {said_ja!r} is not as {japanese!r}"
    return ""


@lru_cache(maxsize=None)
def notebook_cells(lab):
    """The code of a lab's notebook, cell by cell."""
    [path] = (REPOSITORY / "labs" / "en").glob(f"{lab}-*.ipynb")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return tuple("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


@lru_cache(maxsize=None)
def cell_imports(cells):
    """name -> the statement of these cells that imports it, or that sets up ``here``."""
    found = {}
    for node in (node for cell in cells for node in ast.parse(cell).body):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found.update({one.asname or one.name: node for one in node.names})
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "here":
            found["here"] = node
    return found


def define_cell_names(source, lab, cells=None):
    """What a cell of a lab defines: name -> value, in the order of the cell.

    It may count on what its lab imports, and on ``here``; only what it names is imported.
    ``cells``: the code of the lab; None: that of its notebook.
    """
    used = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    used |= {"setup"} if "here" in used else set()
    imports = cell_imports(notebook_cells(lab) if cells is None else tuple(cells))
    body = [node for name, node in imports.items() if name in used]
    names = {}
    exec(compile(ast.Module(body, []), f"lab{lab}", "exec"), names)
    imported = dict(names)
    exec(compile(source, f"/tmp/answer-{lab}.py", "exec"), names)
    return {name: value for name, value in names.items() if imported.get(name) is not value}


def load_solution(id):
    """What labs/solutions/ID.py defines last, which is the answer."""
    source = (REPOSITORY / "labs" / "solutions" / f"{id}.py").read_text(encoding="utf-8")
    return list(define_cell_names(source, id[:2]).values())[-1]
