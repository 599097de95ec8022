"""The labs run: every notebook from its first cell to its last in a process of its own, with the
numbers that its text promises.
"""

import json

import pytest
from the_labs import LABS, PLACE, REPOSITORY, SERIES, module_of

from gluonlab.exercises.verdict import PASSED, UNWRITTEN
from gluonlab_labs.exercises import FAULTY, stubs
from gluonlab_labs.faults import Faults
from gluonlab_labs.kernel import execute
from gluonlab_labs.notebook import notebook
from gluonlab_labs.source import LANGUAGES

LONGEST_S = 120


@pytest.mark.parametrize("lab", LABS)
def test_the_english_notebook_runs_to_its_end_with_its_numbers(lab, executed):
    done = executed(lab)
    module_of("numbers", lab).check(done.numbers)
    # a machine that does other things, too, slows the clock, and not the processor's time
    assert min(done.wall_s, done.cpu_s) < LONGEST_S


@pytest.mark.parametrize("lab", LABS)
def test_every_stub_in_the_notebook_is_called_unwritten_or_still_faulty_in_its_language(
    lab, executed
):
    unwritten, faulty = (
        ("not written yet", "まだ書かれていません"),
        ("the fault is still there", "まだ直っていません"),
    )
    tags = [tag for cell in stubs(LABS[lab]).values() for tag in cell.tags]
    for language, said in zip(("en", "ja"), faulty if FAULTY in tags else unwritten):
        cells = executed(lab).notebooks[language].cells
        checks = [
            cell for cell in cells if cell.cell_type == "code" and cell.source.startswith("check(")
        ]
        assert len(checks) == len(stubs(LABS[lab]))
        for cell in checks:
            [output] = cell.outputs
            assert said in output.data["text/plain"]
            assert said in output.data["text/html"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_allreduce_player_speaks_the_language_of_its_notebook(language, executed):
    cells = executed("04").notebooks[language].cells
    [cell] = [cell for cell in cells if cell.cell_type == "code" and "show(draw(" in cell.source]
    assert f"&lt;html lang=&quot;{language}&quot;&gt;" in cell.outputs[0].data["text/html"]


@pytest.mark.parametrize("lab", LABS)
def test_the_japanese_notebook_with_solutions_passes_every_check_in_japanese(lab, tmp_path):
    """As a student has it who has solved everything: in a folder ja/, and nothing else says which
    language.
    """
    (tmp_path / "ja").mkdir()
    solved = notebook(LABS[lab], "ja", SERIES, Faults(LABS[lab].path), PLACE.solutions)
    grades = tmp_path / "grades"
    execute(solved, tmp_path / "ja", 600, GLUONLAB_GRADES=str(grades), PYTHONPATH=str(REPOSITORY))
    verdicts = [json.loads(line) for line in grades.read_text(encoding="utf-8").splitlines()]
    assert [(one["exercise"], one["status"]) for one in verdicts if one["status"] != PASSED] == []
    assert {one["exercise"] for one in verdicts} == set(stubs(LABS[lab]))
    shown = [
        output
        for cell in solved.cells
        if cell.source.startswith("check(")
        for output in cell.outputs
    ]
    assert all("正解です" in output.data["text/plain"] for output in shown)
    assert UNWRITTEN not in {one["status"] for one in verdicts}
