"""Where data sets lie: in --data-dir, else in GLUONLAB_DATA, else in a folder of the user's cache;
each in a folder of its name.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import List, Optional

from gluonlab.data.fetching.sources import Source
from gluonlab.errors import DataError

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
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        if given is not None:
            return Path(given)
        if os.environ.get(VARIABLE):
            return Path(os.environ[VARIABLE]).expanduser()
        # the XDG base directory specification says to ignore what is not absolute
        return (cache if cache.is_absolute() else Path.home() / ".cache") / "gluonlab"
    except RuntimeError:
        raise DataError(
            f"there is no home folder to keep data sets in: give --data-dir DIR, or set {VARIABLE}"
        ) from None


def places(root: Path, source: Source) -> List[Path]:
    """The folders in which the files of a data set may lie, its own first; an archive unpacked by
    hand made one more in each.
    """
    unpacked = source.contents.folder if source.contents else ""
    return [
        folder
        for place in (root / source.name, root)
        for folder in ([place, place / unpacked] if unpacked else [place])
    ]


def find(file: str, folders: List[Path]) -> Optional[Path]:
    """The first file of this name."""
    return next((folder / file for folder in folders if (folder / file).is_file()), None)


def download_command(name: str, given: Optional[str] = None) -> str:
    """What to type to fetch a data set into the folder that ``--data-dir`` says, or into the usual
    one.
    """
    return f"python -m gluonlab.data download {name}" + (
        "" if given is None else f" --data-dir {shlex.quote(given)}"
    )
