"""Guesses in a notebook: nothing of a result is seen before; and what a source can get wrong."""

import re

import nbformat
import pytest
from made_up_lab import SOURCE
from the_labs import REPOSITORY

from gluonlab_labs.build import LabFolders, read_labs
from gluonlab_labs.faults import SourceError
from gluonlab_labs.kernel import execute_notebook

FIRST = """
from gluonlab.exercises import because, observe, predict, surprises
from IPython.display import Image, display
"""
MEASURING = """
seconds = 0.75
with observe("01-a", seconds):
    print("it took", seconds)
    handle = display({"text/plain": "a picture"}, raw=True, display_id=True)
    handle.update({"text/plain": "another picture"}, raw=True)
"""


def outputs_of(guessed, tmp_path):
    cells = [FIRST, f'predict("01-a", {guessed})', MEASURING, "print(seconds)"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in cells])
    execute_notebook(notebook, tmp_path, 300, PYTHONPATH=str(REPOSITORY), GLUONLAB_LANGUAGE="en")
    return [cell.outputs for cell in notebook.cells]


def test_a_notebook_without_a_guess_runs_to_its_end_and_shows_one_line_for_each_result(tmp_path):
    *_, measuring, last = outputs_of("...", tmp_path)
    [line] = measuring
    assert line.text == "Guess 01-a comes first: write it above, run its cell, then this one.\n"
    assert last[0].text == "0.75\n"


def test_with_a_guess_everything_is_shown_and_compared(tmp_path):
    *_, measuring, _ = outputs_of("0.5", tmp_path)
    printed = "".join(output.get("text", "") for output in measuring)
    assert printed.startswith("it took 0.75\n")
    assert "your guess 0.5, measured 0.75: a surprise" in printed
    assert any("another picture" in str(output.get("data")) for output in measuring)


def cell(code):
    return f"\n```{{code-cell}} ipython3\n{code}\n```\n"


PREDICT, OBSERVE = 'predict("01-a", ...)', 'with observe("01-a", 1):\n    pass'
BECAUSE = 'because("01-a", ...)'
WHOLE = [PREDICT, OBSERVE, BECAUSE, "surprises()"]


def faults_of(cells, folder, questions=("01-a",)):
    (folder / "source" / "figures").mkdir(parents=True)
    source = SOURCE.replace("{lab:02}", "{sec:work}") + "".join(map(cell, cells))
    (folder / "source" / "01-adding.md").write_text(source, encoding="utf-8")
    try:
        read_labs(LabFolders(folder), None, questions)
    except SourceError as error:
        return [line for line in str(error).splitlines() if "figures/" not in line]
    return []


def of_guesses(lines):
    said = [line.split(".md:")[1] for line in lines]
    return [line for line in said if re.search("guess|predict|because", line)]


def test_a_whole_guess_has_no_fault(tmp_path):
    assert of_guesses(faults_of(WHOLE, tmp_path)) == []


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ([PREDICT, OBSERVE, "surprises()"], '0 cells with because("01-a", ...): write one'),
        ([PREDICT, BECAUSE, "surprises()"], '0 cells with with observe("01-a", MEASURED)'),
        ([OBSERVE, BECAUSE, "surprises()"], '0 cells with predict("01-a", ...)'),
        ([PREDICT, OBSERVE, OBSERVE, BECAUSE, "surprises()"], "2 cells with with observe"),
        ([OBSERVE, PREDICT, BECAUSE, "surprises()"], "into three cells, in this order"),
        ([PREDICT + "\n" + OBSERVE, BECAUSE, "surprises()"], "into three cells, in this order"),
        (['predict("01-a", 0.5)', *WHOLE[1:]], "predict already has an answer: write ..."),
        ([*WHOLE[:2], 'because("01-a", "why")', WHOLE[3]], "because already has an answer: write ..."),
        (WHOLE[:3], "write surprises() in the last code cell of a lab with guesses"),
        ([*WHOLE, "1 + 1"], "write surprises() in the last code cell of a lab with guesses"),
        ([one.replace("01-a", "01-c") for one in WHOLE], "use the next id of lab 01, 01-a"),
        ([one.replace("01-a", "02-a") for one in WHOLE], "use the next id of lab 01, 01-a"),
    ],
)
def test_a_fault_of_a_guess_is_one_line(cells, said, tmp_path):
    assert any(said in line for line in of_guesses(faults_of(cells, tmp_path)))


def test_a_guess_and_its_question_need_each_other(tmp_path):
    [line] = of_guesses(faults_of(WHOLE, tmp_path / "one", questions=()))
    assert 'write register_guess("01-a", ...) in gluonlab/exercises/lab01_TOPIC.py' in line
    [line] = of_guesses(faults_of(WHOLE, tmp_path / "other", questions=("01-a", "01-b", "02-a")))
    assert "guess 01-b is registered, but no cell asks it" in line
