"""A class of notebooks of which forty are damaged or hostile: each is a row with a note, and the
one that is good is graded.
"""

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from clock_that_ends import SUBMISSION, SUPERVISOR, end_the_time_of, install
from support.waiting import wait_until
from the_labs import LABS, PLACE, REPOSITORY

from gluonlab.errors import NotebookError
from gluonlab.exercises.exercise_registry import PASSED
from gluonlab.exercises.grading import UNCHECKED, find_notebooks, grade
from gluonlab.exercises.run_submission import read_submission
from gluonlab.exercises.supervisor import list_descendants
from gluonlab.files.atomic_files import remove_folder
from gluonlab_labs.exercises import find_stubs, last_defined_name, solution_path

NAME = last_defined_name(find_stubs(LABS["01"])["01-1"].source)
SOLUTION = solution_path(PLACE.solutions, "01-1").read_text(encoding="utf-8")
IMPORT = "import os, signal, sys, time, json, subprocess, gluonlab\nGRADES = os.environ['GLUONLAB_GRADES']"
CHECK = f'from gluonlab.exercises import check\ncheck("01-1", {NAME})'
BOUNDS = dict(seconds=300, spare_seconds=120, memory=800 * 2**20, processes=40, files=2000, disk=2**27)
BOUNDS.update(file=2**26, printed=2**20)
LATE = "not finished"
KERNEL = "kernel = get_ipython().kernel\n"


def notebook(*cells, **changes):
    code_cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    metadata = {"gluonlab": {"lab": "01", "language": "en"}}
    return json.loads(nbformat.writes(nbformat.v4.new_notebook(cells=code_cells, metadata=metadata))) | changes


def with_cell(**changes):
    return notebook(cells=[{**notebook("1")["cells"][0], **changes}])


def with_metadata(value):
    return notebook("1", metadata=value)


# Files: what is written, or made; and a word of the note.
FILES = {
    "empty": (b"", "cannot be read"),
    "no json": (b"hello", "cannot be read"),
    "no utf-8": (b'{"cells": [], "a": "\xff\xfe"}', "cannot be read"),
    "zeros": (b"\0" * 1000, "cannot be read"),
    "deep": (b"[" * 100_000, "cannot be read"),
    "deep objects": (b'{"a":' * 100_000, "cannot be read"),
    "a long number": (b"9" * 100_000, "cannot be read"),
    "a list": (b"[]", "cannot be read"),
    "of tomorrow": (notebook("1", nbformat=99), "cannot be read"),
    "of yesterday": ({"nbformat": 3, "worksheets": 7, "metadata": {}}, "cannot be read"),
    "metadata a number": (with_metadata(7), "cannot be read"),
    "gluonlab a number": (with_metadata({"gluonlab": 7}), "of no lab"),
    "lab a list": (with_metadata({"gluonlab": {"lab": ["01"]}}), "of no lab"),
    "language a list": (notebook(cells=3, metadata={"gluonlab": {"lab": "01", "language": ["en"]}}), "cannot be read"),
    "cells a number": (notebook(cells=7), "cannot be read"),
    "cells of numbers": (notebook(cells=[7]), "cannot be read"),
    "source a number": (with_cell(source=7), "cannot be read"),
    "source an object": (with_cell(source={"a": 1}), "cannot be read"),
    "many cells": (notebook(*["1"] * 10_001), "cannot be read"),
    "a folder": (Path.mkdir, "Is a directory"),
    "a pipe": (os.mkfifo, "it is not a regular file"),
    "a loop": (lambda path: path.symlink_to(path.name), "Too many levels"),
    "a link to nowhere": (lambda path: path.symlink_to("nowhere"), "No such file"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "it is not a regular file"),
    "ten gigabytes": (lambda path: path.touch() or os.truncate(path, 10**10), "has more than"),
}  # fmt: skip
# Cells, all after IMPORT: a word of the note.
CELLS = {
    "prints for ever": ("while True: print('x' * 100)", "printed more than 1 MiB"),
    "prints a long line": ("print('x' * 10**8)", "printed more than 1 MiB"),
    "kills its parent": ("os.kill(os.getppid(), signal.SIGKILL); time.sleep(600)", "ended"),
    "kills its parent's group": ("os.killpg(os.getpgid(os.getppid()), 9); time.sleep(600)", "ended"),
    "stops its parent": (end_the_time_of(SUPERVISOR) + "os.kill(os.getppid(), signal.SIGSTOP); time.sleep(600)", LATE),
    "stops itself": (f"{end_the_time_of(SUBMISSION)}os.kill(os.getpid(), signal.SIGSTOP)", LATE),
    "fills memory": ("x = []\nwhile True: x.append(os.urandom(2**20) * 32)", "of memory"),
    "starts process after process": (
        "while True: subprocess.Popen(['sleep', '4321'])", "started more than 40 processes",
    ),
    "writes files for ever": (
        "n = 0\nwhile True: open(str(n := n + 1), 'w').write('x')", "wrote more than 2,000 files",
    ),
    "fills the disk": ("n = 0\nwhile True: open(str(n := n + 1), 'wb').write(bytes(2**25))", "MiB of files"),
    "a verdict file of 60 GB": ("open(GRADES, 'w').truncate(60 * 10**9)", "OSError"),
    "a verdict file that is a pipe": ("os.mkfifo(GRADES); 1 / 0", "ZeroDivisionError"),
    "verdicts of another kind": (
        "open(GRADES, 'w').write('[' * 99999 + '\\n{\"exercise\": [1], \"status\": \"passed\"}\\n"
        "{\"exercise\": \"01-1\", \"status\": [\"passed\"]}\\n7\\n'); 1 / 0", "ZeroDivisionError",
    ),
    "its folder replaced": (
        "top = os.path.dirname(GRADES); os.chdir('/'); os.rename(top, top + '-away')\n"
        "os.symlink(os.environ['VALUABLE'], top); 1 / 0", "ZeroDivisionError",
    ),
    "its folder closed, and deep": (
        "for n in range(2000): os.mkdir('d'); os.chdir('d')\n"
        "os.chmod(os.path.dirname(GRADES), 0); 1 / 0", "ZeroDivisionError",
    ),
    "messages that are none": (
        KERNEL + "for junk in ([b''], [b'junk'] * 9, [b'<IDS|MSG>', b''] + [b'{'] * 4):\n"
        "    kernel.iopub_socket.send_multipart(junk)\n1 / 0", "",
    ),
    "messages of another form": (
        KERNEL + "for kind in ('status', 'error', 'stream', 'comm_open', 'display_data'):\n"
        "    kernel.session.send(kernel.iopub_socket, kind, content={},\n"
        "                        parent=kernel.get_parent())\n1 / 0", "",
    ),
    "an error that is no error": (
        "class Odd(Exception):\n    def __str__(self): return '\\x1b[2J=1+1\\n' * 10**6\nraise Odd",
        "Odd",
    ),
    "leaves children": (
        "subprocess.Popen(['sleep', '4321'], start_new_session=True)\n"
        "os.fork() or (os.setsid(), os.fork(), time.sleep(600))\n1 / 0", "ZeroDivisionError",
    ),
}  # fmt: skip


def hand_in(path, content):
    if callable(content):
        content(path)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(json.dumps(content))
    return path


@pytest.fixture(autouse=True)
def this_gluonlab(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    install(tmp_path / "clock", monkeypatch)
    (tmp_path / "valuable").mkdir()
    (tmp_path / "valuable" / "kept").write_text("kept")
    monkeypatch.setenv("VALUABLE", str(tmp_path / "valuable"))
    yield
    assert (tmp_path / "valuable" / "kept").read_text() == "kept"
    assert not list_sleeping()


def list_sleeping(command=b"sleep\x004321\0"):
    """Return the processes of "leaves children" that still run."""

    def read_command(folder):
        try:
            return (folder / "cmdline").read_bytes()
        except OSError:
            return b""

    return [path.name for path in Path("/proc").iterdir() if path.name.isdigit() and read_command(path) == command]


@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_is_no_notebook_is_refused(kind, tmp_path):
    content, words = FILES[kind]
    with pytest.raises(NotebookError, match=words):
        read_submission(hand_in(tmp_path / "x.ipynb", content), 2**20)


@pytest.mark.parametrize("kind", ["deep", "a pipe", "cells of numbers"])
def test_which_is_a_note(kind, tmp_path):
    content, words = FILES[kind]
    [result] = grade([hand_in(tmp_path / "x.ipynb", content)], **BOUNDS)
    assert words in result.note and result.note.isprintable() and result.passed_count == 0


NOT_LONG = ("prints for ever", "kills its parent", "fills memory", "leaves children", "its folder replaced")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.long] * (kind not in NOT_LONG)) for kind in CELLS]
)
def test_a_cell_that_is_hostile_is_a_note(kind, tmp_path):
    cell, words = CELLS[kind]
    cells = [IMPORT, SOLUTION, CHECK, cell] if kind.startswith(("prints", "kills")) else [IMPORT, cell]
    [result] = grade([hand_in(tmp_path / "x.ipynb", notebook(*cells))], **BOUNDS)
    assert result.note and words in result.note and result.note.isprintable() and len(result.note) <= 1000
    assert result.statuses["01-1"] == (PASSED if len(cells) == 4 else UNCHECKED)  # what it had reached
    assert not list_descendants(os.getpid()) and not list_sleeping()
    assert (LATE in result.note) == (words == LATE)  # what it did ended it, and not the clock


SCRIPT = """
import json, os, sys
from pathlib import Path
from gluonlab.exercises.grading import find_notebooks, grade
from gluonlab.exercises.grading import as_csv
from gluonlab.host.resources import peak_bytes
made = list(grade(find_notebooks([Path("class")]), **json.loads(sys.argv[1])))
Path("grades.csv").write_text(as_csv(made), encoding="utf-8")
print(peak_bytes(os.getpid()))
"""


def test_a_grader_that_is_killed_leaves_no_process_and_no_folder(tmp_path):
    note = tmp_path / "where"
    cell = f"open({str(note)!r}, 'w').write(GRADES)\nsubprocess.Popen(['sleep', '4321']).wait()"
    hand_in(tmp_path / "x.ipynb", notebook(IMPORT, cell))
    command = [sys.executable, "-m", "gluonlab.exercises", "grade", "x.ipynb"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as grader:
        wait_until(lambda: note.exists() and list_sleeping())
        grader.kill()
    folder = Path(note.read_text()).parent
    wait_until(lambda: not folder.exists() and not list_sleeping())


@pytest.mark.long
def test_a_class_with_forty_hostile_notebooks_is_graded(tmp_path):
    folder = tmp_path / "class"
    folder.mkdir()
    hostile = {name: content for name, (content, _) in FILES.items()}
    hostile.update((name, notebook(IMPORT, cell)) for name, (cell, _) in CELLS.items())
    names = {name: f"=\x1b[2J\n{name}.ipynb" for name in hostile}
    for name, content in hostile.items():
        hand_in(folder / names[name], content)
    hand_in(folder / "good.ipynb", notebook(IMPORT, SOLUTION, CHECK))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(BOUNDS)],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    rows = list(csv.DictReader(io.StringIO((tmp_path / "grades.csv").read_text(encoding="utf-8"))))
    assert len(rows) == len(hostile) + 1 >= 41
    for row in rows:
        good = row["notebook"].endswith("good.ipynb")
        assert (row["01-1"] == PASSED, row["note"] == "") == (good, good), row
    assert int(done.stdout) < 500e6


def test_notebooks_are_found_however_deep_and_links_lead_nowhere(tmp_path):
    deep = tmp_path
    for _ in range(100):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (deep / "a.ipynb").touch()
    (tmp_path / "b.ipynb").mkdir()
    (tmp_path / "c").symlink_to(".")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "d.ipynb").touch()
    assert find_notebooks([tmp_path]) == [tmp_path / "b.ipynb", deep / "a.ipynb"]


def test_a_folder_is_removed_however_deep_and_closed_and_its_links_are_not_followed(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kept").touch()
    theirs = tmp_path / "theirs"
    subprocess.run(
        [sys.executable, "-c", "import os\nfor n in range(3000): os.mkdir('d'); os.chdir('d')"],
        cwd=(theirs.mkdir(), theirs)[1], check=True,
    )  # fmt: skip
    (theirs / "link").symlink_to(tmp_path / "mine")
    (theirs / "d").chmod(0)
    remove_folder(theirs)
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    remove_folder(tmp_path / "link")
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("valuable", "clock")] == ["mine"]
    assert (tmp_path / "mine" / "kept").exists()
