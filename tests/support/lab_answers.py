"""The exercises of the labs, and answers to them: solutions, other right ones, and mistakes."""

import ast
import dataclasses
import importlib.util
import json
import re
from functools import lru_cache
from pathlib import Path

from made_up_clock import run_on_a_made_up_clock

from gluonlab.exercises.exercise_registry import PASSED, TOO_SLOW, UNWRITTEN, find_exercise, judge_answer, lab_modules
from support.waiting import LIMIT_S

REPOSITORY = Path(__file__).resolve().parents[2]
JAPANESE = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")


@lru_cache(maxsize=None)
def load_answers(lab):
    """Import tests/labs/answers/labNN.py, which has WRONG, and RIGHT for alternative answers."""
    path = REPOSITORY / "tests" / "labs" / "answers" / f"lab{lab}.py"
    spec = importlib.util.spec_from_file_location(f"answers_lab{lab}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lab_mistakes():
    """Return {exercise id: mistakes}, each (answer, English pattern, Japanese pattern)."""
    return {id: wrong for lab in lab_modules() for id, wrong in load_answers(lab).WRONG.items()}


def alternative_answers():
    """Return {exercise id: right answers that differ from the solution}."""
    right = (getattr(load_answers(lab), "RIGHT", {}) for lab in lab_modules())
    return {id: answers for lab_answers in right for id, answers in lab_answers.items()}


def judge_lab_answer(id, answer):
    """Return the verdict on an answer, without a time limit; exercise 01-2 gets a fake clock."""
    exercise = find_exercise(id)._replace(seconds=LIMIT_S)
    if id == "01-2":
        with run_on_a_made_up_clock():
            return judge_answer(exercise, answer)
    return judge_answer(exercise, answer)


def verdict_texts(verdict):
    """Return the sentence that a student reads, by language."""
    return {language: repr(dataclasses.replace(verdict, language=language)) for language in ("en", "ja")}


def find_verdict_fault(id, number):
    """Return the fault of the verdict on a mistake, or "" if both languages name the mistake."""
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
    """Return the code of each cell of a lab's notebook."""
    [path] = (REPOSITORY / "labs" / "en").glob(f"{lab}-*.ipynb")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return tuple("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


@lru_cache(maxsize=None)
def cell_imports(cells):
    """Return {name: statement that imports it}, with the statement that sets up ``here``."""
    statements = {}
    for node in (node for cell in cells for node in ast.parse(cell).body):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            statements.update({alias.asname or alias.name: node for alias in node.names})
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "here":
            statements["here"] = node
    return statements


def define_cell_names(source, lab, cells=None):
    """Run a cell of a lab; return {name: value} of its definitions, in their order.

    The cell may use the imports of its lab, and ``here``. ``cells``: the code of the lab, by
    default that of its notebook.
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
    """Return the answer in labs/solutions/ID.py, which is its last definition."""
    source = (REPOSITORY / "labs" / "solutions" / f"{id}.py").read_text(encoding="utf-8")
    return list(define_cell_names(source, id[:2]).values())[-1]
