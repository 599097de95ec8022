"""The folder of a run: config.json, metrics.jsonl, curves.png and the parameters.

Files that are written whole appear whole: they are written beside their place and moved there.
metrics.jsonl grows by whole lines.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Dict, Optional, Sequence

import gluonlab
from gluonlab.errors import OutputError
from gluonlab.files.arrays import save_arrays
from gluonlab.files.whole import atomic_path, missing_folders, on_disk, remove_empty, write_text
from gluonlab.plain import plain_name
from gluonlab.runs import schema
from gluonlab.runs.reader import read_lines
from gluonlab.runs.schema import Line, Step

RUNS = Path("runs")


class RunDirectory:
    """Makes the folder of a run and writes into it. Raises OutputError when that is impossible."""

    def __init__(self, path: Path, made: Sequence[Path] = ()) -> None:
        """``made``: the folders that were made for it, the innermost first."""
        self.path, self._made = path, made
        self._metrics: IO[str]

    @classmethod
    def create(cls, out: Optional[str], name: str) -> "RunDirectory":
        """The folder ``out``, new or empty; without it a new one in runs/, by time and ``name``."""
        cls.check(out)
        path = Path(out) if out is not None else RUNS / _folder_name(name)
        try:
            made = missing_folders(path if out is not None else path.parent)
            if out is None:
                path = _make_unused(path)
                made = [path, *made]
            path.mkdir(parents=True, exist_ok=True)
            run = cls(path, made)
            run._metrics = open(path / schema.METRICS, "a", encoding="utf-8")  # noqa: SIM115  # closed by close()
        except OSError as error:
            raise _unwritable(out, path, error.strerror) from None
        return run

    @staticmethod
    def check(out: Optional[str]) -> None:
        """Raise OutputError for an ``out`` that `create` would refuse; nothing is made."""
        path = Path(out) if out is not None else RUNS
        try:
            if out is not None and path.exists() and not path.is_dir():
                raise OutputError(f"--out {path} is a file: give a folder that is new or empty")
            if out is not None and path.exists() and any(path.iterdir()):
                raise OutputError(
                    f"--out {path} is not empty: give a new folder, so that no earlier run is lost"
                )
            above = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
            if not above.is_dir():
                raise _unwritable(out, path, os.strerror(errno.ENOTDIR))
            if not os.access(above, os.W_OK | os.X_OK):
                raise _unwritable(out, path, os.strerror(errno.EACCES))
        except OutputError:
            raise
        except OSError as error:
            raise _unwritable(out, path, error.strerror) from None

    def describe(self, config: Dict[str, Any], **more: Any) -> None:
        """Write config.json: the fields of a TrainConfig, ``settings`` and ``classes``.

        A comparison has instead the numbers of devices that are compared (``compare``).
        """
        about = {"format": schema.FORMAT, "gluonlab": gluonlab.__version__}
        self._write(schema.CONFIG, {**about, **more, "config": config})

    def compared(self, rows: Sequence[Dict[str, Any]]) -> None:
        """Write compare.json: the table of a comparison."""
        self._write(schema.COMPARISON, rows)

    def _write(self, name: str, content: Any) -> None:
        write_text(self.path / name, schema.file_text(content) + "\n")

    def write(self, *lines: Line) -> None:
        """Add lines to metrics.jsonl. They are on disk from the next one on that is no step's."""
        with on_disk(self.path / schema.METRICS):
            self._metrics.write("".join(schema.line_text(line.to_dict()) + "\n" for line in lines))
        if not all(isinstance(line, Step) for line in lines):
            self._flush()

    def _flush(self) -> None:
        with on_disk(self.path / schema.METRICS):
            self._metrics.flush()

    def parameters(self, net: Any) -> None:
        """Write the network's parameters; ``net.load_parameters(file, ctx)`` reads them.

        They are those of one replica: ``net.save_parameters`` would write the average of all, which
        for three equal numbers is not always that number.
        """
        params = net._collect_params_with_prefix()
        arrays = {name: param.list_data()[0] for name, param in params.items()}
        save_arrays(self.path / schema.PARAMETERS, arrays)

    def curves(self) -> None:
        """Draw curves.png from metrics.jsonl."""
        from gluonlab.runs.curves import draw

        self._flush()
        with on_disk(self.path / schema.CURVES), atomic_path(
            self.path / schema.CURVES
        ) as temporary:
            draw(read_lines(self.path), temporary)

    def close(self) -> None:
        """Nothing more will be written."""
        with on_disk(self.path / schema.METRICS):
            self._metrics.close()

    def discard(self) -> None:
        """Take away what was written and made, unless something else is in the folder."""
        own = (schema.CONFIG, schema.METRICS, schema.CURVES, schema.PARAMETERS)
        with suppress(OSError):
            entries = list(self.path.iterdir())
            if all(entry.name in own for entry in entries):
                for entry in entries:
                    entry.unlink()
                remove_empty(self._made)


class NoRunDirectory:
    """What a process of a group writes to that has no folder, as rank 0 alone has one."""

    path = None

    def _nothing(self, *args: Any, **more: Any) -> None:
        """Nothing is written."""

    describe = write = parameters = curves = close = discard = _nothing


def _unwritable(out: Optional[str], path: Path, reason: Optional[str]) -> OutputError:
    asked = f"--out {path}" if out is not None else str(path)
    return OutputError(f"{asked} cannot be written ({reason}): choose another place with --out")


def _folder_name(name: str) -> str:
    """``20240131-235959-NAME``, where a ``name`` from a file or a program leads nowhere else."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{plain_name(name, 'run')}"


def _make_unused(path: Path) -> Path:
    """Make the folder ``path``, or ``path``-2, -3, ...: the first that is not there yet."""
    candidate, number = path, 2
    while True:
        try:
            candidate.mkdir(parents=True)
            return candidate
        except FileExistsError:
            candidate, number = path.with_name(f"{path.name}-{number}"), number + 1
