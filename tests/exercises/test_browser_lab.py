"""The exercises about schedules run without NumPy, MXNet and click, with the same results."""

import json
import subprocess
import sys

from support.cell_texts import run_cell, solution_text, wrong_texts

from gluonlab.exercises.browser_lab import BROWSER_EXERCISES, judge_cell
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
