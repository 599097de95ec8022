"""Run one notebook in bounded processes of this machine, or in a container, and read the outcome.

In a container of Docker or Podman the notebook reaches neither a network nor a file. Outside,
`Containers` starts ``docker run`` with this module as the command, hands the order to its standard
input as a line of JSON, ``{"name": .., "bounds": .., "seed": ..}``, and reads two lines from its
standard output: that it has begun, with the version of gluonlab and what is missing for notebooks,
and the outcome. The input stays open until the grader has ended, or ends the notebook.
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
from gluonlab.exercises.checkers import (
    PASSED,
    RAISED,
    SEED,
    TOO_SLOW,
    UNWRITTEN,
    WRONG,
    all_exercises,
)
from gluonlab.exercises.run_submission import CELL, DONE, LAB, NOTE, VERDICTS, missing
from gluonlab.exercises.supervisor import ENDED, Bounds
from gluonlab.files.atomic_files import read_bounded, temporary_folder
from gluonlab.plain_text import one_line, to_plain_name

STATUSES = (PASSED, WRONG, UNWRITTEN, RAISED, TOO_SLOW)
MOST_SAID = 2**22  # bytes that are read of what a notebook's processes say of it
LONGEST_NOTE = 1000  # characters; of a checker's sentence, too
MOST_MICROS = 1e12  # that a schedule may cost
LOOK_S = 0.1  # between two looks at whether everything is to stop


class ExerciseResult(NamedTuple):
    """The last verdict on an exercise.

    ``hidden`` if cases decided that a student is not shown; ``micros``: what a right answer costs.
    """

    status: str
    message: str = ""
    hidden: bool = False
    micros: Optional[float] = None


class NotebookResult(NamedTuple):
    """What came out of one notebook: its lab, if it is of one, verdicts, and what went wrong."""

    lab: str = ""
    verdicts: Mapping[str, ExerciseResult] = {}
    note: str = ""


def run_in_processes(
    path: Path, bounds: Bounds, seed: Optional[int], stop: threading.Event
) -> NotebookResult:
    """Run the notebook until it ends, or ``stop`` is set. Raises OSError, for a full disk say."""
    with temporary_folder("grade") as folder:
        said = _run(path, folder, bounds, seed, stop)
        faults = [said.get(NOTE, "")]
        if said[ENDED]:
            faults.append(": ".join(filter(None, [said.get(CELL), said[ENDED]])))
        note, lines = "; ".join(filter(None, faults)), _lines(folder / VERDICTS)
        return checked(said.get(LAB), note, ((line.get("exercise"), line) for line in lines))


def checked(lab: Any, note: Any, verdicts: Any) -> NotebookResult:
    """An Outcome of what may have been forged: nothing of another kind gets into it.

    ``verdicts``: pairs of an exercise's id and an object with status, message, hidden and micros.
    """
    exercises = {one.id for one in all_exercises()}
    lab = lab if isinstance(lab, str) and any(id.startswith(f"{lab}-") for id in exercises) else ""
    found: Dict[str, ExerciseResult] = {}
    for id, about in verdicts:
        known = isinstance(id, str) and id in exercises and id.startswith(f"{lab}-")
        if known and isinstance(about, dict) and about.get("status") in STATUSES:
            micros = _cost(about.get("micros")) if about["status"] == PASSED else None
            message, hidden = _short(about.get("message")), about.get("hidden") is True
            found[id] = ExerciseResult(str(about["status"]), message, hidden, micros)
    return NotebookResult(lab, found, _short(note))


def _short(text: Any) -> str:
    return one_line(text)[:LONGEST_NOTE] if isinstance(text, str) else ""


def _cost(given: Any) -> Optional[float]:
    """A number above 0, or None."""
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
    return float(given) if is_number and 0 < given < MOST_MICROS else None


def _as_object(line: bytes) -> Dict[str, Any]:
    """The object of JSON on a line; an empty one for anything else."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = {}
    return value if isinstance(value, dict) else {}


def _run(
    path: Path, folder: Path, bounds: Bounds, seed: Optional[int], stop: threading.Event
) -> Dict[str, str]:
    """What was said of a notebook last, of each kind: LAB, CELL, NOTE and ENDED.

    The supervisor, and so all that it has started, ends with the file that it reads from.
    """
    words = [json.dumps(vars(bounds)), str(folder)]
    submission = [sys.executable, "-m", "gluonlab.exercises.run_submission", *words]
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen(
            [sys.executable, "-m", "gluonlab.exercises.supervisor", *words]
            + [*submission, str(path.absolute())],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.DEVNULL,
            cwd=folder,  # empty: Python would load modules from the current one
            env=_environment(seed),
            start_new_session=True,  # Ctrl-C is for the grader
        )
        try:
            wait(child, bounds.seconds + 2 * bounds.spare_seconds, stop)
        finally:
            _end(child, bounds.spare_seconds)
        out.seek(0)
        said = _said(out.read(MOST_SAID))
    if ENDED not in said:
        said[ENDED] = "the process that watches over it was ended; it may have left others running"
    elif DONE not in said:
        said[ENDED] = said[ENDED] or "the process that ran it was ended"
    return said


def _environment(seed: Optional[int]) -> Dict[str, str]:
    package = str(Path(gluonlab.__file__).resolve().parent.parent)
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [str(Path(part).absolute()) for part in given if part]
    changes = {"PYTHONPATH": os.pathsep.join([package, *kept])}
    environment = {name: value for name, value in os.environ.items() if name != SEED}
    return {**environment, **changes, **({} if seed is None else {SEED: str(seed)})}


def wait(child: "subprocess.Popen[bytes]", seconds: float, stop: threading.Event) -> bool:
    """Wait for a process, for at most ``seconds`` and until ``stop``; whether it has ended."""
    end = time.monotonic() + seconds
    while not stop.is_set() and time.monotonic() < end:
        with suppress(subprocess.TimeoutExpired):
            child.wait(LOOK_S)
            return True
    return child.poll() is not None


def _end(child: "subprocess.Popen[bytes]", seconds: float) -> None:
    """Have the supervisor end the notebook's processes, and end it."""
    assert child.stdin is not None
    child.stdin.close()
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _said(lines: bytes) -> Dict[str, str]:
    """The last text of each kind, but the first note."""
    said: Dict[str, str] = {}
    for line in lines.splitlines():
        for kind, text in _as_object(line).items():
            if isinstance(text, str) and not (kind == NOTE and NOTE in said):
                said[kind] = text
    return said


def _lines(path: Path) -> List[Dict[str, Any]]:
    """The verdicts in a file.

    A file that no checks write is as an empty one: a link, or one of more than MOST_SAID bytes.
    """
    try:
        lines = read_bounded(path, MOST_SAID, follow=False).splitlines()
    except (OSError, DataError):
        lines = []
    return [_as_object(line) for line in lines]


# --- In a container of Docker or Podman


ENGINES = ("docker", "podman")
IMAGE = f"gluonlab-grading:{gluonlab.__version__}"
PLACE = "/submission"  # the folder of the notebook, inside
# The keys of the first line: the version inside, and what is not installed there.
BEGUN, MISSING = "begun", "missing"
NOBODY = "65534:65534"
PAGE = "docs/grading.md"
_OWN_MEMORY = 2**29  # of the processes that watch over the notebook
_TASKS = 1024  # processes and their threads, of which MXNet has some dozens; in the container
_SHARED = 2**28  # bytes of /dev/shm
_HELP = ("See 'docker", "Run 'docker", "See 'podman")
_START_S = 60.0  # for the engine, besides what the notebook may take
_END_S = 20.0
_GRACE_S = 1.0  # that the engine's command has to end when it is not listened to any more


def find_engine(wanted: str) -> str:
    """The path of docker or podman; ``wanted``: that one, or "" for any. Raises NotebookError."""
    names = (wanted,) if wanted else ENGINES
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise NotebookError(
            f"--isolated needs a container engine, and there is no {' or '.join(names)} on PATH: "
            f"install one and build the image, see {PAGE}; or grade without --isolated, "
            "in an account that holds nothing else"
        )
    return found


def command_of(
    engine: str, image: str, name: str, folder: Path, bounds: Bounds, cores: int
) -> List[str]:
    """The words of the command that runs the notebook in ``folder`` in a container ``name``."""
    limits = {
        "--memory": str(bounds.memory + _OWN_MEMORY),
        "--memory-swap": str(bounds.memory + _OWN_MEMORY),  # the two together: no swap
        "--pids-limit": str(_TASKS),
        "--cpus": str(cores),
        "--shm-size": str(_SHARED),
        "--ulimit": "core=0:0",
    }
    return [
        *(engine, "run", "--rm", "--interactive", "--name", name, "--pull", "never"),
        *("--network", "none", "--read-only", "--cap-drop", "ALL"),
        *("--security-opt", "no-new-privileges", "--user", NOBODY, "--log-driver", "none"),
        *(word for option, value in limits.items() for word in (option, value)),
        *("--tmpfs", f"/tmp:rw,nosuid,nodev,size={bounds.disk},mode=1777"),
        *("--volume", f"{folder}:{PLACE}:ro,z"),  # z: where SELinux asks for a label
        *("--env", "HOME=/tmp", "--env", "PYTHONDONTWRITEBYTECODE=1", "--workdir", "/tmp"),
        *("--entrypoint", "python", image, "-m", "gluonlab.exercises.notebook_runners"),
    ]


@dataclass(frozen=True)
class Containers:
    """A `gluonlab.exercises.grading.Runner` whose notebooks run in containers of their own."""

    engine: str
    image: str = IMAGE
    cores: int = 2

    def __call__(
        self, path: Path, bounds: Bounds, seed: Optional[int], stop: threading.Event
    ) -> NotebookResult:
        """Run the notebook. Raises OSError, and NotebookError if the engine starts no container."""
        try:
            content = read_bounded(path, bounds.source)
        except OSError as error:
            return NotebookResult(note=f"cannot be read as a notebook: {error.strerror}")
        except DataError:
            return NotebookResult(
                note=f"cannot be read as a notebook: it has more than {bounds.source:,} bytes"
            )
        with temporary_folder("isolated") as own:
            if ":" in str(own):
                raise NotebookError(f"--isolated: TMPDIR {own.parent} has a colon: choose another")
            folder = own / "given"
            folder.mkdir()
            copy = folder / to_plain_name(path.name, "notebook.ipynb")
            copy.write_bytes(content)
            folder.chmod(0o755)  # nobody, inside, is to read it
            copy.chmod(0o644)
            return self._run(folder, copy.name, bounds, seed, stop)

    def _run(
        self, folder: Path, name: str, bounds: Bounds, seed: Optional[int], stop: threading.Event
    ) -> NotebookResult:
        container = f"gluonlab-grade-{uuid.uuid4().hex}"
        words = command_of(self.engine, self.image, container, folder, bounds, self.cores)
        order = {"name": name, "bounds": vars(bounds), "seed": seed}
        seconds = bounds.seconds + 3 * bounds.spare_seconds + _START_S
        child = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the grader
        )
        try:
            said = _talk(child, json.dumps(order).encode() + b"\n", seconds, stop)
        finally:
            self._end(child, container)
        return self._outcome(said, child.returncode)

    def _end(self, child: "subprocess.Popen[bytes]", container: str) -> None:
        """End the container, which does not end with the engine's command, and that command."""
        for stream in (child.stdin, child.stdout, child.stderr):
            assert stream is not None
            with suppress(OSError):  # nobody has read the order
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

    def _outcome(self, said: "Said", status: int) -> NotebookResult:
        objects = [*map(_as_object, said.lines.splitlines()), {}]
        first, rest = objects[0], objects[1:]
        if BEGUN not in first and not said.fault:  # no notebook can do that: none has run
            raise NotebookError(
                f"{Path(self.engine).name} has not started the grader in {self.image} "
                f"(exit {status}: {_last_line(said.errors)}): build the image as {PAGE} says, "
                "or name one by --image"
            )
        if BEGUN in first and first[BEGUN] != gluonlab.__version__:
            raise NotebookError(
                f"the image {self.image} holds gluonlab {str(first[BEGUN])[:40]}, this is "
                f"{gluonlab.__version__}: build it anew as {PAGE} says"
            )
        if first.get(MISSING):
            raise NotebookError(f"in the image {self.image}: {one_line(str(first[MISSING]))[:300]}")
        found = next((one for one in rest if "verdicts" in one), None)
        if found is not None and isinstance(found["verdicts"], dict):
            return checked(found.get("lab"), found.get("note"), found["verdicts"].items())
        return NotebookResult(note=said.fault or _ended(status))


def _last_line(errors: bytes) -> str:
    """What was wrong: the last line that does not tell how to get help."""
    lines = errors.decode(errors="replace").split("\n")
    said = [line for line in lines if line.strip() and not line.startswith(_HELP)]
    return one_line(said[-1])[:300] if said else "it says nothing"


def _ended(status: int) -> str:
    if status in (137, -9):
        return "its container was killed (exit 137), as for too much memory"
    return f"its container ended without a result (exit {status})"


class Said(NamedTuple):
    """What a container and its engine have said, and why no more was read of it."""

    lines: bytes
    errors: bytes = b""
    fault: str = ""


def _talk(
    child: "subprocess.Popen[bytes]", order: bytes, seconds: float, stop: threading.Event
) -> Said:
    """Send the order and read to the end, within time and MOST_SAID; the input stays open."""
    assert child.stdin is not None and child.stdout is not None and child.stderr is not None
    with suppress(BrokenPipeError):  # it has ended; its status says why
        child.stdin.write(order)
        child.stdin.flush()
    output, errors = child.stdout.fileno(), child.stderr.fileno()
    said, unfinished = {output: b"", errors: b""}, [output, errors]
    end = time.monotonic() + seconds
    while unfinished:
        if stop.is_set() or time.monotonic() > end:
            fault = f"not finished in time, and had to be ended after {seconds:g} s"
            return Said(said[output], fault=fault)
        for stream in select.select(unfinished, [], [], LOOK_S)[0]:
            part = os.read(stream, 2**16)
            said[stream] += part
            if not part:
                unfinished.remove(stream)
        if sum(map(len, said.values())) > MOST_SAID:
            fault = f"its container said more than {MOST_SAID / 2**20:g} MiB, and was ended"
            return Said(b"", fault=fault)
    with suppress(subprocess.TimeoutExpired):
        child.wait(_END_S)
    return Said(said[output], said[errors])


# --- Inside the container


def main(arguments: Sequence[str]) -> None:
    """``[FOLDER]``: where the notebook lies, PLACE unless a folder is given."""
    print(json.dumps({BEGUN: gluonlab.__version__, MISSING: missing()}), flush=True)
    order = json.loads(sys.stdin.buffer.readline())
    stop, place = threading.Event(), Path(arguments[0] if arguments else PLACE)
    threading.Thread(target=_stop_at_end_of_input, args=(stop,), daemon=True).start()
    try:
        path = place / Path(order["name"]).name
        outcome = run_in_processes(path, Bounds(**order["bounds"]), order["seed"], stop)
    except OSError as error:
        outcome = NotebookResult(note=f"cannot be run ({error})")
    verdicts = {id: one._asdict() for id, one in outcome.verdicts.items()}
    line = json.dumps({"lab": outcome.lab, "note": outcome.note, "verdicts": verdicts})
    sys.stdout.buffer.write(line.encode() + b"\n")
    sys.stdout.buffer.flush()
    os._exit(0)  # whatever thread still waits for input


def _stop_at_end_of_input(stop: threading.Event) -> None:
    while os.read(0, 2**16):
        pass
    stop.set()


if __name__ == "__main__":
    main(sys.argv[1:])
