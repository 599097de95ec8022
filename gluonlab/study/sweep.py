"""Points of a study, measured in turns, and the folder that keeps each measurement.

A point is the settings of a measurement, as plain values. Each round measures every point once, and
begins with another one: what slows the machine for a while slows all of them. Measurements of the
same round belong together, as pairs.

In the folder, study.json says which study it is, and measurements.jsonl holds one JSON line for
each measurement, which appears whole or not at all. The rest, result.json, figures and page, can be
made from these two again.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import gluonlab
from gluonlab.bench.harness.interleaved_rounds import progress, rotated
from gluonlab.errors import ConfigError, DataError, RunError
from gluonlab.files.atomic_files import (
    append_all_or_nothing,
    folders_to_create,
    raise_output_errors,
    read_bounded,
    remove_empty_folders,
    remove_stale_temporaries,
    write_text,
)
from gluonlab.runs.run_writer import (
    LOCK,
    RUNS,
    FolderLock,
    RunDirectory,
    check_free,
    folder_name,
    make_unused,
)

FORMAT = 1
STUDY, MEASUREMENTS, RESULT = "study.json", "measurements.jsonl", "result.json"
LARGEST_BYTES = {STUDY: 2**20, MEASUREMENTS: 2**28}  # of a file that is read
Values = Mapping[str, Any]  # plain, as JSON has them
# settings, number of the round (from 0) -> what was measured
Measure = Callable[[Values, int], Values]

# The JSON text of a line. ValueError for NaN and infinity, which JSON has not.
_text = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
_sorted_text = json.JSONEncoder(allow_nan=False, sort_keys=True, separators=(",", ":")).encode


def key_of(settings: Values) -> str:
    """The name of a point: the same text for the same settings, in whatever order they stand."""
    return _sorted_text(dict(settings))


class PointMeasurement(NamedTuple):
    """What was measured of a point's ``settings`` in a ``round``."""

    settings: Dict[str, Any]
    round: int
    values: Dict[str, Any]


class InMemory:
    """Measurements that end with their process."""

    def __init__(self) -> None:
        self._found: Dict[Tuple[str, int], PointMeasurement] = {}

    def find(self, settings: Values, round: int) -> Optional[Dict[str, Any]]:
        """What was measured there already; None if nothing was."""
        found = self._found.get((key_of(settings), round))
        return None if found is None else found.values

    def add(self, settings: Values, round: int, values: Values) -> None:
        """Keep a measurement."""
        self._found[key_of(settings), round] = PointMeasurement(dict(settings), round, dict(values))

    def all(self) -> List[PointMeasurement]:
        """Everything, in the order in which it was measured."""
        return list(self._found.values())


class InFile(InMemory):
    """Appends a line to a file for each measurement; lines that are there count as measured.

    A last line that a kill cut off is removed. The caller sees to it that no other process has the
    file. Raises DataError, naming the line, for a damaged one, and OutputError where the disk does
    not take a line.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        with raise_output_errors(path):
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            with raise_output_errors(path):
                content = read_bounded(path, LARGEST_BYTES[MEASUREMENTS])
                whole = content.rfind(b"\n") + 1
                os.truncate(self._file, whole)
            for number, line in enumerate(content[:whole].split(b"\n")[:-1], start=1):
                super().add(*self._read(number, line))
        except BaseException:
            os.close(self._file)
            raise

    def add(self, settings: Values, round: int, values: Values) -> None:
        """Keep a measurement: it is in the file when this returns."""
        text = _text({"settings": dict(settings), "round": round, "values": dict(values)})
        with raise_output_errors(self.path):
            append_all_or_nothing(self._file, f"{text}\n".encode())
        super().add(settings, round, values)

    def close(self) -> None:
        """Nothing more is added. May be called again."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read(self, number: int, line: bytes) -> PointMeasurement:
        try:
            parts = json.loads(line.decode())
            found = PointMeasurement(parts["settings"], parts["round"], parts["values"])
            if [type(each) for each in found] == [dict, int, dict]:
                return found
        except (ValueError, TypeError, KeyError, RecursionError):
            pass
        raise DataError(
            f"{self.path}, line {number}, is no measurement: remove the line, or give another --out"
        )


class Sweep:
    """Measures points that have not been measured yet, and keeps each measurement at once.

    ``with Sweep(store, measure) as sweep``: a bar shows progress on a terminal. ``done`` and
    ``wanted`` count measurements, those of an earlier try included. ``shown``: whether there may be
    a bar; not where each measurement shows its own.
    """

    def __init__(self, store: InMemory, measure: Measure, shown: bool = True) -> None:
        self.store, self.measure = store, measure
        self.done = self.wanted = 0
        self._bar: Any = progress(0) if shown else None

    def __enter__(self) -> "Sweep":
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def run(
        self, points: Sequence[Values], rounds: Sequence[int], label: Optional[str] = None
    ) -> List[List[Dict[str, Any]]]:
        """Each point's measurements, by round. ``label``: what the bar says meanwhile."""
        self.wanted += len(points) * len(rounds)
        self._show(label)
        found: List[Dict[int, Dict[str, Any]]] = [{} for _ in points]
        for number in rounds:
            for place in rotated(range(len(points)), number):
                found[place][number] = self._measured(points[place], number)
        return [[of_point[number] for number in rounds] for of_point in found]

    def _measured(self, settings: Values, number: int) -> Dict[str, Any]:
        values = self.store.find(settings, number)
        if values is None:
            values = dict(self.measure(settings, number))
            self.store.add(settings, number, values)
        self.done += 1
        self._show()
        return values

    def _show(self, label: Optional[str] = None) -> None:
        if self._bar is None:
            return
        if label is not None:
            self._bar.set_description(label, refresh=False)
        self._bar.total, self._bar.n = self.wanted, self.done
        self._bar.refresh()


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
            remove_stale_temporaries(
                [Path(out)], [STUDY]
            )  # of a process that was killed as it began
        RunDirectory.check(out, empty=not goes_on)
        if goes_on:
            path = Path(out or "")
            _check_same(path, study, options)
            return cls(path, study, options, [])
        made: List[Path] = []
        path = Path(out) if out is not None else RUNS / folder_name(study)
        try:
            with raise_output_errors(path):
                made = folders_to_create(path if out is not None else path.parent)
                if out is None:
                    path = make_unused(path)
                    made = [path, *made]
                path.mkdir(parents=True, exist_ok=True)
            return cls(path, study, options, made)
        except BaseException:
            remove_empty_folders(made)
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
                remove_empty_folders(self._made)


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
        about = json.loads(read_bounded(file, LARGEST_BYTES[STUDY]))
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
