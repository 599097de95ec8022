"""Temporary folders, of which those that killed processes have left behind are removed."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Iterator

from gluonlab.files.whole import remove_folder, remove_unlocked


@contextmanager
def temporary_folder(kind: str) -> Iterator[Path]:
    """A new folder ``gluonlab-KIND-...`` for temporary files, which goes when the block ends.

    Folders of this kind and of this user go first that no process holds any more; where the disk
    has no locks, none goes. Raises OSError.
    """
    prefix = f"gluonlab-{kind}-"
    _remove_left_behind(Path(tempfile.gettempdir()), prefix)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        with suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY)
            with suppress(OSError):  # of disks without locks
                fcntl.flock(lock, fcntl.LOCK_SH)
            if folder.is_dir():
                break
            os.close(lock)  # it was taken for a dead process's before it was locked
    try:
        yield folder
    finally:
        remove_folder(folder)
        os.close(lock)


def _remove_left_behind(place: Path, prefix: str) -> None:
    with suppress(OSError):
        for entry in list(place.iterdir()):
            if re.fullmatch(re.escape(prefix) + "[a-z0-9_]{8}", entry.name) and _is_own(entry):
                remove_unlocked(entry, remove_folder)


def _is_own(path: Path) -> bool:
    """Whether it is a folder as ``mkdtemp`` makes them for this user: not a link, nor shared."""
    with suppress(OSError):
        about = os.lstat(path)
        mode = stat.S_IMODE(about.st_mode) & ~stat.S_ISVTX  # which Jupyter sets
        private = mode == stat.S_IRWXU
        return stat.S_ISDIR(about.st_mode) and private and about.st_uid == os.getuid()
    return False
