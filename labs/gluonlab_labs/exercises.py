"""Find and check a lab's exercises: a heading, a stub, a check, a checker and a solution.

A stub is unwritten, and the next code cell checks it. A stub with the tag ``faulty`` is a function
with a fault to find, and a later cell checks it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Collection, Dict, List, Optional

from gluonlab_labs.faults import Faults
from gluonlab_labs.outline import Series
from gluonlab_labs.source import Code, Lab

FAULTY = "faulty"
TAG = re.compile(r"exercise-(?P<id>\d\d-\d+)")
CHECK = re.compile(r'check\("(?P<id>[^"]+)",\s*(?P<name>\w+)\)')


def find_stubs(lab: Lab) -> Dict[str, Code]:
    """Return the cells that students write, by the ids of their exercises."""
    return {match["id"]: cell for cell in lab.code_cells() for match in map(TAG.fullmatch, cell.tags) if match}


def solution_path(folder: Path, id: str) -> Path:
    """Return the path of a solution, ``labs/solutions/02-1.py``."""
    return folder / f"{id}.py"


def check_exercises(
    lab: Lab, series: Series, solutions: Path, checkers: Optional[Collection[str]], faults: Faults
) -> None:
    """Add to ``faults`` what an exercise lacks; ``checkers``: ids with a checker, or None."""
    cells, stub_cells, ids_with_heading = (lab.code_cells(), find_stubs(lab), series.outlines[lab.number].exercises)
    for id, cell in stub_cells.items():
        if id[:2] != lab.number:
            faults.add(cell.line, f"exercise-{id} is in lab {lab.number}: tag it exercise-{lab.number}-N")
        if id not in ids_with_heading:
            faults.add(
                cell.line, f"exercise {id} has no heading: write ### Exercise {id}: Title, and ### 演習 {id}: Title"
            )
        name = last_defined_name(cell.source)
        if name is None or _is_unwritten(cell.source) == (FAULTY in cell.tags):
            stub = "one function whose body ends with raise NotImplementedError, or one variable = ..."
            stub = "one function with a bug in it" if FAULTY in cell.tags else f"{stub} (or also tag it {FAULTY})"
            faults.add(cell.line, f"the cell of exercise {id} is not a stub: write {stub}")
        following = cells[cells.index(cell) + 1 :]
        if FAULTY in cell.tags:
            following = [one for one in following if CHECK.match(one.source)]
        _check_call(id, name, following, cell.line, faults)
        _check_solution(id, name, solution_path(solutions, id), cell.line, faults)
        if checkers is not None and id not in checkers:
            module = f"gluonlab/exercises/lab{lab.number}_TOPIC.py"
            faults.add(
                cell.line, f'exercise {id} does not have a checker: write one below @exercise("{id}") in {module}'
            )
    for id in ids_with_heading:
        if id not in stub_cells:
            faults.add(1, f"exercise {id} has a heading but no stub: tag its cell with :tags: [exercise-{id}]")
        if ids_with_heading.count(id) > 1:
            faults.add(1, f"exercise {id} has {ids_with_heading.count(id)} headings: number them consecutively")
    tags = [match["id"] for cell in cells for match in map(TAG.fullmatch, cell.tags) if match]
    for id in sorted(set(tags)):
        if tags.count(id) > 1:
            faults.add(stub_cells[id].line, f"exercise {id} has {tags.count(id)} stubs: tag only one cell")


def last_defined_name(source: str) -> Optional[str]:
    """Return the last function or variable that a stub or solution defines at top level."""
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return None
    names = [_defined_name(node) for node in body]
    return next(filter(None, reversed(names)), None)


def defined_names(source: str) -> List[str]:
    """Return all functions and variables that are defined at top level."""
    return [name for name in map(_defined_name, ast.parse(source).body) if name]


def _defined_name(node: ast.stmt) -> Optional[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return node.name
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return None


def _is_unwritten(source: str) -> bool:
    last = ast.parse(source).body[-1]
    if isinstance(last, (ast.FunctionDef, ast.ClassDef)):
        raised = [ast.dump(node) for node in ast.walk(last) if isinstance(node, ast.Raise)]
        return any("NotImplementedError" in one for one in raised)
    return isinstance(last, ast.Assign) and isinstance(last.value, ast.Constant) and last.value.value is ...


def _check_call(id: str, name: Optional[str], following: List[Code], line: int, faults: Faults) -> None:
    call = CHECK.search(following[0].source) if following else None
    if not call or call["id"] != id or (name and call["name"] != name):
        problem = f"is {following[0].source.splitlines()[0]}" if following and following[0].source else "is missing"
        faults.add(line, f'the code cell after exercise {id} {problem}: write check("{id}", {name or "NAME"})')


def _check_solution(id: str, name: Optional[str], path: Path, line: int, faults: Faults) -> None:
    solution = f"solutions/{path.name}"
    if not path.is_file():
        faults.add(line, f"the solution of exercise {id} is missing: write {solution}")
        return
    try:
        defined = defined_names(path.read_text(encoding="utf-8"))
    except SyntaxError as error:
        faults.add(line, f"{solution} is not valid Python: line {error.lineno}: {error.msg}")
        return
    if name and name not in defined:
        faults.add(line, f"{solution} does not define {name}: use the name from the stub of exercise {id}")
