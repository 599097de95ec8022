"""Files of other people's, read without waiting and only up to a size."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from gluonlab.errors import DataError


def read_bounded(path: Path, most_bytes: int, follow: bool = True) -> bytes:
    """The content of a regular file of at most ``most_bytes``.

    ``follow``: read what a symbolic link leads to. Raises DataError for a larger file, whatever its
    content, and OSError for one that cannot be read or is none: a pipe would be waited for.
    """
    # a pipe would wait for a writer as it is opened
    flags = os.O_RDONLY | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except ValueError:  # NUL in its name
        raise OSError(errno.EINVAL, "no name for a file") from None
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no file")
        content = file.read(most_bytes + 1) if found.st_size <= most_bytes else b""
    if max(found.st_size, len(content)) > most_bytes:
        raise DataError(f"{path} has more than the {most_bytes:,} bytes that are read")
    return content
