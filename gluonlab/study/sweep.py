"""Runs a study's measurements, and stores them in a folder.

A point is the settings for one measurement, as plain values. Each round measures every point once.
Rounds start with different points, so that a temporary slowdown of the machine affects all points.
Measurements from the same round can be compared in pairs.

The folder contains study.json, which describes the study, and measurements.jsonl, with one line for
each measurement. All other files can be rebuilt from these two files.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import gluonlab
from gluonlab.bench.harness.interleaved_rounds import progress_bar, rotate
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
    RUNS_FOLDER,
    FolderLock,
    RunDirectory,
    check_not_in_use,
    folder_name,
    make_unused_folder,
)

FORMAT = 1
STUDY, MEASUREMENTS, RESULT = "study.json", "measurements.jsonl", "result.json"
LARGEST_BYTES = {STUDY: 2**20, MEASUREMENTS: 2**28}  # size limits of files that are read
Values = Mapping[str, Any]  # values that JSON can represent
# A function (settings, round from 0) -> measured values.
MeasurePoint = Callable[[Values, int], Values]

# Raise ValueError for NaN and infinity, which JSON cannot contain.
_encode_json = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
_encode_sorted_json = json.JSONEncoder(allow_nan=False, sort_keys=True, separators=(",", ":")).encode


def settings_key(settings: Values) -> str:
    """Return settings as text that identifies a point, independent of the settings' order."""
    return _encode_sorted_json(dict(settings))


class PointMeasurement(NamedTuple):
    """The values measured for a point's ``settings`` in a ``round``."""

    settings: Dict[str, Any]
    round: int
    values: Dict[str, Any]


class MeasurementStore:
    """Measurements in memory, by settings and round."""

    def __init__(self) -> None:
        self._measurements: Dict[Tuple[str, int], PointMeasurement] = {}

    def find(self, settings: Values, round: int) -> Optional[Dict[str, Any]]:
        """Return the values that were measured for these settings in this round, or None."""
        measurement = self._measurements.get((settings_key(settings), round))
        return None if measurement is None else measurement.values

    def add(self, settings: Values, round: int, values: Values) -> None:
        """Add a measurement."""
        self._measurements[settings_key(settings), round] = PointMeasurement(dict(settings), round, dict(values))

    def list_measurements(self) -> List[PointMeasurement]:
        """Return all measurements in the order in which they were added."""
        return list(self._measurements.values())


class MeasurementFile(MeasurementStore):
    """Measurements in a file with one line per measurement. Existing lines are read.

    If a process was killed while it wrote the last line, the incomplete line is removed. The caller
    must ensure that no other process uses the file. Raises DataError for a damaged line, and
    OutputError if a line cannot be written.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        with raise_output_errors(path):
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            with raise_output_errors(path):
                content = read_bounded(path, LARGEST_BYTES[MEASUREMENTS])
                complete_bytes = content.rfind(b"\n") + 1
                os.truncate(self._file, complete_bytes)
            for number, line in enumerate(content[:complete_bytes].split(b"\n")[:-1], start=1):
                super().add(*self._read(number, line))
        except BaseException:
            os.close(self._file)
            raise

    def add(self, settings: Values, round: int, values: Values) -> None:
        """Add a measurement, and write it to the file."""
        text = _encode_json({"settings": dict(settings), "round": round, "values": dict(values)})
        with raise_output_errors(self.path):
            append_all_or_nothing(self._file, f"{text}\n".encode())
        super().add(settings, round, values)

    def close(self) -> None:
        """Close the file. This method may be called more than once."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read(self, number: int, line: bytes) -> PointMeasurement:
        """Parse a line of the file. Raises DataError."""
        try:
            fields = json.loads(line.decode())
            measurement = PointMeasurement(fields["settings"], fields["round"], fields["values"])
            if [type(field) for field in measurement] == [dict, int, dict]:
                return measurement
        except (ValueError, TypeError, KeyError, RecursionError):
            pass
        raise DataError(
            f"line {number} of {self.path} is not a valid measurement: remove this line, or pass another --out"
        )


class Sweep:
    """Runs the measurements that are missing from ``store``, and immediately stores each one.

    ``with Sweep(store, measure) as sweep`` shows a progress bar on a terminal, unless
    ``show_progress`` is False. ``done`` and ``total`` also count the measurements of an interrupted
    run of the study.
    """

    def __init__(self, store: MeasurementStore, measure: MeasurePoint, show_progress: bool = True) -> None:
        self.store, self.measure = store, measure
        self.done = self.total = 0
        self._bar: Any = progress_bar(0) if show_progress else None

    def __enter__(self) -> "Sweep":
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def run(
        self, points: Sequence[Values], rounds: Sequence[int], label: Optional[str] = None
    ) -> List[List[Dict[str, Any]]]:
        """Return the measurements of each point (settings to measure), in the order of ``rounds``.

        ``label``: the text of the progress bar.
        """
        self.total += len(points) * len(rounds)
        self._refresh_progress_bar(label)
        by_point: List[Dict[int, Dict[str, Any]]] = [{} for _ in points]
        for round in rounds:
            for point in rotate(range(len(points)), round):
                by_point[point][round] = self._measure_point(points[point], round)
        return [[by_round[round] for round in rounds] for by_round in by_point]

    def _measure_point(self, settings: Values, round: int) -> Dict[str, Any]:
        """Return the measurement of these settings in a round.

        If the measurement is missing, make it and store it.
        """
        values = self.store.find(settings, round)
        if values is None:
            values = dict(self.measure(settings, round))
            self.store.add(settings, round, values)
        self.done += 1
        self._refresh_progress_bar()
        return values

    def _refresh_progress_bar(self, label: Optional[str] = None) -> None:
        """Show the number of finished measurements. ``label``: a new text for the progress bar."""
        if self._bar is None:
            return
        if label is not None:
            self._bar.set_description(label, refresh=False)
        self._bar.total, self._bar.n = self.total, self.done
        self._bar.refresh()


_MISSING = object()
_PLAIN_NAME = re.compile(r"[\w.+-]{1,60}", re.ASCII)  # names of studies and versions
_DAMAGED_MESSAGE = (
    "{file} is damaged: replace it with a copy, or measure in a new directory, with another --out and without --resume"
)
_OLD_STUDY_NAMES = {"splits": "strategies"}  # in folders of earlier versions
# keys of study.json -> the command's option, if its name differs
_OPTION_BY_KEY = {"network": "--model", "stores": "--kvstores", "splits": "--strategies"}


class StudyFolder:
    """The folder of a study, locked by this process until `close`.

    ``store``: the stored measurements. ``options``: the options of the study, as plain values.
    Raises OutputError for a folder that is not writable or that another process uses, and DataError
    for damaged files.
    """

    def __init__(self, path: Path, study: str, options: Mapping[str, Any], created_folders: List[Path]) -> None:
        """Lock the existing folder ``path``.

        ``created_folders``: the folders that were created for ``path``, the innermost first.
        """
        self.path, self.study, self.options, self._created_folders = path, study, dict(options), created_folders
        self._lock = FolderLock(path)
        try:
            if not (path / STUDY).exists():
                self._write(STUDY, {**_file_header(study), "options": self.options})
            self.store = MeasurementFile(path / MEASUREMENTS)
        except BaseException:
            self._lock.release()
            raise

    @classmethod
    def open(cls, out: Optional[str], study: str, options: Mapping[str, Any]) -> "StudyFolder":
        """Open the folder ``out``, or by default a new folder in runs/.

        ``out`` must be new or empty, or contain this study with the same options. Raises
        ConfigError if the options differ.
        """
        is_resumed = out is not None and (Path(out) / STUDY).exists()
        if out is not None and not is_resumed:
            remove_stale_temporaries([Path(out)], [STUDY])  # left by a process that was killed at its start
        RunDirectory.check(out, empty=not is_resumed)
        if is_resumed:
            path = Path(out or "")
            _check_same_options(path, study, options)
            return cls(path, study, options, [])
        created_folders: List[Path] = []
        path = Path(out) if out is not None else RUNS_FOLDER / folder_name(study)
        try:
            with raise_output_errors(path):
                created_folders = folders_to_create(path if out is not None else path.parent)
                if out is None:
                    path = make_unused_folder(path)
                    created_folders = [path, *created_folders]
                path.mkdir(parents=True, exist_ok=True)
            return cls(path, study, options, created_folders)
        except BaseException:
            remove_empty_folders(created_folders)
            raise

    @property
    def resume_command(self) -> str:
        """Return the command that resumes an interrupted study."""
        return f"gluonlab study {self.study} --resume {shlex.quote(str(self.path))}"

    def write(self, name: str, text: str) -> None:
        """Write a file atomically. Raises OutputError."""
        write_text(self.path / name, text)

    def write_result(self, result: Any) -> None:
        """Write result.json. Raises OutputError."""
        self._write(RESULT, result)

    def _write(self, name: str, content: Any) -> None:
        self.write(name, json.dumps(content, indent=2, allow_nan=False) + "\n")

    def close(self) -> None:
        """Release the folder. May be called again."""
        self.store.close()
        self._lock.release()

    def close_and_remove_if_empty(self) -> None:
        """Close the folder, and remove the created folders if nothing has been measured."""
        self.close()
        if not self.store.list_measurements() and self._created_folders:
            with suppress(OSError):
                for name in (MEASUREMENTS, STUDY, LOCK):
                    (self.path / name).unlink(missing_ok=True)
                remove_empty_folders(self._created_folders)


@contextmanager
def open_study(study: str, options: Mapping[str, Any], out: Optional[str]) -> Iterator[StudyFolder]:
    """Return a context that opens a study's folder for measurements, and then closes the folder.

    If the block is interrupted or fails, the message also states how many measurements are kept and
    how to resume.
    """
    folder = StudyFolder.open(out, study, options)
    try:
        yield folder
    except (KeyboardInterrupt, RunError) as error:
        count = len(folder.store.list_measurements())
        kept_message = f"{folder.path} contains {count} measurement{'s' * (count != 1)}"
        messages = [] if isinstance(error, KeyboardInterrupt) else [str(error)]
        error.args = ("; ".join([*messages, kept_message, f"to resume: {folder.resume_command}"]),)
        raise
    finally:
        folder.close_and_remove_if_empty()


def load_study_options(path: Path, study: str, convert: Callable[[Mapping[str, Any]], Any] = dict) -> Any:
    """Read the options of the study in a folder, converted by ``convert``.

    ``convert`` must raise ValueError for damaged options. Raises DataError for damaged options or a
    different study, and OutputError if another process uses the folder.
    """
    description = _read_study_file(path)
    if description["study"] != study:
        raise DataError(
            f"{path} contains the study {description['study']!r}: to resume this study, run gluonlab study "
            f"{description['study']} --resume"
        )
    check_not_in_use(path)
    try:
        return convert(description["options"])
    except ValueError:
        raise DataError(_DAMAGED_MESSAGE.format(file=path / STUDY)) from None


def _file_header(study: str) -> Dict[str, Any]:
    return {"format": FORMAT, "gluonlab": gluonlab.__version__, "study": study}


def _read_study_file(path: Path) -> Dict[str, Any]:
    """Read study.json. Raises DataError for a damaged file."""
    file = path / STUDY
    try:
        description = json.loads(read_bounded(file, LARGEST_BYTES[STUDY]))
        is_readable = description["format"] == FORMAT and isinstance(description["options"], dict)
        if is_readable and all(_PLAIN_NAME.fullmatch(description[name]) for name in ("study", "gluonlab")):
            return {**description, "study": _OLD_STUDY_NAMES.get(description["study"], description["study"])}
        problem = "was written by another version of gluonlab"
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    except (ValueError, TypeError, KeyError, RecursionError):
        raise DataError(_DAMAGED_MESSAGE.format(file=file)) from None
    raise DataError(f"{file} {problem}: pass the directory of a study that this version wrote")


def _check_same_options(path: Path, study: str, options: Mapping[str, Any]) -> None:
    """Raise ConfigError if the folder contains a different study or different options."""
    description = _read_study_file(path)
    if description["study"] != study:
        raise ConfigError(f"--out {path} contains the study {description['study']!r}: pass another directory")
    stored, requested = description["options"], json.loads(json.dumps(dict(options)))
    differences = [
        f"{_option_of_key(name, requested)} {_format_option(stored, name)}, not {_format_option(requested, name)}"
        for name in {**stored, **requested}
        if stored.get(name, _MISSING) != requested.get(name, _MISSING)
    ]
    if description["gluonlab"] != gluonlab.__version__:
        differences.append(f"gluonlab {description['gluonlab']}, not {gluonlab.__version__}")
    if differences:
        raise ConfigError(
            f"--out {path}: this study was started with {'; '.join(differences)}: use the same options, "
            "choose another directory, or resume this study with --resume and no other options"
        )


def _option_of_key(key: str, options: Mapping[str, Any]) -> str:
    """Return the command's option for a key of study.json."""
    if key == "devices":
        return "--device-counts" if isinstance(options.get(key), list) else "--num-devices"
    return _OPTION_BY_KEY.get(key, f"--{_escape_unprintable(key.replace('_', '-'))}")


def _format_option(options: Mapping[str, Any], name: str) -> str:
    value = options.get(name)
    return _escape_unprintable(",".join(map(str, value)) if isinstance(value, list) else str(value))


def _escape_unprintable(text: str) -> str:
    """Return the text, escaped if it contains control characters, as in a damaged file."""
    return text if text.isprintable() else ascii(text)
