"""Writes a run's folder: config.json, metrics.jsonl, curves.png and the parameters.

`RunDirectory` is the folder of a run in progress. Files are written atomically, and only whole
lines (`gluonlab.runs.run_schema`) are appended to metrics.jsonl. Only one process at a time can
write to a folder (`FolderLock`). `archive_existing_run` moves an earlier run to another folder.
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
    append_all_or_nothing,
    atomic_path,
    check_path_name,
    folders_to_create,
    is_sagemaker_marker,
    is_temporary,
    raise_output_errors,
    remove_empty_folders,
    remove_path,
    remove_stale_temporaries,
    write_text,
)
from gluonlab.plain_text import to_plain_name
from gluonlab.runs import run_schema
from gluonlab.runs.run_reader import read_description, read_lines
from gluonlab.runs.run_schema import EndedEvent, Epoch, MetricsLine, Step

RUNS_FOLDER = Path("runs")
LOCK = ".in-use"
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)  # errors of file systems without locks
MAX_PENDING = 2**13  # characters of buffered lines


class RunDirectory:
    """The folder of a run, locked by this process until `close`. Methods raise OutputError."""

    def __init__(self, path: Path, created: Sequence[Path] = ()) -> None:
        """Lock the existing folder ``path``. ``created``: the new folders, innermost first."""
        self.path, self._created = path, created
        self.config_content: Dict[str, Any] = {}  # the content of config.json
        self._lock = FolderLock(path)
        self._pending: List[str] = []  # lines of metrics.jsonl
        self._bytes, self._digest = 0, hashlib.sha256()  # size and digest of the written lines
        self._metrics: Optional[int] = None
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._metrics = os.open(path / run_schema.METRICS, flags, 0o666)
        finally:
            if self._metrics is None:
                self._lock.release()

    @classmethod
    def create(cls, out: Optional[str], name: str) -> "RunDirectory":
        """Create the folder ``out``, or a new folder in runs/ with the time and ``name``.

        ``out`` must be new or empty.
        """
        cls.check(out)
        path = Path(out) if out is not None else RUNS_FOLDER / folder_name(name)
        created: List[Path] = []
        try:
            created = folders_to_create(path if out is not None else path.parent)
            if out is None:
                path = make_unused_folder(path)
                created = [path, *created]
                remove_stale_temporaries(RUNS_FOLDER.glob("*"), run_schema.FILES)
            path.mkdir(parents=True, exist_ok=True)
            run = cls(path, created)
        except OSError as error:
            remove_empty_folders(created)
            if isinstance(error, OutputError):
                raise
            raise _unwritable_error(out, path, error.strerror) from None
        if _has_other_files(path, LOCK, run_schema.METRICS):
            run.close()  # another process has used the folder in the meantime
            raise _not_empty_error(path)
        return run

    @classmethod
    def reopen(cls, path: Path, position: Mapping[str, Any]) -> "RunDirectory":
        """Open the folder of a run that is resumed, and truncate metrics.jsonl to ``position``.

        ``position``: size and digest of the lines to keep, from `metrics_position`. Raises
        DataError if these lines have changed.
        """
        run, file = cls(path), path / run_schema.METRICS
        with raise_output_errors(file, "make it writable"):
            assert run._metrics is not None
            run._count_bytes(file.read_bytes()[: position["bytes"]])
            if run.metrics_position() != position:
                run.close()
                raise DataError(
                    f"the first {position['bytes']:,} bytes of {file} have changed since the checkpoint: "
                    "restore the original file"
                )
            os.truncate(run._metrics, position["bytes"])
        return run

    def metrics_position(self) -> Dict[str, Any]:
        """Write pending lines, and return the size and digest of metrics.jsonl."""
        self._flush()
        return {"bytes": self._bytes, "sha256": self._digest.hexdigest()}

    @staticmethod
    def check(out: Optional[str], empty: bool = True) -> None:
        """Raise OutputError if `create` would reject ``out``. Nothing is created.

        ``empty``: whether the folder must be empty.
        """
        path = Path(out) if out is not None else RUNS_FOLDER
        check_path_name("--out", path)
        try:
            if out is not None and path.exists() and not path.is_dir():
                raise OutputError(f"--out {path} is a file: use a new or empty folder")
            if out is not None and path.exists():
                check_not_in_use(path)
                if empty and _has_other_files(path, LOCK):
                    raise _not_empty_error(path)
            existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
            if not existing.is_dir():
                raise _unwritable_error(out, path, os.strerror(errno.ENOTDIR))
            if not os.access(existing, os.W_OK | os.X_OK):
                raise _unwritable_error(out, path, os.strerror(errno.EACCES))
        except OutputError:
            raise
        except OSError as error:
            raise _unwritable_error(out, path, error.strerror) from None

    def write_config(self, config: Dict[str, Any], **entries: Any) -> None:
        """Write config.json.

        ``config``: the fields of a TrainConfig. ``entries``: ``settings`` and ``classes`` of a run,
        or ``compare``, the numbers of devices of a comparison.
        """
        header = {"format": run_schema.FORMAT, "gluonlab": gluonlab.__version__}
        self.config_content = {**header, **entries, "config": config}
        self._write(run_schema.CONFIG, self.config_content)

    def write_comparison(self, rows: Sequence[Dict[str, Any]]) -> None:
        """Write compare.json: the table of a comparison."""
        self._write(run_schema.COMPARISON, rows)

    def _write(self, name: str, content: Any) -> None:
        write_text(self.path / name, run_schema.file_text(content) + "\n")

    def write(self, *lines: MetricsLine) -> None:
        """Add lines to metrics.jsonl. Steps are buffered until a line of another kind is added."""
        self._pending += [run_schema.line_text(line.to_dict()) + "\n" for line in lines]
        steps = all(isinstance(line, Step) for line in lines)
        if not steps or sum(map(len, self._pending)) >= MAX_PENDING:
            self._flush()

    def _count_bytes(self, text: bytes) -> None:
        self._bytes += len(text)
        self._digest.update(text)

    def _flush(self) -> None:
        """Append the buffered lines to metrics.jsonl, unless it is closed."""
        if self._metrics is not None:  # not closed
            with raise_output_errors(self.path / run_schema.METRICS):
                text = "".join(self._pending).encode()
                append_all_or_nothing(self._metrics, text)
            self._count_bytes(text)
            self._pending = []

    def write_parameters(self, net: Any) -> None:
        """Write the network's parameters to a file for ``net.load_parameters``.

        The first replica is written. ``net.save_parameters`` would write the mean of all replicas,
        which can differ from the replicas by rounding, even if all replicas are equal.
        """
        params = net._collect_params_with_prefix()
        arrays = {name: param.list_data()[0] for name, param in params.items()}
        from gluonlab.files.array_files import save_arrays  # loads MXNet

        save_arrays(self.path / run_schema.PARAMETERS, arrays)

    def draw_curves(self) -> None:
        """Draw curves.png from metrics.jsonl."""
        from gluonlab.runs.plot_curves import draw_curves

        self._flush()
        with raise_output_errors(self.path / run_schema.CURVES), atomic_path(
            self.path / run_schema.CURVES
        ) as temporary:
            draw_curves(read_lines(self.path), temporary)

    def close(self) -> None:
        """Write pending lines, and unlock the folder."""
        if self._metrics is None:
            return
        try:
            self._flush()
        finally:
            file, self._metrics = self._metrics, None
            os.close(file)
            self._lock.release()

    def discard(self) -> None:
        """Remove the files and folders of this run, unless the folder contains other files."""
        file_names = (run_schema.CONFIG, run_schema.METRICS, run_schema.CURVES, run_schema.PARAMETERS, LOCK)
        with suppress(OSError):
            entries = list(self.path.iterdir())
            if all(entry.name in (*file_names, run_schema.TENSORBOARD) for entry in entries):
                for entry in entries:
                    remove_path(entry)
                remove_empty_folders(self._created)


class NoRunDirectory:
    """A replacement for `RunDirectory` in processes other than rank 0. It ignores all writes."""

    path = None
    config_content: Dict[str, Any] = {}

    def _do_nothing(self, *args: Any, **more: Any) -> None:
        """Ignore the call."""

    write_config = write = write_parameters = draw_curves = close = discard = _do_nothing

    def metrics_position(self) -> Dict[str, Any]:
        """Return an empty position."""
        return {}


def _unwritable_error(out: Optional[str], path: Path, reason: Optional[str]) -> OutputError:
    target = f"--out {path}" if out is not None else str(path)
    return OutputError(f"{target} cannot be written ({reason}): choose another directory with --out")


def folder_name(name: str) -> str:
    """Return ``20240131-235959-NAME``: the time, and ``name`` with unsafe characters replaced."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{to_plain_name(name, 'run')}"


def _has_other_files(path: Path, *expected: str) -> bool:
    """Return True if a folder contains files other than ``expected`` and SageMaker's markers."""
    return any(entry.name not in expected and not is_sagemaker_marker(entry.name) for entry in path.iterdir())


def _not_empty_error(path: Path) -> OutputError:
    return OutputError(f"--out {path} is not empty: use a new folder, so that no earlier run is lost")


def make_unused_folder(path: Path) -> Path:
    """Create the folder ``path``, or the first of ``path``-2, -3, ... that does not exist."""
    candidate, number = path, 2
    while True:
        try:
            candidate.mkdir(parents=True)
            return candidate
        except FileExistsError:
            candidate, number = path.with_name(f"{path.name}-{number}"), number + 1


# --- earlier runs in the folder

ALL_FILES = (*run_schema.FILES, run_schema.CHECKPOINTS, run_schema.EXPORT, run_schema.TENSORBOARD)


def has_run(out: str) -> bool:
    """Return True if the folder ``out`` contains a run; False if it is new or empty.

    Raises OutputError if the folder is in use, or contains files of other programs.
    """
    RunDirectory.check(out, empty=False)
    names = _file_names(Path(out))
    if not names <= {*ALL_FILES}:
        RunDirectory.check(out)
    return bool(names)


def archive_existing_run(folder: Path) -> str:
    """Remove or move the run in a folder to make room for a new run. Raises OutputError.

    A run without a finished epoch or checkpoint is removed, because it contains no results. Other
    runs are moved to a new folder next to the old one. Returns a line that reports what was done.
    """
    lock = FolderLock(folder)
    try:
        with raise_output_errors(folder):
            remove_stale_temporaries([folder], ALL_FILES)
            if _is_discardable(folder):
                (folder / run_schema.CONFIG).unlink(missing_ok=True)
                (folder / run_schema.METRICS).unlink(missing_ok=True)
                for name in (run_schema.CHECKPOINTS, run_schema.TENSORBOARD):
                    shutil.rmtree(folder / name, ignore_errors=True)
                return "it had not finished an epoch"
            archive = make_unused_folder(folder.with_name(f"{folder.name}-earlier"))
            for entry in list(folder.iterdir()):  # not the folder itself: it may be a mount point
                if entry.name != LOCK:
                    shutil.move(str(entry), str(archive / entry.name))
            return f"its files were moved to {archive}"
    finally:
        lock.release()


def _file_names(folder: Path) -> Set[str]:
    """Return the names in a folder, except the lock, SageMaker's markers and temporary files."""
    with suppress(FileNotFoundError):
        names = {entry.name for entry in folder.iterdir() if not is_sagemaker_marker(entry.name)}
        return {name for name in names - {LOCK} if not is_temporary(name, ALL_FILES)}
    return set()


def _is_discardable(folder: Path) -> bool:
    """Return True for a readable run without a finished epoch or checkpoint."""
    from gluonlab.runs.checkpoint import list_checkpoints  # loads MXNet

    try:
        if (folder / run_schema.CONFIG).exists():
            read_description(folder)
        lines = read_lines(folder) if (folder / run_schema.METRICS).exists() else []
    except DataError:  # it may not be a run
        return False
    unfinished_files = {run_schema.CONFIG, run_schema.METRICS, run_schema.CHECKPOINTS, run_schema.TENSORBOARD}
    has_epochs = any(isinstance(line, Epoch) for line in lines)
    return _file_names(folder) <= unfinished_files and not has_epochs and not list_checkpoints(folder)


def make_end_event(folder: Path, step: int, seconds: float) -> EndedEvent:
    """Return the last line of metrics.jsonl for a run whose files are complete."""
    return EndedEvent(step, _file_digests(folder), seconds)


def has_ended(folder: Path) -> bool:
    """Return True if the run has ended, and its files are unchanged.

    A file store may have restored only some files, or files of different ages.
    """
    with suppress(DataError, OSError):
        lines: Sequence[MetricsLine] = read_lines(folder)
        last_line = lines[-1] if lines else None
        return isinstance(last_line, EndedEvent) and last_line.files == _file_digests(folder)
    return False


def _file_digests(folder: Path) -> Dict[str, str]:
    """Return the SHA-256 of each file of a finished run: parameters, pictures, exports."""
    files: List[Path] = [folder / run_schema.PARAMETERS, folder / run_schema.CONFUSION]
    with suppress(FileNotFoundError):
        files += sorted((folder / run_schema.EXPORT).iterdir())
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if file.is_file() and not is_sagemaker_marker(file.name)
    }


# --- lock of the folder


class FolderLock:
    """A folder's lock, held by this process until `release`. Raises OutputError if it is in use.

    The operating system's lock on a file in the folder protects the folder. The lock is released
    when the process exits, even if the process is killed. On file systems without locks, the
    content of the file is used: the owner's process ID, host and start time. The start time is
    needed because process IDs are reused.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        self._file: Optional[int] = None
        with raise_output_errors(self.path):
            while self._file is None:
                self._file = self._acquire_unless_removed()

    def _acquire_unless_removed(self) -> Optional[int]:
        """Return the locked file, or None if the file's previous owner has just removed it.

        Raises OutputError if another process holds the lock.
        """
        file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock_or_raise(file, self.path.parent)
            if not _is_same_file(file, self.path):
                os.close(file)
                return None
            self._write(file)
            return file
        except BaseException:
            os.close(file)
            raise

    def _write(self, file: int) -> None:
        """Write the owner of the lock to the lock file. Remove the file if writing fails."""
        try:
            os.ftruncate(file, 0)
            owner = {"pid": os.getpid(), "host": socket.gethostname(), "began": _process_start_time(os.getpid())}
            os.pwrite(file, json.dumps(owner).encode(), 0)
        except BaseException:  # the disk is full
            self.path.unlink()
            raise

    def release(self) -> None:
        """Remove the file, unless another process has created a new one. Safe to call more than once."""
        if self._file is not None:
            with suppress(OSError):
                if _is_same_file(self._file, self.path):
                    self.path.unlink()
            os.close(self._file)
            self._file = None


def check_not_in_use(folder: Path) -> None:
    """Raise OutputError if another process has locked the folder."""
    with suppress(FileNotFoundError):
        file = os.open(folder / LOCK, os.O_RDONLY)
        try:
            _lock_or_raise(file, folder)
        finally:
            os.close(file)


def _lock_or_raise(file: int, folder: Path) -> None:
    """Lock the file. Raises OutputError if another process has locked the folder."""
    has_locks, owner = _try_lock(file), _read_owner(file)
    if has_locks is False or (has_locks is None and _may_be_alive(owner)):
        owner_text = f"process {owner['pid']} on {owner['host']}" if owner else "another process"
        raise OutputError(
            f"{folder} is in use by {owner_text}: use another folder, or wait until that process has ended"
        )


def _try_lock(file: int) -> Optional[bool]:
    """Lock a file. Return False if another process has locked it, None if locks are unsupported."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in NO_LOCKS:
            return None
        raise


def _is_same_file(file: int, path: Path) -> bool:
    """Return True if the open file is still the one at ``path``, which may have been replaced."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _read_owner(file: int) -> Dict[str, Any]:
    """Return the owner of a lock, or an empty dictionary if the file is empty or invalid."""
    with suppress(ValueError, TypeError):
        owner = json.loads(os.pread(file, 4096, 0))
        return {"pid": int(owner["pid"]), "host": str(owner["host"]), "began": owner["began"]}
    return {}


def _may_be_alive(owner: Dict[str, Any]) -> bool:
    """Return True unless the owner of a lock is known to have ended.

    Whether the owner still runs can be checked only on the owner's host.
    """
    if not owner or owner["host"] != socket.gethostname():
        return bool(owner)
    if owner["began"] is None:  # the system has no /proc, as macOS
        return _process_exists(owner["pid"])
    began: Optional[int] = owner["began"]
    return _process_start_time(owner["pid"]) == began


def _process_exists(pid: int) -> bool:
    """Check if there is a process with this id; it may be another user's."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _process_start_time(pid: int) -> Optional[int]:
    """Return a process's start time in clock ticks since boot, or None if it does not exist."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(words[19])  # starttime of proc(5)
