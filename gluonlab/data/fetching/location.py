"""Where data sets lie: in --data-dir, GLUONLAB_DATA or the user's cache, each in its own folder."""

from __future__ import annotations

import errno
import os
import shlex
from contextlib import contextmanager
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Sequence

from gluonlab.data.fetching.sources import Source
from gluonlab.errors import DataError
from gluonlab.host.cache import cache_folder

VARIABLE = "GLUONLAB_DATA"


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
