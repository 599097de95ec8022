"""A notebook in a container: the command as it is, and what becomes of all that may come back.

No engine runs here: tests/support/stand_in_engine.py runs the inner program as a plain process.
"""

import json
import os
import shutil
import stat
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.stand_in_engine import install_fake_engine, read_calls

import gluonlab
from gluonlab.errors import NotebookError
from gluonlab.exercises import notebook_runners
from gluonlab.exercises.notebook_runners import IMAGE, ContainerRunner, ExerciseResult, container_command, find_engine
from gluonlab.exercises.supervisor import Bounds

BOUNDS = Bounds(600, spare_seconds=0.1, memory=2**30, disk=2**27)
BEGIN = (
    "import json, os, sys, time\n"
    f"print(json.dumps({{'begun': {gluonlab.__version__!r}}}), flush=True)\n"
    "order = json.loads(sys.stdin.readline())\n"
)
RESULT = "print(json.dumps({{'lab': '03', 'note': {note}, 'verdicts': {verdicts}}}))\n"


@pytest.fixture
def engine(tmp_path, monkeypatch):
    return install_fake_engine(tmp_path / "engine", monkeypatch)


def outcome(engine, code, stop=None, bounds=BOUNDS, content="{}"):
    """Return the grader's result for a container in which this code runs."""
    (engine / "images" / "made-up.py").write_text(code, encoding="utf-8")
    path = engine / "03-a\n=b.ipynb"
    path.write_text(content)
    path.chmod(0o600)
    runner = ContainerRunner(find_engine(""), "made-up")
    return runner(path, bounds, 7, stop or threading.Event())


def test_the_command_gives_a_container_nothing_but_the_notebook():
    words = container_command("/usr/bin/podman", IMAGE, "one", Path("/tmp/given"), BOUNDS, 2)
    assert words == [
        "/usr/bin/podman", "run", "--rm", "--interactive", "--name", "one", "--pull", "never",
        "--network", "none", "--read-only", "--cap-drop", "ALL",
        "--security-opt", "no-new-privileges", "--user", "65534:65534", "--log-driver", "none",
        "--memory", str(2**30 + 2**29), "--memory-swap", str(2**30 + 2**29),
        "--pids-limit", "1024", "--cpus", "2", "--shm-size", str(2**28), "--ulimit", "core=0:0",
        "--tmpfs", f"/tmp:rw,nosuid,nodev,size={2**27},mode=1777",
        "--volume", "/tmp/given:/submission:ro,z",
        "--env", "HOME=/tmp", "--env", "PYTHONDONTWRITEBYTECODE=1", "--workdir", "/tmp",
        "--entrypoint", "python", f"gluonlab-grading:{gluonlab.__version__}",
        "-m", "gluonlab.exercises.notebook_runners",
    ]  # fmt: skip


def test_the_order_reaches_it_and_the_result_comes_back(engine):
    note = "json.dumps([order, open(sys.argv[0]).readline()[:6]])"
    verdicts = "{'03-2': {'status': 'wrong', 'message': 'got 1', 'hidden': True}}"
    made = outcome(engine, BEGIN + RESULT.format(note=note, verdicts=verdicts))
    order, _ = json.loads(made.note)
    assert order == {"name": "03-a-b.ipynb", "bounds": vars(BOUNDS), "seed": 7}
    assert (made.lab, made.verdicts) == ("03", {"03-2": ExerciseResult("wrong", "got 1", True)})


def test_it_gets_a_copy_that_nobody_else_needs_the_right_to_read(engine):
    """The engine may run under another user's name, and the students' files be closed to it."""
    seen = engine / "seen"
    code = (
        f"import subprocess\nlast = open({str(engine / 'calls')!r}).readlines()[-1]\n"
        "words = json.loads(last)\n"
        "folder = words[words.index('--volume') + 1].split(':')[0]\n"
        "[name] = os.listdir(folder)\n"
        "modes = [os.stat(path).st_mode for path in (folder, folder + '/' + name)]\n"
        f"open({str(seen)!r}, 'w').write(json.dumps([open(folder + '/' + name).read(), modes]))\n"
    )
    outcome(engine, BEGIN + code + RESULT.format(note="''", verdicts={}), content='{"a": 1}')
    content, modes = json.loads(seen.read_text())
    assert content == '{"a": 1}' and [stat.S_IMODE(mode) for mode in modes] == [0o755, 0o644]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import sys; sys.exit('permission denied')", r"docker did not start .*\(exit 1: permis"),
        *(
            (f"import sys; sys.stderr.write('no daemon\\nSee \\'docker run --help\\'.\\n')\n"
             f"sys.exit({status})",
             rf"docker did not start the grader in made-up \(exit {status}: no daemon\): build")
            for status in (125, 126, 127)
        ),
        ("print('garbage' * 1000)", "no output"),
        ("print('{\"begun\": \"0.0.1\"}')", "contains gluonlab 0.0.1, but this machine has .*: build the"),
        (BEGIN.replace("'begun'", "'missing': 'no ipykernel', 'begun'"), "made-up: no ipykernel"),
    ],
)  # fmt: skip
def test_a_fault_of_engine_or_image_ends_the_grading_and_is_no_students(engine, code, words):
    with pytest.raises(NotebookError, match=words) as raised:
        outcome(engine, code)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("os.kill(os.getpid(), 9)", "was killed"),
        *((f"sys.exit({status})", f"exit {status}") for status in (1, 125, 126, 127)),
        ("sys.exit(137)", "was killed"),
        ("sys.stdout.buffer.write(os.urandom(10**6))", "without a result"),
        ("print('[' * 10**6)", "without a result"),
        ("print('{\"verdicts\": 7}')", "without a result"),
        ("while True: print('x' * 10**6)", "more than 4 MiB"),
        ("while True: print('x' * 10**6, file=sys.stderr)", "more than 4 MiB"),
    ],
)
def test_what_a_notebook_makes_of_its_container_is_a_note(engine, code, words):
    made = outcome(engine, BEGIN + code)
    assert words in made.note and made.note.isprintable() and not made.verdicts


def test_forged_verdicts_are_bounded_and_of_known_exercises(engine):
    forged = {
        "03-2": {"status": "passed", "message": "\x1b[2J" + "x" * 10**5, "hidden": "yes",
                 "micros": "1.5"},
        "03-3": {"status": "perfect"}, "03-4": 7, "99-1": {"status": "passed"},
        "04-1": {"status": "passed"},
    }  # fmt: skip
    made = outcome(engine, BEGIN + RESULT.format(note="['x']", verdicts=forged))
    assert list(made.verdicts) == ["03-2"] and made.note == ""
    status, sentence, hidden, micros = made.verdicts["03-2"]
    assert sentence.isprintable() and len(sentence) <= 1000
    assert (status, hidden, micros) == ("passed", False, None)


def set_once_there(stop, path):
    """Set an event when there is such a file."""
    while not path.exists():
        time.sleep(0.02)
    stop.set()


@pytest.mark.parametrize("stops", [False, True])
def test_one_that_does_not_end_is_removed(engine, monkeypatch, stops):
    """The clock stands still until it sleeps, and then, unless it is stopped, its time is over."""
    stop, asleep = threading.Event(), engine / "asleep"
    if stops:
        threading.Thread(target=set_once_there, args=(stop, asleep), daemon=True).start()

    def monotonic():
        return 1e6 if asleep.exists() and not stops else 0.0

    monkeypatch.setattr(notebook_runners, "time", SimpleNamespace(monotonic=monotonic))
    monkeypatch.setattr(notebook_runners, "_GRACE_S", 0.01)  # it would sleep on
    made = outcome(engine, BEGIN + f"open({str(asleep)!r}, 'w')\ntime.sleep(3600)", stop)
    assert "did not finish in time" in made.note
    [(run, *options), removed] = read_calls(engine)
    name = options[options.index("--name") + 1]
    assert run == "run" and removed == ["rm", "--force", name]
    with pytest.raises(ProcessLookupError):
        os.kill(int((engine / name).read_text()), 0)


def test_a_file_that_is_no_notebook_starts_no_container(engine, tmp_path):
    runner, bounds = ContainerRunner("docker", "made-up"), Bounds(1, source=100)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(bytes(101))
    for name, words in (("pipe", "it is not a regular file"), ("large", "larger than 100"), ("none", "No such")):
        assert words in runner(tmp_path / name, bounds, None, threading.Event()).note
    assert not (engine / "calls").exists()


def test_without_an_engine_one_line_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotebookError, match="docker or podman was not found on PATH: install it and build"):
        find_engine("")
    install_fake_engine(tmp_path / "engine", monkeypatch, "podman")
    assert find_engine("") == shutil.which("podman") == find_engine("podman")
    with pytest.raises(NotebookError, match="docker was not found on PATH"):
        find_engine("docker")
