"""Check a lab's guesses: each has the calls predict, observe and because, in this order."""

from __future__ import annotations

import ast
from typing import Collection, Dict, List, Optional, Tuple

from gluonlab_labs.faults import Faults
from gluonlab_labs.source import Lab

CALLS = ("predict", "observe", "because")
_CALL_TEMPLATES = {
    "predict": 'predict("{}", ...)',
    "observe": 'with observe("{}", MEASURED): and what it shows',
    "because": 'because("{}", ...)',
}


def guess_ids(source: str, name: str) -> List[str]:
    """Return the ids of the guesses in a cell's calls of ``name``."""
    return [id for id, _ in _find_calls(source, name)]


def check_guesses(lab: Lab, registered: Optional[Collection[str]], faults: Faults) -> None:
    """Add to ``faults`` what a guess lacks; ``registered``: ids of all guesses, or None."""
    cells, cells_by_call = lab.code_cells(), {name: _cells_by_guess(lab, name) for name in CALLS}
    ids = list(dict.fromkeys(id for guess_cells in cells_by_call.values() for id in guess_cells))
    if not ids:
        return
    for place, id in enumerate(sorted(ids)):
        expected = f"{lab.number}-{chr(ord('a') + place)}"
        first_cell = min(guess_cells[id][0] for guess_cells in cells_by_call.values() if id in guess_cells)
        line = cells[first_cell].line
        if id != expected:
            faults.add(line, f"guess {id}: use the next id of lab {lab.number}, {expected}")
        for name in CALLS:
            if len(cells_by_call[name].get(id, [])) != 1:
                count = len(cells_by_call[name].get(id, []))
                call = _CALL_TEMPLATES[name].format(id)
                faults.add(line, f"guess {id}: {count} cells with {call}: write one")
        order = [cells_by_call[name][id][0] for name in CALLS if id in cells_by_call[name]]
        if sorted(set(order)) != order:
            faults.add(line, f"guess {id}: put predict, observe and because into three cells, in this order")
        if registered is not None and id not in registered:
            module = f"gluonlab/exercises/lab{lab.number}_TOPIC.py"
            call = f'register_guess("{id}", ...)'
            faults.add(line, f"the question of guess {id} is missing: write {call} in {module}")
    for id in sorted(one for one in registered or () if one[:2] == lab.number):
        if id not in ids:
            faults.add(1, f"guess {id} is registered, but no cell asks it: ask it or remove it")
    for cell in cells:
        for name in ("predict", "because"):
            if any(not unwritten for _, unwritten in _find_calls(cell.source, name)):
                faults.add(cell.line, f"{name} already has an answer: write ... for the learner to replace")
    ends = [cell.source for cell in cells if "surprises()" in cell.source]
    if ends != ["surprises()"] or cells[-1].source != "surprises()":
        faults.add(cells[-1].line, "write surprises() in the last code cell of a lab with guesses")


def _cells_by_guess(lab: Lab, name: str) -> Dict[str, List[int]]:
    """Return the numbers of the code cells that call ``name``, by the id of the guess."""
    cells: Dict[str, List[int]] = {}
    for number, cell in enumerate(lab.code_cells()):
        for id in guess_ids(cell.source, name):
            cells.setdefault(id, []).append(number)
    return cells


def _find_calls(source: str, name: str) -> List[Tuple[str, bool]]:
    """Return (id, whether it contains ``...``) of each call, in the order of the cell."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # %time and the like
        return []
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == name
        and node.args
        and isinstance(node.args[0], ast.Constant)
    ]
    calls.sort(key=lambda node: node.lineno)
    return [(str(node.args[0].value), _has_ellipsis(node)) for node in calls]  # type: ignore[attr-defined]


def _has_ellipsis(node: ast.Call) -> bool:
    return any(isinstance(part, ast.Constant) and part.value is ... for part in ast.walk(node))
