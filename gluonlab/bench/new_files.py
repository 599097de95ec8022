"""Files that a bench is asked to write: refused before anything is measured if they cannot be, and whole when they appear."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

from gluonlab.errors import OutputError
from gluonlab.files import atomic_path


def check_new(option: str, path: Path) -> None:
    """Raise OutputError when there is something at ``path`` already, or no folder to write it into."""
    if path.is_symlink() or path.exists():
        raise OutputError(f"{option} {path} exists: choose another name, or remove it first")
    if not path.parent.is_dir():
        raise OutputError(f"{option} {path}: there is no folder {path.parent}: make it, or choose another place")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise OutputError(f"{option} {path}: nothing can be written into {path.parent}: choose another place")


@contextmanager
def new_file(option: str, path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` to write to; it is moved there when the block ends. Raises OutputError."""
    check_new(option, path)
    try:
        with atomic_path(path) as temporary:
            yield temporary
    except OSError as error:
        raise OutputError(f"{option} {path} cannot be written ({error.strerror}): choose another place") from None
