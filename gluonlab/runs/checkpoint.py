"""Checkpoints: what a run goes on from, each in a folder of its own below the run's.

=================  =========================================================================
parameters.params  the network's parameters, as the run's own file of that name has them
optimizer.states   the optimizer's states, as `BucketedTrainer.save_states` writes them
devices.params     what each device has of its own: running statistics, losses not read yet
state.json         all else: where the run stands
manifest.json      the size and SHA-256 of each of these files, and the SHA-256 of itself
=================  =========================================================================

A checkpoint appears whole or not at all: its files are written beside its place, and on disk,
before it gets its name. What is damaged is noticed when it is read, and not believed: nothing is
taken from a file before its digest is right. Arrays are MXNet's own format, without pickle.
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
MOST_JSON = 2**26  # bytes of state.json and manifest.json; they hold some thousand
BLOCK = 2**20
FREE_SPACE = "free space there; what was written before is whole"

Arrays = Mapping[str, nd.NDArray]


class Checkpoint(NamedTuple):
    """What a checkpoint holds. The arrays lie on the CPU and may still be computed.

    ``state``: plain values, with the run's ``step``, and the ``score`` of an epoch that ends there,
    the larger the better, or None.
    """

    parameters: Arrays
    optimizer: Arrays
    devices: Arrays
    state: Dict[str, Any]

    @property
    def step(self) -> int:
        """The steps of the run so far."""
        return int(self.state["step"])


class _Damaged(Exception):
    """Why a checkpoint cannot be believed."""


class _Unfit(Exception):
    """Why a run cannot go on from a checkpoint that is whole."""


def write(run: Path, checkpoint: Checkpoint, go_on: Callable[[], None] = lambda: None) -> Path:
    """Write a checkpoint below the folder ``run``, and return its place.

    Waits for the arrays. Raises OutputError, or what ``go_on`` raises, which is called before each
    file of arrays and at the end, and leaves the earlier checkpoints then.
    """
    place = run / CHECKPOINTS / f"step-{checkpoint.step:09d}"
    with raise_output_errors(place, FREE_SPACE), atomic_folder(place) as folder:
        _close_metrics(run)  # the checkpoint goes by its lines
        for name, arrays in zip(ARRAYS, checkpoint[:3]):
            go_on()
            save_arrays(folder / name, arrays, FREE_SPACE)
        write_text(folder / STATE, file_text(checkpoint.state) + "\n", FREE_SPACE)
        files = {name: _about(folder / name) for name in (*ARRAYS, STATE)}
        write_text(folder / MANIFEST, _manifest(files, gluonlab.__version__), FREE_SPACE)
        go_on()
    return place


def remove_others(run: Path, keep: int) -> None:
    """Keep the ``keep`` newest checkpoints, and the newest of those with the best score."""
    places = checkpoints(run)
    scored = [(_score(place), place) for place in places[keep:]]
    rest = {place for _, place in scored}
    newer = [score for score in map(_score, places[:keep]) if score is not None]
    older = [(score, place) for score, place in scored if score is not None]
    if older:
        best, place = max(older, key=lambda each: each[0])
        if best > max(newer, default=-math.inf):
            rest.discard(place)
    for place in rest:
        with suppress(OSError):
            _remove(place)
    _sweep(run)


def remove_later(run: Path, step: int) -> None:
    """Remove the checkpoints of later steps, which a run that goes on from ``step`` makes anew."""
    for place in checkpoints(run):
        if _step(place) > step:
            with raise_output_errors(place, FREE_SPACE):
                _remove(place)
    _sweep(run)


def _remove(place: Path) -> None:
    """Take the name away first: the rest may stay for a while where markers are written to it."""
    away = place.with_name(f".{place.name}-{secrets.token_hex(4)}.part")
    place.rename(away)
    shutil.rmtree(away, ignore_errors=True)


def _sweep(run: Path) -> None:
    """Remove what is left of checkpoints that were not finished, or not quite removed.

    Where that is impossible, the next checkpoint says so.
    """
    with suppress(OSError):
        names = [entry.name for entry in (run / CHECKPOINTS).iterdir()]
        steps = {found[1] for found in map(PART.fullmatch, names) if found}
        if steps:
            remove_stale_temporaries([run / CHECKPOINTS], sorted(steps))


def checkpoints(run: Path) -> List[Path]:
    """The places of a run's checkpoints, the newest first."""
    with suppress(OSError):
        places = [place for place in (run / CHECKPOINTS).iterdir() if NAME.fullmatch(place.name)]
        return sorted(places, key=_step, reverse=True)
    return []


class LatestCheckpoint(NamedTuple):
    """The newest checkpoint to go on from; ``damaged``: a line about each later one."""

    checkpoint: Checkpoint
    damaged: List[str]


def newest(run: Path) -> LatestCheckpoint:
    """The newest checkpoint of the run in this folder that is whole and fits its metrics.jsonl.

    What a store of files puts back may be of different ages. Raises DataError when there is none.
    """
    damaged: List[str] = []
    for place in checkpoints(run):
        try:
            return LatestCheckpoint(_read(place), damaged)
        except _Damaged as error:
            damaged.append(f"{place} is damaged ({error})")
        except _Unfit as error:
            damaged.append(f"{place} cannot be used ({error})")
    why = f": {damaged[0]}" if damaged else ""
    raise DataError(
        f"{run} has no {'whole ' * bool(damaged)}checkpoint to go on from{why}: "
        "give the folder of a run that was interrupted, or that had --checkpoint-every"
    )


def _read(place: Path) -> Checkpoint:
    try:
        files = _checked_manifest(place)
        inside = {entry.name for entry in place.iterdir() if not is_sagemaker_marker(entry.name)}
        if inside != {*files, MANIFEST}:
            raise _Damaged(f"it holds {', '.join(sorted(inside))}")
        for name, about in files.items():
            if _about(place / name) != about:
                raise _Damaged(f"{name} is not what was written")
        state = _json(place / STATE)
        parameters, optimizer, devices = (read_arrays(place / name) for name in ARRAYS)
    except OSError as error:
        raise _Damaged(error.strerror or str(error)) from None
    except ValueError as error:
        raise _Damaged(str(error)) from None
    if state.get("step") != _step(place):
        raise _Damaged(f"it is that of step {state.get('step')}")
    _check_metrics(place.parent.parent / METRICS, state.get("metrics"))
    return Checkpoint(parameters, optimizer, devices, state)


def _close_metrics(run: Path) -> None:
    """Have the lines on disk, and the file closed after writing, which is what some copy it at."""
    file = os.open(run / METRICS, os.O_WRONLY | os.O_APPEND)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _check_metrics(file: Path, mark: Any) -> None:
    """Raise _Unfit where the lines are not those at whose `RunDirectory.mark` it was written."""
    if mark is None:
        return
    if not (isinstance(mark, dict) and isinstance(mark.get("bytes"), int)):
        raise _Damaged(f"{STATE} does not say how far {METRICS} has come")
    if _fits(file, mark):
        return
    there = file.stat().st_size if file.is_file() else 0
    raise _Unfit(
        f"{METRICS} has other lines than those before it"
        if there >= mark["bytes"]
        else f"{METRICS} has lost lines: it has {there:,} bytes, and had {mark['bytes']:,}"
    )


def _fits(file: Path, mark: Mapping[str, Any]) -> bool:
    """Whether a file begins with as many bytes, of this digest."""
    left, digest = mark["bytes"], hashlib.sha256()
    with suppress(FileNotFoundError), file.open("rb") as content:
        while left > 0:
            block = content.read(min(left, BLOCK))
            if not block:
                break
            digest.update(block)
            left -= len(block)
    return left == 0 and digest.hexdigest() == mark.get("sha256")


def _manifest(files: Mapping[str, Any], version: Any) -> str:
    content = {"format": FORMAT, "gluonlab": version, "files": files}
    own = hashlib.sha256(file_text(content).encode()).hexdigest()
    return file_text({**content, "sha256": own}) + "\n"


def _checked_manifest(place: Path) -> Dict[str, Any]:
    content, file = _json(place / MANIFEST), place / MANIFEST
    if content.get("format") != FORMAT:
        raise _Damaged(f"{MANIFEST} has format {content.get('format')!r}, not {FORMAT}")
    files = content.get("files")
    if not isinstance(files, dict) or set(files) != {*ARRAYS, STATE}:
        raise _Damaged(f"{MANIFEST} names other files")
    if file.read_text(encoding="utf-8") != _manifest(files, content.get("gluonlab")):
        raise _Damaged(f"{MANIFEST} is not what was written")
    return files


def _json(file: Path) -> Dict[str, Any]:
    if _regular(file) > MOST_JSON:
        raise _Damaged(f"{file.name} is too long")
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        raise _Damaged(f"{file.name} is no JSON") from None
    if not isinstance(content, dict):
        raise _Damaged(f"{file.name} is no JSON object")
    return content


def _about(file: Path) -> Dict[str, Any]:
    """The size and digest of a file, as the manifest has them."""
    size, digest = _regular(file), hashlib.sha256()
    with file.open("rb") as content:
        for block in iter(lambda: content.read(BLOCK), b""):
            digest.update(block)
    return {"bytes": size, "sha256": digest.hexdigest()}


def _regular(file: Path) -> int:
    """The size of a file. Raises _Damaged for a link, a pipe and the like."""
    about = os.lstat(file)
    if not stat.S_ISREG(about.st_mode):
        raise _Damaged(f"{file.name} is no file")
    return about.st_size


def _step(place: Path) -> int:
    return int(place.name.partition("-")[2])


def with_parameters(run: Path, digest: str) -> Optional[Path]:
    """The file of a checkpoint whose parameters have this SHA-256, if there is one."""
    for place in checkpoints(run):
        with suppress(OSError, _Damaged):
            if _about(place / PARAMETERS)["sha256"] == digest:
                return place / PARAMETERS
    return None


def _score(place: Path) -> Optional[float]:
    """The score of the epoch that ends there; None where none does, or it cannot be read."""
    with suppress(OSError, _Damaged):
        state = _json(place / STATE)
        score = state.get("score", state.get("accuracy"))  # which is what older versions wrote
        return score if isinstance(score, float) else None
    return None
