"""Run one notebook within limits, on this machine or in a container, and read its result.

In a Docker or Podman container, the notebook cannot access a network or files on the host.
`ContainerRunner` starts ``docker run`` with this module as the command. The two processes exchange
lines of JSON:

- standard input: the order, ``{"name": .., "bounds": .., "seed": ..}``. The input stays open until
  the grader exits or stops the notebook.
- standard output, first line: the version of gluonlab in the container, and missing packages.
- standard output, second line: the result.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

import gluonlab
from gluonlab.errors import DataError, NotebookError
from gluonlab.exercises.exercise_registry import (
    PASSED,
    RAISED,
    SEED_VARIABLE,
    TOO_SLOW,
    UNWRITTEN,
    WRONG,
    all_exercises,
)
from gluonlab.exercises.run_submission import CELL_KEY, DONE_KEY, LAB_KEY, NOTE_KEY, VERDICTS_FILE, missing_packages
from gluonlab.exercises.supervisor import EXCESS_KEY, Bounds
from gluonlab.files.atomic_files import read_bounded, temporary_folder
from gluonlab.host.child_processes import signal_group
from gluonlab.plain_text import one_line, to_plain_name

STATUSES = (PASSED, WRONG, UNWRITTEN, RAISED, TOO_SLOW)
MAX_OUTPUT_BYTES = 2**22  # the largest number of bytes that is read from a notebook's processes
MAX_NOTE_CHARS = 1000  # longer notes and messages of checkers are shortened
MAX_MICROS = 1e12  # largest accepted cost of a schedule, in microseconds
POLL_S = 0.1  # seconds between two checks of ``stop``


class ExerciseResult(NamedTuple):
    """The last verdict on an exercise.

    ``hidden``: whether the answer failed only in cases that students do not see. ``micros``: the
    cost of a right answer in microseconds.
    """

    status: str
    message: str = ""
    hidden: bool = False
    micros: Optional[float] = None


class NotebookResult(NamedTuple):
    """The result of one notebook: the number of its lab, its verdicts, and a note about errors.

    ``lab``: a number such as ``"02"``, or "" if it is unknown. ``verdicts``: the last verdict for
    each exercise id.
    """

    lab: str = ""
    verdicts: Mapping[str, ExerciseResult] = {}
    note: str = ""


def run_in_processes(path: Path, bounds: Bounds, seed: Optional[int], stop: threading.Event) -> NotebookResult:
    """Run the notebook in processes on this machine, until it ends or ``stop`` is set.

    Raises OSError, for example if the disk is full.
    """
    with temporary_folder("grade") as folder:
        messages = _run_and_read_messages(path, folder, bounds, seed, stop)
        faults = [messages.get(NOTE_KEY, "")]
        if messages[EXCESS_KEY]:
            faults.append(": ".join(filter(None, [messages.get(CELL_KEY), messages[EXCESS_KEY]])))
        note, lines = "; ".join(filter(None, faults)), _read_verdicts(folder / VERDICTS_FILE)
        return sanitize_result(messages.get(LAB_KEY), note, ((line.get("exercise"), line) for line in lines))


def sanitize_result(lab: Any, note: Any, verdicts: Any) -> NotebookResult:
    """Create a result from data that a student may have forged. Ignore values of the wrong type.

    ``verdicts``: pairs of an exercise id and a dictionary with status, message, hidden and micros.
    """
    exercises = {one.id for one in all_exercises()}
    lab = lab if isinstance(lab, str) and any(id.startswith(f"{lab}-") for id in exercises) else ""
    results: Dict[str, ExerciseResult] = {}
    for id, verdict in verdicts:
        is_known = isinstance(id, str) and id in exercises and id.startswith(f"{lab}-")
        if is_known and isinstance(verdict, dict) and verdict.get("status") in STATUSES:
            micros = _read_micros(verdict.get("micros")) if verdict["status"] == PASSED else None
            message, hidden = _shorten(verdict.get("message")), verdict.get("hidden") is True
            results[id] = ExerciseResult(str(verdict["status"]), message, hidden, micros)
    return NotebookResult(lab, results, _shorten(note))


def _shorten(text: Any) -> str:
    return one_line(text)[:MAX_NOTE_CHARS] if isinstance(text, str) else ""


def _read_micros(value: Any) -> Optional[float]:
    """Return the cost if it is a number between 0 and MAX_MICROS, or else None."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value < MAX_MICROS else None


def _parse_object(line: bytes) -> Dict[str, Any]:
    """Return the JSON object on a line, or an empty dictionary if there is no JSON object."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = {}
    return value if isinstance(value, dict) else {}


def _run_and_read_messages(
    path: Path, folder: Path, bounds: Bounds, seed: Optional[int], stop: threading.Event
) -> Dict[str, str]:
    """Run a notebook in a supervisor process, and return its messages as {kind: text}."""
    arguments = [json.dumps(vars(bounds)), str(folder)]
    submission = [sys.executable, "-m", "gluonlab.exercises.run_submission", *arguments]
    # When its standard input closes, the supervisor ends all its processes and exits.
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen(
            [sys.executable, "-m", "gluonlab.exercises.supervisor", *arguments] + [*submission, str(path.absolute())],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.DEVNULL,
            cwd=folder,  # an empty folder, because Python loads modules from the current folder
            env=_supervisor_environment(seed),
            start_new_session=True,  # so that Ctrl-C reaches only the grader
        )
        try:
            wait_for_exit(child, bounds.seconds + 2 * bounds.spare_seconds, stop)
        finally:
            _end_supervisor(child, bounds.spare_seconds)
        out.seek(0)
        messages = _parse_messages(out.read(MAX_OUTPUT_BYTES))
    if EXCESS_KEY not in messages:
        messages[EXCESS_KEY] = "the process that supervises it was killed; other processes of it may still run"
    elif DONE_KEY not in messages:
        messages[EXCESS_KEY] = messages[EXCESS_KEY] or "its process was killed"
    return messages


def _supervisor_environment(seed: Optional[int]) -> Dict[str, str]:
    """Return the environment variables of the supervisor.

    PYTHONPATH starts with the folder of this gluonlab, and contains only absolute paths. The
    variable for the grader's seed is set to ``seed``, or removed if ``seed`` is None.
    """
    package = str(Path(gluonlab.__file__).resolve().parent.parent)
    folders = [str(Path(part).absolute()) for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    environment = {name: value for name, value in os.environ.items() if name != SEED_VARIABLE}
    environment["PYTHONPATH"] = os.pathsep.join([package, *folders])
    return environment if seed is None else {**environment, SEED_VARIABLE: str(seed)}


def wait_for_exit(child: "subprocess.Popen[bytes]", seconds: float, stop: threading.Event) -> bool:
    """Wait until a process exits, ``stop`` is set or ``seconds`` pass. Return whether it exited."""
    end = time.monotonic() + seconds
    while not stop.is_set() and time.monotonic() < end:
        with suppress(subprocess.TimeoutExpired):
            child.wait(POLL_S)
            return True
    return child.poll() is not None


def _end_supervisor(child: "subprocess.Popen[bytes]", seconds: float) -> None:
    """Close the supervisor's input so that it exits. Kill it if it still runs after ``seconds``."""
    assert child.stdin is not None
    child.stdin.close()
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        signal_group(child.pid, signal.SIGKILL)
        child.wait()


def _parse_messages(lines: bytes) -> Dict[str, str]:
    """Parse messages, one JSON object per line, to {kind: text}.

    If a kind is repeated, the last text counts. Notes are an exception: the first note counts.
    """
    messages: Dict[str, str] = {}
    for line in lines.splitlines():
        for kind, text in _parse_object(line).items():
            if isinstance(text, str) and not (kind == NOTE_KEY and NOTE_KEY in messages):
                messages[kind] = text
    return messages


def _read_verdicts(path: Path) -> List[Dict[str, Any]]:
    """Return the verdicts in a file, or [] if it is a link, unreadable, or too large."""
    try:
        lines = read_bounded(path, MAX_OUTPUT_BYTES, follow=False).splitlines()
    except (OSError, DataError):
        lines = []
    return [_parse_object(line) for line in lines]


# --- In a Docker or Podman container


ENGINES = ("docker", "podman")
IMAGE = f"gluonlab-grading:{gluonlab.__version__}"
NOTEBOOK_FOLDER = "/submission"  # the folder of the notebook in the container
# Keys of the first line: gluonlab's version in the container, and missing packages.
VERSION_KEY, MISSING_KEY = "begun", "missing"
NOBODY_USER = "65534:65534"
GRADING_PAGE = "docs/labs.md"
_SUPERVISOR_MEMORY = 2**29  # in bytes, for the processes that supervise the notebook
_MAX_TASKS = 1024  # largest number of processes and threads in the container; MXNet starts dozens of threads
_SHARED_MEMORY = 2**28  # bytes of /dev/shm
# The engine prints hints about help after its error message. The hints start with these words.
_HELP_LINES = ("See 'docker", "Run 'docker", "See 'podman")
_START_S = 60.0  # seconds for the engine, in addition to the notebook's time
_END_S = 20.0
_GRACE_S = 1.0  # seconds for the engine's command to exit after its streams are closed


def find_engine(wanted: str) -> str:
    """Return the path of docker or podman. ``wanted``: the name of the engine, or "" for either.

    Raises NotebookError if the engine is not installed.
    """
    names = (wanted,) if wanted else ENGINES
    engine = next(filter(None, map(shutil.which, names)), None)
    if engine is None:
        raise NotebookError(
            f"--container needs a container engine, but {' or '.join(names)} was not found on PATH: install it and "
            f"build the image (see {GRADING_PAGE}), or omit --container and grade in a separate user account"
        )
    return engine


def container_command(engine: str, image: str, name: str, folder: Path, bounds: Bounds, cores: int) -> List[str]:
    """Return the command that runs a notebook in a container.

    ``name``: the name of the container. ``folder``: the folder on this machine that contains only
    the notebook. ``cores``: the number of CPU cores.
    """
    limits = {
        "--memory": str(bounds.memory + _SUPERVISOR_MEMORY),
        "--memory-swap": str(bounds.memory + _SUPERVISOR_MEMORY),  # memory and swap together, so there is no swap
        "--pids-limit": str(_MAX_TASKS),
        "--cpus": str(cores),
        "--shm-size": str(_SHARED_MEMORY),
        "--ulimit": "core=0:0",
    }
    return [
        *(engine, "run", "--rm", "--interactive", "--name", name, "--pull", "never"),
        *("--network", "none", "--read-only", "--cap-drop", "ALL"),
        *("--security-opt", "no-new-privileges", "--user", NOBODY_USER, "--log-driver", "none"),
        *(word for option, value in limits.items() for word in (option, value)),
        *("--tmpfs", f"/tmp:rw,nosuid,nodev,size={bounds.disk},mode=1777"),
        *("--volume", f"{folder}:{NOTEBOOK_FOLDER}:ro,z"),  # z: set a label for SELinux
        *("--env", "HOME=/tmp", "--env", "PYTHONDONTWRITEBYTECODE=1", "--workdir", "/tmp"),
        *("--entrypoint", "python", image, "-m", "gluonlab.exercises.notebook_runners"),
    ]


@dataclass(frozen=True)
class ContainerRunner:
    """A `gluonlab.exercises.grading.Runner` that runs each notebook in its own container.

    ``engine``: the path of docker or podman. ``cores``: the number of CPU cores per container.
    """

    engine: str
    image: str = IMAGE
    cores: int = 2

    def __call__(self, path: Path, bounds: Bounds, seed: Optional[int], stop: threading.Event) -> NotebookResult:
        """Run the notebook. Raises OSError, or NotebookError if no container can be started."""
        try:
            content = read_bounded(path, bounds.source)
        except OSError as error:
            return NotebookResult(note=f"cannot be read as a notebook: {error.strerror}")
        except DataError:
            return NotebookResult(note=f"cannot be read as a notebook: the file is larger than {bounds.source:,} bytes")
        with temporary_folder("isolated") as temporary:
            if ":" in str(temporary):
                raise NotebookError(
                    f"TMPDIR {temporary.parent} contains a colon, which --container does not allow: set TMPDIR to "
                    "another folder"
                )
            folder = temporary / "given"
            folder.mkdir()
            copy = folder / to_plain_name(path.name, "notebook.ipynb")
            copy.write_bytes(content)
            folder.chmod(0o755)  # so that the user "nobody" in the container can read it
            copy.chmod(0o644)
            return self._run_container(folder, copy.name, bounds, seed, stop)

    def _run_container(
        self, folder: Path, name: str, bounds: Bounds, seed: Optional[int], stop: threading.Event
    ) -> NotebookResult:
        """Run the notebook ``name`` in ``folder`` in a new container."""
        container = f"gluonlab-grade-{uuid.uuid4().hex}"
        command = container_command(self.engine, self.image, container, folder, bounds, self.cores)
        order = {"name": name, "bounds": vars(bounds), "seed": seed}
        seconds = bounds.seconds + 3 * bounds.spare_seconds + _START_S
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # so that Ctrl-C reaches only the grader
        )
        try:
            output = _read_container_output(child, json.dumps(order).encode() + b"\n", seconds, stop)
        finally:
            self._end_container(child, container)
        return self._read_result(output, child.returncode)

    def _end_container(self, child: "subprocess.Popen[bytes]", container: str) -> None:
        """End the engine's command ``child``, and the container, which may outlive the command."""
        for stream in (child.stdin, child.stdout, child.stderr):
            assert stream is not None
            with suppress(OSError):  # the container did not read the order
                stream.close()
        with suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE_S)
        if child.returncode is None or child.returncode < 0:
            with suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(
                    [self.engine, "rm", "--force", container],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    timeout=_END_S,
                )
            with suppress(subprocess.TimeoutExpired):
                child.wait(_END_S)
        if child.poll() is None:
            child.kill()
            child.wait()

    def _read_result(self, output: "ContainerOutput", status: int) -> NotebookResult:
        """Return the result in a container's output. ``status``: the container's exit status.

        Raises NotebookError if the container cannot run notebooks.
        """
        objects = [*map(_parse_object, output.stdout.splitlines()), {}]
        first, rest = objects[0], objects[1:]
        if VERSION_KEY not in first and not output.fault:  # so no notebook has run
            raise NotebookError(
                f"{Path(self.engine).name} did not start the grader in {self.image} (exit {status}: "
                f"{_last_error_line(output.stderr)}): build the image (see {GRADING_PAGE}), or choose another image "
                "with --image"
            )
        if VERSION_KEY in first and first[VERSION_KEY] != gluonlab.__version__:
            raise NotebookError(
                f"the image {self.image} contains gluonlab {str(first[VERSION_KEY])[:40]}, but this machine has "
                f"gluonlab {gluonlab.__version__}: build the image again (see {GRADING_PAGE})"
            )
        if first.get(MISSING_KEY):
            raise NotebookError(f"in the image {self.image}: {one_line(str(first[MISSING_KEY]))[:300]}")
        message = next((one for one in rest if "verdicts" in one), None)
        if message is not None and isinstance(message["verdicts"], dict):
            return sanitize_result(message.get("lab"), message.get("note"), message["verdicts"].items())
        return NotebookResult(note=output.fault or _describe_exit(status))


def _last_error_line(errors: bytes) -> str:
    """Return the engine's error message, which is the last line that is not a hint about help."""
    lines = errors.decode(errors="replace").split("\n")
    messages = [line for line in lines if line.strip() and not line.startswith(_HELP_LINES)]
    return one_line(messages[-1])[:300] if messages else "no output"


def _describe_exit(status: int) -> str:
    if status in (137, -9):
        return "its container was killed (exit 137), probably because it used too much memory"
    return f"its container exited without a result (exit {status})"


class ContainerOutput(NamedTuple):
    """The output of a container. ``fault``: the reason why reading was stopped, or empty."""

    stdout: bytes
    stderr: bytes = b""
    fault: str = ""


def _read_container_output(
    child: "subprocess.Popen[bytes]", order: bytes, seconds: float, stop: threading.Event
) -> ContainerOutput:
    """Send the order to a container and read its output.

    ``order``: the notebook's name, bounds and seed as JSON. Reading ends after ``seconds``, when
    ``stop`` is set, or after MAX_OUTPUT_BYTES.
    """
    assert child.stdin is not None and child.stdout is not None and child.stderr is not None
    with suppress(BrokenPipeError):  # the container has exited, and its exit status shows the reason
        child.stdin.write(order)
        child.stdin.flush()
    stdout, stderr = child.stdout.fileno(), child.stderr.fileno()
    read, unfinished = {stdout: b"", stderr: b""}, [stdout, stderr]
    end = time.monotonic() + seconds
    while unfinished:
        if stop.is_set() or time.monotonic() > end:
            fault = f"did not finish in time: it was killed after {seconds:g} s"
            return ContainerOutput(read[stdout], fault=fault)
        for stream in select.select(unfinished, [], [], POLL_S)[0]:
            part = os.read(stream, 2**16)
            read[stream] += part
            if not part:
                unfinished.remove(stream)
        if sum(map(len, read.values())) > MAX_OUTPUT_BYTES:
            fault = f"its container printed more than {MAX_OUTPUT_BYTES / 2**20:g} MiB and was killed"
            return ContainerOutput(b"", fault=fault)
    with suppress(subprocess.TimeoutExpired):
        child.wait(_END_S)
    return ContainerOutput(read[stdout], read[stderr])


# --- Inside the container


def main(arguments: Sequence[str]) -> None:
    """Run the notebook that a line of JSON on standard input names, and print its result.

    ``arguments``: the folder of the notebook, or an empty list for NOTEBOOK_FOLDER.
    """
    print(json.dumps({VERSION_KEY: gluonlab.__version__, MISSING_KEY: missing_packages()}), flush=True)
    order = json.loads(sys.stdin.buffer.readline())
    stop, place = threading.Event(), Path(arguments[0] if arguments else NOTEBOOK_FOLDER)
    threading.Thread(target=_stop_at_end_of_input, args=(stop,), daemon=True).start()
    try:
        path = place / Path(order["name"]).name
        result = run_in_processes(path, Bounds(**order["bounds"]), order["seed"], stop)
    except OSError as error:
        result = NotebookResult(note=f"cannot be run ({error})")
    verdicts = {id: one._asdict() for id, one in result.verdicts.items()}
    line = json.dumps({"lab": result.lab, "note": result.note, "verdicts": verdicts})
    sys.stdout.buffer.write(line.encode() + b"\n")
    sys.stdout.buffer.flush()
    os._exit(0)  # without waiting for the thread that reads the input


def _stop_at_end_of_input(stop: threading.Event) -> None:
    """Read standard input until it closes, then set ``stop``."""
    while os.read(0, 2**16):
        pass
    stop.set()


if __name__ == "__main__":
    main(sys.argv[1:])
