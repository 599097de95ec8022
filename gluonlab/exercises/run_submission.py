"""Run one submitted notebook, whose file may be malicious.

`gluonlab.exercises.supervisor` starts this process, and limits the damage that a notebook can do.
This process runs the cells in an ipykernel process (gluonlab[labs]). It reports progress as lines
of JSON on its standard output, to which the cells cannot write::

    {"lab": "01"}                               the lab of the notebook
    {"cell": "cell 4 (x = 1)"}                  the running cell
    {"note": "cell 4 (x = 1): ValueError: .."}  the first error
    {"done": ""}                                the last line

Unlike `labs/gluonlab_labs/kernel.py`, this module does not keep the outputs of cells.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from gluonlab.errors import DataError, NotebookError
from gluonlab.exercises.exercise_registry import VERDICTS_VARIABLE, lab_modules
from gluonlab.exercises.languages import LANGUAGE_VARIABLE, LANGUAGES
from gluonlab.exercises.supervisor import Bounds
from gluonlab.files.atomic_files import read_bounded, temporary_folder
from gluonlab.host.child_processes import die_with_parent
from gluonlab.plain_text import one_line

# Tags of cells, as in Jupyter's tools.
SKIP_TAG, RAISES_TAG = ("skip-execution", "raises-exception")
# Cells do not inherit environment variables with these prefixes, because the variables belong to
# another notebook or are settings.
_FOREIGN_VARIABLES = ("JPY_", "JUPYTER", "IPYTHON", "PYDEVD_", LANGUAGE_VARIABLE)
# A Jupyter message is a list of frames. The content is the 5th frame after the delimiter.
_DELIMITER, _BEFORE_CONTENT = b"<IDS|MSG>", 5
_LAST_OUTPUT_S = 4.0  # seconds to wait for outputs that arrive after the reply to a cell
_LOOK_MS = 1000  # milliseconds between two checks that the process is alive


class SubmittedCell(NamedTuple):
    """A cell of a notebook: its code, which is empty for a text cell, and its tags."""

    source: str
    tags: Tuple[str, ...] = ()


def describe_cell(source: str, index: int) -> str:
    """Return a cell's number, counted from 1, and its first line, as in ``cell 3 (x = 1)``."""
    line = next((line for line in source.splitlines() if line.strip()), "")
    return f"cell {index + 1} ({line.strip()[:60]})"


def missing_packages() -> str:
    """Return a message about a missing package, or an empty string if no package is missing."""
    try:
        import ipykernel  # noqa: F401
        import jupyter_client  # noqa: F401
    except ImportError as error:
        return f"notebooks cannot run because {error.name} is missing: run pip install 'gluonlab[labs]'"
    return ""


def make_kernel_manager(folder: Path, manager_class: Any) -> Any:
    """Return a `jupyter_client` kernel manager that starts kernels with this Python interpreter.

    The manager ignores installed kernel specifications. ``folder``: an empty folder for its files.
    ``manager_class``: KernelManager or AsyncKernelManager.
    """
    from jupyter_client.kernelspec import KernelSpecManager

    specs = folder / "kernels" / "python3"
    specs.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": "Python 3", "language": "python"}
    (specs / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
    return manager_class(
        kernel_name="python3",
        kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(specs.parent)], ensure_native_kernel=False),
        transport="ipc",  # other users of this machine could connect to TCP
        connection_file=str(folder / "connection.json"),
    )


def kernel_environment(own: Path, **changes: str) -> "dict[str, str]":
    """Return the environment variables for the process that runs the cells.

    They include this process's variables and ``changes``, but not the variables of other notebooks.
    ``own``: the folder for IPython's files.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN_VARIABLES)}
    return {**inherited, "IPYTHONDIR": str(own), **changes}


@contextmanager
def start_kernel(folder: Path, seconds: float, printed: int, **environment: str) -> Iterator["NotebookKernel"]:
    """Start a process that runs cells in ``folder``, and end it after the ``with`` block.

    ``seconds``: the time limit for all cells together. ``printed``: the largest output in bytes.
    The process is killed if its output is larger. ``environment``: additional environment
    variables. Raises NotebookError if a package is missing.
    """
    fault = missing_packages()
    if fault:
        raise NotebookError(fault)
    from jupyter_client import KernelManager

    end = time.monotonic() + seconds
    with temporary_folder("kernel") as own:
        manager = make_kernel_manager(own, KernelManager)
        manager.start_kernel(env=kernel_environment(own, **environment), cwd=str(folder))
        client = manager.client()
        client.start_channels(stdin=False, hb=False)
        try:
            client.wait_for_ready(timeout=max(60.0, seconds))
            yield NotebookKernel(manager, client, end, printed)
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)


class NotebookKernel:
    """The running process of one notebook, started by `start_kernel`."""

    def __init__(self, manager: Any, client: Any, end: float, printed: int) -> None:
        self._manager, self._client = manager, client
        self._end, self._max_output_bytes, self._remaining_bytes = end, printed, printed
        self.is_alive = True  # whether the process can run more cells, even after a NotebookError

    def run(self, cell: SubmittedCell, index: int) -> None:
        """Execute cell number ``index``, counted from 0. Raises NotebookError if the cell fails."""
        if not cell.source.strip() or SKIP_TAG in cell.tags:
            return
        cell_text = describe_cell(cell.source, index)
        try:
            error = self._execute(cell.source)
        except _KernelEnded as ended:
            self.is_alive = False
            raise NotebookError(f"{cell_text}: {ended}") from None
        except Exception as library_error:  # jupyter_client fails on malformed messages
            raise NotebookError(
                f"{cell_text}: the kernel sent an invalid message ({type(library_error).__name__})"
            ) from None
        if error is not None and RAISES_TAG not in cell.tags:
            raise NotebookError(f"{cell_text}: {error[0]}: {' '.join(error[1].split())[:400]}")

    def _execute(self, source: str) -> Optional[Tuple[str, str]]:
        """Execute code. Return the name and message of its error, or None. Raises _KernelEnded."""
        import zmq

        message_id = self._client.execute(source, allow_stdin=False)
        shell, output = self._client.shell_channel.socket, self._client.iopub_channel.socket
        poller, reply, idle = zmq.Poller(), None, False
        for socket in (shell, output):
            poller.register(socket, zmq.POLLIN)
        deadline = self._end
        while not (reply and idle):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                if reply:  # the cell has ended, and only its last outputs are missing
                    break
                raise _KernelEnded("the cell did not finish in time")
            ready = dict(poller.poll(min(_LOOK_MS, remaining * 1000)))
            if not ready and not self._manager.is_alive():
                raise _KernelEnded("the kernel died")
            if output in ready:
                message = self._read_message(output, is_output=True)
                is_idle = message.get("content", {}).get("execution_state") == "idle"
                idle = idle or (is_idle and _is_reply_to(message, message_id))
            if shell in ready:
                message = self._read_message(shell, is_output=False)
                if _is_reply_to(message, message_id) and message["msg_type"] == "execute_reply":
                    reply = message["content"]
                    deadline = min(deadline, time.monotonic() + _LAST_OUTPUT_S)
        return _reply_error(reply or {})

    def _read_message(self, socket: Any, is_output: bool) -> "dict[str, Any]":
        """Read the next message from a socket. Raises _KernelEnded if the output is too large."""
        frames: List[bytes] = socket.recv_multipart()
        if is_output:
            self._check_output_size(frames)
        _, parts = self._client.session.feed_identities(frames)
        message: "dict[str, Any]" = self._client.session.deserialize(parts)
        return message

    def _check_output_size(self, frames: Sequence[bytes]) -> None:
        """Count a message's bytes of output, and kill the process if its output is too large."""
        begin = frames.index(_DELIMITER) + _BEFORE_CONTENT if _DELIMITER in frames else 0
        self._remaining_bytes -= sum(map(len, frames[begin:]))
        if self._remaining_bytes < 0:
            self._manager.signal_kernel(signal.SIGKILL)
            raise _KernelEnded(
                f"the cell printed more than {self._max_output_bytes / 2**20:g} MiB, so the kernel was killed"
            )


class _KernelEnded(Exception):
    """Raised if the process that runs cells has ended or is out of time. The text is the reason."""


def _is_reply_to(message: "dict[str, Any]", message_id: str) -> bool:
    return bool(message["parent_header"].get("msg_id") == message_id)


def _reply_error(reply: "dict[str, Any]") -> Optional[Tuple[str, str]]:
    if reply.get("status") != "error":
        return None
    return str(reply.get("ename")), str(reply.get("evalue"))


# --- The notebook


MAX_CELLS = 10_000
NBFORMAT = 4  # the major version of the notebook format since 2015
VERDICTS_FILE = "verdicts.jsonl"
LAB_KEY, CELL_KEY, NOTE_KEY, DONE_KEY = "lab", "cell", "note", "done"


def main(arguments: Sequence[str]) -> None:
    """Run one submitted notebook, and write messages about it to standard output.

    ``arguments``: a `Bounds` as JSON, an empty folder, and the path of the notebook.
    """
    bounds, folder, path = Bounds(**json.loads(arguments[0])), Path(arguments[1]), arguments[2]
    die_with_parent()
    reports = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull, "r+b") as nothing:
        os.dup2(nothing.fileno(), 1)  # the cells inherit /dev/null instead of the pipe
    try:
        _run_cells(bounds, folder, Path(path), reports)
    except NotebookError as error:
        _send_status(reports, NOTE_KEY, str(error))
    except Exception as error:  # malicious files and processes make libraries fail
        _send_status(reports, NOTE_KEY, f"cannot be run ({type(error).__name__}: {str(error)[:300]})")
    _send_status(reports, DONE_KEY, "")


def _send_status(reports: IO[str], kind: str, text: str) -> None:
    print(json.dumps({kind: one_line(text)}), file=reports, flush=True)


def _run_cells(bounds: Bounds, folder: Path, path: Path, reports: IO[str]) -> None:
    """Run all cells, and report the lab, the running cell, and the first error."""
    cells, lab, language = read_submission(path, bounds.source)
    _send_status(reports, LAB_KEY, lab)
    cells_folder = folder / language
    cells_folder.mkdir()
    has_note, environment = (False, {VERDICTS_VARIABLE: str(folder / VERDICTS_FILE), "TMPDIR": str(folder)})
    with start_kernel(cells_folder, bounds.seconds, bounds.printed, **environment) as kernel:
        for index, cell in enumerate(cells):
            if not cell.source.strip():
                continue
            _send_status(reports, CELL_KEY, describe_cell(cell.source, index))
            try:
                kernel.run(cell, index)
            except NotebookError as error:
                if not has_note:
                    _send_status(reports, NOTE_KEY, str(error))
                has_note = True
                if not kernel.is_alive:
                    break


class Submission(NamedTuple):
    """The cells of a submitted notebook, the number of its lab, and its language."""

    cells: List[SubmittedCell]
    lab: str
    language: str


def read_submission(path: Path, most_bytes: int) -> Submission:
    """Read a notebook file. Raises NotebookError if it is invalid or larger than ``most_bytes``."""
    notebook = _read_notebook(path, most_bytes)
    metadata = notebook.get("metadata", {})
    if not isinstance(metadata, dict):
        raise _unreadable_notebook_error("the metadata is not a JSON object")
    metadata = metadata.get("gluonlab")
    metadata = metadata if isinstance(metadata, dict) else {}
    lab, language = str(metadata.get("lab", path.name[:2]))[:40], metadata.get("language")
    if lab not in lab_modules():
        raise NotebookError(
            f"does not belong to a lab: {lab!r}, from the metadata or the file name, is not the number of a lab"
        )
    cells = notebook.get("cells")
    if not isinstance(cells, list) or len(cells) > MAX_CELLS:
        raise _unreadable_notebook_error(f"the file does not contain a list of at most {MAX_CELLS:,} cells")
    submitted = [_read_cell(cell, number) for number, cell in enumerate(cells, 1)]
    return Submission(submitted, lab, language if language in LANGUAGES else LANGUAGES[0])


def _read_notebook(path: Path, most_bytes: int) -> "dict[str, Any]":
    """Return the JSON object in a notebook file. Raises NotebookError for an invalid file."""
    try:
        notebook = json.loads(read_bounded(path, most_bytes).decode("utf-8-sig"))
    except OSError as error:
        raise _unreadable_notebook_error(str(error.strerror)) from None
    except DataError:
        raise _unreadable_notebook_error(f"the file is larger than {most_bytes:,} bytes") from None
    except (ValueError, RecursionError) as error:
        raise _unreadable_notebook_error(f"the file is not valid JSON ({str(error)[:200]})") from None
    if not isinstance(notebook, dict):
        raise _unreadable_notebook_error("the file does not contain a JSON object")
    if notebook.get("nbformat") != NBFORMAT:
        raise _unreadable_notebook_error(
            f"the nbformat is {str(notebook.get('nbformat'))[:20]} instead of {NBFORMAT}: open the notebook in "
            "Jupyter and save it again"
        )
    return notebook


def _unreadable_notebook_error(fault: str) -> NotebookError:
    return NotebookError(f"cannot be read as a notebook: {fault}")


def _read_cell(cell: Any, number: int) -> SubmittedCell:
    """Return a cell with its code and known tags. A text cell has no code."""
    source = cell.get("source") if isinstance(cell, dict) else None
    lines: List[Any] = source if isinstance(source, list) else [source]
    if not all(isinstance(line, str) and _is_encodable(line) for line in lines):
        raise _unreadable_notebook_error(f"cell {number} does not contain text")
    if cell.get("cell_type") != "code":
        return SubmittedCell("")
    metadata = cell.get("metadata")
    tags = metadata.get("tags") if isinstance(metadata, dict) else None
    known_tags: Tuple[str, ...] = ()
    if isinstance(tags, list):
        known_tags = tuple(tag for tag in (SKIP_TAG, RAISES_TAG) if tag in tags)
    return SubmittedCell("".join(lines), known_tags)


def _is_encodable(line: str) -> bool:
    """Return whether a text can be encoded as UTF-8. JSON texts may contain lone surrogates."""
    try:
        return line.encode() is not None
    except UnicodeEncodeError:
        return False


if __name__ == "__main__":
    main(sys.argv[1:])
