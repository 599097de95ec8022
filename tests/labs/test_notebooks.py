"""The labs run: every notebook from its first cell to its last in a process of its own, with the
numbers that its text promises.
"""

import json
import re

import pytest
from the_labs import LABS, PLACE, REPOSITORY, SERIES, module_of

from gluonlab.exercises.exercise_registry import PASSED, UNWRITTEN
from gluonlab.exercises.guesses import ChoiceForm, DictForm, ListForm, NumberForm, all_guesses, find_guess
from gluonlab_labs.exercises import FAULTY, find_stubs
from gluonlab_labs.faults import Faults
from gluonlab_labs.guesses import guess_ids
from gluonlab_labs.kernel import execute_notebook
from gluonlab_labs.notebook import make_notebook
from gluonlab_labs.source import LANGUAGES


@pytest.mark.parametrize("lab", LABS)
def test_the_english_notebook_runs_to_its_end_with_its_numbers(lab, executed):
    module_of("numbers", lab).check(executed(lab).numbers)


@pytest.mark.parametrize("lab", LABS)
def test_every_stub_in_the_notebook_is_called_unwritten_or_still_faulty_in_its_language(lab, executed):
    unwritten, faulty = (
        ("not written yet", "まだ書かれていません"),
        ("the bug is still there|a bug is left", "まだ直っていません"),
    )
    are_faulty = [FAULTY in cell.tags for cell in find_stubs(LABS[lab]).values()]
    for number, language in enumerate(("en", "ja")):
        cells = executed(lab).notebooks[language].cells
        checks = [cell for cell in cells if cell.cell_type == "code" and cell.source.startswith("check(")]
        assert len(checks) == len(are_faulty)
        for cell, is_faulty in zip(checks, are_faulty):
            [output] = cell.outputs
            said = (faulty if is_faulty else unwritten)[number]
            assert re.search(said, output.data["text/plain"])
            assert re.search(said, output.data["text/html"])


@pytest.mark.parametrize("lab", LABS)
def test_nobody_s_guess_is_in_a_run_notebook_but_each_question_is_in_its_language(lab, executed):
    for language in LANGUAGES:
        cells = executed(lab).notebooks[language].cells
        asked = [(id, cell) for cell in cells for id in guess_ids(code_of(cell), "predict")]
        assert [id for id, _ in asked] == [one.id for one in all_guesses() if one.id[:2] == lab]
        for id, cell in asked:
            assert squeezed(find_guess(id).question[language]) in squeezed(shown(cell))
        for cell in cells:
            assert not re.search(r"your guess|予想は", code_of(cell) and shown(cell))
        observing = [cell for cell in cells if guess_ids(code_of(cell), "observe")]
        assert observing and all(cell.outputs for cell in observing)


@pytest.mark.parametrize("lab, frames", [("04", 1), ("05", 1), ("08", 1), ("10", 1)])
@pytest.mark.parametrize("language", LANGUAGES)
def test_players_speak_the_language_of_their_notebook(lab, frames, language, executed):
    cells = [cell for cell in executed(lab).notebooks[language].cells if code_of(cell)]
    played = [one.data.get("text/html", "") for cell in cells for one in cell.outputs if "data" in one]
    spoken = re.findall(r"&lt;html lang=&quot;(\w+)&quot;&gt;", " ".join(played))
    assert spoken == [language] * frames


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_is_said_of_a_schedule_is_in_the_language_of_its_notebook(language, executed):
    cells = [cell for cell in executed("10").notebooks[language].cells if ".play(" in code_of(cell)]
    said = {"en": ("verified:", "not written yet"), "ja": ("証明済み", "まだ書かれていません")}
    verified, unwritten = said[language]
    assert verified in cells[0].outputs[0].data["text/html"]
    assert len(cells) == 9
    assert all(unwritten in cell.outputs[0].data["text/html"] for cell in cells[1:])


@pytest.mark.parametrize("lab", LABS)
def test_the_japanese_notebook_with_solutions_passes_every_check_in_japanese(lab, tmp_path):
    """As a student has it who has solved everything: in a folder ja/, and nothing else says which
    language.
    """
    (tmp_path / "ja").mkdir()
    solved = make_notebook(LABS[lab], "ja", SERIES, Faults(LABS[lab].path), PLACE.solutions)
    guess_and_explain(solved.cells)
    grades = tmp_path / "grades"
    execute_notebook(solved, tmp_path / "ja", 600, GLUONLAB_GRADES=str(grades), PYTHONPATH=str(REPOSITORY))
    verdicts = [json.loads(line) for line in grades.read_text(encoding="utf-8").splitlines()]
    assert [(one["exercise"], one["status"]) for one in verdicts if one["status"] != PASSED] == []
    assert {one["exercise"] for one in verdicts} == set(find_stubs(LABS[lab]))
    verdicts_shown = [output for cell in solved.cells if cell.source.startswith("check(") for output in cell.outputs]
    assert all("正解です" in output.data["text/plain"] for output in verdicts_shown)
    assert UNWRITTEN not in {one["status"] for one in verdicts}
    compared = "\n".join(shown(cell) for cell in solved.cells if code_of(cell))
    *_, table = [shown(cell) for cell in solved.cells if code_of(cell) == "surprises()"]
    for asked in (one for one in all_guesses() if one.id[:2] == lab):
        [said] = re.findall(  # lines are broken anywhere; what another line says is not its own
            rf"予想{asked.id}:(?:(?!予想{lab}-).)*?結果は.*?でした。(予想外|予想どおり)", squeezed(compared)
        )
        assert (f"\n{asked.id} " in table) == (said == "予想外")
        assert (f"why {asked.id}" in table) == (said == "予想外")


def guess_and_explain(cells):
    """Answer every guess with the example of its form, and give reasons."""
    for cell in cells:
        for id in guess_ids(code_of(cell), "predict"):
            guessed = an_answer(find_guess(id).form)
            cell.source = re.sub(rf'predict\("{id}", .*\)', f'predict("{id}", {guessed!r})', cell.source)
        for id in guess_ids(code_of(cell), "because"):
            cell.source = cell.source.replace(f'"{id}", ...', f'"{id}", "why {id} did so"')


def an_answer(form):
    """A guess of this form."""
    if isinstance(form, ListForm):
        return [an_answer(form.form)] * form.count
    if isinstance(form, DictForm):
        return {key: an_answer(form.form) for key in form.keys}
    if isinstance(form, ChoiceForm):
        return form.options[0]
    return form.example if isinstance(form, NumberForm) else True


def code_of(cell):
    return cell.source if cell.cell_type == "code" else ""


def shown(cell):
    """Return the printed output of a cell."""
    return "".join(output.get("text", "") for output in cell.outputs)


def squeezed(text):
    return "".join(text.split())
