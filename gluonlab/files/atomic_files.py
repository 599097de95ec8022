"""Writes files and folders, either completely or not at all.

The module also checks output paths before work starts, creates temporary folders, and reads files
up to a maximum size.
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

DEFAULT_REMEDY = "choose another path with --out"
MARK_SEARCH_BYTES = 2000  # `is_marked` searches this many bytes at the start of a file
# For each file that it copies to S3, SageMaker writes FILE.sagemaker-uploading, and then
# FILE.sagemaker-uploaded. SageMaker also copies these marker files, and later restores them.
SAGEMAKER_MARKERS = (".sagemaker-uploading", ".sagemaker-uploaded")


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces ``path`` when the with block ends without an error.

    If ``path`` is a link, its target is replaced. Temporary files that killed processes left for
    the same ``path`` are removed. Raises OSError, before anything is written, for a path that must
    not be replaced: a folder, a device, a pipe, a socket, or a cycle of links.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is a device, a pipe or a socket")
    path = Path(os.path.realpath(path))
    if path.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    remove_stale_temporaries([path.parent], [path.name])
    temporary, lock = _make_locked(path, _make_file)
    try:
        yield temporary
        sync_to_disk(temporary)  # some disks report only during the sync that they are full
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
        os.close(lock)


def _make_file(path: Path) -> Path:
    path.touch(exist_ok=False)  # files of tempfile would be readable only by their owner
    return path


def _make_folder(path: Path) -> Path:
    folder = path.with_name(f"{path.name}.part")
    folder.mkdir()
    return folder


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder that is renamed to ``path`` when the with block ends without an error.

    ``path`` must not exist. The folder is synced to disk, but the with block must sync the files in
    the folder. Temporary folders that killed processes left for the same ``path`` are removed.
    Running processes lock their folders, so these folders are kept. On a disk without locks,
    nothing is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_stale_temporaries([path.parent], [path.name])
    temporary, lock = _make_locked(path, _make_folder)
    try:
        yield temporary
        sync_to_disk(temporary)
        temporary.rename(path)
        sync_to_disk(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        os.close(lock)


def sync_to_disk(path: Path) -> None:
    """Flush a file's content, or a folder's list of names, to disk. Raise OSError on failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # disks that cannot sync folders raise EINVAL
            raise
    finally:
        os.close(descriptor)


def _make_locked(path: Path, make: Callable[[Path], Path]) -> Tuple[Path, int]:
    """Create and lock a temporary file or folder for ``path``.

    Return its path, and the file descriptor that holds the lock. The caller closes the descriptor.
    """
    while True:
        temporary = make(path.with_name(f".{path.name}-{secrets.token_hex(4)}"))
        lock = os.open(temporary, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_removed = not temporary.exists()
        except OSError as error:
            # BlockingIOError: another process is removing it. Other errors: a disk without locks.
            is_removed = isinstance(error, BlockingIOError)
        if not is_removed:
            return temporary, lock
        os.close(lock)  # another process removed it as stale before it was locked


def remove_stale_temporaries(folders: Iterable[Path], names: Sequence[str]) -> None:
    """Remove the temporary files and folders that killed processes left for ``names``.

    Running processes lock their temporary files and folders, so these are kept.
    """
    for folder in folders:
        with suppress(OSError):  # not a folder, or no permission
            for entry in list(folder.iterdir()):
                if is_temporary(entry.name, names):
                    remove_unlocked(entry)


def is_temporary(name: str, names: Sequence[str]) -> bool:
    """Return whether ``name`` is a temporary name that this module makes for one of ``names``."""
    choices = "|".join(map(re.escape, names))
    return re.fullmatch(rf"\.({choices})-[0-9a-f]{{8}}(\.part)?", name) is not None


def remove_path(path: Path) -> None:
    """Remove a file or folder. Raise OSError on failure."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def remove_unlocked(path: Path, remove: Callable[[Path], None] = remove_path) -> None:
    """Remove a file or folder if no process has locked it, and ignore errors."""
    with suppress(OSError):  # locked by a running process, no permission, or gone
        lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(path)
        finally:
            os.close(lock)


def append_all_or_nothing(file: int, content: bytes) -> None:
    """Append ``content`` to an open file, or leave the file unchanged.

    ``file``: a descriptor that is open for appending. Raises OSError if writing fails, or if the
    file has been removed.
    """
    status = os.fstat(file)
    if not status.st_nlink:
        raise OSError(errno.ENOENT, "it was removed while it was written")
    try:
        while content:
            content = content[os.write(file, content) :]
    except BaseException:  # the disk is full, or Ctrl-C
        with suppress(OSError):
            os.ftruncate(file, status.st_size)
        raise


def remove_folder(path: Path) -> None:
    """Remove a folder with everything in it, and ignore errors.

    Links are removed, not followed. Folders may be nested deeper than Python's functions support,
    and may lack permissions.
    """
    with suppress(OSError):
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
            return
        for command in (["chmod", "-R", "--", "u+rwX"], ["rm", "-rf", "--"]):
            subprocess.run([*command, path], stderr=subprocess.DEVNULL, check=False)


@contextmanager
def temporary_folder(kind: str) -> Iterator[Path]:
    """Create a folder ``gluonlab-KIND-...`` for temporary files; remove it after the with block.

    Also remove this user's folders of the same kind that no running process uses. On a disk without
    locks, these old folders are kept. Raises OSError if no folder can be created.
    """
    prefix = f"gluonlab-{kind}-"
    _remove_stale_folders(Path(tempfile.gettempdir()), prefix)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        with suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY)
            with suppress(OSError):  # disks without locks raise OSError
                fcntl.flock(lock, fcntl.LOCK_SH)
            if folder.is_dir():
                break
            os.close(lock)  # another process removed it as stale before it was locked
    try:
        yield folder
    finally:
        remove_folder(folder)
        os.close(lock)


def _remove_stale_folders(parent: Path, prefix: str) -> None:
    """Remove this user's temporary folders with this prefix that killed processes left."""
    with suppress(OSError):
        for entry in list(parent.iterdir()):
            if re.fullmatch(re.escape(prefix) + "[a-z0-9_]{8}", entry.name) and _is_private(entry):
                remove_unlocked(entry, remove_folder)


def _is_private(path: Path) -> bool:
    """Return whether only this user can access the folder ``path``, as with ``mkdtemp``."""
    with suppress(OSError):
        status = os.lstat(path)
        mode = stat.S_IMODE(status.st_mode) & ~stat.S_ISVTX  # which Jupyter sets
        private = mode == stat.S_IRWXU
        return stat.S_ISDIR(status.st_mode) and private and status.st_uid == os.getuid()
    return False


def folders_to_create(path: Path) -> List[Path]:
    """Return the folders that ``path.mkdir(parents=True)`` would create, innermost first."""
    return [folder for folder in (path, *path.parents) if not folder.exists()]


def remove_empty_folders(folders: Sequence[Path]) -> None:
    """Remove ``folders`` in the given order, stopping at the first one that is not empty."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


@contextmanager
def create_writable_folder(path: Path, remedy: str = DEFAULT_REMEDY) -> Iterator[None]:
    """Create the folder ``path`` if necessary, and check that files can be written to it.

    New folders are removed if the with block raises an exception. Raises OutputError if no file can
    be written.
    """
    new_folders = folders_to_create(path)
    try:
        with raise_output_errors(path, remedy):
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                pass
        yield
    except BaseException:
        remove_empty_folders(new_folders)
        raise


def write_text(path: Path, content: str, remedy: str = DEFAULT_REMEDY) -> None:
    """Write a file atomically. If that fails, raise OutputError and keep the old file."""
    with raise_output_errors(path, remedy), atomic_path(path) as temporary:
        temporary.write_text(content, encoding="utf-8")


@contextmanager
def raise_output_errors(path: Path, remedy: str = DEFAULT_REMEDY) -> Iterator[None]:
    """Convert an OSError in the with block to an OutputError with ``path`` and ``remedy``."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}; {remedy}") from None


def check_path_name(option: str, path: Path) -> None:
    """Raise OutputError for an invalid path, such as one that contains NUL or is too long.

    ``option``: the option that sets the path, such as ``--out``, for the error message.
    """
    with _raise_option_errors(option, path):
        try:
            os.lstat(path)
        except ValueError:
            raise OSError(errno.EINVAL, "it is not a valid file name") from None
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise


def check_new_path(option: str, path: Path) -> None:
    """Raise OutputError if ``path`` exists, or its parent folder is missing or not writable."""
    check_path_name(option, path)
    with _raise_option_errors(option, path):
        exists, has_folder = path.is_symlink() or path.exists(), path.parent.is_dir()
    if exists:
        raise OutputError(f"{option} {path} exists: choose another name, or remove it first")
    _check_parent(option, path, has_folder)


def check_output_file(option: str, path: Path) -> None:
    """Raise OutputError if ``path`` is a folder, or its parent folder is missing or not writable.

    An existing file is accepted.
    """
    check_path_name(option, path)
    with _raise_option_errors(option, path):
        is_folder, has_folder = path.is_dir(), path.parent.is_dir()
    if is_folder:
        raise OutputError(f"{option} {path} is a folder: use the path of a file")
    _check_parent(option, path, has_folder)


def _check_parent(option: str, path: Path, has_folder: bool) -> None:
    """Raise OutputError if the parent folder is missing or not writable."""
    if not has_folder:
        raise OutputError(
            f"{option} {path}: the folder {path.parent} does not exist: create it, or choose another path"
        )
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise OutputError(f"{option} {path}: the folder {path.parent} is not writable: choose another path")


@contextmanager
def new_file(option: str, path: Path) -> Iterator[Path]:
    """Yield a temporary path that is moved to the new file ``path`` when the with block ends.

    Raises OutputError if ``path`` cannot be created.
    """
    check_new_path(option, path)
    with _raise_option_errors(option, path), atomic_path(path) as temporary:
        yield temporary


def is_marked(path: Path, mark: bytes) -> bool:
    """Return whether ``path`` is a file with ``mark`` among its first bytes."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return mark in file.read(MARK_SEARCH_BYTES)
    except (OSError, ValueError):  # the caller's attempt to write the file reports the error
        return False


def check_new_or_marked(option: str, path: Path, mark: bytes) -> None:
    """Raise OutputError like `check_new_path`, but accept a file that has gluonlab's ``mark``."""
    if not is_marked(path, mark):
        check_new_path(option, path)


@contextmanager
def new_or_marked_file(option: str, path: Path, mark: bytes) -> Iterator[Path]:
    """Yield a temporary path like `new_file`, but allow ``path`` to be a file with ``mark``."""
    if not is_marked(path, mark):
        with new_file(option, path) as temporary:
            yield temporary
        return
    with raise_output_errors(path), atomic_path(path) as temporary:
        yield temporary


@contextmanager
def _raise_option_errors(option: str, path: Path) -> Iterator[None]:
    """Convert an OSError into an OutputError that names the option and ``path``."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(
            f"{option} {path} cannot be written ({error.strerror or error}): choose another path"
        ) from None


def is_sagemaker_marker(name: str) -> bool:
    """Return whether SageMaker creates files with this name next to files that it copies to S3."""
    return name.endswith(SAGEMAKER_MARKERS)


def read_bounded(path: Path, most_bytes: int, follow: bool = True) -> bytes:
    """Return the content of a regular file of at most ``most_bytes`` bytes.

    ``follow``: whether symbolic links are allowed. Raises DataError for a larger file. Raises
    OSError if the file cannot be read or is not a regular file.
    """
    # opening a pipe would otherwise wait for a writer
    flags = os.O_RDONLY | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except ValueError:  # NUL in its name
        raise OSError(errno.EINVAL, "not a valid file name") from None
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        content = file.read(most_bytes + 1) if status.st_size <= most_bytes else b""
    if max(status.st_size, len(content)) > most_bytes:
        raise DataError(f"{path} is larger than the maximum of {most_bytes:,} bytes")
    return content
