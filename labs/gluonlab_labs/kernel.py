"""Run a notebook in its own process and keep its outputs, with nbclient (gluonlab[labs-build])."""

from __future__ import annotations

import copy
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator

from gluonlab.errors import NotebookError
from gluonlab.exercises.run_submission import describe_cell, kernel_environment, make_kernel_manager
from gluonlab.files.atomic_files import temporary_folder


class Kernel:
    """The running process of one notebook, made by `start_kernel`."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def run(self, index: int) -> Any:
        """Execute cell ``index`` of the notebook, and return it with its outputs.

        Raises NotebookError.
        """
        cell = self._client.nb.cells[index]
        return self._run(cell, index)

    def rerun(self, index: int) -> Any:
        """Execute cell ``index`` again, and return a copy with the new outputs.

        The notebook keeps its outputs. Raises NotebookError.
        """
        cell = self._client.nb.cells[index]
        copied = self._run(copy.deepcopy(cell), index)
        self._client.nb.cells[index] = cell
        return copied

    def evaluate(self, source: str) -> str:
        """Execute code outside the notebook; return its output or last value.

        Raises NotebookError.
        """
        from nbformat.v4 import new_code_cell

        cells = self._client.nb.cells
        cells.append(new_code_cell(source))
        try:
            outputs = self._run(cells[-1], len(cells) - 1).outputs
        finally:
            cells.pop()
        texts = (output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs)
        return "".join(texts)

    def _run(self, cell: Any, index: int) -> Any:
        from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

        cell_text = describe_cell(cell.source, index)
        try:
            return self._client.execute_cell(cell, index)
        except CellExecutionError as error:
            raise NotebookError(f"{cell_text}: {error.ename}: {' '.join(str(error.evalue).split())[:400]}") from None
        except CellTimeoutError:
            raise NotebookError(f"{cell_text}: not finished in time") from None
        except DeadKernelError:
            raise NotebookError(f"{cell_text}: its process died") from None


@contextmanager
def start_kernel(notebook: Any, folder: Path, seconds: float, **environment: str) -> Iterator[Kernel]:
    """Start a process of this Python for ``notebook`` (of `nbformat`) in ``folder``.

    ``seconds``: for all cells together. ``environment``: changes to this process's environment.
    Raises NotebookError if nbclient or ipykernel is not installed.
    """
    try:
        import ipykernel  # noqa: F401
        from jupyter_client import AsyncKernelManager
        from nbclient import NotebookClient
    except ImportError as error:
        raise NotebookError(
            f"notebooks cannot run because {error.name} is missing: run pip install 'gluonlab[labs-build]'"
        ) from None
    end = time.monotonic() + seconds
    with temporary_folder("kernel") as own:
        client = NotebookClient(
            notebook,
            km=make_kernel_manager(own, AsyncKernelManager),
            timeout_func=lambda cell: max(1, int(end - time.monotonic())),
            startup_timeout=max(60, int(seconds)),
            resources={"metadata": {"path": str(folder)}},
            coalesce_streams=True,
            record_timing=False,  # the same notebook, the same page
            shutdown_kernel="immediate",
        )
        with client.setup_kernel(cleanup_kc=True, env=kernel_environment(own, **environment)):
            yield Kernel(client)


def execute_notebook(notebook: Any, folder: Path, seconds: float, **environment: str) -> None:
    """Execute all cells of ``notebook``, in place. Raises NotebookError."""
    with start_kernel(notebook, folder, seconds, **environment) as kernel:
        for index in range(len(notebook.cells)):
            kernel.run(index)
