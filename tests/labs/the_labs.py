"""The labs of this repository, and each of them run."""

import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parent
REPOSITORY = TESTS.parent.parent
sys.path[:0] = [str(REPOSITORY / "labs")]

from gluonlab_labs.build import LabFolders, read_labs  # noqa: E402
from gluonlab_labs.execute import execute_lab  # noqa: E402
from gluonlab_labs.faults import Faults  # noqa: E402
from gluonlab_labs.notebook import make_notebook  # noqa: E402
from gluonlab_labs.source import LANGUAGES  # noqa: E402

PLACE = LabFolders(REPOSITORY / "labs")
SERIES = read_labs(PLACE)
LABS = {lab.number: lab for lab in SERIES.labs}


def module_of(folder, lab):
    """tests/labs/FOLDER/labNN.py as a module."""
    path = TESTS / folder / f"lab{lab}.py"
    spec = importlib.util.spec_from_file_location(f"{folder}_lab{lab}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Executed(NamedTuple):
    """A lab that was run: {language: notebook with outputs}, what its probe printed, and the
    seconds of clock and processor.
    """

    notebooks: dict
    numbers: dict
    wall_s: float
    cpu_s: float


def run_lab(lab):
    made = {language: make_notebook(lab, language, SERIES, Faults(lab.path)) for language in LANGUAGES}
    asked = {}

    def finish(kernel):
        asked["cpu_s"] = float(kernel.evaluate("__import__('time').process_time()"))
        asked["wall_s"] = time.monotonic() - begun
        asked["numbers"] = json.loads(kernel.evaluate(module_of("numbers", lab.number).PROBE).strip().splitlines()[-1])

    begun = time.monotonic()
    execute_lab(made, finish=finish)
    return Executed(made, asked["numbers"], asked["wall_s"], asked["cpu_s"])
