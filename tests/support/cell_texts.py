"""Answers to the exercises about schedules as texts of notebook cells."""

import re

from gluonlab.exercises.browser_lab import CELL_FILE
from support.lab_answers import REPOSITORY, load_answers

WRONG_ANSWERS = 3  # as many of each exercise

# Changes of the solutions of 05-4 to 05-6.
CHANGES = {
    "05-4": [("max(forward)", "forward[0]"), ("1 - microbatches", "microbatches"), ("return [1", "return [0.5 or 1")],
    "05-5": [("ahead < devices - device", "True"), ("devices - device", "1"), ("(\"backward\"", "(\"back\"")],
    "05-6": [("range(7)", "range(2)"), ("return min", "return max"), ("return [1 - ", "return [")],
}  # fmt: skip


def solution_text(id):
    return (REPOSITORY / "labs" / "solutions" / f"{id}.py").read_text(encoding="utf-8")


def function_name(id):
    return re.search(r"^def (\w+)", solution_text(id), re.M)[1]


def wrong_texts(id):
    """Return three cells with mistakes that students make."""
    if id in CHANGES:
        texts = [solution_text(id).replace(*change) for change in CHANGES[id]]
        assert solution_text(id) not in texts
        return texts
    name, texts = function_name(id), []
    for answer, *_ in load_answers(id[:2]).WRONG[id][:WRONG_ANSWERS]:
        steps = [[tuple(transfer) for transfer in step] for step in getattr(answer(), "steps", None) or answer()]
        texts.append(f"def {name}():\n    return {steps!r}\n")
    return texts


def run_cell(id, text):
    """Return the function that a cell defines."""
    defined = {}
    exec(compile(text, CELL_FILE, "exec"), defined)
    return defined[function_name(id)]
