"""Run a notebook in a container of Docker or Podman, which reaches neither a network nor a file.

Outside, this starts ``docker run`` with the command of `gluonlab.exercises.inside`, hands the order
to its standard input as a line of JSON, and reads two lines from its standard output: that it has
begun, and the outcome. The input stays open until the grader has ended, or ends the notebook.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import List, NamedTuple, Optional

import gluonlab
from gluonlab.errors import DataError, NotebookError
from gluonlab.exercises.bounds import Bounds
from gluonlab.exercises.process import LOOK_S, MOST_SAID, Outcome, as_object, checked
from gluonlab.files.whole import read_bounded, temporary_folder
from gluonlab.plain import one_line, plain_name

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
        *("--entrypoint", "python", image, "-m", "gluonlab.exercises.inside"),
    ]


@dataclass(frozen=True)
class Containers:
    """A `gluonlab.exercises.grade.Runner` whose notebooks run in containers of their own."""

    engine: str
    image: str = IMAGE
    cores: int = 2

    def __call__(
        self, path: Path, bounds: Bounds, seed: Optional[int], stop: threading.Event
    ) -> Outcome:
        """Run the notebook. Raises OSError, and NotebookError if the engine starts no container."""
        try:
            content = read_bounded(path, bounds.source)
        except OSError as error:
            return Outcome(note=f"cannot be read as a notebook: {error.strerror}")
        except DataError:
            return Outcome(
                note=f"cannot be read as a notebook: it has more than {bounds.source:,} bytes"
            )
        with temporary_folder("isolated") as own:
            if ":" in str(own):
                raise NotebookError(f"--isolated: TMPDIR {own.parent} has a colon: choose another")
            folder = own / "given"
            folder.mkdir()
            copy = folder / plain_name(path.name, "notebook.ipynb")
            copy.write_bytes(content)
            folder.chmod(0o755)  # nobody, inside, is to read it
            copy.chmod(0o644)
            return self._run(folder, copy.name, bounds, seed, stop)

    def _run(
        self, folder: Path, name: str, bounds: Bounds, seed: Optional[int], stop: threading.Event
    ) -> Outcome:
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

    def _outcome(self, said: "Said", status: int) -> Outcome:
        objects = [*map(as_object, said.lines.splitlines()), {}]
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
        return Outcome(note=said.fault or _ended(status))


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
