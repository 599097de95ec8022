"""Finds the files of a data set on this machine, and verifies their digests.

Each data set has a folder with its name in --data-dir, GLUONLAB_DATA or the user's cache.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shlex
from contextlib import contextmanager
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence

from gluonlab.data.fetching.download_sources import Source
from gluonlab.errors import DataError
from gluonlab.files.atomic_files import read_bounded
from gluonlab.host.cache_folder import cache_folder
from gluonlab.plain_text import escape_unprintable

DATA_DIR_VARIABLE = "GLUONLAB_DATA"
CHUNK_BYTES = 2**20
OK, MISSING, DAMAGED = "ok", "missing", "damaged"
# file with the digests of an unpacked archive's files, in the format of sha256sum -c
MANIFEST = "SHA256SUMS"
MAX_MANIFEST_BYTES = 2**26  # enough for several hundred thousand files
_MANIFEST_LINE = re.compile(r"([0-9a-f]{64})  ([^/].*)")


def data_root(data_dir: Optional[str] = None) -> Path:
    """Return the folder that contains all data sets.

    The first of these settings that is set determines the folder:

    ====================  =====================================
    ``data_dir``          value of --data-dir
    GLUONLAB_DATA         environment variable
    XDG_CACHE_HOME        environment variable, plus /gluonlab
    otherwise             ~/.cache/gluonlab
    ====================  =====================================

    Raises DataError if there is no home folder.
    """
    try:
        if data_dir is not None:
            return _check_data_dir(data_dir)
        if os.environ.get(DATA_DIR_VARIABLE):
            return Path(os.environ[DATA_DIR_VARIABLE]).expanduser()
        return cache_folder()
    except RuntimeError:
        raise DataError(
            "the home directory is unknown, so there is no default folder for data sets: pass --data-dir DIR, "
            f"or set {DATA_DIR_VARIABLE}"
        ) from None


def _check_data_dir(data_dir: str) -> Path:
    """Return --data-dir as a path. Raises DataError if a folder cannot have this name."""
    try:
        os.lstat(data_dir)
    except ValueError:  # a NUL in the name
        reason = "not a valid file name"
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            return Path(data_dir)
        reason = str(error.strerror)
    else:
        return Path(data_dir)
    raise DataError(f"--data-dir {data_dir} cannot be read ({reason}): use another folder")


def candidate_folders(root: Path, source: Source) -> List[Path]:
    """Return the folders that may contain the files of a data set, in search order.

    The result includes the archive's top folder, because users may have unpacked the archive by
    hand.
    """
    top_folder = source.contents.top_folder if source.contents else ""
    return [
        folder
        for parent in (root / source.name, root)
        for folder in ([parent, parent / top_folder] if top_folder else [parent])
    ]


def find_file(name: str, folders: List[Path], endings: Sequence[str] = ("",)) -> Optional[Path]:
    """Return the first existing file called ``name`` plus one of the ``endings``, or None."""
    paths = (folder / f"{name}{ending}" for folder in folders for ending in endings)
    return next((path for path in paths if os.path.isfile(path)), None)


def find_data_files(
    source: Source, names: Sequence[str], data_dir: Optional[str], endings: Sequence[str] = ("",)
) -> Dict[str, Path]:
    """Return the paths of a data set's files ``names``, by name.

    ``data_dir``: value of --data-dir. ``endings``: possible additions to each name, such as .gz.
    Raises DataError for missing files. The message contains the command that downloads them.
    """
    # Training never downloads: there may be no network, and many runs may start at once.
    command = download_command(source.name, data_dir)
    format_note = " (plain or .gz)" if ".gz" in endings else ""
    if data_dir is not None and not os.path.isdir(data_dir):
        raise DataError(
            f"--data-dir {data_dir} is not a folder: use the folder that contains "
            f"{', '.join(names)}{format_note}, or run {command} to download these files"
        )
    folders = candidate_folders(data_root(data_dir), source)
    paths = {name: find_file(name, folders, endings) for name in names}
    missing = [name for name, path in paths.items() if path is None]
    if missing:
        raise DataError(
            f"{source.name} is incomplete: cannot find {', '.join(missing)}{format_note} in {folders[0]} or "
            f"{data_root(data_dir)}: run {command}, or use another folder with --data-dir DIR"
        )
    return {name: path for name, path in paths.items() if path is not None}


@contextmanager
def convert_read_errors(path: Path, replaceable: str = "--data-dir") -> Iterator[None]:
    """Convert an OSError in the with block to a DataError: ``path`` cannot be read.

    ``replaceable``: the noun in the advice "use another ...", such as "file".
    """
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}): make it readable, or use another {replaceable}"
        ) from None


def damaged_file_error(path: Path, reason: str) -> DataError:
    """Return the error for a file with invalid content."""
    return DataError(f"{path}: {reason}: download it again, or use another --data-dir")


def download_command(name: str, data_dir: Optional[str] = None) -> str:
    """Return the command that downloads a data set."""
    option = "" if data_dir is None else f" --data-dir {shlex.quote(data_dir)}"
    return f"gluonlab data download {name}{option}"


# --- verification of files


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    """Return the hexadecimal digest of a file. Raise DataError if the file cannot be read."""
    digest = hashlib.new(algorithm)
    with convert_read_errors(path), path.open("rb") as file:
        for chunk in iter(lambda: file.read(CHUNK_BYTES), b""):
            digest.update(chunk)
    return digest.hexdigest()


class FileState(NamedTuple):
    """The state of a file: OK, MISSING or DAMAGED.

    ``expected``: the digest that the file should have. ``found``: the file's actual digest; empty
    if the file is missing.
    """

    path: Path
    state: str
    algorithm: str
    expected: str
    found: str = ""

    def __str__(self) -> str:
        digest = f"{self.found}, expected " if self.state == DAMAGED else ""
        path = escape_unprintable(str(self.path))
        return f"{self.state:<8}{path}: {self.algorithm} {digest}{self.expected}"


def verify_files(source: Source, root: Path) -> List[FileState]:
    """Compare the digest of every file of a data set with the expected digest.

    ``root``: the folder of all data sets.
    """
    if source.known_files:
        folders = candidate_folders(root, source)
        return [
            _check_file(find_file(file.name, folders) or folders[0] / file.name, file.algorithm, file.digest)
            for file in source.known_files
        ]
    manifest = root / source.name / MANIFEST
    if not manifest.is_file():
        return [FileState(manifest, MISSING, "sha256", "written by download")]
    try:
        lines = read_bounded(manifest, MAX_MANIFEST_BYTES).decode().splitlines()
    except (OSError, ValueError):  # also if the file is too large
        lines = []
    matches = [match for match in map(_MANIFEST_LINE.fullmatch, lines) if match]
    # a name must not lead out of the folder
    matches = [m for m in matches if m[2].isprintable() and ".." not in m[2].split("/")]
    if not matches or len(matches) < len(lines):
        return [FileState(manifest, DAMAGED, "sha256", "written by download", "and there is no list of digests")]
    return [_check_file(manifest.parent / match[2], "sha256", match[1]) for match in matches]


def has_valid_files(source: Source, root: Path) -> bool:
    """Return whether all files exist and have the expected digests."""
    return all(file.state == OK for file in verify_files(source, root))


def find_dataset_folder(source: Source, root: Path) -> Optional[Path]:
    """Return the folder that contains all files of a data set; None if a file is missing.

    The content of the files is not checked.
    """
    folders = candidate_folders(root, source) if source.known_files else [root / source.name]
    names = [file.name for file in source.known_files] or [MANIFEST]
    paths = [find_file(name, folders) for name in names]
    return paths[0].parent if paths[0] and all(paths) else None


def manifest_text(digests: Dict[str, str]) -> str:
    """Return the content of MANIFEST, in the format that `verify_files` reads."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))


def _check_file(path: Path, algorithm: str, expected: str) -> FileState:
    """Compare a file's digest with the expected digest, unless the file is missing."""
    if not path.is_file():
        return FileState(path, MISSING, algorithm, expected)
    digest = file_digest(path, algorithm)
    return FileState(path, OK if digest == expected else DAMAGED, algorithm, expected, digest)
