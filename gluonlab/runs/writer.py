"""The folder of a run: config.json, metrics.jsonl, curves.png and the parameters.

Files that are written whole appear whole: they are written beside their place and moved there.
metrics.jsonl grows by whole lines.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

import gluonlab
from gluonlab.errors import DataError, OutputError
from gluonlab.files.whole import (
    append_whole,
    atomic_path,
    check_name,
    is_marker,
    missing_folders,
    on_disk,
    remove,
    remove_empty,
    remove_left_behind,
    write_text,
)
from gluonlab.plain import plain_name
from gluonlab.runs import schema
from gluonlab.runs.lock import LOCK, FolderLock, check_free
from gluonlab.runs.reader import read_lines
from gluonlab.runs.schema import Line, Step

RUNS = Path("runs")
PENDING = 2**13  # characters of lines that wait for their way to the disk


class RunDirectory:
    """Makes the folder of a run and writes into it. Raises OutputError when that is impossible.

    Until `close` the folder is locked: it belongs to this process.
    """

    def __init__(self, path: Path, made: Sequence[Path] = ()) -> None:
        """``path`` is there. ``made``: the folders that were made for it, the innermost first."""
        self.path, self._made = path, made
        self.about: Dict[str, Any] = {}  # what config.json says
        self._lock = FolderLock(path)
        self._pending: List[str] = []  # lines of metrics.jsonl
        self._bytes, self._digest = 0, hashlib.sha256()  # of those that are written
        self._metrics: Optional[int] = None
        try:
            how = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._metrics = os.open(path / schema.METRICS, how, 0o666)
        finally:
            if self._metrics is None:
                self._lock.release()

    @classmethod
    def create(cls, out: Optional[str], name: str) -> "RunDirectory":
        """The folder ``out``, new or empty; without it a new one in runs/, by time and ``name``."""
        cls.check(out)
        path = Path(out) if out is not None else RUNS / folder_name(name)
        made: List[Path] = []
        try:
            made = missing_folders(path if out is not None else path.parent)
            if out is None:
                path = make_unused(path)
                made = [path, *made]
                remove_left_behind(RUNS.glob("*"), schema.FILES)
            path.mkdir(parents=True, exist_ok=True)
            run = cls(path, made)
        except OSError as error:
            remove_empty(made)
            if isinstance(error, OutputError):
                raise
            raise _unwritable(out, path, error.strerror) from None
        if _holds_more(path, LOCK, schema.METRICS):
            run.close()  # another process was faster, and has ended
            raise _not_empty(path)
        return run

    @classmethod
    def reopen(cls, path: Path, mark: Mapping[str, Any]) -> "RunDirectory":
        """The folder of a run that goes on from where its lines were at a `mark`.

        Later ones are cut off. Raises DataError when earlier ones have changed.
        """
        run, file = cls(path), path / schema.METRICS
        with on_disk(file, "make it writable"):
            assert run._metrics is not None
            run._note(file.read_bytes()[: mark["bytes"]])
            if run.mark() != mark:
                run.close()
                raise DataError(
                    f"{file} is not what the checkpoint goes on from: its first {mark['bytes']:,} "
                    "bytes have changed: put it back as it was"
                )
            os.truncate(run._metrics, mark["bytes"])
        return run

    def mark(self) -> Dict[str, Any]:
        """How far metrics.jsonl has come, which is on its way to the disk then."""
        self._flush()
        return {"bytes": self._bytes, "sha256": self._digest.hexdigest()}

    @staticmethod
    def check(out: Optional[str], empty: bool = True) -> None:
        """Raise OutputError for an ``out`` that `create` would refuse; nothing is made.

        ``empty``: whether it would refuse a folder for what is in it.
        """
        path = Path(out) if out is not None else RUNS
        check_name("--out", path)
        try:
            if out is not None and path.exists() and not path.is_dir():
                raise OutputError(f"--out {path} is a file: give a folder that is new or empty")
            if out is not None and path.exists():
                check_free(path)
                if empty and _holds_more(path, LOCK):
                    raise _not_empty(path)
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
        self.about = {**about, **more, "config": config}
        self._write(schema.CONFIG, self.about)

    def compared(self, rows: Sequence[Dict[str, Any]]) -> None:
        """Write compare.json: the table of a comparison."""
        self._write(schema.COMPARISON, rows)

    def _write(self, name: str, content: Any) -> None:
        write_text(self.path / name, schema.file_text(content) + "\n")

    def write(self, *lines: Line) -> None:
        """Add lines to metrics.jsonl. They are on disk from the next one on that is no step's."""
        self._pending += [schema.line_text(line.to_dict()) + "\n" for line in lines]
        steps = all(isinstance(line, Step) for line in lines)
        if not steps or sum(map(len, self._pending)) >= PENDING:
            self._flush()

    def _note(self, text: bytes) -> None:
        self._bytes += len(text)
        self._digest.update(text)

    def _flush(self) -> None:
        if self._metrics is not None:  # not closed
            with on_disk(self.path / schema.METRICS):
                text = "".join(self._pending).encode()
                append_whole(self._metrics, text)
            self._note(text)
            self._pending = []

    def parameters(self, net: Any) -> None:
        """Write the network's parameters; ``net.load_parameters(file, ctx)`` reads them.

        They are those of one replica: ``net.save_parameters`` would write the average of all, which
        for three equal numbers is not always that number.
        """
        params = net._collect_params_with_prefix()
        arrays = {name: param.list_data()[0] for name, param in params.items()}
        from gluonlab.files.arrays import save_arrays  # which loads MXNet

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
        """Nothing more will be written, and the folder is free."""
        if self._metrics is None:
            return
        try:
            self._flush()
        finally:
            file, self._metrics = self._metrics, None
            os.close(file)
            self._lock.release()

    def discard(self) -> None:
        """Take away what was written and made, unless something else is in the folder."""
        own = (schema.CONFIG, schema.METRICS, schema.CURVES, schema.PARAMETERS, LOCK)
        with suppress(OSError):
            entries = list(self.path.iterdir())
            if all(entry.name in (*own, schema.TENSORBOARD) for entry in entries):
                for entry in entries:
                    remove(entry)
                remove_empty(self._made)


class NoRunDirectory:
    """What a process of a group writes to that has no folder, as rank 0 alone has one."""

    path = None
    about: Dict[str, Any] = {}

    def _nothing(self, *args: Any, **more: Any) -> None:
        """Nothing is written."""

    describe = write = parameters = curves = close = discard = _nothing

    def mark(self) -> Dict[str, Any]:
        """There are no lines."""
        return {}


def _unwritable(out: Optional[str], path: Path, reason: Optional[str]) -> OutputError:
    asked = f"--out {path}" if out is not None else str(path)
    return OutputError(f"{asked} cannot be written ({reason}): choose another place with --out")


def folder_name(name: str) -> str:
    """``20240131-235959-NAME``, where a ``name`` from a file or a program leads nowhere else."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{plain_name(name, 'run')}"


def _holds_more(path: Path, *than: str) -> bool:
    return any(entry.name not in than and not is_marker(entry.name) for entry in path.iterdir())


def _not_empty(path: Path) -> OutputError:
    return OutputError(
        f"--out {path} is not empty: give a new folder, so that no earlier run is lost"
    )


def make_unused(path: Path) -> Path:
    """Make the folder ``path``, or ``path``-2, -3, ...: the first that is not there yet."""
    candidate, number = path, 2
    while True:
        try:
            candidate.mkdir(parents=True)
            return candidate
        except FileExistsError:
            candidate, number = path.with_name(f"{path.name}-{number}"), number + 1
