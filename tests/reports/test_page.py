"""docs/reports.md has a row for every program of this folder, and for no other."""

import ast
import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PAGE = FOLDER.parent.parent / "docs" / "reports.md"


def reports_of(module):
    """The report in the first line of each test's docstring."""
    tests = ast.parse((FOLDER / module).read_text(encoding="utf-8")).body
    docstrings = [
        ast.get_docstring(test) for test in tests if isinstance(test, ast.FunctionDef) and test.name.startswith("test_")
    ]
    return [text.splitlines()[0] for text in docstrings]


def test_the_tables_have_the_programs_in_their_order():
    _, loops, runs = re.split("^## .*$", PAGE.read_text(encoding="utf-8"), flags=re.M)
    for part, module in ((loops, "test_own_loops.py"), (runs, "test_trainings.py")):
        rows = [line for line in part.splitlines() if line.startswith("| [")]
        assert all(len(re.split(r"(?<!\\)\|", row)) == 6 for row in rows)
        assert [re.match(r"\| \[[^]]+\]\(([^)]+)\)", row).group(1) for row in rows] == reports_of(module)


def test_there_are_thirty_programs_at_least():
    found = reports_of("test_own_loops.py") + reports_of("test_trainings.py")
    assert len(found) == len(set(found)) >= 30
