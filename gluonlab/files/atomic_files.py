"""Files and folders that appear whole or not at all, and are checked before work begins.

Also temporary folders, and files of others, which are read only up to a size.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Callable, Iterable, Iterator, List, Sequence, Tuple

from gluonlab.errors import DataError, OutputError

ELSEWHERE = "choose another place with --out"
MARKED_BYTES = 2000  # the beginning of a file, in which a mark is looked for
# Beside each file that it copies to S3, SageMaker puts FILE.sagemaker-uploading, and then
# FILE.sagemaker-uploaded. They come back with the files.
SAGEMAKER_MARKERS = (".sagemaker-uploading", ".sagemaker-uploaded")


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path``, which replaces it when the block ends without an error.

    Where ``path`` is a link, its target is replaced. Files that killed processes have left behind
    for the same ``path`` are removed. Raises OSError, before anything is written, for what must not
    be replaced: a folder, a device, a pipe, a socket, or links in a circle.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is a device, a pipe or a socket")
    path = Path(os.path.realpath(path))
    if path.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    remove_left_behind([path.parent], [path.name])
    temporary, lock = _locked(path, _make_file)
    try:
        yield temporary
        sync(temporary)  # some disks say only now that they are full
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
        os.close(lock)


def _make_file(path: Path) -> Path:
    path.touch(exist_ok=False)  # tempfile's would be readable by their owner only
    return path


def _make_folder(path: Path) -> Path:
    folder = path.with_name(f"{path.name}.part")
    folder.mkdir()
    return folder


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A new folder beside ``path`` that becomes it when the block ends without an error.

    ``path`` must not exist. The folder is on disk then; its files are the block's concern. Folders
    that killed processes have left behind for the same ``path`` are removed. A running process
    holds a lock on its folder; where the disk has no locks, nothing is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_left_behind([path.parent], [path.name])
    temporary, lock = _locked(path, _make_folder)
    try:
        yield temporary
        sync(temporary)
        temporary.rename(path)
        sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        os.close(lock)


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, on disk. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # of disks that have nothing to do for a folder
            raise
    finally:
        os.close(handle)


def _locked(path: Path, make: Callable[[Path], Path]) -> Tuple[Path, int]:
    """What is made of a temporary path for ``path``, and the lock on it, to be closed."""
    while True:
        temporary = make(path.with_name(f".{path.name}-{secrets.token_hex(4)}"))
        lock = os.open(temporary, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            taken = not temporary.exists()
        except OSError as error:
            taken = isinstance(error, BlockingIOError)  # another one: a disk without locks
        if not taken:
            return temporary, lock
        os.close(lock)  # somebody took it for a dead process's before it was locked


def remove_left_behind(folders: Iterable[Path], names: Sequence[str]) -> None:
    """Remove what killed processes have left of `atomic_path` and `atomic_folder` for these names.

    What belongs to a living process is locked, and stays.
    """
    for folder in folders:
        with suppress(OSError):  # gone, no folder, or another user's
            for entry in list(folder.iterdir()):
                if is_temporary(entry.name, names):
                    remove_unlocked(entry)


def is_temporary(name: str, names: Sequence[str]) -> bool:
    """Whether a file is called as those of `atomic_path` and `atomic_folder` for these names."""
    own = "|".join(map(re.escape, names))
    return re.fullmatch(rf"\.({own})-[0-9a-f]{{8}}(\.part)?", name) is not None


def remove(path: Path) -> None:
    """Remove a file or folder. Raises OSError."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def remove_unlocked(path: Path, remove: Callable[[Path], None] = remove) -> None:
    """``remove`` a file or folder that no process has locked, as far as that is possible."""
    with suppress(OSError):  # a living process's, or another user's, or gone
        lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(path)
        finally:
            os.close(lock)


def append_whole(file: int, content: bytes) -> None:
    """Write all of it at the end of a file that is open to append, or leave the file as it was.

    Raises OSError, also for a file that has been removed.
    """
    about = os.fstat(file)
    if not about.st_nlink:
        raise OSError(errno.ENOENT, "it has been removed while it was written")
    try:
        while content:
            content = content[os.write(file, content) :]
    except BaseException:  # the disk is full, or Ctrl-C
        with suppress(OSError):
            os.ftruncate(file, about.st_size)
        raise


def remove_folder(path: Path) -> None:
    """Remove a folder that somebody else has written into, as far as that is possible.

    A link in its place, and links in it, are removed and not followed. Folders may be deeper than
    Python's own functions go, and closed.
    """
    with suppress(OSError):
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
            return
        for command in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
            subprocess.run([*command, "--", path], stderr=subprocess.DEVNULL, check=False)


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
            if re.fullmatch(re.escape(prefix) + "[a-z0-9_]{8}", entry.name) and _is_private(entry):
                remove_unlocked(entry, remove_folder)


def _is_private(path: Path) -> bool:
    """Whether it is a folder as ``mkdtemp`` makes them for this user: not a link, nor shared."""
    with suppress(OSError):
        about = os.lstat(path)
        mode = stat.S_IMODE(about.st_mode) & ~stat.S_ISVTX  # which Jupyter sets
        private = mode == stat.S_IRWXU
        return stat.S_ISDIR(about.st_mode) and private and about.st_uid == os.getuid()
    return False


def missing_folders(path: Path) -> List[Path]:
    """The folders that ``path.mkdir(parents=True)`` would make, the innermost first."""
    return [folder for folder in (path, *path.parents) if not folder.exists()]


def remove_empty(folders: Sequence[Path]) -> None:
    """Remove these folders, in this order, up to the first that is not empty."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


@contextmanager
def folder_for(path: Path, remedy: str = ELSEWHERE) -> Iterator[None]:
    """Make the folder ``path`` if need be, and check that files can be written there.

    What was made is removed if the block raises. Raises OutputError if no file can be written.
    """
    made = missing_folders(path)
    try:
        with on_disk(path, remedy):
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                pass
        yield
    except BaseException:
        remove_empty(made)
        raise


def write_text(path: Path, content: str, remedy: str = ELSEWHERE) -> None:
    """Write a whole file at once, or leave the old one. Raises OutputError."""
    with on_disk(path, remedy), atomic_path(path) as temporary:
        temporary.write_text(content, encoding="utf-8")


@contextmanager
def on_disk(path: Path, remedy: str = ELSEWHERE) -> Iterator[None]:
    """Make an OutputError, with ``remedy``, of every OSError while ``path`` is written."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}; {remedy}") from None


def check_name(option: str, path: Path) -> None:
    """Raise OutputError for what is no name, with NUL in it for example, or a longer one."""
    with _writable(option, path):
        try:
            os.lstat(path)
        except ValueError:
            raise OSError(errno.EINVAL, "that is no name for a file") from None
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise


def check_new(option: str, path: Path) -> None:
    """Raise OutputError if ``path`` exists already, or has no folder to write it into."""
    check_name(option, path)
    with _writable(option, path):
        there, has_folder = path.is_symlink() or path.exists(), path.parent.is_dir()
    if there:
        raise OutputError(f"{option} {path} exists: choose another name, or remove it first")
    _check_folder_of(option, path, has_folder)


def check_file(option: str, path: Path) -> None:
    """Raise OutputError if ``path`` is a folder, or in none. A file that is there is replaced."""
    check_name(option, path)
    with _writable(option, path):
        is_folder, has_folder = path.is_dir(), path.parent.is_dir()
    if is_folder:
        raise OutputError(f"{option} {path} is a folder: give the name of a file")
    _check_folder_of(option, path, has_folder)


def _check_folder_of(option: str, path: Path, has_folder: bool) -> None:
    if not has_folder:
        raise OutputError(
            f"{option} {path}: there is no folder {path.parent}: make it, or choose another place"
        )
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise OutputError(
            f"{option} {path}: the folder {path.parent} is not writable: choose another place"
        )


@contextmanager
def new_file(option: str, path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` to write to; it is moved there when the block ends.

    Raises OutputError.
    """
    check_new(option, path)
    with _writable(option, path), atomic_path(path) as temporary:
        yield temporary


def is_marked(path: Path, mark: bytes) -> bool:
    """Whether that is a file with ``mark`` among its first bytes."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return mark in file.read(MARKED_BYTES)
    except (OSError, ValueError):  # who writes it says what it is
        return False


def check_new_or_marked(option: str, path: Path, mark: bytes) -> None:
    """As `check_new`, but a file with ``mark`` may be there."""
    if not is_marked(path, mark):
        check_new(option, path)


@contextmanager
def new_or_marked_file(option: str, path: Path, mark: bytes) -> Iterator[Path]:
    """As `new_file`, but a file with ``mark``, an earlier one of ours, is replaced."""
    if not is_marked(path, mark):
        with new_file(option, path) as temporary:
            yield temporary
    else:
        with on_disk(path), atomic_path(path) as temporary:
            yield temporary


@contextmanager
def _writable(option: str, path: Path) -> Iterator[None]:
    """What the system says against ``path`` becomes an OutputError that names it."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(
            f"{option} {path} cannot be written ({error.strerror or error}): choose another place"
        ) from None


def is_marker(name: str) -> bool:
    """Whether SageMaker wrote a file of this name beside a file that it copies to S3."""
    return name.endswith(SAGEMAKER_MARKERS)


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
