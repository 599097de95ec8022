"""What a measurement leaves behind: a JSON file with its numbers by round and what they depend on.

    {"format": 1, "bench": "peers", "options": {"network": "lenet"}, "rounds": 9, "turns": "5f0c",
     "about": {"gluonlab": ..., "commit": ..., "cpu": ..., "processor": {"vendor": ...,
               "family": 25, "model": 17, "flags": [...]}, "instruction_set": "AVX2",
               "DNNL_MAX_CPU_ISA": ... if it is set, "cores": 2, "versions": {...}, "began": ...,
               "seconds": ..., "load": ..., "others": ...},
     "series": [{"name": "gluonlab-2x1", "label": ..., "unit": "images/s", "values": [...]}, ...]}

Older records have neither ``processor`` nor ``instruction_set``.
Records with the same ``turns`` were measured in turns: round i of one belongs to round i of the
other.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

from gluonlab.errors import DataError
from gluonlab.files.atomic_files import read_bounded, write_text
from gluonlab.plain_text import escape_unprintable, json_text

FORMAT = 1
LARGEST_BYTES = 16 * 2**20  # of a file that is read; a record has some kilobytes
RATES = ("images/s", "GFLOP/s")  # more of it is better; of every other unit, less
HEAD = {"bench": str, "options": dict, "rounds": int, "turns": str, "about": dict}


@dataclass(frozen=True)
class Series:
    """One row of a table: a number for each round in ``unit``, or the ``reason`` for none."""

    name: str
    label: str
    unit: str
    values: Tuple[float, ...] = ()
    reason: Optional[str] = None

    def speeds(self) -> List[float]:
        """The values, or where less is better one over them: twice as much is twice as fast."""
        return [value if self.unit in RATES else 1 / value for value in self.values]


@dataclass(frozen=True)
class Record:
    """One measurement. ``about``: machine, versions, load; plain values, as JSON has them."""

    bench: str
    options: Mapping[str, Any]
    rounds: int
    turns: str
    about: Mapping[str, Any]
    series: Tuple[Series, ...]

    @property
    def title(self) -> str:
        """``peers --network lenet``."""
        options = (f"--{name} {value}" for name, value in self.options.items())
        return escape_unprintable(" ".join([self.bench, *options]))

    def find(self, name: str) -> Optional[Series]:
        """The series of this name, if it was measured."""
        return next((one for one in self.series if one.name == name and one.values), None)

    def as_json(self) -> str:
        """The record as text, a line for each series."""
        head = {"format": FORMAT, **{name: getattr(self, name) for name in HEAD}}
        series = ({k: v for k, v in asdict(one).items() if v is not None} for one in self.series)
        lines = ",\n  ".join(map(json_text, series))
        return f'{json_text(head)[:-1]}, "series": [\n  {lines}\n]}}\n'

    def write(self, path: Path) -> None:
        """Write it as a whole. Raises OutputError."""
        write_text(path, self.as_json())


def read_record(path: Path) -> Record:
    """Read a record. Raises DataError for a file that is missing, too large or not a record."""
    try:
        return _record(json.loads(read_bounded(path, LARGEST_BYTES)))
    except OSError as error:
        fault = f"cannot be read ({error.strerror})"
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        fault = f"is not a record of a measurement ({' '.join(str(error).split())[:80]})"
    raise DataError(f"{path} {fault}: give a file that bench --out wrote")


def _record(content: Dict[str, Any]) -> Record:
    if content["format"] != FORMAT:
        raise ValueError(f"format {content['format']} instead of {FORMAT}")
    for name, kind in [*HEAD.items(), ("series", list)]:
        if not isinstance(content[name], kind):
            raise ValueError(f"{name} is no {kind.__name__}")
    head = {name: content[name] for name in HEAD}
    return Record(**head, series=tuple(map(_series, content["series"])))


def _series(one: Mapping[str, Any]) -> Series:
    values = tuple(float(value) for value in one["values"])
    if not all(0 < value < math.inf for value in values):
        raise ValueError(f"{one['name']} has values that are not above 0")
    return Series(str(one["name"]), str(one["label"]), str(one["unit"]), values, one.get("reason"))
