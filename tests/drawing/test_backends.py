"""Pictures in files are drawn whatever backend the environment names for figures on a screen."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gluonlab

BACKEND = "MPLBACKEND"
# what matplotlib refuses when it is imported, and what it accepts and cannot load
REFUSED, ABSENT = "no such backend", "module://does_not_exist"
PICTURES = f"""
import os, sys
from pathlib import Path
from gluonlab.drawing.matplotlib_figures import LiveChart
from gluonlab.runs import plot_curves as curves

assert not any(name.split(".")[0] == "matplotlib" for name in sys.modules)
curves.draw_curves([], Path("curves.png"))
chart = LiveChart("x", "y")
chart.add(1, {{"one": 1.0}})
assert chart.png()[1:4] == b"PNG"
assert os.environ["{BACKEND}"] == sys.argv[1]
"""
# what loads matplotlib; the first of all is import_matplotlib's, and classes of types are no import
LOADS = re.compile(r"^ {4,}(?:import matplotlib\b|from matplotlib(?:\.(?:backends|figure|pyplot)\S*)? import).*", re.M)
FOR_TYPES = re.compile(r"^if TYPE_CHECKING:\n(?:(?: .*)?\n)*", re.M)


def in_environment(backend, *arguments, folder="."):
    done = subprocess.run(
        [sys.executable, *arguments], env={**os.environ, BACKEND: backend}, cwd=folder,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_pictures_are_drawn_with_a_backend_that_matplotlib_rejects(tmp_path):
    in_environment(REFUSED, "-c", PICTURES, REFUSED, folder=tmp_path)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_one_function_loads_matplotlib():
    package = Path(gluonlab.__file__).parent
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if LOADS.search(FOR_TYPES.sub("", path.read_text(encoding="utf-8")))
    }
    assert found == {"drawing/matplotlib_figures.py"}


@pytest.mark.long
def test_an_available_backend_stays_set_for_the_users_figures():
    own = (
        "from gluonlab.drawing.matplotlib_figures import new_figure; new_figure(1, 1); "
        "import matplotlib; print(matplotlib.get_backend())"
    )
    assert in_environment("svg", "-c", own) == "svg\n"


@pytest.mark.long
@pytest.mark.parametrize("backend", [REFUSED, ABSENT])
def test_every_drawing_command_writes_its_picture(tmp_path, backend):
    for arguments, picture in (
        ("run --gpus 2 --epochs 1 --confusion --out run", "run/curves.png"),
        ("compare 1,2 --epochs 1 --out both", "both/2-devices/curves.png"),
        ("predict run --misclassified --grid wrong.png", "wrong.png"),
        ("report run --out-file report.html", "report.html"),
        ("allreduce bench --devices cpu*2 --bytes 1KiB --plot speed.png", "speed.png"),
    ):
        in_environment(backend, "-m", "gluonlab", *arguments.split(), folder=tmp_path)
        assert (tmp_path / picture).stat().st_size > 1000
    assert (tmp_path / "run" / "confusion.png").exists()
