"""A run's folder belongs to one process at a time; a file in it says to which."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, Optional

from gluonlab.errors import OutputError
from gluonlab.files.whole import on_disk

LOCK = ".in-use"
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)  # what disks without locks say


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
            has_locks = _lock(file)
            owner = _owner(file)
            if has_locks is False or (has_locks is None and _may_live(owner)):
                raise OutputError(in_words(self.path.parent, owner))
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
            os.pwrite(file, json.dumps(_this_process()).encode(), 0)
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
            has_locks, owner = _lock(file), _owner(file)
        finally:
            os.close(file)
        if has_locks is False or (has_locks is None and _may_live(owner)):
            raise OutputError(in_words(folder, owner))


def in_words(folder: Path, owner: Dict[str, Any]) -> str:
    """Who has it, and what is possible."""
    who = f"process {owner['pid']} on {owner['host']}" if owner else "another process"
    return f"{folder} is in use by {who}: give another folder, or wait until that has ended"


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


def _this_process() -> Dict[str, Any]:
    pid = os.getpid()
    return {"pid": pid, "host": socket.gethostname(), "began": _began(pid)}


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
