"""Checkpoints from which a run can resume. Each checkpoint is a folder in the run's folder.

=================  =========================================================================
parameters.params  the network's parameters, as in the run's own file of that name
optimizer.states   the optimizer's states, as written by `BucketedTrainer.save_states`
devices.params     the state of single devices: running statistics, unread losses
state.json         the rest of the training state
manifest.json      the size and SHA-256 of each other file, and a SHA-256 of itself
=================  =========================================================================

A checkpoint is written atomically: all files are on disk before the folder is renamed to its final
name. When a checkpoint is read, the digest of each file is checked first. Arrays are in MXNet's own
format, without pickle. `gluonlab.training.train_state.TrainState` decides what a checkpoint contains.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import secrets
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional

from mxnet import nd

import gluonlab
from gluonlab.errors import DataError
from gluonlab.files.array_files import read_arrays, save_arrays
from gluonlab.files.atomic_files import (
    atomic_folder,
    is_sagemaker_marker,
    raise_output_errors,
    remove_stale_temporaries,
    write_text,
)
from gluonlab.runs.run_schema import CHECKPOINTS, METRICS, PARAMETERS, file_text

STATE, MANIFEST = "state.json", "manifest.json"
OPTIMIZER, DEVICES = "optimizer.states", "devices.params"
ARRAYS = (PARAMETERS, OPTIMIZER, DEVICES)
FORMAT = 2
NAME = re.compile(r"step-(\d{9,15})")
PART = re.compile(rf"\.({NAME.pattern})-[0-9a-f]{{8}}\.part")
MAX_JSON_BYTES = 2**26  # size limit of state.json and manifest.json, which have some thousand bytes
BLOCK_BYTES = 2**20
FREE_SPACE = "free disk space there; the files written before are complete"

Arrays = Mapping[str, nd.NDArray]


class Checkpoint(NamedTuple):
    """The content of a checkpoint. The arrays are on the CPU. Their values may not be computed yet.

    ``state``: plain values. Its ``step`` is the number of steps so far. Its ``score`` is the score
    of the epoch that ends at this step, or None. A larger score is better.
    """

    parameters: Arrays
    optimizer: Arrays
    devices: Arrays
    state: Dict[str, Any]

    @property
    def step(self) -> int:
        """The number of steps of the run so far."""
        return int(self.state["step"])


class _DamagedCheckpoint(Exception):
    """Raised, with the reason, for a checkpoint that is incomplete or changed."""


class _UnusableCheckpoint(Exception):
    """Raised, with the reason, for a complete checkpoint that does not match metrics.jsonl."""


def write_checkpoint(run_dir: Path, checkpoint: Checkpoint, check_canceled: Callable[[], None] = lambda: None) -> Path:
    """Write a checkpoint to the run's folder, and return its path.

    This function waits until the arrays are computed. ``check_canceled`` is called before each file
    of arrays and at the end. It may raise an exception to cancel writing. Raises OutputError.
    """
    path = run_dir / CHECKPOINTS / f"step-{checkpoint.step:09d}"
    with raise_output_errors(path, FREE_SPACE), atomic_folder(path) as folder:
        _sync_metrics(run_dir)  # a checkpoint refers to the lines of metrics.jsonl
        for name, arrays in zip(ARRAYS, checkpoint[:3]):
            check_canceled()
            save_arrays(folder / name, arrays, FREE_SPACE)
        write_text(folder / STATE, file_text(checkpoint.state) + "\n", FREE_SPACE)
        files = {name: _size_and_digest(folder / name) for name in (*ARRAYS, STATE)}
        write_text(folder / MANIFEST, _manifest_text(files, gluonlab.__version__), FREE_SPACE)
        check_canceled()
    return path


def remove_superseded_checkpoints(run_dir: Path, keep: int) -> None:
    """Remove all checkpoints except the ``keep`` newest and the one with the best score.

    If several checkpoints have the best score, the newest of them is kept.
    """
    paths = list_checkpoints(run_dir)
    older = [(_read_score(path), path) for path in paths[keep:]]
    removed = {path for _, path in older}
    newer_scores = [score for score in map(_read_score, paths[:keep]) if score is not None]
    older_scores = [(score, path) for score, path in older if score is not None]
    if older_scores:
        best_score, path = max(older_scores, key=lambda entry: entry[0])
        if best_score > max(newer_scores, default=-math.inf):
            removed.discard(path)
    for path in removed:
        with suppress(OSError):
            _remove_checkpoint(path)
    _remove_leftovers(run_dir)


def remove_later_checkpoints(run_dir: Path, step: int) -> None:
    """Remove the checkpoints after ``step``, because the run resumes from this step."""
    for path in list_checkpoints(run_dir):
        if _step_number(path) > step:
            with raise_output_errors(path, FREE_SPACE):
                _remove_checkpoint(path)
    _remove_leftovers(run_dir)


def _remove_checkpoint(path: Path) -> None:
    """Rename the folder, so that it is no longer recognized as a checkpoint, and then delete it.

    Deletion may fail while a file store writes markers into the folder.
    """
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}.part")
    path.rename(temporary)
    shutil.rmtree(temporary, ignore_errors=True)


def _remove_leftovers(run_dir: Path) -> None:
    """Remove the remains of checkpoints whose writing or removal was interrupted.

    If this fails, writing the next checkpoint raises an error.
    """
    with suppress(OSError):
        names = [entry.name for entry in (run_dir / CHECKPOINTS).iterdir()]
        steps = {match[1] for match in map(PART.fullmatch, names) if match}
        if steps:
            remove_stale_temporaries([run_dir / CHECKPOINTS], sorted(steps))


def list_checkpoints(run_dir: Path) -> List[Path]:
    """Return the paths of a run's checkpoints, the newest first."""
    with suppress(OSError):
        paths = [path for path in (run_dir / CHECKPOINTS).iterdir() if NAME.fullmatch(path.name)]
        return sorted(paths, key=_step_number, reverse=True)
    return []


class LatestCheckpoint(NamedTuple):
    """The newest usable checkpoint. ``damaged``: a line about each newer, unusable checkpoint."""

    checkpoint: Checkpoint
    damaged: List[str]


def read_newest_checkpoint(run_dir: Path) -> LatestCheckpoint:
    """Read the newest checkpoint that is complete and matches the run's metrics.jsonl.

    If a file store has restored the folder, some of its files may be older than others. Raises
    DataError if there is no usable checkpoint.
    """
    damaged: List[str] = []
    for path in list_checkpoints(run_dir):
        try:
            return LatestCheckpoint(_read_checkpoint(path), damaged)
        except _DamagedCheckpoint as error:
            damaged.append(f"{path} is damaged ({error})")
        except _UnusableCheckpoint as error:
            damaged.append(f"{path} cannot be used ({error})")
    if damaged:
        raise DataError(
            f"{run_dir} contains no usable checkpoint to resume from: {damaged[0]}: start the run again with another "
            "--out directory"
        )
    raise DataError(
        f"{run_dir} contains no checkpoint to resume from, because a run without --checkpoint-every saves a "
        "checkpoint only on Ctrl-C or SIGTERM: start the run again with --checkpoint-every 1epoch"
    )


def _read_checkpoint(path: Path) -> Checkpoint:
    """Read and check a checkpoint. Raises _DamagedCheckpoint and _UnusableCheckpoint."""
    try:
        files = _read_manifest(path)
        names = {entry.name for entry in path.iterdir() if not is_sagemaker_marker(entry.name)}
        if names != {*files, MANIFEST}:
            raise _DamagedCheckpoint(f"it contains {', '.join(sorted(names))} instead of the expected files")
        for name, size_and_digest in files.items():
            if _size_and_digest(path / name) != size_and_digest:
                raise _DamagedCheckpoint(f"{name} was changed after it was written")
        state = _read_json(path / STATE)
        parameters, optimizer, devices = (read_arrays(path / name) for name in ARRAYS)
    except OSError as error:
        raise _DamagedCheckpoint(error.strerror or str(error)) from None
    except ValueError as error:
        raise _DamagedCheckpoint(str(error)) from None
    if state.get("step") != _step_number(path):
        raise _DamagedCheckpoint(f"{STATE} belongs to step {state.get('step')}, not to step {_step_number(path)}")
    _check_metrics_prefix(path.parent.parent / METRICS, state.get("metrics"))
    return Checkpoint(parameters, optimizer, devices, state)


def _sync_metrics(run_dir: Path) -> None:
    """Write metrics.jsonl to disk and close it. Some file stores copy a file when it is closed."""
    file = os.open(run_dir / METRICS, os.O_WRONLY | os.O_APPEND)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _check_metrics_prefix(file: Path, position: Any) -> None:
    """Raise an error unless metrics.jsonl starts with the lines it had when the checkpoint was
    made.

    ``position``: size and digest of these lines, from `RunDirectory.metrics_position`.
    """
    if position is None:
        return
    if not (isinstance(position, dict) and isinstance(position.get("bytes"), int)):
        raise _DamagedCheckpoint(f"{STATE} does not contain the length of {METRICS}")
    if _starts_with(file, position):
        return
    size = file.stat().st_size if file.is_file() else 0
    raise _UnusableCheckpoint(
        f"earlier lines of {METRICS} have changed"
        if size >= position["bytes"]
        else f"lines of {METRICS} are missing: the file has {size:,} bytes, but had {position['bytes']:,} bytes before"
    )


def _starts_with(file: Path, position: Mapping[str, Any]) -> bool:
    """Return True if the first ``position["bytes"]`` bytes of a file have the expected digest."""
    bytes_left, digest = position["bytes"], hashlib.sha256()
    with suppress(FileNotFoundError), file.open("rb") as content:
        while bytes_left > 0:
            block = content.read(min(bytes_left, BLOCK_BYTES))
            if not block:
                break
            digest.update(block)
            bytes_left -= len(block)
    return bytes_left == 0 and digest.hexdigest() == position.get("sha256")


def _manifest_text(files: Mapping[str, Any], version: Any) -> str:
    """Return the text of manifest.json. ``files``: name -> size and digest."""
    content = {"format": FORMAT, "gluonlab": version, "files": files}
    digest = hashlib.sha256(file_text(content).encode()).hexdigest()
    return file_text({**content, "sha256": digest}) + "\n"


def _read_manifest(path: Path) -> Dict[str, Any]:
    """Check a checkpoint's manifest, and return the size and digest of each file by name."""
    content, file = _read_json(path / MANIFEST), path / MANIFEST
    if content.get("format") != FORMAT:
        raise _DamagedCheckpoint(f"{MANIFEST} has format {content.get('format')!r}, not {FORMAT}")
    files = content.get("files")
    if not isinstance(files, dict) or set(files) != {*ARRAYS, STATE}:
        raise _DamagedCheckpoint(f"{MANIFEST} does not list the expected files")
    if file.read_text(encoding="utf-8") != _manifest_text(files, content.get("gluonlab")):
        raise _DamagedCheckpoint(f"{MANIFEST} was changed after it was written")
    return files


def _read_json(file: Path) -> Dict[str, Any]:
    """Return the JSON object in a file. Raises _DamagedCheckpoint if the file contains none."""
    if _regular_file_size(file) > MAX_JSON_BYTES:
        raise _DamagedCheckpoint(f"{file.name} is too large")
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        raise _DamagedCheckpoint(f"{file.name} is not valid JSON") from None
    if not isinstance(content, dict):
        raise _DamagedCheckpoint(f"{file.name} is not a JSON object")
    return content


def _size_and_digest(file: Path) -> Dict[str, Any]:
    """Return the size and digest of a file, in the form that the manifest contains."""
    size, digest = _regular_file_size(file), hashlib.sha256()
    with file.open("rb") as content:
        for block in iter(lambda: content.read(BLOCK_BYTES), b""):
            digest.update(block)
    return {"bytes": size, "sha256": digest.hexdigest()}


def _regular_file_size(file: Path) -> int:
    """Return the size of a file. Raises _DamagedCheckpoint if it is not a regular file."""
    status = os.lstat(file)
    if not stat.S_ISREG(status.st_mode):
        raise _DamagedCheckpoint(f"{file.name} is not a regular file")
    return status.st_size


def _step_number(path: Path) -> int:
    return int(path.name.partition("-")[2])


def find_parameters_file(run_dir: Path, digest: str) -> Optional[Path]:
    """Return the path of a checkpoint's parameters with this SHA-256, or None."""
    for path in list_checkpoints(run_dir):
        with suppress(OSError, _DamagedCheckpoint):
            if _size_and_digest(path / PARAMETERS)["sha256"] == digest:
                return path / PARAMETERS
    return None


def _read_score(path: Path) -> Optional[float]:
    """Return the score in the checkpoint's state.json, or None."""
    with suppress(OSError, _DamagedCheckpoint):
        state = _read_json(path / STATE)
        score = state.get("score", state.get("accuracy"))  # older versions wrote accuracy
        return score if isinstance(score, float) else None
    return None
