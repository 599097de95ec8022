"""The labs on simulated GPUs: their cells run to the end, with the numbers that the text promises."""

import importlib.util
import json

import pytest
from gpus.commands import HERE, run_python
from gpus.machines import v100s
from support.processes import REPOSITORY

from gluonlab.exercises.exercise_registry import PASSED

LABS = {path.name[:2]: path for path in sorted((REPOSITORY / "labs" / "en").glob("*.ipynb"))}
SOLUTIONS = REPOSITORY / "labs" / "solutions"
SHORT = ("01",)
EACH = [lab if lab in SHORT else pytest.param(lab, marks=pytest.mark.long) for lab in LABS]


def load_numbers(lab):
    """tests/labs/numbers/labNN.py: what is asked of a lab, and what the answers must be."""
    path = REPOSITORY / "tests" / "labs" / "numbers" / f"lab{lab}.py"
    spec = importlib.util.spec_from_file_location(f"numbers_of_lab{lab}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_lab(lab, count, folder, *solutions):
    """What the numbers of a lab are, and {exercise: status}, on a machine with so many GPUs."""
    grades, numbers = folder / "grades", load_numbers(lab)
    (folder / "en").mkdir()
    machine = v100s(count, delay_us=50, promises_peers=True)
    process = run_python(
        machine, folder, f"{HERE}/lab_cells.py", LABS[lab], *solutions, cwd=folder / "en", input=numbers.PROBE,
        GLUONLAB_GRADES=str(grades), timeout=1200,
    )  # fmt: skip
    assert process.returncode == 0, process.stdout[-4000:] + process.stderr[-4000:]
    assert "devices: gpu" in process.stdout
    verdicts = map(json.loads, grades.read_text(encoding="utf-8").splitlines())
    statuses = {verdict["exercise"]: verdict["status"] for verdict in verdicts}
    return json.loads(process.stdout.strip().splitlines()[-1]), statuses


@pytest.mark.parametrize("lab", EACH)
def test_a_lab_runs_with_its_numbers(lab, tmp_path):
    numbers, _ = run_lab(lab, 4, tmp_path)
    load_numbers(lab).check(numbers)


@pytest.mark.parametrize("lab", EACH)
def test_a_lab_with_all_solutions_passes_its_checks(lab, tmp_path):
    numbers, statuses = run_lab(lab, 2, tmp_path, SOLUTIONS)
    load_numbers(lab).check(numbers)
    written = {path.stem for path in SOLUTIONS.glob(f"{lab}-*.py")}
    assert statuses == dict.fromkeys(written, PASSED)
