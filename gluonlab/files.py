"""Files that appear whole or not at all, and errors that name them."""

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
