"""grade --container with Docker or Podman itself, and the image that the Dockerfile's target grading
makes: a container grants what is asked of it. make check-isolated builds the image and runs them.
"""

import os
import signal
import subprocess
import sys

import pytest
from support.waiting import LIMIT_S, wait_until
from test_grade import BEGINNING, CHECK, SOLUTION, hand_in
from the_labs import REPOSITORY

from gluonlab.exercises.exercise_registry import PASSED
from gluonlab.exercises.grading import UNCHECKED, grade
from gluonlab.exercises.notebook_runners import ContainerRunner, find_engine

pytestmark = pytest.mark.container
ENGINE = os.environ.get("ENGINE", "docker")

# What must hold inside, each a cell whose assertion ends the notebook: a student's verdict stands
# only if all of them hold.
INSIDE = {
    "the user nobody, without capabilities and ways to them": """
import os
assert (os.getuid(), os.getgid(), os.getgroups()) == (65534, 65534, [65534])
lines = open("/proc/self/status").read().splitlines()
status = dict(line.split(":\\t", 1) for line in lines if ":\\t" in line)
for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
    assert int(status[name], 16) == 0, name
assert status["NoNewPrivs"] == "1"
""",
    "no network but loopback": """
import os, socket
assert set(os.listdir("/sys/class/net")) <= {"lo"}
for address in (("8.8.8.8", 53), ("10.0.0.1", 80), ("169.254.169.254", 80)):
    try:
        socket.create_connection(address, timeout=60)
    except OSError:
        continue
    raise AssertionError(address)
""",
    "a file system that is read-only but for /tmp": """
import os
for folder in ("/", "/opt", "/opt/venv", "/submission", "/usr", "/var", "/etc"):
    try:
        open(os.path.join(folder, "written"), "w")
    except OSError:
        continue
    raise AssertionError(folder)
open("/tmp/written", "w").write("x")
""",
    "one notebook, and nothing of who grades": """
import os
assert os.listdir("/submission") == ["ada.ipynb"]
assert not os.path.exists(HOST)
assert "GRADER_SECRET" not in os.environ
""",
    "a /tmp that is bounded": """
import os
about = os.statvfs("/tmp")
assert about.f_blocks * about.f_frsize <= 2**31
""",
    "no other process": """
import glob
commands = [open(name).read() for name in glob.glob("/proc/[0-9]*/cmdline")]
assert not any("pytest" in command for command in commands), commands
""",
}


@pytest.fixture(autouse=True)
def this_gluonlab(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("GRADER_SECRET", "of who grades")


def containers():
    """An engine's containers of grading, running or not."""
    words = [ENGINE, "ps", "--all", "--quiet", "--filter", "name=gluonlab-grade-"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()


def graded(path, seconds=LIMIT_S):
    [result] = grade([path], seconds, runner=ContainerRunner(find_engine(ENGINE)))
    return result


@pytest.mark.parametrize("what", INSIDE)
def test_inside_there_is(what, tmp_path):
    cell = f"HOST = {str(tmp_path)!r}{INSIDE[what]}"
    result = graded(hand_in(tmp_path / "ada.ipynb", BEGINNING, cell, SOLUTION, CHECK))
    assert (result.note, result.statuses["01-1"]) == ("", PASSED)
    assert not containers()


@pytest.mark.parametrize(
    "cell",
    [
        "kept = []\nwhile True: kept.append(bytearray(2**26))",
        "import os\nwhile True: os.fork()",
        "import os\nn = 0\nwhile True: open(f'/tmp/{(n := n + 1)}', 'wb').write(bytes(2**25))",
        "while True: pass",
    ],
    ids=["memory", "processes", "files", "time"],
)
def test_what_takes_too_much_is_a_note_and_its_container_is_gone(cell, tmp_path):
    result = graded(hand_in(tmp_path / "ada.ipynb", BEGINNING, SOLUTION, CHECK, cell), 20)
    assert result.note and result.note.isprintable()
    assert result.statuses["01-1"] in (PASSED, UNCHECKED)  # unless all of it was killed
    wait_until(lambda: not containers())


def running_in(container):
    """The command lines of the processes of a container, as far as the engine tells them."""
    words = [ENGINE, "top", container]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout


# its beginning, and the notebook's
@pytest.mark.parametrize("state", ["gluonlab.exercises.notebook_runners", "ipykernel_launcher"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_grader_that_ends_takes_its_containers_along(number, state, tmp_path):
    hand_in(tmp_path / "ada.ipynb", BEGINNING, "import time\ntime.sleep(500)")
    process = subprocess.Popen(
        [sys.executable, "-m", "gluonlab.exercises", "grade", "ada.ipynb", "--container", "--engine", ENGINE],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    try:
        wait_until(lambda: any(state in running_in(container) for container in containers()))
        process.send_signal(number)
        process.wait(LIMIT_S)
    finally:
        process.kill()
    wait_until(lambda: not containers())
