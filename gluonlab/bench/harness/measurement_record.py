"""Record of a measurement: a JSON file with each round's numbers, and facts about the machine.

    {"format": 1, "bench": "peers", "options": {"network": "lenet"}, "rounds": 9, "turns": "5f0c",
     "about": {"gluonlab": ..., "commit": ..., "cpu": ..., "processor": {"vendor": ...,
               "family": 25, "model": 17, "flags": [...]}, "instruction_set": "AVX2",
               "DNNL_MAX_CPU_ISA": ... if it is set, "cores": 2, "versions": {...}, "began": ...,
               "seconds": ..., "load": ..., "others": ...},
     "series": [{"name": "gluonlab-2x1", "label": ..., "unit": "images/s", "values": [...]}, ...]}

- ``turns``: a random id. Records with the same ``turns`` were measured in interleaved rounds: round
  i of one record belongs to round i of the other.
- ``load``: the load average at the start.
- ``others``: the mean number of cores that other processes used during the measurement.

Older records have neither ``processor`` nor ``instruction_set``.
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
MAX_RECORD_BYTES = 16 * 2**20  # of a file that is read; a record has some kilobytes
RATE_UNITS = ("images/s", "GFLOP/s")  # units in which more is better; in all others less is better
HEAD_FIELDS = {"bench": str, "options": dict, "rounds": int, "turns": str, "about": dict}


@dataclass(frozen=True)
class Series:
    """A measured quantity in one table row.

    ``values``: a number for each round, in ``unit``. ``reason``: why there are no values, or None.
    """

    name: str
    label: str
    unit: str
    values: Tuple[float, ...] = ()
    reason: Optional[str] = None

    def speeds(self) -> List[float]:
        """Return the values if they are rates, else their reciprocals, so that larger is faster."""
        return [value if self.unit in RATE_UNITS else 1 / value for value in self.values]


@dataclass(frozen=True)
class Record:
    """A measurement, with the fields of the JSON file.

    ``about``: facts about the machine, the versions and the load, as JSON values.
    """

    bench: str
    options: Mapping[str, Any]
    rounds: int
    turns: str
    about: Mapping[str, Any]
    series: Tuple[Series, ...]

    @property
    def title(self) -> str:
        """Return the command and its options, such as ``peers --network lenet``."""
        options = (f"--{name} {value}" for name, value in self.options.items())
        return escape_unprintable(" ".join([self.bench, *options]))

    def find(self, name: str) -> Optional[Series]:
        """Return the series with this name, or None if it was not measured."""
        return next((item for item in self.series if item.name == name and item.values), None)

    def as_json(self) -> str:
        """Return the record as JSON, with a line for each series."""
        head = {"format": FORMAT, **{name: getattr(self, name) for name in HEAD_FIELDS}}
        series = ({k: v for k, v in asdict(item).items() if v is not None} for item in self.series)
        lines = ",\n  ".join(map(json_text, series))
        return f'{json_text(head)[:-1]}, "series": [\n  {lines}\n]}}\n'

    def write(self, path: Path) -> None:
        """Write the record atomically. Raises OutputError."""
        write_text(path, self.as_json())


def read_record(path: Path) -> Record:
    """Read a record. Raises DataError for a file that is missing, too large or not a record."""
    try:
        return _parse_record(json.loads(read_bounded(path, MAX_RECORD_BYTES)))
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        problem = f"is not a results file of gluonlab bench ({' '.join(str(error).split())[:80]})"
    raise DataError(f"{path} {problem}: pass a file written by gluonlab bench with --out-file")


def _parse_record(content: Dict[str, Any]) -> Record:
    """Return the record that a JSON value describes.

    Raises an error for wrong or missing values.
    """
    if content["format"] != FORMAT:
        raise ValueError(f"its format is {content['format']} instead of {FORMAT}")
    for name, kind in [*HEAD_FIELDS.items(), ("series", list)]:
        if not isinstance(content[name], kind):
            raise ValueError(f"{name} is not of type {kind.__name__}")
    head = {name: content[name] for name in HEAD_FIELDS}
    return Record(**head, series=tuple(map(_parse_series, content["series"])))


def _parse_series(content: Mapping[str, Any]) -> Series:
    """Return one series of a record. The values must be finite and above 0."""
    values = tuple(float(value) for value in content["values"])
    if not all(0 < value < math.inf for value in values):
        raise ValueError(f"{content['name']} has values that are not greater than 0")
    return Series(
        str(content["name"]), str(content["label"]), str(content["unit"]), values,
        content.get("reason"),
    )  # fmt: skip
