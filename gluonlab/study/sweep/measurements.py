"""What a sweep has measured: one JSON line for each, which appears whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Protocol, Tuple

from gluonlab.errors import DataError
from gluonlab.files.whole import append_whole, on_disk, read_bounded

LARGEST_BYTES = 2**28  # of a file that is read; a line has some hundred
Values = Mapping[str, Any]  # plain, as JSON has them

# The JSON text of a line. ValueError for NaN and infinity, which JSON has not.
_text = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
_sorted_text = json.JSONEncoder(allow_nan=False, sort_keys=True, separators=(",", ":")).encode


def key_of(settings: Values) -> str:
    """The name of a point: the same text for the same settings, in whatever order they stand."""
    return _sorted_text(dict(settings))


class Measured(NamedTuple):
    """What was measured of a point's ``settings`` in a ``round``."""

    settings: Dict[str, Any]
    round: int
    values: Dict[str, Any]


class Store(Protocol):
    """Where measurements go, and where those of an earlier try are."""

    def find(self, settings: Values, round: int) -> Optional[Dict[str, Any]]:
        """What was measured there already; None if nothing was."""

    def add(self, settings: Values, round: int, values: Values) -> None:
        """Keep a measurement."""


class InMemory:
    """A `Store` that ends with its process."""

    def __init__(self) -> None:
        self._found: Dict[Tuple[str, int], Measured] = {}

    def find(self, settings: Values, round: int) -> Optional[Dict[str, Any]]:
        """As `Store` says."""
        found = self._found.get((key_of(settings), round))
        return None if found is None else found.values

    def add(self, settings: Values, round: int, values: Values) -> None:
        """As `Store` says."""
        self._found[key_of(settings), round] = Measured(dict(settings), round, dict(values))

    def all(self) -> List[Measured]:
        """Everything, in the order in which it was measured."""
        return list(self._found.values())


class InFile(InMemory):
    """A `Store` that appends a line to a file for each; lines that are there count as measured.

    A last line that a kill cut off is removed. The caller sees to it that no other process has the
    file. Raises DataError, naming the line, for a damaged one, and OutputError where the disk does
    not take a line.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        with on_disk(path):
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            with on_disk(path):
                content = read_bounded(path, LARGEST_BYTES)
                whole = content.rfind(b"\n") + 1
                os.truncate(self._file, whole)
            for number, line in enumerate(content[:whole].split(b"\n")[:-1], start=1):
                super().add(*self._read(number, line))
        except BaseException:
            os.close(self._file)
            raise

    def add(self, settings: Values, round: int, values: Values) -> None:
        """As `Store` says; it is in the file when this returns."""
        text = _text({"settings": dict(settings), "round": round, "values": dict(values)})
        with on_disk(self.path):
            append_whole(self._file, f"{text}\n".encode())
        super().add(settings, round, values)

    def close(self) -> None:
        """Nothing more is added. May be called again."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read(self, number: int, line: bytes) -> Measured:
        try:
            parts = json.loads(line.decode())
            found = Measured(parts["settings"], parts["round"], parts["values"])
            if [type(each) for each in found] == [dict, int, dict]:
                return found
        except (ValueError, TypeError, KeyError, RecursionError):
            pass
        raise DataError(
            f"{self.path}, line {number}, is no measurement: remove the line, or give another --out"
        )
