"""The folder of a study: its options, its measurements, and what is made of them.

study.json says which study it is, measurements.jsonl holds the measurements. The rest, result.json,
figures and page, can be made from these two again.
"""

from __future__ import annotations

import json
import re
import shlex
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional

import gluonlab
from gluonlab.errors import ConfigError, DataError, RunError
from gluonlab.files.whole import (
    missing_folders,
    on_disk,
    read_bounded,
    remove_empty,
    remove_left_behind,
    write_text,
)
from gluonlab.runs.writer import (
    LOCK,
    RUNS,
    FolderLock,
    RunDirectory,
    check_free,
    folder_name,
    make_unused,
)
from gluonlab.study.sweep.measurements import InFile

FORMAT = 1
STUDY, MEASUREMENTS, RESULT = "study.json", "measurements.jsonl", "result.json"
LARGEST_BYTES = 2**20  # of study.json
_MISSING = object()
_WORD = re.compile(r"[\w.+-]{1,60}", re.ASCII)  # names of studies and versions
_DAMAGED = (
    "{file} is damaged: put a copy of it there, or measure in a new folder, "
    "without --resume and with another --out"
)


class StudyFolder:
    """Belongs to this process until `close`. ``measured``: what it holds, and will hold.

    ``options``: those of the study, as plain values. Raises OutputError for a place that cannot be
    written or that another process has, DataError for damaged files.
    """

    def __init__(
        self, path: Path, study: str, options: Mapping[str, Any], made: List[Path]
    ) -> None:
        """``path`` is there. ``made``: the folders that were made for it, the innermost first."""
        self.path, self.study, self.options, self._made = path, study, dict(options), made
        self._lock = FolderLock(path)
        try:
            if not (path / STUDY).exists():
                self._write(STUDY, {**_head(study), "options": self.options})
            self.measured = InFile(path / MEASUREMENTS)
        except BaseException:
            self._lock.release()
            raise

    @classmethod
    def open(cls, out: Optional[str], study: str, options: Mapping[str, Any]) -> "StudyFolder":
        """The folder ``out``, new or empty, or with this study begun by the same options.

        Without ``out`` a new one in runs/, by time and study. Raises ConfigError, with what
        differs, for a study of other options.
        """
        goes_on = out is not None and (Path(out) / STUDY).exists()
        if out is not None and not goes_on:
            remove_left_behind([Path(out)], [STUDY])  # of a process that was killed as it began
        RunDirectory.check(out, empty=not goes_on)
        if goes_on:
            path = Path(out or "")
            _check_same(path, study, options)
            return cls(path, study, options, [])
        made: List[Path] = []
        path = Path(out) if out is not None else RUNS / folder_name(study)
        try:
            with on_disk(path):
                made = missing_folders(path if out is not None else path.parent)
                if out is None:
                    path = make_unused(path)
                    made = [path, *made]
                path.mkdir(parents=True, exist_ok=True)
            return cls(path, study, options, made)
        except BaseException:
            remove_empty(made)
            raise

    @property
    def go_on(self) -> str:
        """The command that goes on."""
        return f"python -m gluonlab.study {self.study} --resume {shlex.quote(str(self.path))}"

    def write(self, name: str, text: str) -> None:
        """Write a file as a whole. Raises OutputError."""
        write_text(self.path / name, text)

    def write_result(self, result: Any) -> None:
        """Write result.json. Raises OutputError."""
        self._write(RESULT, result)

    def _write(self, name: str, content: Any) -> None:
        self.write(name, json.dumps(content, indent=2, allow_nan=False) + "\n")

    def close(self) -> None:
        """The folder is free. May be called again."""
        self.measured.close()
        self._lock.release()

    def discard(self) -> None:
        """Close, and take away what was made, if nothing has been measured."""
        self.close()
        if not self.measured.all() and self._made:
            with suppress(OSError):
                for name in (MEASUREMENTS, STUDY, LOCK):
                    (self.path / name).unlink(missing_ok=True)
                remove_empty(self._made)


@contextmanager
def begun(study: str, options: Mapping[str, Any], out: Optional[str]) -> Iterator[StudyFolder]:
    """The `StudyFolder.open` of a block that measures, and is closed after it.

    What interrupts the block, and what goes wrong in it, says what is kept and how to go on.
    """
    folder = StudyFolder.open(out, study, options)
    try:
        yield folder
    except (KeyboardInterrupt, RunError) as error:
        count = len(folder.measured.all())
        kept = f"{folder.path} keeps {count} measurement{'s' * (count != 1)}"
        told = [] if isinstance(error, KeyboardInterrupt) else [str(error)]
        error.args = ("; ".join([*told, kept, f"to go on: {folder.go_on}"]),)
        raise
    finally:
        folder.discard()


def options_of(path: Path, study: str, read: Callable[[Mapping[str, Any]], Any] = dict) -> Any:
    """What ``read`` makes of the options of the study in a folder.

    Raises DataError for another study, and where ``read`` raises ValueError, as for damaged
    options; OutputError where another process goes on with it.
    """
    about = _about(path)
    if about["study"] != study:
        raise DataError(
            f"{path} holds the study {about['study']}: "
            f"python -m gluonlab.study {about['study']} --resume goes on with it"
        )
    check_free(path)
    try:
        return read(about["options"])
    except ValueError:
        raise DataError(_DAMAGED.format(file=path / STUDY)) from None


def _head(study: str) -> Dict[str, Any]:
    return {"format": FORMAT, "gluonlab": gluonlab.__version__, "study": study}


def _about(path: Path) -> Dict[str, Any]:
    file = path / STUDY
    try:
        about = json.loads(read_bounded(file, LARGEST_BYTES))
        fits = about["format"] == FORMAT and isinstance(about["options"], dict)
        if fits and all(_WORD.fullmatch(about[name]) for name in ("study", "gluonlab")):
            return dict(about)
        fault = "is not one of this version's"
    except OSError as error:
        fault = f"cannot be read ({error.strerror})"
    except (ValueError, TypeError, KeyError, RecursionError):
        raise DataError(_DAMAGED.format(file=file)) from None
    raise DataError(f"{file} {fault}: give the folder of a study, as its first lines name it")


def _check_same(path: Path, study: str, options: Mapping[str, Any]) -> None:
    there = _about(path)
    if there["study"] != study:
        raise ConfigError(f"--out {path} holds the study {there['study']}: give another folder")
    before, now = there["options"], json.loads(json.dumps(dict(options)))
    differences = [
        f"--{_printable(name.replace('_', '-'))} {_shown(before, name)}, not {_shown(now, name)}"
        for name in {**before, **now}
        if before.get(name, _MISSING) != now.get(name, _MISSING)
    ]
    if there["gluonlab"] != gluonlab.__version__:
        differences.append(f"gluonlab {there['gluonlab']}, not {gluonlab.__version__}")
    if differences:
        raise ConfigError(
            f"--out {path} was begun with {'; '.join(differences)}: "
            "give the same options, another folder, or only --resume with this one"
        )


def _shown(options: Mapping[str, Any], name: str) -> str:
    value = options.get(name)
    return _printable(",".join(map(str, value)) if isinstance(value, list) else str(value))


def _printable(text: str) -> str:
    """On one line, whatever a damaged file holds."""
    return text if text.isprintable() else ascii(text)
