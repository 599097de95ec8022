"""What an earlier run has left in a folder, and how it makes room for another one."""

from __future__ import annotations

import hashlib
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Dict, List, Sequence, Set

from gluonlab.errors import DataError
from gluonlab.files.whole import is_marker, is_temporary, on_disk, remove_left_behind
from gluonlab.runs import schema
from gluonlab.runs.checkpoint import checkpoints
from gluonlab.runs.description import read_description
from gluonlab.runs.lock import LOCK, FolderLock
from gluonlab.runs.reader import read_lines
from gluonlab.runs.schema import EndedEvent, Epoch, Line
from gluonlab.runs.writer import RunDirectory, make_unused

FILES = (*schema.FILES, schema.CHECKPOINTS, schema.EXPORT, schema.TENSORBOARD)


def has_run(out: str) -> bool:
    """Whether a run has begun in the folder ``out``; False for one that is new or empty.

    Raises OutputError, as `RunDirectory.check` does, for a folder that is in use, and for one with
    files that no run writes.
    """
    RunDirectory.check(out, empty=False)
    names = _names(Path(out))
    if not names <= {*FILES}:
        RunDirectory.check(out)
    return bool(names)


def make_room(folder: Path) -> str:
    """Leave a run's folder to a new run; what was done, in words.

    The steps of a run that has not finished an epoch, nor written a checkpoint, are removed: they
    come again. Any other one keeps its files, in a new folder beside. Raises OutputError.
    """
    lock = FolderLock(folder)
    try:
        with on_disk(folder):
            remove_left_behind([folder], FILES)
            if _comes_again(folder):
                (folder / schema.CONFIG).unlink(missing_ok=True)
                (folder / schema.METRICS).unlink(missing_ok=True)
                for name in (schema.CHECKPOINTS, schema.TENSORBOARD):
                    shutil.rmtree(folder / name, ignore_errors=True)
                return "it had finished no epoch"
            aside = make_unused(folder.with_name(f"{folder.name}-earlier"))
            _move(folder, aside)
            return f"what it has left is in {aside}"
    finally:
        lock.release()


def _names(folder: Path) -> Set[str]:
    """The files of a folder, but for the lock, markers, and what killed processes leave."""
    with suppress(FileNotFoundError):
        names = {entry.name for entry in folder.iterdir() if not is_marker(entry.name)}
        return {name for name in names - {LOCK} if not is_temporary(name, FILES)}
    return set()


def _comes_again(folder: Path) -> bool:
    try:
        if (folder / schema.CONFIG).exists():
            read_description(folder)
        lines = read_lines(folder) if (folder / schema.METRICS).exists() else []
    except DataError:  # whose it is cannot be told
        return False
    begun = {schema.CONFIG, schema.METRICS, schema.CHECKPOINTS, schema.TENSORBOARD}
    finished = any(isinstance(line, Epoch) for line in lines)
    return _names(folder) <= begun and not finished and not checkpoints(folder)


def _move(folder: Path, aside: Path) -> None:
    """Entry by entry: the folder itself may be a disk's own, which stays where it is."""
    for entry in list(folder.iterdir()):
        if entry.name != LOCK:
            shutil.move(str(entry), str(aside / entry.name))


def ended(folder: Path, step: int, seconds: float) -> EndedEvent:
    """The last line of a run that has written all its files."""
    return EndedEvent(step, _digests(folder), seconds)


def has_ended(folder: Path) -> bool:
    """Whether the run has ended, and left its files as they are there.

    Some are not, where a store of files has put back what it had: of different ages, or a part.
    """
    with suppress(DataError, OSError):
        lines: Sequence[Line] = read_lines(folder)
        last = lines[-1] if lines else None
        return isinstance(last, EndedEvent) and last.files == _digests(folder)
    return False


def _digests(folder: Path) -> Dict[str, str]:
    files: List[Path] = [folder / schema.PARAMETERS, folder / schema.CONFUSION]
    with suppress(FileNotFoundError):
        files += sorted((folder / schema.EXPORT).iterdir())
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if file.is_file() and not is_marker(file.name)
    }
