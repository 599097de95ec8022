"""docs/faq.md has one row for every program in this folder."""

import ast
import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PAGE = FOLDER.parent.parent / "docs" / "faq.md"


def list_reports(module):
    """Return the first line of each test's docstring, which is the report's address."""
    nodes = ast.parse((FOLDER / module).read_text(encoding="utf-8")).body
    tests = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    return [ast.get_docstring(test).splitlines()[0] for test in tests]


def test_the_tables_have_the_programs_in_their_order():
    _, section = PAGE.read_text(encoding="utf-8").split("## Programs from public reports\n")
    _, *parts = re.split("^### .*$", section, flags=re.M)
    all_reports = []
    for part, module in zip(parts, ("test_own_loops.py", "test_trainings.py")):
        rows, reports = [line for line in part.splitlines() if line.startswith("| [")], list_reports(module)
        assert all(len(re.split(r"(?<!\\)\|", row)) == 6 for row in rows)
        assert [re.match(r"\| \[[^]]+\]\(([^)]+)\)", row).group(1) for row in rows] == reports
        all_reports += reports
    assert len(all_reports) == len(set(all_reports)) >= 30
