"""The guesses of a lab: each is asked, then observed, then explained, and all end in one table."""

from __future__ import annotations

import ast
from typing import Collection, Dict, List, Optional, Tuple

from gluonlab_labs.faults import Faults
from gluonlab_labs.source import Lab

CALLS = ("predict", "observe", "because")
_UNWRITTEN = {
    "predict": 'predict("{}", ...)',
    "observe": 'with observe("{}", MEASURED): and what it shows',
    "because": 'because("{}", ...)',
}


def ids_in(source: str, name: str) -> List[str]:
    """The ids of the guesses in calls of ``name`` in a cell."""
    return [id for id, _ in _calls(source, name)]


def check_guesses(lab: Lab, registered: Optional[Collection[str]], faults: Faults) -> None:
    """What a guess lacks goes to ``faults``.

    ``registered``: the ids that have a question, of all labs; None: not asked.
    """
    cells, found = lab.codes(), {name: _by_id(lab, name) for name in CALLS}
    ids = list(dict.fromkeys(id for of in found.values() for id in of))
    if not ids:
        return
    for place, id in enumerate(sorted(ids)):
        expected = f"{lab.number}-{chr(ord('a') + place)}"
        at = min(of[id][0] for of in found.values() if id in of)
        line = cells[at].line
        if id != expected:
            faults.add(line, f"guess {id}: the next one of lab {lab.number} is {expected}")
        for name in CALLS:
            if len(found[name].get(id, [])) != 1:
                count = len(found[name].get(id, []))
                call = _UNWRITTEN[name].format(id)
                faults.add(line, f"guess {id}: {count} cells with {call}: write one")
        order = [found[name][id][0] for name in CALLS if id in found[name]]
        if sorted(set(order)) != order:
            faults.add(
                line,
                f"guess {id}: predict, observe and because stand in three cells, in this order",
            )
        if registered is not None and id not in registered:
            module = f"gluonlab/exercises/lab{lab.number}.py"
            call = f'register_guess("{id}", ...)'
            faults.add(line, f"guess {id} has no question: write {call} in {module}")
    for id in sorted(one for one in registered or () if one[:2] == lab.number):
        if id not in ids:
            faults.add(1, f"guess {id} is registered, and asked in no cell: ask or remove it")
    for cell in cells:
        for name in ("predict", "because"):
            if any(not unwritten for _, unwritten in _calls(cell.source, name)):
                faults.add(cell.line, f"{name} is answered: write ... for the learner to replace")
    ends = [cell.source for cell in cells if "surprises()" in cell.source]
    if ends != ["surprises()"] or cells[-1].source != "surprises()":
        faults.add(cells[-1].line, "the last code cell of a lab with guesses is surprises()")


def _by_id(lab: Lab, name: str) -> Dict[str, List[int]]:
    """id -> the numbers of the code cells that call ``name`` with it."""
    found: Dict[str, List[int]] = {}
    for number, cell in enumerate(lab.codes()):
        for id in ids_in(cell.source, name):
            found.setdefault(id, []).append(number)
    return found


def _calls(source: str, name: str) -> List[Tuple[str, bool]]:
    """(id, whether ``...`` stands in it) of each call, in the order of the cell."""
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
