"""The exercises about schedules run without NumPy, MXNet and click, with the same results."""

import json
import subprocess
import sys

import pytest
from support.cell_texts import run_cell, solution_text, wrong_texts

from gluonlab.errors import ExerciseError
from gluonlab.exercises.browser_lab import BROWSER_EXERCISES, judge_cell
from gluonlab.exercises.browser_lab import run_cell as run_learners_cell
from gluonlab.exercises.languages import LANGUAGE_VARIABLE

PROGRAM = """
import json, sys
import gluonlab  # adds a finder, which must not come first
class RefuseMissing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numpy", "mxnet", "click"):
            raise ModuleNotFoundError(f"no {name} here", name=name)
sys.meta_path.insert(0, RefuseMissing())
from gluonlab.exercises.browser_lab import CELL_FILE, judge_cell
for id, name, text, language in json.load(sys.stdin):
    defined = {}
    exec(compile(text, CELL_FILE, "exec"), defined)
    print(judge_cell(id, text, defined[name], language))
assert not {"numpy", "mxnet", "click"} & set(sys.modules)
"""


def test_verdicts_texts_numbers_and_animations_are_the_same_without_numpy(monkeypatch):
    monkeypatch.setenv(LANGUAGE_VARIABLE, "en")  # restored after judge_cell has changed it
    cells = [(id, text) for id in BROWSER_EXERCISES for text in [solution_text(id), *wrong_texts(id)]]
    answers = [(id, text, language) for language in ("en", "ja") for id, text in cells]
    request = [(id, run_cell(id, text).__name__, text, language) for id, text, language in answers]
    command = [sys.executable, "-c", PROGRAM]
    result = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    without = [json.loads(line) for line in result.stdout.splitlines()]
    expected = [json.loads(judge_cell(id, text, run_cell(id, text), language)) for id, text, language in answers]
    assert without == expected
    assert [shown["status"] for shown in expected].count("passed") == 2 * len(BROWSER_EXERCISES)


def test_three_wrong_answers_of_each_exercise_are_refused():
    for id in BROWSER_EXERCISES:
        statuses = [json.loads(judge_cell(id, text, run_cell(id, text), "en"))["status"] for text in wrong_texts(id)]
        assert len(statuses) == 3 and "passed" not in statuses, (id, statuses)


def run_code(source, cell, filename):
    exec(compile(source, filename, "exec"), cell)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "your code does not define `tell_everybody`: keep the name of the function"),
        ("\n%%time\n", "`%%time` in line 2 is a Jupyter command, not Python code: delete the line"),
        ("!pip list\n", "`!pip list` in line 1 is a Jupyter command, not Python code: delete the line"),
        ("x = (1\n  2)\n", "SyntaxError: "),
        ("x = 1\nx.y\n", "AttributeError: 'int' object has no attribute 'y'\nin line 2: `x.y`"),
        ("raise SystemExit\n", "SystemExit\nin line 1: `raise SystemExit`"),
        ("raise KeyboardInterrupt\n", "KeyboardInterrupt\nin line 1: `raise KeyboardInterrupt`"),
        ("def tell_everybody():\n    raise KeyboardInterrupt('x')\n", "KeyboardInterrupt: x\nin line 2: `raise"),
        ("def tell_everybody():\n    raise NotImplementedError\n", "write the body of `tell_everybody`, then press"),
    ],
)  # fmt: skip
def test_a_cell_that_stops_is_explained(text, expected, monkeypatch):
    monkeypatch.setenv(LANGUAGE_VARIABLE, "en")  # restored after run_learners_cell has changed it
    shown = json.loads(run_learners_cell("10-1", "tell_everybody", text, "en", run_code))
    assert shown["status"] in ("raised", "unwritten")
    assert shown["message"].startswith(expected)


def test_an_error_outside_of_the_cell_is_raised(monkeypatch):
    """The page then restarts Python."""
    monkeypatch.setenv(LANGUAGE_VARIABLE, "en")
    with pytest.raises(ExerciseError):
        run_learners_cell("unknown", "answer", "answer = 1\n", "en", run_code)
