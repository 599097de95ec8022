"""Files that appear whole or not at all, refused before work begins if they cannot be written, and errors that name them."""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

from gluonlab.errors import OutputError


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` to write to; it takes the place of ``path`` when the block ends without an error."""
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")  # tempfile's would be readable by their owner only
    try:
        temporary.touch(exist_ok=False)
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, content: str) -> None:
    """Write a whole file at once, or leave the old one. Raises OutputError."""
    with on_disk(path), atomic_path(path) as temporary:
        temporary.write_text(content, encoding="utf-8")


@contextmanager
def on_disk(path: Path, remedy: str = "choose another place with --out") -> Iterator[None]:
    """What goes wrong while ``path`` is written becomes an OutputError that names it, and the remedy."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}; {remedy}") from None


def check_new(option: str, path: Path) -> None:
    """Raise OutputError when there is something at ``path`` already, or no folder to write it into."""
    with _writable(option, path):
        there, has_folder = path.is_symlink() or path.exists(), path.parent.is_dir()
    if there:
        raise OutputError(f"{option} {path} exists: choose another name, or remove it first")
    if not has_folder:
        raise OutputError(f"{option} {path}: there is no folder {path.parent}: make it, or choose another place")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise OutputError(f"{option} {path}: nothing can be written into {path.parent}: choose another place")


@contextmanager
def new_file(option: str, path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` to write to; it is moved there when the block ends. Raises OutputError."""
    check_new(option, path)
    with _writable(option, path), atomic_path(path) as temporary:
        yield temporary


@contextmanager
def _writable(option: str, path: Path) -> Iterator[None]:
    """What the system says against ``path`` becomes an OutputError that names it."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{option} {path} cannot be written ({error.strerror}): choose another place") from None
