"""The folder of a run: config.json, metrics.jsonl, curves.png and the parameters.

Files that are written whole appear whole: they are written beside their place and moved there.
metrics.jsonl grows by whole lines. The folder belongs to one process at a time; a file in it says
to which. What an earlier run has left makes room for another one.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set

import gluonlab
from gluonlab.errors import DataError, OutputError
from gluonlab.files.atomic_files import (
    append_whole,
    atomic_path,
    check_name,
    is_marker,
    is_temporary,
    missing_folders,
    on_disk,
    remove,
    remove_empty,
    remove_left_behind,
    write_text,
)
from gluonlab.plain_text import to_plain_name
from gluonlab.runs import run_schema
from gluonlab.runs.run_reader import read_description, read_lines
from gluonlab.runs.run_schema import EndedEvent, Epoch, MetricsLine, Step

RUNS = Path("runs")
LOCK = ".in-use"
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)  # what disks without locks say
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
            self._metrics = os.open(path / run_schema.METRICS, how, 0o666)
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
                remove_left_behind(RUNS.glob("*"), run_schema.FILES)
            path.mkdir(parents=True, exist_ok=True)
            run = cls(path, made)
        except OSError as error:
            remove_empty(made)
            if isinstance(error, OutputError):
                raise
            raise _unwritable(out, path, error.strerror) from None
        if _holds_more(path, LOCK, run_schema.METRICS):
            run.close()  # another process was faster, and has ended
            raise _not_empty(path)
        return run

    @classmethod
    def reopen(cls, path: Path, mark: Mapping[str, Any]) -> "RunDirectory":
        """The folder of a run that goes on from where its lines were at a `mark`.

        Later ones are cut off. Raises DataError when earlier ones have changed.
        """
        run, file = cls(path), path / run_schema.METRICS
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
        about = {"format": run_schema.FORMAT, "gluonlab": gluonlab.__version__}
        self.about = {**about, **more, "config": config}
        self._write(run_schema.CONFIG, self.about)

    def compared(self, rows: Sequence[Dict[str, Any]]) -> None:
        """Write compare.json: the table of a comparison."""
        self._write(run_schema.COMPARISON, rows)

    def _write(self, name: str, content: Any) -> None:
        write_text(self.path / name, run_schema.file_text(content) + "\n")

    def write(self, *lines: MetricsLine) -> None:
        """Add lines to metrics.jsonl. They are on disk from the next one on that is no step's."""
        self._pending += [run_schema.line_text(line.to_dict()) + "\n" for line in lines]
        steps = all(isinstance(line, Step) for line in lines)
        if not steps or sum(map(len, self._pending)) >= PENDING:
            self._flush()

    def _note(self, text: bytes) -> None:
        self._bytes += len(text)
        self._digest.update(text)

    def _flush(self) -> None:
        if self._metrics is not None:  # not closed
            with on_disk(self.path / run_schema.METRICS):
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
        from gluonlab.files.array_files import save_arrays  # which loads MXNet

        save_arrays(self.path / run_schema.PARAMETERS, arrays)

    def curves(self) -> None:
        """Draw curves.png from metrics.jsonl."""
        from gluonlab.runs.plot_curves import draw

        self._flush()
        with on_disk(self.path / run_schema.CURVES), atomic_path(
            self.path / run_schema.CURVES
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
        own = (
            run_schema.CONFIG,
            run_schema.METRICS,
            run_schema.CURVES,
            run_schema.PARAMETERS,
            LOCK,
        )
        with suppress(OSError):
            entries = list(self.path.iterdir())
            if all(entry.name in (*own, run_schema.TENSORBOARD) for entry in entries):
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
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{to_plain_name(name, 'run')}"


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


# --- what an earlier run has left

ALL_FILES = (*run_schema.FILES, run_schema.CHECKPOINTS, run_schema.EXPORT, run_schema.TENSORBOARD)


def has_run(out: str) -> bool:
    """Whether a run has begun in the folder ``out``; False for one that is new or empty.

    Raises OutputError, as `RunDirectory.check` does, for a folder that is in use, and for one with
    files that no run writes.
    """
    RunDirectory.check(out, empty=False)
    names = _names(Path(out))
    if not names <= {*ALL_FILES}:
        RunDirectory.check(out)
    return bool(names)


def make_room(folder: Path) -> str:
    """Leave a run's folder to a new run; what was done, in words.

    The steps of a run that has not finished an epoch, nor written a checkpoint, are removed: they
    come again. Any other one keeps its files, in a new folder beside. Raises OutputError.
    """
    lock = FolderLock(folder)
    try:
        with on_disk(folder):
            remove_left_behind([folder], ALL_FILES)
            if _comes_again(folder):
                (folder / run_schema.CONFIG).unlink(missing_ok=True)
                (folder / run_schema.METRICS).unlink(missing_ok=True)
                for name in (run_schema.CHECKPOINTS, run_schema.TENSORBOARD):
                    shutil.rmtree(folder / name, ignore_errors=True)
                return "it had finished no epoch"
            aside = make_unused(folder.with_name(f"{folder.name}-earlier"))
            for entry in list(folder.iterdir()):  # not the folder itself: it may be a mount point
                if entry.name != LOCK:
                    shutil.move(str(entry), str(aside / entry.name))
            return f"what it has left is in {aside}"
    finally:
        lock.release()


def _names(folder: Path) -> Set[str]:
    """The files of a folder, but for the lock, markers, and what killed processes leave."""
    with suppress(FileNotFoundError):
        names = {entry.name for entry in folder.iterdir() if not is_marker(entry.name)}
        return {name for name in names - {LOCK} if not is_temporary(name, ALL_FILES)}
    return set()


def _comes_again(folder: Path) -> bool:
    from gluonlab.runs.checkpoint import checkpoints  # which loads MXNet

    try:
        if (folder / run_schema.CONFIG).exists():
            read_description(folder)
        lines = read_lines(folder) if (folder / run_schema.METRICS).exists() else []
    except DataError:  # whose it is cannot be told
        return False
    begun = {run_schema.CONFIG, run_schema.METRICS, run_schema.CHECKPOINTS, run_schema.TENSORBOARD}
    finished = any(isinstance(line, Epoch) for line in lines)
    return _names(folder) <= begun and not finished and not checkpoints(folder)


def ended(folder: Path, step: int, seconds: float) -> EndedEvent:
    """The last line of a run that has written all its files."""
    return EndedEvent(step, _digests(folder), seconds)


def has_ended(folder: Path) -> bool:
    """Whether the run has ended, and left its files as they are there.

    Some are not, where a store of files has put back what it had: of different ages, or a part.
    """
    with suppress(DataError, OSError):
        lines: Sequence[MetricsLine] = read_lines(folder)
        last = lines[-1] if lines else None
        return isinstance(last, EndedEvent) and last.files == _digests(folder)
    return False


def _digests(folder: Path) -> Dict[str, str]:
    files: List[Path] = [folder / run_schema.PARAMETERS, folder / run_schema.CONFUSION]
    with suppress(FileNotFoundError):
        files += sorted((folder / run_schema.EXPORT).iterdir())
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if file.is_file() and not is_marker(file.name)
    }


# --- whose folder it is


class FolderLock:
    """Takes the folder for this process, until `release`. Raises OutputError where another has it.

    The system's lock on the file decides, and ends with its process however that ends, so what
    killed processes leave is taken over. Where the disk knows no locks, the file's content does:
    process, host, and when the process began, since numbers of processes are given out again.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        self._file: Optional[int] = None
        with on_disk(self.path):
            while self._file is None:
                self._file = self._taken()

    def _taken(self) -> Optional[int]:
        """The locked file; None if it has just been removed by the process that had it."""
        file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _check_not_held(file, self.path.parent)
            if not _is_at(file, self.path):
                os.close(file)
                return None
            self._write(file)
            return file
        except BaseException:
            os.close(file)
            raise

    def _write(self, file: int) -> None:
        try:
            os.ftruncate(file, 0)
            owner = {"pid": os.getpid(), "host": socket.gethostname(), "began": _began(os.getpid())}
            os.pwrite(file, json.dumps(owner).encode(), 0)
        except BaseException:  # the disk is full
            self.path.unlink()
            raise

    def release(self) -> None:
        """Remove the file, unless another process has made a new one. May be called again."""
        if self._file is not None:
            with suppress(OSError):
                if _is_at(self._file, self.path):
                    self.path.unlink()
            os.close(self._file)
            self._file = None


def check_free(folder: Path) -> None:
    """Raise OutputError for a folder that another process has, without taking it."""
    with suppress(FileNotFoundError):
        file = os.open(folder / LOCK, os.O_RDONLY)
        try:
            _check_not_held(file, folder)
        finally:
            os.close(file)


def _check_not_held(file: int, folder: Path) -> None:
    """Lock the file. Raises OutputError if another process has the folder."""
    has_locks, owner = _lock(file), _owner(file)
    if has_locks is False or (has_locks is None and _may_live(owner)):
        who = f"process {owner['pid']} on {owner['host']}" if owner else "another process"
        raise OutputError(
            f"{folder} is in use by {who}: give another folder, or wait until that has ended"
        )


def _lock(file: int) -> Optional[bool]:
    """Whether it could be locked; None where the disk knows no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in NO_LOCKS:
            return None
        raise


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _owner(file: int) -> Dict[str, Any]:
    """Empty while the other process has not written it, and for what no process of ours writes."""
    with suppress(ValueError, TypeError):
        owner = json.loads(os.pread(file, 4096, 0))
        return {"pid": int(owner["pid"]), "host": str(owner["host"]), "began": owner["began"]}
    return {}


def _may_live(owner: Dict[str, Any]) -> bool:
    """Whether the process may be there: on this host that can be seen."""
    if not owner or owner["host"] != socket.gethostname():
        return bool(owner)
    return owner["began"] is not None and _began(owner["pid"]) == owner["began"]


def _began(pid: int) -> Optional[int]:
    """When a process began, in the system's ticks; None for one that is not there."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(words[19])  # starttime of proc(5)
