"""Where data sets lie, and whether their files are there with the right content.

They lie in --data-dir, GLUONLAB_DATA or the user's cache, each in its own folder.
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

VARIABLE = "GLUONLAB_DATA"
READ_BYTES = 2**20
OK, MISSING, DAMAGED = "ok", "missing", "damaged"
# in the folder of an unpacked archive: the digests of its files, as sha256sum -c reads them
MANIFEST = "SHA256SUMS"
MOST_BYTES = 2**26  # of that: some hundred thousand files
_LINE = re.compile(r"([0-9a-f]{64})  ([^/].*)")


def data_root(given: Optional[str] = None) -> Path:
    """The folder of all data sets.

    ====================  =====================================
    ``given``             what --data-dir says
    GLUONLAB_DATA         of the environment
    XDG_CACHE_HOME        of the environment, /gluonlab below it
    otherwise             ~/.cache/gluonlab
    ====================  =====================================

    Raises DataError when there is no home folder to begin with.
    """
    try:
        if given is not None:
            return _possible(given)
        if os.environ.get(VARIABLE):
            return Path(os.environ[VARIABLE]).expanduser()
        return cache_folder()
    except RuntimeError:
        raise DataError(
            f"there is no home folder to keep data sets in: give --data-dir DIR, or set {VARIABLE}"
        ) from None


def _possible(given: str) -> Path:
    """The folder, which need not be there. Raises DataError for what no file can be called."""
    try:
        os.lstat(given)
    except ValueError:  # NUL, for example
        fault = "that is no name for a file"
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            return Path(given)
        fault = str(error.strerror)
    else:
        return Path(given)
    raise DataError(f"--data-dir {given} cannot be read ({fault}): give another folder")


def places(root: Path, source: Source) -> List[Path]:
    """The folders in which a data set's files may lie, its own first.

    An archive unpacked by hand made one more in each.
    """
    unpacked = source.contents.folder if source.contents else ""
    return [
        folder
        for place in (root / source.name, root)
        for folder in ([place, place / unpacked] if unpacked else [place])
    ]


def find(name: str, folders: List[Path], endings: Sequence[str] = ("",)) -> Optional[Path]:
    """The first file of this name, with one of these ``endings``."""
    paths = (folder / f"{name}{ending}" for folder in folders for ending in endings)
    return next((path for path in paths if os.path.isfile(path)), None)


def locate(
    source: Source, names: Sequence[str], given: Optional[str], endings: Sequence[str] = ("",)
) -> Dict[str, Path]:
    """Name -> path of these files of a data set; nothing is downloaded.

    Runs without a network, or a hundred at once, must not begin to download. ``given``: the folder
    of --data-dir. Raises DataError for files that are missing, with the command that downloads
    them.
    """
    fetch = download_command(source.name, given)
    forms = " (plain or .gz)" if ".gz" in endings else ""
    if given is not None and not os.path.isdir(given):
        raise DataError(
            f"--data-dir {given} is not a folder: "
            f"give the one that holds {', '.join(names)}{forms}, or download them: {fetch}"
        )
    folders = places(data_root(given), source)
    paths = {name: find(name, folders, endings) for name in names}
    missing = [name for name, path in paths.items() if path is None]
    if missing:
        raise DataError(
            f"{source.name} lacks {', '.join(missing)}{forms}, "
            f"in {folders[0]} and {data_root(given)}: "
            f"download what is missing ({fetch}), or give another folder with --data-dir DIR"
        )
    return {name: path for name, path in paths.items() if path is not None}


@contextmanager
def readable(path: Path, another: str = "--data-dir") -> Iterator[None]:
    """Turn OSErrors in the block into DataErrors; the cure is to give another ``another``."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}): "
            f"make it readable, or give another {another}"
        ) from None


def damaged(path: Path, what: str) -> DataError:
    """The error for a file whose content is wrong."""
    return DataError(f"{path}: {what}: fetch it again, or give another --data-dir")


def download_command(name: str, given: Optional[str] = None) -> str:
    """The command that fetches a data set, into the folder that --data-dir names if ``given``."""
    folder = "" if given is None else f" --data-dir {shlex.quote(given)}"
    return f"python -m gluonlab.data download {name}{folder}"


# --- whether the files are there, with the right content


def digest_of(path: Path, algorithm: str = "sha256") -> str:
    """The digest of a file's content, hexadecimal. Raises DataError when it cannot be read."""
    digest = hashlib.new(algorithm)
    with readable(path), path.open("rb") as file:
        for chunk in iter(lambda: file.read(READ_BYTES), b""):
            digest.update(chunk)
    return digest.hexdigest()


class FileState(NamedTuple):
    """A file's ``state`` (ok, missing or damaged); ``found`` is its digest, empty without one."""

    path: Path
    state: str
    algorithm: str
    expected: str
    found: str = ""

    def __str__(self) -> str:
        digest = f"{self.found}, expected " if self.state == DAMAGED else ""
        return f"{self.state:<8}{escape_unprintable(str(self.path))}: {self.algorithm} {digest}{self.expected}"


def verify(source: Source, root: Path) -> List[FileState]:
    """Read every file of a data set below the folder ``root``, and compare its digest."""
    if source.known:
        folders = places(root, source)
        return [
            _compare(
                find(file.name, folders) or folders[0] / file.name, file.algorithm, file.digest
            )
            for file in source.known
        ]
    manifest = root / source.name / MANIFEST
    if not manifest.is_file():
        return [FileState(manifest, MISSING, "sha256", "written by download")]
    try:
        lines = read_bounded(manifest, MOST_BYTES).decode().splitlines()
    except (OSError, ValueError):  # too large a file included
        lines = []
    matches = [match for match in map(_LINE.fullmatch, lines) if match and _is_below(match[2])]
    if not matches or len(matches) < len(lines):
        wrong = "and no list of digests"
        return [FileState(manifest, DAMAGED, "sha256", "written by download", wrong)]
    return [_compare(manifest.parent / match[2], "sha256", match[1]) for match in matches]


def _is_below(name: str) -> bool:
    """Whether a name in a manifest is that of a file in its folder, as `unpack` makes them."""
    return name.isprintable() and ".." not in name.split("/")


def is_complete(source: Source, root: Path) -> bool:
    """Whether every file is there, with the right digest."""
    return all(finding.state == OK for finding in verify(source, root))


def folder_of(source: Source, root: Path) -> Optional[Path]:
    """The folder that a data set is read from, if all its files are there; they are not read."""
    folders = places(root, source) if source.known else [root / source.name]
    names = [file.name for file in source.known] or [MANIFEST]
    paths = [find(name, folders) for name in names]
    return paths[0].parent if paths[0] and all(paths) else None


def manifest_text(digests: Dict[str, str]) -> str:
    """The content of MANIFEST, which `verify` reads again."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))


def _compare(path: Path, algorithm: str, expected: str) -> FileState:
    if not path.is_file():
        return FileState(path, MISSING, algorithm, expected)
    found = digest_of(path, algorithm)
    return FileState(path, OK if found == expected else DAMAGED, algorithm, expected, found)
