"""Files that appear whole or not at all, refused before work begins if they cannot be written, and errors that name them."""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

from gluonlab.errors import OutputError

ELSEWHERE = "choose another place with --out"


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` to write to; it takes the place of ``path`` when the block ends without an error."""
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")  # tempfile's would be readable by their owner only
    try:
        temporary.touch(exist_ok=False)
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())  # some disks say only now that they are full
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, content: str) -> None:
    """Write a whole file at once, or leave the old one. Raises OutputError."""
    with on_disk(path), atomic_path(path) as temporary:
        temporary.write_text(content, encoding="utf-8")


@contextmanager
def on_disk(path: Path, remedy: str = ELSEWHERE) -> Iterator[None]:
    """What goes wrong while ``path`` is written becomes an OutputError that names it, and the remedy."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}; {remedy}") from None


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
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"{option} {path} cannot be written ({error.strerror or error}): choose another place") from None
