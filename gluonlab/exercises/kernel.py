"""Run a notebook in its own process; needs nbclient and ipykernel (gluonlab[labs-build])."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator, Optional

from gluonlab.errors import NotebookError
from gluonlab.exercises.languages import VARIABLE
from gluonlab.files.temporary import temporary_folder

# What tells a kernel of another notebook, or of another person's settings.
_FOREIGN = ("JPY_", "JUPYTER", "IPYTHON", "PYDEVD_", VARIABLE)


class Kernel:
    """The running process of one notebook. `start` makes it."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.alive = True  # whether more cells can be run after a NotebookError

    def run(self, index: int) -> Any:
        """Execute cell ``index`` of the notebook, and return it with its outputs.

        Raises NotebookError.
        """
        cell = self._client.nb.cells[index]
        return self._run(cell, index)

    def again(self, index: int) -> Any:
        """Execute cell ``index`` once more, and return a copy with the new outputs.

        The notebook keeps its own.
        """
        cell = self._client.nb.cells[index]
        other = self._run(copy.deepcopy(cell), index)
        self._client.nb.cells[index] = cell
        return other

    def ask(self, source: str) -> str:
        """What code prints, or the value of its last line, that is no part of the notebook.

        Raises NotebookError.
        """
        from nbformat.v4 import new_code_cell

        cells = self._client.nb.cells
        cells.append(new_code_cell(source))
        try:
            outputs = self._run(cells[-1], len(cells) - 1).outputs
        finally:
            cells.pop()
        texts = (
            output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs
        )
        return "".join(texts)

    def _run(self, cell: Any, index: int) -> Any:
        from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

        place = place_of_cell(cell, index)
        try:
            done = self._client.execute_cell(cell, index)
            if getattr(self._client, "too_much", ""):  # and it had ended before it was ended
                raise DeadKernelError
            return done
        except CellExecutionError as error:
            raise NotebookError(
                f"{place}: {error.ename}: {' '.join(str(error.evalue).split())[:400]}"
            ) from None
        except CellTimeoutError:
            self.alive = False
            raise NotebookError(f"{place}: not finished in time") from None
        except DeadKernelError:
            self.alive = False
            too_much = getattr(self._client, "too_much", "")
            raise NotebookError(f"{place}: {too_much or 'its process died'}") from None
        except Exception as error:  # whatever messages in another form make of nbclient
            raise NotebookError(
                f"{place}: its process sent what is no message of a kernel ({type(error).__name__})"
            ) from None


def place_of_cell(cell: Any, index: int) -> str:
    """``cell 3 (x = 1)``: the number of a cell, from 1, and the beginning of its first line."""
    line = next((line for line in cell.source.splitlines() if line.strip()), "")
    return f"cell {index + 1} ({line.strip()[:60]})"


def _bounded(client: Any, printed: int) -> Any:
    """A class of ``client``s that keep no outputs and end a process that prints too much."""

    class Bounded(client):  # type: ignore[misc]
        too_much = ""
        room = printed

        def process_message(self, message: Any, cell: Any, index: int) -> Any:
            if message["msg_type"] == "status":  # a cell has ended, for example
                return super().process_message(message, cell, index)
            self.room -= _length(message["content"])
            if self.room < 0 and not self.too_much:
                self.too_much = f"printed more than {printed / 2**20:g} MiB, and was ended"
                self.ending = asyncio.ensure_future(self.km.signal_kernel(signal.SIGKILL))
            return None

    return Bounded


def _length(content: Any) -> int:
    """About how many characters a message has."""
    if isinstance(content, (dict, list)):
        parts = content.values() if isinstance(content, dict) else content
        return 2 + sum(map(_length, parts))
    return len(content) if isinstance(content, str) else 8


@contextmanager
def start(
    notebook: Any,
    folder: Path,
    seconds: float,
    printed: Optional[int] = None,
    **environment: str,
) -> Iterator[Kernel]:
    """Start a process for ``notebook`` (of `nbformat`) in ``folder``.

    It runs this Python, whatever kernels are installed.
    ``seconds``: for all that is run in it. ``printed``: keep no outputs, and end the process after
    about so many characters of them. ``environment``: changes to that of this process. Raises
    NotebookError where nbclient or ipykernel are not installed.
    """
    try:
        import ipykernel  # noqa: F401
        from jupyter_client import AsyncKernelManager
        from jupyter_client.kernelspec import KernelSpecManager
        from nbclient import NotebookClient
    except ImportError as error:
        raise NotebookError(
            f"notebooks cannot be run here, {error.name} is missing: "
            "pip install 'gluonlab[labs-build]'"
        ) from None
    end = time.monotonic() + seconds
    with temporary_folder("kernel") as own:
        specs = own / "kernels" / "python3"
        specs.mkdir(parents=True)
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        spec = {"argv": argv, "display_name": "Python 3", "language": "python"}
        (specs / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
        manager = AsyncKernelManager(
            kernel_name="python3",
            kernel_spec_manager=KernelSpecManager(
                kernel_dirs=[str(specs.parent)], ensure_native_kernel=False
            ),
            transport="ipc",  # TCP would be open to all who work on this machine
            connection_file=str(own / "connection.json"),
        )
        make = NotebookClient if printed is None else _bounded(NotebookClient, printed)
        client = make(
            notebook,
            km=manager,
            timeout_func=lambda cell: max(1, int(end - time.monotonic())),
            startup_timeout=max(60, int(seconds)),
            resources={"metadata": {"path": str(folder)}},
            coalesce_streams=True,
            record_timing=False,  # the same notebook, the same page
            shutdown_kernel="immediate",
        )
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        env = {**kept, "IPYTHONDIR": str(own), **environment}
        with client.setup_kernel(cleanup_kc=True, env=env):
            yield Kernel(client)


def execute(
    notebook: Any,
    folder: Path,
    seconds: float,
    on_cell: Optional[Callable[[], None]] = None,
    **environment: str,
) -> None:
    """Run all cells of ``notebook``, in place. Raises NotebookError."""
    with start(notebook, folder, seconds, None, **environment) as kernel:
        for index in range(len(notebook.cells)):
            kernel.run(index)
            if on_cell:
                on_cell()
